"""Descriptions of the tables and views of a warehouse, and the SQL of the views.

``python -m slackwater.flows.schemas.tables sql > warehouse/store/sql/described.sql`` writes the SQL that runs
when a warehouse is opened for writing (`slackwater.warehouse.store.schema.describe`). ``python -m
slackwater.flows.schemas.tables dbt > examples/bi/sources.yml`` writes the sources of dbt. A test compares both files with
this module.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args, get_origin

from slackwater.flows.ledger.fields import BOARD, DECISION, DELIVERED, OUTCOME, REPORTED, TIME, Field
from slackwater.flows.schemas import forms
from slackwater.warehouse.asof import GAPS_UNTIL_STALE, PRICE_MAX_AGE
from slackwater.warehouse.catalogue import UNKNOWN_RANK, rank_sql
from slackwater.warehouse.columns import COLUMN, Kind, stored_columns
from slackwater.warehouse.store.schema import sql_literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table or view, with the meaning of a row and of each column.

    ``columns`` maps names to descriptions, in the order of the columns. ``sql`` is the SELECT of a
    view, "" for a table. ``key`` holds the columns that identify a row of a view; the keys of
    tables are in `TABLES`. ``time`` is the column of a view whose day partitions its export, "" for none.
    """

    words: str
    columns: Mapping[str, str]
    sql: str = ""
    key: tuple[str, ...] = ()
    time: str = ""


# ---
# Descriptions shared by several relations, or declared with the value itself.

MARKET: Final = (
    "provider/region/zone/instance_type: the name of the market in forecasts, decisions and other results."
)
SOURCE: Final = COLUMN["source"].described()
OBSERVED: Final = COLUMN["observed_at"].described()
KNOWN: Final = COLUMN["known_at"].described()
SID: Final = "Key of the series, in this file only: joins `series`."
MID: Final = "Key of the market, in this file only: joins `markets`."
VID: Final = "Key of the vintage, in this file only: joins `vintages`."
BATCH: Final = "Import of the row: joins `imports`."
JOB: Final = "Name of the job: joins `jobs.name`."
ROUND: Final = "Number of the round; in a round every policy is replayed on an ended job."
DETAILS: Final = "JSON of the fields without a separate column."
STEP_SECONDS: Final = "Length of a slot, seconds."
LEVELS: Final = range(5, 100, 5)  # Quantile levels of a forecast, in percent
_MARKET_PARTS: Final = {
    name: COLUMN[name].described() for name in ("provider", "region", "zone", "instance_type")
}
_ROWS_READ: Final = {"added": "New rows.", "repeated": "Rows already stored.", "rejected": "Rejected rows."}


def _measures() -> dict[str, str]:
    properties = forms.schema_of(forms.MarketMeasures)["properties"]
    return {name: key["description"] for name, key in properties.items()}


def _column_names(fields: Mapping[str, Field], *names: str) -> dict[str, str]:
    return {name: fields[name].words for name in names}


def _quantiles() -> dict[str, str]:
    return {
        f"q{level:02d}": f"Quantile {level} %: the outcome is below it with this probability."
        for level in LEVELS
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
    "model": "Name of the forecaster.",
    "issued_at": "Start of the slot in which the forecast was issued, UTC.",
    "step_seconds": STEP_SECONDS,
    "newest_row": "Start of the slot of the newest value available to the forecast, UTC.",
}


