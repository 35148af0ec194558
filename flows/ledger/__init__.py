"""What turns have stored: runs, failures, jobs, decisions, rounds."""
