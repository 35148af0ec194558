"""Utility under forecast errors: of a known size (``slackwater experiment error``, E2), and of issued forecasts (M6.8, M7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Figure, Figures, Fold, Section, Table, numbers
from slackwater.flows.show.charts import Axis, lines, scatter
from slackwater.optimization.market.window import PointForecast
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.policies.reactive import Ahanp
from slackwater.optimization.replay.run import PlanMemo
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.experiments.material import Progress, make_scenarios, read_tapes, run_pool
from slackwater.studies.experiments.perturbation import (
    SIZES,
    Growth,
    Law,
    draw_noise,
    perturbed_count,
    perturbed_price,
)
from slackwater.studies.experiments.pool import family_of, ideas_and_rules, robustness_of_ideas, tradeoff_rows
from slackwater.studies.experiments.study import StudyOptions, join_banner, join_note
from slackwater.studies.replays import replay_pool
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import Grid, Scenario, blocks_of

#: Windows of the experiment; commitments are all values up to the window, or with ``--fast`` 1 and the window.
OMEGAS = (1, 2, 3, 4, 5)
#: Price threshold of AHAP: it uses all spot that is not nearly as expensive as on-demand.
SIGMA = 0.9
SIGMAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PER_CELL, FAST_PER_CELL = 3, 1
#: Number of lead times with errors: no window of the experiment is longer.
STEPS = max(OMEGAS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of error: its dependence on the lead time, and its distribution."""

    growth: Growth
    distribution: Law

    @property
    def name(self) -> str:
        """Name such as ``fixed, uniform``."""
        return f"{self.growth.value}, {self.distribution.value.replace('_', ' ')}"


