"""Renting of GPUs for a stream of jobs within a budget (M8)."""
