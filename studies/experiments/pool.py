"""``slackwater experiment pool``: E1, the pool of policies on the scenario grid, compared with baselines and hindsight (M7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Figure, Figures, Fold, Notes, Section, Table, numbers
from slackwater.flows.show.charts import Axis, dots
from slackwater.flows.turn.report.leaderboard import utility_range
from slackwater.forecasting.accuracy.intervals import EVEN, TOO_FEW, interval_words, verdict
from slackwater.optimization.policies.committed_horizon import Ahap, Commit
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import load_pool
from slackwater.optimization.replay.run import PlanMemo
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.optimization.window.plan import EndRule
from slackwater.studies.experiments.charts import heat
from slackwater.studies.experiments.material import (
    HORIZON,
    PoolRun,
    Progress,
    Tapes,
    make_scenarios,
    read_tapes,
    run_pool,
)
from slackwater.studies.experiments.study import StudyOptions, join_banner, join_note, with_bounds
from slackwater.studies.policies import PUBLISHED_IDEAS, published_policies
from slackwater.studies.replays import replay_pool
from slackwater.studies.rounds import select_over
from slackwater.studies.trials.comparison import (
    Comparison,
    compare,
    headroom_captured,
    relative_gain,
    resampled,
    shown_baselines,
)
from slackwater.studies.trials.scenarios import Grid, Part, Scenario, blocks_of

#: Columns of a cell, and of the coarser cells of the promised comparison (deadline, load, overhead).
CELL = ("deadline_slots", "load", "mu_up", "n_max")
COARSE = ("deadline_slots", "load", "mu_up")
#: A greedy rule that never runs more instances than finish the job (ours): better than every published baseline on the open data.
SHARPENED = "MSU-trim"
#: The only figure published in paper A: the largest relative gain over baselines.
PAPER_A = 0.548


def comparison_of(
    run: PoolRun, places: np.ndarray | None = None, *, rng: np.random.Generator | None = None
) -> Comparison:
    """Return the comparison of the policies of a run on all its jobs, or on those at ``places``."""
    at = np.arange(len(run.jobs)) if places is None else places
    return compare(
        run.policies,
        run.relative[at],
        hindsight_low=(run.jobs["low"].to_numpy(dtype=float) / run.unit)[at],
        hindsight_high=(run.jobs["high"].to_numpy(dtype=float) / run.unit)[at],
        blocks=run.blocks[at],
        rng=rng,
    )


def policy_rows(run: PoolRun, comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Return the object ``policies`` of the result: an entry for each policy, best first."""
    order = np.argsort(-comparison.mean, kind="stable")
    return {
        run.policies[i]: {
            "mean_utility": float(comparison.mean[i]),
            "interval": [float(comparison.low[i]), float(comparison.high[i])],
            "ahead_of_baseline_interval": [float(comparison.ahead_low[i]), float(comparison.ahead_high[i])],
            "mean_cost_usd": float(run.cost[:, i].mean()),
            "on_time": float(run.on_time[:, i].mean()),
            "late": float(run.late[:, i].mean()),
            "relative_gain": {name: float(gain[i]) for name, gain in comparison.gain.items()},
            "headroom_captured": float(comparison.headroom[i]),
            "headroom_interval": [float(comparison.headroom_low[i]), float(comparison.headroom_high[i])],
        }
        for i in order
    }


def cell_rows(run: PoolRun, columns: Sequence[str], *, default: str) -> list[dict[str, Any]]:
    """Return an entry for each cell, in the order of the grid: its best policy and baseline, and the headroom captured.

    The baseline is the best of the cell, so the comparison is as strict in each cell as over all. ``default`` is the policy
    that is best over all cells.
    """
    rows = []
    for key, group in run.jobs.groupby(list(columns), sort=True):
        found = comparison_of(run, group.index.to_numpy())
        values = key if isinstance(key, tuple) else (key,)
        best, own = found.of(found.best), found.of(default)
        rows.append(
            {
                **dict(zip(columns, values, strict=True)),
                "jobs": len(group),
                "best": found.best,
                "baseline": found.baseline,
                "baseline_utility": float(found.mean[found.of(found.baseline)]),
                "best_utility": float(found.mean[best]),
                "hindsight": found.hindsight[1],
                "headroom_captured": float(found.headroom[best]),
                "default_headroom_captured": float(found.headroom[own]),
            }
        )
    return rows


def largest_gains(run: PoolRun) -> list[dict[str, Any]]:
    """Return, for each baseline, the cell with the largest gain of a policy over it, the largest gain first."""
    rows: list[dict[str, Any]] = []
    for name in shown_baselines(run.policies, run.relative.mean(axis=0)):
        best: dict[str, Any] = {}
        for key, group in run.jobs.groupby(list(CELL), sort=True):
            found = comparison_of(run, group.index.to_numpy())
            gain = compare_with(found, name)
            i = int(np.nanargmax(gain)) if np.isfinite(gain).any() else 0
            if np.isfinite(gain[i]) and gain[i] > best.get("gain", -np.inf):
                best = {
                    "baseline": name,
                    "policy": run.policies[i],
                    "gain": float(gain[i]),
                    "cell": dict(zip(CELL, key, strict=True)),
                }
        rows += [best] if best else []
    return sorted(rows, key=lambda row: -row["gain"])


