import pandas as pd
import pytest
from source_files import raw, read, tidy, write

from slackwater.studies.sources.vastai import COLUMNS, VastAi
from slackwater.warehouse.errors import SettingsError

FILE = "vastai_observations.csv"
SOURCE = "cherielilili/gpu-pricing-tracker"
OWN = "https://console.vast.ai/api/v0/bundles/"


def line(day, model, gpus, region, rental, price, offers, *, url=OWN, at="20:30:00"):
    return f"{day},vast.ai,{model},{gpus},{region},{rental},{price},{price},{price},{offers},{url},{day}T{at}+00:00"


def table(path, lines):
    return write(path, "\n".join([",".join(COLUMNS), *lines]) + "\n")


@pytest.fixture(scope="module")
def real():
    return read(VastAi(), raw(FILE))


def test_counts_equal_the_tidy_series_with_zeros_and_cut_off_days(real):
    key = ["region", "instance_type", "timestamp"]
    found = real["availability"].rename(columns={"observed_at": "timestamp"}).set_index(key).sort_index()
    want = tidy("availability", source=SOURCE).set_index(key).sort_index()
    assert len(found) == len(want) == 11_742
    assert found.index.equals(want.index)
    assert found["available"].tolist() == want["available"].tolist()
    assert found["truncated"].tolist() == want["truncated"].tolist()
    cut_off = found[found["truncated"]].index.get_level_values("timestamp").normalize().unique()
    assert len(cut_off) == 45
    assert (found["available"][found["truncated"]] > 0).all()


def test_prices_equal_the_tidy_series_with_on_demand(real):
    key = ["region", "instance_type", "product", "timestamp"]
    found = real["price"].rename(columns={"observed_at": "timestamp"}).set_index(key).sort_index()
    want = tidy("prices", source=SOURCE).set_index(key).sort_index()
    assert len(found) == len(want) == 9321
    assert found.index.equals(want.index)
    assert found["price_usd"].to_numpy() == pytest.approx(
        want["spot_price_usd_per_hour"].to_numpy(), abs=1e-9
    )
    on_demand = want["on_demand_price_usd_per_hour"]
    assert found["on_demand_usd"].isna().tolist() == on_demand.isna().tolist()
    assert found["on_demand_usd"].dropna().to_numpy() == pytest.approx(
        on_demand.dropna().to_numpy(), abs=1e-9
    )


def test_every_line_is_used_or_rejected(real):
    rejected = real["rejected"]
    reasons = rejected["reason"].value_counts().to_dict()
    assert reasons == {
        "row from getdeploying.com: prices are per instance, not an interruptible offer of Vast.ai": 327,
        "on-demand offer without an interruptible offer of the same day, country and size": 1270,
    }
    interruptible = real["price"].query("region != 'all'")["line"]
    carried = real["price"].query("region != 'all' and product == 'interruptible, min over offers'")[
        "on_demand_usd"
    ]
    # 3,902 interruptible lines, 3,255 on-demand lines joined to them, 1,597 rejected: the 8,754 lines after the header
    assert interruptible.nunique() == 3902
    assert carried.notna().sum() == 3255
    assert set(rejected["line"]).isdisjoint(interruptible)
    assert 3902 + 3255 + len(rejected) == 8754


def test_nothing_is_known_before_it_was_fetched(real):
    for kind in ("price", "availability"):
        stated = real[kind].dropna(subset="known_at")
        assert len(stated) > 1000
        assert (stated["known_at"] >= stated["observed_at"]).all()


def test_rows_derived_from_a_whole_and_a_cut_off_day(tmp_path):
    lines = [
        line("2026-01-01", "L40S", 2, "US", "spot", 0.5, 3, at="08:00:00"),
        line("2026-01-01", "L40S", 2, "DE", "spot", 0.4, 1),
        line("2026-01-01", "L40S", 2, "US", "on_demand", 1.1, 5),
        line("2026-01-02", "L40S", 2, "US", "spot", 0.6, 2),
        line("2026-01-02", "L40S", 2, "US", "on_demand", 1.0, 64),
        line("2026-01-03", "L40S", 2, "DE", "spot", 0.6, 2),
    ]
    frames = read(VastAi(), table(tmp_path / "v.csv", lines))
    got = {
        (r.observed_at.day, r.region): (r.available, r.truncated, r.line)
        for r in frames["availability"].itertuples()
    }
    assert got == {
        (1, "US"): (3, False, 2), (1, "DE"): (1, False, 3), (1, "all"): (4, False, 3),
        (2, "US"): (2, True, 5), (2, "all"): (2, True, 5),  # 64 on-demand offers: cut off, so DE is unknown
        (3, "DE"): (2, False, 7), (3, "US"): (0, False, 7), (3, "all"): (2, False, 7),
    }  # fmt: skip
    prices = frames["price"].query("product == 'interruptible, min over offers'")
    assert {(r.observed_at.day, r.region): r.price_usd for r in prices.itertuples()} == {
        (1, "US"): 1.0, (1, "DE"): 0.8, (1, "all"): 0.8, (2, "US"): 1.2, (2, "all"): 1.2, (3, "DE"): 1.2, (3, "all"): 1.2,
    }  # fmt: skip
    assert prices.set_index("line")["on_demand_usd"].dropna().to_dict() == {2: 2.2, 5: 2.0}
    world = frames["availability"].query("region == 'all'").iloc[0]
    assert world["observed_at"] == pd.Timestamp("2026-01-01T08:00Z")
    assert world["known_at"] == pd.Timestamp("2026-01-01T20:30Z")
    assert frames["rejected"].empty