KINDS = tuple(Kind(growth=growth, distribution=distribution) for growth in Growth for distribution in Law)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPlan:
    """Settings for every job: AHAP policies, kinds and sizes of error, seed of the errors, and other policies ``beside``."""

    policies: tuple[Ahap, ...]
    kinds: tuple[Kind, ...]
    sizes: tuple[float, ...]
    seed: int
    beside: tuple[Policy[Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRun:
    """Utilities in units of each job's OD-only cost: ``utility`` (jobs, kinds, sizes, policies), ``reactive`` (jobs,).

    The columns of ``plan.beside`` follow those of ``plan.policies``. ``synthetic`` is the number of jobs that pair the
    availability of a market with the prices of another (M7). ``blocks`` (jobs,) are the blocks for intervals.
    """

    plan: ErrorPlan
    utility: np.ndarray
    reactive: np.ndarray
    reactive_name: str
    synthetic: int
    blocks: np.ndarray


def shapes(fast: bool) -> tuple[tuple[int, int], ...]:
    """Return the (omega, v) of the experiment."""
    if fast:
        return tuple(dict.fromkeys((omega, v) for omega in (1, 3, 5) for v in (1, omega)))
    return tuple((omega, v) for omega in OMEGAS for v in range(1, omega + 1))


def wrong_forecasts(scenario: Scenario, kind: Kind, plan: ErrorPlan) -> list[list[PointForecast]]:
    """Return, for each size, the perfect forecasts of a job perturbed by the same errors times the size (M6.8).

    The errors depend only on the seed, the job's name and the kind. The capacity is the largest count the probe can observe.
    """
    truth = perfect_forecasts(scenario.window, STEPS)
    name = list(scenario.job.name.encode())
    rng = np.random.default_rng([plan.seed, KINDS.index(kind), *name])
    noise = draw_noise(len(truth), STEPS, growth=kind.growth, distribution=kind.distribution, rng=rng)
    p_o, capacity = scenario.window.on_demand_usd, int(scenario.draw.counts.bound)
    return [
        [
            PointForecast(
                price=perturbed_price(f.price, noise.price[t, : len(f.price)], size=size, on_demand_usd=p_o),
                available=perturbed_count(
                    f.available, noise.count[t, : len(f.price)], size=size, capacity=capacity
                ),
            )
            for t, f in enumerate(truth)
        ]
        for size in plan.sizes
    ]


def run_error(
    scenarios: Sequence[Scenario],
    plan: ErrorPlan,
    *,
    reactive: Ahanp,
    processes: int = 1,
    progress: Progress | None = None,
) -> ErrorRun:
    """Replay AHAP's (omega, v) on every job under every kind and size of error, and AHANP, which uses no forecast."""
    rows = list(fan_out(_utilities, scenarios, (plan, reactive), processes=processes, progress=progress))
    return ErrorRun(
        plan=plan,
        utility=np.array([row[0] for row in rows]),
        reactive=np.array([row[1] for row in rows]),
        reactive_name=reactive.name,
        synthetic=sum(scenario.draw.synthetic for scenario in scenarios),
        blocks=blocks_of(scenarios),
    )


def _utilities(scenario: Scenario, asked: tuple[ErrorPlan, Ahanp]) -> tuple[np.ndarray, float]:
    plan, reactive = asked
    memo = PlanMemo()
    table = []
    for kind in plan.kinds:
        made = [
            replay_pool(
                (*plan.policies, *plan.beside),
                scenario.job,
                scenario.window,
                forecasts=forecasts,
                memo=memo,
                record=scenario.record,
            )
            for forecasts in wrong_forecasts(scenario, kind, plan)
        ]
        table.append([[o.utility_usd / scenario.unit for o in outcomes] for outcomes in made])
    alone = replay_pool([reactive], scenario.job, scenario.window)[0]
    return np.array(table), alone.utility_usd / scenario.unit


def crossing(sizes: Sequence[float], utility: np.ndarray, level: float) -> float:
    """Return the least error size at which ``utility`` (sizes,) falls to ``level``, interpolated linearly between sizes.

    NaN if it stays above; the first size if it starts at or below.
    """
    below = np.flatnonzero(np.asarray(utility) <= level)
    if not len(below):
        return float("nan")
    i = int(below[0])
    if i == 0:
        return float(sizes[0])
    high, low = float(utility[i - 1]), float(utility[i])
    return float(sizes[i - 1] + (high - level) / (high - low) * (sizes[i] - sizes[i - 1]))


def error_answer(run: ErrorRun, *, data: str, seed: int) -> dict[str, Any]:
    """Return the JSON object of the experiment.

    ``curves``: for each kind of error and each (omega, v) the mean utility by size, the 95 % interval of its paired difference
    from the prediction-free policy (``ahead_interval``), and ``overtaken_at``, the size from which the prediction-free policy
    is better (null: never within the sizes). ``worse_than_one_slot_at`` is the same compared with AHAP(1,1), which plans only
    the present slot and so uses no forecast. ``robustness``: for each (omega, v) its consistency (utility at size 0) and
    robustness (its worst mean over kinds and sizes); ``published_ideas``: the same for the policies of M10.
    """
    rng = np.random.default_rng([seed, 4])
    mean = run.utility.mean(axis=0)
    flat = (run.utility - run.reactive[:, None, None, None]).reshape(len(run.utility), -1)
    low, high = (edge.reshape(mean.shape) for edge in resampled(flat, blocks=run.blocks, rng=rng).interval())
    level = float(run.reactive.mean())
    a, b = resampled(run.reactive[:, None], blocks=run.blocks, rng=rng).interval()
    one_slot = float(mean[0, 0, [policy.omega for policy in run.plan.policies].index(1)])
    curves = [
        {
            "growth": kind.growth.value,
            "distribution": kind.distribution.value,
            "omega": policy.omega,
            "v": policy.commitment,
            "mean_utility": mean[k, :, i].tolist(),
            "ahead_interval": np.stack([low[k, :, i], high[k, :, i]], axis=1).tolist(),
            "overtaken_at": crossing(run.plan.sizes, mean[k, :, i], level),
            "worse_than_one_slot_at": crossing(run.plan.sizes, mean[k, :, i], one_slot)
            if policy.omega > 1
            else float("nan"),
        }
        for k, kind in enumerate(run.plan.kinds)
        for i, policy in enumerate(run.plan.policies)
    ]
    robustness = [
        {
            "omega": policy.omega,
            "v": policy.commitment,
            "consistency": float(mean[0, 0, i]),
            "robustness": float(mean[:, :, i].min()),
        }
        for i, policy in enumerate(run.plan.policies)
    ]
    return {
        "data": data,
        "seed": seed,
        "jobs": len(run.utility),
        "blocks": len(set(run.blocks)),
        "synthetic_jobs": run.synthetic,
        "sizes": list(run.plan.sizes),
        "sigma": SIGMA,
        "policies": [policy.name for policy in run.plan.policies],
        "prediction_free": {
            "policy": run.reactive_name,
            "mean_utility": level,
            "interval": [float(a[0]), float(b[0])],
        },
        "curves": curves,
        "robustness": robustness,
        "published_ideas": robustness_of_ideas(run.plan.beside, run.utility[..., len(run.plan.policies) :]),
    }


def pools_ahap(wanted: Sequence[tuple[int, int]]) -> tuple[Ahap, ...]:
    """Return AHAP of these (omega, v) at `SIGMA` from the default pool, with the pool's end rule and method of committing."""
    pool = {(p.omega, p.commitment): p for p in load_pool() if isinstance(p, Ahap) and p.sigma == SIGMA}
    return tuple(pool[shape] for shape in wanted)


def error_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """Run E2 on a folder."""
    seed, fast = study.seed, study.fast
    say(f"read {study.data}")
    tapes = read_tapes(study.data)
    per_cell = FAST_PER_CELL if fast else PER_CELL
    with progress("draw jobs", lines=True) as told:
        train, test = (
            make_scenarios(tapes, grid=Grid(), part=part, per_cell=per_cell, seed=seed, planner="last_value", progress=told)
            for part in ("train", "test")
        )  # fmt: skip
    learned = run_pool(train, [Ahanp(sigma=sigma) for sigma in SIGMAS], processes=1)
    reactive = Ahanp(sigma=SIGMAS[int(learned.relative.mean(axis=0).argmax())])
    plan = ErrorPlan(
        policies=pools_ahap(shapes(fast)), kinds=KINDS, sizes=SIZES, seed=seed, beside=ideas_and_rules()
    )
    with progress("jobs under error", lines=True) as told:
        run = run_error(test, plan, reactive=reactive, processes=study.workers(processes), progress=told)
    value = {
        **error_answer(run, data=str(study.data), seed=seed),
        "notes": [
            *tapes.notes,
            join_note(run.synthetic, len(test)),
            f"sigma of {reactive.name} is the best on {len(train)} jobs of the training half",
        ],
    }
    return error_report(value)


#: Windows shown in charts, each with the least and the largest commitment.
DRAWN_OMEGAS = (1, 3, 5)


def error_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: utility by error size, sizes at which forecasts stop paying, robustness compared with consistency."""
    return Answer(
        title="Sensitivity to forecast errors (E2)",
        about=(
            f"{answer['jobs']} jobs in {answer['blocks']} blocks (a count series and a day of starts), "
            f"drawn with seed {answer['seed']} "
            f"from the later half of every series of {answer['data']}. "
            "Perfect forecasts are made wrong by a known amount (M6.8): prices in units of on-demand, counts in units of the "
            "largest count a probe can see. Utilities are in units of each job's on-demand-only cost."
        ),
        value=answer,
        banner=join_banner(answer),
        blocks=[_curves(answer), _tradeoff(answer)],
        notes=answer["notes"],
    )


def _label(row: Mapping[str, Any]) -> str:
    return f"AHAP({row['omega']},{row['v']})"


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['growth']}, {row['distribution'].replace('_', ' ')}"


def _curves(answer: Mapping[str, Any]) -> Section:
    free = answer["prediction_free"]
    kinds = dict.fromkeys(_kind(row) for row in answer["curves"])
    return Section(
        "Utility against the error",
        [
            f"The dashed line is {free['policy']}, which reads no forecast: {free['mean_utility']:.4f}. A cross marks the size of "
            "error from which it is the better one. Bars are 95 % intervals of the paired difference from it.",
            *_sentences(answer),
            Figures([_curves_figure(answer, kind) for kind in kinds]),
            Fold(
                "All windows and commitments", [_curves_table(answer, kind) for kind in kinds], printed=True
            ),
        ],
        "error",
    )


def _curves_figure(answer: Mapping[str, Any], kind: str) -> Figure:
    """Return the chart of a kind of error, on a scale common to all kinds; bars are offset slightly."""
    drawn = [r for r in answer["curves"] if r["omega"] in DRAWN_OMEGAS and r["v"] in (1, r["omega"])]
    own, level = [row for row in drawn if _kind(row) == kind], answer["prediction_free"]["mean_utility"]
    rows = [
        {
            "x": size + 0.008 * (i - len(own) / 2), "y": utility, "low": level + low, "high": level + high,
            "series": _label(row),
        }
        for i, row in enumerate(own)
        for size, utility, (low, high) in zip(
            answer["sizes"], row["mean_utility"], row["ahead_interval"], strict=True
        )
    ]  # fmt: skip
    ends = [level, *(utility for row in drawn for utility in row["mean_utility"])]
    margin = 0.08 * (max(ends) - min(ends)) or 0.01
    crossed = [row for row in own if np.isfinite(row["overtaken_at"])]
    spec = lines(
        rows, [_label(row) for row in own], spans=True, rule=level,
        crosses=[{"x": row["overtaken_at"], "y": level, "series": _label(row)} for row in crossed],
        x=Axis(title="size of the error", at=answer["sizes"], zero=False, format="~g"),
        y=Axis(title="utility", low=min(ends) - margin, high=max(ends) + margin),
    )  # fmt: skip
    return Figure(
        specs=[spec], label=f"Utility against the size of {kind} errors", title=f"{kind} errors", width=0
    )


def _curves_table(answer: Mapping[str, Any], kind: str) -> Table:
    sizes = {f"u{i}": f"Error {size:g}" for i, size in enumerate(answer["sizes"])}
    rows = [
        {
            "policy": _label(row),
            **{f"u{i}": u for i, u in enumerate(row["mean_utility"])},
            "crossing": row["overtaken_at"],
            "one": row["worse_than_one_slot_at"],
        }
        for row in answer["curves"]
        if _kind(row) == kind
    ]
    columns = {"policy": "Policy", **sizes, "crossing": "Overtaken at", "one": "Below AHAP(1,1) from"}
    return numbers(columns, rows, title=f"Utility under {kind} errors")


def _sentences(answer: Mapping[str, Any]) -> list[str]:
    reading = [row for row in answer["curves"] if row["omega"] > 1]
    crossed = [row for row in reading if np.isfinite(row["overtaken_at"])]
    if not crossed:
        return ["No policy that plans with forecasts is overtaken within these sizes."]
    first = min(crossed, key=lambda row: row["overtaken_at"])
    ahead = [row for row in reading if not np.isfinite(row["worse_than_one_slot_at"])]
    return [
        f"AHAP(1,1) plans the present slot alone and reads no forecast either: {len(reading) - len(ahead)} of {len(reading)} "
        "curves fall below it within these sizes (last column).",
        f"Of {len(reading)} curves of policies that read forecasts {len(crossed)} are overtaken within these sizes, first "
        f"{_label(first)} under {_kind(first)} errors, at size {first['overtaken_at']:.2f}.",
    ]


def _tradeoff(answer: Mapping[str, Any]) -> Section:
    ahap = [
        {
            "x": row["consistency"],
            "y": row["robustness"],
            "series": "AHAP",
            "text": f"({row['omega']},{row['v']})",
        }
        for row in answer["robustness"]
    ]
    others = [
        {"x": row["consistency"], "y": row["robustness"], "series": family_of(row["policy"])}
        for row in answer["published_ideas"]
    ]
    spec = scatter(
        [*ahap, *others], list(dict.fromkeys(row["series"] for row in (*ahap, *others))),
        x=Axis(title="consistency: utility with perfect forecasts", zero=False),
        y=Axis(title="robustness: worst mean utility under errors", zero=False),
        rule=answer["prediction_free"]["mean_utility"],
    )  # fmt: skip
    table = numbers(
        {"policy": "Policy", "consistency": "Consistency", "robustness": "Robustness"}, tradeoff_rows(answer)
    )
    return Section(
        "Robustness against consistency",
        [
            "Consistency is the mean utility with perfect forecasts, robustness the worst mean utility over all kinds and sizes of "
            "error. Above the dashed line a policy is better than the one without forecasts whatever the error here.",
            "Dots labelled (omega,v) are AHAP; MSU-trim, UP and ROSS read no forecast, so that the two are one for them.",
            Figure(specs=[spec], label="Robustness against consistency", width=720),
            Fold("Numbers", [table], printed=True),
        ],
        "robustness",
    )


# ---
# Utility under the forecasts that models issue, beside perfect forecasts and none: `experiment predictors` chooses by it.

#: Policies that use forecasts: the five-slot plan of the pool with its default end rule, and with
#: the target rule (M3.3).
POLICIES = ("AHAP(5,1,0.9)", "AHAP(5,1,0.9,target)")
#: Perfect forecasts, and a plan for the current slot only, which uses no forecasts.
PERFECT, NONE = "perfect", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForecasts:
    """A job with each model's forecasts in each of its slots."""

    scenario: Scenario
    forecasts: tuple[tuple[PointForecast | None, ...], ...]


def replay_models(case: JobForecasts, names: tuple[str, ...]) -> np.ndarray:
    """Replay a job under every model, perfect forecasts and no forecasts; return shape (models + 2, policies, 2).

    The two values: utility in units of on-demand-only cost, and the mean error of the counts read, in instances.
    """
    scenario, window = case.scenario, case.scenario.window
    policies = [policy_named(name) for name in names]
    blind = [replace(one, omega=1, commitment=1) if isinstance(one, Ahap) else one for one in policies]
    ahead = max(one.omega - 1 for one in policies if isinstance(one, Ahap))
    truth = tuple(perfect_forecasts(window, ahead))
    memo = PlanMemo()

    def rows(pool: list[Policy[Any]], forecasts: Sequence[PointForecast | None], error: float) -> list[Any]:
        outcomes = replay_pool(
            pool, scenario.job, window, forecasts=forecasts, record=scenario.record, memo=memo
        )
        return [(outcome.utility_usd / scenario.unit, error) for outcome in outcomes]

    models = [rows(policies, issued, count_error(issued, truth)) for issued in (*case.forecasts, truth)]
    return np.array([*models, rows(blind, truth, np.nan)])


def count_error(forecasts: Sequence[PointForecast | None], truth: Sequence[PointForecast]) -> float:
    """Return mean |forecast - truth| of the counts in instances, over slots and the steps of ``truth``; NaN without forecasts."""
    errors = [
        np.abs(issued.available[: len(right.available)] - right.available[: len(issued.available)])
        for issued, right in zip(forecasts, truth, strict=True)
        if issued is not None
    ]
    return float(np.concatenate(errors).mean()) if sum(map(len, errors)) else float("nan")