def compare_with(found: Comparison, baseline: str) -> np.ndarray:
    """Return the relative gain of every policy over the policy ``baseline``, shape (policies,)."""
    return relative_gain(found.mean, found.mean[found.of(baseline)])


def selection_of(run: PoolRun, *, seed: int) -> dict[str, Any]:
    """Return the results of the default selector on the jobs in their order (M5): the object ``selection``.

    It selects from the pool, which has none of the published ideas.
    """
    own = [i for i, name in enumerate(run.policies) if family_of(name) not in PUBLISHED_IDEAS]
    summary = select_over(
        run.normalised[:, own], run.relative[:, own], [run.policies[i] for i in own], seed=seed
    )
    return {
        "learner": summary.learner,
        "sampled_utility": summary.sampled_utility,
        "leader_utility": summary.leader_utility,
        "best_fixed": summary.best_fixed,
        "best_fixed_utility": summary.overall.best_fixed_utility,
        "regret": summary.regret,
        "bound": summary.bound,
        "after_settling": {"jobs": summary.settled.jobs, "share_of_best_fixed": summary.settled.share},
    }


def against_sharpened(run: PoolRun, found: Comparison) -> dict[str, Any] | None:
    """Return the best policy's headroom captured over MSU-trim, the strongest simple rule; None if the pool lacks MSU-trim.

    MSU-trim is ours and so not a published baseline.
    """
    if SHARPENED not in run.policies:
        return None
    base, best, high = found.mean[found.of(SHARPENED)], found.mean[found.of(found.best)], found.hindsight[1]
    room = headroom_captured(np.array([best]), np.array([base]), np.array([high]))
    return {"baseline": SHARPENED, "mean_utility": float(base), "headroom_captured": float(room[0])}


def pool_answer(run: PoolRun, *, data: str, seed: int) -> dict[str, Any]:
    """Return the result of ``experiment pool --json`` for a run, with utilities in units of each job's OD-only cost."""
    found = comparison_of(run, rng=np.random.default_rng([seed, 2]))
    return {
        "data": data,
        "seed": seed,
        "jobs": len(run.jobs),
        "blocks": len(set(run.blocks)),
        "synthetic_jobs": int(run.jobs["synthetic"].sum()),
        "best": found.best,
        "baseline": found.baseline,
        "sharpened": against_sharpened(run, found),
        "hindsight": {"low": found.hindsight[0], "high": found.hindsight[1]},
        "policies": policy_rows(run, found),
        "selection": selection_of(run, seed=seed),
        "cells": cell_rows(run, CELL, default=found.best),
        "cells_by_deadline_load_overhead": cell_rows(run, COARSE, default=found.best),
        "largest_gain": {"paper_a": PAPER_A, "found": largest_gains(run)},
    }


# Policies based on other published ideas in E1, with the cells that they win and lose: the section ``published_ideas`` (M10).

