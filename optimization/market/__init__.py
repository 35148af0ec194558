"""What the optimizer sees of a market, and chains of its count and price (M4.6)."""
