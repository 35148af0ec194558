"""Fields of a decision, a leaderboard row, an outcome and a forecast error, each declared once in ``data/fields.csv``.

Every module that stores, publishes, prints or draws a decision uses these fields: the stored row,
the JSON and its schema, the terminal, the report and the UI. This module does not import pandas, as
help texts load it.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from slackwater.flows.show.blocks import Column, Table
from slackwater.flows.show.formats import (
    as_number,
    auto,
    dollars,
    first_of,
    missing,
    percent,
    price,
    usd,
    utc,
)
from slackwater.warehouse.amounts import plural
from slackwater.warehouse.documents import read_text
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

    ``kind`` is the name of its type (`slackwater.flows.schemas.forms`), "?" after it allows None; ``limits`` are further
    keys of its JSON Schema. ``value`` computes it from the state of a job and its
    decision; without it, the code that builds the row adds the value. A decision stored before the field was
    introduced has None, so the ``kind`` of a new field allows None. ``column`` marks fields with a separate
    column in the table of decisions; all others are stored in the column ``details``. A field with a
    ``heading`` is shown in the tables named by ``shown``, further to the right with a higher ``place``.
    """

    kind: str
    words: str
    heading: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    value: Callable[[OpenJob, Decision], Any] | None = None
    column: bool = False
    shown: tuple[str, ...] = (TABLE, JOB)
    place: int = 0

    @property
    def nullable(self) -> bool:
        """Whether the value may be None."""
        return self.kind.endswith("?")


def columns_of(
    fields: Mapping[str, Field], where: str = TABLE, rows: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Column | str]:
    """Return the columns of a table; of ``rows`` a nullable column that is always null is left out, except probabilities."""
    shown = [
        name
        for name, field in fields.items()
        if field.heading
        and where in field.shown
        and (
            rows is None
            or not field.nullable
            or field.format is risk
            or any(row.get(name) is not None for row in rows)
        )
    ]
    return {name: fields[name] for name in sorted(shown, key=lambda name: fields[name].place)}


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


def _share(job: OpenJob, decision: Decision) -> float:
    return decision.progress.done / job.run.workload


def slots_after(start: pd.Timestamp, slots: float, step: pd.Timedelta) -> pd.Timestamp:
    """Return the time some slots after a start, rounded down to a second, but for the rounding of floats.

    >>> import pandas as pd
    >>> slots_after(pd.Timestamp("2026-03-05T12:00Z"), 7.9999999999, pd.Timedelta("30min")).isoformat()
    '2026-03-05T16:00:00+00:00'
    """
    return (start + slots * step).round("ms").floor("s")


def _finish(job: OpenJob, decision: Decision) -> str:
    return slots_after(job.live.start, decision.expected.finish_slots, job.live.step).isoformat()


def _finish_quantile(job: OpenJob, decision: Decision, share: float) -> str | None:
    """Return the time by which a ``share`` of the paths finish; None if fewer do, or the risk is not known."""
    if not decision.risk_known:
        return None
    finish = sorted(math.inf if math.isnan(slots) else float(slots) for slots in decision.expected.finish)
    slots = finish[math.ceil(share * len(finish)) - 1]
    return None if math.isinf(slots) else slots_after(job.live.start, slots, job.live.step).isoformat()


#: Probability of missing the deadline from which on an answer states the likely work instead of a finish.
UNLIKELY: Final = 0.9
#: Share of paths on which a job is given up, above which its cost is not compared with on-demand only.
SELDOM: Final = 0.1


def _expected_saving(job: OpenJob, decision: Decision) -> float | None:
    """Return the expected saving over on-demand only; None without its price, or if more than `SELDOM` of paths give up."""
    alone = job.live.on_demand_only_usd
    if alone is None or decision.expected.given_up_probability > SELDOM:
        return None
    return alone - decision.expected.cost_usd


def _saved_share(job: OpenJob, decision: Decision) -> float | None:
    saved = _expected_saving(job, decision)
    alone = job.live.on_demand_only_usd
    return None if saved is None or not alone else _round(saved / alone, 6)


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits) + 0.0  # -0.0 becomes 0.0


