"""Sources of observations: every source by its name for users, imported at its first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.warehouse.errors import InputError
from slackwater.warehouse.plugins import find_plugin

if TYPE_CHECKING:
    from slackwater.warehouse.sources.contract import Source
    from slackwater.warehouse.sources.live.contract import LiveSource

SourceT = TypeVar("SourceT")


class Registry(Mapping[str, SourceT]):
    """Mapping from names to sources, created from ``module:Class`` (in this package) at first use.

    Other packages add names by entry points of ``group``, or are named as ``module:Class``; iteration lists our names only.
    """

    def __init__(self, places: Mapping[str, str], *, group: str) -> None:
        self._places = places
        self._group = group
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> SourceT:
        if name not in self._made and name not in self._places:
            create = find_plugin(self._group, name)
            if create is None:
                raise KeyError(name)
            self._made[name] = create()
        if name not in self._made:
            module, _, made = self._places[name].partition(":")
            self._made[name] = getattr(import_module(f"{__name__}.{module}"), made)()
        source: SourceT = self._made[name]
        return source

    def __contains__(self, name: object) -> bool:
        return name in self._places or (isinstance(name, str) and find_plugin(self._group, name) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


#: Name on the command line -> reader of files.
SOURCES: Registry[Source] = Registry(
    {
        "aws": "files.aws:Aws",
        "bamboo": "files.bamboo:Bamboo",
        "primeintellect": "files.primeintellect:PrimeIntellect",
        "simulated": "simulated:Simulated",
        "skynomad": "files.skynomad:SkyNomad",
        "skypilot": "files.skypilot:SkyPilot",
        "skypilot-catalogue": "files.skypilot_catalogue:SkyPilotCatalogue",
        "tabular": "files.tabular:Tabular",
        "vastai": "files.vastai:VastAi",
    },
    group="slackwater.sources",
)
#: Name in the settings -> reader of an API.
LIVE_SOURCES: Registry[LiveSource[Any]] = Registry(
    {
        "aws-placement": "live.aws:AwsPlacement",
        "aws-spot": "live.aws:AwsSpot",
        "azure-retail": "live.azure_retail:AzureRetail",
        "gcp-catalogue": "live.gcp_catalogue:GcpCatalogue",
        "http": "live.http_rows:HttpRows",
        "probe": "live.probe:Probe",
        "vast-offers": "live.vast_offers:VastOffers",
    },
    group="slackwater.live_sources",
)

__all__ = ["LIVE_SOURCES", "SOURCES", "Registry"]


def check_source(name: str) -> None:
    """Raise `InputError` with the known names if no file source has this name."""
    if name not in SOURCES:
        raise InputError(
            f"source {name!r}",
            expected=f"one of {', '.join(sorted(SOURCES))}",
            remedy="see `slackwater ingest --list`",
        )
