"""Decision in words: instances and until when, change and cost, then the reason; without pandas, as help texts load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from slackwater.flows.ledger.fields import (
    SELDOM,
    UNLIKELY,
    WORRYING,
    as_shown,
    assumption,
    cost_interval,
    finish_interval,
    is_nowhere,
    risk,
    risk_mark,
    zone_of,
)
from slackwater.flows.show.blocks import Banner, Block, Tile, Tiles
from slackwater.flows.show.formats import (
    MISSING,
    age,
    as_number,
    dollars,
    duration,
    join_words,
    number,
    percent,
    plural,
    usd,
    utc,
)

MISSED = "MISSED: "  # Prefix of the note on a job that missed its deadline


def missed_apart(notes: Sequence[str]) -> tuple[list[Block], list[str]]:
    """Return the notes of jobs that missed their deadline as banners, and the other notes.

    >>> missed_apart(["MISSED: job a missed: 6 % done at its deadline.", "Other."])
    ([Banner(label='MISSED:', text='job a missed: 6 % done at its deadline.')], ['Other.'])
    """
    missed: list[Block] = [
        Banner(MISSED.strip(), note.removeprefix(MISSED)) for note in notes if note.startswith(MISSED)
    ]
    return missed, [note for note in notes if not note.startswith(MISSED)]


def headline(row: Mapping[str, Any], now: datetime | None = None) -> str:
    """Return the instances to run and until when, with the change and the expected cost.

    The date is omitted if the slot ends on the date of ``now``.

    >>> row = {"on_demand": 0, "spot": 2, "slot_end": "2026-11-20T08:30:00+00:00", "change": "start 2 spot, stop 1 on-demand",
    ...        "expected_cost_usd": 473.2, "saved_share": 0.65}
    >>> headline(row, datetime(2026, 11, 20, 8, tzinfo=UTC))
    'Run 2 spot instances until 08:30 UTC (start 2 spot, stop 1 on-demand). Expected cost $473, 65 % less than on-demand only.'
    >>> headline({**row, "spot": 0, "change": "nothing to start", "saved_share": None})
    'Run nothing until 2026-11-20 08:30 UTC (nothing to start). Expected cost $473.'
    >>> known = {"evidence": 0, "evidence_basis": "availability not observed, assumed from 32 measured markets"}
    >>> print(headline({**row, "availability_note": "prices only", **known}).partition(". ")[2])
    Cost about $473, 65 % less than on-demand only; availability not observed, assumed from 32 measured markets.
    >>> headline({**row, "spot": 0, "worth_note": "not worth running on now: finishing is worth $300"})
    'Not worth running on now: finishing is worth $300. Run nothing until 2026-11-20 08:30 UTC.'
    """
    kinds = [(int(row["spot"]), "spot"), (int(row["on_demand"]), "on-demand")]
    held = [f"{count} {kind}" for count, kind in kinds if count]
    if row.get("shortfall") and not held:
        return f"Run nothing for it until {_until(row['slot_end'], now)}: no instances finish it in time."
    what = f"{join_words(held)} instance{'' if sum(count for count, _ in kinds) == 1 else 's'}"
    if (row.get("gpus_per_instance") or 1) > 1:
        what += f" ({row['gpus']} GPUs)"
    where = f" in {zone_of(row['market'])}" if row.get("move_usd") is not None and not is_nowhere(row) else ""
    doing = f"Run {what}{where}" if held else "Run nothing"
    if note := row.get("worth_note"):
        return f"{note[0].upper()}{note[1:]}. Run nothing until {_until(row['slot_end'], now)}."
    change = f" ({row['change']})" if row.get("change") else ""
    return f"{doing} until {_until(row['slot_end'], now)}{change}. {_cost(row)}".rstrip()


def _until(end: Any, now: datetime | None) -> str:
    written = utc(end)
    return (
        written[11:] if now is not None and written.startswith(f"{now.astimezone(UTC):%Y-%m-%d}") else written
    )


_SAME: Final = 0.005  # Least difference of cost that is stated, as a share


def compared_words(share: float, usd_saved: float | None = None) -> str:
    """Return a saving compared with on-demand only in words, with its amount if given.

    >>> compared_words(0.65), compared_words(0.001), compared_words(-0.1, -12.5)
    ('65 % less than on-demand only', 'the same as on-demand only', '$12.50 (10 %) more than on-demand only')
    """
    if abs(share) < _SAME:
        return "the same as on-demand only"
    by = percent(abs(share))
    if usd_saved is not None:
        by = f"${dollars(abs(usd_saved))} ({by})"
    return f"{by} {'less' if share > 0 else 'more'} than on-demand only"


def _cost(row: Mapping[str, Any]) -> str:
    """Return the expected cost of the job, compared with on-demand only where that is known and the job seldom given up.

    >>> _cost({"expected_cost_usd": 187.0, "saved_share": 0.66, "expected_finish_p10": "2026-11-27T06:21:00+00:00"})
    'Expected cost $187, including cases in which the job is given up.'
    >>> _cost({"expected_cost_usd": 890.0, "saved_share": 0.0, "on_demand_only_usd": 890.0})
    'Expected cost $890, the same as on-demand only.'
    """
    cost, share = as_number(row.get("expected_cost_usd")), as_number(row.get("saved_share"))
    if cost is None or (row.get("shortfall") and not cost):  # an abandoned job costs nothing more
        return ""
    less = ""
    if row.get("expected_finish_p10") and not row.get(
        "expected_finish_p90"
    ):  # 1 of 10 cases or more never finishes
        less, share = ", including cases in which the job is given up", None
    if share is not None:
        less = f", {compared_words(share)}"
        share = None if abs(share) < _SAME else share
    between = cost_interval(row).replace(" to ", " to $")
    tail = _tail(row, cost)
    between = f" (${between}{_CENTRAL}{tail})" if between else ""
    if row.get("availability_note") is None:
        return f"Expected cost ${dollars(cost)}{between}{less}."
    only = as_number(row.get("on_demand_only_usd"))
    less += f", ${dollars(only)}" if share is not None and only is not None else ""
    return f"Cost about ${dollars(cost)}{between}{less}; {row.get('evidence_basis') or assumption(row)}."


def _tail(row: Mapping[str, Any], cost: float) -> str:
    """Return why a mean cost lies outside its 80 % interval; "" if it lies inside.

    >>> _tail({"expected_cost_p10_usd": 111.0, "expected_cost_p90_usd": 118.0}, 123.0)
    ', far more in a few'
    """
    low, high = as_number(row.get("expected_cost_p10_usd")), as_number(row.get("expected_cost_p90_usd"))
    if low is None or high is None or low <= cost <= high:
        return ""
    if dollars(cost) in (dollars(low), dollars(high)):
        return ""
    return f", far {'more' if cost > high else 'less'} in a few"


#: Note on a simulation with a record of prices only.
SPOT_NEVER_LOST = (
    "Availability was not observed: costs hold if spot is never lost, "
    "and whether a policy that runs spot meets its deadline is unknown."
)


#: Note on a job whose risk is not known.
RISK_UNKNOWN = "the risk of missing its deadline is unknown: no recent count of available instances"


def outlook(row: Mapping[str, Any]) -> list[str]:
    """Return sentences on the standby plan, the expected finish and the deadline, the risk, and the budget.

    >>> row = {"expected_finish": "2026-11-27T06:00:00+00:00", "deadline": "2026-11-27T12:00:00+00:00", "late_probability": None}
    >>> for sentence in outlook({**row, "late_probability": 0.0, "guarded": True, "assuming": "on-demand is granted at once",
    ...                          "standby": "run 2 on-demand at once", "slot_end": "2026-11-26T08:30:00+00:00"}):
    ...     print(sentence)
    If spot is lost before 08:30 UTC: run 2 on-demand at once.
    Expected finish 2026-11-27 06:00 UTC, deadline 2026-11-27 12:00 UTC.
    Risk of missing it: 0 % even if all spot is lost, assuming that on-demand is granted at once.
    """
    if row.get("shortfall"):
        return [f"The deadline {utc(row['deadline'])} is missed in any case."]
    lost = (
        f"If spot is lost before {utc(row['slot_end'])[11:]}: {row['standby']}." if row.get("standby") else ""
    )
    return [part for part in (lost, *_finish_and_risk(row), budget(row)) if part]


_CENTRAL = " in 8 of 10 cases"  # What a central 80 % interval is, in words


def _finish_and_risk(row: Mapping[str, Any]) -> list[str]:
    late = as_number(row.get("late_probability"))
    risk = "unknown" if late is None else percent(late)
    if row.get("guarded"):
        risk += " even if all spot is lost"
    if row.get("budget_note"):
        risk += ", without on-demand"
    assumed, _, _ = assumption(row).partition("; for cost and finish: ")
    if row.get("worth_note"):
        return [f"Deadline {utc(row['deadline'])}, risk of missing it {risk}."]
    risk_text = f"Risk of missing it: {risk}" + (f", assuming that {assumed}." if assumed else ".")
    between = (
        f" ({between}{_CENTRAL if row.get('expected_finish_p90') else ''})"
        if (between := finish_interval(row))
        else ""
    )
    finish = f"Expected finish {utc(row['expected_finish'])}{between}, deadline {utc(row['deadline'])}."
    return [_unfinished(row) or finish, risk_text]


def _unfinished(row: Mapping[str, Any]) -> str:
    """Return how likely a job finishes that may be given up, and the work done else; "" for one that is seldom given up.

    >>> row = {"deadline": "2026-11-26T00:00:00+00:00", "given_up_probability": 0.4, "expected_work_share": 0.9,
    ...        "expected_finish_p10": "2026-11-25T22:08:00+00:00"}
    >>> print(_unfinished(row))
    Finishes in 60 % of cases, from 2026-11-25 22:08 UTC on, else ends with about 75 % done; deadline 2026-11-26 00:00 UTC.
    >>> little = {"given_up_probability": 1.0, "expected_work_share": 0.31, "budget_usd": 100.0, "budget_note": "too little"}
    >>> print(_unfinished({**row, **little}))
    Not expected to finish: about 31 % of the work is done within the budget of $100, deadline 2026-11-26 00:00 UTC.
    """
    given_up, done = as_number(row.get("given_up_probability")), as_number(row.get("expected_work_share"))
    if given_up is None or done is None or given_up <= SELDOM:
        return ""
    limit = f" within the budget of ${dollars(row['budget_usd'])}" if row.get("budget_note") else ""
    deadline = f"deadline {utc(row['deadline'])}"
    if given_up >= UNLIKELY:
        return f"Not expected to finish: about {percent(done)} of the work is done{limit}, {deadline}."
    begins = f", from {utc(low)} on" if (low := row.get("expected_finish_p10")) else ""
    rest = 1.0 - (1.0 - done) / given_up
    return (
        f"Finishes{limit} in {percent(1.0 - given_up)} of cases{begins}, else ends with about "
        f"{percent(rest)} done; {deadline}."
    )


def budget(row: Mapping[str, Any]) -> str:
    """Return the budget, the amount paid so far and the risk of exceeding the budget; "" without a budget.

    >>> budget({"budget_usd": 600.0, "paid_usd": 118.2, "over_budget_probability": 0.03})
    'Budget $600, $118 paid so far, risk that it does not pay for all of the work 3.0 %.'
    """
    limit, paid = as_number(row.get("budget_usd")), as_number(row.get("paid_usd"))
    if limit is None:
        return ""
    over = as_number(row.get("over_budget_probability"))
    return (
        f"Budget ${dollars(limit)}, ${dollars(paid or 0.0)} paid so far, "
        f"risk that it does not pay for all of the work {'unknown' if over is None else percent(over)}."
    )


def savings(decisions: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the expected saving compared with on-demand only, and the cost of on-demand only, USD; 0 and 0 if unknown.

    Decisions without a saving are not included.
    """
    known = [
        (float(saved), float(alone))
        for row in decisions
        if (alone := as_number(row.get("on_demand_only_usd"))) is not None
        and (saved := as_number(row.get("saved_usd"))) is not None
    ]
    return sum(saved for saved, _ in known), sum(alone for _, alone in known)


