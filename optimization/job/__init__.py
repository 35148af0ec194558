"""Jobs: workload, throughput, progress and ending (M2)."""
