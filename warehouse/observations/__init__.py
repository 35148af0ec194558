"""Rows in: staged, cast, judged, merged, counted."""
