"""Command ``bill``: the cost of jobs, slot by slot, compared with on-demand only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import Answer, Query, option
from slackwater.flows.ledger.costs import costs_of_jobs
from slackwater.flows.show.blocks import Block, Column, Table
from slackwater.flows.show.formats import join_words, number, percent, plural, usd, utc

if TYPE_CHECKING:
    from slackwater.warehouse.store.connection import Store

MOST_SLOTS = 48  # Most slots of a job shown on a terminal, newest first
#: Query that returns a row if the warehouse has the view of costs of this version.
_HAS_COSTS = "SELECT 1 FROM duckdb_columns() WHERE table_name = 'job_costs' AND column_name = 'spot_hours'"
#: Note of a bill with lost instances.
LOSSES = (
    "Lost spot is paid until the loss, where the driver of `slackwater act` states its time, "
    "else until the loss was seen or reported."
)

#: A slot of a job that ended unfinished: what was paid is compared with nothing.
NOT_COMPARED: dict[str, Any] = {"on_demand_only_usd": None, "saved_usd": None, "on_demand_only_from": None}


def bill(
    job: Annotated[str | None, option("One job, slot by slot (default: every job).", metavar="JOB")] = None,
    /,
    *,
    session: Query = Query(),
) -> Answer:
    """Show what jobs have cost, compared with on-demand only for the same work.

    Instances are those reported, each report until the next, in slots without a report those decided.
    Spot is paid at the observed price of each slot in the market where it ran, else at the price of
    the decision; on-demand at the price of the decision. On-demand only is never more than the same
    instances on demand; jobs that ended unfinished are not compared.
    """
    from slackwater.flows.ledger.endings import endings_of, missed_jobs
    from slackwater.flows.ledger.headline import missed_apart
    from slackwater.flows.ledger.jobs import find_job, stored_jobs
    from slackwater.warehouse.issued import read_rows

    with session.reading() as store:
        known = [find_job(store, job)] if job is not None else stored_jobs(store)
        slots = cost_rows(store, job)
        scored = set(read_rows(store, "outcomes")["job"])
        lost = store.execute(
            "SELECT 1 FROM reports WHERE lost > 0 AND ($job IS NULL OR job = $job) LIMIT 1", {"job": job}
        )
        ended = scored | {
            name for (name,) in store.execute("SELECT job FROM reports WHERE finished OR withdrawn")
        }
        endings = endings_of(store, [stored for stored in known if stored.request.name in ended])
    missed, _ = missed_apart(missed_jobs({name: own for name, own in endings.items() if name in scored}))
    unfinished = [name for name, ending in endings.items() if ending.is_unfinished]
    notes = [*([LOSSES] if lost else []), *_note_on_unknown(slots), *_saving_notes(slots, unfinished)]
    slots = [row | NOT_COMPARED if row["job"] in unfinished else row for row in slots]
    jobs = totals(slots)
    value: dict[str, Any] = {"jobs": jobs, "weeks": weeks(slots), "slots": slots if job is not None else []}
    blocks: list[Block] = [
        *missed,
        _headline(jobs, _counted_until(slots, ended)),
        _totals_table(jobs),
        Table("By week", value["weeks"], {"week": "week from", **SAVING_COLUMNS, "slots": "slots"}),
    ]
    if job is not None:
        blocks.append(_slots_table(slots))
    title = "Bill" if job is None else f"Bill of {job}"
    return Answer(title=title, value=value, blocks=blocks, notes=notes)


def cost_rows(store: Store, job: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of the view `job_costs`, by job and slot; raises `StoreError` if an older version wrote the warehouse."""
    import pandas as pd

    from slackwater.warehouse.errors import StoreError

    if not store.execute(_HAS_COSTS):
        raise StoreError(
            f"warehouse {store.name} was last written by an older version, with an older comparison with on-demand only",
            remedy="the next writing command, such as `slackwater run`, brings it up to date",
        )
    names = (
        "job", "slot", "slot_end", "market", "markets", "on_demand", "spot", "held_from", "on_demand_hours",
        "spot_hours", "paid_usd", "spot_price_from", "on_demand_only_usd", "saved_usd", "work_share", "on_demand_only_from",
    )  # fmt: skip
    rows = store.execute(
        f"{'' if job is None else costs_of_jobs(store)}"
        f"SELECT * REPLACE (epoch_us(slot) AS slot, epoch_us(slot_end) AS slot_end) FROM (SELECT {', '.join(names)} FROM job_costs "
        "JOIN (SELECT job, slot, slot_end FROM job_decisions) USING (job, slot)) ORDER BY job, slot",
        {} if job is None else {"jobs": [job]},
    )
    times = ("slot", "slot_end")
    return [
        {name: pd.Timestamp(value, unit="us", tz="UTC") if name in times else value for name, value in named}
        for named in (zip(names, row, strict=True) for row in rows)
    ]