def _on_demand_note(job: OpenJob, decision: Decision) -> str | None:
    """Return a note where no on-demand price is known, or nothing is sold on demand."""
    if not job.history.on_demand.sold and any(seen.on_demand.sold for seen in job.live.seen):
        return (
            f"{job.history.market.key}: no on-demand instances here: to meet the deadline, the job moves to a market that "
            "sells them"
        )
    return job.history.on_demand_note


def _late_probability(job: OpenJob, decision: Decision) -> float | None:
    """Return the probability of missing the deadline; None if unknown, and on-demand could still meet it."""
    if decision.guarded:
        return 0.0
    if decision.risk_known or job.live.shortfall(decision.progress):
        return round(decision.expected.late_probability, 4)
    return None


def _over_budget(job: OpenJob, decision: Decision) -> float | None:
    if math.isinf(job.run.budget_usd) or not decision.risk_known:
        return None
    return round(decision.expected.over_budget_probability, 4)


def _budget_note(job: OpenJob, decision: Decision) -> str | None:
    """Return a warning where the budget does not pay for finishing on demand in any market, else None."""
    from slackwater.optimization.job.definition import guard_usd

    if math.isinf(job.run.budget_usd) or any(seen.on_demand.sold for seen in job.live.seen):
        return None
    own, progress = job.history, decision.progress
    need = progress.cost_usd + guard_usd(
        job.run, progress, left=job.run.deadline_slots - job.live.slot,
        on_demand_usd=own.on_demand_usd, slot_hours=own.slot_hours,
    )  # fmt: skip
    late = decision.expected.late_probability if decision.risk_known else 0.0
    limit = f"the budget of ${dollars(job.run.budget_usd)}"
    begins = f"{limit} does not cover finishing on demand, which costs ${dollars(need)} in total"
    if late < UNLIKELY:
        return f"{begins}: only spot runs, and the deadline is met only if spot stays available"
    done, short = decision.expected.work_share, decision.expected.over_budget_probability
    more = decision.expected.cost_usd - progress.cost_usd
    share = done - _share(job, decision)
    enough = (
        f" (all of it costs about ${dollars(progress.cost_usd + more / share * (1 - _share(job, decision)))})"
        if short >= UNLIKELY and share > 0
        else ""
    )
    return (
        f"{begins}. Only spot runs, and the job ends unfinished in {percent(late)} of cases, with about {percent(done)} of the "
        f"work done: raise the budget{enough}, or stop the job now"
    )


def _worth_note(job: OpenJob, decision: Decision) -> str | None:
    """Return a note where a job with a value runs nothing and is more likely abandoned than finished, else None."""
    from slackwater.optimization.job.definition import guard_usd

    given_up = decision.expected.given_up_probability
    if (
        decision.allocation.total
        or job.run.must_finish
        or given_up <= 0.5
        or job.live.shortfall(decision.progress)
    ):
        return None
    own, rest = job.history, job.live.on_demand_only_usd
    if rest is not None and decision.progress.done:
        rest = guard_usd(
            job.run, decision.progress, left=job.run.deadline_slots - job.live.slot,
            on_demand_usd=own.on_demand_usd, slot_hours=own.slot_hours,
        )  # fmt: skip
    alone = "" if rest is None else f" and costs ${dollars(rest)} on demand"
    return (
        f"not worth running on now: finishing by the deadline is worth ${dollars(job.run.value)}{alone}; "
        f"at the expected spot prices it is given up in {percent(given_up)} of cases"
    )


def _availability_note(job: OpenJob, decision: Decision) -> str | None:
    if not decision.evidence.is_assumed or not decision.expected.uses_spot:
        return None
    others = len(job.places) - 1
    where = f" and {plural(others, 'other market')}" if others else ""
    return f"{job.history.market.key}{where}: {decision.evidence}"


