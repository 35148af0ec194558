"""Live sources, one file per API: one readable dict."""

from __future__ import annotations

from warehouse.sources.live.aws import AwsPlacement, AwsSpot
from warehouse.sources.live.azure_retail import AzureRetail
from warehouse.sources.live.contract import LiveSource
from warehouse.sources.live.gcp_catalogue import GcpCatalogue
from warehouse.sources.live.http_rows import HttpRows
from warehouse.sources.live.probe import Probe
from warehouse.sources.live.vast_offers import VastOffers

#: The word used in the settings -> its reader.
LIVE_SOURCES: dict[str, LiveSource] = {
    "aws-placement": AwsPlacement(),
    "aws-spot": AwsSpot(),
    "azure-retail": AzureRetail(),
    "gcp-catalogue": GcpCatalogue(),
    "http": HttpRows(),
    "probe": Probe(),
    "vast-offers": VastOffers(),
}

__all__ = ["LIVE_SOURCES"]
