"""Live sources fetched into the warehouse, and the state of each."""
