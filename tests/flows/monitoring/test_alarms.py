"""Alarms: each kind is raised when it should be and not otherwise, is sent once, and is cleared afterwards."""

import math
from pathlib import Path

import described
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from make import make_turn, save_run
from open_data import DATA

from slackwater.flows.config import ALARM_KINDS, AlarmSettings, Feed, Settings, read_settings
from slackwater.flows.monitoring.alarms import (
    Alarm,
    alarms_of,
    band,
    drifts,
    effective,
    flat_lines,
    improbable,
    read_alarm_facts,
    settle_alarms,
    standing_alarms,
)
from slackwater.flows.monitoring.completeness import expected_updates, freshness
from slackwater.flows.turn.ingest import ingest_observations
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import append
from slackwater.warehouse.sources.contract import Batch
from slackwater.warehouse.store.connection import open_store

AT = pd.Timestamp("2026-03-20T00:00Z")
HALF = pd.Timedelta(minutes=30)
MARKET = ("aws/r/z/g", "s")
SETTINGS = Settings(models=("last_value",), planner="markov")


def put(store, kind: str, times, values, *, known=None, on_demand=3.0, gap=600.0) -> None:
    """Store observations of the market through the warehouse's normal import."""
    times = pd.DatetimeIndex(times)
    n = len(times)
    columns = {name: [part] * n for name, part in zip(
        ("source", "provider", "region", "zone", "instance_type"), ("s", "aws", "r", "z", "g"), strict=True)}  # fmt: skip
    columns |= {
        "observed_at": pa.array(times.astype("datetime64[us, UTC]")),
        "file": ["f"] * n,
        "line": range(1, n + 1),
    }
    if known is not None:
        columns["known_at"] = pa.array(pd.DatetimeIndex(known).astype("datetime64[us, UTC]"))
    if kind == "price":
        columns |= {"product": [""] * n, "price_usd": values, "on_demand_usd": [on_demand] * n}
    else:
        columns |= {
            "available": values,
            "capacity": [16] * n,
            "gap_seconds": [gap] * n,
            "kind": ["probe"] * n,
        }
    batch = Batch(kind=kind, table=pa.table(columns))
    done = append(store, [batch], source="test", assumptions=[], imported_at=AT)
    assert (done.added, done.rejected) == (n, 0)


def every(minutes: float, *, days: float = 10.0, end=AT) -> pd.DatetimeIndex:
    return pd.date_range(end - pd.Timedelta(days=days), end, freq=pd.Timedelta(minutes=minutes), unit="us")


def lively(n: int, seed: int = 1) -> list[int]:
    """Return ``n`` counts that change within a few hours."""
    return (8 + np.cumsum(np.random.default_rng(seed).integers(-1, 2, n)) % 8).tolist()


def told(store, *, at=AT, settings=SETTINGS) -> dict[str, Alarm]:
    """Return the alarms by kind; each kind occurs at most once."""
    found = alarms_of(store, settings, [MARKET], at=at)
    assert len({one.kind for one in found}) == len(found)
    return {one.kind: one for one in found}


def test_a_healthy_market_raises_nothing(store):
    times = every(10)
    put(store, "availability", times, lively(len(times)))
    put(store, "price", times[::36], (1 + 0.01 * np.arange(len(times[::36])) % 0.05).tolist())
    assert told(store) == {}


def test_a_source_that_stops_is_stale_and_late(store):
    times = every(10, end=AT - pd.Timedelta(hours=5))
    put(store, "availability", times, lively(len(times)))
    alarm = told(store)["stale source"]
    assert alarm.subject == "aws/r/z/g@s count"
    assert (alarm.severity, alarm.market) == ("serious", "aws/r/z/g")
    assert alarm.since == times[-1] + pd.Timedelta(minutes=30)
    assert "5 h old; expected at most 30 min" in alarm.text
    promises = expected_updates(store, [MARKET], at=AT, step=HALF)
    row = freshness(promises, at=AT)[0]
    assert row["expected_by"] == times[-1] + pd.Timedelta(minutes=10)
    assert row["late_by"] == pd.Timedelta(hours=5) - pd.Timedelta(minutes=10)
    assert "stale source" not in told(store, at=times[-1] + pd.Timedelta(minutes=30))


@pytest.mark.parametrize(("minutes", "alarm"), [(0, False), (31, False), (74, False), (75, True)])
def test_data_that_age_between_two_turns_are_no_alarm(store, minutes, alarm):
    """Counts are expected at most 30 min apart: they are too old at the second turn that did not run."""
    times = every(10)
    put(store, "availability", times, lively(len(times)))
    assert ("stale source" in told(store, at=AT + pd.Timedelta(minutes=minutes))) is alarm


