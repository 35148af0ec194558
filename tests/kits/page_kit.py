"""Contents of an HTML page: its charts, each accepted by the chart language, and its references, none external."""

import base64
import gzip
import json
import re
from functools import cache
from html.parser import HTMLParser

from altair.vegalite.v6.schema.core import Root

from slackwater.flows.show.blocks import Figure, Figures, Fold, Section
from slackwater.flows.show.page import asset, render_page, specification


class _Parts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.refs, self.far = [], [], []

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            if key in ("href", "src", "xlink:href"):
                (self.refs if value.startswith("#") else self.far).append(value)


_PACKED = re.compile(r'<script type="text/x-gzip-base64" id="charts">([\w+/=]*)</script>')


def unpacked(page):
    """Return a page with its charts' specifications in plain text, without the script that draws them."""

    def plain(found):
        held = json.loads(gzip.decompress(base64.b64decode(found[1])))
        assert held["vega"] == asset("vega.js")
        return "".join(
            f'<script type="application/json">{specification(chart)}</script>' for chart in held["charts"]
        )

    return _PACKED.sub(plain, page)


def charts_of(page):
    """Return the specifications of a self-contained page."""
    own = unpacked(page)
    parts = _Parts()
    parts.feed(own)
    assert len(parts.ids) == len(set(parts.ids))
    assert {ref[1:] for ref in parts.refs} <= set(parts.ids)
    assert parts.far == []
    assert not re.search(r"https?:|<svg", own)
    specs = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', own)]
    for form in {json.dumps({**spec, "datasets": {}}, sort_keys=True) for spec in specs}:
        accept_form(form)
    return specs


def accept(spec):
    """Raise unless the chart language takes a specification: altair, which builds the chart, would check every part again."""
    Root.validate({**spec, "$schema": "https://vega.github.io/schema/vega-lite/v6.json"})


@cache
def accept_form(form):
    """Raise unless the chart language takes a specification without its data, which it would take long to read."""
    accept(json.loads(form))


def rendered(answer):
    """Return the page of an answer, as text."""
    return render_page(answer.as_page())


def figures_of(blocks):
    """Yield every figure in some blocks."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Figures):
            yield from block.figures
        elif isinstance(block, Fold | Section):
            yield from figures_of(block.blocks)
