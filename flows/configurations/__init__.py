"""Throughput and validity of fine-tuning configurations, fitted from measured runs (M9)."""