def tables() -> dict[str, Relation]:
    """Return the tables in the order of `TABLES`."""
    decided = {name: one.words for name, one in DECISION.items() if one.column}
    return {
        "markets": Relation(
            words="Markets for instances (M1.1): a row per market.", columns={"mid": MID, **_MARKET_PARTS}
        ),
        "series": Relation(
            words="Time series observed in a market by a source: a row per series.",
            columns={
                "sid": SID,
                "mid": MID,
                "source": SOURCE,
                "kind": "`price` or `availability`: the table with its observations.",
                "product": "Product that the price applies to, as named by the provider; empty for availability.",
            },
        ),
        "imports": Relation(
            words="Imports of observations: a row per imported file or page.",
            columns={
                "batch": "Key of the import, in this file only.",
                "fingerprint": "Hash of content, reader, options, rule and path.",
                "content": "SHA-256 of the content.",
                "reader": "Source format of the file (`slackwater ingest --list`).",
                "file": "Name of the file, feed or page.",
                "options": "JSON of the options of the import.",
                "known_at_rule": "Rule for the time at which rows without such a time became known (M1.2).",
                "assumptions": "JSON list of the assumptions of the import, a sentence each.",
                "imported_at": "Logical time of the import, UTC; null if none was given.",
                **_ROWS_READ,
            },
        ),
        "price": Relation(
            words="Observed spot prices. A correction is a new row: for each `observed_at` the row with the newest `known_at` "
            "is valid; `market_prices` has only valid rows.",
            columns={
                "sid": SID,
                "observed_at": OBSERVED,
                "known_at": KNOWN,
                **_observed_columns("price"),
                "batch": BATCH,
            },
        ),
        "availability": Relation(
            words="Observed availability. Corrections as in `price`; `market_counts` has only valid rows.",
            columns={
                "sid": SID,
                "observed_at": OBSERVED,
                "known_at": KNOWN,
                **_observed_columns("availability"),
                "batch": BATCH,
            },
        ),
        "rejected": Relation(
            words="Rejected rows, stored unchanged (`slackwater rejected`).",
            columns={
                "batch": BATCH,
                "file": "File of the row.",
                "line": "Line or row number in the file; 0: unknown.",
                "raw": "The unchanged row, JSON or text.",
                "reason": "Reason for the rejection.",
                "code": "Code of the reason, by which rows are counted; empty if the source stated the reason as a sentence.",
            },
        ),
        "assumptions": Relation(
            words="Assumptions about a market in place of measurements.",
            columns={"market": MARKET, "source": SOURCE, "text": "The assumption, a sentence."},
        ),
        "vintages": Relation(
            words="Issued forecasts (M6.1): a row per market, model and slot, never overwritten.",
            columns={
                "vid": VID,
                **_ISSUED,
                "horizon": "Horizon of the forecast, slots.",
                "capacity": "Largest count considered by the forecast.",
                "price_fallback": "Reason why a simpler model made the price forecast; empty if the model itself made it.",
                "count_fallback": "Reason why a simpler model made the count forecast; empty if the model itself made it.",
                "backfilled": "Whether the forecast was computed later, for a past slot.",
            },
        ),
        "forecasts": Relation(
            words="Values of a vintage for each slot ahead: mean and 19 quantiles.",
            columns={
                "vid": VID,
                "variable": "`price`, USD per instance-hour, or `count`, instances.",
                "step_ahead": "Lead time in slots: 1 is the slot after the slot of issue.",
                "mean": "Mean of the forecast.",
                **_quantiles(),
            },
        ),
        "accuracy": Relation(
            words="Forecast errors measured in each turn, over its last forecast origins (M6.5).",
            columns={
                "measured_at": "Logical time of the turn that measured the errors, UTC.",
                **_taken_measures("market", "source", "model", "variable", "step", *_MEASURED),
                "market": MARKET,
                "more": DETAILS,
            },
        ),
        "jobs": Relation(
            words="Jobs as added by their owners (M2.1); `terms` has later changes.",
            columns={
                "name": "Name of the job.",
                "market": MARKET,
                "source": "Source of its market, empty for the most trusted source.",
                "spec": "JSON of its terms.",
                "origin": "`user` or `example`.",
                "created_at": "Time at which the job was added, UTC.",
                "start_at": "Start of its first slot, UTC.",
                "deadline_at": "Its deadline, UTC.",
                "step_seconds": STEP_SECONDS,
            },
        ),
        "terms": Relation(
            words="Terms of jobs changed after they were added: at any time, the newest terms known by then are valid (M2.9).",
            columns={
                "job": JOB,
                "known_at": KNOWN,
                "revision": "Number of the change among those that became known at the same time, from 0; the highest is valid.",
                "spec": "JSON of all terms of the job.",
                "deadline_at": "Its deadline, UTC.",
            },
        ),
        "decisions": Relation(
            words="Issued decisions: a row per job and slot, never changed. `job_decisions` has every field.",
            columns={
                "job": decided["job"],
                "slot": decided["slot"],
                "run": "Turn that made the decision: joins `runs.run`.",
                **{name: decided[name] for name in ("policy", "on_demand", "spot", "reason")},
                "details": "JSON of all fields of the decision.",
            },
        ),
        "revisions": Relation(
            words="Decisions for the rest of a slot, made by `slackwater act` after spot was lost in it (M12.15): each "
            "replaces the decision of the slot from `revised_at` on. Never changed.",
            columns={
                "job": decided["job"],
                "slot": "Start of the slot, UTC: joins `decisions` together with the job.",
                "revised_at": "Time of the decision, UTC.",
                "lost_at": "Time of the newest loss of spot before it, UTC.",
                "spot_left": "Spot instances that were left after the loss.",
                "policy": decided["policy"],
                "market": MARKET,
                "on_demand": "On-demand instances to run until the slot ends.",
                "spot": "Spot instances to run until the slot ends.",
                "reason": decided["reason"],
                "details": "JSON of all fields of the decision.",
            },
        ),
        "outcomes": Relation(
            words="Simulated outcome of every policy on each ended job, in hindsight (M5.1). "
            "`job_outcomes` also has the savings.",
            columns={
                "job": JOB,
                "policy": "Name of the policy.",
                "scored_at": "Logical time of the turn that scored the job, UTC.",
                "utility_usd": "Value of the finished job less the cost; for a job without a value, with an imputed value.",
                "value_usd": "Value of the job at its finish, USD.",
                **_column_names(OUTCOME, "cost_usd"),
                "termination_cost_usd": "Part of the cost after the deadline, USD (M2.6).",
                **_column_names(OUTCOME, "on_time"),
                "finished_slot": "Slot of the job in which it finished, from 0; null if it did not finish by its deadline.",
                "finish_slots": "Slots from start to finish, including slots after the deadline; null if the job was abandoned.",
                **_column_names(OUTCOME, "spot_share"),
                "progress": "Work done at the deadline, in the job's unit.",
                "utility_normalised": "Utility on a scale from 0 to 1, used by the selection.",
                "perfect_utility_usd": "No longer used; null.",
                "hindsight_low_usd": "Utility of the hindsight optimum in the slot model, USD: lower bound (M4.7).",
                "hindsight_high_usd": "Utility of the hindsight optimum in the slot model, USD: upper bound.",
                "allocations": "JSON list of [on-demand, spot] instances run in each slot.",
                "details": DETAILS,
            },
        ),
        "weights": Relation(
            words="Weight of each policy in the selection after each round (M5). `policy_weights` has shares.",
            columns={
                "round": ROUND,
                "job": JOB,
                "policy": "Name of the policy.",
                "scored_at": "Logical time of the turn that updated the weight, UTC.",
                "utility": "Utility of the policy on the job, on a scale from 0 to 1.",
                "log_weight": "Logarithm of its weight after the round, up to a constant per round.",
            },
        ),
        "runs": Relation(
            words="Stages of each turn: done, or failed with the reason.",
            columns={
                "run": "Name of the turn.",
                "logical_at": "Logical time of the turn, UTC.",
                "stage": "`ingest`, `forecast`, `allocate` or `score`.",
                "status": "`done` or `failed`.",
                "details": "JSON of the counts of the stage, or of the reason of the failure.",
                "made": "`live` if run in its slot, `backfill` if run later.",
            },
        ),
        "fitted": Relation(
            words="Estimated forecasters (M6.4), reused by the turns between two estimations.",
            columns={
                "predictor": "Forecaster and its settings.",
                "variable": "`price` or `count`.",
                "panel": "Series from which it was estimated.",
                "step_seconds": STEP_SECONDS,
                "fitted_at": "Last slot of the estimation data, UTC.",
                "known_at": "Time at which all estimation data were known, UTC.",
                "state": "Estimated parameters, as text.",
            },
        ),
        "reports": Relation(
            words="Reports of owners about their jobs (M2.4). For each `reported_at` the row with the newest `known_at`, then "
            "the highest "
            "`revision`, is valid.",
            columns={
                "job": JOB,
                "reported_at": "Time that the report is about, UTC.",
                "known_at": KNOWN,
                "revision": "Number of the correction.",
                "progress": "Work done by this time, in the job's unit; null if not reported.",
                "on_demand": "On-demand instances running at this time; null if not reported.",
                "spot": "Spot instances running at this time; null if not reported.",
                "finished": "Whether the job is finished.",
                "note": "Note of the owner.",
                "market": "Market of a multi-market job; null if not reported.",
                "withdrawn": "Whether the owner ended the job before its work was done; null in reports of earlier versions.",
                "boot_minutes": "Measured minutes from the grant of an instance until it was up; null if not reported.",
                "restart_minutes": "Measured minutes without work while the group formed anew; null if not reported.",
                "on_demand_wait_minutes": "Measured minutes until on-demand was granted; null if not reported.",
                "asked": "Spot instances asked for; null if not reported.",
                "granted": "Spot instances granted of those asked for; null if not reported.",
                "lost": "Spot instances lost at this time; null if not reported.",
                "held_minutes": "Minutes that the spot instances had been held until this time; null if not reported.",
                "checkpoint_minutes": "Measured minutes of work between two checkpoints; null if not reported.",
            },
        ),
        "deliveries": Relation(
            words="Delivery of each decision to each webhook or folder.",
            columns={
                "sink": "Name of the webhook or folder.",
                "job": JOB,
                "slot": "Start of the slot of the decision, UTC: joins `decisions` together with the job.",
                "status": "`sent`, `failed` (tried again in the next turn) or `given up`.",
                "attempts": "Number of attempts.",
                "logical_at": "Logical time of the turn of the last attempt, UTC.",
                "reason": "Reason of the failure; empty once sent.",
            },
        ),
        "fetches": Relation(
            words="Fetches of each live feed in each turn.",
            columns={
                "feed": "Name of the feed.",
                "logical_at": "Logical time of the turn, UTC.",
                "status": "Result of the fetch.",
                **_ROWS_READ,
                "requests": "Number of requests.",
                "watermark": "Position up to which the feed has been read, JSON in the format of the source.",
                "reason": "Reason why the fetch was incomplete; empty if it was complete.",
            },
        ),
        "alarms": Relation(
            words="Alarms by kind and subject.",
            columns={
                "kind": "Kind of the alarm.",
                "subject": "Subject of the alarm: market, source, feed or job.",
                "raised_at": "Logical time at which the alarm was raised, UTC.",
                "cleared_at": "Logical time at which the alarm was cleared, UTC; null while it is active.",
                "severity": "`serious` or `warning`.",
                "text": "Text of the alarm.",
                "began_at": "Time at which the problem began, UTC.",
            },
        ),
    }


