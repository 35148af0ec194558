"""Replays of many policies and jobs for studies (M5.1): plans are shared, the work is in processes or on a Dask cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from slackwater.flows.executor import Executor, chosen_executor, executor_fan
from slackwater.optimization import fan
from slackwater.optimization.job.definition import Job, Progress
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.run import Case, Forecasts, PlanMemo, run_from, with_shared_plans
from slackwater.optimization.window.plan import Outcome

Item = TypeVar("Item")
Shared = TypeVar("Shared")
Result = TypeVar("Result")

LEAST_PARCELS = 32  # Least number of parcels on a cluster


def replay_pool(
    policies: Sequence[Policy[Any]],
    job: Job,
    window: MarketWindow,
    *,
    forecasts: Forecasts | None = None,
    memo: PlanMemo | None = None,
    record: Record | None = None,
) -> list[Outcome]:
    """Run `replay` for every policy on a job; each horizon program is solved only once, with the same results (M5.1).

    ``memo`` reuses plans from another replay of the same job (on any market, since plans are identified by
    content), and tables from a replay of the same job, market and forecasts.
    """
    memo = memo or PlanMemo()
    (market,) = memo.slot_markets([Case(job=job, window=window, forecasts=forecasts, record=record)])
    return run_from([with_shared_plans(policy, memo) for policy in policies], job, market, (0, Progress()))


def replay_batch(
    cases: Sequence[Case],
    policies: Sequence[Policy[Any]],
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Outcome]]:
    """Return the outcomes of every policy on every case, a list per case, both in the given order.

    The results are those of `replay_pool` for each case, for any number of ``processes``; horizon
    programs are shared within a case. ``progress(done, total)`` counts cases. Raises the errors of
    `replay_pool`, and `SettingsError` for fewer than 1 process.
    """
    return list(spread(replay_case, cases, tuple(policies), processes=processes, progress=progress))


def replay_case(case: Case, policies: Sequence[Policy[Any]]) -> list[Outcome]:
    """Return the outcomes of every policy on a case."""
    return replay_pool(policies, case.job, case.window, forecasts=case.forecasts, record=case.record)


def spread(
    work: Callable[[Item, Shared], Result],
    items: Sequence[Item],
    shared: Shared,
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Result]:
    """Yield the results of `slackwater.optimization.fan.fan_out`, computed on the Dask cluster of the environment, if any.

    On a cluster ``processes`` is the number of parcels at least.
    """
    executor = chosen_executor()
    if executor.kind != "dask" or len(items) < 2:
        return fan.fan_out(work, items, shared, processes=processes, progress=progress)
    return fan.with_progress(_run_on_cluster(executor, work, items, shared, processes), len(items), progress)


def _run_on_cluster(
    executor: Executor,
    work: Callable[[Item, Shared], Result],
    items: Sequence[Item],
    shared: Shared,
    processes: int,
) -> Iterator[Result]:
    size = math.ceil(len(items) / max(LEAST_PARCELS, processes * fan.PARCELS_A_PROCESS))
    calls = [
        {"work": work, "items": list(items[i : i + size]), "shared": shared}
        for i in range(0, len(items), size)
    ]
    with executor_fan(executor) as make_calls:
        for results in make_calls(_apply_all, calls):
            yield from results


def _apply_all(work: Callable[[Any, Any], Any], items: Sequence[Any], shared: Any) -> list[Any]:
    return [work(item, shared) for item in items]
