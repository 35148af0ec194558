"""What probing at a cost comes to: money and errors of every rule beside fixed intervals, by class of series and price (M10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.experiments.probing.study import RULES, ProbedSeries, SeriesResult
from flows.show.blocks import Block, Notes, Table
from optimization.trials.probing import Tracked

COLUMNS = {
    "price": "price of a probe", "rule": "rule", "cost": "cost an hour", "errors": "of it errors", "minutes": "minutes apart",
    "wrong": "wrong share of time", "absent": "absent", "unpredicted": "unpredicted",
}  # fmt: skip
EQUAL_COLUMNS = {
    "price": "price of a probe", "minutes": "minutes apart", "best": "errors, best rule", "fixed": "errors, fixed interval",
    "saved": "saved", "wins": "series it wins", "series": "of",
}  # fmt: skip
#: Rules that probe at one interval: chosen on the first half, the last value as guess at that interval, and at every slot.
CHOSEN, HELD, ALWAYS = "fixed", "fixed, last value", "every slot"
HINDSIGHT = "fixed, best in hindsight"
#: Prices that are told in words; the tables have all.
TOLD_PRICES = (0.01, 0.1, 1.0)


def probing_answer(
    results: Sequence[SeriesResult],
    prices: Sequence[float],
    *,
    data: str,
    seed: int,
    fast: bool,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The object of ``experiment probing --json``; costs and errors in instance-hours an hour, means over series of a class."""
    classes: dict[str, list[SeriesResult]] = {}
    for one in results:
        classes.setdefault("0/1" if one.series.capacity == 1 else "counts", []).append(one)
    answer: dict[str, Any] = {
        "data": data,
        "seed": seed,
        "fast": fast,
        "prices": list(prices),
        "series": [
            {"market": one.series.label, "capacity": one.series.capacity, "minutes": _minutes(one.series)}
            for one in results
        ],
        "classes": {
            name: {"series": len(own), "rules": _rows(own, prices), "equal_probes": _equal(own, prices)}
            for name, own in sorted(classes.items())
        },
        "notes": [
            *notes,
            "An instance guessed and absent, or there and unpredicted, costs 1 an hour; the price of a probe is in that unit. In a "
            "slot that is probed nothing is guessed. The first half of a series is known in full, the second only where probed.",
            "The series were probed every 5 or 10 minutes: what happened in between is unknown, as is the worth of faster probing.",
        ],
    }
    return answer | {"findings": findings(answer)}


def _minutes(series: ProbedSeries) -> float:
    return float(series.step / pd.Timedelta(minutes=1))


def _at_price(one: SeriesResult, rule: str, place: int, price: float) -> tuple[Tracked, float]:
    """What a rule paid on a series at a price, and the cost per slot at that price, instance-hours."""
    hours = _minutes(one.series) / 60.0

    def cost(found: Tracked) -> float:
        return hours * (found.absent + found.unpredicted) + price * found.probes

    if rule in RULES:
        found = one.rules[rule][place]
        return found, cost(found)
    minutes = {
        CHOSEN: min(one.fixed_train, key=lambda m: cost(one.fixed_train[m])),
        HELD: min(one.fixed_train, key=lambda m: cost(one.fixed_train[m])),
        HINDSIGHT: min(one.fixed, key=lambda m: cost(one.fixed[m])),
        ALWAYS: min(one.fixed),
    }[rule]
    found = one.held[minutes] if rule == HELD else one.fixed[minutes]
    return found, cost(found)


