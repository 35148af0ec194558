"""Stored results of turns: stages and failures, jobs with their terms and reports, decisions, and rounds of the selection."""
