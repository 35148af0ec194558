"""Benchmarks of speed, compared with other programs, and of accuracy on real histories."""
