"""The wheel's build step: the four folders of the repository become one package, ``slackwater``.

In the repository the layers are top-level packages. Installed under such names they would be hidden by any folder of the same
name in which a command runs, and every user of Prefect has a folder ``flows``. So the wheel holds ``slackwater/flows`` and so on,
with the names of modules rewritten where they are absolute: in imports, in strings that hold the dotted name of a module that is
there (entrypoints, tables of lazy imports, docstrings), and in calls that look a package up by its bare name (`LOOKUPS`). Positions
come from the syntax tree, and a file in which one is left over stops the build. An editable install is of the repository as it is.
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

#: The name that is installed, and the folders below it.
TOP = "slackwater"
LAYERS = ("flows", "forecasting", "optimization", "warehouse")
#: What else is put beside the layers, as it lies beside them in the repository.
BESIDE = ("examples", "prefect.yaml", "automations.yaml")
#: Functions whose first argument is a package's name: a bare name elsewhere is a word like any other.
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
    """``layer.module`` of all that lies directly in a layer: with these a dotted name of ours begins."""
    inside = (path for layer in LAYERS for path in (root / layer).iterdir())
    return frozenset(
        f"{path.parent.name}.{path.stem}" for path in inside if path.is_dir() or path.suffix == ".py"
    )


def named_modules(text: bytes, known: Set[str]) -> Iterator[int]:
    """Where in a text the dotted name of a module begins."""
    return (found.start() for found in _DOTTED.finditer(text) if found[0].decode() in known)


def absolute_names(source: bytes, known: Set[str]) -> Iterator[tuple[int, bytes]]:
    """What to put in where, so that a Python file means the same below `TOP`; raises `ValueError` for what it cannot."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if not isinstance(
            node, ast.JoinedStr
        ):  # as a whole: what is in it has no places of its own before Python 3.12
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
    """The first argument of a call of `LOOKUPS` if it is the name of a layer."""
    name = getattr(call.func, "id", getattr(call.func, "attr", None))
    first = call.args[0] if call.args else None
    return first if name in LOOKUPS and isinstance(first, ast.Constant) and first.value in LAYERS else None


def rewritten(source: bytes, known: Set[str]) -> bytes:
    """A Python file as it stands below `TOP`; raises `ValueError` for what cannot be rewritten."""
    done = source
    for place, text in sorted(set(absolute_names(source, known)), reverse=True):
        done = done[:place] + text + done[place:]
    if left := sorted(place for place, _ in absolute_names(done, known)):
        raise ValueError(f"byte {left[0]}: a name that was rewritten is still one of the repository")
    return done


def write_package(root: Path, target: Path) -> None:
    """Write the package into an empty folder ``target``; raises `ValueError` naming the file that cannot be rewritten."""
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
    """Puts the rewritten package into the wheel, and the command's entry point behind it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is made; ``version`` is "standard" or "editable"."""
        if version != "standard":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="slackwater-wheel-")
        package = Path(self._folder.name) / TOP
        package.mkdir()
        write_package(Path(self.root), package)
        build_data["force_include"][str(package)] = TOP
        scripts = self.metadata.core.scripts  # of the repository, where the command is flows.cli:main
        for name, place in scripts.items():
            scripts[name] = f"{TOP}.{place}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when the wheel is there."""
        if version == "standard":
            self._folder.cleanup()
