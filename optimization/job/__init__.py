"""A job: workload, throughput, progress, ending (M2)."""
