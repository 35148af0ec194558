"""Filling of requests: from model, work and deadline to a configuration, a market and a plan (M9)."""
