"""One stream of jobs under every scheduler and every kind of knowledge: the piece of work of the experiment on a cluster (M9.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from optimization.cluster.schedulers.fifo import Fifo
from optimization.cluster.schedulers.partial import PartialOrder
from optimization.cluster.schedulers.sia import Sia
from optimization.cluster.simulation import Attempt, Cluster, Scheduler, held_share, metrics_of, simulate
from optimization.cluster.stream import (
    BatchHabit,
    Default,
    Family,
    Request,
    Workload,
    default_attempts,
    default_options,
    draw_requests,
    gpu_seconds,
    known_attempts,
    known_options,
    stream,
    users_widths,
)

#: Prices of a GPU's time that the rule of M8.2 is tried with on streams of their own; the best on predictions is taken.
ETAS: Final = (0.0, 2.0, 8.0, 32.0, float("inf"))
#: Share of the published runs that fail or are rejected: 67 % of full fine-tunings, 58 % of LoRA, 60 % of its quantised form.
PUBLISHED_FAILURES: Final = 0.62
#: First words of seeds: streams that are judged, streams that eta is chosen on, requests behind expectations.
JUDGED, CHOSEN_ON, EXPECTED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What all streams share; a stream has ``jobs`` jobs, an expectation is taken over ``expected_over``."""

    families: tuple[Family, ...]
    defaults: tuple[Default, ...]
    workload: Workload
    cluster: Cluster
    jobs: int
    seed: int
    expected_over: int = 1500

    def oracle(self) -> tuple[Family, ...]:
        """Every family as one who knows all sees it."""
        return tuple(family.seen_by_oracle() for family in self.families)

    def imagined(self) -> tuple[Family, ...]:
        """Every family as if the predictions were true."""
        return tuple(family.as_believed() for family in self.families)

    def expected_requests(self) -> list[Request]:
        """Requests behind expectations: every family equally often, each of the mean size, since time is linear in size."""
        families, tokens = len(self.families), self.workload.mean_tokens
        return [
            Request(family=k % families, tokens=tokens, arrival=0.0, seed=(self.seed, EXPECTED, k))
            for k in range(self.expected_over)
        ]

    def requests(self, use: int, number: int) -> list[Request]:
        """The requests of one stream."""
        return draw_requests(len(self.families), self.jobs, self.workload, seed=(self.seed, use, number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A default and a load: arrivals a second, the etas that are best for the model and for the oracle, and what is run there.

    ``number`` is that of the stream, ``cluster`` another one than the study's, ``variant`` the name of what differs.
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
    """A default alone on the cluster, over many requests: GPU seconds and failures a job, and how much slower than knowing it is.

    ``slowdown`` is the mean time of the user's picks over that of the fastest predicted one; ``slowdown_free`` the same of the
    user's batch on the most GPUs that it runs on, where a scheduler ends up that sets the GPUs and believes in perfect scaling.
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
    """The share of GPU time that FIFO keeps busy with default configurations while jobs always wait; loads beyond it pile up.

    Measured on a stream whose jobs all come at once, up to the last start.
    """
    requests = [replace(r, arrival=0.0) for r in study.requests(CHOSEN_ON, 0)]
    attempts = [default_attempts(study.families[r.family], default, seed=r.seed) for r in requests]
    run = simulate(stream(requests, attempts, rate=1.0), Fifo(), study.cluster)
    return held_share(run, 0.0, max(s.start_s for s in run.segments))


def alone_s(tokens: float, attempts: Sequence[Attempt], cluster: Cluster) -> float:
    """Time of a job on an empty cluster: failures, start-up and work."""
    return cluster.failure_s * (len(attempts) - 1) + cluster.start_up_s + tokens / attempts[-1].rate


def setting_of(item: tuple[int, float, float], study: Study) -> Setting:
    """Of a default, a load and the default's GPU time a job: the arrivals a second, and eta chosen on streams of their own."""
    default, load, gpu_time_s = item
    rate = load * study.cluster.gpus / gpu_time_s
    return Setting(
        default=default, load=load, rate=rate,
        eta=best_eta(study, study.imagined(), rate), eta_oracle=best_eta(study, study.oracle(), rate),
    )  # fmt: skip


def best_eta(study: Study, families: Sequence[Family], rate: float, streams: int = 2) -> float:
    """The eta of least mean completion time under FIFO if these families were true; the least of equals."""
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


def run_setting(setting: Setting, study: Study) -> list[dict[str, Any]]:
    """One stream under the schedulers and kinds of the setting: a row of metrics each."""
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
    study: Study, setting: Setting, scheduler: Scheduler, kind: str
) -> Callable[[Request], tuple[Attempt, ...]] | None:
    """Request -> attempts, for one kind of knowledge; None where a scheduler that sets the GPUs makes two kinds one."""
    default = study.defaults[setting.default]
    families = study.oracle() if kind == "oracle" else study.families
    sets_gpus = scheduler.round_s is not None
    if kind == "default":
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
    """Arrivals a second at which jobs with predicted configurations, the fastest first, need ``load`` of the cluster."""
    fastest = [known_attempts(family, 0.0) for family in study.families]
    held = [gpu_seconds(r.tokens, fastest[r.family], study.cluster) for r in study.expected_requests()]
    return load * study.cluster.gpus / float(np.mean(held))


def run_partial(item: tuple[float, int], shared: tuple[Study, float]) -> dict[str, Any]:
    """Job order by partial predictions (M10) on the cluster: one share of jobs of known size, one stream.

    ``shared`` has the arrivals a second. All run with predicted configurations. The predicted time of a job is its tokens over
    the predicted rate, so its error is that of the throughput model. A negative share stands for FIFO.
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
    """The kinds of unknowing users, ``shares`` of GPUs as measured; the first is the one of the headline."""
    return (
        Default(name="grid", shares=shares, habit=BatchHabit.GRID),
        Default(
            name="grid, fails as published", shares=shares, habit=BatchHabit.GRID, failing=PUBLISHED_FAILURES
        ),
        Default(name="8 a GPU", shares=shares, habit=BatchHabit.EIGHT),
        Default(name="1 a GPU", shares=shares, habit=BatchHabit.ONE),
        Default(name="a node, 1 a GPU", shares=((8, 1.0),), habit=BatchHabit.ONE),
        Default(name="one GPU, 1 a GPU", shares=((1, 1.0),), habit=BatchHabit.ONE),
    )
