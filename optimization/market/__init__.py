"""The optimizer's view of a market: windows, recent data, and Markov chains of its count and price (M4.6)."""
