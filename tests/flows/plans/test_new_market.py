"""A market with few counts: what is stated of its spot knows how little is known (M13.3)."""

import re

import pytest
from command_kit import SMALL_JOB, call

HEAD = "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour,available\n"
JOB = SMALL_JOB.format(where='market = "acme/eu/a/L4_x1"')


def planned(folder, *counts):
    """Return what `plan` and `markets --for` state of spot in the next slot, and the plan's evidence, after counts in a row."""
    times = [f"2026-03-{5 + k // 48:02}T{k % 48 // 2:02}:{k % 2 * 30:02}:00Z" for k in range(len(counts))]
    rows = [f"acme,eu,a,L4_x1,{at},0.3,{count}" for at, count in zip(times, counts, strict=True)]
    folder.mkdir()
    (folder / "p.csv").write_text(HEAD + "\n".join(rows) + "\n")
    (folder / "one.toml").write_text(JOB)
    db = ("--db", folder / "w.duckdb")
    assert call("ingest", "tabular", folder / "p.csv", *db).code == 0
    decision = call("plan", folder / "one.toml", *db, "--policy", "MSU", "--json").value
    stated, words = re.search(r"next slot: (?:over )?(\d+) %(.*)", decision["reason"]).groups()
    (ranked,) = call("markets", "--for", folder / "one.toml", *db, "--json").value["markets"]
    return int(stated) / 100, words, ranked["chance_of_spot"], decision["evidence_basis"]


def test_few_counts_are_corrected_by_measured_markets_and_said_to_be_few(tmp_path):
    once, words, ranked, basis = planned(tmp_path / "one", 4)
    assert re.fullmatch(
        r"availability observed in 1 slot, later slots assumed from \d+ measured markets", basis
    )
    assert re.fullmatch(r", from 1 reading and \d+ measured markets", words)
    assert once <= 0.95
    assert ranked == pytest.approx(once, abs=0.03)  # of the smallest size
    twice, words, *_ = planned(tmp_path / "two", 4, 4)
    assert "from 2 readings" in words
    lost, *_ = planned(tmp_path / "lost", 4, 0, 4, 0, 4)
    assert lost < once < twice


def test_many_counts_speak_for_themselves(tmp_path):
    chance, words, _, basis = planned(tmp_path / "many", *[4] * 30)
    assert (words, chance, basis) == ("", pytest.approx(0.98), "availability observed")


def test_a_range_without_width_is_explained(tmp_path):
    planned(tmp_path / "flat", 4)
    asked = ("--market", "acme/eu/a/L4_x1", "--model", "combined", "--db", tmp_path / "flat" / "w.duckdb")
    assert "means that no change was seen" in " ".join(call("forecast", *asked).out.split())
