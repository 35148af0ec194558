"""Descriptions of the tables and views of a warehouse, and the SQL of the views.

``python -m flows.schemas.tables sql > warehouse/store/sql/described.sql`` writes the SQL that runs
when a warehouse is opened for writing (`warehouse.store.schema.describe`).
``python -m flows.schemas.tables > docs/schema.md`` writes the page.
Tests compare both files with this module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from flows.ledger.fields import BOARD, DECISION, DELIVERED, OUTCOME, REPORTED, TIME, Field
from flows.schemas import forms
from warehouse.asof import GAPS_UNTIL_STALE, PRICE_MAX_AGE
from warehouse.products import UNKNOWN_RANK, rank_sql
from warehouse.store.connection import Store, open_store
from warehouse.store.schema import TABLES, quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table or view, with the meaning of a row and of each column.

    ``columns`` maps names to descriptions, in the order of the columns. ``sql`` is the SELECT of a
    view, "" for a table. ``key`` holds the columns that identify a row of a view; the keys of
    tables are in `TABLES`.
    """

    words: str
    columns: Mapping[str, str]
    sql: str = ""
    key: tuple[str, ...] = ()


# ---
# Descriptions shared by several relations, or declared with the value itself.

MARKET: Final = (
    "provider/region/zone/instance_type: the key that names a market in every table of what was issued."
)
SOURCE: Final = "Where the observations of the market come from."
OBSERVED: Final = "When it was true, UTC."
KNOWN: Final = "When it was learned, UTC; nothing computed as of an earlier time reads the row (M1.2)."
SID: Final = "The series, a key of this file only: joins `series`."
MID: Final = "The market, a key of this file only: joins `markets`."
VID: Final = "The vintage, a key of this file only: joins `vintages`."
BATCH: Final = "The import that brought it: joins `imports`."
JOB: Final = "Name of the job: joins `jobs.name`."
ROUND: Final = "Number of the round: one ended job on which every policy was replayed."
DETAILS: Final = "JSON of what has no column of its own."
STEP_SECONDS: Final = "Length of a slot, seconds."
#: Quantile levels of a forecast, in percent.
LEVELS: Final = range(5, 100, 5)
_MARKET_PARTS: Final = {
    "provider": "Who rents it out.",
    "region": "Region of the provider.",
    "zone": "Zone of the region.",
    "instance_type": "Type of the instances.",
}
_ROWS_READ: Final = {
    "added": "Rows that were new.",
    "repeated": "Rows that said nothing new.",
    "rejected": "Rows that could not be used.",
}


def _measures() -> dict[str, str]:
    """Return the description of each forecast error by key."""
    properties = forms.schema_of(forms.MarketMeasures)["properties"]
    return {name: key["description"] for name, key in properties.items()}


def _taken(fields: Mapping[str, Field], *names: str) -> dict[str, str]:
    return {name: fields[name].words for name in names}


def _quantiles() -> dict[str, str]:
    return {
        f"q{level:02d}": f"Quantile {level} %: the truth is below it with that chance." for level in LEVELS
    }


_MEASURED: Final = ("n", "mae", "rmse", "mase", "pinball", "skill_mae", "skill_pinball", "coverage_80", "width_80", "brier",
                    "absent", "unpredicted", "fallback_share")  # fmt: skip
#: Errors stored as JSON in the column ``more`` of the table `accuracy`.
_MORE: Final = ("coverage_50", "coverage_90", "scale")


def _taken_measures(*names: str) -> dict[str, str]:
    known = _measures()
    return {name: known[name] for name in names}


_ISSUED: Final = {
    "market": MARKET,
    "source": SOURCE,
    "model": "The forecaster.",
    "issued_at": "Start of the slot it was issued in, UTC.",
    "step_seconds": STEP_SECONDS,
    "newest_row": "Start of the slot of the newest value it knew, UTC.",
}


