"""The worlds of ``experiment fleet``: real zones of one kind on common slots, with the forecasts that were issued in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.experiments.material import (
    COUNT_COLUMNS,
    PRICE_COLUMNS,
    STEP,
    count_tapes,
    price_tapes,
    read_table,
)
from flows.experiments.material_scenarios import issued_quantiles
from forecasting.quantiles import LEVELS
from optimization.fleet.stream import World
from optimization.trials.tapes import Tape, aligned
from warehouse.errors import MarketError

#: Least zones that make a market to share.
LEAST_ZONES = 2
#: Shorter records hold no stream in their later half.
LEAST_SLOTS = 200


def read_worlds(folder: Path) -> list[tuple[World, list[Tape]]]:
    """Every kind of instance that at least two zones of one source probed at the same time, with the count series behind it.

    Prices are the zones' own where the source has them (one that was stored once is a catalogue's, and held); else, a synthetic
    join, those of the instance type's longest price series in the folder, begun at its first slot. The kinds with most zones
    come first. Raises `MarketError` if no kind has two zones.
    """
    prices = read_table(folder, "prices", PRICE_COLUMNS)
    counts = read_table(folder, "availability", COUNT_COLUMNS)
    paths = list(price_tapes(prices, counts))
    kinds: dict[tuple[object, ...], list[Tape]] = {}
    for tape in count_tapes(counts):
        kinds.setdefault((*tape.kind, tape.first, len(tape)), []).append(tape)
    worlds = []
    for zones in kinds.values():
        if len(zones) >= LEAST_ZONES and len(zones[0]) >= LEAST_SLOTS:
            world = _world(zones, paths, prices)
            if world is not None:
                worlds.append((world, zones))
    if not worlds:
        raise MarketError(
            f"{folder}: no instance type was probed in two zones at the same time",
            expected="counts of at least two zones of one source",
            remedy="give a folder with more zones",
        )
    return sorted(worlds, key=lambda one: (-len(one[1]), one[0].name))


def _world(zones: Sequence[Tape], paths: Sequence[Tape], prices: pd.DataFrame) -> World | None:
    own = {(path.market, path.source): path for path in paths}
    hours = STEP / pd.Timedelta(hours=1)
    joined = [path for path in paths if path.market.instance_type == zones[0].market.instance_type]
    joined.sort(key=lambda path: (-len(path), path.label))
    price, dear, synthetic = {}, {}, False
    for z, zone in enumerate(zones):
        path = own.get((zone.market, zone.source))
        values = np.full(len(zone), np.nan)
        if path is not None:
            values = aligned(zone, path) if len(path) else np.full(len(zone), _stated_once(prices, path))
        if path is None or not np.isfinite(values).any():
            long_enough = [one for one in joined if len(one) >= len(zone)]
            if not long_enough:
                return None
            path, synthetic = long_enough[z % len(long_enough)], True
            values = path.values[: len(zone)]
        price[zone.market.zone] = _held(values)
        dear[zone.market.zone] = path.bound
    kind = f"{zones[0].market.instance_type}, {zones[0].market.provider}, {len(zones)} zones"
    return World(
        name=kind,
        counts={zone.market.zone: zone.values for zone in zones},
        prices=price,
        on_demand_usd=dear,
        slot_hours=hours,
        synthetic=synthetic,
    )


def _stated_once(prices: pd.DataFrame, path: Tape) -> float:
    """The one price of a series that begins and ends with it: a catalogue's."""
    own = prices["source"].eq(path.source) & prices["zone"].eq(path.market.zone)
    own &= prices["instance_type"].eq(path.market.instance_type) & prices["region"].eq(path.market.region)
    return float(prices.loc[own, "spot_price_usd_per_hour"].iloc[-1])


def _held(values: np.ndarray) -> np.ndarray:
    """Gaps of a price held at the last one known; before the first, at the first."""
    return pd.Series(values).ffill().bfill().to_numpy(dtype=float)


def forecast_world(world: World, zones: Sequence[Tape], slots: Iterable[int], *, planner: str) -> World:
    """The world with what ``planner`` forecast of the counts in each of ``slots``, as issued then (M6.4)."""
    wanted = sorted(set(slots))
    made = issued_quantiles(
        zones, {zone.label: wanted for zone in zones}, planner=planner, settings=Settings.model_validate({})
    )
    middle = len(LEVELS) // 2
    ahead = {
        zone.market.zone: {slot: told[:, middle] for slot, told in made[zone.label].items()} for zone in zones
    }
    return replace(world, ahead=ahead)
