"""Completeness, freshness, alarms and the status of a warehouse."""