def _assuming(job: OpenJob, decision: Decision) -> str | None:
    """Return the assumptions of cost, finish and risk as text; None if even on-demand alone misses the deadline."""
    from slackwater.optimization.job.times import saving_words, times_words

    if job.live.shortfall(decision.progress):
        return None
    if not decision.risk_known:
        return None
    sold = any(seen.on_demand.sold for seen in job.live.seen) and math.isinf(job.run.budget_usd)
    size = decision.allocation.total or job.run.n_max
    words = times_words(job.run.times, size, granted=sold) if job.run.times else ["can be launched"]
    launch = " and ".join([part for part in (", ".join(words[:-1]), *words[-1:]) if part])
    saves = saving_words(job.run.times) if job.run.times and decision.expected.uses_spot else ""
    who = f"decisions are followed{saves} and {'on-demand' if sold else 'an instance'}"
    return f"{who} {launch}" if launch else None


def _standby(job: OpenJob, decision: Decision) -> str | None:
    if decision.standby is None:
        return None
    held = [(decision.standby.on_demand, "on-demand"), (decision.standby.spot, "spot")]
    instances = " and ".join(f"{count} {kind}" for count, kind in held if count)
    if not instances:
        return "wait for the next decision"
    market = decision.market if decision.standby_market is None else decision.standby_market
    where = "" if market == decision.market else f" in {job.live.names[market]}"
    is_assumed = decision.standby.spot and not job.in_market(market).history.availability_observed
    return f"run {instances}{where} at once{' (availability assumed)' if is_assumed else ''}"


def _standby_market(job: OpenJob, decision: Decision) -> str | None:
    market = decision.market if decision.standby_market is None else decision.standby_market
    return None if decision.standby is None else job.places[market]


def _spot_price(job: OpenJob, decision: Decision) -> float | None:
    seen, slot = job.seen, job.live.slot
    prices = seen.price if seen.quoted is None else seen.quoted
    return round(prices[slot], 6) if seen.observed[slot] else None


def _planned_instances(job: OpenJob, decision: Decision) -> list[dict[str, Any]] | None:
    if decision.planned is None:
        return None
    live = job.live
    return [
        {
            "slot": (live.now + (k + 1) * live.step).isoformat(),
            "on_demand": allocation.on_demand,
            "spot": allocation.spot,
        }
        for k, allocation in enumerate(decision.planned)
    ]


def _market_name(job: OpenJob, m: int | None) -> str | None:
    """Return the name of a market of a multi-market job, None for no market and for a single-market job."""
    return job.places[m] if job.request.may_move and m is not None and m < len(job.places) else None


def _continued_instances(job: OpenJob, decision: Decision) -> tuple[int, int]:
    """Return the on-demand and spot instances that continue from before; none if the job moves."""
    if decision.moved_from is not None:
        return 0, 0
    before, now = job.held.allocation, decision.allocation
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


def _change(job: OpenJob, decision: Decision) -> str:
    names = ("on_demand", "spot", "start_on_demand", "start_spot", "stop_on_demand", "stop_spot")
    return change_words({name: value(job, decision) for name in names if (value := DECISION[name].value)})


def _instances(job: OpenJob, decision: Decision) -> str | None:
    from slackwater.optimization.job.units import held_words

    if not decision.allocation.total:
        return None
    return held_words(decision.allocation.total, job.history.market.instance_type, job.run.gpus)


def _instance_hours(job: OpenJob, decision: Decision) -> float | None:
    from slackwater.optimization.job.units import instance_hours_of

    hours = instance_hours_of(job.request, job.run)
    return None if hours is None else round(hours, 6)


def _work(job: OpenJob, decision: Decision) -> str:
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


# ---
# The tables of fields, each a row of ``data/fields.csv``.

_FORMATS: Final = {"": auto, "usd": usd, "percent": percent, "risk": risk, "zone_of": zone_of}


