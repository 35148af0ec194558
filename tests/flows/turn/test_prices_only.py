"""Prices without counts, nodes of 8 GPUs: the deadline is met even if all spot is lost; cost and risk assume measured markets."""

import json
import re
import shutil

import pandas as pd
import pytest
from command_kit import call, printed
from forms_kit import quick_first
from test_turn import one_turn, small_settings
from test_units_commands import END, JOB, history

from slackwater.flows.config import read_settings
from slackwater.flows.ledger.headline import decisions_summary
from slackwater.flows.plans.command import replay_blocks
from slackwater.flows.show.formats import dollars, percent
from slackwater.flows.turn.report.command import decided_blocks
from slackwater.flows.ui.markets import market_data, market_figure, market_view
from slackwater.flows.ui.pages import glance_data
from slackwater.flows.ui.reading import Reading
from slackwater.optimization.job.request import read_request
from slackwater.warehouse.store.connection import open_reader

ZONES = "aws/us-east-1/*/p4d.24xlarge"
MARKET = "aws/us-east-1/us-east-1a/p4d.24xlarge"
AT = END.isoformat()


@pytest.fixture(autouse=True)
def light_planner(monkeypatch):
    """The default forecaster is fitted anew for every plan; these tests are not about forecasts."""
    monkeypatch.setenv("SLACKWATER_PLANNER", "last_value")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a warehouse with prices of p4d.24xlarge in three zones, a job in a single zone and a job that may use all three."""
    folder = tmp_path_factory.mktemp("prices")
    (folder / "p4d.json").write_text(history("p4d.24xlarge"))
    form = {"amount": 320, "unit": "gpu_hours", "sizes": "gpus_max = 64", "per": ', per = "gpu"'}
    one = JOB.format(name="one", market="aws/us-east-1/us-east-1a/p4d.24xlarge", **form)
    (folder / "one.toml").write_text(one)
    several = re.sub(r"market = .*", f'markets = ["{ZONES}"]', one).replace('"one"', '"several"')
    (folder / "several.toml").write_text(several)
    assert call("ingest", "aws", folder / "p4d.json", "--db", folder / "w.duckdb").code == 0
    return folder


@pytest.mark.parametrize("name", ["one", "several"])
def test_a_plan_guards_the_deadline_and_the_cost_is_that_of_measured_markets(folder, name):
    asked = ("plan", folder / f"{name}.toml", "--db", folder / "w.duckdb", "--at", AT)
    row = json.loads(call(*asked, "--json").out)
    assert (row["late_probability"], row["guarded"]) == (0.0, True)
    assert row["assuming"].startswith(
        "decisions are followed, the job saves at the notice of a loss and on-demand is granted at once, "
        "boots in 2 min and restarts in"
    )
    assert "never lost" not in row["assuming"]
    assert row["saved_usd"] == pytest.approx(row["on_demand_only_usd"] - row["expected_cost_usd"], abs=1e-3)
    basis = "availability not observed, assumed from 32 measured markets"
    assert (row["evidence"], row["evidence_basis"]) == (0, basis)
    assert row["availability_note"].endswith(f": {basis}")
    low, high = row["expected_cost_p10_usd"], row["expected_cost_p90_usd"]
    assert 465 < low < 480  # 40 instance-hours at about 11.8 USD
    assert low < row["expected_cost_usd"] < high
    assert row["on_demand_only_usd"] > 800
    text = " ".join(call(*asked).out.split())
    told = (
        "deadline 2026-11-27 06:00 UTC. Risk of missing it: 0 % even if all spot is lost, assuming that "
        "decisions are followed, the job saves at the notice of a loss and on-demand is granted"
    )
    assert told in text
    answer = r"Cost about \$(\d+) \(\$(\d+) to \$(\d+) in 8 of 10 cases\), \d\d % less than on-demand only, \$\d+; "
    found = re.search(answer + basis, text)
    assert found is not None, text
    expected = [row["expected_cost_usd"], low, high]
    assert [int(usd) for usd in found.groups()] == pytest.approx(expected, abs=0.6)
    rest = text.replace("0 % even if all spot is lost, assuming that", "").replace("(0 %)", "")
    assert not re.search(r"(?<!\d)0 %(?! *\),)", rest), text


@pytest.mark.parametrize("budget", [0.5, 60.0, 200.0])
def test_a_budget_below_on_demand_says_the_same_in_every_sentence(folder, tmp_path, budget):
    """Down to one that does not pay for a slot of one instance, where no work is done."""
    (tmp_path / "job.toml").write_text(f"budget_usd = {budget}\n" + (folder / "one.toml").read_text())
    asked = ("plan", tmp_path / "job.toml", "--db", folder / "w.duckdb", "--at", AT)
    row = json.loads(call(*asked, "--json").out)
    assert row["over_budget_probability"] == row["given_up_probability"] == row["late_probability"] > 0.0
    assert row["expected_cost_p90_usd"] <= budget + 1e-3
    assert (row["spot"] == 0) == (budget < 1.0)
    text = call(*asked).said
    assert text.count(percent(row["late_probability"])) >= 2
    assert "raise the budget" in text


@pytest.mark.parametrize("change", ["max_spot_usd = 0.05\n", "resumable = false"])
def test_a_plan_that_never_uses_spot_says_nothing_of_its_availability(folder, tmp_path, change):
    text = (folder / "one.toml").read_text()
    changed = text.replace("resumable = true", change) if "resumable" in change else change + text
    (tmp_path / "job.toml").write_text(changed)
    asked = ("plan", tmp_path / "job.toml", "--db", folder / "w.duckdb", "--at", AT)
    row = json.loads(call(*asked, "--json").out)
    assert (row["spot"], row["availability_note"]) == (0, None)
    assert row["expected_cost_usd"] >= row["on_demand_only_usd"] - 0.01
    text = " ".join(call(*asked).out.split())
    assert "not observed" not in text
    assert "saves" not in row["assuming"]


@pytest.mark.parametrize("deadline", quick_first(["42h", "20h", "90h"]))
def test_a_start_is_not_put_off_for_a_saving_that_is_noise(folder, tmp_path, deadline):
    text = (folder / "several.toml").read_text()
    (tmp_path / "job.toml").write_text(re.sub(r'deadline_in = "[^"]*"', f'deadline_in = "{deadline}"', text))
    row = call(
        "plan", tmp_path / "job.toml", "--db", folder / "w.duckdb", "--at", AT, "--alone", "--json"
    ).value
    assert row["market"] == MARKET  # the cheapest of the three
    assert (row["on_demand"], row["spot"] > 0) == (0, True)


def test_the_zones_are_compared_by_price_and_their_chance_of_spot_is_assumed(folder):
    found = call(
        "markets", "--for", folder / "several.toml", "--db", folder / "w.duckdb", "--at", AT, "--json"
    )
    rows = json.loads(found.out)["markets"]
    assert [row["market"].split("/")[2] for row in rows] == ["us-east-1a", "us-east-1b", "us-east-1c"]
    assert [row["price_usd"] for row in rows] == sorted(row["price_usd"] for row in rows)
    assert {row["available"] for row in rows} == {None}
    assert all(0.5 < row["chance_of_spot"] < 1.0 for row in rows)
    assert all(
        row["reason"].endswith("; availability not observed, assumed from 32 measured markets")
        for row in rows
    )


def test_a_forecast_states_prices_and_no_counts(folder, tmp_path):
    (tmp_path / "w.duckdb").write_bytes((folder / "w.duckdb").read_bytes())
    asked = (
        "forecast",
        "--market",
        MARKET,
        "--model",
        "last_value",
        "--db",
        tmp_path / "w.duckdb",
        "--at",
        AT,
    )
    [row] = call(*asked, "--json").value["forecasts"]
    assert row["price"]
    assert row["count"] == []
    text = call(*asked).said
    assert "availability not observed, so no count forecast" in text
    assert "80 % of counts" not in text


def test_a_turn_its_report_and_the_overview_guard_the_deadline(folder, tmp_path):
    (tmp_path / "w.duckdb").write_bytes((folder / "w.duckdb").read_bytes())
    settings = read_settings(small_settings(tmp_path, measured_origins=0))
    at = pd.Timestamp(END)
    result = one_turn(
        tmp_path / "w.duckdb",
        settings,
        at=at,
        requests=[read_request(folder / "one.toml")],
        page=tmp_path / "report.html",
    )
    rows = result.decisions
    assert [(row["late_probability"], row["guarded"]) for row in rows] == [(0.0, True)]
    summary = decisions_summary(rows)
    assert summary.count("Expected cost, from start to end:") == 1
    written = (tmp_path / "report.html").read_text()
    assert "AVAILABILITY ASSUMED" in written
    assert "Cost about $" in written  # before the table
    assert written.index("Cost about $") < written.index("<table")
    # Unobserved availability is not drawn.
    assert "availability not observed; past" in written
    assert "instances available" not in written
    with open_reader(tmp_path / "w.duckdb") as store:
        reading = Reading(store=store, settings=settings, db=tmp_path / "w.duckdb", now=at, at=at, run=None)
        data = glance_data(reading)
        view = market_view(reading, MARKET)
        page = market_data(reading, view)
    assert {row["available"] for row in page["past"]} == {None}
    assert len(market_figure(page, view).specifications()) == 1
    texts = [finding["text"] for finding in data["findings"]]
    assert not any("risk of missing its deadline" in text for text in texts), texts


def test_without_a_guard_the_risk_on_prices_alone_is_that_of_measured_markets(folder):
    """A job that may be given up is not guarded in every state."""
    text = (folder / "one.toml").read_text()
    (folder / "soft.toml").write_text("value_usd = 500\n" + text.replace('"one"', '"soft"'))
    asked = ("plan", folder / "soft.toml", "--db", folder / "w.duckdb", "--at", AT)
    row = json.loads(call(*asked, "--json").out)
    assert (0.05 < row["late_probability"] < 0.8, row["guarded"]) == (True, False)
    told = " ".join(call(*asked).out.split())
    assert f"deadline 2026-11-27 06:00 UTC. Risk of missing it: {row['late_probability'] * 100:.0f} %" in told
    assert "availability not observed, assumed from 32 measured markets" in told


def test_a_job_that_is_not_worth_its_cost_says_so_first(folder):
    text = (folder / "one.toml").read_text()
    (folder / "cheap.toml").write_text("value_usd = 60\n" + text.replace('"one"', '"cheap"'))
    asked = ("plan", folder / "cheap.toml", "--db", folder / "w.duckdb", "--at", AT)
    row = json.loads(call(*asked, "--json").out)
    alone = dollars(row["on_demand_only_usd"])
    begins = (
        f"not worth running on now: finishing by the deadline is worth $60.00 and costs ${alone} on demand;"
    )
    assert row["worth_note"].startswith(begins)
    assert row["spot"] + row["on_demand"] == 0
    told = " ".join(call(*asked).out.split())
    assert begins[1:] in told.partition("Run nothing until")[0]
    assert "Expected cost" not in told.partition("Why:")[0]
    turn = " ".join(printed(decided_blocks([row, row | {"job": "two", "worth_note": None}])).split())
    assert f"* cheap: N{begins[1:]}" in turn.partition(" Decisions ")[0]
    assert turn.count("not worth") + turn.count("Not worth") == 1
    assert "cheap nothing" in turn.partition(" Decisions ")[2]


def test_a_job_that_no_purchase_can_finish_states_no_cost_and_a_certain_risk(folder):
    text = (folder / "one.toml").read_text()
    (folder / "hard.toml").write_text(
        text.replace('"42h"', '"3h"').replace("64", "16").replace('"one"', '"hard"')
    )
    asked = ("plan", folder / "hard.toml", "--db", folder / "w.duckdb", "--at", AT)
    row = json.loads(call(*asked, "--json").out)
    assert row["late_probability"] == 1.0
    assert row["shortfall"].startswith("cannot be done by 2026-11-25 15:00 UTC")
    first = " ".join(call(*asked).out.split()).partition(" Why: ")[0]
    assert "Warning: job hard cannot be done by" in first
    assert "$0.00" not in first
    for rows, begins in (([row], ""), ([row, row | {"job": "two"}], "* ")):
        turn = " ".join(printed(decided_blocks(rows)).split())
        assert f"{begins}hard: cannot be done by 2026-11-25 15:00 UTC" in turn.partition("Why:")[0]
        assert "would do" in turn.partition(" Decisions ")[0]
        assert "$0.00" not in turn
    assert first.endswith("The deadline 2026-11-25 15:00 UTC is missed in any case.")


NOT_OBSERVED = (
    "costs hold if spot is never lost, and whether a policy that runs spot meets its deadline is unknown"
)


@pytest.mark.parametrize(("policy", "on_time"), [("UP", None), ("OD-only", True)])
def test_a_replay_on_prices_alone_does_not_know_whether_spot_meets_the_deadline(folder, policy, on_time):
    given = ("--job", folder / "one.toml", "--db", folder / "w.duckdb", "--from", "2026-11-22T12:00Z")
    answer = call("replay", *given, "--policy", policy, "--json").value
    assert answer["on_time"] is on_time
    assert {slot["available"] for slot in answer["allocations"]} == {None}
    assert (NOT_OBSERVED in printed(replay_blocks("", [answer]))) is (on_time is None)


def test_a_backtest_on_prices_alone_does_not_know_how_often_spot_is_late(folder):
    chosen = ("--policy", "UP", "--policy", "OD-only")
    span = ("--every", "6h", "--from", "2026-11-21T00:00Z", "--to", "2026-11-21T06:00Z")
    asked = ("backtest", "--job", folder / "one.toml", "--db", folder / "w.duckdb", *span, *chosen)
    page = folder / "backtest.html"
    found = call(*asked, "--html", page, "--json").value
    assert {row["policy"]: row["late"] for row in found["policies"]} == {"UP": None, "OD-only": 0}
    assert (found["gpus_per_instance"], found["work"]) == (8, "320 GPU-hours = 40 instance-hours")
    text = " ".join(page.read_text().split())
    assert "on average if spot is never lost" in text
    assert "how often it is late is unknown, availability not observed" in text
    assert "Work: 320 GPU-hours = 40 instance-hours; 8 GPUs an instance." in text
    assert NOT_OBSERVED in text


def test_a_job_that_ended_on_prices_alone_teaches_no_policy(folder, tmp_path):
    (tmp_path / "w.duckdb").write_bytes((folder / "w.duckdb").read_bytes())
    settings = read_settings(small_settings(tmp_path, measured_origins=0))
    request = read_request(folder / "one.toml").model_copy(update={"deadline_in": "24h"})
    one_turn(tmp_path / "w.duckdb", settings, at=pd.Timestamp("2026-11-24T06:00Z"), requests=[request])
    later = one_turn(tmp_path / "w.duckdb", settings, at=pd.Timestamp("2026-11-25T07:00Z"))
    assert {row["jobs"] for row in later.leaderboard} <= {0}
    with open_reader(tmp_path / "w.duckdb") as store:
        [details] = [
            run
            for run in store.execute("select * from runs where stage = 'score'")
            if "not scored" in str(run)
        ]
    assert "job one is not scored: availability was not observed" in str(details)


def test_a_pattern_in_market_is_answered_with_the_key_that_takes_patterns(folder, tmp_path):
    text = (folder / "one.toml").read_text().replace(MARKET, ZONES)
    (tmp_path / "job.toml").write_text(text)
    for command in (("plan",), ("markets", "--for"), ("job", "add")):
        found = call(*command, tmp_path / "job.toml", "--db", folder / "w.duckdb")
        assert found.code == 2
        assert f'write markets = ["{ZONES}"]' in found.err, found.err


def test_a_job_that_no_instances_finish_gives_that_reason_in_one_market_and_in_several(folder):
    for name in ("one", "several"):
        text = (folder / f"{name}.toml").read_text().replace(f'"{name}"', '"endless"')
        (folder / "endless.toml").write_text(text.replace("amount = 320", "amount = 9000"))
        found = call("plan", folder / "endless.toml", "--db", folder / "w.duckdb", "--at", AT)
        told = " ".join(found.out.split())
        assert "Why: no instances: none finish the job before it is given up" in told
        assert "waiting is expected" not in told


@pytest.mark.parametrize("name", quick_first(["second", "first"]))
def test_jobs_that_fit_into_the_assumed_count_leave_the_cheapest_market_to_each_other(folder, tmp_path, name):
    """Neither a job that fits beside it nor a job that never finishes drives a job into another zone."""
    db = shutil.copy(folder / "w.duckdb", tmp_path / "w.duckdb")
    text = (folder / "several.toml").read_text().replace("gpus_max = 64", "gpus_max = 32")
    deadline = text.replace("T06:00", "T12:00")
    for other, amount in (("first", 320), ("second", 320), ("endless", 9000)):
        job = tmp_path / f"{other}.toml"
        job.write_text(
            deadline.replace('"several"', f'"{other}"').replace("amount = 320", f"amount = {amount}")
        )
        assert call("job", "add", job, "--db", db, "--at", AT).code == 0
    shared, alone = (
        json.loads(call("plan", name, "--db", db, "--at", AT, "--json", *more).out)
        for more in ((), ("--alone",))
    )
    assert (shared["market"], shared["spot"]) == (alone["market"], alone["spot"]), name
    assert "less slack" not in shared["reason"]


@pytest.mark.parametrize(
    ("home", "region"),
    quick_first([("aws/ap-northeast-1/ap-northeast-1b/p4d.24xlarge", "ap-northeast-1"), (None, "us-east-1")]),
)
def test_a_job_that_cannot_resume_runs_in_its_home_or_where_on_demand_is_cheapest(tmp_path, home, region):
    """List prices of $21.96 and $30.10: spot is cheaper in the second region, and not used."""
    rows = json.loads(history("p4d.24xlarge"))["SpotPriceHistory"]
    for row in rows:
        if row["AvailabilityZone"] != "us-east-1a":
            row |= {
                "AvailabilityZone": row["AvailabilityZone"].replace("us-east-1", "ap-northeast-1"),
                "SpotPrice": "2.0",
            }
    (tmp_path / "p.json").write_text(json.dumps({"SpotPriceHistory": rows}))
    form = {"amount": 320, "unit": "gpu_hours", "sizes": "gpus_max = 64", "per": ', per = "gpu"'}
    one = JOB.format(name="one", market=home, **form).replace("resumable = true", "resumable = false")
    several = 'markets = ["aws/*/*/p4d.24xlarge"]'
    (tmp_path / "one.toml").write_text(
        one.replace('market = "None"', several)
        if home is None
        else one.replace("deadline_in", f"{several}\ndeadline_in")
    )
    assert call("ingest", "aws", tmp_path / "p.json", "--db", tmp_path / "w.duckdb").code == 0
    row = call("plan", tmp_path / "one.toml", "--db", tmp_path / "w.duckdb", "--at", AT, "--json").value
    assert row["market"].split("/")[1] == region
    assert (row["spot"], row["on_demand"] > 0, row["policy"]) == (0, True, "OD-only")
    assert row["late_probability"] == 0.0
    assert row["expected_cost_usd"] == pytest.approx(row["on_demand_only_usd"])
    assert "cannot resume from a checkpoint" in row["reason"]
