"""``slackwater rejected``, and how ``ingest`` reports unusable rows."""

import pytest
from command_kit import call

CSV = """provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour
aws,us-east-1,us-east-1a,p3.2xlarge,2026-01-01T00:00:00Z,0.9
aws,us-east-1,us-east-1a,p3.2xlarge,2026-01-01T00:00:00Z,0.9
aws,us-east-1,us-east-1a,p3.2xlarge,2036-01-01T00:00:00Z,0.9
aws,us-east-1,us-east-1a,p3.2xlarge,2026-01-01T01:00:00Z,-1
aws,us-east-1,us-east-1a,p3.2xlarge,2026-01-01T02:00:00Z,-2
aws,us-east-1,us-\x1b[31meast,p3.2xlarge,2026-01-01T00:00:00Z,0.9
"""
REASONS = {
    "price_usd is negative": 2,
    "observed_at is in the future": 1,
    "zone contains a character that cannot be printed": 1,
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.csv").write_text(CSV)
    return tmp_path


def test_an_ingest_counts_rejected_rows_by_reason(place):
    value = call("ingest", "tabular", "prices.csv", "--json").value["tabular"]
    assert (value["added"], value["repeated"], value["rejected"]) == (1, 1, 4)
    assert value["reasons"] == REASONS
    again = call("ingest", "tabular", "prices.csv").out
    assert "price_usd is negative" in again
    assert "slackwater rejected" in again


def test_rejected_rows_are_shown_with_reason_and_text(place):
    call("ingest", "tabular", "prices.csv")
    value = call("rejected", "--json").value
    assert (value["rejected"], value["reasons"], len(value["rows"])) == (4, REASONS, 4)
    assert value["rows"][0]["line"] == 7
    assert "\\u001B[31meast" in value["rows"][0]["raw"]
    shown = call("rejected", "--reason", "negative", "--most", "1").out
    assert "The newest 1 of 2" in shown
    assert '"price_usd":"-2"' in "".join(shown.split())
    assert "\x1b" not in call("rejected").out
    assert call("rejected", "--source", "aws", "--json").value["rejected"] == 0


def test_the_bounds_are_settings(place):
    (place / "slackwater.toml").write_text("[bounds]\nfuture_hours = 876000\n")
    assert call("ingest", "tabular", "prices.csv", "--json").value["tabular"]["rejected"] == 3


def test_a_name_with_an_escape_sequence_in_it_is_not_obeyed(place):
    call("ingest", "tabular", "prices.csv")
    told = call("plan", "no\x1b[31mjob", "--market", "a\x1b[31m/b/c/d")
    assert told.code == 2
    assert "\x1b" not in told.err