def read_fields(
    table: str, values: Mapping[str, Callable[[OpenJob, Decision], Any]] | None = None
) -> dict[str, Field]:
    """Return the fields of a table of ``data/fields.csv`` in order; ``values`` compute them from a job and its decision."""
    rows = csv.DictReader(read_text(__package__, "data/fields.csv").splitlines())
    return {
        row["field"]: Field(
            kind=row["type"],
            limits=json.loads(row["limits"] or "{}"),
            words=row["words"],
            column=bool(row["stored"]),
            heading=row["heading"],
            unit=row["unit"],
            format=_FORMATS[row["format"]],
            tone=_abnormal if row["tone"] else None,
            shown=(row["shown"],) if row["shown"] else (TABLE, JOB),
            place=int(row["place"] or 0),
            card=int(row["card"] or 0),
            beneath=bool(row["beneath"]),
            glance=bool(row["glance"]),
            value=(values or {}).get(row["field"]),
        )
        for row in rows
        if row["table"] == table
    }


def _abnormal(value: Any) -> str:
    return "off"


#: Fields added to a decision on delivery or by ``plan``; its row has the rest of `DECISION`.
DELIVERED: Final = (
    "schema", "program", "version", "key", "market_parts", "valid_until", "issued_at", "expired", "alone", "decided_with",
)  # fmt: skip
#: How the fields of a decision that its row has are computed.
_VALUES: Final[dict[str, Callable[[OpenJob, Decision], Any]]] = {
    "job": lambda job, decision: decision.job,
    "market": lambda job, decision: job.history.market.key,
    "source": lambda job, decision: job.history.source,
    "synthetic": lambda job, decision: list(job.history.assumptions),
    "slot": lambda job, decision: job.live.now.isoformat(),
    "slot_end": lambda job, decision: (job.live.now + job.live.step).isoformat(),
    "step_minutes": lambda job, decision: job.live.step.total_seconds() / 60.0,
    "on_demand": lambda job, decision: decision.allocation.on_demand,
    "spot": lambda job, decision: decision.allocation.spot,
    "held_on_demand": lambda job, decision: job.held.allocation.on_demand,
    "held_spot": lambda job, decision: job.held.allocation.spot,
    "held_from": lambda job, decision: "reported" if job.held.reported else "decided",
    "start_on_demand": lambda job, decision: (
        decision.allocation.on_demand - _continued_instances(job, decision)[0]
    ),
    "start_spot": lambda job, decision: decision.allocation.spot - _continued_instances(job, decision)[1],
    "stop_on_demand": lambda job, decision: (
        job.held.allocation.on_demand - _continued_instances(job, decision)[0]
    ),
    "stop_spot": lambda job, decision: job.held.allocation.spot - _continued_instances(job, decision)[1],
    "change": _change,
    "gpus_per_instance": lambda job, decision: job.run.gpus,
    "gpus": lambda job, decision: None if job.run.gpus is None else decision.allocation.total * job.run.gpus,
    "instances": _instances,
    "policy": lambda job, decision: decision.policy,
    "reason": lambda job, decision: decision.reason,
    "expected_cost_usd": lambda job, decision: round(decision.expected.cost_usd, 4),
    "expected_cost_p10_usd": lambda job, decision: round(decision.expected.cost_p10_usd, 4),
    "expected_cost_p90_usd": lambda job, decision: round(decision.expected.cost_p90_usd, 4),
    "on_demand_only_usd": lambda job, decision: _round(job.live.on_demand_only_usd, 4),
    "saved_usd": lambda job, decision: _round(_expected_saving(job, decision), 4),
    "saved_share": _saved_share,
    "expected_finish": _finish,
    "expected_finish_p10": lambda job, decision: _finish_quantile(job, decision, 0.1),
    "expected_finish_p90": lambda job, decision: _finish_quantile(job, decision, 0.9),
    "availability_note": _availability_note,
    "evidence": lambda job, decision: decision.evidence.level,
    "evidence_basis": lambda job, decision: str(decision.evidence),
    "given_up_probability": lambda job, decision: (
        round(decision.expected.given_up_probability, 4) if decision.risk_known else None
    ),
    "expected_work_share": lambda job, decision: (
        round(decision.expected.work_share, 4) if decision.risk_known else None
    ),
    "late_probability": _late_probability,
    "deadline": lambda job, decision: job.live.deadline.isoformat(),
    "must_finish": lambda job, decision: job.run.must_finish,
    "on_demand_usd_per_hour": lambda job, decision: (
        job.history.on_demand_usd if job.history.on_demand.known else None
    ),
    "on_demand_from": lambda job, decision: str(job.history.on_demand),
    "on_demand_note": _on_demand_note,
    "spot_usd_per_hour": _spot_price,
    "forecaster": lambda job, decision: job.forecast.predictor if job.forecast else None,
    "fallback": lambda job, decision: job.forecast.fallback if job.forecast else "no forecast",
    "solver": lambda job, decision: decision.solver,
    "progress": lambda job, decision: round(_share(job, decision) * job.request.workload.amount, 6),
    "progress_share": lambda job, decision: round(_share(job, decision), 6),
    "workload": lambda job, decision: job.request.workload.amount,
    "workload_unit": lambda job, decision: job.request.workload.unit,
    "workload_instance_hours": _instance_hours,
    "work": _work,
    "progress_from": lambda job, decision: "reported" if job.progress_report else "decided",
    "progress_reported_at": lambda job, decision: (
        job.progress_report.reported_at.isoformat() if job.progress_report else None
    ),
    "held_before": lambda job, decision: decision.progress.n_previous,
    "budget_usd": lambda job, decision: None if math.isinf(job.run.budget_usd) else job.run.budget_usd,
    "paid_usd": lambda job, decision: round(decision.progress.cost_usd, 4),
    "over_budget_probability": _over_budget,
    "budget_note": _budget_note,
    "worth_note": _worth_note,
    "shortfall": lambda job, decision: job.live.shortfall(decision.progress) or None,
    "stale": lambda job, decision: job.stale,
    "contradicted": lambda job, decision: "; ".join(job.history.contradicted) or None,
    "assuming": _assuming,
    "guarded": lambda job, decision: decision.guarded,
    "standby_on_demand": lambda job, decision: (
        None if decision.standby is None else decision.standby.on_demand
    ),
    "standby_spot": lambda job, decision: None if decision.standby is None else decision.standby.spot,
    "standby_market": _standby_market,
    "standby": _standby,
    "planned": _planned_instances,
    "place": lambda job, decision: _market_name(job, decision.market),
    "moved_from": lambda job, decision: _market_name(job, decision.moved_from),
    "move_usd": lambda job, decision: round(decision.move_usd, 4) if job.request.may_move else None,
    "probe_next": lambda job, decision: _market_name(job, decision.probe_next),
}
#: All fields of a decision, in the order of its document.
DECISION: Final = read_fields("decision", _VALUES)


