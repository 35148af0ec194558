"""The page of the Python API names members that exist."""

import re
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_members_that_the_api_page_selects_exist():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    for module, names in re.findall(r"^::: (\S+)\n(?:    .*\n)*?      members: \[(.+)\]", text, re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(import_module(module), name), f"{module}.{name}"
