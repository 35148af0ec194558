"""The experiment `cant-be-late`."""
