"""The markets that a request could run on, read from the warehouse: known GPUs, observed lately (M9.1, M1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from flows.turn.context import Turn
from flows.turn.forecast import forecasts_of, ready
from flows.turn.markets import LEAST_SPAN, Followed, find_market, own_time, peers_of, read_histories, step_of
from optimization.replay.decision import record_start
from optimization.requests.candidates import (
    LATELY,
    GpuType,
    Offer,
    cheapest_offers,
    gpu_type_of,
    gpu_types,
    offer_of,
)
from optimization.requests.choice import MarketNow
from warehouse.errors import MarketError
from warehouse.history import Market


def followed_of(offer: Offer) -> Followed:
    """The market of an offer as turns name it."""
    return Followed(market=offer.market, source=offer.source, at=offer.at)


def offers_of(turn: Turn, *, asked: Sequence[str], gpu_model: str | None, left_out: list[str]) -> list[Offer]:
    """The offers at the turn's time: the markets ``asked`` for, else those of known GPUs; why others are left out goes into
    ``left_out``.

    Of every kind (GPU model and GPUs an instance) not asked for by name, the `EACH_KIND` cheapest lately are kept. Raises
    `MarketError` if none is left.
    """
    found = _asked(turn, asked, left_out) if asked else _listed(turn, left_out)
    if gpu_model is not None:
        others = sorted({gpu.gpu_model for gpu in found.values() if gpu.gpu_model != gpu_model})
        found = {one: gpu for one, gpu in found.items() if gpu.gpu_model == gpu_model}
        if not found:
            raise MarketError(
                f"no market with {gpu_model} is observed at {turn.at}",
                expected=f"one of {', '.join(others)}" if others else "a market with a known GPU",
                remedy="leave gpu_model out, or name markets; `slackwater markets` lists them",
            )
    offers = _offers(turn, found, left_out)
    kept = offers if asked else cheapest_offers(offers, left_out)
    if not kept:
        told = f": {'; '.join(left_out[:3])}" if left_out else ""
        raise MarketError(
            f"no market with a known GPU has a record at {turn.at}{told}",
            expected=f"a market of one of {', '.join(sorted({one.instance_type for one in gpu_types()}))}",
            remedy="ingest one, or choose another --at",
        )
    return kept


def _asked(turn: Turn, asked: Sequence[str], left_out: list[str]) -> dict[Followed, GpuType]:
    found = {}
    for text in asked:
        followed = find_market(turn.store, text, at=turn.at, settings=turn.settings, own_end=turn.own_end)
        gpu = gpu_type_of(followed.market)
        if gpu is None:
            left_out.append(f"{followed.key}: which GPU its instance type has is not known")
        else:
            found[followed] = gpu
    return found


def _listed(turn: Turn, left_out: list[str]) -> dict[Followed, GpuType]:
    """Every market of a known GPU with enough of a record that still goes on at the turn's time."""
    found, step = {}, step_of(turn.settings)
    for row in turn.listed():
        market = Market.parse(str(row["market"]))
        gpu = gpu_type_of(market)
        if gpu is None or not row["has_counts"]:
            continue
        first, last = pd.Timestamp(row["first_observed"]), pd.Timestamp(row["last_observed"])
        gap = pd.Timedelta(seconds=float(row["gap_seconds"])) if row["gap_seconds"] > 0 else step
        key = f"{market.key}@{row['source']}"
        if last - first < LEAST_SPAN:
            left_out.append(f"{key}: a record of {last - first}, at least {LEAST_SPAN} is wanted")
        elif gap > step:
            left_out.append(f"{key}: counted every {gap}, at least once a slot of {step} is wanted")
        elif not turn.own_end and turn.at - last > 3 * max(gap, step):
            left_out.append(f"{key}: not observed since {last}")
        else:
            when = own_time(last, turn.at, step, own_end=turn.own_end)
            found[Followed(market=market, source=str(row["source"]), at=when)] = gpu
    return found


def _offers(turn: Turn, found: Mapping[Followed, GpuType], left_out: list[str]) -> list[Offer]:
    offers = []
    for followed in found:
        try:
            start = followed.at - LATELY
            history = read_histories(turn.store, {followed: start}, settings=turn.settings)[followed]
        except MarketError as error:
            left_out.append(f"{followed.key}: {error}")
            continue
        offers.append(offer_of(history))
    return offers


def markets_now(turn: Turn, offers: Sequence[Offer]) -> dict[str, MarketNow]:
    """What the markets of some offers are planned on: histories, forecasts issued at their time, peers; nothing later."""
    origins = {followed_of(offer): [offer.at] for offer in offers}
    histories, prepared = ready(turn, origins, [turn.settings.planner])
    peers = peers_of(turn, list(origins), start=min(record_start(own[0]) for own in origins.values()))
    return {
        one.key: MarketNow(
            history=histories[one],
            forecasts=forecasts_of(histories[one], prepared.batches[one], settings=turn.settings),
            peers=peers[one],
        )
        for one in origins
    }
