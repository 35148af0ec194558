"""Objects named as ``module:Name`` and imported at first use, those of other packages too; optional extras of the package."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from slackwater.warehouse.errors import SettingsError

#: Entry points of the studies in a clone, as in ``[project.entry-points]``. Those of pyproject.toml ship in the wheel, which
#: has no studies.
STUDIES = Path(__file__).parents[1] / "studies" / "plugins.toml"
PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # A name such as ``my_package.policies:Patient``


T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Mapping from names to objects, each imported from ``module:Name`` in ``package`` at first use.

    ``make`` turns the imported object into the value. Other packages add names by entry points of
    ``group``, or are named as ``module:Name``; iteration lists our names only.
    """

    def __init__(
        self,
        places: Mapping[str, str],
        *,
        package: str,
        group: str = "",
        make: Callable[[Any], T] = lambda found: cast("T", found),
    ) -> None:
        self._places = places
        self._package = package
        self._group = group
        self._make = make
        self._values: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._values:
            found = self._load_own(name) if name in self._places else self._plugin(name)
            if found is None:
                raise KeyError(name)
            self._values[name] = self._make(found)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places or (isinstance(name, str) and self._plugin(name) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def all_names(self) -> list[str]:
        """Return our names and those that other packages, and the studies of a clone, add by entry points."""
        return list(dict.fromkeys([*self._places, *(list_plugins(self._group) if self._group else ())]))

    def _load_own(self, name: str) -> Any:
        return load_place(f"{self._package}.{self._places[name]}")

    def _plugin(self, name: str) -> Any | None:
        return find_plugin(self._group, name) if self._group else None


def load_place(place: str) -> Any:
    """Import and return the object of ``module:Name``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def find_plugin(group: str, name: str) -> Any | None:
    """Return the object of another package with this name, None if there is none.

    ``name`` is that of an entry point of ``group`` (`list_plugins`), or ``module:Name``, whose module may
    also lie in the working folder. Raises `SettingsError` if the module or the object cannot be imported.
    """
    place = name if PLACE.fullmatch(name) else list_plugins(group).get(name)
    if place is None:
        return None
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return load_place(place)
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


# ---
# Optional extras of the package: the modules of each, and the error if they are needed and not installed.

#: Extras of ``pip install "slackwater[NAME]"``, with the modules that the program imports from them.
EXTRAS: Final = {
    "aws": ("boto3",),
    "charts": ("altair",),
    "diagnosis": ("statsmodels",),
    "ec2": ("boto3",),
    "dask": ("distributed",),
    "http": ("httpx",),
    "serve": ("prefect", "uvicorn", "starlette", "prometheus_client", "altair", "httpx"),
}


def has_extra(extra: str) -> bool:
    """Return whether the modules of an extra are installed; nothing is imported."""
    return not _missing_modules(extra)


def require_extra(extra: str, user: str) -> None:
    """Raise `SettingsError` unless the modules of an extra are installed; ``user`` names the thing that needs them."""
    if not has_extra(extra):
        raise lacks_extra(extra, user)


def lacks_extra(extra: str, user: str) -> SettingsError:
    """Return the error of an extra that is not installed, which names the missing modules and the remedy."""
    missing = _missing_modules(extra)
    return SettingsError(
        f"{user} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
        expected=f"the optional extra {extra}",
        remedy=f'pip install "slackwater[{extra}]"',
    )


def _missing_modules(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if find_spec(name) is None]
