"""Paths that come as parameters of a deployment's run: they stay inside the folder that it was made in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from warehouse.errors import SettingsError

#: Environment variable: further files and folders that ``slackwater serve`` was told to use, which runs may use, too.
SERVED: Final = "SLACKWATER_SERVED"
#: Parameters that name a page.
PAGES: Final = ("html", "report")


def require_inside(name: str, path: Path, *, folder: Path | None = None) -> None:
    """Raise `SettingsError` where a path lies outside ``folder`` (the working one) and what is `SERVED`.

    Links are followed. A parameter that names a page must end with .html, so that no other file is written over.
    """
    folder = folder or Path.cwd()
    found = (folder / path).resolve()
    served = [Path(text) for text in os.environ.get(SERVED, "").split(os.pathsep) if text]
    if not any(found.is_relative_to(place.resolve()) for place in (folder, *served)):
        raise SettingsError(
            f"{name} {str(path)!r} lies outside {folder}",
            expected="a path inside the folder that the deployment was made in",
            remedy="name one there, or run the command by hand",
        )
    if name in PAGES and path.suffix != ".html":
        raise SettingsError(f"{name} {str(path)!r}", expected="a file whose name ends with .html")
