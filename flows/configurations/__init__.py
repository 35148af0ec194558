"""Throughput and validity of fine-tuning configurations, fitted to measured runs."""
