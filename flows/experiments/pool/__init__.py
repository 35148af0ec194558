"""The experiment `pool`."""
