"""``slackwater experiment cluster``: a stream of jobs under every scheduler and every kind of knowledge (M9.5)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Banner, Figure, Figures, Fold, Section, numbers
from slackwater.flows.show.charts import Axis, lines
from slackwater.forecasting.accuracy.intervals import interval_words
from slackwater.forecasting.configurations.facts import Configuration, PredictedThroughput, Validity
from slackwater.forecasting.configurations.runs import RUNS_FILE, read_runs
from slackwater.studies.cluster.schedulers import Fifo, PartialOrder, Sia, completion_times, partly_known
from slackwater.studies.cluster.simulation import (
    Attempt,
    Cluster,
    Metrics,
    Scheduler,
    held_share,
    mean_interval,
    metrics_of,
    reduction_interval,
    simulate,
)
from slackwater.studies.cluster.stream import (
    BatchHabit,
    Default,
    Family,
    RateGrid,
    RateSurface,
    Request,
    WorkloadLaw,
    default_attempts,
    default_options,
    draw_requests,
    gpu_seconds,
    known_attempts,
    known_options,
    stream,
    users_widths,
)
from slackwater.studies.experiments.material import Progress
from slackwater.studies.experiments.study import StudyOptions
from slackwater.warehouse.errors import InputError

# ---
# True and predicted rates of every configuration in the cluster experiment (M9.5), from the measured runs.

LABELS_FILE: Final = "autoconf_predicted_validity.parquet"
#: GPU model of the cluster: three of four measured runs use it.
GPU_MODEL: Final = "NVIDIA-A100-SXM4-80GB"
WIDTHS: Final = (1, 2, 4, 8)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
#: A model and method with fewer distinct measured configurations than this is not used as a family of jobs.
LEAST_CONFIGURATIONS: Final = 10
#: Models without labels, and the models whose labels are used instead: the same architecture, and the dense model nearest in size.
STAND_INS: Final = {"granite-3.3-8b": "granite-3.1-8b-instruct", "llama3.2-3b": "granite-3b-code-base-128k"}


class ConfigurationPredictor(Protocol):
    """Interface of a configuration model (`slackwater.forecasting.configurations.model.ConfigurationModel`)."""

    def predict(self, configurations: Sequence[Configuration]) -> list[PredictedThroughput]:
        """Return the throughput of every configuration."""

    def validity(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Return whether every configuration runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownShare:
    """Families of jobs, the share of measured runs by GPUs, and the quality of true rates and predictions.

    ``figures``: number of ``families``; ``measured`` and ``interpolated`` configurations that run; ``truth_error``, the median
    error of the surface on omitted configurations; ``mdape`` of the predictions on measured configurations of held-out families;
    ``validity_error`` on the labels; ``failure_rate`` of the labels on the grid.
    """

    families: tuple[Family, ...]
    shares: tuple[tuple[int, float], ...]
    figures: Mapping[str, float]


def finetune_folder(data: Path) -> Path:
    """Return the folder of the measured runs: ``data`` or its ``finetune``. Raises `InputError` if neither contains them."""
    for folder in (data, data / "finetune"):
        if (folder / RUNS_FILE).is_file():
            return folder
    raise InputError(
        f"{data}: no {RUNS_FILE}" + ("" if data.is_dir() else " (no such folder)"),
        expected=f"a folder with {RUNS_FILE} and {LABELS_FILE}, or one whose `finetune` has them",
        remedy="give that folder with --data",
    )


def learn(
    folder: Path,
    fit: Callable[[Path, int], ConfigurationPredictor],
    *,
    seed: int,
    folds: int,
    progress: Progress | None = None,
) -> KnownShare:
    """Return true and predicted rates of every family.

    Families (model, method, length) are randomly assigned to ``folds`` parts. Each is predicted by ``fit(folder, seed)`` on a
    folder without the rows and labels of its part, so the model knows no measurement and no label of the family. True rates are
    the measured rates, and between them a `RateSurface` fitted on all runs. True validity is "measured, or labelled valid by the
    published classifier" (synthetic).
    """
    runs = measured_runs(folder)
    labels = _labels(folder)
    keys = list(
        dict.fromkeys(runs[["model_name", "method", "tokens_per_sample"]].itertuples(index=False, name=None))
    )
    fold_of = np.random.default_rng([seed, 5]).permutation(len(keys)) % folds
    families: dict[int, Family] = {}
    for fold in range(folds):
        held_out = [keys[k] for k in np.flatnonzero(fold_of == fold)]
        with tempfile.TemporaryDirectory() as spare:
            model = fit(_folder_without(folder, held_out, Path(spare)), seed)
        for k in np.flatnonzero(fold_of == fold).tolist():
            families[k] = _family(keys[k], runs, labels, model)
        if progress is not None:
            progress(fold + 1, folds)
    ordered = tuple(families[k] for k in range(len(keys)))
    return KnownShare(families=ordered, shares=_shares(runs), figures=_figures(ordered, keys, runs, labels))


def measured_runs(folder: Path) -> pd.DataFrame:
    """Return the measured runs on one node of `GPU_MODEL`, for models and methods with enough configurations.

    Raises `InputError` if there is none.
    """
    runs = read_runs(folder)
    runs = runs[
        (runs["gpu_model"] == GPU_MODEL) & runs["number_gpus"].isin(WIDTHS) & (runs["number_nodes"] == 1)
    ]
    counts = (
        runs.drop_duplicates(["model_name", "method", "number_gpus", "tokens_per_sample", "batch_size"])
        .groupby(["model_name", "method"])["batch_size"]
        .transform("size")
    )
    enough = (
        counts.reindex(runs.index).groupby([runs["model_name"], runs["method"]]).transform("max")
        >= LEAST_CONFIGURATIONS
    )
    if not enough.any():
        raise InputError(
            f"{folder}: no model with {LEAST_CONFIGURATIONS} measured configurations on {GPU_MODEL}",
            expected="the measured fine-tuning runs", remedy="give the folder that holds them with --data",
        )  # fmt: skip
    return runs[enough].reset_index(drop=True)


def _labels(folder: Path) -> dict[tuple[Any, ...], bool]:
    """Return (model, method, length, GPUs, batch) -> valid by the published classifier, on `GPU_MODEL`."""
    path = folder / LABELS_FILE
    if not path.is_file():
        raise InputError(
            f"{path}: no such file",
            expected="the validity labels of the published classifier",
            remedy="fetch it again",
        )
    frame = pd.read_parquet(path)
    frame = frame[frame["gpu_model"] == GPU_MODEL]
    columns = ["model_name", "method", "tokens_per_sample", "number_gpus", "batch_size", "predicted_valid"]
    return {tuple(row[:5]): bool(row[5]) for row in frame[columns].itertuples(index=False, name=None)}


def _folder_without(folder: Path, held_out: Sequence[tuple[Any, ...]], spare: Path) -> Path:
    """Copy the data to ``spare`` without the rows and labels of these families (model, method, length)."""
    gone = set(held_out)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in (RUNS_FILE, LABELS_FILE):
            shutil.copyfile(path, spare / path.name)
    runs, labels = pd.read_csv(folder / RUNS_FILE), pd.read_parquet(folder / LABELS_FILE)
    _without(runs, gone).to_csv(spare / RUNS_FILE, index=False)
    _without(labels, gone).to_parquet(spare / LABELS_FILE, index=False)
    return spare


def _grid(tokens_per_sample: int) -> RateGrid:
    gpus, batch = (a.ravel() for a in np.meshgrid(WIDTHS, BATCHES, indexing="ij"))
    return RateGrid(gpus=gpus, batch=batch, tokens_per_sample=np.full(gpus.size, tokens_per_sample))


def _surface(runs: pd.DataFrame) -> RateSurface:
    grid = RateGrid(
        gpus=runs["number_gpus"].to_numpy(),
        batch=runs["batch_size"].to_numpy(),
        tokens_per_sample=runs["tokens_per_sample"].to_numpy(),
    )
    return RateSurface(grid=grid, measured=runs["tokens_per_second"].to_numpy(dtype=float))


def _family(
    key: tuple[Any, ...],
    runs: pd.DataFrame,
    labels: Mapping[tuple[Any, ...], bool],
    model: ConfigurationPredictor,
) -> Family:
    name, method, length = str(key[0]), str(key[1]), int(key[2])
    own = runs[(runs["model_name"] == name) & (runs["method"] == method)]
    grid = _grid(length)
    runs_well = _true_validity(key, grid, own, labels)
    configurations = [
        Configuration(
            model_name=name,
            method=method,
            gpu_model=GPU_MODEL,
            number_gpus=int(g),
            tokens_per_sample=length,
            batch_size=int(b),
        )
        for g, b in zip(grid.gpus, grid.batch, strict=True)
    ]
    divides = grid.batch % grid.gpus == 0
    verdicts = model.validity(configurations)
    return Family(
        name=f"{name}, {method}, {length} tokens",
        gpus=grid.gpus,
        batch=grid.batch,
        true=np.where(runs_well, _surface(own).rates(grid), 0.0),
        believed=np.array([p.tokens_per_second for p in model.predict(configurations)]),
        p_valid=np.where(divides, [v.p_valid for v in verdicts], 0.0),
        valid=divides & np.array([v.valid for v in verdicts]),
    )


def _true_validity(
    key: tuple[Any, ...], grid: RateGrid, own: pd.DataFrame, labels: Mapping[tuple[Any, ...], bool]
) -> np.ndarray:
    """Return whether each configuration is measured or labelled valid.

    Models without labels use those of their stand-in; GPTQ-LoRA uses the labels of LoRA.
    """
    at_length = own[own["tokens_per_sample"] == key[2]]
    measured = set(zip(at_length["number_gpus"], at_length["batch_size"], strict=True))
    model, method = STAND_INS.get(key[0], key[0]), "lora" if key[1] == "gptq-lora" else key[1]
    return np.array(
        [
            (g, b) in measured or (b % g == 0 and labels.get((model, method, key[2], g, b), False))
            for g, b in zip(grid.gpus.tolist(), grid.batch.tolist(), strict=True)
        ]
    )


def _shares(runs: pd.DataFrame) -> tuple[tuple[int, float], ...]:
    counts = runs["number_gpus"].value_counts(normalize=True)
    return tuple((width, float(counts.get(width, 0.0))) for width in WIDTHS)


def _figures(
    families: Sequence[Family],
    keys: Sequence[tuple[Any, ...]],
    runs: pd.DataFrame,
    labels: Mapping[tuple[Any, ...], bool],
) -> dict[str, float]:
    wrong, errors, measured = [], [], 0
    for key, family in zip(keys, families, strict=True):
        own = runs[
            (runs["model_name"] == key[0])
            & (runs["method"] == key[1])
            & (runs["tokens_per_sample"] == key[2])
        ]
        seen = set(zip(own["number_gpus"], own["batch_size"], strict=True))
        at = np.array([(int(g), int(b)) in seen for g, b in zip(family.gpus, family.batch, strict=True)])
        measured += int(at.sum())
        errors.extend(np.abs(family.believed[at] / family.true[at] - 1.0).tolist())
        divides = family.batch % family.gpus == 0
        wrong.extend((family.valid != (family.true > 0))[divides].tolist())
    runs_well = np.concatenate([family.true > 0 for family in families])
    return {
        "families": float(len(families)),
        "measured": float(measured),
        "interpolated": float(runs_well.sum() - measured),
        "truth_error": _truth_error(runs),
        "mdape": float(np.median(errors)),
        "validity_error": float(np.mean(wrong)),
        "failure_rate": float(1.0 - runs_well.mean()),
    }


def _truth_error(runs: pd.DataFrame) -> float:
    """Return the median relative error of the surface on omitted configurations, in five-fold cross-validation."""
    errors: list[float] = []
    for _, own in runs.groupby(["model_name", "method"], sort=True):
        turn = np.arange(len(own)) % 5
        for part in range(5):
            test = own[turn == part]
            if len(test) and len(own) > len(test):
                found = _surface(own[turn != part]).smooth_rates(_surface(test).grid)
                errors.extend(np.abs(found / test["tokens_per_second"].to_numpy() - 1.0).tolist())
    return float(np.median(errors))


def _without(frame: pd.DataFrame, gone: set[tuple[Any, ...]]) -> pd.DataFrame:
    """Return the rows of other families."""
    keys = zip(frame["model_name"], frame["method"], frame["tokens_per_sample"], strict=True)
    return frame[[key not in gone for key in keys]]


# ---
# A stream of jobs under every scheduler and every kind of knowledge: the unit of work of the cluster experiment (M9.5).

#: Prices of a GPU's time for the rule of M8.2, tried on separate streams; the price that is best on predictions is used.
ETAS: Final = (0.0, 2.0, 8.0, 32.0, float("inf"))
#: Share of the published runs that fail or are rejected: 67 % of full fine-tunings, 58 % of LoRA, 60 % of its quantised form.
PUBLISHED_FAILURES: Final = 0.62
#: First words of seeds: evaluated streams, streams on which eta is chosen, requests used for expectations.
JUDGED, CHOSEN_ON, EXPECTED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Settings shared by all streams: ``jobs`` jobs per stream, expectations over ``expected_over`` requests."""

    families: tuple[Family, ...]
    defaults: tuple[Default, ...]
    workload: WorkloadLaw
    cluster: Cluster
    jobs: int
    seed: int
    expected_over: int = 1500

    def oracle(self) -> tuple[Family, ...]:
        """Return every family with predictions equal to the true values."""
        return tuple(family.seen_by_oracle() for family in self.families)

    def imagined(self) -> tuple[Family, ...]:
        """Return every family with true values equal to the predictions."""
        return tuple(family.as_believed() for family in self.families)

    def expected_requests(self) -> list[Request]:
        """Return requests for expectations: families equally often, all of the mean size because time is linear in size."""
        families, tokens = len(self.families), self.workload.mean_tokens
        return [
            Request(family=k % families, tokens=tokens, arrival=0.0, seed=(self.seed, EXPECTED, k))
            for k in range(self.expected_over)
        ]

    def requests(self, use: int, number: int) -> list[Request]:
        """Return the requests of a stream."""
        return draw_requests(len(self.families), self.jobs, self.workload, seed=(self.seed, use, number))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSetting:
    """Default and load with the arrivals per second, the best etas for the model and the oracle, and the runs to make.

    Kinds: the user's "default"; "sensible", the default of the study's first user; "batch only"; "predicted"; "oracle".

    ``number`` is the number of the stream. ``cluster`` replaces the study's cluster. ``variant`` names the difference from the
    usual assumptions.
    """

    default: int
    load: float
    rate: float
    eta: float
    eta_oracle: float
    number: int = 0
    kinds: tuple[str, ...] = ("default", "predicted")
    schedulers: tuple[str, ...] = ("FIFO", "Sia-like")
    cluster: Cluster | None = None
    variant: str = ""


