"""The drivers of `slackwater act`, each imported at its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.inputs import InputModel
from slackwater.warehouse.plugins import Registry

if TYPE_CHECKING:
    from slackwater.flows.acting.contract import Driver
    from slackwater.flows.acting.drivers.simulated import JobWorld


class DriverOptions(InputModel):
    """Options of a driver in the settings; each driver states its own."""


FormT = TypeVar("FormT", bound=DriverOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Context of a driver: its name in the settings, the warehouse file, and the simulated world of a job at a time."""

    name: str
    db: Path
    world_of: Callable[[str, datetime], JobWorld]


#: Kind in the settings -> function that creates the driver.
DRIVERS: Final[Registry[Callable[[Mapping[str, Any], Place], Driver]]] = Registry(
    {
        "command": "command:create",
        "ec2": "ec2:create",
        "kubernetes": "kubernetes:create",
        "simulated": "simulated:create",
        "skypilot": "skypilot:create",
    },
    package=__name__,
    group="slackwater.drivers",
)


def read_options(form: type[FormT], options: Mapping[str, Any], place: Place) -> FormT:
    """Return the options of a driver; raises `SettingsError` with the first invalid key."""
    try:
        return form.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(
            f"driver {place.name!r}: options.{key}: {first['msg']}",
            expected=f"some of {', '.join(form.model_fields) or 'no options'}",
        ) from error


def check_driver(kind: str) -> None:
    """Raise `SettingsError` with the known kinds if no driver has this kind."""
    if kind not in DRIVERS:
        raise SettingsError(
            f"driver {kind!r}", expected=f"one of {', '.join(sorted(DRIVERS))}, or module:Name of a package"
        )
