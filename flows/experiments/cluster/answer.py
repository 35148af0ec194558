"""The JSON object of the experiment on a cluster (M9.5): reductions with intervals beside the poster's, and what they hang on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.experiments.cluster.knowledge import Knowledge
from flows.experiments.cluster.study import Setting, Study
from optimization.cluster.simulation import Metrics, mean_interval, reduction_interval

#: Reductions of mean completion time that the CoTune poster reports.
POSTER: Final = {"FIFO": 0.78, "Sia-like": 0.70}
#: Which slowdown of a default counts under which scheduler.
SLOWDOWN: Final = {"FIFO": "slowdown", "Sia-like": "slowdown_free"}
MEASURES: Final = tuple(name for name in Metrics.__dataclass_fields__ if name != "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Everything that was run: rows of `cluster_study.run_setting` and `run_partial`, and the single machine's rows."""

    study: Study
    knowledge: Knowledge
    mixes: Mapping[str, Mapping[str, float]]
    settings: Sequence[Setting]
    rows: pd.DataFrame
    cluster_order: pd.DataFrame
    cluster_order_load: float
    machine_order: pd.DataFrame


def cluster_answer(ran: Ran, *, data: str, fast: bool) -> dict[str, Any]:
    """The answer of ``slackwater experiment cluster --json``; ``docs/experiments.md`` lists its keys."""
    main = ran.study.defaults[0].name
    usual = ran.rows[(ran.rows["variant"] == "") & (ran.rows["default"] == main)]
    found = reduction_rows(usual, ran.mixes[main])
    answer = {
        "data": data,
        "seed": ran.study.seed,
        "fast": fast,
        "jobs": ran.study.jobs,
        "streams": int(usual["stream"].nunique()),
        "cluster": {
            "nodes": ran.study.cluster.nodes,
            "gpus_per_node": ran.study.cluster.gpus_per_node,
            "start_up_s": ran.study.cluster.start_up_s,
            "failure_s": ran.study.cluster.failure_s,
        },
        "workload": {"median_tokens": ran.study.workload.median_tokens, "sigma": ran.study.workload.sigma},
        "knowledge": dict(ran.knowledge.figures),
        "poster": POSTER,
        "headline": headline(usual),
        "reductions": found,
        "runs": mean_rows(usual),
        "defaults": [
            {"default": d.name, "batch": d.habit.value, **ran.mixes[d.name]} for d in ran.study.defaults
        ],
        "sensitivity": sensitivity_rows(ran),
        "variants": variant_rows(ran),
        "etas": [
            {
                "default": ran.study.defaults[s.default].name,
                "load": s.load,
                "eta": s.eta,
                "eta_oracle": s.eta_oracle,
            }
            for s in ran.settings
        ],
        "order": {
            "load": ran.cluster_order_load,
            "machine": machine_rows(ran.machine_order),
            "cluster": order_rows(ran.cluster_order),
        },
    }
    return {**answer, "claims": claims(answer), "notes": notes(answer)}


def _by_stream(rows: pd.DataFrame, scheduler: str, load: float, knowledge: str) -> np.ndarray:
    at = (rows["scheduler"] == scheduler) & (rows["load"] == load) & (rows["knowledge"] == knowledge)
    return rows[at].sort_values("stream")["mean_s"].to_numpy()


def reduction_rows(rows: pd.DataFrame, mix: Mapping[str, float]) -> list[dict[str, Any]]:
    """For each scheduler and load of ``rows`` (one default, ``mix``): reductions by kind of knowledge, paired by stream.

    ``default_keeps_up``: the load is below what FIFO keeps busy with this default (`cluster_study.saturation`).
    """
    made = []
    for scheduler in dict.fromkeys(rows["scheduler"]):
        for load in sorted(set(rows["load"])):
            default = _by_stream(rows, scheduler, load, "default")
            row: dict[str, Any] = {"scheduler": scheduler, "load": load}
            for kind in ("batch only", "predicted", "oracle"):
                other = _by_stream(rows, scheduler, load, kind)
                if len(other):
                    mean, low, high = reduction_interval(default, other)
                    key = kind.replace(" ", "_")
                    row[key], row[f"{key}_interval"] = mean, [low, high]
            at = (rows["scheduler"] == scheduler) & (rows["load"] == load) & (rows["knowledge"] == "default")
            row["default_utilisation"] = float(rows[at]["utilisation"].mean())
            row["default_keeps_up"] = bool(scheduler != "FIFO" or load < mix["saturation"])
            row["poster"] = POSTER[scheduler]
            made.append(row)
    return made


