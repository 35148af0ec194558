"""Fetch live sources into the warehouse, and show their state."""