# ---
# The views.


def _sql_type(field: Field) -> str:
    kinds = [kind for kind in (get_args(field.kind) or (field.kind,)) if kind is not type(None)]
    plain = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
    if get_origin(kinds[0] if kinds else field.kind) is Literal or get_origin(field.kind) is Literal:
        return "VARCHAR"
    if get_origin(field.kind) is list or kinds[0] not in plain:
        return "JSON"
    return "TIMESTAMPTZ" if field.limits.get("format") == TIME["format"] else plain[kinds[0]]


def _decision_field_sql(name: str, field: Field) -> str:
    """Return the SQL expression of a field of a decision; null for decisions of older versions without the field."""
    if field.column:
        return name
    if (kind := _sql_type(field)) == "JSON":
        return f"CAST(nullif(CAST(TRY_CAST(details AS JSON) -> '$.{name}' AS VARCHAR), 'null') AS JSON) AS {name}"
    return f"TRY_CAST(TRY_CAST(details AS JSON) ->> '$.{name}' AS {kind}) AS {name}"


def _decisions() -> Relation:
    fields = {name: one for name, one in DECISION.items() if name not in DELIVERED}
    chosen = ", ".join(_decision_field_sql(name, one) for name, one in fields.items())
    return Relation(
        words="Decisions with all fields; null if an older version did not have the field.",
        key=("job", "slot"),
        time="slot",
        columns={name: one.words for name, one in fields.items()}
        | {"run": "Turn that made the decision: joins `runs.run`."},
        sql=f"SELECT {chosen}, run FROM decisions",
    )