def headline(rows: pd.DataFrame) -> dict[str, Any]:
    """Each scheduler's reduction over all loads, every stream's loads averaged first (so that streams stay independent)."""
    made = {}
    for scheduler in dict.fromkeys(rows["scheduler"]):
        loads = sorted(set(rows["load"]))
        own: dict[str, Any] = {"poster": POSTER[scheduler], "loads": loads}
        for kind in ("predicted", "oracle"):
            default, other = (
                np.array([_by_stream(rows, scheduler, load, k) for load in loads]) for k in ("default", kind)
            )
            mean, low, high = reduction_interval(default, other)
            own[kind], own[f"{kind}_interval"] = mean, [low, high]
        made[scheduler] = own
    return made


def mean_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Means over streams of every measure, by scheduler, load and knowledge."""
    grouped = (
        rows.groupby(["scheduler", "load", "knowledge"], sort=False)[list(MEASURES)].mean().reset_index()
    )
    return [{str(k): v for k, v in row.items()} for row in grouped.to_dict("records")]


def sensitivity_rows(ran: Ran) -> list[dict[str, Any]]:
    """The reduction by how bad the default is: ``slowdown`` is its time on an empty cluster over the predicted pick's.

    Under Sia-like it is that of the user's batch on the most GPUs that it runs on.
    """
    made = []
    for default in ran.study.defaults:
        rows = ran.rows[(ran.rows["variant"] == "") & (ran.rows["default"] == default.name)]
        for row in reduction_rows(rows, ran.mixes[default.name]):
            keys = ("scheduler", "load", "predicted", "predicted_interval", "default_keeps_up", "poster")
            slowdown = ran.mixes[default.name][SLOWDOWN[row["scheduler"]]]
            made.append({"default": default.name, "slowdown": slowdown, **{key: row[key] for key in keys}})
    return made


def variant_rows(ran: Ran) -> list[dict[str, Any]]:
    """The reduction under other assumptions than the stated ones, the default of the headline."""
    made = []
    mix = ran.mixes[ran.study.defaults[0].name]
    for variant in dict.fromkeys(ran.rows["variant"]):
        if variant:
            for row in reduction_rows(ran.rows[ran.rows["variant"] == variant], mix):
                keys = ("scheduler", "load", "predicted", "predicted_interval", "poster")
                made.append({"variant": variant, **{key: row[key] for key in keys}})
    return made


def machine_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Mean completion time on one machine over the best possible, by share and error of predictions."""
    made = []
    for (error, share), own in rows.groupby(["error", "share"], sort=True):
        mean, low, high = mean_interval(own["ratio"].tolist())
        made.append(
            {"error": float(str(error)), "share": float(str(share)), "ratio": mean, "interval": [low, high]}
        )
    return made


