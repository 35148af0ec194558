"""Schedulers of a shared cluster (M9.5): one file each, all behind `optimization.cluster.simulation.Scheduler`."""
