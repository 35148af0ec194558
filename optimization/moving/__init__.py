"""Multi-market jobs: a job runs in one of several markets at a time and may move between them (M11) (ours)."""
