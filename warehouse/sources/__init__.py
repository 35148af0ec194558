"""Sources of prices and counts, by their names for users: readers of files, and live APIs of clouds (`live`)."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from slackwater.warehouse.errors import InputError, SourceFileError
from slackwater.warehouse.plugins import Registry

if TYPE_CHECKING:
    from slackwater.warehouse.sources.contract import Source
    from slackwater.warehouse.sources.live.contract import LiveSource

#: Name on the command line -> reader of files.
SOURCES: Registry[Source] = Registry(
    {
        "aws": "files.aws:Aws",
        "simulated": "simulated:SimulatedSource",
        "skypilot-catalogue": "files.skypilot_catalogue:SkyPilotCatalogue",
        "tabular": "files.tabular:Tabular",
    },
    package=__name__,
    group="slackwater.sources",
    make=lambda create: create(),
)
#: Name in the settings -> reader of an API.
LIVE_SOURCES: Registry[LiveSource[Any]] = Registry(
    {
        "aws-placement": "live.aws_placement:AwsPlacement",
        "aws-spot": "live.aws:AwsSpot",
        "azure-retail": "live.azure_retail:AzureRetail",
        "gcp-catalogue": "live.gcp_catalogue:GcpCatalogue",
        "http": "live.http_rows:HttpRows",
        "probe": "live.probe:Probe",
        "vast-offers": "live.vast_offers:VastOffers",
    },
    package=__name__,
    group="slackwater.live_sources",
    make=lambda create: create(),
)

__all__ = ["LIVE_SOURCES", "SOURCES"]


def check_source(name: str) -> None:
    """Raise `InputError` if no file source has this name; for a file in place of the name it says which sources read it."""
    if name in SOURCES:
        return
    path = Path(name)
    commands = [f"`slackwater ingest {source} {quote(name)}`" for source in SOURCES if _reads(source, path)]
    raise InputError(
        f"file {name!r} without its source" if path.exists() else f"source {name!r}",
        expected=f"one of {', '.join(sorted(SOURCES.all_names()))}",
        remedy=" or ".join(commands) or "see `slackwater ingest --list`",
    )


def _reads(source: str, path: Path) -> bool:
    """Return whether a source reads a file, or a file of a folder."""
    from slackwater.warehouse.sources.files.reading import FileSource

    reader = SOURCES[source]
    if not path.exists() or not isinstance(reader, FileSource):
        return False
    try:
        return bool(reader.files([path])) if path.is_dir() else reader.recognised(path)
    except (SourceFileError, OSError):
        return False
