"""Backfill: run the stages of a live turn for past slots."""
