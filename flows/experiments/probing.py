"""``slackwater experiment probing``: how often to probe a market when a probe costs money, on recorded counts (M10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.accuracy.units import cores
from flows.command import Answer, progress, say
from flows.experiments.material import COUNT_COLUMNS, read_table
from flows.experiments.study import StudyOptions, quick_look
from flows.show.blocks import Figure, Fold, Notes, Section, numbers
from flows.show.charts import Axis, lines
from optimization.replay.run import spread
from optimization.trials.probing import (
    Ahead,
    Rule,
    Stakes,
    Tracked,
    Waits,
    Watch,
    best_waits,
    fixed_waits,
    greedy_waits,
    levels_of,
    track,
    transitions_seen,
)
from optimization.trials.scenarios import sample_and_hold
from warehouse.errors import MarketError

#: Slots are as long as the distance of probes, but not shorter than this.
SHORTEST_STEP = pd.Timedelta(minutes=5)
#: A count is known for so many nominal gaps (M1.3); wider ones than `WIDEST` are left out, their chains would be guesses.
KNOWN_GAPS, WIDEST = 3, 32
#: The longest wait between two probes, the distance of re-estimations, and the half-life of what was learned.
LONGEST, RELEARN, HALF_LIFE = pd.Timedelta(days=1), pd.Timedelta(days=1), pd.Timedelta(days=3)
#: Prices of a probe in what an instance missed or missing costs in an hour; those of a quick look.
PRICES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FAST_PRICES = (0.01, 0.1, 1.0)
#: Intervals of probing that do not look at what was seen, in minutes; each is rounded to slots.
INTERVALS = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 720, 1440)
#: The fewest known slots, and changes of value, of either half.
LEAST_SLOTS, LEAST_CHANGES = 200, 5
FAST_SERIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedSeries:
    """One market's counts on a grid of ``step``, NaN in gaps; the first half is known in full, the second only where probed."""

    label: str
    capacity: int
    step: pd.Timedelta
    counts: np.ndarray

    @property
    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Before and after the middle."""
        middle = len(self.counts) // 2
        return self.counts[:middle], self.counts[middle:]

    def slots(self, time: pd.Timedelta) -> int:
        """A time in slots, at least one."""
        return max(1, round(time / self.step))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesResult:
    """What rules paid on one series' second half.

    ``fixed`` maps an interval in minutes to what probing at it paid (with the chain's guess), ``fixed_train`` the same on the
    first half, ``held`` with the last value as the guess; ``rules`` maps a rule to one result a price. All are per slot.
    """

    series: ProbedSeries
    fixed: dict[int, Tracked]
    fixed_train: dict[int, Tracked]
    held: dict[int, Tracked]
    rules: dict[str, list[Tracked]]


#: The rules that look at what was seen, whether they go on learning, and whether they guess the count seen last.
RULES: dict[str, tuple[Rule, bool, bool]] = {
    "best": (best_waits, True, False),
    "best, last value": (best_waits, True, True),
    "best, not relearned": (best_waits, False, False),
    "greedy": (greedy_waits, True, False),
}


def probing_study(study: StudyOptions) -> Answer:
    """Follow every probed series of a folder by every rule at every price of a probe."""
    seed, fast = study.seed, study.fast
    series, notes = read_probed(study.data)
    if fast:
        rng = np.random.default_rng([seed, 51])
        series = [series[i] for i in sorted(rng.permutation(len(series))[:FAST_SERIES].tolist())]
    for note in notes:
        say(note)
    prices = FAST_PRICES if fast else PRICES
    with progress("series") as told:
        results = list(spread(follow_series, series, prices, processes=cores(), progress=told))
    answer = probing_answer(results, prices, data=str(study.data), seed=seed, fast=fast, notes=notes)
    return probing_report(answer)


def read_probed(folder: Path) -> tuple[list[ProbedSeries], list[str]]:
    """The series of kind ``probe`` with a stated capacity that move in both halves, and in words what was left out.

    Raises `SourceFileError` for a table that cannot be used, `MarketError` if no series is left.
    """
    table = read_table(folder, "availability", COUNT_COLUMNS)
    usable = table[
        (table["kind"] == "probe") & table["capacity_probed"].notna() & table["gap_seconds"].notna()
    ]
    kept, dull = [], 0
    for one in _series(usable):
        if all(_moves(half) for half in one.halves) and one.capacity <= WIDEST:
            kept.append(one)
        else:
            dull += 1
    if not kept:
        raise MarketError(
            f"{folder}: of {dull} series of probes none has {LEAST_SLOTS} known slots and {LEAST_CHANGES} changes in each half",
            expected="at least one longer series of kind probe",
            remedy="give a folder with longer series",
        )
    note = f"{len(kept)} of {len(kept) + dull} series of probes move in both halves and see at most {WIDEST} instances"
    return kept, [note]


def _series(table: pd.DataFrame) -> Iterator[ProbedSeries]:
    keys = ["source", "provider", "region", "zone", "instance_type"]
    for key, rows in table.groupby(keys, dropna=False, sort=True):
        rows = rows.sort_values("timestamp", kind="stable").drop_duplicates("timestamp", keep="last")
        gap = pd.Timedelta(seconds=float(rows["gap_seconds"].median()))
        step = max(gap, SHORTEST_STEP)
        times = pd.DatetimeIndex(rows["timestamp"]).tz_convert("UTC").tz_localize(None)
        grid = pd.date_range(times[0].ceil(step), times[-1], freq=step)
        yield ProbedSeries(
            label="/".join(map(str, key[1:])) + f"@{key[0]}",
            capacity=int(rows["capacity_probed"].max()),
            step=step,
            counts=sample_and_hold(
                times.to_numpy(dtype="datetime64[ns]"),
                rows["available"].to_numpy(dtype=float, na_value=np.nan),
                grid.to_numpy(dtype="datetime64[ns]"),
                max_age=max(step, KNOWN_GAPS * gap).to_timedelta64(),
            ),
        )


def _moves(counts: np.ndarray) -> bool:
    seen = counts[~np.isnan(counts)]
    return len(seen) >= LEAST_SLOTS and int(np.count_nonzero(np.diff(seen))) >= LEAST_CHANGES


def stakes_of(series: ProbedSeries, price: float) -> Stakes:
    """An instance missed or missing costs 1 an hour, a probe ``price``."""
    hours = series.step / pd.Timedelta(hours=1)
    return Stakes(absent=hours, unpredicted=hours, probe=price)


def follow_series(series: ProbedSeries, prices: Sequence[float]) -> SeriesResult:
    """Every rule at every price, and every fixed interval, on one series; what is learned comes from the first half and probes."""
    before, after = series.halves
    watch = Watch(
        levels=levels_of(series.capacity),
        stakes=stakes_of(series, 0.0),
        longest=series.slots(LONGEST),
        relearn=series.slots(RELEARN),
        half_life=HALF_LIFE / series.step,
    )
    seen = transitions_seen(before, watch)
    # On the first half an interval is judged with a chain of the first half: it has to choose the interval only.
    return SeriesResult(
        series=series,
        fixed=_at_intervals(series, after, seen, watch),
        fixed_train=_at_intervals(series, before, seen, watch),
        held=_at_intervals(series, after, seen, replace(watch, hold=True)),
        rules={
            name: [
                track(after, seen, rule, replace(own, stakes=stakes_of(series, price))) for price in prices
            ]
            for name, (rule, relearned, hold) in RULES.items()
            for own in (replace(watch, relearn=watch.relearn if relearned else 0, hold=hold),)
        },
    )


def _at_intervals(
    series: ProbedSeries, counts: np.ndarray, seen: np.ndarray, watch: Watch
) -> dict[int, Tracked]:
    found = {}
    for minutes in INTERVALS:
        every = round(pd.Timedelta(minutes=minutes) / series.step)
        if every >= 1 and every * series.step == pd.Timedelta(minutes=minutes):
            found[minutes] = track(counts, seen, _every(every), watch)
    return found


def _every(slots: int) -> Rule:
    def rule(ahead: Ahead, stakes: Stakes) -> Waits:
        return fixed_waits(slots, ahead, stakes)

    return rule


# What probing at a cost comes to: money and errors of every rule beside fixed intervals, by class of series and price (M10).

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


#: The rules that are drawn.
DRAWN = ("best", "best, last value", "best, not relearned", "greedy", HELD, HINDSIGHT)


def probing_report(answer: Mapping[str, Any]) -> Answer:
    """What a person sees: findings, then cost and errors against the price of a probe, for each class of series."""
    sections = [Section("Findings", [Notes(answer["findings"])], "findings")]
    for name, own in answer["classes"].items():
        anchor = "single" if name == "0/1" else "counts"
        sections += [
            Section(
                f"Cost against the price of a probe: {own['series']} series, {name}",
                [
                    "Errors and probes together, beside those of the interval that was best on the first half (100 %).",
                    "The best rule waits after each count as long as its chain says, greedy until the expected loss of a slot "
                    "exceeds the price of a probe.",
                    _costs_figure(own["rules"]),
                    Fold("Numbers", [numbers(COLUMNS, own["rules"])], printed=True),
                ],
                anchor,
            ),
            Section(
                f"Errors at the same number of probes: {name}",
                [
                    "The fixed interval here is the one that probes as often as the best rule did.",
                    numbers(EQUAL_COLUMNS, own["equal_probes"]),
                ],
                f"{anchor}-equal",
            ),
        ]
    return Answer(
        title="How often to probe when a probe costs money",
        about=f"{len(answer['series'])} probed series of {answer['data']}, seed {answer['seed']}{quick_look(answer)}.",
        value=answer,
        blocks=sections,
        notes=answer["notes"],
    )


def _costs_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Cost of each drawn rule in percent of the chosen interval's, against the price of a probe."""
    base = {row["price"]: row["cost"] for row in rows if row["rule"] == CHOSEN}
    points = [
        {"x": row["price"], "y": 100.0 * row["cost"] / base[row["price"]], "series": row["rule"]}
        for row in rows
        if row["rule"] in DRAWN
    ]
    spec = lines(
        points, DRAWN, rule=100.0,
        x=Axis(title="price of a probe, instance-hours", log=True, at=sorted(base), format="~g"),
        y=Axis(title="cost, % of the chosen interval's", zero=False),
    )  # fmt: skip
    return Figure(
        specs=[spec], label="Cost of probing rules beside a fixed interval, by price of a probe", width=720
    )