def _costs() -> Relation:
    return Relation(
        words="Cost of each job in each slot, compared with on-demand only for the same work. Savings by job and week: "
        "SELECT job, date_trunc('week', slot), sum(saved_usd) FROM job_costs GROUP BY ALL.",
        key=("job", "slot"),
        time="slot",
        columns={
            "job": JOB,
            "slot": "Start of the slot, UTC.",
            "market": "provider/region/zone/instance_type: of several the last of the slot.",
            "markets": "All markets in which the job had instances in the slot, separated by commas.",
            "on_demand": "On-demand instances, by the last report of the slot.",
            "spot": "Spot instances, by the last report of the slot.",
            "held_from": "`reported` if instances were reported in the slot, else `decided`.",
            "paid_usd": "Cost of the instances, each report until the next, at the prices of each slot in their market, USD; null "
            "if a price is not known. Includes following slots without a decision, as far as reports go.",
            "spot_price_from": "`observed` if all spot of the slot is paid at observed prices, `decided` if some at the price "
            "of the newest decision in its market; null without spot.",
            "on_demand_only_usd": "Cost of the work of the slot with on-demand only, USD: its share of the whole job; null if the "
            "work is not known yet.",
            "saved_usd": "Saving: on_demand_only_usd less paid_usd; null if either is not known.",
            "work_share": "Share of the job's work done in the slot; null if not known yet.",
        },
        sql=f"WITH {', '.join(f'{name} AS ({sql})' for name, sql in (_held_steps() | _paid_steps()).items())} "
        "SELECT job, slot, coalesce(p.market, o.market) AS market, coalesce(p.markets, o.market) AS markets, "
        "CASE WHEN is_reported THEN newest.on_demand ELSE o.on_demand END AS on_demand, "
        "CASE WHEN is_reported THEN newest.spot ELSE o.spot END AS spot, "
        "CASE WHEN is_reported THEN 'reported' ELSE 'decided' END AS held_from, usd AS paid_usd, "
        "spot_price_from, on_demand_only_usd * (next_share - progress_share) AS on_demand_only_usd, "
        "on_demand_only_usd * (next_share - progress_share) - usd AS saved_usd, next_share - progress_share AS work_share "
        "FROM opened AS o JOIN paid AS p USING (job, slot)",
    )


#: Prices of a decision, and the fields of a revision without a separate column, with their types.
_PRICES: Final = ("spot_usd_per_hour", "on_demand_usd_per_hour")
_REVISED: Final = {"source": "VARCHAR", **dict.fromkeys(_PRICES, "DOUBLE")}
#: SQL of the instances of a job at a time.
_HELD: Final = "{'market': market, 'on_demand': on_demand, 'spot': spot}"
#: SQL of the instances of a job before the oldest report of a slot: those that it lost ran too.
_BEFORE: Final = "{'market': oldest.market, 'on_demand': oldest.on_demand, 'spot': oldest.spot + oldest.lost}"


