"""What ``python -m benchmarks.serve`` is made of: the load, the answers, who is measured."""
