"""``slackwater experiment error``: E2, utility against a known error of the forecasts (M6.8, M7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.accuracy.error_cost import join_note
from flows.accuracy.units import cores
from flows.command import Answer
from flows.command.progress import progress, say
from flows.experiments.drawings import Curve, draw_error, draw_tradeoff
from flows.experiments.material import make_scenarios, read_tapes
from flows.experiments.options import StudyOptions
from flows.experiments.pool import family_of, ideas_and_rules, robustness_of_ideas, tradeoff_rows
from flows.experiments.runner import Progress, join_banner, run_pool
from flows.show.blocks import Block, Notes, Page, Section, Table, figures, study, study_page
from flows.show.drawing import house_style
from forecasting.futures.errors import SIZES, Growth, Law, draw_noise, perturbed_count, perturbed_price
from optimization.market.window import PointForecast
from optimization.policies.committed_horizon import Ahap
from optimization.policies.contract import Policy
from optimization.policies.pool import load_pool
from optimization.policies.reactive import Ahanp
from optimization.replay.ledger import perfect_forecasts
from optimization.replay.run import PlanMemo, replay_pool, spread
from optimization.trials.comparison import interval, resampled_means
from optimization.trials.scenarios import Grid, Scenario

#: Windows of the experiment; commitments are all those up to the window, or its two ends in a quick look.
OMEGAS = (1, 2, 3, 4, 5)
#: The price threshold of AHAP here: it takes all spot that is not nearly as dear as on-demand.
SIGMA = 0.9
SIGMAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PER_CELL, FAST_PER_CELL = 3, 1
#: Steps ahead that forecasts are made wrong for: no window of the experiment looks further.
STEPS = max(OMEGAS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of error: how it depends on the step ahead, and its law."""

    growth: Growth
    law: Law

    @property
    def name(self) -> str:
        """``fixed, uniform`` and the like."""
        return f"{self.growth.value}, {self.law.value.replace('_', ' ')}"


