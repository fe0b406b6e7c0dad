"""What others offer for the same work, each in an environment of its own, and talks with them."""
