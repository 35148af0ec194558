"""``slackwater experiment cluster``: completion times on a shared cluster, configurations by default and predicted (M9.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.accuracy.units import cores
from flows.command import Answer
from flows.command.progress import progress, say
from flows.experiments.cluster.answer import Ran, cluster_answer
from flows.experiments.cluster.knowledge import Knowledge, Model, finetune_folder, learn
from flows.experiments.cluster.study import (
    Setting,
    Study,
    default_mix,
    full_rate,
    run_partial,
    run_setting,
    setting_of,
    usual_defaults,
)
from flows.experiments.command import StudyOptions
from flows.experiments.runner import Progress
from flows.show.blocks import Block, Notes, Table
from optimization.cluster.schedulers.partial import completion_times, partly_known
from optimization.cluster.simulation import Cluster
from optimization.cluster.stream import Workload
from optimization.replay.run import spread

#: The load at which the order of jobs by partly predicted sizes is judged: without pressure no order matters.
ORDER_LOAD = 0.9
#: Errors of predictions on the single machine: sigma of the log.
ERRORS = (0.0, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is run: jobs a stream, streams, loads, and less of each for what is beside the headline."""

    jobs: int = 500
    streams: int = 10
    loads: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    side_streams: int = 5
    side_loads: tuple[float, ...] = (0.5, 0.7, 0.9)
    folds: int = 5
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    machines: int = 100
    expected_over: int = 1500


FULL = Scale()
FAST = Scale(
    jobs=150, streams=3, loads=(0.5, 0.7, 0.9), side_streams=3, side_loads=(0.7,), folds=2, shares=(0.0, 0.5, 1.0), machines=20
)  # fmt: skip


def fit_published(folder: Path, seed: int) -> Model:
    """The model of configurations fitted on a folder of runs."""
    from forecasting.configurations.model import fit_configurations

    return fit_configurations(folder, seed=seed)


def run_cluster(
    knowledge: Knowledge, *, scale: Scale, seed: int, processes: int = 1, progress: Progress | None = None
) -> Ran:
    """Simulate every stream under every scheduler and kind of knowledge; the same whatever ``processes``."""
    study = Study(
        families=knowledge.families,
        defaults=usual_defaults(knowledge.shares),
        workload=Workload(),
        cluster=Cluster(),
        jobs=scale.jobs,
        seed=seed,
        expected_over=scale.expected_over,
    )
    mixes = {default.name: default_mix(study, default) for default in study.defaults}
    wanted = [
        (d, load, mixes[default.name]["gpu_seconds"])
        for d, default in enumerate(study.defaults)
        for load in (scale.side_loads if d else scale.loads)
    ]
    settings = list(spread(setting_of, wanted, study, processes=processes))
    rows = spread(run_setting, items_of(settings, scale), study, processes=processes, progress=progress)
    table = pd.DataFrame([row for own in rows for row in own])
    larger = [row for own in wider_rows(study, scale, processes) for row in own]
    rate = full_rate(study, ORDER_LOAD)
    order = [(share, k) for share in (-1.0, *scale.shares) for k in range(scale.side_streams)]
    return Ran(
        study=study,
        knowledge=knowledge,
        mixes=mixes,
        settings=settings,
        rows=pd.concat([table, pd.DataFrame(larger)], ignore_index=True),
        cluster_order=pd.DataFrame(list(spread(run_partial, order, (study, rate), processes=processes))),
        cluster_order_load=ORDER_LOAD,
        machine_order=machine_order(scale, seed=seed),
    )


def items_of(settings: Sequence[Setting], scale: Scale) -> list[Setting]:
    """One item a stream: everything for the first default, default against predicted for the others, and costly failures."""
    items: list[Setting] = []
    for setting in settings:
        if setting.default == 0:
            all_kinds = ("default", "batch only", "predicted", "oracle")
            items.extend(replace(setting, number=k, kinds=all_kinds) for k in range(scale.streams))
        else:
            items.extend(replace(setting, number=k) for k in range(scale.side_streams))
    middle = next(s for s in settings if s.default == 0 and s.load == 0.7)
    items.extend(
        replace(middle, number=k, cluster=Cluster(failure_s=1800.0), variant="a failure takes 30 minutes")
        for k in range(scale.side_streams)
    )
    return items


