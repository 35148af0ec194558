"""Every function and class of the product is reached: an unregistered check, source or policy fails here."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
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


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, which several tests read."""
    return tuple(ast.walk(tree))


def used_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module uses: in code and in its texts, docstrings apart."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in nodes_of(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes_of(tree):
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


@cache
def parsed(folder: str) -> list[tuple[str, ast.Module]]:
    """Return the modules below a folder with their paths."""
    return [
        (str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


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


#: Modules that are run or imported under another form of their name.
RUN = {
    "slackwater.warehouse.sources.live.run_probe",  # as a file, by `probe`
    "slackwater.flows.engine.server",  # by `python -m`, from its package
    "slackwater.forecasting.frames",  # by users of the library
}
_PLACE = re.compile(r"[\w.]+(?=:[A-Za-z_])|slackwater(?:\.\w+)+")


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a module imports, with the names imported from packages."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def places(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that the texts of a module name as places (``module:Name`` or ``slackwater.module``)."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _PLACE.findall(node.value)


def test_every_module_is_imported_or_registered():
    """A file of a source, policy or predictor without its line of registration is found by no command."""
    imports, named, modules = set[str](), set[str](), []
    for folder in (*LAYERS, *USERS):
        for file, tree in parsed(folder):
            imports.update(imported(tree))
            named.update(places(tree))
            if folder in LAYERS and not Path(file).name.startswith("__"):
                modules.append("slackwater." + file.removesuffix(".py").replace("/", "."))
    for pattern in LISTS:
        for path in ROOT.glob(pattern):
            named.update(_PLACE.findall(path.read_text(encoding="utf-8")))
    found = [
        module
        for module in modules
        if module not in imports
        and not any(f".{module}".endswith(f".{place}") or place.startswith(f"{module}.") for place in named)
    ]
    assert sorted(found) == sorted(RUN)


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
