"""Building blocks of experiments: scenarios, traces, comparisons (M7)."""
