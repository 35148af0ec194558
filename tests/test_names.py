"""A name means one thing: no class of the packages has the name of another one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flows", "forecasting", "optimization", "warehouse")
#: Forms of published schemas bear the name of what they publish.
FORMS = "flows/schemas/forms.py"


def classes() -> dict[str, list[str]]:
    """The modules that define a class, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT).as_posix()
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(module)
    return found


def test_a_class_has_its_name_for_itself():
    found = classes()
    assert len(found) > 500
    repeated = {name: modules for name, modules in found.items() if len(set(modules) - {FORMS}) > 1}
    assert repeated == {}, "give the one that is less known another name"
    assert all(len(modules) == len(set(modules)) for modules in found.values())
