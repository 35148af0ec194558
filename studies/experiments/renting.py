"""``slackwater experiment renting``: rent on real markets with a budget in USD, at list price or with forecasts (M8.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.flows.command import Answer, progress
from slackwater.flows.show.blocks import Figure, Figures, Notes, Section, numbers
from slackwater.flows.show.charts import Axis, dots
from slackwater.forecasting.accuracy.intervals import interval_words
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.renting.budget import JobType, Rental
from slackwater.optimization.renting.price import DeadlineDelay, PricedDelay, affordable
from slackwater.optimization.renting.simulation import Stream, job_stream
from slackwater.optimization.renting.speedup import AmdahlSpeedup, Exponential, PowerSpeedup
from slackwater.studies.experiments.material import read_tapes
from slackwater.studies.experiments.study import StudyOptions
from slackwater.studies.experiments.study import joins as joins_banner
from slackwater.studies.renting_market import (
    DualPrice,
    EffectiveRenter,
    FixedRenter,
    MultiplierRenter,
    Outlooks,
    PlanRenter,
    Rented,
    Renter,
    Rules,
    SpendingPlan,
    covered_rental,
    daily_plan,
    rent_on_market,
)
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import Tape

#: Money is in on-demand instance-hours of the market. The budget pays for this many GPUs at list price; the load is 6 GPUs.
BUDGET, WARM_SLOTS, RESTART_HOURS, WIDEST = 8.0, 48, 0.1, 16
#: Ratio of the budget by day to the average budget, in the arm with a varying budget.
BUSY = 1.4
#: Share of a stream's span in which jobs arrive. They finish in the rest of the span, and after it on on-demand only.
ARRIVING = 0.9
#: Hours of budget whose overspending changes a factor by 1.
STEP_HOURS = 24.0
REPLAN_SLOTS = 12
#: Maximum number of price paths paired with an availability series that has no prices.
MOST_PATHS = 3
HINDSIGHT_HALVINGS = 14
RENTERS = ("list price", "same widths on spot", "effective price", "dual price", "spending plan", "hindsight")
MEASURES = ("spend", "loss", "response_hours", "late", "spot_share", "plan_error", "gpus")


def experiment_types() -> list[JobType]:
    """Return three job types with a load of 6 GPUs; value and price of delay in on-demand instance-hours (ours, chosen once)."""
    return [
        JobType(
            name="lora", rate_per_hour=0.3, mean_hours=8.0, speedup=AmdahlSpeedup(parallel=0.85, most=WIDEST),
            delay=DeadlineDelay(deadline_hours=6.0, value_usd=16.0),
        ),
        JobType(
            name="sft", rate_per_hour=0.05, mean_hours=40.0, speedup=PowerSpeedup(exponent=0.6, most=WIDEST),
            delay=DeadlineDelay(deadline_hours=24.0, value_usd=80.0),
        ),
        JobType(
            name="eval", rate_per_hour=0.4, mean_hours=4.0, speedup=PowerSpeedup(exponent=0.7, most=WIDEST),
            delay=PricedDelay(price=1.0, in_usd=True),
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Availability series paired with a price path, and a stream of jobs on it; money in on-demand instance-hours."""

    counts: Tape
    path: Tape
    stream: Stream
    types: tuple[JobType, ...]
    outlooks: Outlooks
    slots: int
    step: float

    @property
    def synthetic(self) -> bool:
        """Whether availability and prices belong to different markets."""
        return (self.counts.market, self.counts.source) != (self.path.market, self.path.source)


