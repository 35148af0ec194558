"""``slackwater experiment probing``: how often to probe a market when a probe costs money, on recorded counts (M10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from flows.accuracy.units import cores
from flows.command import Answer
from flows.command.progress import progress, say
from flows.experiments.command import StudyOptions
from flows.experiments.material import COUNT_COLUMNS, read_table
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
from optimization.trials.tapes import sample_and_hold
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
    from flows.experiments.probing.answer import probing_answer, probing_blocks
    from flows.experiments.probing.sections import probing_page

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
    value = probing_answer(results, prices, data=str(study.data), seed=seed, fast=fast, notes=notes)
    return Answer(
        title="Probing", value=value, blocks=probing_blocks(value), page=lambda: probing_page(value)
    )


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