def default_mix(study: Study, default: Default) -> dict[str, float]:
    """Return the GPU seconds and failures per job of a default on an empty cluster, and its slowdown compared with predictions.

    ``slowdown`` is the mean time of the user's picks divided by that of the fastest predicted pick. ``slowdown_free`` is the
    same for the user's batch on the most GPUs that it runs on, the final choice of a scheduler that sets the GPUs and assumes
    perfect scaling. ``saturation`` is the result of `saturation`.
    """
    fastest = [known_attempts(family, 0.0) for family in study.families]
    held, failed, own, free, best = 0.0, 0, 0.0, 0.0, 0.0
    requests = study.expected_requests()
    for request in requests:
        family, tokens = study.families[request.family], request.tokens
        attempts = default_attempts(family, default, seed=request.seed)
        running = [a for a in default_options(family, default, seed=request.seed) if a.rate > 0]
        held += gpu_seconds(tokens, attempts, study.cluster)
        failed += len(attempts) - 1
        own += alone_s(tokens, attempts, study.cluster)
        free += alone_s(tokens, [max(running, key=lambda a: a.gpus)], study.cluster)
        best += alone_s(tokens, fastest[request.family], study.cluster)
    return {
        "gpu_seconds": held / len(requests),
        "failures": failed / len(requests),
        "slowdown": own / best,
        "slowdown_free": free / best,
        "saturation": saturation(study, default),
    }


