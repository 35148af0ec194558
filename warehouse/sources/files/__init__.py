"""One file per real format."""
