"""Fill a request: from what to train by when to a configuration, a market and a plan (M9)."""
