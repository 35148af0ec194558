"""A stream of jobs rented on a budget (M8)."""