def order_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Mean completion time on the cluster over that of FIFO, by share of jobs of predicted size."""
    fifo = rows[rows["share"] < 0].sort_values("stream")["mean_s"].to_numpy()
    made = []
    for share, own in rows[rows["share"] >= 0].groupby("share", sort=True):
        ratio = own.sort_values("stream")["mean_s"].to_numpy() / fifo
        mean, low, high = mean_interval(ratio.tolist())
        made.append(
            {
                "share": float(str(share)), "mean_s": float(own["mean_s"].mean()), "ratio_to_fifo": mean, "interval": [low, high],
                "p99_s": float(own["p99_s"].mean()), "restarts": float(own["restarts"].mean()),
            }
        )  # fmt: skip
    return made


def claims(answer: Mapping[str, Any]) -> list[str]:
    """Sentences on where the poster's reductions are reached, where not, and why, computed from the numbers."""
    made = []
    for scheduler, own in answer["headline"].items():
        low, high = own["predicted_interval"]
        at = [r for r in answer["reductions"] if r["scheduler"] == scheduler]
        reached = [r["load"] for r in at if r["predicted"] >= own["poster"]]
        worst, best = min(r["predicted"] for r in at), max(r["predicted"] for r in at)
        made.append(
            f"{scheduler}: predicted configurations cut the mean completion time by {own['predicted']:.0%} "
            f"({low:.0%} to {high:.0%}) on average over loads of {own['loads'][0]:g} to {own['loads'][-1]:g}, from {worst:.0%} to "
            f"{best:.0%} by load; the poster says {own['poster']:.0%}, "
            + (f"reached at loads of {_listed(reached)}." if reached else "reached at no load.")
            + f" One who knew every configuration would get {own['oracle']:.0%}."
        )
        made.append(_needed(answer, scheduler))
    behind = [r["load"] for r in answer["reductions"] if not r["default_keeps_up"]]
    if behind:
        made.append(
            f"FIFO keeps no more than {answer['defaults'][0]['saturation']:.0%} of the GPUs busy with default configurations: wide "
            f"jobs at the head wait while GPUs idle. At loads of {_listed(behind)} its queue grows with the length of the stream, "
            "and so does the reduction: there the figure says above all how long the stream is."
        )
    split = [r for r in answer["reductions"] if "batch_only" in r]
    if split:
        made.append(
            "Under FIFO the batch alone, on the GPUs that the user asked for, cuts it by "
            + ", ".join(f"{r['batch_only']:.0%} at load {r['load']:g}" for r in split)
            + "; the rest comes from the number of GPUs. Sia sets that number itself, so there it is not to be gained."
        )
    return made


def _needed(answer: Mapping[str, Any], scheduler: str) -> str:
    poster = POSTER[scheduler]
    reaching = [
        f"{r['default']} at {r['load']:g}"
        for r in answer["sensitivity"]
        if r["scheduler"] == scheduler and r["predicted"] >= poster
    ]
    own = answer["defaults"][0]
    return (
        f"{scheduler}: on an empty cluster a reduction of {poster:.0%} needs defaults that take {1 / (1 - poster):.1f} times as "
        f"long as the predicted pick; what the users of the headline pick takes {own[SLOWDOWN[scheduler]]:.1f} times as long"
        + (" on the GPUs that Sia gives it" if scheduler != "FIFO" else "")
        + ". Of all defaults and loads tried it is "
        + (f"reached by: {'; '.join(reaching)}." if reaching else "reached by none.")
    )


def notes(answer: Mapping[str, Any]) -> list[str]:
    """What is assumed, what is synthetic, and how good truth and predictions are."""
    k = answer["knowledge"]
    return [
        f"{k['families']:.0f} families (model, method, length) on one type of GPU; {k['measured']:.0f} configurations that run "
        f"were measured, {k['interpolated']:.0f} are read from a surface fitted on all runs (median error {k['truth_error']:.1%} "
        "on runs left out).",
        f"Predictions come from a model that has seen no run and no label of the family: median error {k['mdape']:.1%} on its "
        "measured configurations. Other lengths of the same model and method it has seen.",
        "Synthetic: whether an unmeasured configuration runs is the label of a published classifier, not a measurement. The "
        f"model's verdict differs from it in {k['validity_error']:.1%} of the configurations whose batch the GPUs divide; "
        f"{k['failure_rate']:.0%} of the whole grid fail, where the published runs fail in 58 to 67 % (they go up to batches of "
        "1,024).",
        "The poster names no default configuration, no job sizes and no load: those here are ours, and how far the reduction "
        "hangs on them is shown.",
    ]


def _listed(loads: Sequence[float]) -> str:
    return ", ".join(f"{load:g}" for load in dict.fromkeys(loads))
