"""Test ``slackwater accuracy`` on a small folder: output format, options, errors, resuming, processes and the engine."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from accuracy_demo import same_tables
from command_kit import call
from published import keeps_to
from tidy_folder import START, write_tidy

from slackwater.flows.accuracy import units as scoring
from slackwater.flows.accuracy.command import AccuracyOptions
from slackwater.flows.accuracy.report import course_of, read_measured
from slackwater.flows.accuracy.units import read_blocks, run_course, score_unit, stored_path
from slackwater.flows.command import Session
from slackwater.flows.config import Settings
from slackwater.forecasting.origins import forecast_blocks, units_of
from slackwater.forecasting.predictors import DEFAULT
from slackwater.warehouse.errors import DamagedStoreError

ROW = (
    "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball", "skill_pinball", "skill_mae",
    "coverage_50", "coverage_80", "coverage_90", "brier", "fallback_share",
)  # fmt: skip
FAST = ("--model", "markov", "--workers", 1)
DAYS = 6
#: Middle of the tested half of the record.
LATE = START + pd.Timedelta(days=0.75 * DAYS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tidy(tmp_path_factory.mktemp("tidy"), days=DAYS)


@pytest.fixture(scope="module")
def whole(folder) -> dict:
    """Return the report on the whole folder."""
    return answer("--data", folder, "--model", "seasonal_naive", *FAST)


def answer(*words) -> dict:
    code, out, err = call("accuracy", *words, "--json")
    assert code == 0, err
    keeps_to("accuracy", json.loads(out))
    return json.loads(out)


def test_the_answer_is_one_object_of_the_form_asked_for(whole, folder):
    found = whole
    assert list(found)[:5] == ["data", "step_minutes", "models", "pooled", "markets"]
    assert (found["data"], found["step_minutes"]) == (str(folder), 30)
    assert found["models"] == ["last_value", "seasonal_naive", "markov"]
    assert "left_out" not in found
    for row in found["pooled"]:
        assert tuple(row)[: len(ROW)] == ROW
    for row in found["markets"]:
        assert tuple(row)[:3] == ("variable", "model", "market")
        assert tuple(row)[3 : len(ROW) + 1] == ROW[2:]
    assert {row["variable"] for row in found["pooled"]} == {"count", "price"}
    assert {row["step"] for row in found["pooled"]} == set(range(1, 13))
    assert all(row["brier"] is None for row in found["pooled"] if row["variable"] == "price")
    assert all(row["brier"] is not None for row in found["pooled"] if row["variable"] == "count")
    assert all(row["skill_pinball"] in (0, None) for row in found["markets"] if row["model"] == "last_value")
    keys = [(r["variable"], r["model"], r["market"], r["step"]) for r in found["markets"]]
    assert len(set(keys)) == len(keys)
    flat = [r for r in found["markets"] if "/y2/" in r["market"]]
    assert flat
    assert all(row["mase"] is None and row["skill_pinball"] is None and row["mae"] == 0 for row in flat)


def test_markets_are_pooled_by_class_too(whole):
    found = whole
    classes = {(row["variable"], row["class"]) for row in found["classes"]}
    assert classes == {(row["variable"], row["class"]) for row in found["markets"]}
    assert ("count", "16 and more") in classes
    pooled = {(row["variable"], row["model"], row["step"]): row["n"] for row in found["pooled"]}
    for key, n in pooled.items():
        rows = [row for row in found["classes"] if (row["variable"], row["model"], row["step"]) == key]
        assert sum(row["n"] for row in rows) == n
    assert set(found["pooled"][0]) | {"class"} == set(found["classes"][0])
    assert any(note.startswith("coverage_P is ") for note in found["notes"])
    for row in found["markets"]:
        assert row["coverage_80"] <= row["coverage_80_closed"] + 1e-12


@pytest.mark.slow
def test_the_horizon_may_be_half_a_day_of_short_slots(folder):
    words = ("--data", folder, "--market", "*/z1/*", "--variable", "count", *FAST)
    since = ("--since", LATE.isoformat())
    found = answer(*words, *since, "--step", "10min", "--horizon", 72)
    assert found["step_minutes"] == 10
    assert {row["variable"] for row in found["pooled"]} == {"count"}
    assert {row["step"] for row in found["pooled"]} == set(range(1, 73))
    assert found["pooled"][0]["n"] == pytest.approx(DAYS / 4 * 144, rel=0.05)


@pytest.mark.slow
def test_the_default_model_appears_under_both_its_names(folder):
    found = answer("--data", folder, "--model", DEFAULT, "--workers", 1, "--market", "*/z1/*")
    own = [{**row, "model": "default"} for row in found["markets"] if row["model"] == DEFAULT]
    assert own
    assert [row for row in found["markets"] if row["model"] == "default"] == own
    assert "default" in found["models"]


def test_what_cannot_be_tested_is_left_out_and_said(folder):
    found = answer("--data", folder, "--step", "5min", "--horizon", 2, *FAST)
    assert {row["variable"] for row in found["markets"]} == {"price"}
    assert (
        "lab:counts: 3 count series left out: read every 10 min, less often than once a slot"
        in found["notes"][0]
    )
    code, _, err = call("accuracy", "--data", folder, "--step", "1d", *FAST)
    assert code == 2
    assert "no series is long enough" in err
    assert "shorter than 96 slots" in err


@pytest.mark.slow  # the quick form: a step at which counts are left out, above
def test_another_step(folder):
    found = answer("--data", folder, "--step", "1h", "--variable", "count", "--horizon", 3, *FAST)
    assert found["step_minutes"] == 60
    assert {row["variable"] for row in found["pooled"]} == {"count"}
    assert {row["step"] for row in found["pooled"]} == {1, 2, 3}
    assert found["pooled"][0]["n"] == pytest.approx(4 * DAYS / 2 * 24, rel=0.05)


def test_globs_choose_markets_and_sources(folder):
    words = ("--data", folder, "--horizon", 2, *FAST)
    by_type = answer(*words, "--market", "lab/*/*/a3-highgpu-1g")
    assert {row["market"].split("/")[2] for row in by_type["markets"]} == {"z1", "z2", "z3"}
    by_source = answer(*words, "--market", "*@lab:prices")
    assert {row["variable"] for row in by_source["markets"]} == {"price"}


def test_since_restricts_the_origins(folder, whole):
    since = LATE.isoformat()
    late = answer("--data", folder, "--market", "*/z1/*", "--since", since, "--horizon", 2, *FAST)
    key = ("variable", "model", "market", "step")
    n = {tuple(row[name] for name in key): row["n"] for row in whole["markets"]}
    for row in late["markets"]:
        assert row["n"] == pytest.approx(n[tuple(row[name] for name in key)] / 2, abs=4)
    code, _, err = call("accuracy", "--data", folder, "--since", "2031-01-01", *FAST)
    assert code == 2
    assert "no origin at or after --since" in err


@pytest.mark.slow
def test_a_warehouse_gives_the_answer_of_its_folder_and_keeps_the_forecasts(folder, tmp_path):
    db = tmp_path / "w.duckdb"
    assert call("ingest", "tabular", folder, "--db", db)[0] == 0
    words = ("--market", "*/z*/*", *FAST)
    from_db, from_folder = (answer("--db", db, "--backtest", *words), answer("--data", folder, *words))
    assert from_db | {"data": ""} == from_folder | {"data": ""}
    kept = list((tmp_path / "w.forecasts").rglob("*.parquet"))
    assert len(kept) > 5
    rows = pd.read_parquet(kept[0])
    assert {"market", "issued_at", "step", "mean", "q05", "q50", "q95", "reason"} <= set(rows.columns)
    assert str(rows["issued_at"].dtype.tz) == "UTC"


def test_what_became_known_after_its_slot_is_a_gap(folder, tmp_path):
    """All rows became known at the end, so no forecast could have used any of them (M1.2)."""
    db, known = tmp_path / "w.duckdb", (START + pd.Timedelta(days=9)).isoformat()
    assert call("ingest", "tabular", folder, "--db", db, "--known-at", known)[0] == 0
    code, _, err = call("accuracy", "--db", db, *FAST)
    assert code == 2
    assert "became known only after their slot" in err or "no observations known by then" in err


def test_a_table_is_printed_for_people(folder):
    code, out, _ = call("accuracy", "--data", folder, "--market", "*/z1/*", "--horizon", 4, *FAST)
    assert code == 0
    assert "Forecasts of 4 slots of 30 min" in out
    assert "Mean absolute error by slots ahead, instances" in out
    assert "markov" in out
    assert "Too few days to compare" in out or "Compared with last value, " in out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--step", "soon"), "--step 'soon'"),
        (("--step", "90s"), "whole minutes"),
        (("--variable", "weather"), "--variable weather"),
        (("--model", "oracle"), "oracle"),
        (("--refit", "-1h"), "--refit"),
        (("--market", "nowhere/*"), "nowhere/*"),
        (("--since", "yesterday-ish"), "--since"),
        (("--horizon", "97"), "--horizon 97; expected 1 to 96 slots"),
        (("--horizon", "0"), "--horizon 0"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(folder, words, part):
    code, out, err = call("accuracy", "--data", folder, *words)
    lines = [line for line in err.splitlines() if not line.startswith("  ")]
    assert (code, out, len(lines)) == (2, "", 1)
    assert part in lines[0]


def test_a_folder_that_cannot_be_written_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = call(
        "accuracy", "--data", folder, "--market", "*/z1/*", "--keep", tmp_path / "file" / "k", *FAST
    )
    assert code == 2
    assert "cannot keep forecasts" in err
    assert "--keep" in err


@pytest.fixture(scope="module")
def made(folder, tmp_path_factory):
    """Return the backtest of the folder, its scores computed in a single process and its forecasts stored on disk."""
    options = AccuracyOptions(models=("seasonal_naive", "markov"), horizon=4)
    measured = read_measured(options, Settings(), Session(data=folder))
    keep = tmp_path_factory.mktemp("keep")
    course = course_of(measured, options, Settings(), keep=keep)
    return course, run_course(course, notes=measured.notes)


@pytest.mark.slow
def test_a_course_that_was_sent_makes_the_same_tables(made):
    """Pickle the plan as for a worker process; `tests/optimization/replay/test_batch.py` covers real workers."""
    course, serial = made
    same_tables(run_course(pickle.loads(pickle.dumps(replace(course, keep=None)))), serial)


@pytest.mark.slow
def test_processes_make_the_same_tables(made):
    course, serial = made
    same_tables(run_course(replace(course, keep=None), processes=2), serial)


def test_kept_forecasts_are_read_and_not_made_again(made, monkeypatch):
    course, serial = made

    def never(*_):
        raise AssertionError("a unit that is kept was made again")

    monkeypatch.setattr("slackwater.flows.accuracy.units.forecast_blocks", never)
    same_tables(run_course(course), serial)


def test_what_is_kept_is_what_was_forecast(made):
    course, _ = made
    for unit in units_of(course.rolling)[::5]:
        kept = read_blocks(stored_path(course.keep, unit, course.rolling), unit, course.rolling)
        for one, other in zip(kept, forecast_blocks(unit, course.rolling), strict=True):
            assert (one.outlook.quantiles == other.outlook.quantiles).all()
            assert (one.outlook.mean == other.outlook.mean).all()
            assert one.outlook.reasons == other.outlook.reasons
            assert (one.outlook.distribution is None) == (other.outlook.distribution is None)
            assert (
                one.outlook.distribution is None
                or (one.outlook.distribution == other.outlook.distribution).all()
            )


def turned(whole: bytes) -> bytes:
    """Return the forecast file with a flipped byte that only the page checksums detect."""
    true = pq.read_table(pa.BufferReader(whole))
    for place in range(len(whole) // 3, len(whole)):
        harmed = whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :]
        try:
            read = pq.read_table(pa.BufferReader(harmed))
        except (OSError, pa.ArrowException):
            continue
        if read != true:
            return harmed
    raise AssertionError("no byte of it can be turned unnoticed")


def test_damaged_files_are_made_again_with_a_note_each(made):
    """Damage five files: truncated, flipped byte, empty, and two replaced by another unit's forecasts (same row count or more)."""
    course, serial = made
    units = units_of(course.rolling)
    first, alike, *paths = (stored_path(course.keep, units[i], course.rolling) for i in (0, 2, 4, 5, 8, 3, 6))
    whole = [path.read_bytes() for path in paths]
    harmed = (whole[0][: len(whole[0]) // 3], turned(whole[1]), b"", first.read_bytes(), alike.read_bytes())
    assert len({pq.read_metadata(path).num_rows for path in (alike, paths[-1])}) == 1
    assert all(own != other for own, other in zip(whole, harmed, strict=True))
    for path, text in zip(paths, harmed, strict=True):
        path.write_bytes(text)
    again = run_course(course)
    same_tables(again, serial)
    told = [note for note in again.notes if "damaged" in note]
    assert len(told) == len(paths)
    for path, own in zip(paths, whole, strict=True):
        assert sum(path.name in note for note in told) == 1
        assert path.read_bytes() == own


@pytest.mark.slow
def test_damage_beyond_the_first_block_is_found_too(made, monkeypatch, tmp_path):
    """Damage the last of several row groups: the earlier groups are read, but none of their scores counts."""
    course, _ = made
    rolling = course.rolling
    place = next(i for i, panel in enumerate(rolling.panels) if len(panel) > 1)
    one = replace(rolling, panels=(rolling.panels[place],), origins=(rolling.origins[place],))
    serial = run_course(replace(course, rolling=one, keep=None))
    monkeypatch.setattr("slackwater.flows.accuracy.units.GROUP_ROWS", 1)
    course = replace(course, rolling=one, keep=tmp_path)
    same_tables(run_course(course), serial)
    unit = next(unit for unit in units_of(course.rolling) if len(unit.origins) > 1)
    path = stored_path(tmp_path, unit, course.rolling)
    whole = path.read_bytes()
    with pq.ParquetFile(path) as file:
        assert file.num_row_groups == len(unit.origins)
        column = file.metadata.row_group(file.num_row_groups - 1).column(5)
    place = column.data_page_offset + column.total_compressed_size // 2
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    kept = read_blocks(path, unit, course.rolling)
    assert next(kept).which == unit.origins[0][0]
    with pytest.raises(DamagedStoreError, match="cannot be read"):
        list(kept)
    again = run_course(course)
    same_tables(again, serial)
    assert any(path.name in note and "damaged" in note for note in again.notes)
    assert path.read_bytes() == whole


def test_one_series_forecasts_are_held_at_a_time(made, monkeypatch, tmp_path):
    """Compute, write, read and score: at most a single earlier block is still in memory when a block arrives."""
    course, _ = made
    own = [unit for unit in units_of(course.rolling) if unit.model == course.default]
    unit = max(own, key=lambda one: len(one.origins))
    assert len(unit.origins) > 2
    alive: list[weakref.ref] = []

    def watched(source):
        def blocks(*given):
            for block in source(*given):
                assert sum(ref() is not None for ref in alive) <= 1
                alive.append(weakref.ref(block.outlook.quantiles))
                yield block
                del block

        return blocks

    monkeypatch.setattr("slackwater.flows.accuracy.units.forecast_blocks", watched(forecast_blocks))
    monkeypatch.setattr("slackwater.flows.accuracy.units.read_blocks", watched(read_blocks))
    for keep in (None, tmp_path, tmp_path):
        score_unit(unit, replace(course, keep=keep))
        alive.clear()


def test_new_data_or_settings_are_another_name_old_ones_the_same(made):
    course, _ = made
    rolling, unit = course.rolling, units_of(course.rolling)[2]
    name = stored_path(course.keep, unit, rolling)
    longer = replace(rolling, horizon=5)
    assert stored_path(course.keep, unit, longer) != name
    series = rolling.panels[unit.panel].series
    which, origins = unit.origins[0]
    for place, alike in ((int(origins[-1]) + 1, True), (int(origins[-1]), False)):
        values = series[which].values.copy()
        values[place] += 1
        changed = tuple(replace(s, values=values) if i == which else s for i, s in enumerate(series))
        panels = list(rolling.panels)
        panels[unit.panel] = type(panels[unit.panel])(series=changed)
        other = stored_path(course.keep, unit, replace(rolling, panels=tuple(panels)))
        assert (other == name) == alike


RUN = """
import sys
from slackwater.flows.cli import main
sys.argv = ["slackwater", *sys.argv[1:]]
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow  # the quick form: kept forecasts are read
def test_a_run_that_ends_in_the_middle_goes_on_where_it_was(folder, tmp_path, monkeypatch):
    """Interrupt the run at its third forecast file: the next run reuses the first two and returns the complete report."""
    words = ("--data", folder, "--variable", "count", "--market", "*/z1/*", "--horizon", 4, *FAST)
    kept = ("--keep", tmp_path / "keep")
    true, written = scoring.writer, []

    def ending(path, rolling):
        written.append(path)
        if len(written) > 2:
            raise KeyboardInterrupt
        return true(path, rolling)

    monkeypatch.setattr(scoring, "writer", ending)
    code, out, _ = call("accuracy", *words, *kept)
    assert (code != 0, out) == (True, "")
    monkeypatch.setattr(scoring, "writer", true)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "keep").rglob("*.parquet")}
    assert set(before) == set(written[:2])
    resumed = answer(*words, *kept)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "keep").rglob("*.parquet")}
    assert len(before) < len(after)
    assert {path: after[path] for path in before} == before
    assert resumed == answer(*words)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(folder, tmp_path):
    """Kill a run with SIGKILL and rerun it: the stored files are not rewritten and the report equals an uninterrupted run."""
    script, keep = tmp_path / "run.py", tmp_path / "keep"
    script.write_text(RUN)
    words = [
        "accuracy",
        "--data",
        folder,
        "--model",
        "lightgbm",
        "--workers",
        2,
        "--keep",
        keep,
        "--variable",
        "count",
    ]
    words = [*map(str, words), "--json"]
    process = subprocess.Popen(
        [sys.executable, str(script), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, cwd=tmp_path,
    )  # fmt: skip
    while len(list(keep.rglob("*.parquet"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    time.sleep(1.0)  # the workers need a moment to notice that their parent is gone
    before = {path: path.stat().st_mtime_ns for path in keep.rglob("*.parquet")}
    resumed = answer(*words[1:-1])
    after = {path: path.stat().st_mtime_ns for path in keep.rglob("*.parquet")}
    assert 2 <= len(before) < len(after)
    assert {path: after[path] for path in before} == before
    assert resumed == answer(*[w for w in words[1:-1] if w not in ("--keep", str(keep))])