NOWHERE: Final = "nowhere yet"  # Text shown in place of a market for a multi-market job that has not begun


def is_nowhere(row: Mapping[str, Any]) -> bool:
    """Return whether a decision is for a multi-market job that has not begun: its row names the first of its markets.

    >>> is_nowhere({"place": None, "move_usd": 0.0}), is_nowhere({"place": None, "move_usd": None})
    (True, False)
    """
    return not isinstance(row.get("place"), str) and row.get("move_usd") is not None


def as_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision for display: with the intervals of cost and finish, and no market for a job that has none.

    An abandoned job has no expected cost, and a job that is hardly ever finished no expected finish.
    """
    shown = {
        **row,
        "cost_interval": cost_interval(row) or None,
        "finish_interval": finish_interval(row) or None,
        "assumption": assumption(row) or None,
    }
    if row.get("shortfall") and not row.get("expected_cost_usd"):  # an abandoned job has no expected cost
        shown |= {"expected_cost_usd": None}
    if (given_up := as_number(row.get("given_up_probability"))) is not None and given_up >= UNLIKELY:
        shown |= {"expected_finish": None}
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
INTERVALS: Final = read_fields("interval")


def decision_row(job: OpenJob, decision: Decision) -> dict[str, Any]:
    """Return a decision as plain values, as in ``decisions`` of the JSON answer without the reason for its policy."""
    there = job.in_market(decision.market)
    return {name: field.value(there, decision) for name, field in DECISION.items() if field.value is not None}


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
    return first_of(notes, MOST_ASSUMED, "{} more; see the report for all")


def _first_zones(zones: Sequence[str]) -> str:
    more = len(zones) - MOST_ASSUMED
    return ", ".join(zones[:MOST_ASSUMED]) + (f" and {more} more" if more > 0 else "")


def whole_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision as stored, with None for fields that did not exist when it was made."""
    return {name: row.get(name) for name in DECISION if name not in DELIVERED} | dict(row)


