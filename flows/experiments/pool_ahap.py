"""What helps AHAP: its end rules, ways of committing and forecasts side by side on the same jobs (M3.3, M4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.experiments.material import HORIZON
from flows.experiments.runner import PoolRun, Progress
from optimization.policies.committed_horizon import Ahap, Commit
from optimization.policies.contract import Policy
from optimization.replay.ledger import perfect_forecasts
from optimization.replay.run import PlanMemo, replay_pool, spread
from optimization.trials.comparison import interval, resampled_means
from optimization.trials.scenarios import Scenario
from optimization.window.plan import EndRule

#: What a plan is made from: forecasts as issued, the present held, the truth.
FORECASTS = ("issued", "last_value", "perfect")
#: The ways of committing in words.
WAYS = {Commit.MEAN: "mean of plans", Commit.LAST: "last plan"}
#: (omega, v) of the table; v = 1 and v = omega are the two ends of commitment.
SHAPES = ((1, 1), (3, 1), (3, 3), (5, 1), (5, 5))
#: End rules of the table.
END_RULES = tuple(EndRule)
#: The price threshold of the table: it takes all spot that is not nearly as dear as on-demand.
SIGMA = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Utilities of AHAP's variants in units of each job's OD-only cost, shape (jobs, forecasts, policies)."""

    policies: tuple[Ahap, ...]
    utility: np.ndarray

    def places(self, **wanted: Any) -> list[int]:
        """Places of the policies with these attributes."""
        return [
            i
            for i, policy in enumerate(self.policies)
            if all(getattr(policy, key) == value for key, value in wanted.items())
        ]


def ahap_variants() -> tuple[Ahap, ...]:
    """Every end rule and way of committing for each of `SHAPES`; for v = 1 the two ways are one."""
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
    """Replay the variants on every scenario with issued, held and perfect forecasts."""
    rows = list(spread(_utilities, scenarios, tuple(policies), processes=processes, progress=progress))
    return Variants(policies=tuple(policies), utility=np.array(rows))


def _utilities(scenario: Scenario, policies: tuple[Policy[Any], ...]) -> np.ndarray:
    window, memo = scenario.window, PlanMemo()
    kinds = (scenario.forecasts, None, perfect_forecasts(window, HORIZON))
    outcomes = [
        replay_pool(policies, scenario.job, window, forecasts=forecasts, record=scenario.record, memo=memo)
        for forecasts in kinds
    ]
    return np.array([[o.utility_usd / scenario.unit for o in made] for made in outcomes])


def variant_rows(found: Variants, *, rng: np.random.Generator) -> list[dict[str, Any]]:
    """One row for each end rule, way of committing and kind of forecast: the mean over shapes with its interval.

    The way of committing is "any" where v = 1. Shapes without a choice of v are left out of the rows for v > 1.
    """
    rows: list[dict[str, Any]] = []
    columns = []
    for rule in END_RULES:
        for way, places in _ways(found, rule):
            for k, forecasts in enumerate(FORECASTS):
                rows.append({"end_rule": rule.value, "commit": way, "forecasts": forecasts})
                columns.append(found.utility[:, k, places].mean(axis=1))
    table = np.column_stack(columns)
    low, high = interval(resampled_means(table, rng=rng))
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
    """A paired difference of two means over jobs, with its 95 % interval."""

    first: float
    second: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``helps``, ``hurts`` or ``makes no clear difference``: second against first."""
        if self.low > 0:
            return "helps"
        return "hurts" if self.high < 0 else "makes no clear difference"

    def __str__(self) -> str:
        change = self.second - self.first
        return f"{self.first:.4f} -> {self.second:.4f}, difference {change:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def contrast(first: np.ndarray, second: np.ndarray, *, rng: np.random.Generator) -> Contrast:
    """``second`` against ``first``, each the utility per job, shape (jobs,)."""
    low, high = interval(resampled_means((second - first)[:, None], rng=rng))
    return Contrast(
        first=float(first.mean()), second=float(second.mean()), low=float(low[0]), high=float(high[0])
    )


def claims(
    run: PoolRun, policies: Sequence[Policy[Any]], found: Variants, *, rng: np.random.Generator
) -> list[str]:
    """Plain sentences on what paper A claims of windows, commitment and forecasts, computed from the numbers of this data."""
    widest = max(p.omega for p in policies if isinstance(p, Ahap))

    def of(omega: int, v: int) -> np.ndarray:
        at = [
            i for i, p in enumerate(policies) if isinstance(p, Ahap) and (p.omega, p.commitment) == (omega, v)
        ]
        return np.asarray(run.relative[:, at].mean(axis=1))

    window = contrast(of(1, 1), of(widest, 1), rng=rng)
    commitment = contrast(of(widest, 1), of(widest, widest), rng=rng)
    return [
        _sentence(f"A larger window (omega 1 -> {widest}, v = 1, issued forecasts)", window),
        _sentence(f"Larger commitment (v 1 -> {widest} at omega = {widest}, issued forecasts)", commitment),
        *_forecast_sentences(found, rng),
    ]


def _sentence(what: str, found: Contrast) -> str:
    text = f"{what} {found.verdict} on this data: mean utility {found}."
    return (
        text
        if found.verdict == "helps"
        else f"{text} Paper A's claim that more of it helps does not hold here."
    )


def _forecast_sentences(found: Variants, rng: np.random.Generator) -> list[str]:
    """For each end rule what issued forecasts gain over the last value held, and perfect ones over issued ones."""
    sentences = []
    for rule in END_RULES:
        at = [i for i in found.places(end_rule=rule) if found.policies[i].omega > 1]
        issued, held, perfect = (found.utility[:, k, at].mean(axis=1) for k in range(3))
        gained = contrast(held, issued, rng=rng)
        name = rule.value.replace("_", " ")
        sentences += [
            f"Issued forecasts against the last value held (end rule {name}, omega > 1): AHAP's utility {gained}; planning with "
            f"them {gained.verdict}.",
            f"Perfect forecasts against issued ones (end rule {name}, omega > 1): {contrast(issued, perfect, rng=rng)}.",
        ]
    return sentences


def default_sentence(train_rows: Sequence[dict[str, Any]], policies: Sequence[Policy[Any]]) -> str:
    """Which end rule and way of committing is best with issued forecasts on the training part, and which the pool has."""
    issued = [row for row in train_rows if row["forecasts"] == "issued"]
    best = max(issued, key=lambda row: row["mean_utility"])
    pool = [policy for policy in policies if isinstance(policy, Ahap)]
    rules = sorted({policy.end_rule.value.replace("_", " ") for policy in pool})
    ways = sorted({WAYS[policy.commit] for policy in pool if policy.commitment > 1})
    return (
        f"Best on the training half with issued forecasts: end rule {best['end_rule'].replace('_', ' ')}, {best['commit']} "
        f"({best['mean_utility']:.4f}); the pool's AHAP has {' and '.join(rules)} and, for v > 1, {' and '.join(ways)}."
    )