def test_a_turn_that_reads_an_old_count_raises_the_alarm_at_once(store):
    times = every(10, end=AT - pd.Timedelta(minutes=40))
    put(store, "availability", times, lively(len(times)))
    assert "stale source" not in told(store)
    save_run(store, "run-x", at=AT, stage="ingest", details={})
    assert "stale source" in told(store)


def test_a_list_price_that_is_said_once_is_never_stale(store):
    times = every(10)
    put(store, "availability", times, lively(len(times)))
    put(store, "price", times[:1], [1.0])
    assert told(store) == {}
    (row,) = (
        own
        for own in freshness(expected_updates(store, [MARKET], at=AT, step=HALF), at=AT)
        if own["kind"] == "price"
    )
    assert (row["age"], row["stale"]) == (pd.Timedelta(days=10), False)
    assert row["expected_by"] is None
    put(store, "price", times[1:2], [1.1])
    assert "stale source" in told(store)


@pytest.mark.parametrize(("hours", "flat"), [(20, False), (40, True)])
def test_a_count_that_froze_is_a_flat_line_against_its_own_stretches(store, hours, flat):
    """The count used to change every 8 hours at most: it is flat after four times as long."""
    levels = np.repeat([3, 7, 5, 9, 4, 8, 6] * 6, 48)  # 8 h each, between 3 and 9
    frozen = np.full(hours * 6, 6)
    values = np.concatenate([levels, frozen[1:]])
    times = pd.date_range(end=AT, periods=len(values), freq="10min", unit="us")
    put(store, "availability", times, values.tolist())
    found = told(store, settings=Settings(alarms=AlarmSettings(off=("drift", "coverage"))))
    assert ("flat line" in found) is flat
    if flat:
        alarm = found["flat line"]
        assert alarm.since == AT - pd.Timedelta(hours=8 + hours) + pd.Timedelta(minutes=20)
        assert "has been 6" in alarm.text
        assert "lasted 8 h" in alarm.text


def test_a_rest_at_the_floor_is_judged_by_rests_at_the_floor(store):
    """A price rests at its minimum for days between short excursions: only an equally long rest at another level is unusual."""
    pieces = [np.full(72, 0.9)]
    for _ in range(12):
        pieces += [np.array([1.0, 1.1, 1.2, 1.1]), np.full(72, 0.9)]
    rest, away = [*pieces, np.full(80, 0.9)], [*pieces, np.full(80, 1.15)]
    for hours, expected in ((rest, False), (away, True)):
        values = np.concatenate(hours)
        with open_store(":memory:") as store:
            put(
                store,
                "price",
                pd.date_range(end=AT, periods=len(values), freq="1h", unit="us"),
                values.tolist(),
            )
            assert ("flat line" in told(store)) is expected


def test_prices_beyond_belief_are_impossible(store):
    times = every(360)
    put(store, "price", times, [1.0] * (len(times) - 1) + [9.1])
    alarm = told(store)["impossible price"]
    assert "9.1 USD per hour, compared with 3 on demand, 3.03 times; expected at most 3 times" in alarm.text
    assert alarm.since == AT
    calm = Settings(alarms=AlarmSettings(price_times_on_demand=10.5))
    assert "impossible price" not in told(store, settings=calm)
    assert "impossible price" not in told(store, at=AT + pd.Timedelta(hours=25))


@pytest.mark.parametrize(("last", "jumped"), [(1.25, False), (1.60, True)])
def test_a_price_jumps_when_no_past_step_comes_near(store, last, jumped):
    """Past steps are 10 %: a rise by 25 % is no jump, but a log step of more than three times the largest past step is."""
    times = every(360)
    values = [1.0 + 0.1 * (place % 2) for place in range(len(times))]
    values[-1] = last * values[-2]
    put(store, "price", times, values)
    found = told(store)
    assert ("price jump" in found) is jumped
    if jumped:
        assert f"a factor of {last:.3g}" in found["price jump"].text
        assert math.log(last) > 3 * math.log(1.1)