def wider_rows(study: Study, scale: Scale, processes: int) -> list[list[dict[str, Any]]]:
    """Other job sizes, at load 0.7: a tenth of the tokens, and a wider spread."""
    rows: list[list[dict[str, Any]]] = []
    for name, workload in (
        ("a tenth of the tokens", Workload(median_tokens=2e6)),
        ("sizes spread wider (sigma 1.5)", Workload(sigma=1.5)),
    ):
        other = replace(study, workload=workload)
        held = default_mix(other, other.defaults[0])["gpu_seconds"]
        setting = replace(setting_of((0, 0.7, held), other), variant=name)
        items = [replace(setting, number=k) for k in range(scale.side_streams)]
        rows.extend(spread(run_setting, items, other, processes=processes))
    return rows


def machine_order(scale: Scale, *, seed: int) -> pd.DataFrame:
    """One machine, 50 lognormal jobs at once: mean completion time over the best, by share and error of predictions."""
    rows = []
    for number in range(scale.machines):
        rng = np.random.default_rng([seed, 8, number])
        sizes = rng.lognormal(0.0, 1.2, 50)
        best = float(np.cumsum(np.sort(sizes)).mean())
        together = [0.0] * len(sizes)
        for error in ERRORS:
            for share in np.linspace(0.0, 1.0, 11):
                guesses = partly_known(sizes.tolist(), share=float(share), error=error, rng=rng)
                ends = completion_times(together, sizes.tolist(), guesses)
                rows.append(
                    {
                        "error": error,
                        "share": float(share),
                        "machine": number,
                        "ratio": float(ends.mean()) / best,
                    }
                )
    return pd.DataFrame(rows)


def cluster_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """Default and predicted configurations on a shared cluster."""
    from flows.experiments.cluster.sections import cluster_page

    folder, seed = finetune_folder(study.data), study.seed
    scale = FAST if study.fast else FULL
    say(f"predict every family of {folder} from the others")
    with progress("models") as told:
        knowledge = learn(folder, fit_published, seed=seed, folds=scale.folds, progress=told)
    say("simulate the cluster")
    workers = processes or (1 if study.fast else cores())
    with progress("streams") as told:
        ran = run_cluster(knowledge, scale=scale, seed=seed, processes=workers, progress=told)
    value = cluster_answer(ran, data=str(study.data), fast=study.fast)
    return Answer(
        title="Shared cluster", value=value, blocks=cluster_blocks(value), page=lambda: cluster_page(value)
    )


def cluster_blocks(answer: dict[str, Any]) -> list[Block]:
    """The tables of the experiment for a person."""
    blocks: list[Block] = []
    shown = {
        "scheduler": "scheduler", "load": "load", "batch_only": "batch only", "predicted": "predicted",
        "predicted_interval": "95 %", "oracle": "oracle", "poster": "poster",
        "default_utilisation": "GPUs held by default", "default_keeps_up": "default keeps up",
    }  # fmt: skip
    rows = [{**r, "predicted_interval": _percent(r["predicted_interval"])} for r in answer["reductions"]]
    blocks.append(Table(
        f"Reduction of mean completion time against default configurations ({answer['streams']} streams of {answer['jobs']})",
        rows, shown,
    ))  # fmt: skip
    blocks.append(Table(
        "The same by how bad the default is",
        [{**r, "predicted_interval": _percent(r["predicted_interval"])} for r in answer["sensitivity"]],
        {
            "default": "default", "slowdown": "times the predicted pick's time", "scheduler": "scheduler", "load": "load",
            "predicted": "reduction", "predicted_interval": "95 %", "poster": "poster",
        },
    ))  # fmt: skip
    blocks.append(Notes((*answer["claims"], *answer["notes"])))
    return blocks


def _percent(interval: Sequence[float]) -> str:
    return f"{interval[0]:.0%} to {interval[1]:.0%}"
