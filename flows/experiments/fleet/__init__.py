"""The experiment `fleet`."""
