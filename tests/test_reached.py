"""Every function and class of the product is reached: an unregistered check, source or policy fails here."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("warehouse", "forecasting", "optimization", "flows")
#: Users of the product other than its layers. Documents use a name in code only.
USERS = ("studies", "benchmarks", "examples")
LISTS = (
    "studies/**/*.toml",
    "pyproject.toml",
    "prefect.yaml",
    "examples/**/*.ipynb",
    "docs/notebooks/*.ipynb",
)
DOCUMENTS = ("README.md", "docs/*.md")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.S)


def names_in(text: str) -> Iterator[str]:
    """Yield the names in a text, such as the place ``module:Name`` of a registry."""
    yield from set(re.findall(r"\w+", text))


def used_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module uses: in code and in its texts, docstrings apart."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from names_in(node.value)


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the functions and classes of a module, except its own hooks."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[:2] != "__":
            yield node.name


def unreached(defined: dict[str, list[str]], used: Counter[str]) -> list[str]:
    """Return the defined names that nothing uses, with their files."""
    return [f"{file}: {name}" for file, names in defined.items() for name in names if not used[name]]


def parsed(folder: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules below a folder by their paths."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def test_every_function_and_class_is_used_registered_or_documented():
    used, defined = Counter[str](), {}
    for folder in (*LAYERS, *USERS):
        for file, tree in parsed(folder):
            used.update(used_names(tree))
            if folder in LAYERS:
                defined[file] = list(defined_names(tree))
    for pattern in LISTS:
        for path in ROOT.glob(pattern):
            used.update(names_in(path.read_text(encoding="utf-8")))
    for pattern in DOCUMENTS:
        for path in ROOT.glob(pattern):
            used.update(names_in(" ".join(_CODE.findall(path.read_text(encoding="utf-8")))))
    assert sum(map(len, defined.values())) > 1000
    assert unreached(defined, used) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n    pass\n", ["m: f"]),
        ('def f():\n    """See f."""\n', ["m: f"]),
        ("class F:\n    pass\n", ["m: F"]),
        ("def f():\n    pass\nx = {1: f}\n", []),
        ("def f():\n    pass\nplaces = {'f': 'm:f'}\n", []),
        ("def __getattr__(name):\n    pass\n", []),
    ],
)
def test_a_name_in_a_docstring_is_no_use(text, found):
    tree = ast.parse(text)
    assert unreached({"m": list(defined_names(tree))}, Counter(used_names(tree))) == found
