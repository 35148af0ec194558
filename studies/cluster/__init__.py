"""A simulated cluster shared by a stream of fine-tuning jobs (M9.5)."""