def tables() -> dict[str, Relation]:
    """Return the tables in the order of `TABLES`."""
    decided = {name: one.words for name, one in DECISION.items() if one.column}
    return {
        "markets": Relation(
            words="Where instances are rented (M1.1): one row a market.",
            columns={"mid": MID, **_MARKET_PARTS},
        ),
        "series": Relation(
            words="What is observed of a market by one source: one row a series.",
            columns={
                "sid": SID,
                "mid": MID,
                "source": SOURCE,
                "kind": "`price` or `availability`: the table that its observations are in.",
                "product": "What the price is of, as the provider names it; empty of availability.",
            },
        ),
        "imports": Relation(
            words="Where observations come from: one row a file or page that was read.",
            columns={
                "batch": "The import, a key of this file only.",
                "fingerprint": "Hash of content, reader, options, rule and path together.",
                "content": "SHA-256 of the bytes alone.",
                "reader": "The source that read it (`slackwater ingest --list`).",
                "file": "The file, or what stands for it.",
                "options": "JSON of the options it was read with.",
                "known_at_rule": "When its rows became known, where they do not say it themselves (M1.2).",
                "assumptions": "JSON list of what had to be assumed to read it, one sentence each.",
                "imported_at": "Logical time of the import, UTC; null where none was given.",
                **_ROWS_READ,
            },
        ),
        "price": Relation(
            words="Spot prices as observed. A correction is a new row: of one `observed_at` that with the newest `known_at` "
            "counts; `market_prices` has these only.",
            columns={
                "sid": SID,
                "observed_at": OBSERVED,
                "known_at": KNOWN,
                "price_usd": "Spot price, USD per instance-hour.",
                "on_demand_usd": "On-demand price stated beside it, USD per instance-hour; null if none was.",
                "batch": BATCH,
            },
        ),
        "availability": Relation(
            words="Instances that could be had, as observed. Corrections as in `price`; `market_counts` has what counts.",
            columns={
                "sid": SID,
                "observed_at": OBSERVED,
                "known_at": KNOWN,
                "available": "Instances that could be had, or a placement score (kind `score`).",
                "capacity": "The most that the probe could have shown; null if not stated.",
                "gap_seconds": "Nominal time between two observations of the source; null if not stated.",
                "kind": "`probe`, `held`, `offers`, or `score`, a placement score that is no count.",
                "truncated": "Whether the probe stopped at its capacity, so that more might have been there.",
                "batch": BATCH,
            },
        ),
        "rejected": Relation(
            words="Rows that could not be used, kept as they were found (`slackwater rejected`).",
            columns={
                "batch": BATCH,
                "file": "The file that the row stands in.",
                "line": "Its line or row there; 0: unknown.",
                "raw": "The row as found, JSON or text.",
                "reason": "Why it cannot be used.",
            },
        ),
        "assumptions": Relation(
            words="What was assumed of a market instead of measured.",
            columns={"market": MARKET, "source": SOURCE, "text": "The assumption, one sentence."},
        ),
        "vintages": Relation(
            words="Forecasts as they were issued (M6.1): one row a market, model and slot; nothing overwrites it.",
            columns={
                "vid": VID,
                **_ISSUED,
                "horizon": "Slots it reaches ahead.",
                "capacity": "The largest count it reckons with.",
                "price_fallback": "Why a simpler model answered for the price; empty if none did.",
                "count_fallback": "The same for the count.",
                "backfilled": "Made later for a past slot.",
            },
        ),
        "forecasts": Relation(
            words="What a vintage says of each slot ahead: mean and 19 quantiles.",
            columns={
                "vid": VID,
                "variable": "`price`, USD per instance-hour, or `count`, instances.",
                "step_ahead": "Slots ahead: 1 is the slot after that of issue.",
                "mean": "Mean.",
                **_quantiles(),
            },
        ),
        "accuracy": Relation(
            words="Errors of forecasts as measured in each turn, over its last origins (M6.5).",
            columns={
                "measured_at": "Logical time of the turn that measured, UTC.",
                **_taken_measures("market", "source", "model", "variable", "step", *_MEASURED),
                "market": MARKET,
                "more": DETAILS,
            },
        ),
        "jobs": Relation(
            words="Jobs as their owners described them when they were added (M2.1); `terms` has what was changed since.",
            columns={
                "name": "Name of the job.",
                "market": MARKET,
                "source": "The source of its market, empty for the most trusted one.",
                "spec": "JSON of its terms.",
                "origin": "`user` or `example`.",
                "created_at": "When it was added, UTC.",
                "start_at": "Start of its first slot, UTC.",
                "deadline_at": "Its deadline, UTC.",
                "step_seconds": STEP_SECONDS,
            },
        ),
        "terms": Relation(
            words="Terms of jobs that were changed after they were added: at a time the newest known by then count (M2.9).",
            columns={
                "job": JOB,
                "known_at": KNOWN,
                "revision": "Counts changes that became known at one time, from 0; the highest counts.",
                "spec": "JSON of all its terms.",
                "deadline_at": "Its deadline, UTC.",
            },
        ),
        "decisions": Relation(
            words="What was decided: one row a job and slot, never changed. `job_decisions` has every field.",
            columns={
                "job": decided["job"],
                "slot": decided["slot"],
                "run": "The turn that decided: joins `runs.run`.",
                **{name: decided[name] for name in ("policy", "on_demand", "spot", "reason")},
                "details": "JSON of everything the decision says.",
            },
        ),
        "outcomes": Relation(
            words="What every policy would have made of a job that ended, known afterwards (M5.1). "
            "`job_outcomes` has savings beside.",
            columns={
                "job": JOB,
                "policy": "The policy.",
                "scored_at": "Logical time of the turn that scored the job, UTC.",
                "utility_usd": "Value of the finished job minus the cost, of a job without a value by one made up for it.",
                "value_usd": "What finishing then was worth.",
                **_taken(OUTCOME, "cost_usd"),
                "termination_cost_usd": "The part of it that follows the deadline (M2.6).",
                **_taken(OUTCOME, "on_time"),
                "finished_slot": "Slot of the job in which it was done, from 0; null where that was not before its deadline.",
                "finish_slots": "Slots from its start to its end, those after the deadline with them; null where it was given up.",
                **_taken(OUTCOME, "spot_share"),
                "progress": "Work done at the deadline, in the job's unit.",
                "utility_normalised": "Utility on a scale from 0 to 1, from which the selection learns.",
                "perfect_utility_usd": "Not used any more; null.",
                "hindsight_low_usd": "The best that could have been done, had the future been known: lower end (M4.7).",
                "hindsight_high_usd": "Its upper end.",
                "allocations": "JSON list of [on-demand, spot] held in each slot.",
                "details": DETAILS,
            },
        ),
        "weights": Relation(
            words="How far the selection trusts each policy after each round (M5). `policy_weights` has shares.",
            columns={
                "round": ROUND,
                "job": JOB,
                "policy": "The policy.",
                "scored_at": "Logical time of the turn that learned it, UTC.",
                "utility": "What the policy earned on the job, on a scale from 0 to 1.",
                "log_weight": "Logarithm of its weight after the round, up to a constant of the round.",
            },
        ),
        "runs": Relation(
            words="The ledger of turns: which stage is done, and why one failed.",
            columns={
                "run": "Name of the turn.",
                "logical_at": "Its logical time, UTC.",
                "stage": "`ingest`, `forecast`, `allocate` or `score`.",
                "status": "`done` or `failed`.",
                "details": "JSON of its counts, or of the reason.",
                "made": "`live` in its own slot, or `backfill` afterwards.",
            },
        ),
        "fitted": Relation(
            words="Estimated forecasters (M6.4), so that a turn between two refits need not estimate.",
            columns={
                "predictor": "The forecaster and its settings.",
                "variable": "`price` or `count`.",
                "panel": "The series it was estimated from.",
                "step_seconds": STEP_SECONDS,
                "fitted_at": "The last slot it was estimated on, UTC.",
                "known_at": "When all of that was known, UTC.",
                "state": "What it learned, as text.",
            },
        ),
        "reports": Relation(
            words="What owners report of their jobs (M2.4). Of one `reported_at` the newest `known_at`, then the highest "
            "`revision` counts.",
            columns={
                "job": JOB,
                "reported_at": "The time it speaks of, UTC.",
                "known_at": KNOWN,
                "revision": "Number of the correction.",
                "progress": "Work done by then, in the job's unit; null where it was not said.",
                "on_demand": "On-demand instances held then; null where it was not said.",
                "spot": "Spot instances held then; null where it was not said.",
                "finished": "Whether the job is over.",
                "note": "What else was said.",
                "market": "The market it ran in, of a job that may move; null where it was not said.",
            },
        ),
        "deliveries": Relation(
            words="What became of each decision at each webhook or folder.",
            columns={
                "sink": "The webhook or folder.",
                "job": JOB,
                "slot": "Start of the slot that was decided, UTC: with the job it joins `decisions`.",
                "status": "`sent`, `failed` (tried again in the next turn) or `given up`.",
                "attempts": "How often it was tried.",
                "logical_at": "The turn of the last attempt, UTC.",
                "reason": "Why it failed; empty once it is sent.",
            },
        ),
        "fetches": Relation(
            words="What each live feed delivered in each turn.",
            columns={
                "feed": "Name of the feed.",
                "logical_at": "Logical time of the turn, UTC.",
                "status": "How the fetch ended.",
                **_ROWS_READ,
                "requests": "Requests that were made.",
                "watermark": "How far it has been read, JSON of the source's own.",
                "reason": "Why it brought less than asked for; empty where it did not.",
            },
        ),
        "alarms": Relation(
            words="Alarms by what they are about.",
            columns={
                "kind": "What is wrong.",
                "subject": "Where.",
                "raised_at": "Logical time it was raised, UTC.",
                "cleared_at": "Logical time it was cleared, UTC; null while it stands.",
                "severity": "How bad it is.",
                "text": "The alarm in words.",
                "began_at": "When what is wrong began, UTC.",
            },
        ),
    }


