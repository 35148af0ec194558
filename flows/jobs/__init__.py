"""Commands on jobs: job files, changes of terms, reports of progress, and costs."""
