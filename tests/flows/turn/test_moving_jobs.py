"""A multi-market job in complete turns: its markets, its decisions, and the same results if a turn is repeated."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from command_kit import call, printed
from completeness_kit import completeness_of
from make import make_request, make_turn
from past_jobs import past_jobs
from published import keeps_to
from test_turn import AT, one_turn, small_settings

from slackwater.flows.config import Settings, read_settings
from slackwater.flows.following import choose_markets
from slackwater.flows.histories import read_history
from slackwater.flows.ledger.decisions import decisions_of, document
from slackwater.flows.ledger.fields import zone_of
from slackwater.flows.ledger.jobs import stored_jobs
from slackwater.flows.ledger.open_job import open_job
from slackwater.flows.places import places_of
from slackwater.flows.requests.fill import offers_of
from slackwater.flows.schemas.forms import schema
from slackwater.flows.show.formats import rows_of
from slackwater.flows.turn.context import run_id_of
from slackwater.flows.turn.pool import read_pool
from slackwater.flows.turn.report.command import decision_blocks
from slackwater.flows.turn.report.page import decisions_section, stored_report
from slackwater.flows.turn.report.panels import route_figure
from slackwater.flows.turn.stages import decide_jobs
from slackwater.flows.turn.work import find_work, panel_mates
from slackwater.flows.ui.jobs import job_data, job_values, jobs_data
from slackwater.flows.ui.reading import Reading
from slackwater.optimization.job.request import read_request
from slackwater.optimization.moving import MULTI_MARKET_POLICIES
from slackwater.optimization.replay.score import BEST_MARKET
from slackwater.optimization.selection.learned import Rounds
from slackwater.warehouse.errors import JobError, MarketError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")
H100 = "simulated/*/*/h100"
HOME = "simulated/west/west-a/h100"


def request(name="mover", *, market=None, at=AT, **changes):
    terms = {
        "deadline_in": "8h",
        "n_max": 4,
        "markets": [H100],
        "workload": {"amount": 14.0, "unit": "gpu_hours"},
        "moving": {"checkpoint_gb": 20, "bandwidth_gb_per_minute": 10},
    }
    return make_request(name, at=at, market=market, **{**terms, **changes})


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return small_settings(tmp_path_factory.mktemp("settings"), measured_origins=1)


@pytest.fixture(scope="module")
def settings(settings_file) -> Settings:
    return read_settings(settings_file)


@pytest.fixture(scope="module")
def warehouse(settings, tmp_path_factory):
    """Return a warehouse with the simulated market up to `AT`, after a turn."""
    db = tmp_path_factory.mktemp("moving") / "w.duckdb"
    one_turn(db, settings)
    return db


def test_a_market_is_no_mate_of_itself_at_another_time(warehouse, settings):
    """As in a plan on an old record, where each market is read at the end of its record and the turn at another time."""
    with open_store(warehouse) as store:
        turn = make_turn(store, AT, settings)
        followed = [one for one, _, _ in choose_markets(turn, most=settings.max_markets)]
        asked = [replace(followed[0], at=AT - STEP)]
        assert panel_mates(turn, asked) == panel_mates(turn, followed[:1])
        assert followed[0] not in panel_mates(turn, asked)


def keys(found):
    return [one.market.key for one in found]


def test_the_markets_of_a_job_are_those_that_fit_and_its_home_first(warehouse, settings):
    with open_store(warehouse) as store:
        turn = make_turn(store, AT, settings)
        free = keys(places_of(turn, request()))
        assert len(free) == 3
        assert all(key.endswith("/h100") for key in free)
        at_home = keys(places_of(turn, request(market=HOME)))
        assert at_home[0] == HOME
        assert set(at_home) == set(free)
        # The home market is included whatever the patterns are.
        elsewhere = request(market=HOME, markets=["simulated/east/*/h100"])
        assert keys(places_of(turn, elsewhere))[0] == HOME
        assert {one.at for one in places_of(turn, elsewhere)} == {AT}


def test_patterns_that_fit_nothing_or_two_types_are_refused(warehouse, settings):
    with open_store(warehouse) as store:
        turn = make_turn(store, AT, settings)
        with pytest.raises(MarketError, match="no market fits") as caught:
            places_of(turn, request(markets=["nowhere/*/*/*"]))
        assert "slackwater markets" in caught.value.remedy
        with pytest.raises(JobError, match="one throughput"):
            places_of(turn, request(markets=["simulated/*/*/*"]))


def test_the_markets_stay_those_of_the_jobs_first_slot(warehouse, settings):
    with open_store(warehouse) as store:
        before = places_of(make_turn(store, AT, settings), request())
        later = places_of(make_turn(store, AT + 5 * STEP, settings), request())
        assert keys(before) == keys(later)
        assert {one.at for one in later} == {AT + 5 * STEP}


def test_the_work_of_a_turn_has_all_its_markets_and_only_while_it_runs(warehouse, settings):
    asked = [request("free"), request("homed", market=HOME)]
    with open_store(warehouse) as store:
        work = find_work(make_turn(store, AT, settings), asked, scored=())
        assert set(work.places) == {"free", "homed"}
        assert set(keys(work.places["free"])) <= set(keys(work.markets))
        for one in work.places["free"]:
            assert {"free", "homed"} <= {job.request.name for job in work.jobs_on(one)}
        over = find_work(make_turn(store, AT + 16 * STEP, settings), (), scored=())
        assert not [job for job, _ in over.running if job.request.may_move]
        # Ended jobs are scored over the same markets, with and without a home.
        assert {job.request.name for job, _ in over.ended if job.request.may_move} == {"free", "homed"}
        assert {name: keys(found) for name, found in over.places.items()} == {
            name: keys(found) for name, found in work.places.items()
        }


def test_a_job_without_times_begins_where_the_record_of_its_markets_ends(warehouse, settings, tmp_path):
    """A turn days after the last observation, at the end of each record: given times hold, jobs not yet begun are reported."""
    db = shutil.copy(warehouse, tmp_path / "w.duckdb")
    late = AT + pd.Timedelta("10D")
    terms = {"start": None, "deadline": None, "deadline_in": "8h"}
    asked = {
        "free": request("free").model_copy(update=terms),
        "homed": request("homed", market=HOME).model_copy(update=terms),
        "still": request("still", market=HOME, markets=[], moving=None).model_copy(update=terms),
        "none": request("none", market="no/such/market/x", markets=[], moving=None).model_copy(update=terms),
        "later": request("later", at=late),
        "later-still": request("later-still", market=HOME, markets=[], moving=None, at=late),
    }
    with open_store(db) as store:
        turn = replace(make_turn(store, late, settings), own_end=True)
        work = find_work(turn, list(asked.values()), scored=())
        running = {job.request.name: (job, followed) for job, followed in work.running}
        assert {"free", "homed", "still"} <= set(running)
        for name in ("free", "homed", "still"):
            job, followed = running[name]
            assert job.start == followed.at < late
            assert job.deadline - job.start == pd.Timedelta("8h")
        for name in ("later", "later-still"):
            assert name not in running
            [said] = [text for text in work.left_out if f"job {name} " in text]
            assert "the record of simulated/" in said
            assert "give it an earlier start" in said
        assert any("job none is left out" in text for text in work.left_out)
        # Repeating the turn with the same file gives the same jobs.
        again = find_work(turn, list(asked.values()), scored=())
        assert [job.request for job, _ in again.running] == [job.request for job, _ in work.running]


@pytest.fixture(scope="module")
def three_turns(settings, tmp_path_factory):
    """Return a warehouse after three turns: two multi-market jobs, the second with a home market, and a single-market job."""
    db = tmp_path_factory.mktemp("turns") / "w.duckdb"
    asked = [request("free"), request("homed", market=HOME), *past_jobs(1, before=AT)]
    for k in range(3):
        one_turn(db, settings, at=AT + k * STEP, requests=asked if not k else ())
    return db


def test_jobs_that_may_move_stand_on_the_completeness_map_where_they_were_told_to_be(
    three_turns, settings, tmp_path
):
    db = shutil.copy(three_turns, tmp_path / "w.duckdb")
    at = AT + 4 * STEP

    def missed(store):
        """Return market and reason by slot for the decisions missing in the completeness map."""
        frame = completeness_of(store, settings, at=at).frame
        own = frame[(frame["stage"] == "allocate") & (frame["state"] == "missing")]
        assert len(own) == own["slot"].nunique()
        return {row["slot"]: (row["market"], row["reason"]) for row in rows_of(own)}

    with open_store(db) as store:
        told = {job: decisions_of(store, job)[-1]["place"] for job in ("free", "homed")}
        assert len({told["free"], told["homed"]}) == 1
        both = "no decision for free; no decision for homed"
        assert missed(store) == {AT + 3 * STEP: (told["free"], both)}
        # Before its first decision (here after the end of the map) a job without a home counts for the first of its markets.
        store.execute(
            "UPDATE decisions SET slot = slot + INTERVAL 3 HOURS, details = json_merge_patch(details, ?) "
            "WHERE job IN ('free', 'homed')",
            [json.dumps({"market": HOME})],
        )
        store.execute("DELETE FROM runs WHERE stage = 'allocate'")
        first = places_of(make_turn(store, at, settings), request("free"))[0].market.key
        assert first != HOME
        found = completeness_of(store, settings, at=at).frame
        found = found[(found["stage"] == "allocate") & (found["state"] == "missing")]
        lacking = {(row["market"], row["reason"]) for row in rows_of(found) if "past" not in row["reason"]}
        assert lacking == {(first, "no decision for free"), (HOME, "no decision for homed")}


def test_every_slot_is_decided_with_a_place_and_progress_goes_on_from_there(three_turns):
    with open_store(three_turns) as store:
        for name in ("free", "homed"):
            rows = decisions_of(store, name)
            assert [pd.Timestamp(row["slot"]) for row in rows] == [AT + k * STEP for k in range(3)]
            place = None if name == "free" else HOME
            for row in rows:
                assert row["policy"] == "MeanField"
                held = row["on_demand"] + row["spot"]
                moved = bool(held) and place is not None and row["market"] != place
                assert row["moved_from"] == (place if moved else None)
                assert row["move_usd"] >= 0
                assert row["place"] == (row["market"] if held else place)
                place = row["place"]
                jsonschema.Draft202012Validator(schema("decision")).validate(document(row))
            assert rows[0]["progress"] == 0
            # The allocations are read back from the rows: a slot with instances makes progress.
            for before, after in pairwise(rows):
                gained = after["progress"] - before["progress"]
                assert (gained > 0) == (before["on_demand"] + before["spot"] > 0)
        plain = [row for row in decisions_of(store, "free") if row["probe_next"] is not None]
        assert not plain  # every market was observed


def test_jobs_of_one_market_say_nothing_of_moves(warehouse):
    with open_store(warehouse) as store:
        names = [name for (name,) in store.execute("SELECT DISTINCT job FROM decisions")]
        for row in (row for name in names for row in decisions_of(store, name)):
            assert [row[key] for key in ("place", "moved_from", "move_usd", "probe_next")] == [None] * 4


@pytest.fixture(scope="module")
def ended(three_turns, settings, tmp_path_factory):
    """Return a copy after a turn in which both multi-market jobs have ended and another is added, and the result of that turn."""
    db = tmp_path_factory.mktemp("ended") / "w.duckdb"
    shutil.copy(three_turns, db)
    at = AT + 16 * STEP
    page = db.with_name("report.html")
    return db, one_turn(db, settings, at=at, requests=[request("late", at=at)], page=page)


def test_ended_jobs_are_scored_by_every_mover_over_all_their_markets(ended):
    with open_store(ended[0]) as store:
        rows = {
            name: rows_of(read_rows(store, "outcomes", where={"job": name})) for name in ("free", "homed")
        }
        weights = read_rows(store, "weights", where={"job": ["free", "homed"]})
    movers = set(MULTI_MARKET_POLICIES)
    for name, own in rows.items():
        assert {row["policy"] for row in own} == movers | {BEST_MARKET}
        for row in own:
            details, held = json.loads(row["details"]), json.loads(row["allocations"])
            assert len(details["places"]) == len(held)
            assert all(
                (place is None) == (not sum(one)) for place, one in zip(details["places"], held, strict=True)
            )
            came = [HOME] if name == "homed" else []
            came += [place for place in details["places"] if place is not None]
            assert details["moves"] == sum(a != b for a, b in pairwise(came))
            assert details["moving_usd"] >= 0
        # A job that starts at its home cannot reach a higher utility than a job without a home.
        assert rows["homed"][0]["hindsight_low_usd"] <= rows["free"][0]["hindsight_low_usd"] + 1e-6
    # Bounds are not learned from, and each job gives a single round.
    assert set(weights["policy"]) == movers
    assert weights.groupby("job")["round"].nunique().tolist() == [1, 1]
    assert weights["round"].nunique() == 2


def test_movers_are_a_group_of_their_own_on_the_leaderboard(ended, settings, settings_file):
    db, found = ended
    answer = found.answer()
    keeps_to("run", answer)
    assert {row["policy"] for row in answer["movers"]} == set(MULTI_MARKET_POLICIES) | {BEST_MARKET}
    assert sum(row["weight"] for row in answer["movers"]) == pytest.approx(1, abs=1e-4)
    assert sum(row["weight"] for row in answer["leaderboard"]) == pytest.approx(1, abs=1e-4)
    assert not {row["policy"] for row in answer["movers"]} & {row["policy"] for row in answer["leaderboard"]}
    assert any(note.startswith("Best multi-market policy over 2 ended") for note in found.notes)
    with open_store(db) as store:
        pool = read_pool(make_turn(store, AT, settings))
        assert not set(pool.rounds.jobs) & {"free", "homed"}
        assert set(pool.movers.rounds.jobs) == {"free", "homed"}
        assert {"free", "homed"} <= pool.settled_jobs()
    where = ("--db", db, "--settings", settings_file)
    told = call("leaderboard", *where)
    assert "Multi-market policies over ended multi-market jobs" in told.out
    assert call("leaderboard", *where, "--json").value["movers"] == answer["movers"]
    shown = call("job", "show", "homed", *where)
    assert "cost of moves" in shown.out
    row = call("job", "show", "homed", *where, "--json").value["outcomes"][0]
    assert {"moves", "moving_usd", "places"} < set(row)
    page = found.page.read_text()
    assert "Multi-market policies over ended multi-market jobs" in page


def test_the_page_draws_where_a_job_was_among_its_markets(ended, settings):
    db, found = ended
    with open_store(db) as store:
        again = stored_report(store, settings, at=AT + 2 * STEP)
        rows = decisions_of(store, "homed")[:3]
    assert [route.job for route in again.routes] == ["free", "homed"]
    route = again.routes[1]
    assert [row["slot"] for row in route.decided] == [row["slot"] for row in rows]
    assert len(route.panels) == 3
    figure = route_figure(route)
    data = figure.specifications()[0]["datasets"]
    assert {row["name"] for row in data["rows"]} == {zone_of(panel.title) for panel in route.panels}
    assert figure.captions[0].startswith("3 slots, ")
    # The strips show availability, the bars the instances, the line the market from slot to slot.
    assert all(row["told"] == "not observed" or " at " in row["told"] for row in data["rows"])
    held = [row for row in rows if row["on_demand"] + row["spot"]]
    assert [row["name"] for row in data["held"]] == [zone_of(row["market"]) for row in held]
    assert [row["planned"] for row in data["held"]][-1] == (held[-1] is rows[-1])
    assert [row["name"] for row in data["path"] if row["x"] == data["path"][-1]["x"]][-1] == zone_of(
        rows[-1]["place"]
    )
    page = found.page.read_text()
    assert '<section id="routes"' in page
    assert "Markets of multi-market jobs" in page


def test_the_mover_that_leads_decides_the_next_job(ended, settings, settings_file, tmp_path):
    db = shutil.copy(ended[0], tmp_path / "w.duckdb")
    at = AT + 16 * STEP
    with open_store(db) as store:
        # In the turn that scored the first two jobs, nothing was known yet about multi-market policies.
        row = decisions_of(store, "late")[-1]
        assert row["policy"] == "MeanField"
        assert "a multi-market policy, because" in row["chosen_because"]
        pool = read_pool(make_turn(store, AT, settings))
        assert pool.deciders([at])[0].among_markets[1] == ""
        _, why = pool.deciders([at + STEP])[0].among_markets
        assert why.startswith("leads after 2 jobs")
        # MeanField leads in the prior measurements; observed jobs on which another policy is far better put that policy ahead.
        for rows, leader in ((0, "MeanField"), (60, "Greedy")):
            table = np.where(np.array(pool.movers.names) == "Greedy", 0.9, 0.1)
            rounds = Rounds(
                jobs=tuple(map(str, range(rows))),
                names=pool.movers.names,
                utilities=np.tile(table, (rows, 1)),
                known_us=np.full((rows, len(table)), 1),
            )
            assert replace(pool.movers, rounds=rounds).deciding([at])[0][0].name == leader
        store.execute(
            "UPDATE weights SET utility = CASE policy WHEN 'Greedy' THEN 1.0 ELSE 0.0 END WHERE job = 'free'"
        )
        led = read_pool(make_turn(store, AT, settings)).deciders([at + STEP])[0].among_markets[0].name
    assert led == "Greedy"
    one_turn(db, settings, at=at + STEP)
    with open_store(db) as store:
        row = decisions_of(store, "late")[-1]
    assert row["policy"] == "Greedy"
    assert row["chosen_because"].startswith("leads after 2 jobs")
    planned = call(
        "plan", "late", "--db", db, "--settings", settings_file, "--at", (at + STEP).isoformat(), "--json"
    )
    assert planned.value["policy"] == "Greedy"
    assert planned.value["reason"] == row["reason"]


@pytest.mark.slow  # the quick form: competing jobs, in test_competing_jobs.py
def test_slots_decided_together_are_decided_as_they_were_one_by_one(three_turns, settings, tmp_path):
    db = tmp_path / "w.duckdb"
    shutil.copy(three_turns, db)
    with open_store(db) as store:
        live = {name: decisions_of(store, name) for name in ("free", "homed")}
        store.execute("DELETE FROM decisions WHERE job IN ('free', 'homed') AND slot > ?", [AT])
        turns = [make_turn(store, AT + k * STEP, settings) for k in (1, 2)]
        works = [find_work(turn, (), scored=()) for turn in turns]
        made = decide_jobs(turns, works, read_pool(turns[-1]))
        for name, rows in live.items():
            assert [row for own in made for row in own.rows if row["job"] == name] == rows[1:]
            assert decisions_of(store, name) == rows


FILE = """
name = "{name}"
{home}
markets = ["simulated/*/*/h100"]
deadline_in = "8h"
n_max = 4
workload = {{ amount = 14.0, unit = "gpu_hours" }}
throughput = {{ form = "linear" }}
checkpoint = {{ resumable = true, overhead_minutes = 3 }}
moving = {{ minutes = 2, usd = 1.5 }}
"""


@pytest.mark.slow  # the quick form: a file without markets and a stored job that is planned as decided, both below
def test_a_file_is_planned_and_added_without_a_home_and_with_one(three_turns, settings_file, tmp_path):
    db = shutil.copy(three_turns, tmp_path / "w.duckdb")
    where = ("--db", db, "--settings", settings_file, "--at", AT.isoformat(), "--json")
    for name, home in (("roams", ""), ("settled", f'market = "{HOME}"')):
        file = tmp_path / f"{name}.toml"
        file.write_text(FILE.format(name=name, home=home))
        planned = call("plan", file, *where).value
        assert planned["policy"] == "MeanField"
        assert planned["market"].endswith("/h100")
        added = call("job", "add", file, *where).value
        assert len(added["markets"]) == 3
        assert added["market"] == (HOME if home else None)
        assert added["move_usd_most"] == 1.5
        # The stored job gives the same plan.
        assert call("plan", name, *where).value == planned
    listed = {row["job"]: row["market"] for row in call("job", "list", "--db", db, "--json").value["jobs"]}
    assert listed["settled"] == HOME
    assert listed["roams"] == H100
    pinned = call("plan", "roams", *where, "--policy", "Greedy").value
    assert (pinned["policy"], pinned["chosen_because"]) == ("Greedy", "asked for")
    refused = call("plan", "roams", *where, "--policy", "UP")
    assert refused.code == 2
    assert "policy 'UP' of a job that may run in several markets" in refused.err
    assert "'MeanField', 'Greedy'" in refused.err


def test_markets_are_proposed_for_a_file_that_names_none(three_turns, settings, settings_file, tmp_path):
    db = shutil.copy(three_turns, tmp_path / "w.duckdb")
    where = ("--db", db, "--settings", settings_file, "--at", AT.isoformat())
    file = tmp_path / "any.toml"
    text = FILE.format(name="any", home="").replace("moving = { minutes = 2, usd = 1.5 }", "")
    named = 'markets = ["simulated/*/*/h100"]'
    file.write_text(text.replace(named, ""))
    # Several instance types are followed and the file names none: the type that was cheapest on the last day is
    # proposed, ranked as by `fill`; the message names the other types and how to choose them.
    added = call("job", "add", file, *where, "--name", "cheapest", "--json").value
    told = [call("plan", file, *where).said, added["proposed"]]
    with open_store(db) as store:
        turn = make_turn(store, AT, settings)
        lately = offers_of(turn, named=(), gpu_model=None, left_out=[])
    cheapest = min(lately, key=lambda one: (one.screened_usd(4), one.key))
    types = {one.market.instance_type for one in lately} - {cheapest.market.instance_type}
    assert len(types) == 2
    for said in told:
        assert f"of {cheapest.market.instance_type}, of 3 instance types the cheapest" in said
        assert cheapest.key in said
        assert "--market MARKET" in said
        assert all(f"{name} (" in said.split("; else ")[1] for name in types)
        assert any(f'as markets = ["simulated/*/*/{name}"]' in said for name in types)
    assert "names no market" in call("markets", "--for", file, *where).said
    assert "names no market" in call("markets", "--for", file, *where, "--json").value["proposed"]
    planned = call("plan", file, *where, "--market", HOME)
    assert "names no market" not in planned.said
    assert planned.code == 0
    # No followed market matches.
    file.write_text(text.replace(named, 'regions = ["nowhere"]'))
    refused = call("plan", file, *where)
    assert refused.code == 2
    assert "none is followed that fits it" in refused.err
    file.write_text(text.replace(named, 'gpu_type = "H100"'))
    planned = call("plan", file, *where)
    assert "may move among the 3 markets of h100" in planned.said
    assert "may move among the 3 markets of h100" in call("replay", "--job", file, *where).said
    added = call("job", "add", file, *where, "--json").value
    assert 'markets = ["simulated/*/*/h100"]' in added["proposed"]
    ranked = added["ranked"]
    assert [row["dearer_usd"] for row in ranked] == sorted(row["dearer_usd"] for row in ranked)
    assert added["markets"] == [f"{row['market']}@{row['source']}" for row in ranked]
    assert all(row["reason"] for row in ranked)
    assert "reason" in call("job", "add", file, *where).out
    # A turn with this file uses the same markets and reports it.
    with open_store(db) as store:
        asked = (
            read_request(file)
            .with_place(at=AT, market=None, source=None)
            .model_copy(update={"name": "given"})
        )
        work = find_work(make_turn(store, AT, settings), [asked], scored=())
        assert keys(work.places["given"]) == keys(work.places["any"])
        assert any("job given names no market" in text for text in work.left_out)


def test_a_stored_job_is_planned_as_the_turn_decided_it(three_turns, settings_file):
    at = AT + 2 * STEP
    where = ("--db", three_turns, "--settings", settings_file, "--at", at.isoformat(), "--json")
    told = 0
    for name in ("free", "homed"):
        with open_store(three_turns) as store:
            row = decisions_of(store, name)[-1]
        planned = call("plan", name, *where).value
        assert {key: planned[key] for key in row} == row
        assert planned["issued_at"] == at.isoformat()
        alone = call("plan", name, *where, "--alone").value
        assert (alone["alone"], alone["issued_at"]) == (True, None)
        # Only joint planning knows how much spot is left to jobs with less slack in later slots.
        told += "jobs with less slack need" in row["reason"]
        assert "jobs with less slack need" not in alone["reason"]
    assert told == 1


def test_a_job_that_is_nowhere_yet_is_shown_in_none_of_its_markets(warehouse, three_turns, settings):
    with open_store(warehouse) as store:
        turn, asked = make_turn(store, AT, settings), request()
        histories = [
            replace(read_history(store, one, settings=settings), assumptions=(told, "no clock"))
            for one, told in zip(
                places_of(turn, asked), ("price of a", "price of b", "price of c"), strict=True
            )
        ]
    free = open_job(asked, histories, decided={})
    assert free.in_market(1).history.assumptions == ("price of b", "no clock")
    seen = free.in_market(len(histories)).history
    assert (seen.market, seen.assumptions) == (
        histories[0].market,
        ("price of a", "no clock", "price of b", "price of c"),
    )
    with open_store(three_turns) as store:
        (row,) = [one for one in decisions_of(store, "free") if pd.Timestamp(one["slot"]) == AT]
    waits = row | {"place": None, "on_demand": 0, "spot": 0, "synthetic": ["no price"]}
    for blocks in (decision_blocks("Decisions", [waits]), decisions_section([waits]).blocks):
        said = printed(blocks)
        assert "nowhere yet" in said
        assert waits["market"] not in said
    assert "no price (markets of free)" in printed(decision_blocks("Decisions", [waits]))
    held = waits | {"place": waits["market"]}
    assert waits["market"] in printed(decision_blocks("Decisions", [held]))


def test_its_page_stands_where_its_decisions_say(three_turns, settings):
    at = AT + 2 * STEP
    with open_store(three_turns) as store:
        reading = Reading(store=store, settings=settings, db=three_turns, now=at, at=at, run=run_id_of(at))
        rows = {row["job"]: row for row in jobs_data(reading)["jobs"]}
        for name in ("free", "homed"):
            newest = decisions_of(store, name)[-1]
            assert rows[name]["problem"] == ""
            assert rows[name]["market"] == newest["market"]
            assert rows[name]["share_done"] == pytest.approx(newest["progress_share"], abs=1e-6)
            data = job_data(reading, name)
            assert len(data["slots"]) == 3
            assert job_values(reading, data)["decided"].rows


@pytest.mark.slow  # the quick form: a report that says where it ran, below
def test_reports_count_and_what_was_predicted_is_not_claimed(three_turns, settings_file, tmp_path):
    db = shutil.copy(three_turns, tmp_path / "w.duckdb")
    where = ("--db", db, "--settings", settings_file, "--json")
    at = AT + 3 * STEP
    told = call("job", "report", "homed", "--progress", "5", "--at", at.isoformat(), *where)
    assert told.value["progress"] == 5.0
    planned = call("plan", "homed", "--at", at.isoformat(), *where).value
    assert (planned["progress"], planned["progress_from"]) == (5.0, "reported")
    shown = call("job", "show", "homed", *where).value
    assert shown["reports"][0]["predicted"] is None
    assert json.dumps(shown["decisions"])


def test_a_report_says_where_it_ran_and_the_next_decision_starts_there(three_turns, settings_file, tmp_path):
    db = shutil.copy(three_turns, tmp_path / "w.duckdb")
    where, at = ("--db", db, "--settings", settings_file), AT + 3 * STEP
    with open_store(db) as store:
        before = decisions_of(store, "homed")[-1]["place"]
    planned = call("plan", "homed", "--at", at.isoformat(), *where, "--json").value
    other = "simulated/east/east-a/h100" if before != "simulated/east/east-a/h100" else HOME
    said = ("job", "report", "homed", "--at", at.isoformat(), *where)
    told = call(*said, "--market", other, "--spot", "2", "--json").value
    assert told["market"] == other
    assert any(other in text for text in told["warnings"]) == (before is not None)
    # The job stays in the reported market, or its move is counted from there.
    again = call("plan", "homed", "--at", at.isoformat(), *where, "--json").value
    held = again["on_demand"] + again["spot"]
    assert again["held_before"] == 2
    if held and again["market"] != other:
        assert again["moved_from"] == other
    else:
        assert (again["place"], again["moved_from"]) == (other, None)
    assert planned["moved_from"] != other
    shown = call("job", "show", "homed", *where)
    assert other in shown.out
    # Refused: a market outside the job's patterns, and a market for a single-market job.
    wrong = call(*said, "--market", "simulated/west/west-b/v100")
    assert wrong.code == 2
    assert "does not run in simulated/west/west-b/v100" in wrong.err
    assert HOME in wrong.err
    assert call(*said, "--market", "west-a").code == 2
    with open_store(db) as store:
        plain = next(job for job in stored_jobs(store) if not job.request.may_move)
    when = plain.start.isoformat()
    alone = call("job", "report", plain.request.name, "--at", when, "--market", other, *where)
    assert alone.code == 2
    assert f"it runs in {plain.request.market} only" in alone.err


@pytest.mark.slow  # the quick form: a job in one market, in test_job_change.py
def test_its_deadline_changes_and_what_it_has_done_where_it_is_goes_on(three_turns, settings_file, tmp_path):
    db, at = shutil.copy(three_turns, tmp_path / "w.duckdb"), AT + 3 * STEP
    where = ("--db", db, "--settings", settings_file, "--json")
    when = ("--at", at.isoformat(), *where)
    for name in ("free", "homed"):
        value = call("job", "change", name, "--deadline-in", "3h", *when).value
        assert (value["changed"], value["shortfall"], value["notes"][1:]) == (True, None, [])
        planned = call("plan", name, *when).value
        assert pd.Timestamp(planned["deadline"]) == at + 6 * STEP
        with open_store(db) as store:
            newest = decisions_of(store, name)[-1]
        held = newest["on_demand"] + newest["spot"]
        assert (planned["progress"] > newest["progress"]) == (held > 0)
    assert call("job", "change", "free", "--deadline-in", "3h", *when).value["changed"] is False
    short = call("job", "change", "free", "--deadline-in", "30min", *when).value
    assert short["shortfall"].startswith("cannot be done by")
    earlier = call("plan", "free", "--at", (at - STEP).isoformat(), *where).value
    assert pd.Timestamp(earlier["deadline"]) == AT + 16 * STEP
    file = tmp_path / "free.toml"
    file.write_text(
        'name = "free"\ndeadline_in = "9h"\nn_max = 4\nmarkets = ["simulated/east/*/h100"]\nthroughput = { form = "linear" }\n'
        'workload = { amount = 14, unit = "gpu_hours" }\ncheckpoint = { resumable = true, overhead_minutes = 3 }\n'
        "moving = { checkpoint_gb = 20, bandwidth_gb_per_minute = 10 }\n"
    )
    refused = call("job", "change", file, "--at", at.isoformat(), *where)
    assert refused.code == 2
    assert "markets = ['simulated/east/*/h100'], where the job has ['simulated/*/*/h100']" in refused.err


def test_fleet_plan_decides_it_with_the_other_jobs(three_turns, settings_file):
    where = ("--db", three_turns, "--settings", settings_file, "--at", (AT + 2 * STEP).isoformat(), "--json")
    value = call("fleet", "plan", *where).value
    assert {"free", "homed"} <= {row["job"] for row in value["decisions"]}


def test_the_example_is_a_job_that_may_move():
    asked = read_request(Path(__file__).parents[3] / "examples" / "anywhere.toml")
    assert asked.may_move
    assert asked.moving.takes_minutes == 4.0
