"""Experiments that anybody can repeat on a folder of tidy tables (M7); no engine, no warehouse."""