#: How outcomes were simulated, by model.
SIMULATED: Final = {
    "world": "Simulated by the second (model: world): spot is lost where the record shows fewer instances, between slots too, and "
    "instances take their boot and restart times.",
    "slot": "Simulated in slots (model: slot): spot that is available at the start of a slot stays for all of it.",
}
#: Fields of a leaderboard row: a policy over the jobs that ended.
BOARD: Final = read_fields("board")


#: Columns of `BOARD` that are reported instead of simulated.
REPORTED: Final = ("reported_jobs", "reported_on_time")
#: Fields of a leaderboard for display: the rows are those of `board_rows`.
BOARD_SHOWN: Final = BOARD | read_fields("board shown")


#: Fields of the simulated outcome of a policy on a job, in a replay and after the job's end.
OUTCOME: Final = read_fields("outcome")


def saving(cost: float, alone: float | None, *, is_finished: bool) -> dict[str, float | None]:
    """Return saved_usd and saved_share of a job that costs ``cost`` USD, and ``alone`` with on-demand only (M12.16).

    None without an on-demand price, and for a job that was given up: its cost did not buy the work.

    >>> saving(30.0, 40.0, is_finished=True), saving(0.0, 40.0, is_finished=False)["saved_usd"]
    ({'saved_usd': 10.0, 'saved_share': 0.25}, None)
    """
    if alone is None or not is_finished:
        return {"saved_usd": None, "saved_share": None}
    return {"saved_usd": alone - cost, "saved_share": 1.0 - cost / alone if alone else None}


def in_hindsight(cost: float, alone: float | None) -> dict[str, Any]:
    """Return the hindsight optimum as an outcome row; ``alone`` is the cost of on-demand only, None if unknown.

    An optimum that costs nothing gives the job up.
    """
    return {
        "policy": HINDSIGHT,
        "model": "slot",
        "cost_usd": cost,
        **saving(cost, alone, is_finished=cost > 0.0),
    }


def fold_equal_outcomes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return outcomes with policies of equal decisions in one row, with their number; baselines have their own."""
    alike: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        held = json.dumps([row["allocations"], row.get("places")], default=str)
        key = row["policy"] if row["policy"] in BASELINES else (held, row["cost_usd"])
        alike.setdefault(key, []).append(row)
    return [{**own[0], "alike": _others([row["policy"] for row in own])} for own in alike.values()]


def _others(names: Sequence[str]) -> str | None:
    """Return the number of policies after the first, in words.

    >>> _others(["AHAP(3,1,0.4)", "AHAP(3,1,0.5)"]), _others(["Stochastic(24)", "AHANP(0.7)", "AHAP(3,1,0.4)"]), _others(["UP"])
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
    return [*rows, {**in_hindsight(cost, None), "mean_cost_usd": cost, "jobs": board[0]["jobs"]}]


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
    result = []
    for own in alike.values():
        more = _others([str(row["policy"]) for row in own])
        named = {"policy": f"{own[0]['policy']} and {more}"} if more else {}
        weights = [row.get("weight") for row in own]
        weight = {} if None in weights else {"weight": sum(weights)}  # type: ignore[arg-type]
        result.append({**own[0], **named, **weight})
    return result


def reported_words(row: Mapping[str, Any]) -> str:
    """Return how many of the reported jobs that a policy decided were in time.

    >>> reported_words({"reported_jobs": 4, "reported_on_time": 0.75}), reported_words({"reported_jobs": 0})
    ('3 of 4', 'none yet')
    """
    jobs = int(row.get("reported_jobs") or 0)
    return f"{round(jobs * row['reported_on_time'])} of {jobs}" if jobs else "none yet"
