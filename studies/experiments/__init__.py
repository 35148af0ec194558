"""Reproducible experiments on a folder of tidy tables (M7); they need no engine and no warehouse."""
