"""What experiments are made of: scenarios, tapes, comparisons (M7)."""
