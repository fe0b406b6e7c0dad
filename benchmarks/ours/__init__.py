"""Our side of the comparisons: processes that compute as the service does."""
