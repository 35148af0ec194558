"""Benchmarks: speed side by side, and accuracy on real histories."""
