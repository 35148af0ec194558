"""Reading a folder of tidy tables: the slot grid, exclusions, and errors with advice."""

import numpy as np
import pandas as pd
import pytest
from tidy_folder import write_tidy

from slackwater.studies.experiments.material import (
    LONGEST_JOB,
    STEP,
    count_tapes,
    price_tapes,
    read_table,
    read_tapes,
)
from slackwater.warehouse.asof import load_history
from slackwater.warehouse.errors import MarketError, SourceFileError
from slackwater.warehouse.history import Market
from slackwater.warehouse.store.connection import open_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tidy(tmp_path_factory.mktemp("tidy"))


@pytest.fixture(scope="module")
def tapes(folder):
    return read_tapes(folder)


def test_series_of_the_folder(tapes):
    assert [t.market.zone for t in tapes.counts] == ["z1", "z2", "z3", "z9"]
    assert {t.market.zone for t in tapes.paths} == {"z1", "y1", "y2"}  # y3 has no on-demand price
    for tape in (*tapes.counts, *tapes.paths):
        assert len(tape) - tape.half > LONGEST_JOB
        assert tape.first == tape.first.ceil(STEP)
        assert tape.step == STEP
        assert str(tape.first.tz) == "UTC"
    assert tapes.counts[0].bound == 16
    assert tapes.paths[0].bound in (1.0, 4.0)
    assert any("3 of 4 price paths" in note for note in tapes.notes)


def test_the_grid_is_the_warehouses(folder, tapes):
    from slackwater.warehouse.observations import ingest

    with open_store(":memory:") as store:
        at = pd.Timestamp("2026-01-01", tz="UTC")
        ingest(store, "tabular", folder, imported_at=at)
        own = next(t for t in tapes.counts if t.market.zone == "z1")
        end = own.time(len(own) - 1)
        history = load_history(
            store,
            Market.parse("lab/r1/z1/a3-highgpu-1g"),
            start=own.first,
            end=end + STEP,
            step=STEP,
            known_at=end,
        )
    price = next(t for t in tapes.paths if t.market.zone == "z1")
    np.testing.assert_array_equal(history.available, own.values)
    np.testing.assert_array_equal(history.price[: len(price)], price.values)


def test_the_newest_value_at_the_start_of_a_slot_is_its_value(folder, tapes):
    raw = pd.read_parquet(folder / "availability.parquet")
    own = next(t for t in tapes.counts if t.market.zone == "z2")
    rows = raw[raw["zone"] == "z2"].set_index("timestamp")["available"]
    for slot in (0, 7, len(own) - 1):
        assert own.values[slot] == rows[: own.time(slot)].iloc[-1]


def test_a_hole_is_a_gap(folder):
    raw = read_table(folder, "availability", ("zone", "timestamp"))
    mine = raw[raw["zone"] == "z1"]
    at = mine["timestamp"].iloc[0] + pd.Timedelta(days=2)
    holed = mine[(mine["timestamp"] < at) | (mine["timestamp"] > at + pd.Timedelta(hours=5))]
    whole, tape = next(count_tapes(mine)), next(count_tapes(holed))
    gap = np.isnan(tape.values)
    assert not np.isnan(whole.values).any()
    assert 8 <= gap.sum() <= 10  # five hours without the half hour that three probes' gaps bridge
    np.testing.assert_array_equal(tape.values[~gap], whole.values[~gap])


def test_a_price_is_too_old_after_a_day_and_a_half(folder):
    """On-change prices repeat about every 24 h; 36 h after the last one nothing is known (M1.3)."""
    prices = pd.read_parquet(folder / "prices.parquet").query("zone == 'y1'").sort_values("timestamp")
    counts = pd.read_parquet(folder / "availability.parquet")
    whole = next(price_tapes(prices, counts))
    last = whole.first + 2 * pd.Timedelta(days=1)
    hole = (prices["timestamp"] >= last) & (prices["timestamp"] <= last + pd.Timedelta(days=3))
    at_last = prices.iloc[:1].assign(timestamp=last)
    tape = next(price_tapes(pd.concat([prices[~hole], at_last]), counts))
    known = ~np.isnan(tape.values)
    since = [(tape.time(slot) - last) / pd.Timedelta(hours=1) for slot in range(len(tape))]
    after = [hours for hours, there in zip(since, known, strict=True) if 0 <= hours <= 72 and there]
    assert (min(after), max(after)) == (0.0, 36.0)
    assert len(after) == 73  # every half hour of it