def saturation(study: Study, default: Default) -> float:
    """Return the share of GPU time that FIFO allocates with default configurations while jobs always wait.

    At higher loads the queue grows without limit. Measured on a stream whose jobs all arrive at once, up to the last start.
    """
    requests = [replace(r, arrival=0.0) for r in study.requests(CHOSEN_ON, 0)]
    attempts = [default_attempts(study.families[r.family], default, seed=r.seed) for r in requests]
    run = simulate(stream(requests, attempts, rate=1.0), Fifo(), study.cluster)
    return held_share(run, 0.0, max(s.start_s for s in run.segments))


def alone_s(tokens: float, attempts: Sequence[Attempt], cluster: Cluster) -> float:
    """Return the time of a job on an empty cluster in seconds: failures, start-up and work."""
    return cluster.failure_s * (len(attempts) - 1) + cluster.start_up_s + tokens / attempts[-1].rate


def setting_of(item: tuple[int, float, float], study: Study) -> LoadSetting:
    """Return the setting of a default, a load and the default's GPU time per job: arrivals per second and the chosen etas."""
    default, load, gpu_time_s = item
    rate = load * study.cluster.gpus / gpu_time_s
    return LoadSetting(
        default=default, load=load, rate=rate,
        eta=best_eta(study, study.imagined(), rate), eta_oracle=best_eta(study, study.oracle(), rate),
    )  # fmt: skip


def best_eta(study: Study, families: Sequence[Family], rate: float, streams: int = 2) -> float:
    """Return the eta of least mean completion time under FIFO if these families were true; the least eta in a tie."""
    means = []
    for eta in ETAS:
        picks = [known_attempts(family, eta) for family in families]
        found = [
            _mean(requests, [picks[r.family] for r in requests], rate, study.cluster)
            for requests in (study.requests(CHOSEN_ON, k) for k in range(streams))
        ]
        means.append(float(np.mean(found)))
    return ETAS[int(np.argmin(means))]


def _mean(
    requests: Sequence[Request], attempts: Sequence[tuple[Attempt, ...]], rate: float, cluster: Cluster
) -> float:
    return metrics_of(simulate(stream(requests, attempts, rate=rate), Fifo(), cluster)).mean_s


