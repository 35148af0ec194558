"""Where the policies after other published ideas win and lose in E1: the section ``published_ideas`` (M10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.experiments.pool.answer import COARSE, SHARPENED
from flows.experiments.runner import PoolRun
from optimization.policies import PUBLISHED_IDEAS
from optimization.policies.contract import Policy
from optimization.policies.pool import load_pool
from optimization.trials.comparison import interval, resampled_means

#: Families that the ideas are held against, each by its member that was best on the training part; and the sharpened greedy rule.
REFERENCES = ("UP", "AHAP", "Stochastic", SHARPENED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean paired difference of two policies over some jobs, in units of the OD-only cost, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``wins``, ``loses``, or ``even`` where the interval holds 0."""
        if self.low > 0.0:
            return "wins"
        return "loses" if self.high < 0.0 else "even"

    def row(self) -> dict[str, Any]:
        """As an entry of the answer."""
        return {"difference": self.mean, "interval": [self.low, self.high]}


def family_of(name: str) -> str:
    """The family of a canonical name: ``AHAP`` of ``AHAP(5,1,0.9)``."""
    return name.split("(")[0]


def best_of_family(run: PoolRun, family: str) -> str | None:
    """The member of a family with the largest mean utility in ``run``, the first of those that tie; None without members."""
    places = [i for i, name in enumerate(run.policies) if family_of(name) == family]
    mean = run.relative.mean(axis=0)
    return run.policies[max(places, key=lambda i: mean[i])] if places else None


def ideas_answer(test: PoolRun, train: PoolRun, *, rng: np.random.Generator) -> dict[str, Any]:
    """The object ``published_ideas``: each family of M10 beside the references, over all jobs and by cell of the test part.

    Every family and reference stands for its member that was best on the *training* part, so that nothing here is chosen
    on the jobs it is shown on. ``against`` gives the paired difference from each reference with its 95 % interval over
    jobs, in how many cells (deadline, load, overhead) the interval lies above 0 (won) and below it (lost), and the cells
    of the largest gain and loss.
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


def paired(values: np.ndarray, *, rng: np.random.Generator) -> Difference:
    """The mean of paired differences (jobs,) and its bootstrap interval."""
    low, high = interval(resampled_means(values[:, None], rng=rng))
    return Difference(mean=float(values.mean()), low=float(low[0]), high=float(high[0]))


def _against(run: PoolRun, name: str, other: str, *, rng: np.random.Generator) -> dict[str, Any]:
    """One policy beside one reference: over all jobs, and cell by cell."""
    ahead = _column(run, name) - _column(run, other)
    cells = []
    for key, group in run.jobs.groupby(list(COARSE), sort=True):
        found = paired(ahead[group.index.to_numpy()], rng=rng)
        values = key if isinstance(key, tuple) else (key,)
        cells.append({**dict(zip(COARSE, values, strict=True)), **found.row(), "verdict": found.verdict})
    # An extreme among the cells that are decided, where there are any: noise is largest in the others.
    gain = {key: [c for c in cells if c["verdict"] == key] or cells for key in ("wins", "loses")}
    whole = paired(ahead, rng=rng)
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
    """Where a policy wins and loses, from the numbers alone; where most, by the reference that plans with the same forecasts."""
    if not against:
        return f"{name}: nothing in this pool to hold it against."
    parts = [_beside(other, found) for other, found in against.items()]
    where = [_extremes(other, found) for other, found in against.items() if family_of(other) == "AHAP"]
    return f"{name}: {'; '.join(parts)}." + "".join(where)


def _beside(other: str, found: Mapping[str, Any]) -> str:
    verb = {"wins": "ahead of", "loses": "behind", "even": "no different from"}[found["verdict"]]
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
    """A row a family for tables: utility, and the difference from each reference with cells won and lost."""
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
    """The columns of `idea_rows` with their headings."""
    columns = {"policy": "Policy", "mean_utility": "Mean utility"}
    for other in references:
        columns |= {f"over {other}": f"Over {other}", f"cells {other}": "Cells won : lost"}
    return columns


def _difference(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['difference']:+.4f} [{low:+.4f}, {high:+.4f}]"


def _score(found: Mapping[str, Any]) -> str:
    return f"{found['won']} : {found['lost']} of {found['cells']}"


def ideas_and_rules() -> tuple[Policy[Any], ...]:
    """The pool's policies of M10, and beside them two rules that read no forecast: what E2 asks beside AHAP."""
    wanted = (*PUBLISHED_IDEAS, "UP", SHARPENED)
    return tuple(policy for policy in load_pool() if family_of(policy.name) in wanted)


def robustness_of_ideas(policies: Sequence[Policy[Any]], utility: np.ndarray) -> list[dict[str, Any]]:
    """Consistency (mean utility with perfect forecasts) and robustness (worst mean over errors) of policies (M10).

    ``utility`` has shape (jobs, kinds, sizes, policies), the first size being no error.
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
    """Every policy of E2 with its consistency and robustness: AHAP by window and commitment, then the policies beside it."""
    ahap = [{**row, "policy": f"AHAP({row['omega']},{row['v']})"} for row in answer["robustness"]]
    return [*ahap, *answer["published_ideas"]]
