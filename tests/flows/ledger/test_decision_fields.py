"""A new decision field is declared once, then stored, published, printed and drawn; older rows without it stay readable."""

import json
from types import SimpleNamespace

import jsonschema
import numpy as np
import pandas as pd
import pytest
from advice_kit import BEGIN, SETTINGS, add_job, decided_row, keep, new_store, turn_at
from command_kit import call, printed
from test_ui import client_of

from slackwater.flows.ledger import fields
from slackwater.flows.ledger.decisions import decisions_of, document, stored_decisions
from slackwater.flows.ledger.fields import DECISION, Field, columns_of
from slackwater.flows.ledger.headline import headline, outlook
from slackwater.flows.schemas.forms import schema
from slackwater.flows.show.blocks import Page
from slackwater.flows.show.page import render_page
from slackwater.flows.turn.report.command import decision_blocks
from slackwater.flows.turn.report.page import decisions_section
from slackwater.flows.ui.jobs import decided_table
from slackwater.warehouse.errors import InputError
from slackwater.warehouse.issued import read_rows, write_rows

#: Declaration of an additional field.
WATER = Field(
    kind="number?",
    limits={"minimum": 0},
    words="Energy that the instances take in the slot.",
    value=lambda job, made: 1.25 * made.allocation.total,
    heading="energy",
    unit="kWh",
)
#: A row as stored by the first version.
ANCIENT = {
    "job": "demo",
    "slot": BEGIN.isoformat(),
    "policy": "UP",
    "on_demand": 1,
    "spot": 2,
    "reason": "because",
}
#: The run that stored this row.
OLD_RUN = {
    "run": "run-old", "logical_at": BEGIN, "stage": "allocate", "status": "done", "details": "{}", "made": "live",
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    with new_store(tmp_path) as opened:
        add_job(opened)
        yield opened


def rendered(rows):
    return render_page(Page(title="t", blocks=[decisions_section(rows)]))


def test_a_field_more_is_stored_published_printed_and_drawn(store, tmp_path, monkeypatch):
    keep(store, turn_at(store, 4), [decided_row(store, 4)])
    monkeypatch.setitem(DECISION, "water_litres", WATER)
    made = decided_row(store, 5)
    energy = 1.25 * (made["on_demand"] + made["spot"])
    keep(store, turn_at(store, 5), [made])
    before, now = decisions_of(store, "demo")
    assert (before["water_litres"], now["water_litres"]) == (None, energy)
    assert (
        json.loads(read_rows(store, "decisions", order_by=["slot"])["details"].iloc[-1])["water_litres"]
        == energy
    )

    form = schema("decision")
    assert form["properties"]["water_litres"] == {
        "type": ["number", "null"], "minimum": 0, "description": WATER.words,
    }  # fmt: skip
    for row in (before, now):
        whole = document(row)
        jsonschema.Draft202012Validator(form).validate(whole)
        assert whole["water_litres"] == row["water_litres"]
    rows = schema("run")["properties"]["decisions"]["items"]
    assert "water_litres" in rows["properties"]

    terminal = printed(decision_blocks("Decisions", [before, now]))
    assert "energy, kWh" in terminal
    assert f"{energy:.4g}" in terminal
    assert list(columns_of(DECISION))[-4:] == ["water_litres", "late_probability", "policy", "reason"]
    page = rendered([before, now])
    assert f'title="{WATER.words}">energy, kWh' in page
    table = decided_table({"slots": [], "decisions": [before, now]})
    assert "water_litres" in table.columns
    place = list(table.columns).index("water_litres")
    assert [row[place] for row in table.cells()] == [f"{energy:.4g}", "—"]

    store.close()
    client = client_of(tmp_path / "w.duckdb", SETTINGS, now=BEGIN + pd.Timedelta("3h"))
    shown = client.get("/job?name=demo")
    assert shown.status_code == 200
    assert "energy, kWh" in shown.text
    assert f"{energy:.4g}" in shown.text


def test_rows_of_an_older_version_are_readable_everywhere(store, tmp_path):
    row = {name: ANCIENT[name] for name in ("job", "policy", "on_demand", "spot", "reason")}
    stored = row | {"slot": BEGIN, "run": "run-old", "details": json.dumps(ANCIENT)}
    write_rows(store, "decisions", [stored])
    write_rows(store, "runs", [OLD_RUN])
    ((run, found),) = stored_decisions(store, {"job": "demo"})
    assert run == "run-old"
    assert found["expected_cost_usd"] is None
    assert {name: found[name] for name in ANCIENT} == ANCIENT
    assert "—" in printed(decision_blocks("Decisions", [found]))
    assert "The risk of missing a deadline is unknown." in rendered([found])
    with pytest.raises(InputError, match="older version: it has no market"):
        document(found)
    # The next decision continues from this row.
    keep(store, turn_at(store, 1), [decided_row(store, 1)])
    path = tmp_path / "w.duckdb"
    store.close()
    shown = call("job", "show", "demo", "--db", path, "--json").value
    assert [one["late_probability"] is None for one in shown["decisions"]] == [True, False]
    client = client_of(path, SETTINGS, now=BEGIN + pd.Timedelta("45min"))
    for address in ("/", "/jobs", "/job?name=demo", "/runs", "/api/job?name=demo"):
        assert client.get(address).status_code == 200, address


def test_a_warehouse_whose_newest_decision_is_of_an_older_version_has_every_page(store, tmp_path):
    stored = ANCIENT | {"slot": BEGIN, "run": "run-old", "details": json.dumps(ANCIENT)}
    write_rows(store, "decisions", [stored])
    write_rows(store, "runs", [OLD_RUN])
    path = tmp_path / "w.duckdb"
    store.close()
    client = client_of(path, SETTINGS, now=BEGIN + pd.Timedelta("10min"))
    for address in ("/", "/jobs", "/job?name=demo"):
        page = client.get(address)
        assert page.status_code == 200, address
    assert "because" in page.text


def test_every_field_says_what_it_means_and_those_shown_have_a_heading():
    assert all(one.words.endswith(".") for one in DECISION.values())
    assert all(one.heading for one in DECISION.values() if one.unit)


@pytest.mark.parametrize(
    ("finish", "known", "first", "last"),
    [
        ([1.0] * 5 + [2.0] * 4 + [np.nan], True, "2026-03-10T06:30:00+00:00", "2026-03-10T07:00:00+00:00"),
        (
            [1.0] * 5 + [2.0] * 3 + [np.nan] * 2,
            True,
            "2026-03-10T06:30:00+00:00",
            None,
        ),  # only 8 of 10 samples finish
        ([2.0] * 10, True, "2026-03-10T07:00:00+00:00", "2026-03-10T07:00:00+00:00"),
        ([1.0] * 10, False, None, None),
    ],
)
def test_quantiles_of_the_finish_are_counted_over_the_sampled_futures(finish, known, first, last):
    """Work of a single slot: half of the samples get spot in the first slot, most others in the second."""
    job = SimpleNamespace(
        live=SimpleNamespace(start=pd.Timestamp("2026-03-10T06:00Z"), step=pd.Timedelta("30min")),
        history=SimpleNamespace(availability_observed=True),
    )
    made = SimpleNamespace(risk_known=known, expected=SimpleNamespace(finish=np.array(finish)))
    found = [DECISION[name].value(job, made) for name in ("expected_finish_p10", "expected_finish_p90")]
    assert found == [first, last]


def test_a_finish_at_the_deadline_without_risk_shows_its_interval_and_its_assumption():
    row = {
        "expected_finish": "2026-03-10T11:50:00+00:00", "deadline": "2026-03-10T12:00:00+00:00", "late_probability": 0.0,
        "expected_finish_p10": "2026-03-10T10:00:00+00:00", "expected_finish_p90": "2026-03-10T12:00:00+00:00",
        "on_demand_from": "the catalogue",
    }  # fmt: skip
    told = " ".join(outlook(row))
    assert "(2026-03-10 10:00 to 12:00 UTC in 8 of 10 cases)" in told
    assert "assuming that on-demand can be launched and spot is lost only between slots" in told
    for unknown in ({"late_probability": None}, {"on_demand_from": "not sold, as the job file says"}):
        assert "launched" not in " ".join(outlook(row | unknown))
    alone = {"expected_finish_p10": None, "expected_finish_p90": None, "availability_note": "prices only"}
    told = " ".join(outlook(row | alone | {"late_probability": None}))
    assert "assuming that spot is never lost" in told
    assert "8 of 10" not in told


def test_a_job_that_may_never_finish_shows_no_end_of_its_interval():
    row = {
        "expected_finish": "2026-03-10T11:50:00+00:00", "deadline": "2026-03-10T12:00:00+00:00", "late_probability": 0.2,
        "expected_finish_p10": "2026-03-10T10:00:00+00:00", "expected_finish_p90": None, "assuming": None,
    }  # fmt: skip
    told = outlook(row)
    assert told[0] == (
        "Expected finish 2026-03-10 11:50 UTC (from 2026-03-10 10:00 UTC, never in 1 of 10 cases or more), "
        "deadline 2026-03-10 12:00 UTC."
    )
    held = {"on_demand": 0, "spot": 2, "slot_end": "2026-03-10T06:30:00+00:00", "change": "no change"}
    cost = headline(row | held | {"expected_cost_usd": 187.0, "saved_share": 0.66})
    assert cost.endswith("Expected cost $187, including cases in which the job is given up.")
    assert outlook(row | {"worth_note": "not worth running on now"}) == [
        "Deadline 2026-03-10 12:00 UTC, risk of missing it 20 %."
    ]


def test_every_computed_field_has_a_row_and_every_row_a_value_or_another_origin():
    """A row of ``data/fields.csv`` and its computation are in two files: each needs the other."""
    computed = {name for name, field in DECISION.items() if field.value is not None}
    assert set(fields._VALUES) == computed
    assert set(DECISION) - computed == {*fields.DELIVERED, "chosen_because"}
