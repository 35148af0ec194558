"""Which origin is forecast from which estimation (M6.4)."""
