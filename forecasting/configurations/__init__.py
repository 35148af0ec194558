"""Throughput and validity of fine-tuning configurations (M9)."""