def joins(folder: Path, *, fast: bool) -> list[tuple[Tape, Tape]]:
    """Return every availability series with its market's price path, or else with paths of other markets.

    From each source, the path with most changes that is cheaper than on-demand on average in its first half is used, if it is at
    least as long as the availability series.
    """
    tapes = read_tapes(folder)
    liveliest: dict[str, Tape] = {}
    for path in sorted(tapes.paths, key=lambda one: -one.changes()):
        early = path.values[: path.half]
        if np.nanmean(early) < path.bound and np.isfinite(early).mean() > 0.95:
            liveliest.setdefault(path.source.split(":")[0], path)
    found = []
    for tape in tapes.counts:
        own = [p for p in tapes.paths if (p.market, p.source) == (tape.market, tape.source)]
        paths = own or [p for p in liveliest.values() if len(p) >= len(tape)]
        found += [(tape, path) for path in paths[: 1 if fast else MOST_PATHS]]
    return found[::3] if fast else found


def make_trial(counts: Tape, path: Tape, outlooks: Outlooks, seed: int) -> Trial:
    """Return a stream on a pairing; the first `WARM_SLOTS` of the record are used only for learning."""
    types, step = experiment_types(), counts.step.total_seconds() / 3600.0
    slots = len(counts) - WARM_SLOTS
    rng = np.random.default_rng(seed)
    stream = job_stream(types, hours=ARRIVING * slots * step, sizes=Exponential(), rng=rng)
    return Trial(
        counts=counts, path=path, stream=stream, types=tuple(types), outlooks=outlooks, slots=slots, step=step
    )


def outlooks_of(counts: Tape, path: Tape) -> Outlooks:
    """Return the outlooks of a pairing, with prices in units of the on-demand price.

    Prices of the same market are aligned in time with the availability; prices of another market are read from the start of their
    record. Slots outside the price record are gaps.
    """
    own = (counts.market, counts.source) == (path.market, path.source)
    at = np.arange(len(counts)) + (round((counts.first - path.first) / counts.step) if own else 0)
    known = (at >= 0) & (at < len(path))
    price = np.where(known, path.values[np.clip(at, 0, len(path) - 1)], np.nan)
    record = record_of(
        price / path.bound, counts.values, first=WARM_SLOTS,
        slot_hours=counts.step.total_seconds() / 3600.0,
    )  # fmt: skip
    return Outlooks(record=record, on_demand_usd=1.0, capacity=int(counts.bound), fleet=BUDGET, horizon=24)


def play(trial: Trial, renter: Renter) -> Rented:
    """Run a renter on a trial."""
    record = trial.outlooks.record
    window = market_window(
        record.price[WARM_SLOTS:], record.available[WARM_SLOTS:], on_demand_usd=1.0, slot_hours=trial.step
    )
    rules = Rules(widths=np.arange(1, WIDEST + 1), restart_hours=RESTART_HOURS)
    return rent_on_market(trial.types, trial.stream, window, renter, outlook=trial.outlooks.at, rules=rules)


def plan_of(trial: Trial, *, varies: bool) -> SpendingPlan:
    """Return the budget per slot: constant, or larger by day."""
    average = BUDGET * trial.step
    if not varies:
        return SpendingPlan(budget=np.full(trial.slots, average))
    return daily_plan(trial.slots, average=average, busy=BUSY, slot_hours=trial.step)


def renters_of(trial: Trial, plan: SpendingPlan) -> dict[str, Callable[[], Renter]]:
    """Return a constructor for each renter except hindsight; ``plan`` is known beforehand, the market is not."""
    types, budget = trial.types, plan.budget / trial.step

    @lru_cache(maxsize=4096)
    def rental(slot: int, usd: float) -> Rental:
        price = affordable(trial.outlooks.at(slot), usd, overhead_hours=RESTART_HOURS)
        slowed = [replace(kind, mean_hours=kind.mean_hours * (1.0 + price.lost)) for kind in types]
        return covered_rental(slowed, usd, price.paid_usd)

    def base(usd: Callable[[int], float]) -> Callable[[int], float]:
        return lambda slot: max(1e-6, rental(slot - slot % REPLAN_SLOTS, usd(slot)).multiplier)

    def planned(slot: int) -> float:
        return float(budget[min(slot, len(budget) - 1)])

    listed = covered_rental(types, BUDGET, 1.0)
    factor = DualPrice(price=1.0, step=1.0 / (BUDGET * STEP_HOURS))
    return {
        "list price": lambda: FixedRenter(listed, uses_spot=False),
        "same widths on spot": lambda: FixedRenter(listed, uses_spot=True),
        "effective price": lambda: EffectiveRenter(
            types, planned, trial.outlooks.at, restart_hours=RESTART_HOURS, every=REPLAN_SLOTS
        ),
        "dual price": lambda: PlanRenter(factor, plan.average, base(lambda slot: BUDGET)),
        "spending plan": lambda: PlanRenter(factor, plan, base(planned)),
    }


