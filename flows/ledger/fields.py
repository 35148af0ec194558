"""Fields of a decision and of a leaderboard row, each declared once.

Every module that stores, publishes, prints or draws a decision uses these fields: the stored row,
the JSON and its schema, the terminal, the report and the UI. This module does not import pandas, as
help texts load it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from typing_extensions import TypedDict

from slackwater.flows.show.blocks import Column, Table
from slackwater.flows.show.formats import as_number, auto, dollars, missing, percent, price, usd, utc
from slackwater.warehouse.amounts import plural
from slackwater.warehouse.errors import MarketError

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.flows.ledger.open_job import OpenJob
    from slackwater.optimization.replay.decision import Decision

#: Places where a field is shown: tables of decisions on a terminal and in the report, and the page
#: of a job in the UI.
TABLE, JOB = "table", "job"
BASELINES: Final = ("OD-only", "MSU", "UP")  # Policies included in every table of policies
HINDSIGHT: Final = "optimum in the slot model"  # Name of the hindsight optimum in tables of policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Column):
    """A field of a row: its type, its meaning (``words``), and the column that shows it.

    ``limits`` are further keys of its JSON Schema. ``value`` computes it from the state of a job and its
    decision; without it, the code that builds the row adds the value. A decision stored before the field was
    introduced has None, so the ``kind`` of a new field allows None. ``column`` marks fields with a separate
    column in the table of decisions; all others are stored in the column ``details``. A field with a
    ``heading`` is shown in the tables named by ``shown``, further to the right with a higher ``place``.
    """

    kind: Any
    words: str
    heading: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    value: Callable[[OpenJob, Decision], Any] | None = None
    column: bool = False
    shown: tuple[str, ...] = (TABLE, JOB)
    place: int = 0


def columns_of(
    fields: Mapping[str, Field], where: str = TABLE, rows: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Column | str]:
    """Return the columns of a table; of ``rows`` a nullable column that is always null is left out, except probabilities."""
    shown = [
        name
        for name, one in fields.items()
        if one.heading
        and where in one.shown
        and (
            rows is None
            or type(None) not in get_args(one.kind)
            or one.format is risk
            or any(row.get(name) is not None for row in rows)
        )
    ]
    return {name: fields[name] for name in sorted(shown, key=lambda name: fields[name].place)}


#: Limits as keys of a JSON Schema.
TIME: Final = {"format": "date-time"}
NOT_NEGATIVE: Final = {"minimum": 0}
POSITIVE: Final = {"exclusiveMinimum": 0}
SHARE: Final = {"minimum": 0, "maximum": 1}


class Keys:
    """Further keys of the JSON Schema of an annotated type; pydantic calls the method by its name."""

    def __init__(self, **keys: Any) -> None:
        self.keys = keys

    def __get_pydantic_json_schema__(
        self, core: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the schema of the type with these keys."""
        return {**handler(core), **self.keys}


Time = Annotated[str, Keys(**TIME)]
Count = Annotated[int, Keys(**NOT_NEGATIVE)]


class MarketParts(TypedDict):
    """A market in its parts."""

    provider: str
    region: str
    zone: str
    instance_type: str


class PlannedSlot(TypedDict):
    """Planned instances of a later slot."""

    slot: Time
    on_demand: Count
    spot: Count


def row_type(fields: Mapping[str, Field]) -> Any:
    """Return the type of rows with these fields, for pydantic."""
    kinds = {
        name: Annotated[one.kind, Keys(**one.limits, **({"description": one.words} if one.words else {}))]
        for name, one in fields.items()
    }
    return TypedDict("Row", kinds)  # type: ignore[operator]


WORRYING, LIKELY = 0.1, 0.5  # Probabilities of missing the deadline from which a decision is marked


def risk_mark(late: float | None) -> str:
    """Return the mark for a probability of missing the deadline: "at risk", "likely late", or "" for low risk."""
    if late is None or late < WORRYING:
        return ""
    return "likely late" if late >= LIKELY else "at risk"


def chance(value: Any) -> str:
    """Return a probability in percent, "unknown" if it is missing.

    >>> chance(0.98), chance(None)
    ('98 %', 'unknown')
    """
    return "unknown" if missing(value) else percent(value)


def risk(value: Any) -> str:
    """Return a probability of missing the deadline in percent with its mark, "unknown" if it is missing.

    >>> risk(0.02), risk(0.61), risk(None)
    ('2.0 %', '61 % (likely late)', 'unknown')
    """
    mark = "" if missing(value) else risk_mark(float(value))
    return chance(value) + (f" ({mark})" if mark else "")


def _share(job: OpenJob, made: Decision) -> float:
    return made.progress.done / job.run.workload


def slots_after(start: pd.Timestamp, slots: float, step: pd.Timedelta) -> pd.Timestamp:
    """Return the time some slots after a start, rounded down to a second, but for the rounding of floats.

    >>> import pandas as pd
    >>> slots_after(pd.Timestamp("2026-03-05T12:00Z"), 7.9999999999, pd.Timedelta("30min")).isoformat()
    '2026-03-05T16:00:00+00:00'
    """
    return (start + slots * step).round("ms").floor("s")


def _finish(job: OpenJob, made: Decision) -> str:
    return slots_after(job.live.start, made.expected.finish_slots, job.live.step).isoformat()


def _finish_quantile(job: OpenJob, made: Decision, share: float) -> str | None:
    """Return the time by which a ``share`` of the paths finish; None if fewer do, or the risk is not known."""
    if not made.risk_known:
        return None
    finish = sorted(math.inf if math.isnan(slots) else float(slots) for slots in made.expected.finish)
    slots = finish[math.ceil(share * len(finish)) - 1]
    return None if math.isinf(slots) else slots_after(job.live.start, slots, job.live.step).isoformat()


def _expected_saving(job: OpenJob, made: Decision) -> float | None:
    """Return the expected saving over on-demand only; None without its price, or if the job is rather given up."""
    alone = job.live.on_demand_only_usd
    if alone is None or made.expected.given_up_probability > 0.5:
        return None
    return alone - made.expected.cost_usd


def _saved_share(job: OpenJob, made: Decision) -> float | None:
    saved = _expected_saving(job, made)
    alone = job.live.on_demand_only_usd
    return None if saved is None or not alone else _rounded(saved / alone, 6)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits) + 0.0  # -0.0 becomes 0.0


