"""Where the paths in parameters of a deployment may lead: a run of it takes them from whoever may start it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from warehouse.errors import SettingsError

#: Environment variable: files and folders beside the working folder, separated as in PATH.
ALLOWED = "SLACKWATER_ALLOWED_PATHS"
#: Parameters that name a page to write, and how its name ends: no other file is ever replaced by one.
PAGES, PAGE_ENDINGS = ("html", "report"), (".html", ".htm")


def allow_paths(paths: Iterable[Path], environment: MutableMapping[str, str] = os.environ) -> None:
    """Add paths that a command was given to `ALLOWED`, for the runs that this process and its children start."""
    known = [one for one in environment.get(ALLOWED, "").split(os.pathsep) if one]
    environment[ALLOWED] = os.pathsep.join([*known, *(str(path.absolute()) for path in paths)])


def require_inside(parameters: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> None:
    """Raise `SettingsError` for a path among the parameters that leads out of the working folder and of `ALLOWED`.

    The working folder of a deployment's runs is the folder in which it was made. Links count by where they lead.
    """
    places = [Path.cwd(), *(Path(one) for one in environment.get(ALLOWED, "").split(os.pathsep) if one)]
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
    except ValueError:  # no name of a file
        return False
