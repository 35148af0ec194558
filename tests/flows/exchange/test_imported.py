"""`slackwater ingest` for a new user: rows read, rows rejected with reasons, followed markets, and the next command."""

import io
import json
import sys

import pandas as pd
import pytest
from command_kit import call
from forms_kit import quick_first

from slackwater.flows.ingest import reasons_table
from slackwater.warehouse.columns import REASONS, STATED


def record(zone="us-east-1a", usd="9.83", product="Linux/UNIX", at="2026-03-01T00:00:00+00:00"):
    return {
        "AvailabilityZone": zone, "InstanceType": "p4d.24xlarge", "ProductDescription": product, "SpotPrice": usd, "Timestamp": at,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def piped(monkeypatch, content):
    stream = io.TextIOWrapper(io.BytesIO(content))
    monkeypatch.setattr(sys, "stdin", stream)


def test_the_answer_tells_what_was_read_what_was_not_and_what_to_type(folder):
    records = [
        record(), record("us-east-1b", usd="10.1"), record("us-east-1b", usd="14", product="Windows"),
        record("us-east-1c", product="Windows"), record("us-east-1d", usd="0.0000"), record("moon-1a"),
    ]  # fmt: skip
    (folder / "h.json").write_text(json.dumps({"SpotPriceHistory": records, "NextToken": "x"}))
    said = call("ingest", "aws", "h.json").said
    assert (
        "Read 4 rows of 3 markets from aws, 2026-03-01 00:00 UTC to 2026-03-01 00:00 UTC; 3 rows set aside."
        in said
    )
    assert "unknown zone 'moon-1a'" in said
    assert "price_usd is a placeholder, not a price" in said
    assert "more pages follow" in said
    assert "only Windows; jobs run on Linux): aws/us-east-1/us-east-1c/p4d.24xlarge" in said
    assert "Stored, but not used for plans: prices of Windows" in said
    assert "prices only: availability is unknown" in said
    assert said.rstrip().endswith("Next: `slackwater markets --for JOB.toml` or `slackwater plan JOB.toml`")
    again = call("ingest", "aws", "h.json").said
    assert "Nothing new from aws; 4 rows already known; 3 rows set aside." in again


def test_standard_input_is_a_file_named_by_a_hyphen(folder, monkeypatch):
    text = "\t".join(["SPOTPRICEHISTORY", *record().values()]) + "\n"
    piped(monkeypatch, text.encode("utf-16"))
    value = call("ingest", "aws", "-", "--json").value["aws"]
    assert (value["added"], value["rejected"]) == (1, 0)
    piped(monkeypatch, text.encode("utf-16"))
    assert call("ingest", "aws", "-", "--json").value["aws"]["repeated"] == 1
    piped(monkeypatch, b"-----\n| DescribeSpotPriceHistory |\n")
    refused = call("ingest", "aws", "-")
    assert refused.code == 2
    assert "standard input, line 1: output of `--output table`" in refused.err
    piped(monkeypatch, b"")
    assert "did the command before `|` fail?" in call("ingest", "aws", "-").err
    assert "no option --jsno" in call("ingest", "aws", "-", "--jsno").err


def test_columns_and_constants_are_given_on_the_command_line(folder):
    (folder / "mine.csv").write_text("When,Cost,Where,Type\n2026-03-01T00:00Z,1.5,us-west-2a,h100\n")
    words = [
        "--map",
        "timestamp=When",
        "--map",
        "price=Cost",
        "--map",
        "zone=Where",
        "--map",
        "type=Type",
        "--set",
        "provider=aws",
    ]
    value = call("ingest", "tabular", "mine.csv", *words, "--json").value["tabular"]
    assert [row["market"] for row in value["markets"]] == ["aws/us-west-2/us-west-2a/h100"]
    assert "expected NAME=COLUMN" in call("ingest", "tabular", "mine.csv", "--map", "price").err


def test_a_catalogue_is_true_at_the_time_of_the_command(folder):
    (folder / "aws.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone\n"
        "p4d.24xlarge,A100,8,21.95,9.83,us-east-1,us-east-1a\n"
    )
    assert "no time in the catalogue" in call("ingest", "skypilot-catalogue", "aws.csv").err
    at = "2026-07-30T12:00Z"
    (row,) = call("ingest", "skypilot-catalogue", "aws.csv", "--at", at, "--json").value[
        "skypilot-catalogue"
    ]["markets"]
    assert pd.Timestamp(row["first"]) == pd.Timestamp(at)


def counts_file(folder, kind="", step="30min", days=4, gap=True):
    times = pd.date_range(
        "2026-03-01", periods=int(pd.Timedelta(days=days) / pd.Timedelta(step)), freq=step, tz="UTC"
    )
    head = (
        "provider,region,zone,instance_type,timestamp,available" + ",gap_seconds" * gap + ",kind" * bool(kind)
    )
    seconds = f",{pd.Timedelta(step).total_seconds():.0f}" if gap else ""
    more = seconds + (f",{kind}" if kind else "")
    lines = [f"lab,r,z,h100,{at.isoformat()},{k % 5}{more}" for k, at in enumerate(times)]
    (folder / "prices.csv").write_text(
        "provider,region,zone,instance_type,timestamp,spot_price,on_demand_price\nlab,r,z,h100,2026-03-01T00:00Z,1,3\n"
    )
    (folder / "availability.csv").write_text("\n".join([head, *lines]) + "\n")


@pytest.mark.parametrize("gap", quick_first([False, True]))
def test_counts_without_a_kind_are_followed_like_launch_tests(folder, gap):
    """Also without a `gap_seconds` column in the table."""
    counts_file(folder, gap=gap)
    (row,) = call("ingest", "tabular", ".", "--json").value["tabular"]["markets"]
    assert (row["followed"], row["why_not"]) == (True, None)
    made = call("forecast", "--model", "last_value", "--horizon", "1", "--json").value["forecasts"]
    assert len(made) == 1


@pytest.mark.parametrize(
    ("written", "words"),
    quick_first(
        [
            (
                {"kind": "score"},
                "placement scores and interruption bands (kind score, band) are no counts of instances",
            ),
            ({"step": "2h"}, "counted every 2 h, which is longer than a slot of 30 min"),
            ({"days": 1}, "of counts, less than 72 h"),
        ],
        2,
    ),
)
def test_why_a_market_is_not_followed_is_said_by_ingest_and_by_forecast(folder, written, words):
    counts_file(folder, **written)
    assert words in call("ingest", "tabular", "availability.csv").said
    refused = call("forecast", "--model", "last_value")
    assert refused.code == 2
    assert words in refused.err


def test_an_unknown_kind_is_set_aside_with_its_name(folder):
    counts_file(folder, kind="launches", days=1)
    said = call("ingest", "tabular", "availability.csv").said
    assert "Nothing could be used from tabular; 48 rows set aside" in said
    assert "kind launches is none of probe, held, offers, score, band" in said


@pytest.mark.parametrize("usd", ["8,52", "$8.52"])
def test_a_price_that_is_no_number_has_a_remedy_where_it_is_set_aside_and_listed(tmp_path, usd):
    table = tmp_path / "prices.csv"
    table.write_text(
        "provider;region;zone;instance_type;timestamp;spot_price_usd_per_hour\n"
        f"aws;us-east-1;us-east-1a;p4d.24xlarge;2026-03-01T00:00:00Z;{usd}\n"
    )
    db = ("--db", tmp_path / "w.duckdb")
    told = "a decimal point, no currency and no thousands separator: 8.52, not 8,52 or $8.52"
    assert told in call("ingest", "tabular", table, *db).said
    assert told in call("rejected", *db).said


def test_every_check_of_a_row_has_a_meaning_or_a_remedy():
    kinds = {reason.kind for code, reason in REASONS.items() if code and code not in STATED}
    assert len(kinds) > 40
    rows = [{"reason": kind} for kind in kinds]
    assert [row["reason"] for row in reasons_table("Reasons", rows, {}).rows if not row["remedy"]] == []


def test_the_next_command_can_be_pasted_whatever_the_names(folder):
    (folder / "odd.csv").write_text(
        "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour\n"
        "own,r,z,RTX 4090; rm,2026-03-01T00:00Z,0.5\n"
    )
    said = call("ingest", "tabular", "odd.csv", "--db", "my data.duckdb").said
    assert "--market 'own/r/z/RTX 4090; rm' --db 'my data.duckdb'" in said


def test_an_error_is_one_line_whatever_the_name_of_the_file(folder):
    found = call("ingest", "tabular", "a\nslackwater: all is well.csv")
    assert (found.code, found.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("usable", [0, 1])
def test_the_exit_code_tells_a_file_of_which_no_row_is_usable(folder, usable):
    records = [record(usd="-1"), record("us-east-1b", usd="-2")] + [record("us-east-1c")] * usable
    (folder / "h.json").write_text(json.dumps({"SpotPriceHistory": records}))
    for _ in range(2):  # rows that are already known are no error
        found = call("ingest", "aws", "h.json")
        assert (found.code, "2 rows set aside" in found.said) == (0 if usable else 2, True)


def test_ratings_are_no_counts_of_an_import(folder):
    counts_file(folder, kind="score")
    answer = call("ingest", "tabular", "availability.csv", "--json").value["tabular"]
    (row,) = answer["markets"]
    assert (row["counts"], row["ratings"]) == (0, answer["added"])
