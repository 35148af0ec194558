"""Keeps what was observed, issued, decided and scored; knows no model."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warehouse.history import History, Market

__all__ = ["History", "Market"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `warehouse.errors` alone must not cost the import of pandas.
    if name in __all__:
        from warehouse import history

        return getattr(history, name)
    raise AttributeError(f"module 'warehouse' has no attribute {name!r}")