def test_an_ingest_that_adds_nothing_is_empty_only_if_more_was_due(store):
    times = every(10, end=AT - pd.Timedelta(minutes=30))
    put(store, "availability", times, lively(len(times)))
    for place, added in ((3, 18), (2, 3), (1, 0), (0, 0)):
        at = AT - place * HALF
        save_run(
            store,
            f"r{place}",
            at=at,
            stage="ingest",
            details={"s": {"added": added, "repeated": 0, "rejected": 0}},
        )
    alarm = told(store)["empty ingest"]
    assert alarm.since == AT - HALF
    assert "2 ingest runs" in alarm.text
    save_run(
        store, "r", at=AT + HALF, stage="ingest", details={"s": {"added": 1, "repeated": 0, "rejected": 0}}
    )
    assert "empty ingest" not in told(store, at=AT + HALF)
    assert "empty ingest" not in told(store, at=AT - HALF)


def fetch(store, place: int, status: str, reason: str = "") -> None:
    """Store a fetch of the feed "az", ``place`` half hours before `AT`."""
    row = {"feed": "az", "status": status, "added": 0, "repeated": 0, "rejected": 0, "requests": 3, "watermark": "{}",
           "reason": reason, "logical_at": (AT - place * HALF).to_pydatetime()}  # fmt: skip
    write_rows(store, "fetches", [row])


def test_a_feed_that_fails_is_told_until_it_is_done_again(store):
    for place, status in enumerate(("done", "failed", "partial", "done", "partial", "partial", "done")):
        fetch(store, 6 - place, status, "" if status == "done" else f"throttled at {place}")
    rung = {place: told(store, at=AT - (6 - place) * HALF).get("failing feed") for place in range(7)}
    assert [place for place, one in rung.items() if one] == [1, 2, 5]
    assert (rung[2].subject, rung[2].severity, rung[2].market) == ("az", "serious", "")
    assert rung[2].since == AT - 5 * HALF
    assert "2 fetches since" in rung[2].text
    assert "throttled at 2" in rung[2].text


def test_a_feed_that_nobody_fetches_is_told(store):
    feed = Feed(name="az", source="vast-offers", every_minutes=30, options={})
    settings = SETTINGS.model_copy(update={"feeds": (feed,)})
    assert "failing feed" not in told(store, settings=settings)
    save_run(store, "r", at=AT, stage="ingest", details={})
    assert (
        "never fetched, although ingest has run since 2026-03-20 00:00"
        in told(store, settings=settings)["failing feed"].text
    )
    fetch(store, 2, "done")
    assert "failing feed" not in told(store, settings=settings)
    late = told(store, settings=settings, at=AT + HALF)["failing feed"]
    assert "90 min ago; expected every 30 min" in late.text
    assert late.since == AT - HALF


def test_more_rejected_rows_than_usual_are_told_with_the_reason(store):
    row = {"fingerprint": "f", "content": "c", "file": "x.csv", "options": "{}", "known_at_rule": "", "assumptions": "[]",
           "reader": "tabular", "repeated": 0}  # fmt: skip
    table = pa.Table.from_pylist(
        [{**row, "batch": 90, "added": 990, "rejected": 11, "imported_at": AT.to_pydatetime()}]
    )
    with store.registered("incoming", table):
        store.execute("INSERT INTO imports BY NAME SELECT * FROM incoming")
    store.execute(
        "INSERT INTO rejected (batch, file, line, raw, reason) VALUES (90, 'x.csv', 1, '{}', 'price_usd is negative')"
    )
    alarm = told(store)["rejected rows"]
    assert "11 of 1001 rows" in alarm.text
    assert "price_usd is negative" in alarm.text
    assert "rejected rows" not in told(store, at=AT - HALF)
    assert "rejected rows" not in told(store, settings=Settings(alarms=AlarmSettings(rejected_share=0.02)))


def test_a_market_that_changed_has_drifted_for_a_day(store):
    times = every(30, days=12)
    values = np.random.default_rng(2).integers(8, 17, len(times))
    values[-48:] = np.random.default_rng(3).integers(0, 3, 48)
    put(store, "availability", times, values.tolist())
    put(store, "price", times[::36], [1.0] * len(times[::36]))
    alarm = told(store)["drift"]
    assert alarm.subject == "aws/r/z/g@s count"
    assert AT - pd.Timedelta(days=2) < alarm.since <= AT
    assert "differ from before" in alarm.text
    assert "drift" not in told(store, at=AT - pd.Timedelta(days=2))
    assert "drift" not in told(store, settings=Settings(alarms=AlarmSettings(off=("drift",))))


