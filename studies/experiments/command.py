"""Repeat an experiment on a folder of measured prices and counts: train on the past half, test on the later one.

A function for each command ``experiment ...``, which imports the computation when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from slackwater.flows.accuracy.command import ALL_FORECASTS, AccuracyOptions
from slackwater.flows.command import Answer, Session, option
from slackwater.studies.experiments.study import Processes, StudyOptions


def pool(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Run every policy of the pool on a grid of jobs: utility, gain over each baseline, share of the headroom captured."""
    from slackwater.studies.experiments.pool import pool_study

    return pool_study(study, processes=processes)


def error(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Measure utility under forecast errors of a known size, and find where planning without forecasts is better."""
    from slackwater.studies.experiments.error import error_study

    return error_study(study, processes=processes)


def selection(
    *,
    prior: Annotated[
        Path | None,
        option(
            "Also write what the policies earned on the training jobs, which a warehouse begins with.",
            metavar="FILE",
        ),
    ] = None,
    study: StudyOptions,
) -> Answer:
    """Learn which policy to trust over a thousand jobs: regret compared with its bound, weights through a regime switch."""
    from slackwater.studies.experiments.selection import selection_study

    return selection_study(study, prior=prior)


def cant_be_late(*, study: StudyOptions) -> Answer:
    """Run the public single-instance benchmark (48 h of work, a deadline, a restart overhead) on 0/1 traces."""
    from slackwater.studies.experiments.cant_be_late import cant_be_late_study

    return cant_be_late_study(study)


def predictors(
    *,
    models: Annotated[
        list[str] | None,
        option("A forecaster to choose from; may be repeated (default: six).", name="--model"),
    ] = None,
    study: StudyOptions,
) -> Answer:
    """Choose among forecasters of unknown accuracy by the utility that planning with each has earned."""
    from slackwater.studies.experiments.predictors import predictors_study

    return predictors_study(study, models=tuple(models or ()))


def left_out(
    *,
    by: Annotated[str, option("Left out in turn: zone or source.", metavar="WHAT")] = "zone",
    options: AccuracyOptions = ALL_FORECASTS,
    session: Session = Session(),
) -> Answer:
    """Choose each market's model on the earlier halves of other zones, and score it on the later halves."""
    from slackwater.studies.experiments.left_out import left_out_study

    return left_out_study(options, session, by=by)


def cluster(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Compare completion times on a shared cluster of 64 GPUs: FIFO and a Sia-like scheduler, default and predicted configurations.

    DIR is the folder of the fine-tuning measurements, or the folder that contains `finetune/`.
    """
    from slackwater.studies.experiments.cluster import cluster_study

    return cluster_study(study, processes=processes)


def configurations(*, study: StudyOptions) -> Answer:
    """Measure configuration knowledge: models left out, fewer rows, validity labels, and published failure rates.

    DIR is the folder of the fine-tuning measurements, or the folder that contains `finetune/`.
    """
    from slackwater.studies.experiments.configurations import configurations_study

    return configurations_study(study)


def renting(*, study: StudyOptions) -> Answer:
    """Rent for a stream of jobs on a budget in USD: list price, effective price, dual price and spending plan on real markets."""
    from slackwater.studies.experiments.renting import renting_study

    return renting_study(study)


def markets(
    *,
    study: StudyOptions,
    processes: Processes = None,
    starts: Annotated[
        int | None,
        option("Start times in each world (default: 72, with one instance per market 144).", least=1),
    ] = None,
    no_forecasts: Annotated[
        bool, option("Leave out the policy with the forecasts of turns, which take most of the time.")
    ] = False,
) -> Answer:
    """Run a job that may move between markets: multi-market policies compared with each single market and with a bound."""
    from slackwater.studies.experiments.markets import markets_study

    return markets_study(study, processes=processes, many=starts, forecasts=not no_forecasts)


def world(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Replay policies where spot is lost at any time, under a guard that keeps deadlines: where planning pays."""
    from slackwater.studies.experiments.world import world_study

    return world_study(study, processes=processes)


def evidence(*, study: StudyOptions, processes: Processes = None) -> Answer:
    """Compare what jobs are told with what becomes of them, by how much is known of availability."""
    from slackwater.studies.experiments.evidence import evidence_study

    return evidence_study(study, processes=processes)


def advice(
    *,
    study: StudyOptions,
    processes: Processes = None,
    worth: Annotated[
        float,
        option(
            "What a job is worth, in units of what it costs on demand alone: below 1 it may pay to be late, or to give up.",
            least=0.1,
        ),
    ] = 1.5,
    days: Annotated[
        float | None, option("Days of turns in each world (default: its whole record).", least=0.25)
    ] = None,
) -> Answer:
    """Replay the decisions that turns would have made from an empty warehouse on, and compare them with the best fixed policy."""
    from slackwater.studies.experiments.advice import advice_study

    return advice_study(study, processes=processes, worth=worth, days=days)