# ---
# The views.


def _sql_type(field: Field) -> str:
    """Return the SQL type of a field of a decision."""
    kinds = [kind for kind in (get_args(field.kind) or (field.kind,)) if kind is not type(None)]
    plain = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
    if get_origin(kinds[0] if kinds else field.kind) is Literal or get_origin(field.kind) is Literal:
        return "VARCHAR"
    if get_origin(field.kind) is list or kinds[0] not in plain:
        return "JSON"
    return "TIMESTAMPTZ" if field.limits.get("format") == TIME["format"] else plain[kinds[0]]


def _said(name: str, field: Field) -> str:
    """Return the SQL expression of a field of a decision; null for decisions of older versions without the field."""
    if field.column:
        return name
    if (kind := _sql_type(field)) == "JSON":
        return f"CAST(nullif(CAST(TRY_CAST(details AS JSON) -> '$.{name}' AS VARCHAR), 'null') AS JSON) AS {name}"
    return f"TRY_CAST(TRY_CAST(details AS JSON) ->> '$.{name}' AS {kind}) AS {name}"


def _decisions() -> Relation:
    fields = {name: one for name, one in DECISION.items() if name not in DELIVERED}
    chosen = ", ".join(_said(name, one) for name, one in fields.items())
    return Relation(
        words="Decisions with every field that a decision says; null where an older version did not say it.",
        key=("job", "slot"),
        columns={name: one.words for name, one in fields.items()}
        | {"run": "The turn that decided: joins `runs.run`."},
        sql=f"SELECT {chosen}, run FROM decisions",
    )