def run_setting(setting: LoadSetting, study: Study) -> list[dict[str, Any]]:
    """Run a stream under the schedulers and kinds of the setting; return a row of metrics for each."""
    requests = study.requests(JUDGED, setting.number)
    cluster = setting.cluster or study.cluster
    rows = []
    for name in setting.schedulers:
        scheduler: Scheduler = Fifo() if name == "FIFO" else Sia()
        for kind in setting.kinds:
            pick = picker(study, setting, scheduler, kind)
            if pick is None:
                continue
            jobs = stream(requests, [pick(request) for request in requests], rate=setting.rate)
            found = asdict(metrics_of(simulate(jobs, scheduler, cluster)))
            rows.append(
                {
                    "variant": setting.variant, "default": study.defaults[setting.default].name, "load": setting.load,
                    "stream": setting.number,
                    "scheduler": scheduler.name, "knowledge": kind, **found,
                }
            )  # fmt: skip
    return rows


def picker(
    study: Study, setting: LoadSetting, scheduler: Scheduler, kind: str
) -> Callable[[Request], tuple[Attempt, ...]] | None:
    """Return the function request -> attempts for a kind of knowledge.

    The result is None for "batch only" with a scheduler that sets the GPUs.
    """
    default = study.defaults[0 if kind == "sensible" else setting.default]
    families = study.oracle() if kind == "oracle" else study.families
    sets_gpus = scheduler.round_s is not None
    if kind in ("default", "sensible"):
        choose = default_options if sets_gpus else default_attempts
        return lambda r: choose(families[r.family], default, seed=r.seed)
    if kind == "batch only":
        if sets_gpus:
            return None
        return lambda r: users_widths(families[r.family], default, seed=r.seed)
    eta = setting.eta_oracle if kind == "oracle" else setting.eta
    known = [known_options(f) if sets_gpus else known_attempts(f, eta) for f in families]
    return lambda r: known[r.family]


def full_rate(study: Study, load: float) -> float:
    """Return the arrivals per second at which jobs with predicted configurations, fastest first, need ``load`` of the cluster."""
    fastest = [known_attempts(family, 0.0) for family in study.families]
    held = [gpu_seconds(r.tokens, fastest[r.family], study.cluster) for r in study.expected_requests()]
    return load * study.cluster.gpus / float(np.mean(held))


def run_partial(item: tuple[float, int], shared: tuple[Study, float]) -> dict[str, Any]:
    """Run a stream with job order by partial predictions (M10) on the cluster, for a share of jobs of known size.

    ``shared`` contains the study and the arrivals per second. All jobs use predicted configurations. The predicted time of a job
    is its tokens divided by the predicted rate, so its error is that of the throughput model. A negative share runs FIFO.
    """
    share, number = item
    study, rate = shared
    requests = study.requests(JUDGED, number)
    known = np.random.default_rng([study.seed, 7, number]).permutation(len(requests)) < round(
        share * len(requests)
    )
    attempts = [known_attempts(study.families[r.family], 0.0) for r in requests]
    jobs = [
        replace(job, predicted_work=job.work if k else None)
        for job, k in zip(stream(requests, attempts, rate=rate), known, strict=True)
    ]
    scheduler: Scheduler = Fifo() if share < 0 else PartialOrder()
    found = metrics_of(simulate(jobs, scheduler, study.cluster))
    return {"share": share, "stream": number, **asdict(found)}


def usual_defaults(shares: tuple[tuple[int, float], ...]) -> tuple[Default, ...]:
    """Return the kinds of users without a model, with ``shares`` of GPUs as measured.

    The first is the sensible user of the headline; the second draws at random and is compared with the poster's figures.
    """
    return (
        Default(name="a node, 8 a GPU", shares=((8, 1.0),), habit=BatchHabit.EIGHT),
        Default(name="grid", shares=shares, habit=BatchHabit.GRID),
        Default(
            name="grid, fails as published", shares=shares, habit=BatchHabit.GRID, failing=PUBLISHED_FAILURES
        ),
        Default(name="8 a GPU", shares=shares, habit=BatchHabit.EIGHT),
        Default(name="1 a GPU", shares=shares, habit=BatchHabit.ONE),
        Default(name="a node, 1 a GPU", shares=((8, 1.0),), habit=BatchHabit.ONE),
        Default(name="one GPU, 1 a GPU", shares=((1, 1.0),), habit=BatchHabit.ONE),
    )


# The JSON object of the cluster experiment (M9.5): reductions with intervals, compared with the poster's, and sensitivities.