def hindsight(trial: Trial) -> Rented:
    """Return the run with the least fixed multiplier that meets the budget over the whole stream.

    The multiplier is found by bisection with the whole stream known.
    """
    low, high = -6.0, 6.0
    kept = play(trial, MultiplierRenter(float(np.exp(high))))
    for _ in range(HINDSIGHT_HALVINGS):
        middle = (low + high) / 2.0
        found = play(trial, MultiplierRenter(float(np.exp(middle))))
        if found.cost_usd.sum() > BUDGET * trial.stream.hours:
            low = middle
        else:
            high, kept = middle, found
    return kept


def measures(trial: Trial, plan: SpendingPlan, rented: Rented) -> dict[str, float]:
    """Return the metrics of a run; money in on-demand instance-hours per hour, lateness of jobs with a deadline."""
    stream, hours = trial.stream, trial.stream.hours
    lost = np.zeros(len(stream.time))
    late: list[np.ndarray] = []
    for i, kind in enumerate(trial.types):
        own = stream.kind == i
        lost[own] = kind.delay.cost(rented.response_hours[own])
        if isinstance(kind.delay, DeadlineDelay):
            late.append(rented.response_hours[own] > kind.delay.deadline_hours)
    return {
        "spend": float(rented.cost_usd.sum()) / hours,
        "loss": float(lost.sum()) / hours,
        "response_hours": float(rented.response_hours.mean()),
        "late": float(np.concatenate(late).mean()),
        "spot_share": rented.spot_gpu_hours / rented.gpu_hours,
        "plan_error": _plan_error(trial, plan, rented),
        "gpus": rented.gpu_hours / hours,
    }


