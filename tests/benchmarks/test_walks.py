"""Rules for entered code, and the comparison of figures of two times."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import walks

FILES = {
    "start": """
        from shop import late, registry, rows
        def walk():
            rows.total()
            rows.decide()
        """,
    "registry": """
        def made(): return made
        class Shelf:
            kept = made()
        """,
    "rows": """
        def total(): return sum(one for one in [1, 2])
        def decide(): import shop.late; return shop.late.least()
        """,
    "late": """
        def least(): return 1
        """,
    "price": """
        from numba import njit
        from shop import tax
        @njit
        def price(n): return tax.taxed(n) + 1.0
        def unused(): return price(2.0)
        """,
    "tax": """
        from numba import njit
        @njit
        def taxed(n): return 1.2 * n
        """,
}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Create a separate product, imported afresh."""
    (tmp_path / "shop").mkdir()
    for name, text in FILES.items():
        (tmp_path / "shop" / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(walks, "ROOT", tmp_path)
    monkeypatch.setattr(walks, "PRODUCT", ("shop",))
    yield lambda name: importlib.import_module(f"shop.{name}")
    for name in [one for one in sys.modules if one.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_what_is_called_counts_and_what_an_import_runs_does_not(shop):
    with walks.Trace() as trace:
        shop("start").walk()
    assert trace.modules == ["shop/late.py", "shop/rows.py", "shop/start.py"]
    assert trace.functions == 4


def test_only_what_is_called_below_a_function(shop):
    start = shop("start")
    with walks.Trace(below="decide") as trace:
        start.walk()
    assert trace.modules == ["shop/late.py", "shop/rows.py"]
    assert trace.functions == 2


def test_threads_count(shop):
    rows = shop("rows")
    with walks.Trace() as trace, ThreadPoolExecutor(1) as pool:
        pool.submit(rows.decide).result()
    assert trace.modules == ["shop/late.py", "shop/rows.py"]


def test_a_compiled_function_counts_with_those_that_it_calls(shop):
    price = shop("price").price
    for _ in range(2):  # compiled in the first run, cached in the second
        with walks.Trace() as trace:
            assert price(2.0) == 3.4
        assert trace.modules == ["shop/price.py", "shop/tax.py"]
        assert trace.functions == 2
    with walks.Trace() as trace:
        pass
    assert not trace.modules
    assert price(1.0) == 2.2, "nothing is left in the compiler"


def test_figures_side_by_side():
    before = {"walks": {"ingest": {"modules": 31}}, "tree": {"flows": {"modules": 202}}}
    after = {"walks": {"ingest": {"modules": 12}, "plan": {"modules": 3}}, "tree": {}}
    assert walks.beside(before, after) == {
        "walks": {"ingest": {"modules": [31, 12]}, "plan": {"modules": [None, 3]}},
        "tree": {"flows": {"modules": [202, None]}},
    }


def test_what_was_kept_is_read_again():
    figures = json.loads(walks.BEFORE.read_text())
    assert set(figures) == {"walks", "tree"}
    assert walks.figures_json(figures) == walks.BEFORE.read_text()


def test_the_tree_adds_up():
    tree = walks.tree()
    for figure in ("modules", "lines"):
        assert tree["product"][figure] == sum(tree[f"{top}, all"][figure] for top in walks.PRODUCT)
        own = [count for place, count in tree.items() if place.partition("/")[0] == "flows"]
        assert tree["flows, all"][figure] == sum(count[figure] for count in own)
