"""Keeps what was observed, issued, decided and scored; knows no model."""

from warehouse.history import History, Market

__all__ = ["History", "Market"]