def overview(rows: Sequence[Mapping[str, Any]]) -> Tiles:
    """Return the key figures of some decisions: total instances, expected saving, and the jobs at risk.

    >>> row = {"on_demand": 0, "spot": 2, "saved_usd": 30.0, "on_demand_only_usd": 40.0, "late_probability": None}
    >>> [(tile.value, tile.hint) for tile in overview([row]).tiles]
    [('0', ''), ('2', ''), ('75 %', '$30.00 less than on-demand only'), ('0', 'risk unknown for 1')]
    """
    saved, alone = savings(rows)
    chances = [as_number(row.get("late_probability")) for row in rows]
    at_risk = sum(
        bool(row.get("shortfall") or risk_mark(late)) for row, late in zip(rows, chances, strict=True)
    )
    unknown = chances.count(None)
    on_demand, spot = (
        sum(int(as_number(row.get(key)) or 0) for row in rows) for key in ("on_demand", "spot")
    )
    return Tiles(
        [
            Tile("On-demand", str(on_demand), colour="od"),
            Tile("Spot", str(spot), colour="spot"),
            Tile(
                "Expected saving",
                percent(saved / alone),
                f"${usd(abs(saved))} {'less' if saved >= 0 else 'more'} than on-demand only",
            )
            if alone
            else Tile("Expected saving", MISSING),
            Tile("Jobs at risk", str(at_risk), f"risk unknown for {unknown}" if unknown else ""),
        ]
    )