def _held_steps() -> dict[str, str]:
    """Return the SQL steps from decisions and reports to `events`, the times at which the instances of a job change."""
    return {
        "reported": "SELECT job, reported_at, coalesce(arg_max(on_demand, (known_at, revision)), 0) AS on_demand, "
        "coalesce(arg_max(spot, (known_at, revision)), 0) AS spot, arg_max(market, (known_at, revision)) AS market, "
        "arg_max(held_minutes, (known_at, revision)) AS minutes, "
        "coalesce(arg_max(lost, (known_at, revision)), 0) AS lost FROM reports "
        "WHERE on_demand IS NOT NULL OR spot IS NOT NULL GROUP BY job, reported_at",
        # Until the next slot with a decision: that of a later slot, or the newest report.
        "decided": "SELECT job, slot, slot_end, market, on_demand, spot, step_minutes, on_demand_only_usd, progress_share, "
        "lag(slot) OVER own AS before, "
        "coalesce(lead(slot) OVER own, greatest(slot_end, newest)) AS until, "
        "coalesce(lead(progress_share) OVER own, "
        "CASE WHEN job IN (SELECT job FROM reports WHERE finished) THEN 1 END) AS next_share FROM job_decisions AS d "
        "LEFT JOIN (SELECT job, max(reported_at) AS newest FROM reported GROUP BY job) USING (job) "
        "WINDOW own AS (PARTITION BY job ORDER BY slot)",
        "targets": f"SELECT job, slot AS since, market, source, {', '.join(_PRICES)} FROM job_decisions "
        f"UNION ALL SELECT job, revised_at, market, {', '.join(_detail_sql(*one) for one in _REVISED.items())} FROM revisions",
        "placed": "SELECT r.job, d.slot, r.reported_at AS since, r.on_demand, r.spot, r.lost, r.minutes, "
        "coalesce(r.market, t.market, d.market) AS market "
        "FROM reported AS r ASOF JOIN decided AS d ON r.job = d.job AND r.reported_at >= d.slot "
        "ASOF LEFT JOIN targets AS t ON r.job = t.job AND r.reported_at > t.since",
        "in_slot": f"SELECT job, slot, arg_min(p, since) AS oldest, arg_max({_HELD}, since) AS newest "
        "FROM placed AS p GROUP BY job, slot",
        # Until the first report of a slot the instances of the slot before run on. If it has no report, those of the first
        # report and those it lost run since the slot began, or as long as the report states.
        "opened": "SELECT d.*, own.newest, coalesce(oldest.since < slot_end, false) AS is_reported, "
        f"CASE WHEN is_reported THEN coalesce(earlier.newest, {_BEFORE}) ELSE {_HELD} END AS begun, "
        "CASE WHEN is_reported AND earlier.newest IS NULL AND oldest.lost = 0 "
        "THEN greatest(slot, oldest.since - to_seconds(60 * oldest.minutes)) ELSE slot END AS begun_at "
        "FROM decided AS d LEFT JOIN in_slot AS own USING (job, slot) "
        "LEFT JOIN (SELECT job, slot AS before, newest FROM in_slot) AS earlier USING (job, before)",
        # Of several at one time the last of these counts: a slot without a report ends, a slot begins, the job ends, a report,
        # and the last time of which anything is known.
        "events": f"SELECT job, since, arg_max({_HELD}, rank) AS held FROM ("
        "SELECT job, slot_end AS since, market, 0 AS on_demand, 0 AS spot, 0 AS rank FROM opened WHERE NOT is_reported "
        "UNION ALL SELECT job, begun_at, begun.market, begun.on_demand, begun.spot, 1 FROM opened "
        "UNION ALL SELECT job, reported_at, '', 0, 0, 2 FROM reports WHERE finished OR withdrawn "
        "UNION ALL SELECT job, since, market, on_demand, spot, 3 FROM placed "
        "UNION ALL SELECT job, max(until), '', 0, 0, 4 FROM decided GROUP BY job) GROUP BY job, since",
    }


def _detail_sql(name: str, kind: str) -> str:
    """Return the SQL of a field without a separate column."""
    return f"TRY_CAST(TRY_CAST(details AS JSON) ->> '$.{name}' AS {kind})"


