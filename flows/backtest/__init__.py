"""Simulate policies on a stored record for many start times of one job, and compare their costs."""
