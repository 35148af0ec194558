"""Stored results of turns: runs, failures, jobs, decisions, and rounds of the selection."""
