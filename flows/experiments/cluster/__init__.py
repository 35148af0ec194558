"""The experiment `cluster`."""
