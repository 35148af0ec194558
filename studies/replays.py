"""Replays of many policies and jobs for studies (M5.1): plans are shared, the work is in processes or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slackwater.flows.executor import fan_out
from slackwater.optimization.job.definition import Job, Progress
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.run import Case, Forecasts, PlanMemo, run_from, with_shared_plans
from slackwater.optimization.window.plan import Outcome


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
    return list(fan_out(replay_case, cases, tuple(policies), processes=processes, progress=progress))


def replay_case(case: Case, policies: Sequence[Policy[Any]]) -> list[Outcome]:
    """Return the outcomes of every policy on a case."""
    return replay_pool(policies, case.job, case.window, forecasts=case.forecasts, record=case.record)
