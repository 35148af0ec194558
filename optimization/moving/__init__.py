"""One job, many markets: it runs in one of them at a time and may move (M11) (ours)."""