def _costs() -> Relation:
    reported = (
        "SELECT job, reported_at, arg_max(on_demand, (known_at, revision)) AS on_demand, "
        "arg_max(spot, (known_at, revision)) AS spot FROM reports "
        "WHERE on_demand IS NOT NULL OR spot IS NOT NULL GROUP BY job, reported_at"
    )
    held = (
        "SELECT d.job, d.slot, arg_max(coalesce(r.on_demand, 0), r.reported_at) AS on_demand, "
        "arg_max(coalesce(r.spot, 0), r.reported_at) AS spot FROM job_decisions AS d "
        f"JOIN ({reported}) AS r ON r.job = d.job AND r.reported_at >= d.slot AND r.reported_at < d.slot_end GROUP BY d.job, d.slot"
    )
    decided = (
        "SELECT job, slot, market, step_minutes / 60 AS hours, on_demand, spot, spot_usd_per_hour, on_demand_usd_per_hour, "
        "on_demand_only_usd, progress_share, coalesce(lead(progress_share) OVER (PARTITION BY job ORDER BY slot), "
        "CASE WHEN job IN (SELECT job FROM reports WHERE finished) THEN 1 END) AS next_share FROM job_decisions"
    )
    paid = (
        "SELECT d.job, d.slot, d.market, coalesce(h.on_demand, d.on_demand) AS on_demand, coalesce(h.spot, d.spot) AS spot, "
        "CASE WHEN h.job IS NULL THEN 'decided' ELSE 'reported' END AS held_from, hours, spot_usd_per_hour, "
        "on_demand_usd_per_hour, d.on_demand_only_usd * (next_share - progress_share) AS on_demand_only_usd, "
        f"next_share - progress_share AS work_share FROM ({decided}) AS d LEFT JOIN ({held}) AS h USING (job, slot)"
    )
    return Relation(
        words="What each job paid in each slot, compared with on-demand only for the same work. Savings by job and week: "
        "SELECT job, date_trunc('week', slot), sum(saved_usd) FROM job_costs GROUP BY ALL.",
        key=("job", "slot"),
        columns={
            "job": JOB,
            "slot": "Start of the slot, UTC.",
            "market": "provider/region/zone/instance_type.",
            "on_demand": "On-demand instances in the slot.",
            "spot": "Spot instances in the slot.",
            "held_from": "`reported` where somebody reported instances in the slot, else `decided`.",
            "paid_usd": "What they cost at the prices of the decision; null where the spot price is not known.",
            "on_demand_only_usd": "What the work of the slot costs on on-demand alone: its share of the whole job; null where the "
            "work is not known yet.",
            "saved_usd": "The difference; null where either is not known.",
            "work_share": "Share of the job's work done in the slot; null where it is not known yet.",
        },
        sql="SELECT job, slot, market, on_demand, spot, held_from, "
        "hours * (CASE WHEN on_demand = 0 THEN 0 ELSE on_demand * on_demand_usd_per_hour END "
        "+ CASE WHEN spot = 0 THEN 0 ELSE spot * spot_usd_per_hour END) AS paid_usd, "
        "on_demand_only_usd, on_demand_only_usd - paid_usd AS saved_usd, work_share "
        f"FROM ({paid}) AS paid",
    )


def _newest(table: str, values: Iterable[str], sides: Iterable[str]) -> str:
    """Return the SQL of the newest version of each observation.

    Each of ``values`` comes from the newest version, each of ``sides`` from the newest version in
    which it is not null.
    """
    chosen = [f"arg_max({value}, known_at) AS {value}" for value in values]
    chosen += [f"arg_max({side}, known_at) FILTER (WHERE {side} IS NOT NULL) AS {side}" for side in sides]
    return (
        f"SELECT sid, observed_at, max(known_at) AS known_at, {', '.join(chosen)} FROM {table} "
        "GROUP BY sid, observed_at"
    )


