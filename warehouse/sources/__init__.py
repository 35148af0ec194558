"""Where observations come from: every source by the word a user types, loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from warehouse.errors import InputError

if TYPE_CHECKING:
    from warehouse.sources.contract import Source
    from warehouse.sources.live.contract import LiveSource

SourceT = TypeVar("SourceT")


class Registry(Mapping[str, SourceT]):
    """Name -> source, made from ``module:Class`` (below this package) at its first use."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> SourceT:
        if name not in self._made:
            module, _, made = self._places[name].partition(":")
            self._made[name] = getattr(import_module(f"{__name__}.{module}"), made)()
        source: SourceT = self._made[name]
        return source

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


#: The word used on the command line -> its reader of files.
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
    }
)
#: The word used in the settings -> its reader of an API.
LIVE_SOURCES: Registry[LiveSource[Any]] = Registry(
    {
        "aws-placement": "live.aws:AwsPlacement",
        "aws-spot": "live.aws:AwsSpot",
        "azure-retail": "live.azure_retail:AzureRetail",
        "gcp-catalogue": "live.gcp_catalogue:GcpCatalogue",
        "http": "live.http_rows:HttpRows",
        "probe": "live.probe:Probe",
        "vast-offers": "live.vast_offers:VastOffers",
    }
)

__all__ = ["LIVE_SOURCES", "SOURCES", "Registry"]


def check_source(name: str) -> None:
    """Raise `InputError` with the known names for a source of files that there is not."""
    if name not in SOURCES:
        raise InputError(
            f"source {name!r}",
            expected=f"one of {', '.join(sorted(SOURCES))}",
            remedy="see `slackwater ingest --list`",
        )
