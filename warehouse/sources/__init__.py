"""Readers of real formats, and the simulated market: one readable dict."""

from __future__ import annotations

from warehouse.sources.contract import Source
from warehouse.sources.files.aws import Aws
from warehouse.sources.files.bamboo import Bamboo
from warehouse.sources.files.primeintellect import PrimeIntellect
from warehouse.sources.files.skynomad import SkyNomad
from warehouse.sources.files.skypilot import SkyPilot
from warehouse.sources.files.tabular import Tabular
from warehouse.sources.files.vastai import VastAi
from warehouse.sources.simulated import Simulated

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
