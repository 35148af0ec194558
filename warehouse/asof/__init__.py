"""Histories out: on a slot grid, as known at one time (M1.3)."""
