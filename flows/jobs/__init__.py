"""Job files, reports of progress, practice jobs."""
