"""A drawing with what stands around it; the drawing itself is a Vega-Lite specification, made in `flows.show.charts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart under a title.

    ``specs`` are Vega-Lite specifications, drawn one below the other, or make them where only a page needs them; where there are
    none ``why`` says so in their place.
    ``label`` is what a screen reader calls it. ``warnings`` and ``strong`` stand above the drawing, ``captions`` below it.
    ``width`` is how wide it grows at most, in CSS pixels (0: as wide as its place).
    """

    kind: ClassVar[str] = "figure"
    specs: Sequence[Mapping[str, Any]] | Callable[[], Sequence[Mapping[str, Any]]]
    label: str
    title: str = ""
    strong: Sequence[str] = ()
    warnings: Sequence[str] = ()
    captions: Sequence[str] = ()
    why: str = "There is nothing to draw yet."
    width: int = 860

    def drawn(self) -> Sequence[Mapping[str, Any]]:
        """The specifications."""
        return self.specs() if callable(self.specs) else self.specs