def test_further_cut_off_days_can_be_named(tmp_path):
    path = table(tmp_path / "v.csv", [line("2026-01-01", "L40S", 1, "US", "spot", 0.5, 3)])
    found = read(VastAi(), path, truncated_days="2026-01-01, 2026-01-05")["availability"]
    assert found["truncated"].tolist() == [True, True]
    with pytest.raises(SettingsError, match="truncated_days"):
        read(VastAi(), path, truncated_days="yesterday")


def test_lines_that_cannot_be_used_say_why(tmp_path):
    good = line("2026-01-01", "L40S", 1, "US", "spot", 0.5, 3)
    lines = [
        good,
        line("2026-01-01", "L40S", 1, "US", "spot", 0.5, 3, url="https://notvast.ai/x"),
        line("2026-01-01", "L40S", 1, "US", "reserved", 0.5, 3),
        line("2026-01-01", "L40S", "one", "US", "spot", 0.5, 3),
        "short,line",
        line("2026-01-01", "L40S", 1, "US", "on_demand", 1.0, 3),
        line("2026-01-01", "L40S", 1, "US", "on_demand", 1.5, 3),
        line("2026-01-01", "L40S", 0, "US", "spot", 0.5, 3),
        line("2026-01-01", "L40S", "9" * 400, "US", "spot", 0.5, 3),
    ]
    frames = read(VastAi(), table(tmp_path / "v.csv", lines))
    reasons = frames["rejected"].set_index("line")["reason"].to_dict()
    assert sorted(reasons) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert "row from notvast.ai" in reasons[3]
    assert "rental type 'reserved'" in reasons[4]
    assert "not a date or number" in reasons[5]
    assert "2 fields where 12" in reasons[6]
    assert "contradicts another of the same fetch" in reasons[7] == reasons[8]
    assert "1 to 1024 GPUs and at least 0 offers, found 0 and 3" in reasons[9]
    assert "found 999" in reasons[10]
    assert frames["price"]["on_demand_usd"].isna().all()


def test_the_newest_fetch_counts_whatever_the_order_and_contradicting_lines_give_no_sum(tmp_path):
    early = line("2026-01-01", "L40S", 1, "US", "spot", 0.5, 3, at="08:00:00")
    late = line("2026-01-01", "L40S", 1, "US", "spot", 0.4, 4)
    listed = [
        line("2026-01-01", "L40S", 1, "US", "on_demand", usd, 5, at=at)
        for usd, at in ((1.0, "08:00:00"), (2.0, "20:30:00"))
    ]
    for lines in ([early, late, *listed], [late, early, *listed[::-1]]):
        frames = read(VastAi(), table(tmp_path / "v.csv", lines))
        assert frames["availability"].query("region == 'all'")["available"].tolist() == [4]
        assert frames["price"]["on_demand_usd"].dropna().unique().tolist() == [2.0]
        assert frames["rejected"]["reason"].str.startswith("on-demand offer fetched before line").all()
    other = line("2026-01-01", "L40S", 1, "US", "spot", 0.6, 9)
    frames = read(VastAi(), table(tmp_path / "v.csv", [late, other]))
    assert frames["availability"]["region"].tolist() == ["US", "US"]  # the store sets both aside
    assert set(frames["price"]["region"]) == {"US"}


def test_a_placeholder_of_one_country_is_no_price_of_the_world(tmp_path):
    prices = [("US", "nan"), ("DE", 0.0), ("FR", 0.7)]
    lines = [line("2026-01-01", "L40S", 1, place, "spot", usd, 3) for place, usd in prices]
    for order in (lines, lines[::-1]):
        world = read(VastAi(), table(tmp_path / "v.csv", order))["price"].query("region == 'all'")
        assert world["price_usd"].tolist() == [0.7]
