"""The page of the Python API names members that exist, and the notebook runs."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from slackwater.flows.acting.drivers import DRIVERS
from slackwater.forecasting.predictors import PREDICTORS
from slackwater.optimization.moving import MULTI_MARKET_POLICIES
from slackwater.optimization.policies import POLICIES
from slackwater.warehouse.sources import LIVE_SOURCES, SOURCES

DOCS = Path(__file__).parents[1] / "docs"


def test_the_members_that_the_api_page_selects_exist():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    for module, names in re.findall(r"^::: (\S+)\n(?:    .*\n)*?      members: \[(.+)\]", text, re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(import_module(module), name), f"{module}.{name}"


def test_the_notebook_runs(monkeypatch, capsys):
    """Run the code cells in order, in the folder of the notebook, as Jupyter does."""
    folder = DOCS / "notebooks"
    cells = json.loads((folder / "first_plan.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 5
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    exec("\n".join(code), {"__name__": "__main__"})
    said = capsys.readouterr().out
    costs = {
        line[:9].strip(): float(line.split("$")[1].split()[0].rstrip(","))
        for line in said.splitlines()
        if "cost $" in line
    }
    assert costs["hindsight"] <= costs["CheapSpot"] < costs["OD-only"]
    assert re.search(r"^own_ideas:climate +\d", said, re.MULTILINE)


def test_paths_that_pages_name_exist():
    """Check README, contributing and every page; decisions are history and may name what is gone."""
    root = DOCS.parent
    pages = [root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    folders = "warehouse|forecasting|optimization|flows|studies|tests|benchmarks|examples|docs"
    named = {
        (page.name, path)
        for page in pages
        for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert [(page, path) for page, path in sorted(named) if not (root / path).exists()] == []


@pytest.mark.parametrize(
    ("registry", "page"),
    [
        (SOURCES, "histories.md"),
        (LIVE_SOURCES, "live-sources.md"),
        (PREDICTORS, "forecasting.md"),
        (POLICIES, "method.md"),
        (MULTI_MARKET_POLICIES, "method-markets.md"),
        (DRIVERS, "acting-on-decisions.md"),
    ],
    ids=["sources", "live sources", "predictors", "policies", "multi-market policies", "drivers"],
)
def test_every_name_of_a_registry_has_a_place_in_the_docs(registry, page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [name for name in registry if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)] == []