def _on_demand_note(job: OpenJob, made: Decision) -> str | None:
    """Return a note where no on-demand price is known, or nothing is sold on demand."""
    if not job.history.on_demand.sold and any(seen.on_demand.sold for seen in job.live.seen):
        return (
            f"{job.history.market.key}: no on-demand instances here: to meet the deadline, the job moves to a market that "
            "sells them"
        )
    return job.history.on_demand_note


def _late_probability(job: OpenJob, made: Decision) -> float | None:
    """Return the probability of missing the deadline; None if unknown, and on-demand could still meet it."""
    if made.guarded:
        return 0.0
    if made.risk_known or job.live.shortfall(made.progress):
        return round(made.expected.late_probability, 4)
    return None


def _over_budget(job: OpenJob, made: Decision) -> float | None:
    if math.isinf(job.run.budget_usd) or not made.risk_known:
        return None
    return round(made.expected.over_budget_probability, 4)


def _budget_note(job: OpenJob, made: Decision) -> str | None:
    """Return a warning where the budget does not pay for finishing on demand in any market, else None."""
    from slackwater.optimization.job.definition import guard_usd

    if math.isinf(job.run.budget_usd) or any(seen.on_demand.sold for seen in job.live.seen):
        return None
    own, progress = job.history, made.progress
    need = progress.cost_usd + guard_usd(
        job.run, progress, left=job.run.deadline_slots - job.live.slot,
        on_demand_usd=own.on_demand_usd, slot_hours=own.slot_hours,
    )  # fmt: skip
    late = made.expected.late_probability if made.risk_known else 0.0
    then = (
        "the deadline is met only if spot stays available"
        if late < 0.9
        else f"in {percent(late)} of cases before the work is done: raise the budget, or stop the job now"
    )
    return (
        f"the budget of ${dollars(job.run.budget_usd)} does not cover finishing on demand, which costs ${dollars(need)} in "
        f"total: only spot runs, until the budget is spent, {'and ' if late < 0.9 else ''}{then}"
    )


def _worth_note(job: OpenJob, made: Decision) -> str | None:
    """Return a note where a job with a value runs nothing and is more likely abandoned than finished, else None."""
    from slackwater.optimization.job.definition import guard_usd

    given_up = made.expected.given_up_probability
    if made.allocation.total or job.run.must_finish or given_up <= 0.5 or job.live.shortfall(made.progress):
        return None
    own, rest = job.history, job.live.on_demand_only_usd
    if rest is not None and made.progress.done:
        rest = guard_usd(
            job.run, made.progress, left=job.run.deadline_slots - job.live.slot,
            on_demand_usd=own.on_demand_usd, slot_hours=own.slot_hours,
        )  # fmt: skip
    alone = "" if rest is None else f" and costs ${dollars(rest)} on demand"
    return (
        f"not worth running on now: finishing by the deadline is worth ${dollars(job.run.value)}{alone}; "
        f"at the expected spot prices it is given up in {percent(given_up)} of cases"
    )


def _availability_note(job: OpenJob, made: Decision) -> str | None:
    if not made.evidence.is_assumed:
        return None
    others = len(job.places) - 1
    where = f" and {plural(others, 'other market')}" if others else ""
    return f"{job.history.market.key}{where}: {made.evidence}"


def _assuming(job: OpenJob, made: Decision) -> str | None:
    """Return the assumptions of cost, finish and risk as text; None if even on-demand alone misses the deadline."""
    from slackwater.optimization.job.times import saving_words, times_words

    if job.live.shortfall(made.progress):
        return None
    if not made.risk_known:
        return None
    sold = any(seen.on_demand.sold for seen in job.live.seen) and math.isinf(job.run.budget_usd)
    words = times_words(job.run.times, granted=sold) if job.run.times else ["can be launched"]
    launch = " and ".join([part for part in (", ".join(words[:-1]), *words[-1:]) if part])
    saves = saving_words(job.run.times) if job.run.times else ""
    who = f"decisions are followed{saves} and {'on-demand' if sold else 'an instance'}"
    return f"{who} {launch}" if launch else None


def _standby(job: OpenJob, made: Decision) -> str | None:
    if made.standby is None:
        return None
    held = [(made.standby.on_demand, "on-demand"), (made.standby.spot, "spot")]
    instances = " and ".join(f"{count} {kind}" for count, kind in held if count)
    elsewhere = None if made.standby_market == made.market else made.standby_market
    where = "" if elsewhere is None else f" in {job.live.names[elsewhere]}"
    return f"run {instances}{where} at once" if instances else "wait for the next decision"


def _standby_market(job: OpenJob, made: Decision) -> str | None:
    market = made.market if made.standby_market is None else made.standby_market
    return None if made.standby is None else job.places[market]


def _spot_price(job: OpenJob, made: Decision) -> float | None:
    seen, slot = job.seen, job.live.slot
    prices = seen.price if seen.quoted is None else seen.quoted
    return round(prices[slot], 6) if seen.observed[slot] else None


def _planned_instances(job: OpenJob, made: Decision) -> list[dict[str, Any]] | None:
    if made.planned is None:
        return None
    live = job.live
    return [
        {
            "slot": (live.now + (k + 1) * live.step).isoformat(),
            "on_demand": allocation.on_demand,
            "spot": allocation.spot,
        }
        for k, allocation in enumerate(made.planned)
    ]


def _market_name(job: OpenJob, m: int | None) -> str | None:
    """Return the name of a market of a multi-market job, None for no market and for a single-market job."""
    return job.places[m] if job.request.may_move and m is not None and m < len(job.places) else None


def _continued_instances(job: OpenJob, made: Decision) -> tuple[int, int]:
    """Return the on-demand and spot instances that continue from before; none if the job moves."""
    if made.moved_from is not None:
        return 0, 0
    before, now = job.held.allocation, made.allocation
    return min(before.on_demand, now.on_demand), min(before.spot, now.spot)


