"""Every example in a docstring gives the result that it shows."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("warehouse", "forecasting", "optimization", "flows", "studies")
FILES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "\n    >>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_give_their_results(path):
    module = import_module(".".join(("slackwater", *path.relative_to(ROOT).with_suffix("").parts)))
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
