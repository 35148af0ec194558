"""Objects that other packages provide: entry points, and ``module:Name``."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from slackwater.warehouse.errors import SettingsError

#: A name such as ``my_package.policies:Patient``.
PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def find_plugin(group: str, name: str) -> Any | None:
    """Return the object of another package with this name, None if there is none.

    ``name`` is that of an entry point of ``group``, or ``module:Name``, whose module may also lie in the working folder. Raises
    `SettingsError` if the module or the object cannot be imported.
    """
    place = name if PLACE.fullmatch(name) else _entry_point(group, name)
    if place is None:
        return None
    module, _, attribute = place.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"{name!r} cannot be imported: {error}",
            expected="module:Name of an installed package or of a file in the working folder",
        ) from error


def _entry_point(group: str, name: str) -> str | None:
    """Return ``module:Name`` of an installed entry point."""
    from importlib.metadata import entry_points  # takes a while to import; needed for unknown names only

    return next((point.value for point in entry_points(group=group) if point.name == name), None)
