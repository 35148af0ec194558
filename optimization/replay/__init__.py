"""A policy on a recorded market: time, progress, cost, hindsight, ledger (M2.4, M4.7, M5.5)."""
