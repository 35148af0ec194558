"""``experiment ...``: the one list of experiments, a function each; what computes is loaded when one is called.

Every experiment trains on the past half of a folder of measured prices and counts and tests on the later one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flows.command import Answer, Output, option
from flows.command.session import shared


@shared
class StudyOptions(Output):
    """What every experiment is told."""

    data: Annotated[Path, option("Folder with prices.parquet and availability.parquet.", metavar="DIR")]
    fast: Annotated[bool, option("Fewer jobs and policies: a look in under a minute, not a result.")] = False
    seed: Annotated[int, option("Seed of everything drawn.", least=0)] = 7


Processes = Annotated[
    int | None,
    option("Processes to spread the work over (default: one a core).", name="--processes", least=1),
]


def pool(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Every policy of the pool on a grid of jobs: utility, gain over each baseline, share of the headroom captured (E1)."""
    from flows.experiments.pool.study import pool_study

    return pool_study(study, processes=processes)


def error(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Utility when forecasts are wrong by a known amount, and where planning without them is better (E2)."""
    from flows.experiments.error.study import error_study

    return error_study(study, processes=processes)


def selection(*, study: StudyOptions) -> Answer:
    """Learn which policy to trust over a thousand jobs: regret against its bound, weights through a regime switch (E3)."""
    from flows.experiments.selection.study import selection_study

    return selection_study(study)


def cant_be_late(*, study: StudyOptions) -> Answer:
    """The public single-instance benchmark (48 h of work, a deadline, a restart overhead) on 0/1 traces."""
    from flows.experiments.cant_be_late.study import cant_be_late_study

    return cant_be_late_study(study)


def predictors(
    *,
    models: Annotated[
        list[str] | None,
        option("A forecaster to choose from; may be repeated (default: six).", name="--model"),
    ] = None,
    study: StudyOptions,
) -> Answer:
    """Choose among forecasters whose accuracy is unknown beforehand, by what planning with each has earned (M10)."""
    from flows.experiments.predictors.study import predictors_study

    return predictors_study(study, models=tuple(models or ()))


def probing(*, study: StudyOptions) -> Answer:
    """How often to probe a market when a probe costs money: rules that look at what was seen beside fixed intervals (M10)."""
    from flows.experiments.probing.study import probing_study

    return probing_study(study)


def fleet(*, study: StudyOptions) -> Answer:
    """Jobs that compete for the same counts: planned together, one by one in three orders, and each alone."""
    from flows.experiments.fleet.study import fleet_study

    return fleet_study(study)


def cluster(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Completion times on a shared cluster of 64 GPUs: FIFO and a Sia-like scheduler, default and predicted configurations.

    The folder is that of the fine-tuning measurements, or the one that holds `finetune/`.
    """
    from flows.experiments.cluster.run import cluster_study

    return cluster_study(study, processes=processes)


def renting(*, study: StudyOptions) -> Answer:
    """A stream of jobs on a budget in USD: list price against effective price, dual price and spending plan on real markets."""
    from flows.experiments.renting.answer import renting_study

    return renting_study(study)