#: Reductions of mean completion time that the CoTune poster reports.
POSTER: Final = {"FIFO": 0.78, "Sia-like": 0.70}
#: Kinds of knowledge that are compared with the user's default.
REDUCED: Final = ("batch only", "sensible", "predicted", "oracle")
#: Key of a default's slowdown that applies under each scheduler.
SLOWDOWN: Final = {"FIFO": "slowdown", "Sia-like": "slowdown_free"}
MEASURES: Final = tuple(name for name in Metrics.__dataclass_fields__ if name != "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRuns:
    """All runs: rows of `run_setting` and `run_partial`, and the rows of the single machine."""

    study: Study
    knowledge: KnownShare
    mixes: Mapping[str, Mapping[str, float]]
    settings: Sequence[LoadSetting]
    rows: pd.DataFrame
    cluster_order: pd.DataFrame
    cluster_order_load: float
    machine_order: pd.DataFrame


def cluster_answer(ran: ClusterRuns, *, data: str, fast: bool) -> dict[str, Any]:
    """Return the result of ``slackwater experiment cluster --json``."""
    main, drawn = (default.name for default in ran.study.defaults[:2])
    usual, random = (
        ran.rows[(ran.rows["variant"] == "") & (ran.rows["default"] == name)] for name in (main, drawn)
    )
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
        "default": main,
        "headline": headline(usual),
        "reductions": reduction_rows(usual, ran.mixes[main]),
        "runs": mean_rows(usual),
        "poster": {
            "default": drawn,
            "reported": POSTER,
            "headline": headline(random),
            "reductions": reduction_rows(random, ran.mixes[drawn]),
            "runs": mean_rows(random),
        },
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
    """Return, for each scheduler and load of ``rows`` (one default, ``mix``), reductions by kind of knowledge, paired by stream.

    ``default_keeps_up``: the load is below the share that FIFO can allocate with this default (`saturation`).
    """
    made = []
    for scheduler in dict.fromkeys(rows["scheduler"]):
        for load in sorted(set(rows["load"])):
            default = _by_stream(rows, scheduler, load, "default")
            row: dict[str, Any] = {"scheduler": scheduler, "load": load}
            for kind in REDUCED:
                other = _by_stream(rows, scheduler, load, kind)
                if len(other):
                    mean, low, high = reduction_interval(default, other)
                    key = kind.replace(" ", "_")
                    row[key], row[f"{key}_interval"] = mean, [low, high]
            at = (rows["scheduler"] == scheduler) & (rows["load"] == load) & (rows["knowledge"] == "default")
            row["default_utilisation"] = float(rows[at]["utilisation"].mean())
            row["default_keeps_up"] = bool(scheduler != "FIFO" or load < mix["saturation"])
            made.append(row)
    return made


def headline(rows: pd.DataFrame) -> dict[str, Any]:
    """Return each scheduler's reduction over all loads.

    Loads are averaged within a stream first, so that streams stay independent.
    """
    made = {}
    for scheduler in dict.fromkeys(rows["scheduler"]):
        loads = sorted(set(rows["load"]))
        own: dict[str, Any] = {"loads": loads}
        for kind in ("sensible", "predicted", "oracle"):
            if kind not in set(rows["knowledge"]):
                continue
            default, other = (
                np.array([_by_stream(rows, scheduler, load, k) for load in loads]) for k in ("default", kind)
            )
            mean, low, high = reduction_interval(default, other)
            own[kind], own[f"{kind}_interval"] = mean, [low, high]
        made[scheduler] = own
    return made


def mean_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return means over streams of every metric, by scheduler, load and knowledge."""
    grouped = (
        rows.groupby(["scheduler", "load", "knowledge"], sort=False)[list(MEASURES)].mean().reset_index()
    )
    return [{str(k): v for k, v in row.items()} for row in grouped.to_dict("records")]


def sensitivity_rows(ran: ClusterRuns) -> list[dict[str, Any]]:
    """Return the reduction by default; ``slowdown`` is its time on an empty cluster divided by that of the predicted pick.

    Under Sia-like, the slowdown is that of the user's batch on the most GPUs that it runs on.
    """
    made = []
    for default in ran.study.defaults:
        rows = ran.rows[(ran.rows["variant"] == "") & (ran.rows["default"] == default.name)]
        for row in reduction_rows(rows, ran.mixes[default.name]):
            keys = ("scheduler", "load", "predicted", "predicted_interval", "default_keeps_up")
            slowdown = ran.mixes[default.name][SLOWDOWN[row["scheduler"]]]
            made.append(
                {"default": default.name, "slowdown": slowdown, **{key: row[key] for key in keys}}
                | {"poster": POSTER[row["scheduler"]]}
            )
    return made


def variant_rows(ran: ClusterRuns) -> list[dict[str, Any]]:
    """Return the reduction under alternative assumptions, for the default of the headline."""
    made = []
    mix = ran.mixes[ran.study.defaults[0].name]
    for variant in dict.fromkeys(ran.rows["variant"]):
        if variant:
            for row in reduction_rows(ran.rows[ran.rows["variant"] == variant], mix):
                keys = ("scheduler", "load", "predicted", "predicted_interval")
                made.append({"variant": variant, **{key: row[key] for key in keys}})
    return made


def machine_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the mean completion time on a single machine relative to the best possible, by share and error of predictions."""
    made = []
    for (error, share), own in rows.groupby(["error", "share"], sort=True):
        mean, low, high = mean_interval(own["ratio"].tolist())
        made.append(
            {"error": float(str(error)), "share": float(str(share)), "ratio": mean, "interval": [low, high]}
        )
    return made


def order_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the mean completion time on the cluster relative to FIFO, by share of jobs of predicted size."""
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
    """Return sentences on the gain from knowledge for a sensible user, and on where the poster's reductions are reached."""
    made = [_added(answer, scheduler) for scheduler in answer["headline"]]
    split = [r for r in answer["reductions"] if "batch_only" in r]
    if split:
        made.append(
            "Under FIFO the batch alone, on the GPUs that the user asked for, cuts it by "
            + ", ".join(f"{r['batch_only']:.0%} at load {r['load']:g}" for r in split)
            + "; the rest comes from the number of GPUs. Sia sets that number itself, so there it is not to be gained."
        )
    for scheduler in answer["poster"]["headline"]:
        made += [_beside_poster(answer, scheduler), _needed(answer, scheduler)]
    for name, found in ((answer["default"], answer), (answer["poster"]["default"], answer["poster"])):
        behind = [r["load"] for r in found["reductions"] if not r["default_keeps_up"]]
        if behind:
            mix = next(d for d in answer["defaults"] if d["default"] == name)
            made.append(
                f"FIFO keeps no more than {mix['saturation']:.0%} of the GPUs busy with the configurations of the user "
                f"'{name}': jobs at the head wait while GPUs idle. At loads of {_listed(behind)} its queue grows with the "
                "length of the stream, and so does the reduction: there the figure says above all how long the stream is."
            )
    return made


def _added(answer: Mapping[str, Any], scheduler: str) -> str:
    """Return the sentence on the gain from knowledge for the user of the headline."""
    own = answer["headline"][scheduler]
    at = [r["predicted"] for r in answer["reductions"] if r["scheduler"] == scheduler]
    return (
        f"{scheduler}: a sensible user takes a node of 8 GPUs with 8 samples a GPU, and halves them when that fails. To such a "
        f"user predicted configurations add a cut of the mean completion time by {own['predicted']:.1%} "
        f"({_percent(own['predicted_interval'], '.1%')}) on average "
        f"over loads of {own['loads'][0]:g} to {own['loads'][-1]:g}, {min(at):.0%} to {max(at):.0%} by load; one "
        f"who knew every configuration would get {own['oracle']:.1%}."
    )


def _beside_poster(answer: Mapping[str, Any], scheduler: str) -> str:
    """Return the comparison with users who draw at random: the rule of thumb alone, predictions, and the poster's figure."""
    found, poster = answer["poster"], answer["poster"]["reported"][scheduler]
    own = found["headline"][scheduler]
    rows = [r for r in found["reductions"] if r["scheduler"] == scheduler]
    reached = [r["load"] for r in rows if r["predicted"] >= poster]
    return (
        f"{scheduler}, beside users who draw configurations at random (the poster does not name its default): the rule of the "
        f"sensible user alone cuts the mean completion time by {own['sensible']:.0%} ({_percent(own['sensible_interval'])}), "
        f"predicted configurations by {own['predicted']:.0%} ({_percent(own['predicted_interval'])}); the poster says "
        f"{poster:.0%}, " + (f"reached at loads of {_listed(reached)}." if reached else "reached at no load.")
    )


def _needed(answer: Mapping[str, Any], scheduler: str) -> str:
    poster = POSTER[scheduler]
    reaching = [
        f"{r['default']} at {r['load']:g}"
        for r in answer["sensitivity"]
        if r["scheduler"] == scheduler and r["predicted"] >= poster
    ]
    takes = {d["default"]: d[SLOWDOWN[scheduler]] for d in answer["defaults"]}
    return (
        f"{scheduler}: on an empty cluster a reduction of {poster:.0%} needs defaults that take {1 / (1 - poster):.1f} times as "
        f"long as the predicted pick; what the sensible user picks takes {takes[answer['default']]:.1f} times as long, what is "
        f"drawn at random {takes[answer['poster']['default']]:.1f} times"
        + (" on the GPUs that Sia gives it" if scheduler != "FIFO" else "")
        + ". Of all defaults and loads tried it is "
        + (f"reached by: {'; '.join(reaching)}." if reaching else "reached by none.")
    )


def notes(answer: Mapping[str, Any]) -> list[str]:
    """Return notes on assumptions, synthetic parts, and the quality of true rates and predictions."""
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
        "hangs on them is shown. Loads are in the GPU time of the user's own configurations, so a load of the sensible user is "
        "more jobs than the same load of one that draws at random.",
    ]


