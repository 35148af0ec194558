"""Acting on a job in two markets: spot is lost in one, and the rest of the slot is decided in the other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from acting_week import act_at, simulated
from advice_kit import SETTINGS, STEP
from command_kit import call
from make import make_request
from tidy_folder import write_counts, write_prices

from slackwater.flows.acting.rehearsal import rehearse_turn
from slackwater.flows.ledger.decisions import decisions_of, placements_of, revisions_by_job
from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.open_job import launches_of
from slackwater.flows.ledger.reports import reports_of
from slackwater.optimization.belief.archetypes import ALL, NONE
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_reader, open_store

FIRST = pd.Timestamp("2025-03-03T00:00Z")
BEGIN = FIRST + pd.Timedelta(days=4)
TIMES = pd.date_range(FIRST, BEGIN + pd.Timedelta(hours=6), freq="10min")
KIND, SOURCE = "a3-highgpu-1g", "lab:counts"
EAST, WEST = (f"lab/{region}/{region}1/{KIND}" for region in ("east", "west"))
#: USD per instance-hour: spot in both markets, and on-demand.
SPOT = {EAST: 1.0, WEST: 1.5}
ON_DEMAND = 4.0
LOST, SEEN = pd.Timedelta(minutes=10), pd.Timedelta(minutes=12)


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    """Return a warehouse in which the cheaper market lost all 4 spot instances of a job within its first slot."""
    folder = tmp_path_factory.mktemp("markets")
    rng = np.random.default_rng(1)
    steady = np.where(rng.random(len(TIMES)) < 0.02, 0, 4)  # both are seen to lose spot now and then
    counts = {
        EAST: np.where(TIMES >= BEGIN + LOST, 0, np.where(TIMES >= BEGIN - STEP, 4, steady)),
        WEST: np.where(TIMES >= BEGIN - STEP, 4, np.roll(steady, 50)),
    }
    for market in (EAST, WEST):
        _, region, zone, kind = market.split("/")
        write_counts(folder / "data", region, zone, kind, TIMES, counts[market], source=SOURCE)
        write_prices(folder / "data", region, zone, kind, TIMES[::36], SPOT[market], ON_DEMAND, source=SOURCE)
    placed = make_request(
        "demo",
        at=BEGIN,
        market=None,
        source=None,
        markets=[f"lab/*/*/{KIND}"],
        n_min=1,
        n_max=4,
        deadline_in="4h",
        workload={"amount": 12.0, "unit": "instance_hours"},
    )
    path = folder / "w.duckdb"
    with open_store(path) as store:
        ingest(store, "tabular", folder / "data", imported_at=BEGIN, progress=lambda _: None)
        save_jobs(store, [placed], origin="user", at=BEGIN, step=STEP)
    rehearse_turn(path, SETTINGS, simulated(path, SETTINGS)[1], BEGIN)
    return path


@pytest.fixture(scope="module")
def passes(db):
    """Return the answers of `act` at the start of the slot, just before and just after the loss, and in the next slot."""
    found = [act_at(db, BEGIN + pd.Timedelta(minutes=m)) for m in (0, 9, 12, 29)]
    rehearse_turn(db, SETTINGS, simulated(db, SETTINGS)[1], BEGIN + STEP)
    return [*found, act_at(db, BEGIN + STEP)]


def test_the_rest_of_the_slot_runs_in_the_other_market(db, passes):
    first, before, after, last, following = (one["jobs"][0] for one in passes)
    assert (first["target"]["market"], first["spot"]) == (EAST, 4)
    assert before["spot"] == 4
    assert (after["target"]["market"], after["lost"]) == (WEST, 4)
    assert (after["on_demand"], after["spot"]) == (after["target"]["on_demand"], after["target"]["spot"])
    assert after["on_demand"] + after["spot"] > 0
    assert (last["on_demand"], last["spot"]) == (after["on_demand"], after["spot"])
    with open_reader(db) as store:
        (row,) = revisions_by_job(store, ["demo"])["demo"]
        decision, later = decisions_of(store, "demo")
    assert (decision["market"], row["market"], row["spot_left"]) == (EAST, WEST, 0)
    assert pd.Timestamp(row["lost_at"]) == BEGIN + LOST
    assert (later["moved_from"] or later["place"]) == WEST  # the next slot begins where the revision ran
    assert following["target"]["market"] == later["market"]


def test_the_simulated_cloud_and_the_ledger_have_the_same_bill(db, passes):
    run = simulated(db, SETTINGS)[1].run("demo", (BEGIN + STEP).to_pydatetime())
    assert passes[4]["jobs"][0]["paid_usd"] == pytest.approx(run.paid_usd - run.moving_usd, abs=0.005)
    assert run.lost_instances == passes[4]["jobs"][0]["lost"] == 4


def test_the_bill_has_both_markets(db, passes):
    """East is paid until its loss, west from the look that found it, as in the simulated cloud."""
    (row, *_) = call("bill", "demo", "--db", db, "--json").value["slots"]
    after = passes[2]["jobs"][0]
    west = after["spot"] * SPOT[WEST] + after["on_demand"] * ON_DEMAND
    hours = (LOST / STEP / 2, (STEP - SEEN) / STEP / 2)
    assert row["paid_usd"] == pytest.approx(hours[0] * 4 * SPOT[EAST] + hours[1] * west, abs=1e-4)
    run = simulated(db, SETTINGS)[1].run("demo", (BEGIN + STEP).to_pydatetime())
    assert row["paid_usd"] == pytest.approx(run.paid_usd - run.moving_usd, abs=1e-4)
    assert (row["market"], row["markets"]) == (WEST, f"{EAST}, {WEST}")
    assert (row["on_demand"], row["spot"]) == (after["on_demand"], after["spot"])


def test_evidence_is_of_the_market_where_it_happened(db, passes):
    with open_reader(db) as store:
        every = reports_of(store, "demo")
        reports = [one for one in every if one.launch]
        decided = placements_of(decisions_of(store, "demo")[:1])
        revisions = revisions_by_job(store, ["demo"])["demo"]
        start = find_job(store, "demo").start
    (lost,) = [one for one in reports if one.lost]
    assert (lost.market, lost.lost, lost.spot) == (EAST, 4, 0)
    assert any(
        one.progress is not None for one in every if one.reported_at == BEGIN
    )  # beside the turn's own report
    after = passes[2]["jobs"][0]
    within = [one for one in reports if one.reported_at < BEGIN + STEP]
    (newest,) = [one for one in within if one.reported_at > lost.reported_at]
    assert (newest.market, newest.spot, newest.on_demand) == (WEST, after["spot"], after["on_demand"])
    found = {
        market: launches_of(within, decided, market, start=start, step=STEP, revisions=revisions)
        for market in (EAST, WEST)
    }
    assert found[EAST][-1].state == NONE
    assert [one.state for one in found[WEST]] == ([ALL] if after["spot"] else [])


def test_a_report_without_a_market_is_of_the_revision(db, passes, tmp_path):
    copy = tmp_path / "w.duckdb"
    copy.write_bytes(db.read_bytes())
    at, after = BEGIN + pd.Timedelta(minutes=20), passes[2]["jobs"][0]
    words = ("--on-demand", after["on_demand"], "--spot", after["spot"], "--at", at.isoformat())
    done = call("job", "report", "demo", *words, "--db", copy, "--json").value
    assert done["warnings"] == []
    (row, *_) = call("bill", "demo", "--db", copy, "--json").value["slots"]
    assert row["paid_usd"] == pytest.approx(
        call("bill", "demo", "--db", db, "--json").value["slots"][0]["paid_usd"]
    )