def change_words(row: Mapping[str, Any]) -> str:
    """Return the instances to start and stop for a decision, in words.

    >>> none = {"start_on_demand": 0, "start_spot": 0, "stop_on_demand": 0, "stop_spot": 0, "spot": 2, "on_demand": 0}
    >>> change_words({**none, "start_spot": 2, "stop_on_demand": 1}), change_words({**none, "start_spot": 2, "start_on_demand": 1})
    ('start 2 spot, stop 1 on-demand', 'start 1 on-demand and 2 spot')
    >>> change_words(none), change_words({**none, "spot": 0})
    ('no change', 'nothing to start')
    """
    parts = [
        f"{verb} {' and '.join(f'{row[key]} {kind}' for kind, key in kinds if row[key])}"
        for verb in ("start", "stop")
        for kinds in [(("on-demand", f"{verb}_on_demand"), ("spot", f"{verb}_spot"))]
        if any(row[key] for _, key in kinds)
    ]
    if parts:
        return ", ".join(parts)
    return "no change" if row["on_demand"] + row["spot"] else "nothing to start"


def _change(job: OpenJob, made: Decision) -> str:
    names = ("on_demand", "spot", "start_on_demand", "start_spot", "stop_on_demand", "stop_spot")
    return change_words({name: value(job, made) for name in names if (value := DECISION[name].value)})


def _instances(job: OpenJob, made: Decision) -> str | None:
    from slackwater.optimization.job.units import held_words

    if not made.allocation.total:
        return None
    return held_words(made.allocation.total, job.history.market.instance_type, job.run.gpus)


def _instance_hours(job: OpenJob, made: Decision) -> float | None:
    from slackwater.optimization.job.units import instance_hours_of

    hours = instance_hours_of(job.request, job.run)
    return None if hours is None else round(hours, 6)


def _work(job: OpenJob, made: Decision) -> str:
    from slackwater.optimization.job.units import job_work_words

    return job_work_words(job.request, job.run, job.history.market)


def zone_of(market: str | None) -> str:
    """Return the zone in a market's name, as shown in tables.

    >>> zone_of("gcp/us-east5/us-east5-a/a3-highgpu-1g")
    'us-east5-a'
    >>> zone_of("gcp/*/*/a3-highgpu-1g")
    'any zone'
    >>> zone_of("azure/eastus/all/Standard_NC24ads_A100_v4")
    'eastus'
    """
    from slackwater.warehouse.history import Market

    try:
        place = Market.parse(market or "").place
    except MarketError:
        return auto(market)
    return "any zone" if place == "*" else place