def test_offers_and_unknown_capacities_are_left_out(folder):
    raw = pd.read_parquet(folder / "availability.parquet")
    offers = raw.assign(kind=np.where(raw["zone"] == "z1", "offers", raw["kind"]))
    blind = offers.assign(capacity_probed=offers["capacity_probed"].mask(offers["zone"] == "z2"))
    assert [t.market.zone for t in count_tapes(blind)] == ["z3", "z9"]


def test_a_gap_that_is_not_stated_is_the_usual_distance(folder):
    mine = pd.read_parquet(folder / "availability.parquet").query("zone == 'z1'")
    blind = mine.assign(gap_seconds=pd.array([pd.NA] * len(mine), dtype="Int32"))
    holed = pd.concat([blind.iloc[:300], blind.iloc[330:]])
    assert not np.isnan(next(count_tapes(blind)).values).any()
    gap = np.isnan(next(count_tapes(holed)).values).sum()
    assert 8 <= gap <= 10  # five hours less the half hour that three times ten minutes bridge
    assert len(next(count_tapes(blind.iloc[:1]))) <= 1


def test_on_demand_is_learned_from_the_first_half(folder, tmp_path):
    prices = pd.read_parquet(folder / "prices.parquet")
    middle = prices["timestamp"].min() + (prices["timestamp"].max() - prices["timestamp"].min()) / 2
    later = prices["timestamp"] > middle
    prices.loc[later, "on_demand_price_usd_per_hour"] *= 7
    prices.to_parquet(tmp_path / "prices.parquet")
    pd.read_parquet(folder / "availability.parquet").to_parquet(tmp_path / "availability.parquet")
    assert {t.bound for t in read_tapes(tmp_path).paths} == {1.0, 4.0}


def test_bad_folders_say_what_to_do(folder, tmp_path):
    with pytest.raises(SourceFileError, match=r"no prices.parquet \(no such folder\).*--data"):
        read_tapes(tmp_path / "nowhere")
    with pytest.raises(SourceFileError, match="an empty folder"):
        read_tapes(tmp_path)
    prices, counts = (pd.read_parquet(folder / f"{name}.parquet") for name in ("prices", "availability"))
    prices.to_parquet(tmp_path / "prices.parquet")
    with pytest.raises(SourceFileError, match=r"no availability.parquet \(prices.parquet\)"):
        read_tapes(tmp_path)
    (tmp_path / "availability.parquet").write_bytes(b"nothing")
    with pytest.raises(SourceFileError, match="not readable as Parquet"):
        read_tapes(tmp_path)
    counts.drop(columns=["kind", "available"]).to_parquet(tmp_path / "availability.parquet")
    with pytest.raises(SourceFileError, match=r"no column available, kind; expected columns provider"):
        read_tapes(tmp_path)
    counts.assign(timestamp=counts["timestamp"].astype(str)).to_parquet(tmp_path / "availability.parquet")
    with pytest.raises(SourceFileError, match="timestamp of type"):
        read_tapes(tmp_path)
    counts.iloc[:0].to_parquet(tmp_path / "availability.parquet")
    with pytest.raises(SourceFileError, match="no row"):
        read_tapes(tmp_path)
    write_tidy(tmp_path, days=1.5)
    with pytest.raises(
        MarketError, match=r"4 count series, none long enough; expected .*97 slots of 30 minutes"
    ):
        read_tapes(tmp_path)
