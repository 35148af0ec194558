"""Objects of other packages: entry points and ``module:Name``, and the optional extras of this package."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from slackwater.warehouse.errors import SettingsError

#: Entry points of the studies in a clone, as in ``[project.entry-points]``. Those of pyproject.toml ship in the wheel, which
#: has no studies.
STUDIES = Path(__file__).parents[1] / "studies" / "plugins.toml"
#: A name such as ``my_package.policies:Patient``.
PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def find_plugin(group: str, name: str) -> Any | None:
    """Return the object of another package with this name, None if there is none.

    ``name`` is that of an entry point of ``group`` (`list_plugins`), or ``module:Name``, whose module
    may also lie in the working folder. Raises `SettingsError` if the module or the object cannot be
    imported.
    """
    place = name if PLACE.fullmatch(name) else list_plugins(group).get(name)
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


def list_plugins(group: str) -> dict[str, str]:
    """Return ``module:Name`` by name of the studies of a clone and of every installed entry point of a group."""
    from importlib.metadata import entry_points  # takes a while to import; needed for unknown names only

    return {point.name: point.value for point in entry_points(group=group)} | list_studies(group)


def list_studies(group: str) -> dict[str, str]:
    """Return ``module:Name`` by name of the studies, which register in `STUDIES`; empty in a wheel, which ships none."""
    if not STUDIES.is_file():
        return {}
    found: dict[str, str] = tomllib.loads(STUDIES.read_text(encoding="utf-8")).get(group, {})
    return found


#: Extras of ``pip install "slackwater[NAME]"``, with the modules that their users import.
EXTRAS: Final = {
    "aws": ("boto3",),
    "dask": ("prefect_dask", "distributed"),
    "serve": ("prefect", "uvicorn", "starlette", "prometheus_client"),
}


def has_extra(extra: str) -> bool:
    """Return whether the modules of an extra are installed; nothing is imported."""
    return not _missing_modules(extra)


def require_extra(extra: str, user: str) -> None:
    """Raise `SettingsError` unless the modules of an extra are installed; ``user`` names what needs them."""
    if missing := _missing_modules(extra):
        raise SettingsError(
            f"{user} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            expected=f"the optional extra {extra}",
            remedy=f'pip install "slackwater[{extra}]"',
        )


def _missing_modules(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if find_spec(name) is None]