def _rows(results: Sequence[SeriesResult], prices: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for place, price in enumerate(prices):
        for rule in (*RULES, CHOSEN, HELD, HINDSIGHT, ALWAYS):
            found = [_at_price(one, rule, place, price) for one in results]
            hours = np.array([_minutes(one.series) / 60.0 for one in results])
            costs = np.array([cost for _, cost in found]) / hours
            probes = np.array([one.probes for one, _ in found])
            rows.append(
                {
                    "price": price,
                    "rule": rule,
                    "cost": float(costs.mean()),
                    "errors": float(np.mean([one.absent + one.unpredicted for one, _ in found])),
                    "minutes": float(60.0 / np.mean(probes / hours)),
                    "wrong": float(np.mean([one.wrong for one, _ in found])),
                    "absent": float(np.mean([one.absent for one, _ in found])),
                    "unpredicted": float(np.mean([one.unpredicted for one, _ in found])),
                }
            )
    return rows


def _equal(results: Sequence[SeriesResult], prices: Sequence[float]) -> list[dict[str, Any]]:
    """Errors of the best rule beside a fixed interval that probes as often, by price; instance-hours an hour."""
    rows = []
    for place, price in enumerate(prices):
        mine = [one.rules["best"][place] for one in results]
        theirs = [errors_at(one.fixed, own.probes) for one, own in zip(results, mine, strict=True)]
        errors = [one.absent + one.unpredicted for one in mine]
        hours = [_minutes(one.series) / 60.0 for one in results]
        total = float(np.sum(theirs))
        rows.append(
            {
                "price": price,
                "minutes": float(60.0 / np.mean([o.probes / h for o, h in zip(mine, hours, strict=True)])),
                "best": float(np.mean(errors)),
                "fixed": float(np.mean(theirs)),
                "saved": 1.0 - float(np.sum(errors)) / total if total > 0 else 0.0,
                "wins": int(np.sum(np.array(errors) < np.array(theirs) - 1e-12)),
                "series": len(results),
            }
        )
    return rows


def errors_at(fixed: Mapping[int, Tracked], probes: float) -> float:
    """Errors of probing at fixed intervals so often as ``probes`` (a share of slots), between the intervals by interpolation."""
    rows = sorted((one.probes, one.absent + one.unpredicted) for one in fixed.values())
    return float(np.interp(probes, [r[0] for r in rows], [r[1] for r in rows]))


def findings(answer: Mapping[str, Any]) -> list[str]:
    """Sentences computed from the numbers, whichever way they fall."""
    lines = []
    for name, own in answer["classes"].items():
        what = "0/1 series" if name == "0/1" else "series of counts"
        for price in (price for price in answer["prices"] if price in TOLD_PRICES):
            rows = {row["rule"]: row for row in own["rules"] if row["price"] == price}
            best, fixed = rows["best"], rows[CHOSEN]
            lines.append(
                f"{own['series']} {what}, a probe at {price:g} instance-hours: the best rule probes every "
                f"{best['minutes']:.0f} minutes and pays {best['cost']:.4f} an hour, the interval chosen on the first half "
                f"({fixed['minutes']:.0f} minutes) {fixed['cost']:.4f} ({_change(best['cost'], fixed['cost'])}), greedy "
                f"{rows['greedy']['cost']:.4f}, every slot {rows[ALWAYS]['cost']:.4f}."
            )
        saved = [row["saved"] for row in own["equal_probes"]]
        wins, of = (sum(row[key] for row in own["equal_probes"]) for key in ("wins", "series"))
        lines.append(
            f"{what[0].upper()}{what[1:]}, at the same number of probes: the best rule's errors are {_saved(min(saved))} to "
            f"{_saved(max(saved))} than a fixed interval's over the prices; it wins in {wins} of {of} pairs of series and price "
            "(a tie is no win)."
        )
        lines.append(_learning(own, what))
    return lines


def _learning(own: Mapping[str, Any], what: str) -> str:
    """Every rule's cost in that of the interval chosen on the first half, mean over prices."""
    cost = {(row["rule"], row["price"]): row["cost"] for row in own["rules"]}
    prices = sorted({price for _, price in cost})
    ratio = {
        rule: float(np.mean([cost[rule, p] / cost[CHOSEN, p] for p in prices if cost[CHOSEN, p] > 0]))
        for rule in (*RULES, HELD, HINDSIGHT)
    }
    named = ", ".join(f"{rule} {_change(value, 1.0)}" for rule, value in ratio.items())
    return f"{what[0].upper()}{what[1:]}, cost beside the interval chosen on the first half, mean over prices: {named}."


def _change(mine: float, theirs: float) -> str:
    return f"{100 * (mine / theirs - 1):+.0f} %" if theirs > 0 else "nothing to save"


def _saved(share: float) -> str:
    return f"{abs(100 * share):.0f} % {'lower' if share >= 0 else 'higher'}"


def probing_blocks(answer: Mapping[str, Any]) -> list[Block]:
    """Two tables a class, the findings and the notes."""
    blocks: list[Block] = []
    for name, own in answer["classes"].items():
        blocks.append(Table(f"Probing {name}, {own['series']} series", own["rules"], COLUMNS))
        blocks.append(
            Table(f"{name}: errors at the same number of probes", own["equal_probes"], EQUAL_COLUMNS)
        )
    for line in answer["findings"]:
        blocks.append(line)
    blocks.append(Notes(answer["notes"]))
    return blocks
