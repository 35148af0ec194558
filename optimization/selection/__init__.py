"""Learning which policy to trust (M5)."""
