"""GPUs rented for a stream of jobs on a budget."""
