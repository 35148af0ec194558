"""Jobs that compete for the same instances, planned together."""
