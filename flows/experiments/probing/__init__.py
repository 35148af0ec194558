"""The experiment `probing`."""
