"""Facts from file and folder names of a trace: zone, instance type, start, number of nodes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.files.reading import AWS_REGION, region_of

UNDATED = datetime(1970, 1, 1, tzinfo=UTC)  # Start time of undated traces; readers report it as an assumption

_ZONE_IN_TEXT = re.compile(rf"(?<![a-z0-9])({AWS_REGION}[a-z]|[a-z]+-[a-z]+\d+-[a-z])(?![a-z0-9])")
_TYPE_IN_TEXT = re.compile(
    r"(?<![a-z0-9])([a-z]+\d[a-z]*\.(?:\d+xlarge|xlarge|large|medium|small|metal))(?![a-z0-9])"
)
_DATE_IN_FOLDER = re.compile(r"(?<!\d)(\d{2})-(\d{2})-(\d{4})(?!\d)")
_NODES_IN_TEXT = re.compile(r"(?<![a-z0-9])(\d+)-?nodes?(?![a-z0-9])")


def _names(path: Path) -> list[str]:
    """Return the file name, then the folders above it, nearest first."""
    return [path.name.lower(), *(part.lower() for part in reversed(path.parts[:-1]))]


def zone_in(path: Path) -> str | None:
    """Return the zone named by the file or the nearest folder."""
    for name in _names(path):
        if match := _ZONE_IN_TEXT.search(name):
            return match[1]
    return None


def instance_type_in(path: Path, provider: str) -> str | None:
    """Return the instance type named by the file or the nearest folder, in full or by an alias of ``instance_aliases.toml``."""
    aliases = read_data(__package__, "instance_aliases")["alias"]
    for name in _names(path):
        if match := _TYPE_IN_TEXT.search(name):
            return match[1]
        for alias in aliases:
            pattern = rf"(?<![a-z0-9]){re.escape(alias['name'])}(?![a-z0-9])"
            if alias["provider"] == provider and re.search(pattern, name):
                return str(alias["instance_type"])
    return None


def start_in(path: Path) -> datetime | None:
    """Return midnight UTC of the date (MM-DD-YYYY) in the file name or the nearest folder name with a date."""
    for name in _names(path):
        if match := _DATE_IN_FOLDER.search(name):
            month, day, year = (int(part) for part in match.groups())
            try:
                return datetime(year, month, day, tzinfo=UTC)
            except ValueError:
                continue
    return None


def nodes_in(path: Path) -> int | None:
    """Return the number in "16-node" or "16node" of the nearest name that contains it."""
    for name in _names(path):
        if match := _NODES_IN_TEXT.search(name):
            return int(match[1])
    return None


def market_of(path: Path, *, zone: str | None, instance_type: str | None) -> dict[str, str]:
    """Return provider, region, zone and type, stated or from names; raises `SourceFileError` for a missing option."""
    zone = zone or zone_in(path)
    if zone is None:
        raise SourceFileError(
            path, 0, "no zone in the file or folder name", remedy="give it with the option zone=us-west-2a"
        )
    place = region_of(zone)
    if place is None:
        raise SourceFileError(
            path,
            0,
            f"zone {zone!r}",
            expected="a zone such as us-west-2a or us-east1-c",
            remedy="correct the option zone",
        )
    instance_type = instance_type or instance_type_in(path, place[0])
    if instance_type is None:
        raise SourceFileError(
            path,
            0,
            "no instance type in the file or folder name",
            remedy="give it with the option instance_type=p3.2xlarge",
        )
    return {"provider": place[0], "region": place[1], "zone": zone, "instance_type": instance_type}