def paid_by_job(store: Store, jobs: Sequence[str]) -> dict[str, float | None]:
    """Return the cost of jobs by the view `job_costs`, without slots whose price is not known; none without that view."""
    if not store.execute(_HAS_COSTS):
        return {}
    query = "SELECT job, sum(paid_usd) FROM job_costs GROUP BY job"
    return dict(store.execute(costs_of_jobs(store) + query, {"jobs": list(jobs)}))


def _counted_until(slots: Sequence[Mapping[str, Any]], ended: Collection[str]) -> Any:
    """Return the end of the newest slot with instances of a job that has not ``ended``; None without one."""
    newest = {row["job"]: row for row in slots if row["job"] not in ended}
    return max(
        (row["slot_end"] for row in newest.values() if row["on_demand"] + row["spot"] > 0), default=None
    )


def _note_on_unknown(slots: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note on the unknown parts of a bill."""
    found = []
    origins = [row["spot_price_from"] for row in slots if row["spot_price_from"] is not None]
    if assumed := origins.count("decided"):
        found.append(
            f"Spot price not observed in {assumed} of {plural(len(origins), 'slot')} with spot: that of the decision is used."
        )
    if gaps := sum(_is_gap(*pair) for pair in pairwise(slots)):
        found.append(
            f"Not in the bill: {plural(gaps, 'gap')} between slots, where nothing was decided or reported."
        )
    if any((row["work_share"] or 0.0) < 0.0 for row in slots):
        found.append(
            "Negative work in a slot corrects the slots before it: less was reported than decisions had assumed."
        )
    return found


def _saving_notes(slots: Sequence[Mapping[str, Any]], unfinished: Collection[str]) -> list[str]:
    """Return notes on the jobs whose saving is not that of the work in their file (M12.16)."""
    found = []
    if any(row["saved_usd"] is None and row["paid_usd"] for row in slots if row["job"] not in unfinished):
        found.append("Savings leave out slots whose work is not known; these are in what was paid.")
    if lost := sorted({row["job"] for row in slots if row["job"] in unfinished}):
        usd_lost = sum(row["paid_usd"] or 0.0 for row in slots if row["job"] in lost)
        found.append(f"Not compared: {join_words(lost)} ended unfinished; ${usd(usd_lost)} paid.")
    if fast := sorted({row["job"] for row in slots if row["on_demand_only_from"] == "instances"} - set(lost)):
        found.append(
            f"{join_words(fast)} did more work than {'its' if len(fast) == 1 else 'their'} instances do at the throughput of the "
            "job file: compared with the same instances on demand. Correct the amount of work or the throughput in the file."
        )
    return found


def _is_gap(row: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether nothing is known of the time between two rows."""
    return bool(
        row["job"] == after["job"] and row["held_from"] == "decided" and row["slot_end"] < after["slot"]
    )


def totals(slots: Sequence[Mapping[str, Any]], key: str = "job") -> list[dict[str, Any]]:
    """Return the sums by ``key``: cost, cost of on-demand only for the same work, and the difference.

    ``unpriced`` counts slots without a known price: they are in no sum, and a cost of such slots alone is
    None. Slots whose work is not known yet, the newest of an open job, are in the cost but not in the comparison.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in slots:
        groups.setdefault(row[key], []).append(row)
    found = []
    for name, rows in groups.items():
        both = [row for row in rows if row["saved_usd"] is not None]
        alone = sum(row["on_demand_only_usd"] for row in both)
        saved = sum(row["saved_usd"] for row in both)
        found.append(
            {
                key: name,
                "slots": len(rows),
                "reported": sum(row["held_from"] == "reported" for row in rows),
                "unpriced": sum(row["paid_usd"] is None for row in rows),
                "paid_usd": _paid_sum(rows),
                "on_demand_only_usd": alone if both else None,
                "saved_usd": saved if both else None,
                "saved_share": saved / alone if alone else None,
            }
        )
    return found


def _paid_sum(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return what was paid in the rows with a known price, None if no row has one."""
    known = [row["paid_usd"] for row in rows if row["paid_usd"] is not None]
    return sum(known) if known else None


def weeks(slots: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `totals` by the Monday of the week."""
    named = [
        row | {"week": f"{row['slot'].floor('D') - timedelta(days=row['slot'].weekday()):%Y-%m-%d}"}
        for row in map(dict, slots)
    ]
    return sorted(totals(named, "week"), key=lambda row: str(row["week"]))


def _headline(jobs: Sequence[Mapping[str, Any]], until: Any) -> str:
    if not jobs:
        return "There is no decision yet: instances that ran without a decision are not in the bill."
    counted = "" if until is None else f", counted to the end of the newest slot, {utc(until)}"
    unpriced = sum(row["unpriced"] for row in jobs)
    paid = _paid_sum(jobs)
    if paid is None:
        text = (
            f"What was paid for {plural(len(jobs), 'job')} is not known{counted}: no slot has a known price."
        )
    else:
        apart = f", without {plural(unpriced, 'slot')} whose price is not known" if unpriced else ""
        text = f"Paid ${usd(paid)} for {plural(len(jobs), 'job')}{counted}{apart}."
        text += _compared(jobs, paid)
    decided = sum(row["slots"] - row["reported"] for row in jobs)
    slots = sum(row["slots"] for row in jobs)
    if decided == slots:
        return f"{text} All slots are billed as decided: no report states which instances ran in them."
    return text + (
        f" {decided} of {plural(slots, 'slot')} by what was decided, the others by reports."
        if decided
        else ""
    )


def _compared(jobs: Sequence[Mapping[str, Any]], paid: float) -> str:
    """Return the comparison with on-demand only as a sentence, of the part of what was ``paid`` that can be compared."""
    rows = [row for row in jobs if row["saved_usd"] is not None]
    alone, saved = (sum(row[key] for row in rows) for key in ("on_demand_only_usd", "saved_usd"))
    if not alone:
        return ""
    less = f"{percent(abs(saved / alone))} {'saved' if saved >= 0 else 'more paid'}"
    part = usd(alone - saved)
    if part == usd(paid):
        return f" On-demand only would have cost ${usd(alone)} for the work done: {less}."
    return f" Of this ${part} can be compared: on-demand only would have cost ${usd(alone)}, {less}."


#: Columns of sums of money, compared with on-demand only.
MONEY: dict[str, Column | str] = {
    "paid_usd": Column(heading="paid", unit="$", format=usd),
    "on_demand_only_usd": Column(
        heading="on-demand only", unit="$", format=usd, words="What the same work costs on on-demand alone."
    ),
    "saved_usd": Column(heading="saved", unit="$", format=usd),
}
SAVING_COLUMNS = MONEY | {"saved_share": Column(heading="of on-demand only", format=percent)}


def _totals_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    columns = {"job": "job", **SAVING_COLUMNS, "slots": "slots", "reported": "reported"}
    if any(row["unpriced"] for row in jobs):
        columns["unpriced"] = Column(
            heading="no price", words="Slots whose spot price is not known; they are in no sum."
        )
    return Table("By job", jobs, columns)


def _slots_table(slots: Sequence[Mapping[str, Any]]) -> Table:
    columns: dict[str, Column | str] = {
        "slot": Column(heading="slot", format=utc),
        "on_demand_hours": Column(heading="on-demand", unit="h", format=number, words="On-demand instance-hours that are paid."),
        "spot_hours": Column(heading="spot", unit="h", format=number, words="Spot instance-hours that are paid."),
        "held_from": "from", **MONEY,
        "work_share": Column(heading="work done", format=percent), "markets": "market",
    }  # fmt: skip
    title = "Slot by slot, the newest first; on-demand and spot in instance-hours that are paid"
    return Table(title, slots[::-1], columns, most=MOST_SLOTS)
