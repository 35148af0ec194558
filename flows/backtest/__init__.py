"""Simulation of policies on a stored record for many start times of a job, with a comparison of their costs."""
