"""Job files and reports of progress."""
