"""Readers of real formats, and the simulated market: one readable dict."""

from __future__ import annotations

from warehouse.source import Source
from warehouse.sources.aws import Aws
from warehouse.sources.bamboo import Bamboo
from warehouse.sources.primeintellect import PrimeIntellect
from warehouse.sources.simulated import Simulated
from warehouse.sources.skynomad import SkyNomad
from warehouse.sources.skypilot import SkyPilot
from warehouse.sources.tabular import Tabular
from warehouse.sources.vastai import VastAi

#: The word used on the command line -> its reader.
SOURCES: dict[str, Source] = {
    "aws": Aws(),
    "bamboo": Bamboo(),
    "primeintellect": PrimeIntellect(),
    "simulated": Simulated(),
    "skynomad": SkyNomad(),
    "skypilot": SkyPilot(),
    "tabular": Tabular(),
    "vastai": VastAi(),
}

__all__ = ["SOURCES"]
