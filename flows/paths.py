"""Restrictions on paths in deployment parameters, which come from anybody who may start a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slackwater.warehouse.errors import SettingsError

#: Environment variable: files and folders allowed in addition to the working folder, separated as in PATH.
ALLOWED = "SLACKWATER_ALLOWED_PATHS"
#: Parameters that name a page to write, and the required endings of its name: no other file can be overwritten.
PAGES, PAGE_ENDINGS = ("html", "report"), (".html", ".htm")


def allow_paths(paths: Iterable[Path]) -> None:
    """Add the paths given to a command to `ALLOWED`, for the runs started by this process and its children."""
    os.environ[ALLOWED] = os.pathsep.join([*_allowed(), *(str(path.absolute()) for path in paths)])


def _allowed() -> list[str]:
    return [folder for folder in os.environ.get(ALLOWED, "").split(os.pathsep) if folder]


def require_inside(parameters: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a path parameter outside the working folder and `ALLOWED`, or a page with a wrong ending.

    The working folder of a deployment's runs is the folder in which the deployment was created. Symbolic links are
    resolved.
    """
    places = [Path.cwd(), *map(Path, _allowed())]
    for name, path in parameters.items():
        if not isinstance(path, Path):
            continue
        if not any(_is_inside(path, place) for place in places):
            raise SettingsError(
                f"parameter {name} = {str(path)!r} of a deployment leads out of the folder {Path.cwd()}",
                expected="a path in that folder",
                remedy=f"move it there, or name it in {ALLOWED} where `slackwater serve` or the worker is started",
            )
        if name in PAGES and path.suffix.lower() not in PAGE_ENDINGS:
            raise SettingsError(
                f"parameter {name} = {str(path)!r} of a deployment",
                expected=f"a page, whose name ends with {' or '.join(PAGE_ENDINGS)}",
            )


def _is_inside(path: Path, place: Path) -> bool:
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(place))
    except ValueError:  # not a valid file name
        return False
