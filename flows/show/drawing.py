"""Matplotlib figures as SVG text to be put inside a page: no foreign ids, no network names, the page's own colours and font."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours of the drawings, and the custom property of the page's style sheet that each becomes (so that one drawing
#: serves the light, the dark and the printed page). The hues of series are those of Okabe and Ito, told apart by the colour-blind.
PALETTE: Final[dict[str, str]] = {
    "ink": "#1d2733",
    "muted": "#5b6776",
    "grid": "#e3e8ee",
    "gap": "#a0abb8",
    "rest": "#c9d0d9",
    "band90": "#dce9f5",
    "band80": "#b9d4ec",
    "band50": "#7fb3dd",
    "median": "#0b5394",
    "on-demand": "#c2500b",
    "capacity": "#0a7d5d",
    "series1": "#0072b2",
    "series2": "#d55e00",
    "series3": "#009e73",
    "series4": "#b3578f",
    "series5": "#c98a00",
    "series6": "#3fa0d8",
    "series7": "#6b4fa0",
    "series8": "#7a6a4f",
}
_PROPERTY: Final[dict[str, str]] = {colour: name for name, colour in PALETTE.items()}
#: One SVG user unit is one CSS pixel at the drawing's own width.
PIXELS_PER_INCH: Final = 72

_RC: Final[dict[str, Any]] = {
    "svg.fonttype": "none",  # text stays text: small, selectable, and in the reader's own font
    "text.parse_math": False,  # a "$" in a name is a dollar sign
    "text.usetex": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": PALETTE["muted"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 0.8,
    "text.color": PALETTE["ink"],
    "xtick.color": PALETTE["muted"],
    "ytick.color": PALETTE["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "hatch.color": PALETTE["gap"],
    "hatch.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "butt",
}


_STYLED: Final[ContextVar[bool]] = ContextVar("styled", default=False)


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the report's style whatever the user's own matplotlib settings say; the same figure gives the same bytes.

    Inside another one it does nothing: setting the style takes longer than a small drawing.
    """
    if _STYLED.get():
        yield
        return
    from matplotlib import style

    with style.context(["default", _RC], after_reset=True):
        token = _STYLED.set(True)
        try:
            yield
        finally:
            _STYLED.reset(token)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of ``width`` by ``height`` CSS pixels, without pyplot's global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH)


def inline_svg(figure: Figure, *, name: str, label: str) -> str:
    """``figure`` as an ``<svg>`` element whose ids all begin with ``name`` and which a screen reader calls ``label``.

    ``name`` must be unique in the page: it salts matplotlib's own ids and prefixes what is left of them. Must be called
    inside `house_style`.
    """
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([\w.-]+)', svg))
    svg = re.sub(r"<[^<>]+>", lambda tag: _tidy_tag(tag.group(), name, used), svg)
    svg = re.sub(r"<defs>\s*</defs>", "", svg)
    svg = re.sub(r">\s+<", "><", svg).strip()
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _tidy_tag(tag: str, name: str, used: set[str]) -> str:
    """One tag (texts are not touched: they hold names given by users, in which matplotlib has escaped ``<`` and ``>``)."""
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r'url\(#([^)"]+)\)', rf"url(#{name}-\1)", tag)
    tag = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{name}-\1"', tag)
    tag = re.sub(r" font-family: [^;\"]*;?", "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", tag)
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{_PROPERTY[m[0]]})" if m[0] in _PROPERTY else m[0], tag)
    tag = re.sub(r"-?\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), tag)
    if tag.startswith("<svg"):
        tag = re.sub(r' (?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", tag)
    return re.sub(r"\s+", " ", tag)