def _paid_steps() -> dict[str, str]:
    """Return the SQL steps from `events` and prices to the cost of each slot.

    A piece is the time between two changes of instances or prices. Spot is paid at the newest
    observed price, where there is none at that of the newest decision in the market.
    """
    hours = int(PRICE_MAX_AGE.total_seconds() // 3600)
    runs = "FILTER (WHERE on_demand + spot > 0)"
    return {
        "observed": "SELECT market, source, observed_at, arg_max(price_usd, known_at) AS usd FROM price "
        f"JOIN market_series USING (sid) WHERE sid IN ({planned_series_sql()}) "
        "AND market IN (SELECT market FROM targets) GROUP BY ALL",
        "moments": "SELECT job, since FROM events UNION SELECT job, since FROM targets UNION SELECT job, "
        "unnest(generate_series(min(slot), max(until), to_seconds(60 * any_value(step_minutes)))) FROM decided GROUP BY job",
        "pieces": "SELECT m.job, m.since, unnest(e.held), "
        "epoch(lead(m.since) OVER (PARTITION BY m.job ORDER BY m.since) - m.since) / 3600 AS hours "
        "FROM moments AS m ASOF JOIN events AS e ON m.job = e.job AND m.since >= e.since",
        # The price of a slot is the newest at its start (M1.3).
        "placed_pieces": "SELECT p.*, d.slot, t.source, spot_usd_per_hour, on_demand_usd_per_hour, "
        "to_timestamp(floor(epoch(p.since) / 60 / step_minutes) * step_minutes * 60) AS priced_at FROM pieces AS p "
        "ASOF JOIN decided AS d ON p.job = d.job AND p.since >= d.slot "
        "ASOF LEFT JOIN targets AS t ON p.job = t.job AND p.market = t.market AND p.since >= t.since WHERE hours IS NOT NULL",
        "priced": f"SELECT p.*, coalesce(priced_at - observed_at <= to_hours({hours}), false) AS is_observed, hours * "
        "(CASE WHEN on_demand = 0 THEN 0 ELSE on_demand * on_demand_usd_per_hour END + CASE WHEN spot = 0 THEN 0 "
        "ELSE spot * CASE WHEN is_observed THEN usd ELSE spot_usd_per_hour END END) AS cost FROM placed_pieces AS p "
        "ASOF LEFT JOIN observed AS o ON p.market = o.market AND p.source = o.source AND priced_at >= observed_at",
        "paid": f"SELECT job, slot, arg_max(market, since) {runs} AS market, "
        f"array_to_string(list(DISTINCT market ORDER BY market) {runs}, ', ') AS markets, "
        "CASE WHEN bool_and(is_observed) FILTER (WHERE spot > 0) THEN 'observed' WHEN max(spot) > 0 THEN 'decided' END "
        "AS spot_price_from, CASE WHEN count(cost) = count(*) THEN sum(cost) END AS usd FROM priced GROUP BY job, slot",
    }


def _observed_columns(kind: Kind, *, view: bool = False) -> dict[str, str]:
    """Return the description of each observed value of prices or of availability, by column."""
    return {column.name: column.described(view=view) for column in stored_columns(kind)}


def _newest(kind: Kind) -> str:
    """Return the SQL of the newest version of each observation; other columns than the value from the newest that has one."""
    chosen = [
        f"arg_max({column.name}, known_at) "
        + ("" if column.role == "value" else f"FILTER (WHERE {column.name} IS NOT NULL) ")
        + f"AS {column.name}"
        for column in stored_columns(kind)
    ]
    return (
        f"SELECT sid, observed_at, max(known_at) AS known_at, {', '.join(chosen)} FROM {kind} "
        "GROUP BY sid, observed_at"
    )


def _actual() -> str:
    """Return the SQL of the observations of each market and source, with the time for which each is valid (M1.3)."""
    hours = int(PRICE_MAX_AGE.total_seconds() // 3600)
    return (
        "SELECT market, source, 'price' AS variable, observed_at, price_usd AS value, "
        f"to_hours({hours}) AS held FROM market_prices WHERE sid IN "
        f"({planned_series_sql()}) "
        "UNION ALL SELECT market, source, 'count', observed_at, available, "
        f"to_microseconds(CAST({GAPS_UNTIL_STALE}e6 * nominal AS BIGINT)) FROM market_counts JOIN ("
        "SELECT sid, coalesce(arg_max(gap_seconds, observed_at) FILTER (WHERE gap_seconds IS NOT NULL), median(apart)) AS nominal "
        "FROM (SELECT *, epoch(observed_at) - lag(epoch(observed_at)) OVER (PARTITION BY sid ORDER BY observed_at) AS apart "
        "FROM market_counts) GROUP BY sid) USING (sid)"
    )


def planned_series_sql() -> str:
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
    outcome = _column_names(OUTCOME, "cost_usd", "saved_usd", "saved_share", "on_time", "spot_share")
    return {
        "market_series": Relation(
            words="Series with the names of their markets: maps the keys of this file to the names used by "
            "decisions and forecasts.",
            key=("sid",),
            columns={
                "sid": SID,
                "mid": MID,
                **place,
                "kind": "`price` or `availability`.",
                "product": "Product that the price applies to; empty for availability.",
                **_MARKET_PARTS,
            },
            sql="SELECT sid, mid, concat_ws('/', provider, region, zone, instance_type) AS market, source, kind, product, "
            "provider, region, zone, instance_type FROM series JOIN markets USING (mid)",
        ),
        "market_prices": Relation(
            words="Spot prices as known today: a row per series and time. As of an earlier time: table `price`.",
            time="observed_at",
            key=("sid", "observed_at"),
            columns={
                **place,
                "product": "Product that the price applies to, as named by the provider.",
                "planned": "Whether plans use this product of the market: Linux, not Windows.",
                "observed_at": OBSERVED,
                **_observed_columns("price", view=True),
                "known_at": KNOWN,
                "sid": SID,
            },
            sql=f"SELECT market, source, product, sid IN ({planned_series_sql()}) AS planned, observed_at, "
            f"{', '.join(_observed_columns('price'))}, known_at, sid FROM ({_newest('price')}) JOIN market_series USING (sid)",
        ),
        "market_counts": Relation(
            words="Available instances as known today: a row per series and time. Placement scores are excluded.",
            time="observed_at",
            key=("sid", "observed_at"),
            columns={
                **place,
                "observed_at": OBSERVED,
                **_observed_columns("availability", view=True),
                "known_at": KNOWN,
                "sid": SID,
            },
            sql="SELECT market, source, observed_at, "
            + ", ".join(
                "n.kind AS kind" if name == "kind" else name for name in _observed_columns("availability")
            )
            + f", known_at, sid FROM ({_newest('availability')}) AS n "
            "JOIN market_series USING (sid) WHERE n.kind IS DISTINCT FROM 'score'",
        ),
        "job_decisions": _decisions(),
        "job_costs": _costs(),
        "forecast_values": Relation(
            words="Forecasts slot by slot: the values predicted for each slot, and the time of issue.",
            time="issued_at",
            key=("vid", "variable", "step_ahead"),
            columns={
                **_ISSUED,
                "variable": "`price`, USD per instance-hour, or `count`, instances.",
                "step_ahead": "Lead time in slots: 1 is the slot after the slot of issue.",
                "slot": "Start of the predicted slot, UTC.",
                "fallback": "Reason why a simpler model made the forecast; empty if the model itself made it.",
                "mean": "Mean of the forecast.",
                **_quantiles(),
                "vid": VID,
            },
            sql="SELECT market, source, model, issued_at, step_seconds, newest_row, variable, step_ahead, "
            "issued_at + to_seconds(step_ahead * step_seconds) AS slot, "
            "CASE variable WHEN 'price' THEN price_fallback ELSE count_fallback END AS fallback, "
            f"mean, {quantiles}, vid FROM forecasts JOIN vintages USING (vid)",
        ),
        "forecast_errors": Relation(
            words="Forecasts compared with observations: a row per forecast value whose slot has passed and was observed by the "
            "same "
            "source. The actual value is the last observation at or before the slot's start, as known today, unless it is too "
            f"old (M1.3). Prices not observed again for {int(PRICE_MAX_AGE.total_seconds() // 3600)} h are excluded; `slackwater "
            f"accuracy` "
            "uses them longer if the source reads them at every probe or they never change.",
            time="issued_at",
            key=("vid", "variable", "step_ahead"),
            columns={
                **{name: _ISSUED[name] for name in ("market", "source", "model", "issued_at")},
                "variable": "`price`, USD per instance-hour, or `count`, instances.",
                "step_ahead": "Lead time in slots: 1 is the slot after the slot of issue.",
                "slot": "Start of the predicted slot, UTC.",
                "mean": "Mean of the forecast.",
                "median": "Median of the forecast.",
                "q10": "Quantile 10 % of the forecast.",
                "q90": "Quantile 90 % of the forecast.",
                "actual": "Observed value.",
                "error": "Median less actual.",
                "abs_error": "Absolute error; its mean is the MAE.",
                "squared_error": "Square of mean less actual; the root of its mean is the RMSE.",
                "pinball": "Pinball loss, mean over the levels 0.05 to 0.95.",
                "inside_80": "Whether the actual is between q10 and q90, ends included.",
                "fallback": "Reason why a simpler model made the forecast; empty if the model itself made it.",
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
        "forecast_frame": Relation(
            words="Forecasts in the columns of Nixtla's libraries, in long form: `model` in place of a column for each model. "
            "`slackwater.forecasting.frames` has the wide form.",
            key=("unique_id", "ds", "cutoff", "model"),
            time="cutoff",
            columns={
                "unique_id": "`source/market/variable`.",
                "ds": "Start of the predicted slot, UTC.",
                "cutoff": "Time of issue, UTC.",
                "model": "Name of the predictor.",
                "y": "Observed value; null if the slot has not been observed.",
                "yhat": "Median of the forecast.",
                "lo-80": "Quantile 10 % of the forecast.",
                "hi-80": "Quantile 90 % of the forecast.",
            },
            sql="SELECT concat_ws('/', f.source, f.market, variable) AS unique_id, f.slot AS ds, f.issued_at AS cutoff, f.model, "
            'actual AS y, f.q50 AS yhat, f.q10 AS "lo-80", f.q90 AS "hi-80" FROM forecast_values AS f '
            "LEFT JOIN forecast_errors AS e USING (vid, variable, step_ahead)",
        ),
        "forecast_accuracy": Relation(
            words="Forecast errors measured by the turns, by market, model, variable and lead time; `newest` marks those of the "
            "last "
            "turn that measured the market.",
            time="measured_at",
            key=("measured_at", "market", "source", "model", "variable", "step"),
            columns={
                "measured_at": "Logical time of the turn that measured the errors, UTC.",
                "newest": "Whether no later turn measured the market.",
                **_taken_measures("market", "source", "model", "variable", "step", *_MEASURED, *_MORE),
                "market": MARKET,
                "step_ahead": "The same as `step`, by the name that the other views use.",
            },
            sql="SELECT measured_at, measured_at = max(measured_at) OVER (PARTITION BY market, source) AS newest, market, source, "
            f"model, variable, step, {', '.join(_MEASURED)}, "
            + ", ".join(
                f"TRY_CAST(TRY_CAST(more AS JSON) ->> '$.{name}' AS DOUBLE) AS {name}" for name in _MORE
            )
            + ", step AS step_ahead FROM accuracy",
        ),
        "job_outcomes": Relation(
            words="Simulated outcome of every policy on each ended job, with the saving compared with on-demand only.",
            time="scored_at",
            key=("job", "policy"),
            columns={
                "job": JOB,
                "market": MARKET,
                "policy": "Name of the policy.",
                "scored_at": "Logical time of the turn that scored the job, UTC.",
                "cost_usd": outcome["cost_usd"],
                "on_demand_only_usd": "Cost of the whole job with on-demand only; null if no on-demand price is known.",
                "saved_usd": outcome["saved_usd"],
                "saved_share": outcome["saved_share"],
                "on_time": outcome["on_time"],
                "finish": OUTCOME["finish"].words,
                "spot_share": outcome["spot_share"],
                "utility_usd": OUTCOME["utility_usd"].words,
                "utility": "Utility in units of the cost with on-demand only; for a job without a value, with an imputed value.",
                "hindsight_usd": "Cost of the hindsight optimum in the slot model; null if an older version scored the job.",
                "gap_to_hindsight": BOARD["gap_to_hindsight"].words,
                "moves": OUTCOME["moves"].words,
                "moving_usd": OUTCOME["moving_usd"].words,
                "model": OUTCOME["model"].words,
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
                    ("model", "VARCHAR"),
                    ("finish_seconds", "DOUBLE"),
                )
            )
            + " FROM outcomes AS o JOIN jobs AS j ON o.job = j.name LEFT JOIN (SELECT job, spec FROM terms "
            "QUALIFY row_number() OVER (PARTITION BY job ORDER BY known_at DESC, revision DESC) = 1) AS t ON t.job = j.name) "
            "SELECT job, market, policy, scored_at, cost_usd, on_demand_only_usd, on_demand_only_usd - cost_usd AS saved_usd, "
            "1 - cost_usd / nullif(on_demand_only_usd, 0) AS saved_share, on_time, "
            "start_at + to_seconds(coalesce(ceil(finish_seconds - 1e-6), finish_slots * step_seconds)) AS finish, spot_share, "
            "CASE WHEN valued THEN utility_usd END AS utility_usd, utility, hindsight_usd, gap_to_hindsight, moves, moving_usd, "
            "coalesce(model, 'slot') AS model FROM told",
        ),
        "policy_weights": Relation(
            words="Weight of each policy in the selection after each round; `newest` marks the last round of a policy.",
            time="scored_at",
            key=("round", "policy"),
            columns={
                "round": ROUND,
                "job": JOB,
                "policy": "Name of the policy.",
                "scored_at": "Logical time of the turn that updated the weight, UTC.",
                "utility": "Utility of the policy on the job, on a scale from 0 to 1.",
                "weight": "Share of the total weight of all policies of the round.",
                "newest": "Whether the policy has no later round.",
            },
            sql="SELECT round, job, policy, scored_at, utility, raised / sum(raised) OVER (PARTITION BY round) AS weight, newest "
            "FROM (SELECT *, exp(log_weight - max(log_weight) OVER (PARTITION BY round)) AS raised, "
            "round = max(round) OVER (PARTITION BY policy) AS newest FROM weights)",
        ),
        "policy_ranking": Relation(
            words="Leaderboard: means over ended jobs for every policy that was replayed, apart by model. Sort by `mean_utility`.",
            key=("policy", "model"),
            columns={name: one.words for name, one in BOARD.items() if name not in REPORTED},
            sql="SELECT policy, model, count(*) AS jobs, avg(utility) AS mean_utility, avg(o.utility_usd) AS mean_utility_usd, "
            "avg(cost_usd) AS mean_cost_usd, avg(saved_usd) AS mean_saved_usd, "
            "avg(saved_usd) / avg(on_demand_only_usd) AS saved_share, "
            "CASE WHEN count(hindsight_usd) = count(*) THEN avg(hindsight_usd) END AS mean_hindsight_usd, "
            "avg(CAST(on_time AS INTEGER)) AS on_time, avg(gap_to_hindsight) AS gap_to_hindsight, "
            "coalesce(any_value(weight), 0) AS weight "
            "FROM job_outcomes JOIN (SELECT job, policy, utility_usd FROM outcomes) AS o USING (job, policy) "
            "LEFT JOIN (SELECT policy, weight FROM policy_weights WHERE newest) USING (policy) GROUP BY policy, model",
        ),
        "turn_stages": Relation(
            words="Stages of every turn: a row per stage, with the reason if it failed.",
            time="logical_at",
            key=("run", "stage", "status"),
            columns={
                "logical_at": "Logical time of the turn, UTC.",
                "run": "Name of the turn: joins `decisions.run`.",
                "stage": "`ingest`, `forecast`, `allocate` or `score`.",
                "status": "`done` or `failed`.",
                "made": "`live` if run in its slot, `backfill` if run later.",
                "reason": "Reason of the failure; null if done.",
                "details": "JSON of the counts of the stage.",
            },
            sql="SELECT logical_at, run, stage, status, made, "
            "CASE WHEN status = 'failed' THEN TRY_CAST(details AS JSON) ->> '$.reason' END AS reason, details FROM runs",
        ),
    }


# ---
# Output: SQL for every warehouse.


def relations() -> dict[str, Relation]:
    """Return all views, then all tables."""
    return {**views(), **tables()}


def view_times() -> dict[str, str]:
    """Return the views, each with the column whose day partitions its export, "" for none."""
    return {name: one.time for name, one in views().items()}


def sql() -> str:
    """Return statements that create the views and comment on every table, view and column of a warehouse."""
    return "\n".join(
        [
            "-- Generated by `python -m slackwater.flows.schemas.tables sql`: edit that module, not this file.",
            *_statements(),
            "",
        ]
    )


def _statements() -> Iterator[str]:
    for name, one in views().items():
        yield f"CREATE OR REPLACE VIEW {name} AS {one.sql};"
    for name, one in relations().items():
        yield f"COMMENT ON {'VIEW' if one.sql else 'TABLE'} {name} IS {sql_literal(one.words)};"
        yield from (
            f"COMMENT ON COLUMN {name}.{quoted} IS {sql_literal(words)};"
            for column, words in one.columns.items()
            for quoted in [column if column.isidentifier() else f'"{column}"']
        )


# ---
# The same for dbt.


def dbt_sources() -> str:
    """Return the views as sources of dbt (YAML): descriptions, and a test for every key."""
    lines = [
        "# Generated by `python -m slackwater.flows.schemas.tables dbt`.",
        "version: 2",
        "sources:",
        "  - name: slackwater",
        "    description: The newest finished turn of a warehouse.",
        "    database: slackwater",
        "    schema: main",
        "    tables:",
    ]
    for name, one in views().items():
        lines += [
            f"      - name: {name}",
            f"        description: {json.dumps(one.words)}",
            "        columns:",
        ]
        for column, words in one.columns.items():
            lines += [f"          - name: {column}", f"            description: {json.dumps(words)}"]
            if column in one.key:
                tests = "[not_null, unique]" if one.key == (column,) else "[not_null]"
                lines.append(f"            data_tests: {tests}")
    return "\n".join([*lines, ""])


_OUTPUTS: Final = {"sql": sql, "dbt": dbt_sources}

if __name__ == "__main__":
    print(_OUTPUTS["".join(sys.argv[1:])](), end="")