def _actual() -> str:
    """Return the SQL of the observations of each market and source, with the time for which each is valid (M1.3)."""
    hours = int(PRICE_MAX_AGE.total_seconds() // 3600)
    return (
        "SELECT market, source, 'price' AS variable, observed_at, price_usd AS value, "
        f"to_hours({hours}) AS held FROM market_prices WHERE sid IN "
        f"({_planned()}) "
        "UNION ALL SELECT market, source, 'count', observed_at, available, "
        f"to_microseconds(CAST({GAPS_UNTIL_STALE}e6 * nominal AS BIGINT)) FROM market_counts JOIN ("
        "SELECT sid, coalesce(arg_max(gap_seconds, observed_at) FILTER (WHERE gap_seconds IS NOT NULL), median(apart)) AS nominal "
        "FROM (SELECT *, epoch(observed_at) - lag(epoch(observed_at)) OVER (PARTITION BY sid ORDER BY observed_at) AS apart "
        "FROM market_counts) GROUP BY sid) USING (sid)"
    )


def _planned() -> str:
    """Return the SQL that selects, for each market and source, the price series used for planning (M1.1)."""
    return (
        f"SELECT arg_min(sid, rank) FROM (SELECT *, {rank_sql('product')} AS rank FROM market_series WHERE kind = 'price') "
        f"WHERE rank IS NOT NULL GROUP BY mid, source HAVING min(rank) < {UNKNOWN_RANK} OR count(*) = 1"
    )


def _pinball() -> str:
    """Return the SQL of the mean pinball loss over the 19 quantiles, compared with the column ``actual``."""
    losses = (
        f"greatest({level / 100} * (actual - q{level:02d}), {(level - 100) / 100} * (actual - q{level:02d}))"
        for level in LEVELS
    )
    return f"({' + '.join(losses)}) / {len(LEVELS)}"


def views() -> dict[str, Relation]:
    """Return the views, each after the views that it reads."""
    place = {"market": MARKET, "source": SOURCE}
    quantiles = ", ".join(_quantiles())
    outcome = _taken(OUTCOME, "cost_usd", "saved_usd", "saved_share", "on_time", "spot_share")
    return {
        "market_series": Relation(
            words="Every series with the name of its market: from the keys of this file to the names that "
            "decisions and forecasts use.",
            key=("sid",),
            columns={
                "sid": SID,
                "mid": MID,
                **place,
                "kind": "`price` or `availability`.",
                "product": "What the price is of; empty of availability.",
                **_MARKET_PARTS,
            },
            sql="SELECT sid, mid, concat_ws('/', provider, region, zone, instance_type) AS market, source, kind, product, "
            "provider, region, zone, instance_type FROM series JOIN markets USING (mid)",
        ),
        "market_prices": Relation(
            words="Spot prices as they are known today: one row a series and time. As of an earlier time: table `price`.",
            key=("sid", "observed_at"),
            columns={
                **place,
                "product": "What the price is of, as the provider names it.",
                "planned": "Whether jobs are planned on this product of the market: Linux, not Windows.",
                "observed_at": OBSERVED,
                "price_usd": "Spot price, USD per instance-hour.",
                "on_demand_usd": "On-demand price stated beside it, USD per instance-hour; null if none was.",
                "known_at": KNOWN,
                "sid": SID,
            },
            sql=f"SELECT market, source, product, sid IN ({_planned()}) AS planned, observed_at, price_usd, on_demand_usd, "
            f"known_at, sid FROM ({_newest('price', ['price_usd'], ['on_demand_usd'])}) JOIN market_series USING (sid)",
        ),
        "market_counts": Relation(
            words="Instances that could be had, as known today: one row a series and time. Placement scores are left out.",
            key=("sid", "observed_at"),
            columns={
                **place,
                "observed_at": OBSERVED,
                "available": "Instances that could be had.",
                "capacity": "The most that the probe could have shown; null if not stated.",
                "gap_seconds": "Nominal time between two observations; null if not stated.",
                "kind": "`probe`, `held` or `offers`; null if not stated.",
                "truncated": "Whether the probe stopped at its capacity.",
                "known_at": KNOWN,
                "sid": SID,
            },
            sql="SELECT market, source, observed_at, available, capacity, gap_seconds, n.kind AS kind, truncated, known_at, sid "
            f"FROM ({_newest('availability', ['available'], ['capacity', 'gap_seconds', 'kind', 'truncated'])}) AS n "
            "JOIN market_series USING (sid) WHERE n.kind IS DISTINCT FROM 'score'",
        ),
        "job_decisions": _decisions(),
        "job_costs": _costs(),
        "forecast_values": Relation(
            words="Forecasts slot by slot: what was said of a slot, and when.",
            key=("vid", "variable", "step_ahead"),
            columns={
                **_ISSUED,
                "variable": "`price`, USD per instance-hour, or `count`, instances.",
                "step_ahead": "Slots ahead: 1 is the slot after that of issue.",
                "slot": "Start of the slot it speaks of, UTC.",
                "fallback": "Why a simpler model answered; empty if none did.",
                "mean": "Mean.",
                **_quantiles(),
                "vid": VID,
            },
            sql="SELECT market, source, model, issued_at, step_seconds, newest_row, variable, step_ahead, "
            "issued_at + to_seconds(step_ahead * step_seconds) AS slot, "
            "CASE variable WHEN 'price' THEN price_fallback ELSE count_fallback END AS fallback, "
            f"mean, {quantiles}, vid FROM forecasts JOIN vintages USING (vid)",
        ),
        "forecast_errors": Relation(
            words="Forecast against actual: a row for every forecast value whose slot has come and was observed by the same "
            "source. The actual is the last observation at or before the slot's start, unless it is too old (M1.3), as known "
            f"today. Prices that nobody repeated for {int(PRICE_MAX_AGE.total_seconds() // 3600)} h, which `slackwater accuracy` "
            "holds longer where the source reads them at every probe or they never change, are left out.",
            key=("vid", "variable", "step_ahead"),
            columns={
                **{name: _ISSUED[name] for name in ("market", "source", "model", "issued_at")},
                "variable": "`price`, USD per instance-hour, or `count`, instances.",
                "step_ahead": "Slots ahead: 1 is the slot after that of issue.",
                "slot": "Start of the slot it speaks of, UTC.",
                "mean": "Mean of the forecast.",
                "median": "Median of the forecast.",
                "q10": "A tenth is below it.",
                "q90": "A tenth is above it.",
                "actual": "What was observed.",
                "error": "Median less actual.",
                "abs_error": "Its size; the mean of it is the MAE.",
                "squared_error": "Square of mean less actual; the root of the mean of it is the RMSE.",
                "pinball": "Pinball loss, mean over the levels 0.05 to 0.95.",
                "inside_80": "Whether the actual is from q10 to q90, ends counted as inside.",
                "fallback": "Why a simpler model answered; empty if none did.",
                "vid": VID,
            },
            sql=f"WITH observed AS ({_actual()}), "
            "beside AS (SELECT f.*, o.value AS actual FROM (SELECT * FROM forecast_values "
            "WHERE slot <= (SELECT max(logical_at) FROM runs WHERE status = 'done')) AS f "
            "ASOF JOIN observed AS o ON f.market = o.market AND f.source = o.source AND f.variable = o.variable "
            "AND f.slot >= o.observed_at WHERE f.slot - o.observed_at <= greatest(o.held, to_seconds(step_seconds))) "
            "SELECT market, source, model, issued_at, variable, step_ahead, slot, mean, q50 AS median, q10, q90, actual, "
            "q50 - actual AS error, abs(q50 - actual) AS abs_error, (mean - actual) ** 2 AS squared_error, "
            f"{_pinball()} AS pinball, actual BETWEEN q10 AND q90 AS inside_80, fallback, vid FROM beside",
        ),
        "forecast_accuracy": Relation(
            words="Errors as the turns measured them, by market, model, variable and step ahead; `newest` marks those of the last "
            "turn that measured the market.",
            key=("measured_at", "market", "source", "model", "variable", "step"),
            columns={
                "measured_at": "Logical time of the turn that measured, UTC.",
                "newest": "Whether no later turn measured the market.",
                **_taken_measures("market", "source", "model", "variable", "step", *_MEASURED, *_MORE),
                "market": MARKET,
            },
            sql="SELECT measured_at, measured_at = max(measured_at) OVER (PARTITION BY market, source) AS newest, market, source, "
            f"model, variable, step, {', '.join(_MEASURED)}, "
            + ", ".join(
                f"TRY_CAST(TRY_CAST(more AS JSON) ->> '$.{name}' AS DOUBLE) AS {name}" for name in _MORE
            )
            + " FROM accuracy",
        ),
        "job_outcomes": Relation(
            words="What every policy would have made of each job that ended, with what it saves beside on-demand only.",
            key=("job", "policy"),
            columns={
                "job": JOB,
                "market": MARKET,
                "policy": "The policy.",
                "scored_at": "Logical time of the turn that scored the job, UTC.",
                "cost_usd": outcome["cost_usd"],
                "on_demand_only_usd": "What the whole job costs on on-demand alone; null where no on-demand price is known.",
                "saved_usd": outcome["saved_usd"],
                "saved_share": outcome["saved_share"],
                "on_time": outcome["on_time"],
                "finish": OUTCOME["finish"].words,
                "spot_share": outcome["spot_share"],
                "utility_usd": OUTCOME["utility_usd"].words,
                "utility": "Utility over what the job costs on on-demand alone, with a value made up for a job that has none.",
                "hindsight_usd": "What the job would have cost, had the future been known; null where an older version scored it.",
                "gap_to_hindsight": BOARD["gap_to_hindsight"].words,
                "moves": OUTCOME["moves"].words,
                "moving_usd": OUTCOME["moving_usd"].words,
            },
            sql="WITH told AS (SELECT o.*, j.market, j.start_at, j.step_seconds, "
            "TRY_CAST(coalesce(t.spec, j.spec) AS JSON) ->> '$.value_usd' IS NOT NULL AS valued, "
            + ", ".join(
                f"TRY_CAST(TRY_CAST(o.details AS JSON) ->> '$.{name}' AS {kind}) AS {name}"
                for name, kind in (
                    ("on_demand_only_usd", "DOUBLE"),
                    ("utility", "DOUBLE"),
                    ("hindsight_usd", "DOUBLE"),
                    ("gap_to_hindsight", "DOUBLE"),
                    ("moves", "INTEGER"),
                    ("moving_usd", "DOUBLE"),
                )
            )
            + " FROM outcomes AS o JOIN jobs AS j ON o.job = j.name LEFT JOIN (SELECT job, spec FROM terms "
            "QUALIFY row_number() OVER (PARTITION BY job ORDER BY known_at DESC, revision DESC) = 1) AS t ON t.job = j.name) "
            "SELECT job, market, policy, scored_at, cost_usd, on_demand_only_usd, on_demand_only_usd - cost_usd AS saved_usd, "
            "1 - cost_usd / nullif(on_demand_only_usd, 0) AS saved_share, on_time, "
            "start_at + to_seconds(finish_slots * step_seconds) AS finish, spot_share, "
            "CASE WHEN valued THEN utility_usd END AS utility_usd, utility, hindsight_usd, gap_to_hindsight, moves, moving_usd "
            "FROM told",
        ),
        "policy_weights": Relation(
            words="How far the selection trusts each policy after each round; `newest` marks the last round of a policy.",
            key=("round", "policy"),
            columns={
                "round": ROUND,
                "job": JOB,
                "policy": "The policy.",
                "scored_at": "Logical time of the turn that learned it, UTC.",
                "utility": "What it earned on the job, on a scale from 0 to 1.",
                "weight": "Share of the trust in all policies of the round.",
                "newest": "Whether the policy has no later round.",
            },
            sql="SELECT round, job, policy, scored_at, utility, raised / sum(raised) OVER (PARTITION BY round) AS weight, newest "
            "FROM (SELECT *, exp(log_weight - max(log_weight) OVER (PARTITION BY round)) AS raised, "
            "round = max(round) OVER (PARTITION BY policy) AS newest FROM weights)",
        ),
        "policy_ranking": Relation(
            words="The leaderboard: means over all jobs that ended, of every policy ever replayed. Sort by `mean_utility`.",
            key=("policy",),
            columns={name: one.words for name, one in BOARD.items() if name not in REPORTED},
            sql="SELECT policy, count(*) AS jobs, avg(utility) AS mean_utility, avg(o.utility_usd) AS mean_utility_usd, "
            "avg(cost_usd) AS mean_cost_usd, avg(saved_usd) AS mean_saved_usd, "
            "avg(saved_usd) / avg(on_demand_only_usd) AS saved_share, "
            "CASE WHEN count(hindsight_usd) = count(*) THEN avg(hindsight_usd) END AS mean_hindsight_usd, "
            "avg(CAST(on_time AS INTEGER)) AS on_time, avg(gap_to_hindsight) AS gap_to_hindsight, "
            "coalesce(any_value(weight), 0) AS weight "
            "FROM job_outcomes JOIN (SELECT job, policy, utility_usd FROM outcomes) AS o USING (job, policy) "
            "LEFT JOIN (SELECT policy, weight FROM policy_weights WHERE newest) USING (policy) GROUP BY policy",
        ),
        "turn_stages": Relation(
            words="What every turn did: a row a stage, with its reason where it failed.",
            key=("run", "stage", "status"),
            columns={
                "logical_at": "Logical time of the turn, UTC.",
                "run": "Name of the turn: joins `decisions.run`.",
                "stage": "`ingest`, `forecast`, `allocate` or `score`.",
                "status": "`done` or `failed`.",
                "made": "`live` in its own slot, or `backfill` afterwards.",
                "reason": "Why it failed; null where it is done.",
                "details": "JSON of its counts.",
            },
            sql="SELECT logical_at, run, stage, status, made, "
            "CASE WHEN status = 'failed' THEN TRY_CAST(details AS JSON) ->> '$.reason' END AS reason, details FROM runs",
        ),
    }


# ---
# Output: SQL for every warehouse, and the page.


def relations() -> dict[str, Relation]:
    """Return all views, then all tables."""
    return {**views(), **tables()}


def sql() -> str:
    """Return statements that create the views and comment on every table, view and column of a warehouse."""
    return "\n".join(
        ["-- Made by `python -m flows.schemas.tables sql`: change that, not this.", *_statements(), ""]
    )


def _statements() -> Iterator[str]:
    for name, one in views().items():
        yield f"CREATE OR REPLACE VIEW {name} AS {one.sql};"
    for name, one in relations().items():
        yield f"COMMENT ON {'VIEW' if one.sql else 'TABLE'} {name} IS {quoted(one.words)};"
        yield from (
            f"COMMENT ON COLUMN {name}.{column} IS {quoted(words)};" for column, words in one.columns.items()
        )


#: Example questions for the page, with the SQL that answers them; tests compare the results with
#: the commands.
QUESTIONS: Final[dict[str, str]] = {
    "What does each market cost now, and what share of on-demand is that?": """
SELECT market, source, observed_at, price_usd, price_usd / on_demand_usd AS share
FROM market_prices
WHERE planned
QUALIFY row_number() OVER (PARTITION BY sid ORDER BY observed_at DESC) = 1
ORDER BY market, source""",
    "How often could at least four instances be had, by market?": """
SELECT market, source, avg(CAST(available >= 4 AS INTEGER)) AS share, count(*) AS probes
FROM market_counts
GROUP BY market, source
ORDER BY market, source""",
    "What was a price known to be at an earlier time?": """
SELECT market, source, observed_at, price_usd
FROM price JOIN market_series USING (sid)
WHERE known_at <= $known_at
QUALIFY row_number() OVER (PARTITION BY sid ORDER BY observed_at DESC, known_at DESC) = 1
ORDER BY market, source""",
    "What was decided for a job, slot by slot, and why?": """
SELECT slot, on_demand, spot, policy, expected_cost_usd, late_probability, reason
FROM job_decisions
WHERE job = $job
ORDER BY slot""",
    "Which jobs are expected to be late, by their newest decision?": """
SELECT job, slot, late_probability, deadline
FROM job_decisions
QUALIFY row_number() OVER (PARTITION BY job ORDER BY slot DESC) = 1 AND late_probability >= 0.1
ORDER BY late_probability DESC, job""",
    "What did the markets really show in the slots that were decided?": """
SELECT job, slot, spot, available, price_usd
FROM job_decisions AS d
ASOF LEFT JOIN market_counts AS c ON d.market = c.market AND d.source = c.source AND d.slot >= c.observed_at
ASOF LEFT JOIN (FROM market_prices WHERE planned) AS p ON d.market = p.market AND d.source = p.source AND d.slot >= p.observed_at
ORDER BY job, slot""",
    "How far off were the forecasts issued in some slots, by model and step ahead?": """
SELECT market, source, model, variable, step_ahead, count(*) AS n,
    avg(abs_error) AS mae, sqrt(avg(squared_error)) AS rmse, avg(pinball) AS pinball
FROM forecast_errors
WHERE issued_at >= $start AND issued_at < $stop
GROUP BY ALL
ORDER BY ALL""",
    "Which model is best at each step, by what the last turn measured?": """
SELECT market, source, variable, step, arg_min(model, pinball) AS best, min(pinball) AS pinball
FROM forecast_accuracy
WHERE newest
GROUP BY ALL
ORDER BY ALL""",
    "Which policies cost least over the jobs that ended?": """
SELECT policy, jobs, mean_cost_usd, mean_saved_usd, saved_share, on_time, mean_utility, weight
FROM policy_ranking
ORDER BY mean_utility DESC, policy""",
    "How did the trust in the policies move, round by round?": """
SELECT round, job, policy, weight
FROM policy_weights
ORDER BY round, weight DESC, policy""",
    "What would each policy have made of a job, and what would hindsight have cost?": """
SELECT policy, cost_usd, saved_usd, on_time, finish, utility_usd, hindsight_usd
FROM job_outcomes
WHERE job = $job
ORDER BY cost_usd, policy""",
    "Which stages failed or were made afterwards?": """
SELECT logical_at, stage, status, made, reason
FROM turn_stages
WHERE status = 'failed' OR made = 'backfill'
ORDER BY logical_at, stage""",
}

HEAD: Final = """# The warehouse for analysts

Every table, view and column of a warehouse file, with what it means. The same words stand in the file as comments
(`FROM duckdb_columns()`), and the views are in it: any DuckDB reads them. A view costs nothing until somebody asks it.

```
duckdb -readonly slackwater.duckdb.read/NEWEST.duckdb    # what the last finished turn left; holds nobody up
```

`SET TimeZone = 'UTC'` first: times carry their zone and are shown in that of the session. Money is USD. Two kinds of keys join:
names (`market` and `source`, `job`, `run`, `policy`), which mean the same in every warehouse, and numbers (`sid`, `mid`, `vid`,
`batch`), which are keys of one file. `market_series` leads from the one to the other.

Views and comments are brought up to date whenever a newer version opens the file for writing; views of your own are left alone.

This page is made from what is declared: `python -m flows.schemas.tables > docs/schema.md`.
"""


def page() -> str:
    """Return the page as Markdown."""
    with open_store(":memory:") as store:
        store.execute(sql())
        lines = [HEAD, "## Questions", ""]
        for question, answer in QUESTIONS.items():
            lines += [f"**{question}**", "", "```sql", answer.strip(), "```", ""]
        for heading, some in (("Views", views()), ("Tables", tables())):
            lines += [f"## {heading}", "", *_index(some), ""]
            for name, one in some.items():
                lines += _section(store, name, one)
        return "\n".join(lines)


def _index(some: Mapping[str, Relation]) -> Iterator[str]:
    yield from ("| name | a row is told by | joins |", "| --- | --- | --- |")
    for name in some:
        joins = ", ".join(f"[{needed}](#{needed})" for needed in _joins(name))
        yield f"| [{name}](#{name}) | {', '.join(f'`{column}`' for column in _key(name, some))} | {joins} |"


def _key(name: str, some: Mapping[str, Relation]) -> tuple[str, ...]:
    return some[name].key or TABLES[name].key


def _joins(name: str) -> list[str]:
    """Return the tables that the rows of a table refer to."""
    if name in TABLES:
        return list(TABLES[name].needs)
    return []


def _section(store: Store, name: str, one: Relation) -> Iterator[str]:
    kinds: dict[str, Any] = {str(row[0]): row[1] for row in store.execute(f"DESCRIBE {name}")}
    yield from (f"### {name}", "", one.words, "", "| column | type | meaning |", "| --- | --- | --- |")
    for column, words in one.columns.items():
        kind = str(kinds[column]).replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ")
        yield f"| `{column}` | {kind} | {words.replace('|', '/')} |"
    yield ""


if __name__ == "__main__":
    print(sql() if sys.argv[1:] == ["sql"] else page(), end="")
