"""Markets of a request, and its job as each of them runs it (M11.1-M11.3) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from slackwater.optimization.job.definition import Job
from slackwater.optimization.job.gpus import gpu_type_of, has_gpu
from slackwater.optimization.job.request import JobRequest, pattern_parts, slot_job
from slackwater.optimization.job.units import catalogue_gpus, has_room, work_market_of
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
