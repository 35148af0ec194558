"""The command of the single-instance scoreboard on a synthetic folder and on the open data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_kit import call, printed
from open_data import DATA
from page_kit import charts_of
from single_kit import coarse_tables

from slackwater.studies.experiments.cant_be_late import (
    OWN_POLICIES,
    cant_be_late_answer,
    cant_be_late_report,
    own_run,
)
from slackwater.studies.single_instance import Setting, Trace, Window, optimum
from slackwater.warehouse.errors import MarketError, SourceFileError

needs_data = pytest.mark.skipif(
    not (DATA / "availability.parquet").is_file(), reason=f"no open data at {DATA}; set SLACKWATER_DATA"
)
FIGURES = {"mean_cost_usd", "score", "misses", "gap_closed", "gap_closed_from_eager"}


def series(seed: int, start: str, zone: str, *, slots: int, flips: float = 0.06) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    up = np.logical_xor.accumulate(rng.random(slots) < flips)
    return pd.DataFrame({
        "provider": "aws", "region": "r-1", "zone": zone, "instance_type": "p3.2xlarge",
        "timestamp": pd.date_range(start, periods=slots, freq="10min", tz="UTC"), "available": up.astype("int32"),
        "capacity_probed": 1, "gap_seconds": 600, "kind": "probe", "truncated": False, "source": f"invented-{start[:4]}",
    })  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tidy")
    table = pd.concat([
        series(1, "2021-05-01", "a", slots=1700), series(2, "2021-05-01", "b", slots=1700, flips=0.02),
        series(3, "2024-05-01", "a", slots=1200),
    ])  # fmt: skip
    table.to_parquet(path / "availability.parquet")
    return path


@pytest.fixture(scope="module")
def answer(folder: Path) -> dict:
    with coarse_tables():
        return cant_be_late_answer(folder, seed=7, fast=True)


@pytest.mark.slow
def test_the_answer_has_the_agreed_form(answer):
    assert {row["split"] for row in answer["variants"]} == {"2024 -> 2021", "2021 -> 2024"}
    for row in answer["variants"]:
        assert row["availability"] in {"low", "medium", "high"}
        assert row["deadline_h"] in {52, 70}
        assert row["overhead_h"] in {0.05, 0.2}
        assert row["runs"] > 0
        for name, figures in row["policies"].items():
            assert set(figures) == FIGURES
            if row["loses_last_slot"] and name in ("stochastic, no guard", "UP", "UP, no hysteresis"):
                continue  # it may miss, and a missed run may be cheaper than any in time
            assert figures["misses"] == 0
            assert figures["mean_cost_usd"] >= row["optimum_usd"] - 1e-9
            assert figures["score"] <= row["optimum_score"] + 1e-9


@pytest.mark.slow
def test_variants_add_up_to_their_setting(answer):
    for whole in answer["settings"]:
        key = ("split", "deadline_h", "overhead_h", "loses_last_slot")
        parts = [row for row in answer["variants"] if all(row[k] == whole[k] for k in key)]
        assert sum(row["runs"] for row in parts) == whole["runs"]
        total = sum(row["runs"] * row["policies"]["UP"]["mean_cost_usd"] for row in parts)
        assert total / whole["runs"] == pytest.approx(whole["policies"]["UP"]["mean_cost_usd"])


@pytest.mark.slow
def test_the_same_jobs_in_the_products_replay(answer):
    own = answer["own_replay"]
    assert {(row["deadline_h"], row["overhead_h"]) for row in own["settings"]} == {
        (hours, overhead) for hours in (52, 70) for overhead in (0.05, 0.2)
    }
    for row in own["settings"]:
        assert row["runs"] == 3, "one in the later half of each trace"
        assert list(row["policies"]) == list(OWN_POLICIES)
        assert row["policies"]["UP-single"]["gap_closed"] == 0.0
        for figures in row["policies"].values():
            assert figures["misses"] == 0
            assert figures["mean_cost_usd"] >= row["optimum_usd"] - 1e-9
    assert own["gap_closed"]["Stochastic"] > 0.5


@pytest.mark.slow
def test_misses_are_counted_with_and_without_the_last_slot(answer):
    found = answer["summary"]
    assert found["misses"]["stochastic"] == found["kept"]["misses"]["stochastic"] == 0
    assert found["misses"]["stochastic, no guard"] > 0
    assert found["kept"]["misses"]["stochastic, no guard"] == found["kept"]["misses"]["UP"] == 0
    assert found["guard_costs"]["runs"] == found["runs"] == found["kept"]["runs"]
    text = printed(cant_be_late_report(answer).blocks)
    assert "where the last slot of a run counts" in text


@pytest.mark.slow
def test_on_demand_in_place_of_lost_spot_pays_no_restart_there():
    """Spot in every other slot: on-demand fills the slots between, and only a single start is lost (M2.4)."""
    setting = Setting(deadline_minutes=50 * 60, overhead_minutes=12, slot_minutes=30, loses_last_slot=False)
    up = np.arange(setting.slots) % 2 == 0
    trace = Trace(name="invented", start=pd.Timestamp("2024-05-01", tz="UTC"), slot_minutes=30, up=up)
    *found, best = own_run(setting, Window(trace=trace, start=0))
    assert found[len(OWN_POLICIES) :] == [0.0] * len(OWN_POLICIES)
    spot, on_demand = setting.ticks.spot_usd, setting.ticks.on_demand_usd
    assert best == pytest.approx(49 * spot + 48 * on_demand)
    assert optimum(setting, up).cost_usd > best + on_demand


@pytest.mark.slow
def test_tables_for_a_person(answer):
    out = printed(cant_be_late_report(answer).blocks)
    assert "What each state variable adds" in out
    assert out.count("optimum (all known)") == 16
    assert "The same jobs in the product's own replay" in out


@pytest.mark.slow
def test_the_command_on_one_year_splits_it_in_time_and_says_so(tmp_path):
    series(1, "2021-05-01", "a", slots=1000).to_parquet(tmp_path / "availability.parquet")
    page = tmp_path / "deep" / "report.html"
    with coarse_tables():
        found = call(
            "experiment", "cant-be-late", "--data", tmp_path, "--fast", "--json", "--html", page
        ).value
    assert {row["split"] for row in found["variants"]} == {"2021, first half -> second half"}
    assert any("first half" in note for note in found["notes"])
    text = page.read_text(encoding="utf-8")
    assert len(charts_of(text)) == 1
    assert "Share of the gap closed" in text
    assert "2021, first half" in text


def test_folders_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(SourceFileError, match=r"no availability\.parquet"):
        cant_be_late_answer(tmp_path, seed=7, fast=True)
    series(1, "2021-05-01", "a", slots=300).to_parquet(tmp_path / "availability.parquet")
    with pytest.raises(MarketError, match="long enough"):
        cant_be_late_answer(tmp_path, seed=7, fast=True)


def reaches_the_goals(found: dict) -> None:
    summary = found["summary"]
    default = summary["default"]
    assert default == "stochastic"
    assert summary["misses"][default] == summary["kept"]["misses"][default] == 0
    assert summary["gap_closed"][default] >= 0.35
    assert summary["kept"]["gap_closed"][default] >= 0.55
    assert summary["gap_closed"][default] > summary["gap_closed"]["stochastic, last slot kept"] + 0.1
    assert summary["gap_closed"][default] > summary["gap_closed"]["stochastic, two states"] + 0.1
    for row in found["variants"]:
        assert row["policies"][default]["gap_closed"] > 0, row


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
def test_open_data(fast):
    reaches_the_goals(cant_be_late_answer(DATA, seed=7, fast=fast))
