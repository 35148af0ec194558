"""Build hook of the wheel: moves the four packages of the repository below one package, ``slackwater``.

In the repository the layers are top-level packages. Installed under these names they would be
hidden by any folder of the same name in the working directory, and every user of Prefect has a
folder ``flows``. Therefore the wheel contains ``slackwater/flows`` etc., and absolute module names
are rewritten: in imports, in strings with the dotted name of an existing module (entrypoints,
tables of lazy imports, docstrings), and in calls that look up a package by its bare name
(`LOOKUPS`). Positions are taken from the syntax tree, and a file in which a name remains unchanged
stops the build. An editable install uses the repository unchanged.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Name of the installed package, and its subpackages.
TOP = "slackwater"
LAYERS = ("flows", "forecasting", "optimization", "warehouse")
#: Other files and folders of the repository that are copied into the package.
BESIDE = ("examples", "prefect.yaml", "automations.yaml")
#: Functions whose first argument is a package name; elsewhere a bare name is treated as an ordinary
#: word.
LOOKUPS = ("files", "import_module", "PackageLoader", "read_data", "read_sql")

_LAYER = "|".join(LAYERS)
_DOTTED = re.compile(rf"(?<![\w./-])(?:{_LAYER})\.[A-Za-z_]\w*".encode())
_DOCTEST = re.compile(rf"^\s*(?:>>>|\.\.\.) (?:from|import) (?={_LAYER})".encode(), re.MULTILINE)
_FROM = re.compile(rb"from[ \t]+(?=\w)")
_PREFIX = f"{TOP}.".encode()

_FACE = f'''"""How many spot and on-demand GPUs to hold in the next slot, so that a job meets its deadline at the least cost.

The layers: `{TOP}.warehouse`, `{TOP}.forecasting`, `{TOP}.optimization`, `{TOP}.flows`; each is loaded when it is first used.
"""

from importlib import import_module
from types import ModuleType

__all__ = {list(LAYERS)!r}


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {TOP!r} has no attribute {{name!r}}")
    return import_module(f"{{__name__}}.{{name}}")


def __dir__() -> list[str]:
    return __all__
'''


def known_modules(root: Path) -> frozenset[str]:
    """Return ``layer.module`` for each module or folder directly inside a layer; dotted names to rewrite begin with these."""
    inside = (path for layer in LAYERS for path in (root / layer).iterdir())
    return frozenset(
        f"{path.parent.name}.{path.stem}" for path in inside if path.is_dir() or path.suffix == ".py"
    )


def named_modules(text: bytes, known: Set[str]) -> Iterator[int]:
    """Yield the positions in a text at which the dotted name of a known module begins."""
    return (found.start() for found in _DOTTED.finditer(text) if found[0].decode() in known)


def absolute_names(source: bytes, known: Set[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the insertions (position, text) that make a Python file valid below `TOP`.

    Raises `ValueError` for import statements that cannot be rewritten.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if not isinstance(
            node, ast.JoinedStr
        ):  # treated as a whole: its parts have no positions before Python 3.12
            nodes += ast.iter_child_nodes(node)
        at = starts[node.lineno - 1] + node.col_offset if hasattr(node, "lineno") else 0
        if isinstance(node, ast.ImportFrom) and not node.level and _layer_of(node.module):
            place = _FROM.match(source, at)
            if place is None:
                raise ValueError(f"line {node.lineno}: expected the module beside its `from`")
            yield place.end(), _PREFIX
        elif isinstance(node, ast.Import):
            for name in (one for one in node.names if _layer_of(one.name)):
                if name.asname is None and (len(node.names) > 1 or "." in name.name):
                    raise ValueError(f"line {node.lineno}: `import {name.name}`, expected `from ... import`")
                own = starts[name.lineno - 1] + name.col_offset
                yield (at, f"from {TOP} ".encode()) if name.asname is None else (own, _PREFIX)
        elif isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            text = source[at : starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)]
            yield from ((at + place, _PREFIX) for place in named_modules(text, known))
            yield from ((at + found.end(), _PREFIX) for found in _DOCTEST.finditer(text))
        elif isinstance(node, ast.Call) and (bare := _looked_up(node)) is not None:
            yield starts[bare.lineno - 1] + bare.col_offset + 1, _PREFIX


def _layer_of(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LAYERS


def _looked_up(call: ast.Call) -> ast.Constant | None:
    """Return the first argument of a call of `LOOKUPS` if it is the name of a layer, else None."""
    name = getattr(call.func, "id", getattr(call.func, "attr", None))
    first = call.args[0] if call.args else None
    return first if name in LOOKUPS and isinstance(first, ast.Constant) and first.value in LAYERS else None


def rewritten(source: bytes, known: Set[str]) -> bytes:
    """Return the source of a Python file for use below `TOP`; raises `ValueError` if it cannot be rewritten."""
    done = source
    for place, text in sorted(set(absolute_names(source, known)), reverse=True):
        done = done[:place] + text + done[place:]
    if left := sorted(place for place, _ in absolute_names(done, known)):
        raise ValueError(f"byte {left[0]}: a name that was rewritten is still one of the repository")
    return done


def write_package(root: Path, target: Path) -> None:
    """Write the package into the empty folder ``target``; raises `ValueError` naming a file that cannot be rewritten."""
    skipped = shutil.ignore_patterns("__pycache__", "*.py[co]", ".*")
    for name in LAYERS:
        shutil.copytree(root / name, target / name, ignore=skipped)
    for name in BESIDE:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=skipped)
        else:
            shutil.copyfile(source, target / name)
    known = known_modules(root)
    for path in sorted(target.rglob("*.py")):
        try:
            path.write_bytes(rewritten(path.read_bytes(), known))
        except ValueError as error:
            raise ValueError(f"{path.relative_to(target)}: {error}") from error
    deployments = target / "prefect.yaml"
    text = deployments.read_bytes()
    for place in sorted(named_modules(text, known), reverse=True):
        text = text[:place] + _PREFIX + text[place:]
    deployments.write_bytes(text)
    (target / "__init__.py").write_text(_FACE, encoding="utf-8")
    (target / "py.typed").touch()


class WheelHook(BuildHookInterface[Any]):
    """Hook that adds the rewritten package to the wheel and adapts the entry points of the commands."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare the package before hatchling builds a wheel; ``version`` is "standard" or "editable"."""
        if version != "standard":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="slackwater-wheel-")
        package = Path(self._folder.name) / TOP
        package.mkdir()
        write_package(Path(self.root), package)
        build_data["force_include"][str(package)] = TOP
        scripts = self.metadata.core.scripts  # as in the repository, e.g. flows.cli:main
        for name, place in scripts.items():
            scripts[name] = f"{TOP}.{place}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder after hatchling has built the wheel."""
        if version == "standard":
            self._folder.cleanup()
