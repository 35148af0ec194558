"""Fine-tuning requests of a few fields, completed to jobs."""
