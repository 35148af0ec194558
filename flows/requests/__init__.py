"""A request of a few fields filled into a job (M9.1)."""