def decisions_summary(decisions: Sequence[Mapping[str, Any]]) -> str:
    """Return a summary of the decisions: total instances, total expected cost, and the jobs at risk."""
    on_demand, spot = (
        sum(int(as_number(row.get(key)) or 0) for row in decisions) for key in ("on_demand", "spot")
    )
    gpus = [as_number(row.get("gpus")) for row in decisions]
    in_all = (
        "" if None in gpus else f" ({plural(int(sum(gpu_count or 0 for gpu_count in gpus)), 'GPU')} in all)"
    )
    ends = {row.get("slot_end") for row in decisions}
    until = f"until {utc(ends.pop())}" if len(ends) == 1 and None not in ends else "in the slot"
    kinds = [(spot, "spot instance"), (on_demand, "on-demand instance")]
    run = join_words([plural(count, kind) for count, kind in kinds if count]) or "nothing"
    in_all = in_all if spot or on_demand else ""
    return (
        f"{plural(len(decisions), 'job')}: run {run}{in_all} {until}. {_total_cost(decisions)}"
    ) + lateness(decisions)


def glance_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return a line for each decision: job, instances to run, zone, expected cost of the whole job, and risk.

    >>> row = {"job": "a", "spot": 2, "on_demand": 1, "market": "aws/r/r-1a/t", "expected_cost_usd": 473.2,
    ...        "late_probability": 0.02}
    >>> glance_rows([row])
    [{'job': 'a', 'run': '2 spot, 1 on-demand', 'where': 'r-1a', 'cost': '$473', 'risk': '2.0 %'}]
    """
    kinds = (("spot", "spot"), ("on_demand", "on-demand"))
    return [
        {
            "job": str(row["job"]),
            "run": ", ".join(
                f"{count:.0f} {kind}" for key, kind in kinds if (count := as_number(row.get(key)))
            )
            or "nothing",
            "where": shown["market"] if is_nowhere(row) else zone_of(row.get("market")),
            "cost": MISSING if cost is None else f"${dollars(cost)}",
            "risk": risk(row.get("late_probability")),
        }
        for row, shown in ((row, as_shown(row)) for row in rows)
        for cost in [as_number(shown.get("expected_cost_usd"))]
    ]


def _total_cost(decisions: Sequence[Mapping[str, Any]]) -> str:
    """Return the expected cost of all jobs, compared with on-demand only; an abandoned job has no expected cost."""
    known = ((as_number(row.get("expected_cost_usd")), row.get("shortfall")) for row in decisions)
    costs = [cost for cost, short in known if cost is not None and (cost or not short)]
    if not costs:
        return ""
    saved, alone = savings(decisions)
    less = f", {compared_words(saved / alone, saved)}" if alone else ""
    return f"Expected cost, from start to end: ${dollars(sum(costs))}{less}. "


def lateness(decisions: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of jobs that may or will miss their deadline."""
    chances = [as_number(row.get("late_probability")) for row in decisions]
    hopeless = sum(bool(row.get("shortfall")) for row in decisions)
    late, unknown = sum((chance or 0.0) >= WORRYING for chance in chances) - hopeless, chances.count(None)
    sentences = [f"{plural(hopeless, 'job')} cannot meet the deadline."] if hopeless else []
    sentences += [f"{plural(late, 'job')} may miss the deadline."] if late > 0 else []
    sentence = (
        " ".join(sentences)
        or "No job is at risk of missing its deadline, assuming that on-demand is granted when needed."
    )
    if unknown == len(chances):
        return "The risk of missing a deadline is unknown."
    return sentence + (f" For {plural(unknown, 'job')} the risk is unknown." if unknown else "")


