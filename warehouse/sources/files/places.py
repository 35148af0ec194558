"""What file and folder names say about a trace: zone, instance type, start, number of nodes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from warehouse.errors import SourceFileError
from warehouse.packaged import read_data

#: Undated traces count from here, and say so.
UNDATED = datetime(1970, 1, 1, tzinfo=UTC)

_AWS_REGION = r"[a-z]{2}(?:-gov|-iso[a-z]?)?-[a-z]+-\d"
_AWS_ZONE = re.compile(rf"^({_AWS_REGION})(?:-[a-z]{{3}}-\d+)?[a-z]$")
_GCP_ZONE = re.compile(r"^([a-z]+-[a-z]+\d+)-[a-z]$")
_ZONE_IN_TEXT = re.compile(rf"(?<![a-z0-9])({_AWS_REGION}[a-z]|[a-z]+-[a-z]+\d+-[a-z])(?![a-z0-9])")
_TYPE_IN_TEXT = re.compile(
    r"(?<![a-z0-9])([a-z]+\d[a-z]*\.(?:\d+xlarge|xlarge|large|medium|small|metal))(?![a-z0-9])"
)
_DATE_IN_FOLDER = re.compile(r"(?<!\d)(\d{2})-(\d{2})-(\d{4})(?!\d)")
_NODES_IN_TEXT = re.compile(r"(?<![a-z0-9])(\d+)-?nodes?(?![a-z0-9])")


def region_of(zone: str) -> tuple[str, str] | None:
    """(provider, region) of an AWS or Google Cloud zone name, None if it is neither.

    >>> region_of("us-west-2a"), region_of("us-east1-c"), region_of("moon")
    (('aws', 'us-west-2'), ('gcp', 'us-east1'), None)
    """
    if match := _AWS_ZONE.match(zone):
        return "aws", match[1]
    if match := _GCP_ZONE.match(zone):
        return "gcp", match[1]
    return None


def _names(path: Path) -> list[str]:
    """File name, then the folders above it, nearest first."""
    return [path.name.lower(), *(part.lower() for part in reversed(path.parts[:-1]))]


def zone_in(path: Path) -> str | None:
    """The zone named by the file or the nearest folder."""
    for name in _names(path):
        if match := _ZONE_IN_TEXT.search(name):
            return match[1]
    return None


def instance_type_in(path: Path, provider: str) -> str | None:
    """The instance type named by the file or the nearest folder, in full or by an alias of ``instance_aliases.toml``."""
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
    """Midnight UTC of the date (MM-DD-YYYY) in the nearest folder or file name that has one."""
    for name in _names(path):
        if match := _DATE_IN_FOLDER.search(name):
            month, day, year = (int(part) for part in match.groups())
            try:
                return datetime(year, month, day, tzinfo=UTC)
            except ValueError:
                continue
    return None


def nodes_in(path: Path) -> int | None:
    """The number in "16-node" or "16node" of the nearest name that has one."""
    for name in _names(path):
        if match := _NODES_IN_TEXT.search(name):
            return int(match[1])
    return None


def market_of(path: Path, *, zone: str | None, instance_type: str | None) -> dict[str, str]:
    """provider, region, zone and instance_type as stated, else from names; raises `SourceFileError` with the option to give."""
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
