"""Which GPU an instance type has and how many: ``flows/data/gpu_instances.toml`` (M9.1)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import pandas as pd

from flows.show.table import rows_of
from flows.turn.context import Turn
from flows.turn.markets import LEAST_SPAN, Followed, find_market, own_time, read_histories, step_of
from warehouse.errors import MarketError
from warehouse.history import AVAILABLE, PRICE, History, Market


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """What one instance of a type holds: ``gpus`` GPUs of the model ``gpu_model``, named as in the measured runs."""

    provider: str
    instance_type: str
    gpu_model: str
    gpus: int
    sizes: bool = False


@cache
def gpu_types() -> tuple[GpuType, ...]:
    """The entries of the table."""
    text = files("flows").joinpath("data/gpu_instances.toml").read_text(encoding="utf-8")
    return tuple(GpuType(**entry) for entry in tomllib.loads(text)["instance"])


def gpu_type_of(market: Market) -> GpuType | None:
    """What an instance of a market holds, None for a type that is not in the table.

    A marketplace's ``<type>_xN`` is a machine of N; the bare type counts machines of different sizes together and is none.

    >>> gpu_type_of(Market.parse("primeintellect/any/all/A100_80GB_SXM4_x4")).gpus
    4
    """
    base, mark, count = market.instance_type.rpartition("_x")
    for entry in gpu_types():
        if entry.provider != market.provider:
            continue
        if entry.sizes:
            if mark and base == entry.instance_type and count.isdigit() and int(count) > 0:
                return GpuType(
                    provider=entry.provider,
                    instance_type=market.instance_type,
                    gpu_model=entry.gpu_model,
                    gpus=entry.gpus * int(count),
                )
        elif market.instance_type == entry.instance_type:
            return entry
    return None


# ---
# The markets that a fine-tuning request could run on: known GPUs, observed lately, cheap for their kind (M9.1, M1.2).

#: What a market has shown lately is read over this long.
LATELY = pd.Timedelta(days=1)
#: Markets of the same GPU and the same number of GPUs an instance that are looked at closely.
EACH_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A market with what its instances hold and what it has shown over `LATELY`.

    ``spot_usd`` is its last observed spot price and ``on_demand_usd`` the on-demand price, both USD per instance-hour;
    ``spot_usd`` is NaN where none was observed lately. ``counts`` are the counts of its observed slots.
    """

    followed: Followed
    gpu: GpuType
    on_demand_usd: float
    spot_usd: float
    counts: tuple[int, ...]

    def spot_share(self, instances: int) -> float:
        """Mean share of ``instances`` that spot could have given lately; 0 if nothing was observed."""
        if not self.counts:
            return 0.0
        return float(np.minimum(np.array(self.counts), instances).mean() / instances)

    def screened_usd(self, instances: int) -> float:
        """What ``instances`` cost an hour if spot goes on as lately and on-demand gives the rest: a guess, for ranking only
        (ours).
        """
        if np.isnan(self.spot_usd):
            return instances * self.on_demand_usd
        share = self.spot_share(instances) if self.spot_usd < self.on_demand_usd else 0.0
        return instances * (share * self.spot_usd + (1.0 - share) * self.on_demand_usd)


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
    kept = offers if asked else _cheapest(offers, left_out)
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
    for row in rows_of(turn.listing()):
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
    for followed, gpu in found.items():
        try:
            start = followed.at - LATELY
            history = read_histories(turn.store, {followed: start}, settings=turn.settings)[followed]
        except MarketError as error:
            left_out.append(f"{followed.key}: {error}")
            continue
        offers.append(_offer(followed, gpu, history))
    return offers


def _offer(followed: Followed, gpu: GpuType, history: History) -> Offer:
    prices = history.frame[PRICE].dropna()
    counts = history.frame[AVAILABLE].dropna()
    return Offer(
        followed=followed,
        gpu=gpu,
        on_demand_usd=history.on_demand_usd,
        spot_usd=float(prices.iloc[-1]) if len(prices) else float("nan"),
        counts=tuple(int(count) for count in counts),
    )


def _cheapest(offers: Sequence[Offer], left_out: list[str]) -> list[Offer]:
    kinds: dict[tuple[str, int], list[Offer]] = {}
    for offer in offers:
        kinds.setdefault((offer.gpu.gpu_model, offer.gpu.gpus), []).append(offer)
    kept = []
    for own in kinds.values():
        own.sort(key=lambda one: (one.screened_usd(_wide(one)) / _wide(one), one.followed.key))
        kept += own[:EACH_KIND]
        cheapest = own[0].screened_usd(_wide(own[0])) / _wide(own[0])
        left_out += [
            f"{one.followed.key}: {one.screened_usd(_wide(one)) / _wide(one):.3f} USD an instance-hour by its last day, "
            f"{own[0].followed.key} {cheapest:.3f}"
            for one in own[EACH_KIND:]
        ]
    return kept


def _wide(offer: Offer) -> int:
    """Instances of 8 GPUs, or one."""
    return max(1, 8 // offer.gpu.gpus)