#: Fields that a decision needs for an answer; an incomplete decision is shown in the table only.
ANSWER_FIELDS = ("on_demand", "spot", "slot_end", "expected_finish", "deadline")


def answers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each job the instances to run, the cost, and the risk of missing its deadline."""
    return [
        f"{row['job']}: {row['shortfall']}. {headline(row)}"
        if row.get("shortfall")
        else " ".join([f"{row['job']}: {headline(row)}", *outlook(row)])
        for row in rows
        if all(row.get(key) is not None for key in ANSWER_FIELDS)
    ]


def over_since(row: Mapping[str, Any], now: datetime) -> str:
    """Return a note that the slot of a decision has ended, and when; "" if it has not."""
    end = datetime.fromisoformat(str(row["slot_end"])) if row.get("slot_end") else None
    if end is None or now < end:
        return ""
    return (
        f"This slot ended {age(now - end)} ago, at {_until(row['slot_end'], now)}: start nothing for it. "
        "`slackwater run` again decides the present slot."
    )


def late_start_note(row: Mapping[str, Any], start: timedelta, now: datetime) -> str:
    r"""Return a note that instances to start do no work before the slot ends; ``start`` is the time until a new instance works.

    >>> row = {"start_spot": 4, "start_on_demand": 0, "slot_end": "2026-11-25T12:30:00+00:00"}
    >>> print(late_start_note(row, timedelta(minutes=8), datetime(2026, 11, 25, 12, 27, tzinfo=UTC)).replace(": ", ":\n"))
    This slot ends in 3 min, and a new instance works after 8 min:
    start now for the slot from 12:30 UTC, and plan again then.
    >>> late_start_note(row, timedelta(minutes=8), datetime(2026, 11, 25, 12, 21, tzinfo=UTC))
    ''
    """
    left = datetime.fromisoformat(str(row["slot_end"])) - now
    if not timedelta(0) < left < start or not (row.get("start_spot") or row.get("start_on_demand")):
        return ""
    minutes = f"{max(1, round(left / timedelta(minutes=1)))} min"
    return (
        f"This slot ends in {minutes}, and a new instance works after {duration(start)}: "
        f"start now for the slot from {_until(row['slot_end'], now)}, and plan again then."
    )


def data_end_note(seen: datetime, now: datetime) -> str:
    """Return a note that a plan is of the slot in which the data end, ``seen`` being the newest observation, and the remedy.

    The present slot can be planned while prices of that age count (M1.3).

    >>> now = datetime(2026, 11, 26, 18, 10, tzinfo=UTC)
    >>> data_end_note(datetime(2026, 11, 25, 18, tzinfo=UTC), now).partition('. ')[2]
    'Read newer data and plan again, or plan the present slot from these data with `--at 2026-11-26T18:10Z`.'
    >>> data_end_note(datetime(2026, 11, 20, 18, tzinfo=UTC), now).partition('. ')[2]
    'Read newer data and plan again.'
    """
    from slackwater.warehouse.asof import PRICE_MAX_AGE

    again = f", or plan the present slot from these data with `--at {now.astimezone(UTC):%Y-%m-%dT%H:%MZ}`"
    return (
        f"Start nothing: the newest data are {age(now - seen)} old, and this plan is for the slot in which they end. "
        f"Read newer data and plan again{again if now - seen < PRICE_MAX_AGE else ''}."
    )


def unless_over(row: Mapping[str, Any], now: datetime, text: str) -> str:
    """Return a text on a decision, preceded by a note if its slot has ended."""
    over = over_since(row, now)
    return f"{over} At that time: {text}" if over else text


def details(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return further facts of a decision as rows of a name and a value."""
    from slackwater.optimization.job.units import amount_words  # loads pandas

    kinds = (("spot", "spot"), ("on_demand", "on-demand"))
    held = " and ".join(f"{count} {kind}" for key, kind in kinds if (count := row.get(f"held_{key}")))
    known = {"reported": "as reported", "decided": "by its decisions"}
    place = "no market yet" if is_nowhere(row) else f"{row['market']} (source {row['source']})"
    found = {
        "job": f"{row['job']} on {place}",
        "slot": f"{utc(row['slot'])[:-4]} to {utc(row['slot_end'])[11:]}",
        "instances": str(row.get("instances") or ""),
        "work": str(row.get("work") or ""),
        "held before": f"{held}, {known[row['held_from']]}" if held else "nothing",
        "moves": f"from {zone_of(row['moved_from'])} for ${usd(row['move_usd'])}"
        if row.get("moved_from")
        else "",
        "progress": f"{_amount(row['progress'])} of {amount_words(row['workload'], row['workload_unit'])} "
        f"({percent(row['progress_share'])}), {known[row['progress_from']]}",
        "cost": _cost_detail(row),
        "on-demand": str(row.get("on_demand_from") or ""),
        "policy": f"{row['policy']}: {row['chosen_because']}",
        "forecast": f"{row['forecaster']}{': ' + row['fallback'] if row.get('fallback') else ''}"
        if row.get("forecaster")
        else str(row.get("fallback") or ""),
    }
    return [{"what": what, "value": value} for what, value in found.items() if value]


def _cost_detail(row: Mapping[str, Any]) -> str:
    """Return the 80 % interval of the cost, or the cost itself, with that of on-demand only; "" for an abandoned job."""
    cost, only = as_number(row.get("expected_cost_usd")), as_number(row.get("on_demand_only_usd"))
    if cost is None or (row.get("shortfall") and not cost):
        return ""
    between = cost_interval(row).replace(" to ", " to $")
    text = f"10 % to 90 %: ${between}" if between else f"${dollars(cost)}"
    return text + (f"; on-demand only ${dollars(only)}" if only else "")


def _amount(value: float) -> str:
    return number(value, 0 if value == round(value) else 2)


def issued_note(row: Mapping[str, Any], name: str, *, is_stored: bool, is_of_turn: bool) -> str:
    """Return whether a turn has issued the decision, and how to issue it if not; "" if no turn can issue it."""
    if row.get("issued_at"):
        return f"Issued at {utc(row['issued_at'])}."
    if not is_stored:
        return f"Not issued: job {name} is not in the warehouse; `slackwater job add FILE` adds it."
    if not is_of_turn:
        return ""
    return (
        "Not issued: no turn decided this slot."
        if row.get("expired")
        else "Not issued yet: `slackwater run` issues it."
    )