def issue(store, low: float, high: float, *, inner: tuple[float, float] | None = None) -> None:
    """Store one-step forecasts for every slot of four days, with 80 % intervals from ``low`` to ``high``."""
    slots = every(30, days=4)[:-1]
    inner = inner or (low, high)
    levels = {f"q{level:02d}": low if level < 25 else high for level in range(5, 100, 5)}
    levels |= {"q25": inner[0], "q75": inner[1]}
    shared = {"market": MARKET[0], "source": MARKET[1], "model": "markov", "step_seconds": 1800, "horizon": 1,
              "capacity": 16, "price_fallback": "", "count_fallback": "", "backfilled": False}  # fmt: skip
    vintages = [{**shared, "vid": k, "issued_at": slot, "newest_row": slot} for k, slot in enumerate(slots)]
    values = [
        {"vid": k, "variable": "count", "step_ahead": 1, "mean": low, **levels} for k in range(len(slots))
    ]
    for table, rows in (("vintages", vintages), ("forecasts", values)):
        with store.registered("incoming", pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)):
            store.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")


@pytest.mark.parametrize(
    ("low", "high", "inner", "expected"),
    [
        (9, 14, None, "contained 60 %"),  # six of ten values are inside
        (8, 15, None, ""),  # eight of ten
        (7, 16, (8, 16), "50 % intervals one slot ahead contained 90 %"),
    ],
)
def test_coverage_out_of_its_band_is_told(store, low, high, inner, expected):
    times = every(30, days=4)
    values = np.random.default_rng(5).permutation(np.resize(np.arange(7, 17), len(times)))
    put(store, "availability", times, values.tolist(), gap=1800.0)
    put(store, "price", times[::36], [1.0] * len(times[::36]))
    issue(store, low, high, inner=inner)
    found = told(store)
    assert ("coverage" in found) is bool(expected)
    if expected:
        assert expected in found["coverage"].text


def test_dependent_values_count_for_less():
    rng = np.random.default_rng(7)
    assert effective(rng.random(4000) < 0.8) == pytest.approx(4000, rel=0.1)
    slow = np.repeat(rng.random(400) < 0.8, 10)
    assert effective(slow) < 400
    low, high = band(100, 0.001)
    assert improbable(low, 100, below=True) >= 0.001 > improbable(low - 0.01, 100, below=True)
    assert improbable(high, 100, below=False) >= 0.0005


def test_calibrated_forecasts_seldom_leave_the_band():
    """Hits autocorrelated like real hits: at 0.001 per side, far fewer than 2 % of weeks leave the band."""
    rng = np.random.default_rng(11)
    rung = 0
    for _ in range(600):
        hits = np.empty(336, dtype=bool)
        hits[0] = rng.random() < 0.8
        stay = rng.random(336) < 0.5
        fresh = rng.random(336) < 0.8
        for k in range(1, 336):
            hits[k] = hits[k - 1] if stay[k] else fresh[k]
        n = effective(hits)
        rung += improbable(float(hits.mean()), n, below=True) < 0.001
    assert rung / 600 < 0.02


def alarm(kind: str, subject: str) -> Alarm:
    return Alarm(kind=kind, subject=subject, severity="warning", since=AT - HALF, text="why")


def test_an_alarm_is_raised_once_and_cleared_once(store):
    one, two = alarm("drift", "a@s count"), alarm("coverage", "a@s price")
    first = settle_alarms(store, [one, two], at=AT)
    assert (first.raised, first.cleared) == ((one, two), ())
    before = read_rows(store, "alarms")
    assert settle_alarms(store, [one, two], at=AT) == settle_alarms(store, [one, two], at=AT + HALF)
    pd.testing.assert_frame_equal(read_rows(store, "alarms"), before)
    gone = settle_alarms(store, [two], at=AT + 2 * HALF)
    assert [each.kind for each in gone.cleared] == ["drift"]
    assert [each.kind for each in standing_alarms(store, at=AT + 2 * HALF)] == ["coverage"]
    assert len(standing_alarms(store, at=AT + HALF)) == 2
    again = settle_alarms(store, [one, two], at=AT + 3 * HALF)
    assert [each.kind for each in again.raised] == ["drift"]
    assert len(read_rows(store, "alarms")) == 3


def test_a_look_at_the_past_changes_nothing(store):
    settle_alarms(store, [alarm("drift", "a@s count")], at=AT)
    late = settle_alarms(store, [alarm("coverage", "a@s price")], at=AT - HALF)
    assert (late.raised, late.cleared) == ((), ())
    assert len(read_rows(store, "alarms")) == 1