def _plan_error(trial: Trial, plan: SpendingPlan, rented: Rented) -> float:
    """Return the mean over half days of |paid - planned|, relative to the average; half days begin at 8 and 20 h."""
    slots = min(int(trial.stream.hours / trial.step), len(rented.slot_usd), trial.slots)
    part = ((np.arange(slots) * trial.step - 8.0) // 12.0).astype(int) + 1
    gap = np.bincount(part, weights=rented.slot_usd[:slots] - plan.budget[:slots])
    return float(np.abs(gap[1:-1]).mean() / (12.0 * BUDGET))


def run_experiment(
    folder: Path, *, seed: int, fast: bool, tell: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Run every renter on every pairing in both arms; return means with 95 % intervals, paired with list price.

    Pairings of the same availability series share its slots, so the bootstrap draws availability series.
    """
    found = joins(folder, fast=fast)
    seeds = [seed] if fast else [seed, seed + 1]
    table: dict[tuple[str, str], list[dict[str, float]]] = {}
    for done, (counts, path) in enumerate(found):
        outlooks = outlooks_of(counts, path)
        per_seed: dict[tuple[str, str], list[dict[str, float]]] = {}
        for one in seeds:
            trial = make_trial(counts, path, outlooks, one)
            bound = hindsight(trial)
            for arm in ("even", "by day"):
                plan = plan_of(trial, varies=arm == "by day")
                runs = {name: play(trial, make()) for name, make in renters_of(trial, plan).items()}
                for name, rented in (runs | {"hindsight": bound}).items():
                    per_seed.setdefault((arm, name), []).append(measures(trial, plan, rented))
        for key, rows in per_seed.items():
            mean = {name: float(np.mean([row[name] for row in rows])) for name in MEASURES}
            table.setdefault(key, []).append(mean)
        tell(done + 1, len(found))
    return {
        "data": str(folder),
        "seed": seed,
        "joins": len(found),
        "blocks": len({counts.label for counts, _ in found}),
        "synthetic_joins": sum(
            (counts.market, counts.source) != (path.market, path.source) for counts, path in found
        ),
        "streams_per_join": len(seeds),
        "budget": BUDGET,
        "load_gpus": sum(kind.load for kind in experiment_types()),
        "markets": [f"{counts.label} with prices of {path.label}" for counts, path in found],
        "arms": {
            arm: [_row(table, arm, name, seed, [counts.label for counts, _ in found]) for name in RENTERS]
            for arm in ("even", "by day")
        },
        "per_join": [
            {"market": i, "arm": arm, "renter": name, **row}
            for (arm, name), rows in table.items()
            for i, row in enumerate(rows)
        ],
    }


def _row(
    table: Mapping[tuple[str, str], Sequence[dict[str, float]]],
    arm: str,
    name: str,
    seed: int,
    series: Sequence[str],
) -> dict[str, Any]:
    values = np.array([[row[measure] for measure in MEASURES] for row in table[arm, name]])
    listed = np.array([[row[measure] for measure in MEASURES] for row in table[arm, "list price"]])
    rng = np.random.default_rng(seed)
    low, high = resampled(np.hstack([values, values - listed]), blocks=series, rng=rng).interval()
    k = len(MEASURES)
    row: dict[str, Any] = {"renter": name}
    for i, measure in enumerate(MEASURES):
        row[measure] = float(values[:, i].mean())
        row[f"{measure}_interval"] = [float(low[i]), float(high[i])]
        row[f"{measure}_less_list"] = float((values - listed)[:, i].mean())
        row[f"{measure}_less_list_interval"] = [float(low[k + i]), float(high[k + i])]
    row["joins_better_than_list"] = int((values[:, 1] < listed[:, 1]).sum())
    return row


COLUMNS = {
    "renter": "renter", "spend": "spend an hour", "loss": "delay an hour", "loss_less_list": "less list price",
    "from": "95 % from", "to": "to", "response_hours": "response, h", "late": "late", "spot_share": "on spot",
    "gpus": "GPUs", "plan_error": "off plan, by half day", "joins_better_than_list": "joins better",
}  # fmt: skip
ARMS = {"even": "an even budget", "by day": "a budget of 1.4 times the average by day and 0.6 times at night"}


def renting_study(study: StudyOptions) -> Answer:
    """Run a stream of jobs on a budget, on every market of a folder."""
    with progress("markets", lines=True) as tell:
        value = run_experiment(study.data, seed=study.seed, fast=study.fast, tell=tell)
    value["claims"] = claims(value)
    if study.html is not None:
        value["html"] = str(study.html)
    return renting_report(value)


def rows_of_arm(answer: Mapping[str, Any], arm: str) -> list[dict[str, Any]]:
    """Return the rows of an arm with the ends of the interval of the paired difference."""
    return [
        {**row, "from": row["loss_less_list_interval"][0], "to": row["loss_less_list_interval"][1]}
        for row in answer["arms"][arm]
    ]


def claims(answer: Mapping[str, Any]) -> list[str]:
    """Return sentences computed from the results."""
    even = {row["renter"]: row for row in answer["arms"]["even"]}
    day = {row["renter"]: row for row in answer["arms"]["by day"]}
    budget, joins = answer["budget"], answer["joins"]
    lines = [
        f"A budget of {budget:g} on-demand GPUs an hour for a load of {answer['load_gpus']:g}. {answer['synthetic_joins']} of "
        f"{joins} markets are synthetic joins of counts with the prices of another market."
    ]
    same, listed = even["same widths on spot"], even["list price"]
    lines.append(
        f"The widths of list price put on spot cost {1 - same['spend'] / listed['spend']:.0%} less, and jobs take "
        f"{same['response_hours'] / listed['response_hours'] - 1:+.1%} longer for restarts."
    )
    for name in ("effective price", "dual price"):
        row = even[name]
        low, high = row["loss_less_list_interval"]
        lines.append(
            f"By {name}: cost of delay {row['loss'] / listed['loss'] - 1:+.0%} against list price "
            f"(difference {row['loss_less_list']:.3f}, 95 % {interval_words(low, high, '.3f')}), response "
            f"{row['response_hours'] / listed['response_hours'] - 1:+.0%}, late {row['late']:.1%} instead of "
            f"{listed['late']:.1%}, at a spend of {row['spend'] / budget:.1%} of the budget; better in "
            f"{row['joins_better_than_list']} of {joins} markets."
        )
    best = even["hindsight"]
    lines.append(
        f"The best fixed multiplier in hindsight: cost of delay {best['loss']:.3f} at {best['spend'] / budget:.1%} of the "
        f"budget, the dual price {even['dual price']['loss']:.3f}."
    )
    plan, average = day["spending plan"], day["dual price"]
    lines.append(
        f"Where the budget is larger by day, the spending plan is off its half days by {plan['plan_error']:.0%} of the average, "
        f"the average budget's dual price by {average['plan_error']:.0%}; the plan costs delay: {plan['loss']:.3f} against "
        f"{average['loss']:.3f}."
    )
    return lines


def renting_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: findings, and every renter under both budgets."""
    names = {"even": "An even budget", "by day": "More by day"}
    return Answer(
        title="Renting on real markets",
        about=(
            f"{answer['joins']} markets of {answer['data']}, {answer['streams_per_join']} streams of jobs on each, seed "
            f"{answer['seed']}. Intervals draw the {answer['blocks']} count series. "
            "Widths are chosen from what was known in the slot of the arrival."
        ),
        value=answer,
        banner=joins_banner(
            f"In {answer['synthetic_joins']} of {answer['joins']} markets counts are joined with another market's prices."
        ),
        blocks=[
            Section("In short", [Notes(answer["claims"])], "answer"),
            *(
                Section(
                    names[arm],
                    [
                        f"With {words}.",
                        "Money is in on-demand instance-hours. Each dot is a mean over markets; bars are 95 % intervals of the "
                        "mean difference from list price, by a bootstrap over count series on which all renters had the same jobs.",
                        Figures(_renter_figures(answer["arms"][arm], budget=answer["budget"])),
                        numbers(COLUMNS, rows_of_arm(answer, arm), digits=3),
                    ],
                    arm.replace(" ", "-"),
                )
                for arm, words in ARMS.items()
            ),
        ],
        notes=answer["markets"],
    )


def _renter_figures(rows: Sequence[Mapping[str, Any]], *, budget: float) -> list[Figure]:
    """Return charts of the cost of delay, with the interval of its difference from list price, and of spend and budget."""
    level = next(row["loss"] for row in rows if row["renter"] == "list price")
    kinds = {"by market": "series1", "at list price": "on-demand"}
    loss, spend = (
        [
            {"label": row["renter"], "value": row[key], "kind": "at list price" if row["renter"] == "list price" else "by market"}
            for row in rows
        ]
        for key in ("loss", "spend")
    )  # fmt: skip
    for one, row in zip(loss, rows, strict=True):
        one["low"], one["high"] = (level + end for end in row["loss_less_list_interval"])
    labels = [row["renter"] for row in rows]
    delay = dots(loss, labels, x=Axis(title="on-demand instance-hours an hour"), kinds=kinds, spans=True)
    paid = dots(spend, labels, x=Axis(title="on-demand instance-hours an hour"), kinds=kinds, bound=budget)
    return [
        Figure(specs=[delay], label="Cost of delay by renter", title="Cost of delay", width=0),
        Figure(specs=[paid], label="Spend by renter", title="Spend (dashed: the budget)", width=0),
    ]
