"""The experiment `error`."""