KINDS = tuple(Kind(growth=growth, law=law) for growth in Growth for law in Law)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPlan:
    """What every job is asked: AHAP's forms, the kinds and sizes of error, the seed of the errors, other policies ``beside``."""

    policies: tuple[Ahap, ...]
    kinds: tuple[Kind, ...]
    sizes: tuple[float, ...]
    seed: int
    beside: tuple[Policy[Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRun:
    """Utilities in units of each job's OD-only cost: ``utility`` (jobs, kinds, sizes, policies), ``reactive`` (jobs,).

    The columns of ``plan.beside`` follow those of ``plan.policies``.
    ``synthetic`` of the jobs join one market's counts with another's prices (M7).
    """

    plan: ErrorPlan
    utility: np.ndarray
    reactive: np.ndarray
    reactive_name: str
    synthetic: int


def shapes(fast: bool) -> tuple[tuple[int, int], ...]:
    """(omega, v) of the experiment."""
    if fast:
        return tuple(dict.fromkeys((omega, v) for omega in (1, 3, 5) for v in (1, omega)))
    return tuple((omega, v) for omega in OMEGAS for v in range(1, omega + 1))


def wrong_forecasts(scenario: Scenario, kind: Kind, plan: ErrorPlan) -> list[list[PointForecast]]:
    """For each size the perfect forecasts of a job made wrong by the same errors times the size (M6.8).

    The errors depend on the seed, the job's name and the kind alone. The capacity is what the probe can see.
    """
    truth = perfect_forecasts(scenario.window, STEPS)
    name = list(scenario.job.name.encode())
    rng = np.random.default_rng([plan.seed, KINDS.index(kind), *name])
    noise = draw_noise(len(truth), STEPS, growth=kind.growth, law=kind.law, rng=rng)
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
    """Replay AHAP's (omega, v) on every job under every kind and size of error, and AHANP, which reads no forecast."""
    rows = list(spread(_utilities, scenarios, (plan, reactive), processes=processes, progress=progress))
    return ErrorRun(
        plan=plan,
        utility=np.array([row[0] for row in rows]),
        reactive=np.array([row[1] for row in rows]),
        reactive_name=reactive.name,
        synthetic=sum(scenario.draw.synthetic for scenario in scenarios),
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
    """The least error size at which ``utility`` (sizes,) falls to ``level``, linear between sizes.

    NaN if it stays above; 0 if it begins at or below.
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
    """The JSON object of the experiment.

    ``curves``: for each kind of error and each (omega, v) the mean utility by size, the 95 % interval of its paired difference
    from the prediction-free policy (``ahead_interval``), and ``overtaken_at``, the size from which the prediction-free policy
    is better (null: never within the sizes); ``worse_than_one_slot_at`` is the same against AHAP(1,1), which plans the present
    slot alone and so reads no forecast either. ``robustness``: for each (omega, v) its consistency (utility at size 0) and
    robustness (its worst mean over kinds and sizes); ``published_ideas`` the same for the policies of M10.
    """
    rng = np.random.default_rng([seed, 4])
    mean = run.utility.mean(axis=0)
    flat = (run.utility - run.reactive[:, None, None, None]).reshape(len(run.utility), -1)
    low, high = (edge.reshape(mean.shape) for edge in interval(resampled_means(flat, rng=rng)))
    level = float(run.reactive.mean())
    a, b = interval(resampled_means(run.reactive[:, None], rng=rng))
    one_slot = float(mean[0, 0, [policy.omega for policy in run.plan.policies].index(1)])
    curves = [
        {
            "growth": kind.growth.value,
            "law": kind.law.value,
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
    """AHAP of these (omega, v) at `SIGMA`, as the default pool has them: its end rule and its way of committing."""
    pool = {(p.omega, p.commitment): p for p in load_pool() if isinstance(p, Ahap) and p.sigma == SIGMA}
    return tuple(pool[shape] for shape in wanted)


def error_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """E2 on a folder."""
    seed, fast = study.seed, study.fast
    say(f"read {study.data}")
    tapes = read_tapes(study.data)
    workers = processes or (1 if fast else cores())
    per_cell = FAST_PER_CELL if fast else PER_CELL
    with progress("draw jobs") as told:
        train, test = (
            make_scenarios(tapes, grid=Grid(), part=part, per_cell=per_cell, seed=seed, planner="last_value", progress=told)
            for part in ("train", "test")
        )  # fmt: skip
    learned = run_pool(train, [Ahanp(sigma=sigma) for sigma in SIGMAS], processes=1)
    reactive = Ahanp(sigma=SIGMAS[int(learned.relative.mean(axis=0).argmax())])
    plan = ErrorPlan(
        policies=pools_ahap(shapes(fast)),
        kinds=KINDS,
        sizes=SIZES,
        seed=seed,
        beside=ideas_and_rules(),
    )
    with progress("jobs under error") as told:
        run = run_error(test, plan, reactive=reactive, processes=workers, progress=told)
    value = {
        **error_answer(run, data=str(study.data), seed=seed),
        "notes": [
            *tapes.notes,
            join_note(run.synthetic, len(test)),
            f"sigma of {reactive.name} is the best on {len(train)} jobs of the training half",
        ],
    }
    return Answer(
        title="Errors of forecasts (E2)",
        value=value,
        blocks=error_blocks(value),
        page=lambda: error_page(value),
    )


def error_blocks(answer: dict[str, Any]) -> list[Block]:
    """The tables of the experiment for a person."""
    blocks: list[Block] = []
    sizes = {f"u{i}": f"error {size:g}" for i, size in enumerate(answer["sizes"])}
    for growth, law in dict.fromkeys((row["growth"], row["law"]) for row in answer["curves"]):
        rows = [
            {
                "omega": row["omega"],
                "v": row["v"],
                **{f"u{i}": value for i, value in enumerate(row["mean_utility"])},
                "crossing": row["overtaken_at"],
            }
            for row in answer["curves"]
            if (row["growth"], row["law"]) == (growth, law)
        ]
        blocks.append(
            Table(
                f"Utility under {growth} {law.replace('_', ' ')} errors, {answer['jobs']} jobs",
                rows,
                {"omega": "omega", "v": "v", **sizes, "crossing": "overtaken at"},
            )
        )
    free = answer["prediction_free"]
    blocks.append(f"without forecasts: {free['policy']} {free['mean_utility']:.4f}")
    blocks.append(
        Table(
            "Consistency (perfect forecasts) and robustness (worst mean over all errors)",
            tradeoff_rows(answer),
            {"policy": "policy", "consistency": "consistency", "robustness": "robustness"},
        )
    )
    blocks.append(Notes(answer["notes"]))
    return blocks


# The report of E2: utility against injected error, where forecasts stop to pay, robustness against consistency.

#: Lines a panel holds: the two ends of commitment at the least, the middle and the widest window.
DRAWN_OMEGAS = (1, 3, 5)


def error_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer of ``experiment error``."""
    with house_style():
        return study_page(
            title="Sensitivity to forecast errors (E2)",
            about=(
                f"{answer['jobs']} jobs drawn with seed {answer['seed']} from the later half of every series of {answer['data']}. "
                "Perfect forecasts are made wrong by a known amount (M6.8): prices in units of on-demand, counts in units of the "
                "largest count a probe can see. Utilities are in units of each job's on-demand-only cost."
            ),
            synthetic=join_banner(answer),
            sections=[_curves(answer), _tradeoff(answer)],
            notes=answer["notes"],
        )


def _label(row: Mapping[str, Any]) -> str:
    return f"AHAP({row['omega']},{row['v']})"


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['growth']}, {row['law'].replace('_', ' ')}"


def _curves(answer: Mapping[str, Any]) -> Section:
    panels: dict[str, list[Curve]] = {}
    for row in answer["curves"]:
        if row["omega"] in DRAWN_OMEGAS and row["v"] in (1, row["omega"]):
            band = answer["prediction_free"]["mean_utility"] + np.array(row["ahead_interval"])
            panels.setdefault(_kind(row), []).append(
                Curve(
                    label=_label(row), mean=np.array(row["mean_utility"]), low=band[:, 0], high=band[:, 1],
                    overtaken_at=row["overtaken_at"],
                )
            )  # fmt: skip
    free = answer["prediction_free"]
    sizes = {f"u{i}": f"Error {size:g}" for i, size in enumerate(answer["sizes"])}
    rows = [
        {
            "policy": _label(row),
            "kind": _kind(row),
            **{f"u{i}": u for i, u in enumerate(row["mean_utility"])},
            "crossing": row["overtaken_at"],
            "one": row["worse_than_one_slot_at"],
        }
        for row in answer["curves"]
    ]
    return study(
        anchor="error",
        heading="Utility against the error",
        sentences=[
            f"The dashed line is {free['policy']}, which reads no forecast: {free['mean_utility']:.4f}. A cross marks the size of "
            "error from which it is the better one. Bars are 95 % intervals of the paired difference from it.",
            *_sentences(answer),
        ],
        figure=draw_error(np.array(answer["sizes"]), panels, free["mean_utility"], name="error"),
        table=figures(
            columns={
                "policy": "Policy",
                "kind": "Error",
                **sizes,
                "crossing": "Overtaken at",
                "one": "Below AHAP(1,1) from",
            },
            rows=rows,
        ),
        unfold="All windows and commitments",
    )


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
    rows, ahap = tradeoff_rows(answer), answer["robustness"]
    families: dict[str, list[Mapping[str, Any]]] = {}
    for row in answer["published_ideas"]:
        families.setdefault(family_of(row["policy"]), []).append(row)
    return study(
        anchor="robustness",
        heading="Robustness against consistency",
        sentences=[
            "Consistency is the mean utility with perfect forecasts, robustness the worst mean utility over all kinds and sizes of "
            "error. Above the dashed line a policy is better than the one without forecasts whatever the error here.",
            "Dots labelled (omega,v) are AHAP; MSU-trim, UP and ROSS read no forecast, so that the two are one for them.",
        ],
        figure=draw_tradeoff(
            [f"({row['omega']},{row['v']})" for row in ahap],
            np.array([row["consistency"] for row in ahap]),
            np.array([row["robustness"] for row in ahap]),
            answer["prediction_free"]["mean_utility"],
            others={
                family: np.array([[row["consistency"], row["robustness"]] for row in members])
                for family, members in families.items()
            },
            name="tradeoff",
        ),
        table=figures(
            columns={"policy": "Policy", "consistency": "Consistency", "robustness": "Robustness"},
            rows=rows,
        ),
        unfold="Numbers",
    )
