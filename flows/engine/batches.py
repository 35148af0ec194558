"""Batches of replays as Prefect tasks, over any of the task runners of the engine (`optimization.replay.run.replay_batch`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner

from flows.engine.flows import RUNNER, TASKS_A_STAGE
from optimization.policies.contract import Policy
from optimization.replay.run import Case, replay_case
from optimization.window.plan import Outcome


class Batch:
    """Cases and policies as one value, opaque to the engine: it would walk through every table looking for futures."""

    __slots__ = ("cases", "policies")

    def __init__(self, cases: Sequence[Case], policies: Sequence[Policy[Any]]) -> None:
        self.cases = tuple(cases)
        self.policies = tuple(policies)

    def parts(self, most: int) -> list[Batch]:
        """At most ``most`` batches of neighbouring cases, in order."""
        size = math.ceil(len(self.cases) / most) or 1
        return [Batch(self.cases[i : i + size], self.policies) for i in range(0, len(self.cases), size)]


class Replayed:
    """The outcomes of a batch, opaque to the engine for the same reason."""

    __slots__ = ("outcomes",)

    def __init__(self, outcomes: list[list[Outcome]]) -> None:
        self.outcomes = outcomes


def replay_on_engine(
    cases: Sequence[Case], policies: Sequence[Policy[Any]], *, runner: TaskRunner[PrefectFuture[Any]] = RUNNER
) -> list[list[Outcome]]:
    """`replay_batch` as a Prefect flow of a few coarse tasks on ``runner``: equal outcomes in the same order.

    The default runner has threads, which share one interpreter: it orders and retries, a runner of processes is what makes it
    faster. Each part is one task, tried once more if it fails; the engine is prepared by `flows.engine.prepare.prepare_engine`.
    """
    batch = replay_batch_flow.with_options(task_runner=runner)
    replayed: Replayed = batch(Batch(cases, policies))
    return replayed.outcomes


@task(name="replay-part", cache_policy=NO_CACHE, persist_result=False, retries=1)
def replay_part(part: Batch) -> Replayed:
    """The outcomes of every policy on every case of one part."""
    return Replayed([replay_case(case, part.policies) for case in part.cases])


@flow(name="replay-batch", task_runner=RUNNER, validate_parameters=False, persist_result=False)
def replay_batch_flow(batch: Batch) -> Replayed:
    """Every part of a batch as a task, at most `flows.engine.flows.TASKS_A_STAGE` of them; outcomes in the order of the cases."""
    futures = [replay_part.submit(part) for part in batch.parts(TASKS_A_STAGE)]
    return Replayed([outcomes for future in futures for outcomes in future.result().outcomes])