#: Reference families, each represented by its best member on the training part, and the sharpened greedy rule.
REFERENCES = ("UP", "AHAP", "Stochastic", SHARPENED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean paired difference of two policies over some jobs, in units of the OD-only cost, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``wins``, ``loses``, or ``even`` if the interval contains 0."""
        return verdict(self.low, self.high, above="wins", below="loses")

    def row(self) -> dict[str, Any]:
        """Return the difference as an entry of the result."""
        return {"difference": self.mean, "interval": [self.low, self.high]}


def family_of(name: str) -> str:
    """Return the family of a canonical name: ``AHAP`` for ``AHAP(5,1,0.9)``."""
    return name.split("(")[0]


def best_of_family(run: PoolRun, family: str) -> str | None:
    """Return the member of a family with the largest mean utility in ``run``, the first in a tie; None without members."""
    places = [i for i, name in enumerate(run.policies) if family_of(name) == family]
    mean = run.relative.mean(axis=0)
    return run.policies[max(places, key=lambda i: mean[i])] if places else None


def ideas_answer(test: PoolRun, train: PoolRun, *, rng: np.random.Generator) -> dict[str, Any]:
    """Return the object ``published_ideas``: each family of M10 compared with the references, over all jobs and by cell.

    Every family and reference is represented by its best member on the *training* part, so that no choice uses the test jobs.
    ``against`` gives the paired difference from each reference with its 95 % interval over blocks of jobs, the numbers of cells
    (deadline, load, overhead) whose interval lies above 0 (won) and below 0 (lost), and the cells of the largest gain and loss.
    """
    chosen = {family: best_of_family(train, family) for family in (*REFERENCES, *PUBLISHED_IDEAS)}
    references = [name for family in REFERENCES if (name := chosen[family]) in test.policies and name]
    rows = []
    for family in PUBLISHED_IDEAS:
        name = chosen[family]
        if name is None or name not in test.policies:
            continue
        against = {other: _against(test, name, other, rng=rng) for other in references}
        rows.append(
            {
                "family": family,
                "policy": name,
                "mean_utility": float(_column(test, name).mean()),
                "members": {
                    n: float(_column(test, n).mean()) for n in test.policies if family_of(n) == family
                },
                "against": against,
                "sentence": _sentence(name, against),
            }
        )
    return {"references": references, "rows": rows}


def _column(run: PoolRun, name: str) -> np.ndarray:
    return np.asarray(run.relative[:, run.policies.index(name)])


def paired(values: np.ndarray, blocks: np.ndarray, *, rng: np.random.Generator) -> Difference:
    """Return the mean of paired differences (jobs,) and its bootstrap interval."""
    low, high = resampled(values[:, None], blocks=blocks, rng=rng).interval()
    return Difference(mean=float(values.mean()), low=float(low[0]), high=float(high[0]))


def _against(run: PoolRun, name: str, other: str, *, rng: np.random.Generator) -> dict[str, Any]:
    """Compare a policy with a reference over all jobs and by cell."""
    ahead = _column(run, name) - _column(run, other)
    cells = []
    for key, group in run.jobs.groupby(list(COARSE), sort=True):
        at = group.index.to_numpy()
        found = paired(ahead[at], run.blocks[at], rng=rng)
        values = key if isinstance(key, tuple) else (key,)
        cells.append({**dict(zip(COARSE, values, strict=True)), **found.row(), "verdict": found.verdict})
    # Extremes are taken among decided cells if there are any, because noise is largest in the others.
    gain = {key: [c for c in cells if c["verdict"] == key] or cells for key in ("wins", "loses")}
    whole = paired(ahead, run.blocks, rng=rng)
    return {
        **whole.row(),
        "verdict": whole.verdict,
        "cells": len(cells),
        "won": sum(cell["verdict"] == "wins" for cell in cells),
        "lost": sum(cell["verdict"] == "loses" for cell in cells),
        "best_cell": max(gain["wins"], key=lambda cell: float(cell["difference"])),
        "worst_cell": min(gain["loses"], key=lambda cell: float(cell["difference"])),
    }


def _sentence(name: str, against: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence on where a policy wins and loses.

    The extreme cells are given only for the AHAP reference, which plans with the same forecasts.
    """
    if not against:
        return f"{name}: nothing in this pool to hold it against."
    parts = [_beside(other, found) for other, found in against.items()]
    where = [_extremes(other, found) for other, found in against.items() if family_of(other) == "AHAP"]
    return f"{name}: {'; '.join(parts)}." + "".join(where)


def _beside(other: str, found: Mapping[str, Any]) -> str:
    verb = {
        "wins": "ahead of",
        "loses": "behind",
        EVEN: "even with",
        TOO_FEW: "on too few blocks of jobs to compare with",
    }[found["verdict"]]
    cells = f"{found['won']} of {found['cells']} cells won, {found['lost']} lost"
    return f"{verb} {other} ({found['difference']:+.4f}; {cells})"


def _extremes(other: str, found: Mapping[str, Any]) -> str:
    told = [f"gains most at {_cell(found['best_cell'])}"] if found["won"] else []
    told += [f"loses most at {_cell(found['worst_cell'])}"] if found["lost"] else []
    return f" Beside {other} it {' and '.join(told)}." if told else ""


def _cell(cell: Mapping[str, Any]) -> str:
    where = f"d {cell['deadline_slots']}, load {cell['load']:g}, mu {cell['mu_up']:g}"
    return f"{where} ({cell['difference']:+.4f})"


def idea_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table row for each family: utility, and the difference from each reference with cells won and lost."""
    found = answer["published_ideas"]
    return [
        {
            "policy": row["policy"],
            "mean_utility": row["mean_utility"],
            **{f"over {other}": _difference(row["against"][other]) for other in found["references"]},
            **{f"cells {other}": _score(row["against"][other]) for other in found["references"]},
        }
        for row in found["rows"]
    ]


def idea_columns(references: Sequence[str]) -> dict[str, str]:
    """Return the columns of `idea_rows` with their headings."""
    columns = {"policy": "Policy", "mean_utility": "Mean utility"}
    for other in references:
        columns |= {f"over {other}": f"Over {other}", f"cells {other}": "Cells won : lost"}
    return columns


def _difference(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['difference']:+.4f} ({interval_words(low, high, '+.4f')})"


def _score(found: Mapping[str, Any]) -> str:
    return f"{found['won']} : {found['lost']} of {found['cells']}"


def ideas_and_rules() -> tuple[Policy[Any], ...]:
    """Return two rules that use no forecast and the policies of M10: the policies compared with AHAP in E2."""
    rules = (policy for policy in load_pool() if policy.name in ("UP", SHARPENED))
    return (*rules, *published_policies())


def robustness_of_ideas(policies: Sequence[Policy[Any]], utility: np.ndarray) -> list[dict[str, Any]]:
    """Return consistency (mean utility with perfect forecasts) and robustness (worst mean over errors) of policies (M10).

    ``utility`` has shape (jobs, kinds, sizes, policies); the first size means no error.
    """
    mean = utility.mean(axis=0)
    return [
        {
            "policy": policy.name,
            "consistency": float(mean[:, 0, i].mean()),
            "robustness": float(mean[:, :, i].min()),
        }
        for i, policy in enumerate(policies)
    ]


def tradeoff_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every policy of E2 with its consistency and robustness: AHAP by window and commitment, then the other policies."""
    ahap = [{**row, "policy": f"AHAP({row['omega']},{row['v']})"} for row in answer["robustness"]]
    return [*ahap, *answer["published_ideas"]]


# Comparison of AHAP's end rules, methods of committing and forecasts on the same jobs (M3.3, M4.5).

#: Inputs of a plan: issued forecasts, the present values persisted, the true values.
FORECASTS = ("issued", "last_value", "perfect")
#: Names of the methods of committing.
WAYS = {Commit.MEAN: "mean of plans", Commit.LAST: "last plan"}
#: (omega, v) of the table; v = 1 and v = omega are the extremes of commitment.
SHAPES = ((1, 1), (3, 1), (3, 3), (5, 1), (5, 5))
#: End rules of the table.
END_RULES = tuple(EndRule)
#: Price threshold of the table: AHAP uses all spot that is not nearly as expensive as on-demand.
SIGMA = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Utilities of AHAP's variants in units of each job's OD-only cost, shape (jobs, forecasts, policies), and jobs' ``blocks``."""

    policies: tuple[Ahap, ...]
    utility: np.ndarray
    blocks: np.ndarray

    def places(self, **wanted: Any) -> list[int]:
        """Return the indices of the policies with these attributes."""
        return [
            i
            for i, policy in enumerate(self.policies)
            if all(getattr(policy, key) == value for key, value in wanted.items())
        ]


def ahap_variants() -> tuple[Ahap, ...]:
    """Return every end rule and method of committing for each of `SHAPES`; for v = 1 the two methods are identical."""
    return tuple(
        Ahap(omega=omega, commitment=v, sigma=SIGMA, end_rule=rule, commit=commit)
        for rule in END_RULES
        for commit in Commit
        for omega, v in SHAPES
        if v > 1 or commit is Commit.MEAN
    )


def run_variants(
    scenarios: Sequence[Scenario],
    policies: Sequence[Ahap],
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> Variants:
    """Replay the variants on every scenario with issued, persisted and perfect forecasts."""
    rows = list(
        fan_out(_variant_utilities, scenarios, tuple(policies), processes=processes, progress=progress)
    )
    return Variants(policies=tuple(policies), utility=np.array(rows), blocks=blocks_of(scenarios))


def _variant_utilities(scenario: Scenario, policies: tuple[Policy[Any], ...]) -> np.ndarray:
    window, memo = scenario.window, PlanMemo()
    kinds = (scenario.forecasts, None, perfect_forecasts(window, HORIZON))
    outcomes = [
        replay_pool(policies, scenario.job, window, forecasts=forecasts, record=scenario.record, memo=memo)
        for forecasts in kinds
    ]
    return np.array([[o.utility_usd / scenario.unit for o in made] for made in outcomes])


def variant_rows(found: Variants, *, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return a row for each end rule, method of committing and kind of forecast: the mean over shapes with its interval.

    Shapes with v = 1 have separate rows, because the methods of committing are identical for them.
    """
    rows: list[dict[str, Any]] = []
    columns = []
    for rule in END_RULES:
        for way, places in _ways(found, rule):
            for k, forecasts in enumerate(FORECASTS):
                rows.append({"end_rule": rule.value, "commit": way, "forecasts": forecasts})
                columns.append(found.utility[:, k, places].mean(axis=1))
    table = np.column_stack(columns)
    low, high = resampled(table, blocks=found.blocks, rng=rng).interval()
    for row, mean, a, b in zip(rows, table.mean(axis=0), low, high, strict=True):
        row |= {"mean_utility": float(mean), "interval": [float(a), float(b)]}
    return rows


def _ways(found: Variants, rule: EndRule) -> list[tuple[str, list[int]]]:
    wide = [i for i in found.places(end_rule=rule, commit=Commit.MEAN) if found.policies[i].commitment > 1]
    return [
        ("v = 1", found.places(end_rule=rule, commitment=1)),
        (f"v = omega, {WAYS[Commit.MEAN]}", wide),
        (f"v = omega, {WAYS[Commit.LAST]}", found.places(end_rule=rule, commit=Commit.LAST)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Paired difference of two means over jobs, with its 95 % interval."""

    first: float
    second: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``helps``, ``hurts``, ``is even`` or undecided: the second compared with the first."""
        found = verdict(self.low, self.high, above="helps", below="hurts")
        return {EVEN: f"is {EVEN}", TOO_FEW: "is not decided (too few blocks of jobs)"}.get(found, found)

    def __str__(self) -> str:
        change = self.second - self.first
        return f"{self.first:.4f} -> {self.second:.4f}, difference {change:+.4f} ({interval_words(self.low, self.high, '+.4f')})"


def contrast(
    first: np.ndarray, second: np.ndarray, blocks: np.ndarray, *, rng: np.random.Generator
) -> Contrast:
    """Compare ``second`` with ``first``, each the utility per job, shape (jobs,), like ``blocks``."""
    low, high = resampled((second - first)[:, None], blocks=blocks, rng=rng).interval()
    return Contrast(
        first=float(first.mean()), second=float(second.mean()), low=float(low[0]), high=float(high[0])
    )


def claims(
    run: PoolRun, policies: Sequence[Policy[Any]], found: Variants, *, rng: np.random.Generator
) -> list[str]:
    """Return sentences that check paper A's claims on windows, commitment and forecasts with the results on this data."""
    widest = max(p.omega for p in policies if isinstance(p, Ahap))

    def of(omega: int, v: int) -> np.ndarray:
        at = [
            i for i, p in enumerate(policies) if isinstance(p, Ahap) and (p.omega, p.commitment) == (omega, v)
        ]
        return np.asarray(run.relative[:, at].mean(axis=1))

    window = contrast(of(1, 1), of(widest, 1), run.blocks, rng=rng)
    commitment = contrast(of(widest, 1), of(widest, widest), run.blocks, rng=rng)
    return [
        _claim(f"A larger window (omega 1 -> {widest}, v = 1, issued forecasts)", window),
        _claim(f"Larger commitment (v 1 -> {widest} at omega = {widest}, issued forecasts)", commitment),
        *_forecast_sentences(found, rng),
    ]


def _claim(what: str, found: Contrast) -> str:
    text = f"{what} {found.verdict} on this data: mean utility {found}."
    return (
        text
        if found.verdict == "helps"
        else f"{text} Paper A's claim that more of it helps does not hold here."
    )


def _forecast_sentences(found: Variants, rng: np.random.Generator) -> list[str]:
    """Return, for each end rule, the gain of issued forecasts over persistence, and of perfect over issued forecasts."""
    sentences = []
    for rule in END_RULES:
        at = [i for i in found.places(end_rule=rule) if found.policies[i].omega > 1]
        issued, held, perfect = (found.utility[:, k, at].mean(axis=1) for k in range(3))
        gained = contrast(held, issued, found.blocks, rng=rng)
        name = rule.value.replace("_", " ")
        sentences += [
            f"Issued forecasts against the last value held (end rule {name}, omega > 1): AHAP's utility {gained}; planning with "
            f"them {gained.verdict}.",
            f"Perfect forecasts against issued ones (end rule {name}, omega > 1): "
            f"{contrast(issued, perfect, found.blocks, rng=rng)}.",
        ]
    return sentences


def default_sentence(train_rows: Sequence[dict[str, Any]], policies: Sequence[Policy[Any]]) -> str:
    """Return a sentence on the best end rule and method of committing in training with issued forecasts, and on the pool's."""
    issued = [row for row in train_rows if row["forecasts"] == "issued"]
    best = max(issued, key=lambda row: row["mean_utility"])
    pool = [policy for policy in policies if isinstance(policy, Ahap)]
    rules = sorted({policy.end_rule.value.replace("_", " ") for policy in pool})
    ways = sorted({WAYS[policy.commit] for policy in pool if policy.commitment > 1})
    return (
        f"Best on the training half with issued forecasts: end rule {best['end_rule'].replace('_', ' ')}, {best['commit']} "
        f"({best['mean_utility']:.4f}); the pool's AHAP has {' and '.join(rules)} and, for v > 1, {' and '.join(ways)}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of the experiment: jobs per cell in the test and the training part, jobs of each part in AHAP's table, the grid.

    ``planner`` names the forecaster; None uses that of the settings.
    """

    test: int
    train: int
    table: int
    grid: Grid = field(default_factory=Grid)
    planner: str | None = None


#: Forecaster with ``--fast``: the default forecaster takes four times as long.
FAST_PLANNER = "markov"
FULL, FAST = Size(test=20, train=4, table=216), Size(test=3, train=1, table=27, planner=FAST_PLANNER)


def size_of(fast: bool) -> Size:
    """Return the size of the experiment, or with ``fast`` of a quick look."""
    return FAST if fast else FULL


def fast_pool(policies: Sequence[Policy[Any]]) -> list[Policy[Any]]:
    """Return the pool for a quick look: all policies except most of AHAP, with three windows and the extremes of commitment."""
    return [
        policy
        for policy in policies
        if not isinstance(policy, Ahap)
        or (
            policy.omega in (1, 3, 5)
            and policy.commitment in (1, policy.omega)
            and policy.sigma in (0.5, 0.9)
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExperiment:
    """All runs of the experiment: the pool and AHAP's variants on both parts."""

    tapes: Tapes
    size: Size
    policies: tuple[Policy[Any], ...]
    test: PoolRun
    train: PoolRun
    table_test: Variants
    table_train: Variants


def pool_experiment(
    tapes: Tapes, policies: Sequence[Policy[Any]], *, size: Size, seed: int, processes: int
) -> PoolExperiment:
    """Run E1 on the training and the test part of ``tapes``; results depend on the seed but not on ``processes``."""
    jobs: dict[Part, list[Scenario]] = {}
    sizes: tuple[tuple[Part, int], ...] = (("train", size.train), ("test", size.test))
    for part, per_cell in sizes:
        with progress(f"forecasts of the {part} part", lines=True) as told:
            jobs[part] = make_scenarios(
                tapes,
                grid=size.grid,
                part=part,
                per_cell=per_cell,
                seed=seed,
                planner=size.planner,
                progress=told,
            )
    runs: dict[str, PoolRun] = {}
    tables: dict[str, Variants] = {}
    for part, scenarios in jobs.items():
        with progress(f"{len(policies)} policies on the {part} jobs", lines=True) as told:
            runs[part] = run_pool(scenarios, policies, processes=processes, progress=told)
        with progress(f"AHAP's variants on the {part} jobs", lines=True) as told:
            tables[part] = run_variants(
                scenarios[: size.table], ahap_variants(), processes=processes, progress=told
            )
    return PoolExperiment(
        tapes=tapes,
        size=size,
        policies=tuple(policies),
        test=runs["test"],
        train=runs["train"],
        table_test=tables["test"],
        table_train=tables["train"],
    )


def answer_of(done: PoolExperiment, *, data: str, seed: int) -> dict[str, Any]:
    """Return the JSON object of the experiment.

    It has `pool_answer` of the test jobs, the choice of the training part, AHAP's table and the claims.
    """
    answer = pool_answer(done.test, data=data, seed=seed)
    rng = np.random.default_rng([seed, 3])
    chosen, test = comparison_of(done.train).best, comparison_of(done.test)
    place = test.of(chosen)
    rules = {
        part: variant_rows(table, rng=rng)
        for part, table in (("train", done.table_train), ("test", done.table_test))
    }
    return {
        **answer,
        "train": {
            "jobs": len(done.train.jobs),
            "best": chosen,
            "mean_utility_on_test": float(test.mean[place]),
            "headroom_captured_on_test": float(test.headroom[place]),
        },
        "published_ideas": ideas_answer(done.test, done.train, rng=np.random.default_rng([seed, 5])),
        "ahap": {"jobs": len(done.table_test.utility), "rows": rules["test"], "train_rows": rules["train"]},
        "claims": [
            *claims(done.test, done.policies, done.table_test, rng=rng),
            default_sentence(rules["train"], done.policies),
        ],
        "notes": [
            *done.tapes.notes,
            join_note(int(done.test.jobs["synthetic"].sum()), len(done.test.jobs)),
            *_cell_notes(done),
        ],
    }


def _cell_notes(done: PoolExperiment) -> list[str]:
    """Return a note on the cells of the grid without a pairing."""
    served = done.test.jobs[list(CELL)].drop_duplicates()
    missing = len(done.size.grid.cells) - len(served)
    if not missing:
        return []
    widest = max(tape.bound for tape in done.tapes.counts)
    return [
        f"{missing} of {len(done.size.grid.cells)} cells are left out: no count series sees more than {widest:.0f} instances"
    ]


def pool_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """Run E1 on a folder."""
    say(f"read {study.data}")
    tapes = read_tapes(study.data)
    policies = [*load_pool(), *published_policies()]
    done = pool_experiment(
        tapes,
        fast_pool(policies) if study.fast else policies,
        size=size_of(study.fast),
        seed=study.seed,
        processes=study.workers(processes),
    )
    value = answer_of(done, data=str(study.data), seed=study.seed)
    return pool_report(value)


#: Number of best policies shown; baselines are always shown.
TOP = 15


def pool_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: utility by policy, gains, headroom by cell, AHAP's variants, and the check of paper A's claims."""
    return Answer(
        title="Policies on the scenario grid (E1)",
        about=(
            f"{answer['jobs']} jobs drawn with seed {answer['seed']} from the later half of every series of {answer['data']}. "
            "Utilities are in units of each job's on-demand-only cost; intervals are 95 %, by a paired "
            f"bootstrap that draws the {answer['blocks']} blocks of jobs (a count series and a day of starts)."
        ),
        value=answer,
        banner=join_banner(answer),
        blocks=[
            _policies(answer),
            _gains(answer),
            _cells(answer),
            *_ideas(answer),
            _ahap(answer),
            Section("What holds on this data", [Notes(answer["claims"])], "claims"),
            _selection(answer),
        ],
        notes=answer["notes"],
    )


def _best_and_baselines(answer: Mapping[str, Any]) -> list[str]:
    """Return the best policies and all baselines."""
    names = list(answer["policies"])
    bases = _baselines(answer)
    return names[:TOP] + [name for name in names[TOP:] if name in bases]


def _sharpened(answer: Mapping[str, Any]) -> str:
    found = answer["sharpened"]
    if found is None:
        return ""
    return (
        f" ({found['baseline']}, a sharpened greedy rule of ours, reaches {found['mean_utility']:.4f}, and over it "
        f"{found['headroom_captured']:.0%} of the headroom was captured)"
    )


def _baselines(answer: Mapping[str, Any]) -> list[str]:
    return list(next(iter(answer["policies"].values()))["relative_gain"])


def _policies(answer: Mapping[str, Any]) -> Section:
    rows, names = answer["policies"], _best_and_baselines(answer)
    best, base, hindsight = answer["best"], answer["baseline"], answer["hindsight"]
    level = rows[base]["mean_utility"]
    train, room = answer["train"], rows[best]["headroom_interval"]
    rest = [name for name in rows if name not in names]
    return Section(
        "Utility by policy",
        [
            f"Best is {best} with {rows[best]['mean_utility']:.4f}; "
            f"the best baseline is {base} with {level:.4f}{_sharpened(answer)}; "
            f"hindsight is {hindsight['low']:.4f} to {hindsight['high']:.4f} (dashed line).",
            f"Bars are 95 % intervals of the paired difference from {base}: jobs differ far more than policies do on one job.",
            f"{best} captured {rows[best]['headroom_captured']:.3f} of the headroom [{room[0]:.3f}, {room[1]:.3f}].",
            f"Chosen on {train['jobs']} jobs of the earlier half: {train['best']}, which captured "
            f"{train['headroom_captured_on_test']:.3f} of the headroom here.",
            _utilities(answer, names, level),
            _policy_table(answer, names),
            *([Fold(f"The other {len(rest)} policies", [_policy_table(answer, rest)])] if rest else []),
        ],
        "policies",
    )


def _utilities(answer: Mapping[str, Any], names: Sequence[str], level: float) -> Figure:
    """Return the chart of mean utility by policy; intervals are those of the difference from the best baseline.

    ``level`` is the mean utility of the best baseline; a line marks hindsight.
    """
    bound, bases = answer["hindsight"]["high"], _baselines(answer)
    means = np.array([answer["policies"][name]["mean_utility"] for name in names])
    ahead = np.array([answer["policies"][name]["ahead_of_baseline_interval"] for name in names])
    low, high = utility_range(means, np.array([name in bases for name in names]), bound)
    seen = means >= low
    low, high = min(low, float((level + ahead)[seen].min())), max(high, float((level + ahead)[seen].max()))
    rows = [
        {
            "label": name,
            "value": max(mean, low),
            "kind": "baseline" if name in bases else "policy",
            "low": level + own[0] if mean >= low else None,
            "high": level + own[1] if mean >= low else None,
            "beyond": None if mean >= low else f"{mean:.3f}",
        }
        for name, mean, own in zip(names, means, ahead, strict=True)
    ]
    axis = Axis(title="mean utility, in units of the on-demand-only cost", low=low, high=high)
    kinds = {"policy": "series1", "baseline": "on-demand"}
    spec = dots(rows, names, x=axis, kinds=kinds, bound=bound, spans=True)
    return Figure(specs=[spec], label="Mean utility of policies with 95 % intervals", width=620)


def _policy_table(answer: Mapping[str, Any], names: Sequence[str]) -> Table:
    rows = [(name, answer["policies"][name]) for name in names]
    table = numbers(
        {
            "policy": "Policy", "mean_utility": "Mean utility", "from": "95 % from", "to": "to",
            "headroom_captured": "Headroom captured", "mean_cost_usd": "Mean cost, USD", "on_time": "On time", "late": "Late",
        },
        [{**with_bounds(row), "policy": name} for name, row in rows],
    )  # fmt: skip
    return replace(table, marked=lambda row: row["policy"] in _baselines(answer))


def _gains(answer: Mapping[str, Any]) -> Section:
    names, bases = [name for name in _best_and_baselines(answer) if name != "OD-only"], _baselines(answer)
    percent = [
        {"policy": n, **{base: 100 * answer["policies"][n]["relative_gain"][base] for base in bases}}
        for n in names
    ]
    largest = answer["largest_gain"]
    return Section(
        "Gain over each baseline",
        [
            *(
                f"Largest gain over {row['baseline']} in any cell: {100 * row['gain']:.1f} % by {row['policy']} at "
                + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["cell"].items())
                + "."
                for row in largest["found"]
            ),
            f"Paper A's only published figure is up to {100 * largest['paper_a']:.1f} % over its baselines.",
            Figures([_gain_figure(base, names, percent) for base in bases]),
            Fold("Numbers", [numbers({"policy": "Policy"} | {base: f"Over {base}, %" for base in bases}, percent, digits=1)],
                 printed=True),
        ],
        "gains",
    )  # fmt: skip


def _gain_figure(base: str, names: Sequence[str], percent: Sequence[Mapping[str, Any]]) -> Figure:
    rows = [{"label": row["policy"], "value": row[base], "kind": ""} for row in percent]
    spec = dots(rows, names, x=Axis(title="relative gain, %", ticks=4), rule=0.0)
    return Figure(specs=[spec], label=f"Relative gain over {base}, percent", title=f"Over {base}", width=0)


def _cells(answer: Mapping[str, Any]) -> Section:
    coarse = answer["cells_by_deadline_load_overhead"]
    won = sum(1 for c in coarse if (c["default_headroom_captured"] or 0) > 0)
    captured = {
        (f"d {c['deadline_slots']}, load {c['load']:g}", f"mu {c['mu_up']:g}, N {c['n_max']}"):
        c["default_headroom_captured"] for c in answer["cells"]
    }  # fmt: skip
    down, across = (list(dict.fromkeys(key[k] for key in captured)) for k in (0, 1))
    rows = [{"y": y, "x": x, "z": captured.get((y, x))} for y in down for x in across]
    spec = heat(rows, x=Axis(), y=Axis(), value="headroom captured")
    columns = {
        "deadline_slots": "Deadline, slots", "load": "Load", "mu_up": "mu up", "jobs": "Jobs", "best": "Best",
        "baseline": "Best baseline", "best_utility": "Utility", "baseline_utility": "Baseline", "hindsight": "Hindsight",
        "headroom_captured": "Headroom captured", "default_headroom_captured": f"by {answer['best']}",
    }  # fmt: skip
    return Section(
        "Headroom captured by cell",
        [
            f"{answer['best']} against the best baseline of each cell. It is ahead in {won} of {len(coarse)} cells by deadline, "
            "load and overhead. An en dash: the baseline is as good as hindsight.",
            Figure(specs=[spec], label="Headroom captured by cell", width=720),
            numbers(columns, coarse, digits=3),
        ],
        "cells",
    )


def _ideas(answer: Mapping[str, Any]) -> list[Section]:
    """Return a sentence for each published idea, computed from its differences; nothing if the pool has no such policy."""
    found = answer["published_ideas"]
    if not found["rows"]:
        return []
    beside = ", ".join(found["references"])
    table = numbers(idea_columns(found["references"]), idea_rows(answer))
    return [
        Section(
            "Published ideas",
            [
                f"Each family after another published idea stands for its member that was best on the training half, beside "
                f"{beside}, chosen likewise. Differences are means over jobs in units of the on-demand-only cost with 95 % "
                "intervals of a paired bootstrap; a cell (deadline, load, overhead) is won or lost where its own interval "
                "leaves 0 out.",
                *(row["sentence"] for row in found["rows"]),
                Fold("The differences as a table", [table], printed=True),
            ],
            "ideas",
        )
    ]


def _ahap(answer: Mapping[str, Any]) -> Section:
    found = answer["ahap"]
    trained = {(r["end_rule"], r["commit"], r["forecasts"]): r["mean_utility"] for r in found["train_rows"]}
    rows = [
        with_bounds(row) | {"train": trained[row["end_rule"], row["commit"], row["forecasts"]]}
        for row in found["rows"]
    ]
    columns = {
        "end_rule": "End rule", "commit": "Commitment", "forecasts": "Forecasts", "mean_utility": "Mean utility",
        "from": "95 % from", "to": "to", "train": "On the training half",
    }  # fmt: skip
    return Section(
        "AHAP: end rules, commitment, forecasts",
        [
            f"Means over windows on {found['jobs']} jobs; perfect forecasts are a bound, no policy has them.",
            numbers(columns, rows),
        ],
        "ahap",
    )


def _selection(answer: Mapping[str, Any]) -> Section:
    s = answer["selection"]
    return Section(
        "Selection",
        [
            f"The default selector ({s['learner']}) over the same jobs: {s['sampled_utility']:.4f} when a policy is drawn by "
            f"weight, {s['leader_utility']:.4f} when the leader is followed; the best fixed policy is {s['best_fixed']} with "
            f"{s['best_fixed_utility']:.4f}. Regret {s['regret']:.2f}, bound {s['bound']:.2f} (normalised utilities)."
        ],
        "selection",
    )