def test_alarms_see_nothing_that_came_later(store):
    """Later data, however extreme, do not change the alarms found at an earlier time."""
    times = every(10)
    put(store, "availability", times, lively(len(times)))
    put(store, "price", times[::36], np.linspace(1, 1.1, len(times[::36])).tolist())
    early = AT - pd.Timedelta(hours=30)
    with open_store(":memory:") as short:
        cut = times[times <= early]
        put(short, "availability", cut, lively(len(times))[: len(cut)])
        put(short, "price", cut[::36], np.linspace(1, 1.1, len(times[::36]))[: len(cut[::36])].tolist())
        expected = told(short, at=early)
    put(store, "price", [early - HALF], [50.0], known=[AT - HALF])
    put(store, "availability", [early - HALF / 3], [0], known=[AT])
    assert told(store, at=early) == expected
    assert "impossible price" in told(
        store, at=AT - HALF, settings=Settings(alarms=AlarmSettings(recent_hours=48))
    )


def test_settings_name_the_alarms_that_are_not_wanted(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[alarms]\noff = ["drift"]\nflat_factor = 6.0\n')
    chosen = read_settings(file).alarms
    assert (chosen.off, chosen.flat_factor) == (("drift",), 6.0)
    file.write_text('[alarms]\noff = ["drfit"]\n')
    with pytest.raises(SettingsError, match="unknown alarm 'drfit'"):
        read_settings(file)
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    document = page + described.words()
    for name in (*ALARM_KINDS, *AlarmSettings.model_fields):
        assert name in document, name


@pytest.mark.skipif(not (DATA / "prices.parquet").exists(), reason="SLACKWATER_DATA has no real series")
@pytest.mark.parametrize("kind", ["price", "count"])
def test_real_series_seldom_ring_a_false_alarm(kind):
    """Run over every real series: fewer than a flat line or price jump per 180 days of a series."""
    rules, alarms, days, jumps, jump_days = AlarmSettings(), 0, 0.0, 0, 0.0
    for times, values in real_series(kind):
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        if len(starts) > rules.flat_least:
            alarms += flat_alarms(times, values, starts, rules)
            days += (times[-1] - times[starts[rules.flat_least]]) / 86400
        if kind == "price" and len(starts) > rules.jump_least + 1:
            sizes = np.abs(np.diff(np.log(values[starts])))
            largest = np.maximum.accumulate(sizes)[rules.jump_least - 1 : -1]
            jumps += int((sizes[rules.jump_least :] > rules.jump_factor * largest).sum())
            jump_days += (times[-1] - times[starts[rules.jump_least]]) / 86400
    assert days > 5000
    assert alarms / days < 1 / 180
    if kind == "price":
        assert jumps / jump_days < 1 / 180


def real_series(kind: str):
    columns = ["source", "region", "zone", "instance_type"] + ["product"] * (kind == "price")
    value, file = ("spot_price_usd_per_hour", "prices") if kind == "price" else ("available", "availability")
    frame = pd.read_parquet(DATA / f"{file}.parquet", columns=[*columns, "timestamp", value])
    frame["t"] = frame["timestamp"].astype("datetime64[us, UTC]").astype("int64") / 1e6
    for _, own in frame.sort_values("t", kind="stable").groupby(columns, sort=False, dropna=False):
        if len(own) > 10:
            yield own["t"].to_numpy(), own[value].to_numpy(dtype=float)


def flat_alarms(times, values, starts, rules: AlarmSettings) -> int:
    """Count the flat-line alarms: each run is compared with earlier runs of its sort, as in ``alarm_runs.sql``."""
    levels = values[starts]
    lengths = np.diff(np.r_[times[starts], times[-1]])
    edge = (levels == np.minimum.accumulate(levels)) | (levels == np.maximum.accumulate(levels))
    rung = 0
    for sort in (True, False):
        own = lengths[edge == sort]
        if len(own) > rules.flat_least:
            longest = np.maximum.accumulate(own)[rules.flat_least - 1 : -1]
            rung += int((own[rules.flat_least :] > rules.flat_factor * longest).sum())
    return rung


@pytest.mark.parametrize(
    "at", ["2026-11-23T05:00Z", pytest.param("2026-08-20T18:00Z", marks=pytest.mark.slow)]
)
def test_a_first_turn_on_the_simulated_market_ends_without_an_alarm(store, at):
    """Times at which a price had been flat for long, or the last days of a count differed from earlier days."""
    settings, time = Settings(), pd.Timestamp(at)
    ingest_observations(make_turn(store, time, settings), None)
    listing = list_markets(store)
    markets = list(zip(listing["market"], listing["source"], strict=True))
    assert len(markets) == 7
    assert alarms_of(store, settings, markets, at=time) == []
    facts = read_alarm_facts(store, settings, markets, at=time)
    assert [*flat_lines(facts), *drifts(facts)]  # a measured source would have raised an alarm
