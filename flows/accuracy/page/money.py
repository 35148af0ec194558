"""What the errors cost: utility lost against perfect forecasts by model, beside the ranking by accuracy (M5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from flows.accuracy.page.drawings import Cost, draw_cost
from flows.accuracy.page.reading import Models, by_step
from flows.show.formats import MISSING, as_number, listed, number, percent

if TYPE_CHECKING:
    from flows.accuracy.error_cost import ErrorCost

#: Steps ahead over which accuracy is ranked here: as far as the plans look.
NEAR: Final = 4
#: Fewer models than this have no rank correlation worth a number.
FEWEST: Final = 4
#: Rank correlations from which two rankings are said to agree, and to agree in part.
AGREE, PARTLY = 0.7, 0.3


def money_view(cost: ErrorCost | None, pooled: pd.DataFrame, models: Models) -> dict[str, Any]:
    """The models by utility lost, beside their ranks by accuracy: the mean over the policies first, then each policy.

    ``pooled`` is the pooled table of all variables.
    """
    if cost is None:
        return {"blocks": []}
    from flows.accuracy.error_cost import ALL_POLICIES, cost_sentences

    ranks = accuracy_ranks(pooled)
    groups = {str(policy): rows for policy, rows in cost.table.groupby("policy", sort=False)}
    order = sorted(groups, key=lambda policy: policy != ALL_POLICIES)
    blocks = [_block(policy, groups[policy], ranks, models, i) for i, policy in enumerate(order)]
    for block, policy in zip(blocks, order, strict=True):
        block["title"] = "Mean over the policies" if policy == ALL_POLICIES else policy
    sentences = [*cost_sentences(cost), *_verdict(groups[order[0]], models, ranks)]
    return {
        "blocks": blocks,
        "sentences": sentences,
        "notes": cost.notes,
        "variables": list(ranks.columns),
        "policies": cost.policies,
    }


def accuracy_ranks(pooled: pd.DataFrame) -> pd.DataFrame:
    """Rank by mean pinball skill over the first `NEAR` steps (1 = best, ties share the mean): models by variable."""
    near = pooled[pooled["step"] <= NEAR]
    ranks = {
        str(variable): by_step(rows, "skill_pinball").mean().rank(ascending=False)
        for variable, rows in near.groupby("variable")
    }
    return pd.DataFrame(ranks)


def _block(policy: str, rows: pd.DataFrame, ranks: pd.DataFrame, models: Models, i: int) -> dict[str, Any]:
    ranked = rows["money_rank"].notna()
    ordered = pd.concat([rows[ranked].sort_values(["money_rank", "model"], kind="stable"), rows[~ranked]])
    drawn = ordered[ordered["lost"].abs() + ordered["lost_high"].abs() > 0]
    return {
        "svg": draw_cost(
            _cost(drawn, models), name=f"cost-{i}", label=f"Utility lost by model, policy {policy}"
        ),
        "rows": [_row(row, ranks, models) for row in ordered.to_dict("records")],
    }


#: How the rows that are no model are shown.
_REFERENCES: Final = {"perfect": "perfect forecasts", "none": "none: the present slot alone"}


def _row(row: dict[Any, Any], ranks: pd.DataFrame, models: Models) -> dict[str, Any]:
    model = str(row["model"])
    reference = as_number(row["money_rank"]) is None
    return {
        "model": _REFERENCES.get(model, model) if reference else models.title(model),
        "default": model == models.default,
        "reference": reference,
        "rank": _rank(row["money_rank"]),
        "ranks": [_rank(ranks[variable].get(model)) for variable in ranks.columns],
        "lost": _interval(row, "lost"),
        "gained": _interval(row, "gained"),
        "captured": percent_whole(row["captured"]),
        "to_counts": number(row["lost_to_counts"], 4),
        "utility": number(row["mean_utility"], 4),
        "on_time": percent(row["on_time_share"]),
    }


def percent_whole(value: Any) -> str:
    """A share of 1 in whole per cent, with its sign where it is negative.

    >>> percent_whole(0.412), percent_whole(-0.2), percent_whole(float("nan"))
    ('41 %', '−20 %', '—')
    """
    found = as_number(value)
    return MISSING if found is None else f"{100 * found:.0f} %".replace("-", "−")


def _cost(rows: pd.DataFrame, models: Models) -> Cost:
    reference = rows["money_rank"].isna()
    return Cost(
        labels=[
            ("no forecast" if gone else str(m)) for m, gone in zip(rows["model"], reference, strict=True)
        ],
        lost=rows["lost"].to_numpy(dtype=float),
        low=rows["lost_low"].to_numpy(dtype=float),
        high=rows["lost_high"].to_numpy(dtype=float),
        bold=(rows["model"] == models.default).to_numpy(dtype=bool),
        reference=reference.to_numpy(dtype=bool),
    )


def _interval(row: dict[Any, Any], name: str) -> str:
    low, high = (number(row[f"{name}_{end}"], 4) for end in ("low", "high"))
    found = number(row[name], 4)
    return found if MISSING in (low, high) else f"{found} ({low} to {high})"


def _rank(value: Any) -> str:
    found = as_number(value)
    return MISSING if found is None else f"{found:.1f}".removesuffix(".0")


def _verdict(rows: pd.DataFrame, models: Models, ranks: pd.DataFrame) -> list[str]:
    """Where the default stands by money, and whether the ranking by accuracy on each variable is the same."""
    money = rows[rows["money_rank"].notna()].set_index("model")["money_rank"].astype(float)
    lines = []
    if models.default in money.index and money[models.default] > money.min():
        best = listed(sorted(str(m) for m in money.index[money == money.min()]))
        lines.append(
            f"The default ({models.default}) is number {_rank(money[models.default])} of {len(money)} models by money; least is "
            f"lost with {best}."
        )
    return lines + [
        line for variable in ranks.columns if (line := _agreement(money, ranks[variable], variable))
    ]


def _agreement(money: pd.Series, ranks: pd.Series, variable: str) -> str:
    both = pd.concat([money, ranks], axis=1, keys=["money", "accuracy"]).dropna()
    spread = len(both) >= FEWEST and np.ptp(both["money"]) > 0 and np.ptp(both["accuracy"]) > 0
    if not spread:
        return ""
    rho = float(both["money"].corr(both["accuracy"]))
    verdict = "agree" if rho >= AGREE else "agree in part" if rho >= PARTLY else "do not agree"
    accurate, cheap = (
        listed(sorted(str(m) for m in both.index[both[key] == both[key].min()]))
        for key in ("accuracy", "money")
    )
    return (
        f"The rankings by money and by pinball skill on the {variable} (first {NEAR} steps) {verdict}: Spearman {number(rho)} over "
        f"{len(both)} models; most accurate is {accurate}, least is lost with {cheap}."
    )
