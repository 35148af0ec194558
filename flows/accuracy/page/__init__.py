"""The accuracy report: one HTML page that needs no network, made from the tables of a backtest (M6.5 to M6.7)."""

from flows.accuracy.page.page import About, render_accuracy_page

__all__ = ["About", "render_accuracy_page"]