#: Fields added to a decision on delivery or by ``plan``; its row has the rest of `DECISION`.
DELIVERED: Final = (
    "schema", "program", "version", "key", "market_parts", "valid_until", "issued_at", "expired", "alone", "decided_with",
)  # fmt: skip
#: All fields of a decision, in the order of its document.
DECISION: Final[dict[str, Field]] = {
    "schema": Field(kind=Literal["slackwater.decision/2"], words="Name and version of this format."),
    "program": Field(kind=Literal["slackwater"], words="Program that wrote the document."),
    "version": Field(kind=str, words="Version of the program."),
    "key": Field(
        kind=str,
        words="Idempotency key, identical for the same job, market, source and slot.",
        limits={"pattern": "^[0-9a-f]{32}$"},
    ),
    "job": Field(
        kind=str,
        words="Name of the job, as given by its owner.",
        limits={"minLength": 1},
        value=lambda job, made: made.job,
        column=True,
        heading="job",
        shown=(TABLE,),
    ),
    "market": Field(
        kind=str,
        words="provider/region/zone/instance_type.",
        value=lambda job, made: job.history.market.key,
        heading="market",
        shown=(TABLE,),
        card=21,
        beneath=True,
    ),
    "market_parts": Field(kind=MarketParts, words="Provider, region, zone and instance type of the market."),
    "source": Field(
        kind=str,
        words="Source of the observations of the market.",
        value=lambda job, made: job.history.source,
    ),
    "synthetic": Field(
        kind=list[str],
        words="Assumptions about the market in place of measurements, a sentence each; about all markets of the job if it has not "
        "started yet; empty if everything was measured.",
        value=lambda job, made: list(job.history.assumptions),
    ),
    "slot": Field(
        kind=str,
        words="Start of the slot that the decision is for, UTC.",
        limits=TIME,
        value=lambda job, made: job.live.now.isoformat(),
        column=True,
        heading="slot",
        unit="UTC",
        card=22,
        beneath=True,
    ),
    "slot_end": Field(
        kind=str,
        words="End of that slot, UTC.",
        limits=TIME,
        value=lambda job, made: (job.live.now + job.live.step).isoformat(),
        heading="until",
        unit="UTC",
        shown=(TABLE,),
        card=13,
        beneath=True,
    ),
    "valid_until": Field(
        kind=str, words="End of validity: do not start instances for this decision later.", limits=TIME
    ),
    "issued_at": Field(
        kind=str | None,
        words="Time of the turn that issued the decision, in the output of `slackwater plan`; null if no turn has issued it yet, "
        "and "
        "in delivered documents.",
        limits=TIME,
    ),
    "expired": Field(
        kind=bool | None,
        words="Whether the slot had ended when `slackwater plan` printed the decision; null in delivered documents.",
    ),
    "alone": Field(
        kind=bool | None,
        words="Whether the job was planned alone (`slackwater plan --alone`), as if no other job needed spot; null in delivered "
        "documents.",
    ),
    "decided_with": Field(
        kind=list[str] | None,
        words="Other open jobs that share the spot instances of the slot, in the output of `slackwater plan`; null in delivered "
        "documents.",
    ),
    "step_minutes": Field(
        kind=float,
        words="Length of a slot, minutes.",
        limits=POSITIVE,
        value=lambda job, made: job.live.step.total_seconds() / 60.0,
    ),
    "on_demand": Field(
        kind=int,
        words="On-demand instances to run in the slot.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: made.allocation.on_demand,
        column=True,
        heading="on-demand",
        card=11,
        glance=True,
    ),
    "spot": Field(
        kind=int,
        words="Spot instances to run in the slot.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: made.allocation.spot,
        column=True,
        heading="spot",
        card=12,
        glance=True,
    ),
    "held_on_demand": Field(
        kind=int | None,
        words="On-demand instances running when the slot begins, from the newest report or else the previous decision.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: job.held.allocation.on_demand,
    ),
    "held_spot": Field(
        kind=int | None,
        words="Spot instances running when the slot begins, from the newest report or else the instances of the previous decision "
        "that were available.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: job.held.allocation.spot,
    ),
    "held_from": Field(
        kind=Literal["decided", "reported"] | None,
        words="Origin of held_on_demand and held_spot: reported by the job's owner, or computed from the decisions.",
        value=lambda job, made: "reported" if job.held.reported else "decided",
    ),
    "start_on_demand": Field(
        kind=int | None,
        words="On-demand instances to start now, in addition to the running instances; if the job moves, all in its new market.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: made.allocation.on_demand - _continued_instances(job, made)[0],
    ),
    "start_spot": Field(
        kind=int | None,
        words="Spot instances to start now, in addition to the running instances; if the job moves, all in its new market.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: made.allocation.spot - _continued_instances(job, made)[1],
    ),
    "stop_on_demand": Field(
        kind=int | None,
        words="Running on-demand instances to stop now; if the job moves, all in the market that it leaves.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: job.held.allocation.on_demand - _continued_instances(job, made)[0],
    ),
    "stop_spot": Field(
        kind=int | None,
        words="Running spot instances to stop now; if the job moves, all in the market that it leaves.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: job.held.allocation.spot - _continued_instances(job, made)[1],
    ),
    "change": Field(
        kind=str | None,
        words="Instances to start and stop, compared with the running instances.",
        value=_change,
        heading="change",
        card=14,
        beneath=True,
    ),
    "gpus_per_instance": Field(
        kind=int | None,
        words="GPUs per instance, from the job or else the catalogue; null if unknown.",
        limits={"minimum": 1},
        value=lambda job, made: job.run.gpus,
    ),
    "gpus": Field(
        kind=int | None,
        words="GPUs of all instances to run in the slot, on-demand and spot; null if unknown.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: None if job.run.gpus is None else made.allocation.total * job.run.gpus,
    ),
    "instances": Field(
        kind=str | None,
        words="All instances to run in the slot, with their GPUs if known; null without instances.",
        value=_instances,
        heading="instances",
        card=15,
        beneath=True,
    ),
    "policy": Field(
        kind=str,
        words="Policy that made the decision.",
        value=lambda job, made: made.policy,
        column=True,
        heading="policy",
        place=2,
        card=51,
        beneath=True,
    ),
    "chosen_because": Field(kind=str, words="Reason why this policy was chosen."),
    "reason": Field(
        kind=str,
        words="Reason for the decision, in a sentence.",
        value=lambda job, made: made.reason,
        column=True,
        heading="why",
        place=2,
        card=61,
        beneath=True,
    ),
    "expected_cost_usd": Field(
        kind=float,
        words="Expected cost of the whole job, from first slot to last: the mean over sampled scenarios; if evidence is null "
        "and availability_note is not, the cost if spot is never lost.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: round(made.expected.cost_usd, 4),
        heading="expected cost",
        unit="$",
        format=usd,
        card=31,
        glance=True,
    ),
    "expected_cost_p10_usd": Field(
        kind=float | None,
        words="Cost at the 10 % quantile over sampled scenarios; null in older decisions if availability was not observed.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: round(made.expected.cost_p10_usd, 4),
    ),
    "expected_cost_p90_usd": Field(
        kind=float | None,
        words="Cost at the 90 % quantile over sampled scenarios; null in older decisions if availability was not observed.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: round(made.expected.cost_p90_usd, 4),
    ),
    "on_demand_only_usd": Field(
        kind=float | None,
        words="Cost of the whole job with on-demand only, from first slot to last; null if no on-demand price is known.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: _rounded(job.live.on_demand_only_usd, 4),
    ),
    "saved_usd": Field(
        kind=float | None,
        words="Expected saving: on_demand_only_usd less expected_cost_usd, negative if the job costs more; null if no on-demand "
        "price "
        "is known, or the job is more likely abandoned than finished.",
        value=lambda job, made: _rounded(_expected_saving(job, made), 4),
        heading="saved",
        unit="$",
        format=usd,
        card=33,
        glance=True,
    ),
    "saved_share": Field(
        kind=float | None,
        words="Expected saving as a share of on_demand_only_usd.",
        limits={"maximum": 1},
        value=_saved_share,
        heading="of on-demand only",
        format=percent,
        card=34,
        glance=True,
    ),
    "expected_finish": Field(
        kind=str,
        words="Expected end of the job: the mean over sampled scenarios.",
        limits=TIME,
        value=_finish,
        heading="expected finish",
        unit="UTC",
        shown=(TABLE,),
        card=42,
    ),
    "expected_finish_p10": Field(
        kind=str | None,
        words="End at the 10 % quantile over sampled scenarios; null if the risk is unknown.",
        limits=TIME,
        value=lambda job, made: _finish_quantile(job, made, 0.1),
    ),
    "expected_finish_p90": Field(
        kind=str | None,
        words="End at the 90 % quantile over sampled scenarios; null if the risk is unknown, or fewer than 90 % finish.",
        limits=TIME,
        value=lambda job, made: _finish_quantile(job, made, 0.9),
    ),
    "availability_note": Field(
        kind=str | None,
        words="Warning that availability was not observed, with the basis of cost and risk; null if it was observed.",
        value=_availability_note,
    ),
    "evidence": Field(
        kind=int | None,
        words="Level of evidence of availability behind cost and risk: 0 prices only, 1 own launches, 2 placement scores, 3 counts "
        "now and then, 4 counts in every slot; null in decisions stored before this was computed.",
        limits={"minimum": 0, "maximum": 4},
        value=lambda job, made: made.evidence.level,
    ),
    "evidence_basis": Field(
        kind=str | None,
        words="What is known of availability, in words; null in decisions stored before this was computed.",
        value=lambda job, made: str(made.evidence),
    ),
    "late_probability": Field(
        kind=float | None,
        words="Probability of missing the deadline: the share of sampled scenarios that miss it; null if it was not "
        "observed recently; in older decisions also if it was not observed.",
        limits=SHARE,
        value=_late_probability,
        heading="risk of missing deadline",
        format=risk,
        place=1,
        card=41,
        glance=True,
    ),
    "deadline": Field(
        kind=str,
        words="End of the last slot before the job's deadline, UTC.",
        limits=TIME,
        value=lambda job, made: job.live.deadline.isoformat(),
        heading="deadline",
        unit="UTC",
        shown=(TABLE,),
        card=44,
    ),
    "must_finish": Field(
        kind=bool,
        words="Hard deadline: the job has no value, and is never abandoned while finishing is possible.",
        value=lambda job, made: job.run.must_finish,
    ),
    "on_demand_usd_per_hour": Field(
        kind=float | None,
        words="Price of an on-demand instance, USD per hour; null if unknown, or if nothing is sold on demand.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: job.history.on_demand_usd if job.history.on_demand.known else None,
    ),
    "on_demand_from": Field(
        kind=str | None,
        words="Origin of the on-demand price: job, settings, observed, elsewhere, catalogue with region, date and source; "
        "unknown, with the price that the plan assumes; or not sold.",
        value=lambda job, made: str(job.history.on_demand),
        heading="on-demand price from",
        shown=(JOB,),
    ),
    "on_demand_note": Field(
        kind=str | None,
        words="Warning that no on-demand price is known, or that nothing is sold on demand, with the consequence; null otherwise.",
        value=_on_demand_note,
        heading="on-demand",
        shown=(JOB,),
        place=3,
    ),
    "spot_usd_per_hour": Field(
        kind=float | None,
        words="Observed price of a spot instance in the slot, USD per hour; null if it was not observed.",
        limits=NOT_NEGATIVE,
        value=_spot_price,
    ),
    "forecaster": Field(
        kind=str | None,
        words="Forecaster used for the plan; null without a forecast.",
        value=lambda job, made: job.forecast.predictor if job.forecast else None,
    ),
    "fallback": Field(
        kind=str | None,
        words="Reason why a simpler model made the forecast, or `no forecast`; empty if the forecaster made it.",
        value=lambda job, made: job.forecast.fallback if job.forecast else "no forecast",
    ),
    "solver": Field(
        kind=str,
        words="How the optimization problems of the decision were solved; empty if there were none.",
        value=lambda job, made: made.solver,
    ),
    "progress": Field(
        kind=float,
        words="Work done at the start of the slot, in workload_unit.",
        value=lambda job, made: round(_share(job, made) * job.request.workload.amount, 6),
    ),
    "progress_share": Field(
        kind=float,
        words="Work done as a share of the workload.",
        limits={"maximum": 1},
        value=lambda job, made: round(_share(job, made), 6),
    ),
    "workload": Field(
        kind=float,
        words="Total work of the job, in workload_unit.",
        limits=POSITIVE,
        value=lambda job, made: job.request.workload.amount,
    ),
    "workload_unit": Field(
        kind=Literal["tokens", "gpu_hours", "instance_hours", "slots"],
        words="Unit of progress and workload.",
        value=lambda job, made: job.request.workload.unit,
    ),
    "workload_instance_hours": Field(
        kind=float | None,
        words="Total work of the job in instance-hours; null if the work is given in tokens.",
        limits=POSITIVE,
        value=_instance_hours,
    ),
    "work": Field(
        kind=str | None,
        words="Total work of the job as text, in the unit of the job and in instance-hours or GPU-hours.",
        value=_work,
        heading="work",
        card=24,
        beneath=True,
    ),
    "progress_from": Field(
        kind=Literal["decided", "reported"],
        words="Origin of progress: reported by the job's owner, or computed from the decisions.",
        value=lambda job, made: "reported" if job.progress_report else "decided",
    ),
    "progress_reported_at": Field(
        kind=str | None,
        words="Time of the report that progress is based on; null without a report.",
        limits=TIME,
        value=lambda job, made: job.progress_report.reported_at.isoformat() if job.progress_report else None,
    ),
    "held_before": Field(
        kind=int,
        words="Instances run in the previous slot, as reported or decided.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: made.progress.n_previous,
    ),
    "budget_usd": Field(
        kind=float | None,
        words="Budget: the most that the job may cost in total; null without a budget.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: None if math.isinf(job.run.budget_usd) else job.run.budget_usd,
    ),
    "paid_usd": Field(
        kind=float | None,
        words="Cost of the job before the slot, computed from its decisions.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: round(made.progress.cost_usd, 4),
    ),
    "over_budget_probability": Field(
        kind=float | None,
        words="Probability that finishing costs more than the budget: the share of sampled scenarios; null without a budget, or if "
        "the risk is unknown.",
        limits=SHARE,
        value=_over_budget,
    ),
    "budget_note": Field(
        kind=str | None,
        words="Warning that the budget does not cover finishing on demand, with the consequence; null if it does.",
        value=_budget_note,
    ),
    "worth_note": Field(
        kind=str | None,
        words="Note that the job runs nothing as finishing costs more than it is worth: its value, the cost on demand from here, "
        "and how often it is abandoned; null otherwise, and in decisions stored before this was computed.",
        value=_worth_note,
        heading="not worth it",
        card=2,
        beneath=True,
        shown=(TABLE,),
    ),
    "shortfall": Field(
        kind=str | None,
        words="Warning that the job cannot finish in time, by how much, and a remedy; null if on-demand alone can finish it in "
        "time.",
        value=lambda job, made: job.live.shortfall(made.progress) or None,
        heading="warning",
        tone=lambda value: "off",
        card=1,
        beneath=True,
        glance=True,
        shown=(TABLE,),
    ),
    "stale": Field(
        kind=str | None,
        words="Warning that the market's newest observation is too old, with its age; null if it is recent.",
        value=lambda job, made: job.stale,
        heading="old data",
        shown=(JOB,),
        place=3,
    ),
    "contradicted": Field(
        kind=str | None,
        words="Warning that another source contradicts the source in use, and by how much; null without contradiction (M1.5).",
        value=lambda job, made: "; ".join(job.history.contradicted) or None,
        heading="sources disagree",
        shown=(JOB,),
        place=3,
    ),
    "assuming": Field(
        kind=str | None,
        words="What cost, finish and risk assume; null if even on-demand alone misses the deadline.",
        value=_assuming,
    ),
    "guarded": Field(
        kind=bool | None,
        words="Whether the deadline is met whatever becomes of spot, as long as on-demand is granted as assumed (M12.7); null in "
        "decisions stored before this was computed.",
        value=lambda job, made: made.guarded,
    ),
    "standby_on_demand": Field(
        kind=int | None,
        words="On-demand instances to run at once, in all, if all spot instances are lost before slot_end; null without spot.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: None if made.standby is None else made.standby.on_demand,
    ),
    "standby_spot": Field(
        kind=int | None,
        words="Spot instances to run at once in standby_market if all spot instances are lost before slot_end; null without spot.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: None if made.standby is None else made.standby.spot,
    ),
    "standby_market": Field(
        kind=str | None,
        words="Market in which to run at once if all spot instances are lost before slot_end; null without spot.",
        value=_standby_market,
    ),
    "standby": Field(
        kind=str | None,
        words="What to do at once if all spot instances are lost before slot_end; null without spot.",
        value=_standby,
        heading="if spot is lost",
        card=16,
        beneath=True,
    ),
    "planned": Field(
        kind=list[PlannedSlot] | None,
        words="Planned instances of the following slots, which later decisions may change; null if the policy makes no plan.",
        value=_planned_instances,
    ),
    "place": Field(
        kind=str | None,
        words="Market that holds the checkpoint of a multi-market job from this slot on; null for a single-market job, and for a "
        "job "
        "that has not started yet.",
        value=lambda job, made: _market_name(job, made.market),
        heading="place",
        format=zone_of,
        shown=(JOB,),
    ),
    "moved_from": Field(
        kind=str | None,
        words="Market that the job leaves in this slot; null if it does not move.",
        value=lambda job, made: _market_name(job, made.moved_from),
        heading="moves from",
        format=zone_of,
        card=23,
        beneath=True,
    ),
    "move_usd": Field(
        kind=float | None,
        words="Cost of the move in addition to the instances; null for a single-market job.",
        limits=NOT_NEGATIVE,
        value=lambda job, made: round(made.move_usd, 4) if job.request.may_move else None,
    ),
    "probe_next": Field(
        kind=str | None,
        words="Market to probe next: of the markets not observed in this slot, the market whose count is most valuable to know; "
        "null without such a market.",
        value=lambda job, made: _market_name(job, made.probe_next),
    ),
}