def _listed(loads: Sequence[float]) -> str:
    return ", ".join(f"{load:g}" for load in dict.fromkeys(loads))


# ``slackwater experiment cluster``: completion times on a shared cluster, configurations by default and predicted (M9.5).

#: Load for comparing job orders with partially predicted sizes: at low load the order does not matter.
ORDER_LOAD = 0.9
#: Prediction errors on the single machine: sigma of the log.
ERRORS = (0.0, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyScale:
    """Size of the experiment: jobs per stream, streams, loads, and smaller values for results other than the headline."""

    jobs: int = 500
    streams: int = 10
    loads: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    side_streams: int = 5
    side_loads: tuple[float, ...] = (0.5, 0.7, 0.9)
    folds: int = 5
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    machines: int = 100
    expected_over: int = 1500


FULL = StudyScale()
FAST = StudyScale(
    jobs=150, streams=3, loads=(0.5, 0.7, 0.9), side_streams=3, side_loads=(0.7,), folds=2, shares=(0.0, 0.5, 1.0), machines=20
)  # fmt: skip


def fit_published(folder: Path, seed: int) -> ConfigurationPredictor:
    """Return the configuration model fitted on a folder of runs."""
    from slackwater.forecasting.configurations.model import fit_configurations

    return fit_configurations(folder, seed=seed)


def run_cluster(
    knowledge: KnownShare,
    *,
    scale: StudyScale,
    seed: int,
    processes: int = 1,
    progress: Progress | None = None,
) -> ClusterRuns:
    """Simulate every stream under every scheduler and kind of knowledge; the result does not depend on ``processes``."""
    study = Study(
        families=knowledge.families,
        defaults=usual_defaults(knowledge.shares),
        workload=WorkloadLaw(),
        cluster=Cluster(),
        jobs=scale.jobs,
        seed=seed,
        expected_over=scale.expected_over,
    )
    mixes = {default.name: default_mix(study, default) for default in study.defaults}
    wanted = [
        (d, load, mixes[default.name]["gpu_seconds"])
        for d, default in enumerate(study.defaults)
        for load in (scale.loads if d in KINDS_RUN else scale.side_loads)
    ]
    settings = list(fan_out(setting_of, wanted, study, processes=processes))
    rows = fan_out(run_setting, items_of(settings, scale), study, processes=processes, progress=progress)
    table = pd.DataFrame([row for own in rows for row in own])
    larger = [row for own in wider_rows(study, scale, processes) for row in own]
    rate = full_rate(study, ORDER_LOAD)
    order = [(share, k) for share in (-1.0, *scale.shares) for k in range(scale.side_streams)]
    return ClusterRuns(
        study=study,
        knowledge=knowledge,
        mixes=mixes,
        settings=settings,
        rows=pd.concat([table, pd.DataFrame(larger)], ignore_index=True),
        cluster_order=pd.DataFrame(list(fan_out(run_partial, order, (study, rate), processes=processes))),
        cluster_order_load=ORDER_LOAD,
        machine_order=machine_order(scale, seed=seed),
    )


#: Kinds of knowledge run for the sensible user and for the user who draws at random.
KINDS_RUN: Final = {
    0: ("default", "batch only", "predicted", "oracle"),
    1: ("default", "sensible", "predicted", "oracle"),
}


def items_of(settings: Sequence[LoadSetting], scale: StudyScale) -> list[LoadSetting]:
    """Return an item per stream: all kinds for the first two defaults, default and predicted for the others.

    Items with costly failures follow.
    """
    items: list[LoadSetting] = []
    for setting in settings:
        if setting.default in KINDS_RUN:
            kinds = KINDS_RUN[setting.default]
            items.extend(replace(setting, number=k, kinds=kinds) for k in range(scale.streams))
        else:
            items.extend(replace(setting, number=k) for k in range(scale.side_streams))
    middle = next(s for s in settings if s.default == 0 and s.load == 0.7)
    items.extend(
        replace(middle, number=k, cluster=Cluster(failure_s=1800.0), variant="a failure takes 30 minutes")
        for k in range(scale.side_streams)
    )
    return items


def wider_rows(study: Study, scale: StudyScale, processes: int) -> list[list[dict[str, Any]]]:
    """Return the rows for other job sizes at load 0.7: a tenth of the tokens, and a wider spread."""
    rows: list[list[dict[str, Any]]] = []
    for name, workload in (
        ("a tenth of the tokens", WorkloadLaw(median_tokens=2e6)),
        ("sizes spread wider (sigma 1.5)", WorkloadLaw(sigma=1.5)),
    ):
        other = replace(study, workload=workload)
        held = default_mix(other, other.defaults[0])["gpu_seconds"]
        setting = replace(setting_of((0, 0.7, held), other), variant=name)
        items = [replace(setting, number=k) for k in range(scale.side_streams)]
        rows.extend(fan_out(run_setting, items, other, processes=processes))
    return rows


def machine_order(scale: StudyScale, *, seed: int) -> pd.DataFrame:
    """Return mean completion times of 50 simultaneous lognormal jobs on one machine relative to the best possible.

    The rows vary the share and the error of predictions.
    """
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
    """Compare default and predicted configurations on a shared cluster."""
    folder, seed = finetune_folder(study.data), study.seed
    scale = FAST if study.fast else FULL
    say(f"predict every family of {folder} from the others")
    with progress("models", lines=True) as told:
        knowledge = learn(folder, fit_published, seed=seed, folds=scale.folds, progress=told)
    say("simulate the cluster")
    workers = study.workers(processes)
    with progress("streams", lines=True) as told:
        ran = run_cluster(knowledge, scale=scale, seed=seed, processes=workers, progress=told)
    return cluster_report(cluster_answer(ran, data=str(study.data), fast=study.fast))


#: Display names of the kinds of knowledge, in the order of their lines.
KINDS = {
    "predicted": "batch and GPUs predicted", "oracle": "oracle", "batch only": "batch predicted",
    "sensible": "a node, 8 a GPU",
}  # fmt: skip
SYNTHETIC = (
    "Whether a configuration that was not measured runs is the label of a published classifier; job sizes, arrivals and the "
    "users' habits are drawn."
)


def cluster_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: reductions compared with the poster's, their sensitivity to the default, and job order."""
    c, w = answer["cluster"], answer["workload"]
    return Answer(
        title="Configuration knowledge on a shared cluster (M9.5)",
        about=(
            ("A quick look, not a result. " if answer["fast"] else "")
            + f"{answer['streams']} Poisson streams of {answer['jobs']} fine-tuning jobs, seed {answer['seed']}, on "
            f"{c['nodes']} nodes of {c['gpus_per_node']} A100-80GB, rates measured ({answer['data']}). The tokens of a job "
            f"are lognormal (median {w['median_tokens'] / 1e6:g} million, sigma {w['sigma']:g}). Load is the GPU time that "
            "the jobs need with default configurations over what there is. Intervals are 95 %, by Student's t over paired "
            "streams."
        ),
        value=answer,
        banner=Banner("Partly synthetic.", SYNTHETIC),
        blocks=[
            *_reductions(answer),
            _badness(answer),
            _users(answer),
            _times(answer),
            _variants(answer),
            _order(answer),
        ],
        notes=answer["notes"],
    )


def _percent(interval: Sequence[float], form: str = ".0%") -> str:
    return interval_words(interval[0], interval[1], form)


def _with_interval(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for a table, with the interval of the reduction as text."""
    return [{**row, "interval": _percent(row["predicted_interval"])} for row in rows]


def _points(
    rows: Sequence[Mapping[str, Any]], series: str, *, x: str, y: str, of: str, times: float = 100.0
) -> list[dict[str, Any]]:
    """Return the points of a line with intervals, in percent."""
    return [
        {
            "x": row[x], "y": times * row[y], "low": times * row[of][0], "high": times * row[of][1], "series": series,
        }
        for row in rows
    ]  # fmt: skip


def _scheduler_figure(scheduler: str, poster: float, spec: Mapping[str, Any], label: str) -> Figure:
    title = f"{scheduler} (poster: {poster:.0%}, dashed)"
    return Figure(specs=[spec], label=f"{label}, {scheduler}", title=title, width=0)


def _reductions(answer: Mapping[str, Any]) -> list[Section]:
    """Return sections on the gain for the sensible user, and on users who draw at random, with the poster's figures."""
    found, reported = answer["poster"], answer["poster"]["reported"]
    first = 1 + len(answer["headline"])
    told = answer["claims"]
    return [
        Section(
            "What knowledge adds to a sensible user",
            [*told[:first], *_by_load(answer, "Reduction against the sensible user's time", {})],
            "reductions",
        ),
        Section(
            "The poster's setting: users who draw at random",
            [*told[first:], *_by_load(found, "Reduction against configurations drawn at random", reported)],
            "poster",
        ),
    ]


def _by_load(found: Mapping[str, Any], label: str, reported: Mapping[str, float]) -> list[Any]:
    """Return a chart for each scheduler and the numbers; ``reported`` are the poster's figures, if they are to be shown."""
    loads = sorted({row["load"] for row in found["reductions"]})
    figures = []
    for scheduler in found["headline"]:
        rows = [r for r in found["reductions"] if r["scheduler"] == scheduler]
        drawn = {kind: key for kind in KINDS if (key := kind.replace(" ", "_")) in rows[0]}
        least = min(0.0, *(100 * row[f"{key}_interval"][0] for row in rows for key in drawn.values()))
        spec = lines(
            [
                point
                for kind, key in drawn.items()
                for point in _points(rows, KINDS[kind], x="load", y=key, of=f"{key}_interval")
            ],
            [KINDS[kind] for kind in drawn], order=list(KINDS.values()), spans=True,
            rule=100 * reported[scheduler] if scheduler in reported else None,
            x=Axis(title="load", at=loads, zero=False, format="~g"),
            y=Axis(title="reduction of mean completion time, %", low=least, high=100 if reported else None),
        )  # fmt: skip
        title = f"{scheduler} (poster: {reported[scheduler]:.0%}, dashed)" if reported else scheduler
        figures.append(Figure(specs=[spec], label=f"{label} by load, {scheduler}", title=title, width=0))
    columns = {
        "scheduler": "Scheduler", "load": "Load", "batch_only": "Batch predicted", "sensible": "A node, 8 a GPU",
        "predicted": "Batch and GPUs predicted", "interval": "95 %", "oracle": "Oracle",
        "default_utilisation": "GPUs held by default", "default_keeps_up": "Default keeps up",
    }  # fmt: skip
    columns = {k: v for k, v in columns.items() if k == "interval" or k in found["reductions"][0]}
    return [
        Figures(figures),
        Fold("Numbers", [numbers(columns, _with_interval(found["reductions"]), digits=3)], printed=True),
    ]


def _badness(answer: Mapping[str, Any]) -> Section:
    main = (answer["default"], answer["poster"]["default"])
    shown = sorted({r["load"] for r in answer["sensitivity"] if r["default"] not in main})
    empty, figures = "empty cluster", []
    for scheduler, poster in answer["poster"]["reported"].items():
        rows = sorted(
            (r for r in answer["sensitivity"] if r["scheduler"] == scheduler and r["load"] in shown),
            key=lambda r: r["slowdown"],
        )
        right = 1.08 * max(r["slowdown"] for r in rows)
        curve = [
            {"x": x, "y": 100 * (1 - 1 / x), "series": empty, "point": False}
            for x in np.linspace(1.0, right, 80)
        ]
        points = [
            point
            for load in shown
            for point in _points(
                [r for r in rows if r["load"] == load], f"load {load:g}", x="slowdown", y="predicted",
                of="predicted_interval",
            )
        ]  # fmt: skip
        spec = lines(
            [*curve, *points], [empty, *(f"load {load:g}" for load in shown)], spans=True, reference=empty,
            rule=100 * poster,
            x=Axis(title="time of the default over that of the predicted pick", low=1, high=right),
            y=Axis(title="reduction of mean completion time, %", low=0, high=100),
        )  # fmt: skip
        figures.append(_scheduler_figure(scheduler, poster, spec, "Reduction against how bad the default is"))
    columns = {
        "default": "Default", "slowdown": "Times the predicted pick's time", "scheduler": "Scheduler", "load": "Load",
        "predicted": "Reduction", "interval": "95 %", "poster": "Poster", "default_keeps_up": "Default keeps up",
    }  # fmt: skip
    table = numbers(columns, _with_interval(answer["sensitivity"]), digits=3)
    return Section(
        "How bad the default has to be",
        [
            "Nobody says what the poster's default is. Seven kinds of users are tried (the next table), each at loads of their "
            "own; a dot is one kind of user. The thin curve is what an empty cluster would give, 1 - 1/x; above it the rest is due "
            "to shorter queues.",
            Figures(figures),
            Fold("Numbers", [table], printed=True),
        ],
        "defaults",
    )


def _users(answer: Mapping[str, Any]) -> Section:
    columns = {
        "default": "Users", "batch": "Samples a step", "slowdown": "Times the predicted pick's time",
        "free": "Once Sia sets the GPUs",
        "failures": "Failures a job", "hours": "GPU-hours a job", "saturation": "GPUs that FIFO keeps busy",
    }  # fmt: skip
    rows = [{**d, "free": d["slowdown_free"], "hours": d["gpu_seconds"] / 3600} for d in answer["defaults"]]
    return Section(
        "What unknowing users do",
        [
            "The first row is the sensible user of the headline, the second draws at random. GPUs are asked for as often as they "
            "were measured (1, 2, 4, 8), but for the first and the last two rows. What FIFO keeps busy is the share of GPU time "
            "held while jobs always wait: more load piles up.",
            numbers(columns, rows, digits=2),
        ],
        "users",
    )


def _times(answer: Mapping[str, Any]) -> Section:
    hours = ("mean_s", "waiting_s", "p50_s", "p99_s", "makespan_s")
    rows = [
        {**r, **{key: r[key] / 3600 for key in hours}}
        for r in sorted(answer["runs"], key=lambda r: (r["load"], r["scheduler"]))
    ]
    columns = {
        "load": "Load", "scheduler": "Scheduler", "knowledge": "Configurations", "mean_s": "Mean, h", "waiting_s": "Waiting, h",
        "p50_s": "Median, h", "p99_s": "99 %, h", "makespan_s": "Makespan, h", "utilisation": "GPUs held",
        "restarts": "Restarts a job", "failed_starts": "Failed starts a job", "gpu_hours": "GPU-hours",
    }  # fmt: skip
    return Section(
        "Completion times and what else was measured",
        [
            "Means over the streams; GPUs held are the share of GPU time held until the last job came.",
            numbers(columns, rows, digits=2),
        ],
        "times",
    )


def _variants(answer: Mapping[str, Any]) -> Section:
    columns = {
        "variant": "What differs", "scheduler": "Scheduler", "load": "Load", "predicted": "Reduction", "interval": "95 %",
    }  # fmt: skip
    return Section(
        "Other assumptions",
        [
            "The users of the headline; what is not named is as above.",
            numbers(columns, _with_interval(answer["variants"]), digits=3),
        ],
        "assumptions",
    )


def _order(answer: Mapping[str, Any]) -> Section:
    own = answer["order"]
    errors = sorted({r["error"] for r in own["machine"]})
    machine = [
        point
        for error in errors
        for point in _points(
            [r for r in own["machine"] if r["error"] == error], f"error {error:g}", x="share", y="ratio", of="interval",
            times=1.0,
        )
    ]  # fmt: skip
    spec = lines(
        machine, [f"error {error:g}" for error in errors], spans=True,
        x=Axis(title="share of jobs whose size is predicted"),
        y=Axis(title="mean completion time over the best possible", zero=False),
    )  # fmt: skip
    ends = {r["error"]: r["ratio"] for r in own["machine"] if r["share"] == 1.0}
    first, last = own["cluster"][0], own["cluster"][-1]
    columns = {
        "share": "Share predicted", "ratio_to_fifo": "Mean over FIFO's", "interval": "95 %", "p99_h": "99 %, h",
        "restarts": "Restarts a job",
    }  # fmt: skip
    rows = [
        {**r, "interval": _percent(r["interval"], ".2f"), "p99_h": r["p99_s"] / 3600} for r in own["cluster"]
    ]
    return Section(
        "Job order when only some sizes are predicted (M10)",
        [
            "Unpredicted jobs share in round robin, predicted ones run shortest first once the others have had as much; a job "
            "that outlives its prediction joins the round robin. The setting is that of non-clairvoyant scheduling with partial "
            "predictions (2024), the rule is ours. The drawing: 50 jobs at once on one machine, lognormal sizes, mean completion "
            f"time over the best possible. With no prediction it is {own['machine'][0]['ratio']:.2f}; with all predicted "
            + ", ".join(f"{ratio:.2f} at error {error:g}" for error, ratio in ends.items())
            + " (the sigma of the predictions' logarithm).",
            f"The table: the same rule in rounds of 300 s on the cluster, {own['load']:.0%} loaded by jobs with predicted "
            f"configurations. Against FIFO the mean changes by {first['ratio_to_fifo'] - 1:+.0%} with no job's size known and by "
            f"{last['ratio_to_fifo'] - 1:+.0%} with all of them, the predicted times being as wrong as the throughput model.",
            Figure(specs=[spec], label="Mean completion time by share of predicted jobs", width=620),
            numbers(columns, rows, digits=3),
        ],
        "order",
    )
