"""Traces from tidy rows, their split by year, and the scoreboard's figures."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from single_kit import coarse_tables

from slackwater.studies.single_instance import (
    DEFAULT,
    EAGER,
    PLAIN,
    PUBLISHED,
    Scores,
    Setting,
    Split,
    Trace,
    blocks_of,
    score_split,
    single_traces,
    slotted,
    splits,
    windows,
)
from slackwater.warehouse.errors import MarketError


def rows(start: str, values: list[int], *, gap: int = 600, zone: str = "a", **other: object) -> pd.DataFrame:
    times = pd.date_range(start, periods=len(values), freq=f"{gap}s", tz="UTC")
    frame = pd.DataFrame({"timestamp": times, "available": values})
    facts = {
        "provider": "aws", "region": "r", "zone": zone, "instance_type": "p3", "source": "s", "kind": "probe",
        "capacity_probed": 1, "gap_seconds": gap, **other,
    }  # fmt: skip
    return frame.assign(**facts)


def trace(name: str, start: str, up: np.ndarray) -> Trace:
    return Trace(name=name, start=pd.Timestamp(start, tz="UTC"), slot_minutes=10, up=up)


def sticky(seed: int, slots: int, flips: float = 0.05) -> np.ndarray:
    return np.logical_xor.accumulate(np.random.default_rng(seed).random(slots) < flips)


def test_a_slot_shows_the_last_probe_at_or_before_its_start():
    frame = rows("2023-01-01T00:01", [1, 0, 1, 1, 0, 0], gap=240)  # 00:01 05 09 13 17 21
    found = slotted(frame, name="x", slot_minutes=10)
    assert found.start == pd.Timestamp("2023-01-01T00:10", tz="UTC")
    assert list(found.up) == [True, False]  # 00:10 <- 00:09; 00:20 <- 00:17
    assert found.gaps == 0


def test_a_stale_probe_counts_as_down():
    frame = pd.concat([rows("2023-01-01T00:00", [1, 1]), rows("2023-01-01T01:30", [1, 1])])
    found = slotted(frame, name="x", slot_minutes=10)
    # Probes at 00:00, 00:10, 01:30, 01:40: good for 30 minutes.
    assert list(found.up) == [True] * 5 + [False] * 4 + [True] * 2
    assert found.gaps == 4


def test_only_long_launchable_single_instances_are_taken():
    long = [1] * 600
    frame = pd.concat([
        rows("2023-01-01", long, zone="good"),
        rows("2023-01-01", long, zone="wide", capacity_probed=16),
        rows("2023-01-01", long, zone="listed", kind="offers"),
        rows("2023-01-01", [1] * 50, zone="short"),
        rows("2023-01-01", long, zone="unknown").assign(capacity_probed=pd.NA),
    ])  # fmt: skip
    frame["capacity_probed"] = frame["capacity_probed"].astype("Int32")
    found = single_traces(frame, slot_minutes=10, least_hours=90)
    assert [t.name.split("/")[3] for t in found] == ["good"]
    with pytest.raises(MarketError, match="long enough"):
        single_traces(frame, slot_minutes=10, least_hours=900)
    with pytest.raises(MarketError, match="kind"):
        single_traces(frame.drop(columns="kind"), slot_minutes=10, least_hours=90)


def test_every_year_is_tested_with_the_others():
    old, new, newer = (trace(y, f"{y}-03-01", sticky(int(y), 100)) for y in ("2021", "2022", "2023"))
    found = splits([new, newer, old])
    assert [s.label for s in found] == ["2022+2023 -> 2021", "2021+2023 -> 2022", "2021+2022 -> 2023"]
    for split in found:
        assert {t.year for t in split.train}.isdisjoint(t.year for t in split.test)


def test_one_year_is_split_in_time():
    up = sticky(1, 101)
    (found,) = splits([trace("x", "2022-03-01", up)])
    assert (np.concatenate([found.train[0].up, found.test[0].up]) == up).all()
    assert found.test[0].start == pd.Timestamp("2022-03-01T08:20", tz="UTC")  # 50 slots later


@pytest.mark.parametrize(
    ("share", "label"), [(0.0, "low"), (0.49, "low"), (0.5, "medium"), (0.79, "medium"), (0.8, "high")]
)
def test_classes_of_availability(share, label):
    assert trace("x", "2022-03-01", np.arange(100) < 100 * share).availability == label


def scores_of(cost: list[list[float]], best: list[float], block: list[int]) -> Scores:
    one = trace("x", "2022-03-01", np.ones(1000, bool))
    setting = Setting(deadline_minutes=3120, overhead_minutes=3)
    return Scores(
        split=Split(label="l", train=(one,), test=(one,)), setting=setting, names=(PUBLISHED, EAGER, DEFAULT),
        windows=tuple(windows([one], setting, every_hours=12)[: len(best)]), cost=np.array(cost),
        missed=np.zeros((len(best), 3), bool), best=np.array(best), block=np.array(block),
    )  # fmt: skip


def test_share_of_the_gap_by_hand():
    scores = scores_of([[100, 90, 80], [60, 60, 50]], [60, 40], [0, 1])
    assert scores.gap_closed(DEFAULT) == pytest.approx(15 / 30)
    assert scores.gap_closed(DEFAULT, start=EAGER) == pytest.approx(10 / 25)
    assert scores.gap_closed(PUBLISHED) == 0
    assert np.isnan(
        scores.gap_interval(DEFAULT, rng=np.random.default_rng(0))
    ).all()  # two blocks are too few
    three = scores_of([[100, 90, 80], [60, 60, 50], [50, 50, 40]], [60, 40, 30], [0, 1, 2])
    low, high = three.gap_interval(DEFAULT, rng=np.random.default_rng(0))
    assert (low, high) == pytest.approx((0.5, 0.5))  # each block closes half of the gap
    assert np.isnan(scores_of([[50, 50, 50]], [50], [0]).gap_closed(DEFAULT))


def test_runs_start_regularly_and_blocks_follow_the_deadline():
    setting = Setting(deadline_minutes=3120, overhead_minutes=3)
    places = windows(
        [trace("a", "2022-01-01", np.ones(700, bool)), trace("b", "2022-01-01", np.ones(312, bool))],
        setting,
        every_hours=12,
    )
    assert [(w.trace.name, w.start) for w in places] == [
        ("a", 0), ("a", 72), ("a", 144), ("a", 216), ("a", 288), ("a", 360), ("b", 0),
    ]  # fmt: skip
    assert list(blocks_of(setting, places)) == [0, 0, 0, 0, 0, 1, 2]


@pytest.fixture(scope="module")
def scored() -> list[Scores]:
    split = Split(
        label="s",
        train=(trace("t", "2021-01-01", sticky(1, 4000)),),
        test=(trace("u", "2022-01-01", sticky(2, 700)), trace("short", "2022-01-01", sticky(3, 320))),
    )
    with coarse_tables():
        return score_split(split, every_hours=24)


def test_every_setting_is_scored_with_the_same_runs_for_all(scored):
    assert [
        (s.setting.overhead_minutes, s.setting.loses_last_slot, s.setting.deadline_minutes) for s in scored
    ] == list(itertools.product((3, 12), (True, False), (3120, 4200)))
    for scores in scored:
        names = {w.trace.name for w in scores.windows}
        assert names == ({"u", "short"} if scores.setting.deadline_minutes == 3120 else {"u"})
        assert scores.cost.shape == (len(scores.windows), len(scores.names))
        never = [name != PLAIN for name in scores.names]
        assert not scores.missed[:, never].any()
        assert (scores.cost[:, never] >= scores.best[:, None] - 1e-9).all()
        assert scores.of("OD-only") == pytest.approx(scores.setting.on_demand_only_usd)


def test_learned_on_the_same_law_it_beats_what_is_published(scored):
    lost, kept = (
        [s.gap_closed(DEFAULT) for s in scored if s.setting.loses_last_slot == loses]
        for loses in (True, False)
    )
    assert min(lost) > 0
    assert min(kept) > 0.1
    assert np.mean(kept) > 0.5


def test_what_one_test_trace_shows_teaches_the_others_nothing(scored, monkeypatch):
    first = scored[0]
    other = Split(
        label="s", train=first.split.train,
        test=(first.split.test[0], trace("short", "2022-01-01", np.arange(320) % 2 == 0)),
    )  # fmt: skip
    monkeypatch.setattr(
        "slackwater.studies.single_instance.OVERHEAD_MINUTES", (first.setting.overhead_minutes,)
    )
    with coarse_tables():
        again = score_split(other, every_hours=24)[0]
    kept = [i for i, w in enumerate(first.windows) if w.trace.name == "u"]
    assert (again.cost[kept] == first.cost[kept]).all()