NOWHERE: Final = "nowhere yet"  # Text shown in place of a market for a multi-market job that has not begun


def is_nowhere(row: Mapping[str, Any]) -> bool:
    """Return whether a decision is for a multi-market job that has not begun: its row names the first of its markets.

    >>> is_nowhere({"place": None, "move_usd": 0.0}), is_nowhere({"place": None, "move_usd": None})
    (True, False)
    """
    return not isinstance(row.get("place"), str) and row.get("move_usd") is not None


def as_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision for display: with the intervals of cost and finish, and no market for a job that has none.

    An abandoned job has no expected cost.
    """
    shown = {
        **row,
        "cost_interval": cost_interval(row) or None,
        "finish_interval": finish_interval(row) or None,
        "assumption": assumption(row) or None,
    }
    if row.get("shortfall") and not row.get("expected_cost_usd"):  # an abandoned job has no expected cost
        shown |= {"expected_cost_usd": None}
    return {**shown, "market": NOWHERE} if is_nowhere(row) else shown


def cost_interval(row: Mapping[str, Any]) -> str:
    """Return the 80 % interval of the cost in dollars; "" if unknown or a single amount.

    >>> cost_interval({"expected_cost_p10_usd": 128.3, "expected_cost_p90_usd": 151.0})
    '128 to 151'
    """
    low, high = as_number(row.get("expected_cost_p10_usd")), as_number(row.get("expected_cost_p90_usd"))
    if low is None or high is None or dollars(low) == dollars(high):
        return ""
    return f"{dollars(low)} to {dollars(high)}"


def finish_interval(row: Mapping[str, Any]) -> str:
    """Return the 80 % interval of the finish; "" if unknown or a single time.

    >>> finish_interval({"expected_finish_p10": "2026-11-27T06:00:00+00:00", "expected_finish_p90": "2026-11-27T12:30:00+00:00"})
    '2026-11-27 06:00 to 12:30 UTC'
    """
    low, high = row.get("expected_finish_p10"), row.get("expected_finish_p90")
    if not low or (high and utc(low) == utc(high)):
        return ""
    start = utc(low)[: -len(" UTC")]
    if not high:
        return f"from {start} UTC, never in 1 of 10 cases or more"
    return f"{start} to {utc(high)[11:] if utc(high)[:10] == start[:10] else utc(high)}"


#: Assumption of the slot model (M2.4): within a slot spot stays.
SLOT_MODEL = "spot is lost only between slots"


def assumption(row: Mapping[str, Any]) -> str:
    """Return the assumptions of a decision's cost, finish and risk as text; "" without any.

    >>> assumption({"assuming": "on-demand is granted at once and restarts in 4 min"})
    'on-demand is granted at once and restarts in 4 min'
    >>> assumption({"late_probability": 0.3})  # stored before the assumption was
    'on-demand can be launched and spot is lost only between slots'
    """
    if "assuming" in row:
        return str(row["assuming"] or "")
    if row.get("shortfall"):
        return ""
    if row.get("availability_note") is not None and row.get("evidence") is None:  # of an older version
        return "spot is never lost"
    if row.get("late_probability") is None:
        return ""
    has_none = row.get("budget_note") or str(row.get("on_demand_from")).startswith("not sold")
    return SLOT_MODEL if has_none else f"on-demand can be launched and {SLOT_MODEL}"


#: Columns of a table of decisions that `as_shown` derives from several fields.
INTERVALS = {
    "cost_interval": Field(
        kind=str | None,
        words="Central 80 % interval of the cost over sampled scenarios.",
        heading="80 % interval",
        unit="$",
        card=32,
    ),
    "finish_interval": Field(
        kind=str | None,
        words="Central 80 % interval of the end over sampled scenarios.",
        heading="80 % interval",
        card=43,
    ),
    "assumption": Field(
        kind=str | None,
        words="Assumption behind cost, finish and risk.",
        heading="assumes",
        place=1,
        card=45,
        glance=True,
    ),
}


def decision_row(job: OpenJob, made: Decision) -> dict[str, Any]:
    """Return a decision as plain values, as in ``decisions`` of the JSON answer without the reason for its policy."""
    there = job.in_market(made.market)
    return {name: one.value(there, made) for name, one in DECISION.items() if one.value is not None}


MOST_STALE, MOST_ASSUMED = 3, 3  # Most notes on markets, and most assumptions, that are listed


def on_demand_price_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return on-demand prices not observed in the market itself, with their origin, for a few prices.

    >>> zones = [{"market": f"aws/r/{zone}/t", "source": "aws", "slot": 1} for zone in ("a", "b", "c")]
    >>> on_demand_price_notes([row | {"on_demand_usd_per_hour": 2.5, "on_demand_from": "list price"} for row in zones])
    ['aws/r/a/t and 2 other markets: 2.50 USD per instance-hour, list price']
    """
    markets: dict[str, list[str]] = {}
    for row in rows:
        usd = row.get("on_demand_usd_per_hour")
        if row.get("on_demand_from") not in (None, "observed") and usd is not None:
            own = markets.setdefault(f"{price(usd)} USD per instance-hour, {row['on_demand_from']}", [])
            if row["market"] not in own:
                own.append(row["market"])
    named = [{"market": own[0], "price": f"{_with_others(own)}: {text}"} for text, own in markets.items()]
    return decision_notes(named, "price")


