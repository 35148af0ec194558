"""The experiment `selection`."""
