"""The experiment `renting`."""
