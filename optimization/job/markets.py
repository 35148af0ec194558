"""Markets of a request, its job as each of them runs it, and the time and cost of moves (M11.1-M11.3) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd

from slackwater.optimization.job.definition import Job
from slackwater.optimization.job.request import JobRequest, MovingTerms, pattern_parts, slot_job
from slackwater.optimization.job.units import catalogue_gpus, gpu_type_of, has_gpu, has_room, work_market_of
from slackwater.optimization.kernels.rules import move_table
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import History, Market


def fits(request: JobRequest, market: Market, source: str) -> bool:
    """Return whether a market of a source is named by the request and has the requested GPU and region."""
    return may_run_in(request, market) and any(
        _fits(pattern_parts(text), market, source) for text in request.markets
    )


def may_run_in(request: JobRequest, market: Market) -> bool:
    """Return whether a market has the requested GPU and region, and whole instances within the sizes in GPUs."""
    if not has_room(request, market):
        return False
    if request.gpu_type is not None:
        held = gpu_type_of(market)
        if held is None or not has_gpu(request.gpu_type, held.gpu_model):
            return False
    return not request.regions or any(fnmatchcase(market.region, text) for text in request.regions)


def _fits(pattern: tuple[tuple[str, ...], str], market: Market, source: str) -> bool:
    parts, origin = pattern
    own = (market.provider, market.region, market.zone, market.instance_type)
    return fnmatchcase(source, origin) and all(map(fnmatchcase, own, parts))


def check_types(request: JobRequest, markets: Sequence[Market]) -> None:
    """Raise `JobError` if markets of two instance types would use the single throughput of the request.

    A throughput per GPU holds for all instance types with the same GPU. A number of GPUs stated for
    all types must not contradict the known number of any type.
    """
    types = {market.instance_type: market for market in markets}
    stated = request.gpus_per_instance
    for name, market in types.items() if isinstance(stated, int) and len(types) > 1 else ():
        known = catalogue_gpus(market)
        if known not in (None, stated):
            raise JobError(
                f"job {request.name!r}: gpus_per_instance = {stated}, and an instance of {name} has {known}",
                expected="the GPUs of each instance type",
                remedy=f'gpus_per_instance = {{ "{name}" = {known} }}, with the types that are not known in it',
            )
    unknown = [name for name in types if name not in request.throughput_on]
    held = {None if (found := gpu_type_of(types[name])) is None else found.gpu_model for name in unknown}
    same_gpu = len(held) == 1 and None not in held and request.throughput.per == "gpu"
    if len(unknown) > 1 and not same_gpu:
        raise JobError(
            f"job {request.name!r} may run on {' and '.join(unknown[:3])}, and has one throughput",
            expected="one instance type, or the throughput on each other one",
            remedy=f'name the type in markets, or add [throughput_on."{unknown[1]}"]',
        )


def runs_in_markets(request: JobRequest, histories: Sequence[History]) -> tuple[Job, ...]:
    """Return the job of a placed request in slots as each market of ``histories`` runs it.

    A job with a hard deadline gets the largest value that any of its markets needs, so that its
    market does not decide whether it is given up. Raises `JobError` as `slot_job` and `check_types`
    do.
    """
    markets, step = [history.market for history in histories], histories[0].step
    check_types(request, markets)
    work_market = work_market_of(request, markets)
    runs = [
        slot_job(
            request,
            step=step,
            on_demand_usd=history.on_demand_usd,
            market=history.market,
            work_market=work_market,
            sold=history.on_demand.sold,
        )
        for history in histories
    ]
    value = max(run.value for run in runs)
    return tuple(replace(run, value=value) for run in runs)


# ---
# Time and cost of moves between the markets of a job: stated here, read by `kernels.rules.move_usd` (M11.2).


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moving:
    """Time and cost of a move (M11.2).

    ``taken`` is the share of a slot lost in addition to the restart; ``usd`` is the cost from the
    market of the row to that of the column: (S, M, M) for a move in each slot of the job, the last
    row for all later slots, or (M, M) for all slots. ``table`` are the costs as of `move_usd`.
    """

    taken: float
    usd: np.ndarray
    table: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        usd = np.array(self.usd, dtype=float, ndmin=3)
        if not 0 <= self.taken < np.inf:
            raise JobError(f"a move takes {self.taken} slots", expected="a finite share of a slot >= 0")
        square = usd.ndim == 3 and len(usd) > 0 and usd.shape[1] == usd.shape[2]
        if not square or not (np.isfinite(usd).all() and (usd >= 0).all()):
            raise JobError(
                f"costs of moves of shape {usd.shape}",
                expected="finite USD >= 0, a row and a column for each market, for each slot or for all",
            )
        table = move_table(usd)
        for name, array in (("usd", usd), ("table", table)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def markets(self) -> int:
        """Number of markets."""
        return int(self.usd.shape[1])

    @property
    def most_usd(self) -> float:
        """Cost of the most expensive move."""
        return float(self.usd.max())


def even_moving(markets: int, *, taken: float, usd: float | Sequence[float]) -> Moving:
    """Return moves of equal cost between any two of ``markets``, in each slot or in all."""
    return Moving(taken=taken, usd=np.reshape(usd, (-1, 1, 1)) * (1.0 - np.eye(markets)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPrices:
    """List prices of a provider in USD per GB: to another zone of the region, to another region, to another provider."""

    in_region: float
    between_regions: float
    leaving: float


def egress_prices(provider: str) -> EgressPrices:
    """Return the list prices of a provider, by default those of other providers (``data/egress.toml``)."""
    known = read_data("slackwater.optimization", "egress")
    return EgressPrices(**known.get(provider) or known["other"])


def egress_usd_per_gb(a: Market, b: Market) -> float:
    """Return the list price of moving a GB from market ``a`` to market ``b``, USD; 0 inside a zone."""
    prices = egress_prices(a.provider)
    if a.provider != b.provider:
        return prices.leaving
    if a.region != b.region:
        return prices.between_regions
    return prices.in_region if a.zone != b.zone else 0.0


def moves(request: JobRequest, markets: Sequence[Market], *, step: pd.Timedelta) -> Moving:
    """Return the moves of a placed request between markets (M11.2); without terms a move takes no more than a restart."""
    terms = request.moving or MovingTerms.model_validate({})
    given = terms.egress_usd_per_gb
    usd = np.zeros((len(markets), len(markets)))
    for i, a in enumerate(markets):
        for j, b in enumerate(markets):
            if i != j:
                per_gb = egress_usd_per_gb(a, b) if given is None else given
                usd[i, j] = terms.usd + terms.checkpoint_gb * per_gb
    return Moving(taken=pd.Timedelta(minutes=terms.takes_minutes) / step, usd=usd)