def _with_others(markets: Sequence[str]) -> str:
    """Return the first market and the number of the others."""
    others = len(markets) - 1
    return markets[0] + (f" and {plural(others, 'other market')}" if others else "")


def decision_notes(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Return the notes of decisions under a key, once per market (at its newest slot), at most `MOST_STALE`."""
    newest: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: str(row.get("slot"))):
        newest[row.get("market"), row.get("source")] = row
    notes = list(dict.fromkeys(str(row[key]) for row in newest.values() if row.get(key)))
    more = len(notes) - MOST_STALE
    return notes[:MOST_STALE] + ([f"and the same for {plural(more, 'more market')}"] if more > 0 else [])


def assumed_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the assumptions of decisions on unmeasured markets, each once with its zones, at most `MOST_ASSUMED`.

    An availability that was not observed is stated by ``evidence_basis``, not here.

    >>> assumed_notes([{"market": f"gcp/us/us-{zone}/x", "synthetic": ["no price"]} for zone in "ab"])
    ['no price (us-a, us-b)']
    """
    from slackwater.warehouse.history import UNOBSERVED

    zones: dict[str, list[str]] = {}
    for row in rows:
        for assumption in map(str, row.get("synthetic") or ()):
            if row.get("evidence_basis") and assumption.startswith(UNOBSERVED):
                continue
            named = zones.setdefault(assumption, [])
            zone = f"markets of {row['job']}" if is_nowhere(row) else zone_of(str(row["market"]))
            if zone not in named:
                named.append(zone)
    notes = [f"{assumption} ({_first_zones(named)})" for assumption, named in zones.items()]
    more = len(notes) - MOST_ASSUMED
    return notes[:MOST_ASSUMED] + ([f"{more} more; see the report for all"] if more > 0 else [])


def _first_zones(zones: Sequence[str]) -> str:
    more = len(zones) - MOST_ASSUMED
    return ", ".join(zones[:MOST_ASSUMED]) + (f" and {more} more" if more > 0 else "")


def whole_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision as stored, with None for fields that did not exist when it was made."""
    return {name: row.get(name) for name in DECISION if name not in DELIVERED} | dict(row)


#: Meaning of the field `model` of simulated outcomes.
MODEL: Final = (
    "Model of the simulation: `world` (losses between slots, boot, restart and checkpoints, paid by the second), or `slot` "
    "(spot stays for whole slots): jobs scored by older versions."
)
#: How outcomes were simulated, by model.
SIMULATED: Final = {
    "world": "Simulated by the second (model: world): spot is lost between slots too, and instances take their boot and "
    "restart times.",
    "slot": "Simulated in slots (model: slot): spot that is available at the start of a slot stays for all of it.",
}
#: Fields of a leaderboard row: a policy over the jobs that ended.
BOARD: Final[dict[str, Field]] = {
    "policy": Field(kind=str, words="Name of the policy.", heading="policy"),
    "model": Field(kind=str, words=MODEL, heading="model"),
    "jobs": Field(kind=int, words="Ended jobs on which the policy was replayed.", heading="jobs"),
    "mean_utility": Field(
        kind=float,
        words="Mean utility: value of the finished job less its cost, in units of the cost with on-demand only.",
    ),
    "mean_utility_usd": Field(kind=float, words="Mean utility, USD."),
    "mean_cost_usd": Field(
        kind=float, words="Mean cost per job, USD.", heading="cost per job", unit="$", format=usd
    ),
    "mean_saved_usd": Field(
        kind=float | None,
        words="Mean saving compared with on-demand only, USD, over the jobs whose on-demand price is known; null without such "
        "jobs.",
        heading="saved",
        unit="$",
        format=usd,
    ),
    "saved_share": Field(
        kind=float | None,
        words="Mean saving as a share of the cost with on-demand only.",
        limits={"maximum": 1},
        heading="of on-demand only",
        format=percent,
    ),
    "mean_hindsight_usd": Field(
        kind=float | None,
        words="Mean cost per job of the hindsight optimum in the slot model, USD; null if an older version scored a job.",
    ),
    "on_time": Field(
        kind=float,
        words="Share of the replays that met the deadline.",
        limits=SHARE,
        heading="on time in replays",
        format=percent,
    ),
    "reported_jobs": Field(
        kind=int,
        words="Ended jobs with a reported outcome for which the policy decided most slots.",
        limits=NOT_NEGATIVE,
    ),
    "reported_on_time": Field(
        kind=float | None,
        words="Share of reported_jobs that met the deadline; null without such jobs.",
        limits=SHARE,
    ),
    "gap_to_hindsight": Field(
        kind=float,
        words="Utility of the hindsight optimum in the slot model less that of the policy, in units of the cost with "
        "on-demand only; negative where the world pays less than whole slots.",
    ),
    "weight": Field(
        kind=float,
        words="Weight of the policy in the selection.",
        limits=SHARE,
        heading="weight",
        format=percent,
    ),
}


#: Columns of `BOARD` that are reported instead of simulated.
REPORTED: Final = ("reported_jobs", "reported_on_time")
#: Fields of a leaderboard for display: the rows are those of `board_rows`.
BOARD_SHOWN: Final = BOARD | {
    "reported": Field(
        kind=str,
        words="Jobs decided by the policy that met the deadline, as reported.",
        heading="on time, reported",
    )
}


#: Fields of the simulated outcome of a policy on a job, in a replay and after the job's end.
OUTCOME: Final[dict[str, Field]] = {
    "policy": Field(
        kind=str,
        words="Name of the policy, or `optimum in the slot model`: the optimum if the future is known, with spot that "
        "stays for whole slots.",
        heading="policy",
    ),
    "model": Field(kind=str, words=MODEL, heading="model"),
    "alike": Field(
        kind=str | None,
        words="Number of other policies with the same decisions in every slot.",
        heading="same decisions",
    ),
    "cost_usd": Field(
        kind=float,
        words="Total cost of the job, including costs after the deadline.",
        heading="cost",
        unit="$",
        format=usd,
    ),
    "saved_usd": Field(
        kind=float | None,
        words="Saving compared with on-demand only, negative if the job costs more; null if no on-demand price is known.",
        heading="saved",
        unit="$",
        format=usd,
    ),
    "saved_share": Field(
        kind=float | None,
        words="Saving as a share of the cost with on-demand only.",
        heading="of on-demand only",
        format=percent,
    ),
    "on_time": Field(kind=bool, words="Whether the job met its deadline.", heading="on time"),
    "finish": Field(
        kind=str | None,
        words="Finish of the job, in the slot model the end of its last slot; null if it was abandoned.",
        heading="finish",
        unit="UTC",
    ),
    "spot_share": Field(
        kind=float,
        words="Share of spot in the instance-hours.",
        limits=SHARE,
        heading="spot share",
        format=percent,
    ),
    "utility_usd": Field(
        kind=float | None,
        words="Value of the finished job less the cost; null for a job without a value.",
        heading="value less cost",
        unit="$",
        format=usd,
    ),
    "moves": Field(kind=int | None, words="Number of moves; null for a single-market job.", heading="moves"),
    "moving_usd": Field(
        kind=float | None,
        words="Cost of the moves; null for a single-market job.",
        heading="cost of moves",
        unit="$",
        format=usd,
    ),
    "where": Field(kind=str | None, words="Zones of the job, in order of use.", heading="zones"),
}


def in_hindsight(cost: float, alone: float | None) -> dict[str, Any]:
    """Return the hindsight optimum as an outcome row; ``alone`` is the cost of on-demand only, None if unknown."""
    return {
        "policy": HINDSIGHT,
        "model": "slot",
        "cost_usd": cost,
        "saved_usd": None if alone is None else alone - cost,
        "saved_share": None if not alone else 1.0 - cost / alone,
    }


def fold_equal_outcomes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return outcomes with policies of equal decisions in one row, with their number; baselines have their own."""
    alike: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        held = json.dumps([row["allocations"], row.get("places")], default=str)
        key = row["policy"] if row["policy"] in BASELINES else (held, row["cost_usd"])
        alike.setdefault(key, []).append(row)
    return [{**own[0], "alike": _more([row["policy"] for row in own])} for own in alike.values()]


def _more(names: Sequence[str]) -> str | None:
    """Return the number of policies after the first, in words.

    >>> _more(["AHAP(3,1,0.4)", "AHAP(3,1,0.5)"]), _more(["Stochastic(24)", "AHANP(0.7)", "AHAP(3,1,0.4)"]), _more(["UP"])
    ('1 more AHAP', '2 more', None)
    """
    kinds = {name.partition("(")[0] for name in names}
    kind = f" {kinds.pop()}" if len(kinds) == 1 else ""
    return f"{len(names) - 1} more{kind}" if len(names) > 1 else None


def places_words(places: Sequence[str | None]) -> str:
    """Return the zones of a job, in the order in which it used them.

    >>> places_words(["gcp/us/us-a/x", None, "gcp/us/us-a/x", "gcp/us/us-b/x"])
    'us-a, us-b'
    """
    held = [place for place in places if place is not None]
    visited = [place for i, place in enumerate(held) if not i or held[i - 1] != place]
    return ", ".join(zone_of(place) for place in visited)


def outcome_table(title: str, outcomes: Sequence[Mapping[str, Any]], *, most: int | None = None) -> Table:
    """Return the table of a job's simulated outcomes, with the hindsight cost in the last row if known."""
    rows = [{**row, "where": places_words(row["places"]) if row["places"] else None} for row in outcomes]
    if rows and rows[0]["hindsight_usd"] is not None:
        rows.append(in_hindsight(rows[0]["hindsight_usd"], rows[0]["on_demand_only_usd"]))
    return Table(title, rows, columns_of(OUTCOME, rows=rows), most=most, marked=stands_alone, cards=True)


def stands_alone(row: Mapping[str, Any]) -> bool:
    """Return whether a row of policies is always shown: a baseline's, or hindsight's."""
    return row.get("policy") in (*BASELINES, HINDSIGHT)


def board_rows(board: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return rows of the leaderboard with their reported outcomes, and last the hindsight cost if all jobs have it."""
    rows: list[Mapping[str, Any]] = [{**row, "reported": reported_words(row)} for row in board]
    cost = board[0].get("mean_hindsight_usd") if board else None
    if cost is None:
        return rows
    saved = board[0]["mean_saved_usd"]
    own = in_hindsight(cost, None if saved is None else board[0]["mean_cost_usd"] + saved)
    means = {"mean_cost_usd": own["cost_usd"], "mean_saved_usd": own["saved_usd"]}
    return [*rows, {**own, **means, "jobs": board[0]["jobs"]}]


def folded_board(board: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the leaderboard with policies of the same record in a single row, with the sum of their weights.

    Baselines and policies with reported outcomes have separate rows.

    >>> row = {"mean_cost_usd": 5.0, "weight": 0.25}
    >>> [(r["policy"], r["weight"]) for r in folded_board([{**row, "policy": f"AHAP(3,1,0.{k})"} for k in (4, 5)])]
    [('AHAP(3,1,0.4) and 1 more AHAP', 0.5)]
    """
    alike: dict[Any, list[Mapping[str, Any]]] = {}
    for row in board:
        alone = row["policy"] in BASELINES or row.get("reported_jobs")
        record = tuple((key, row[key]) for key in sorted(row) if key not in ("policy", "weight", "rank"))
        alike.setdefault(row["policy"] if alone else record, []).append(row)
    made = []
    for own in alike.values():
        more = _more([str(row["policy"]) for row in own])
        named = {"policy": f"{own[0]['policy']} and {more}"} if more else {}
        weights = [row.get("weight") for row in own]
        weight = {} if None in weights else {"weight": sum(weights)}  # type: ignore[arg-type]
        made.append({**own[0], **named, **weight})
    return made


def reported_words(row: Mapping[str, Any]) -> str:
    """Return how many of the reported jobs that a policy decided were in time.

    >>> reported_words({"reported_jobs": 4, "reported_on_time": 0.75}), reported_words({"reported_jobs": 0})
    ('3 of 4', 'none yet')
    """
    jobs = int(row.get("reported_jobs") or 0)
    return f"{round(jobs * row['reported_on_time'])} of {jobs}" if jobs else "none yet"
