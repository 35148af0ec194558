"""Joint planning of jobs that compete for the same instances."""
