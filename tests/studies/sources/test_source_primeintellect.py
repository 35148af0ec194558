import json

import pandas as pd
from source_files import raw, read, tidy, write

from slackwater.studies.sources.primeintellect import PrimeIntellect

FILE = "primeintellect_A100_80GB_SXM4.jsonl"
SOURCE = "tugot17/gpu-price-tracker"


def snapshot(at, *, total=3, providers=None, sizes=None):
    return json.dumps(
        {
            "timestamp": at,
            "gpu_type": "H100_80GB",
            "socket_type": "SXM5",
            "price_stats": {"min": 1.0, "median": 2.0},
            "availability": {"total": total},
            "by_provider": {p: {"count": n, "min": 1.5, "avg": 2} for p, n in (providers or {}).items()},
            "by_config": {s: {"count": n, "min_total": 9.0} for s, n in (sizes or {}).items()},
        }
    )


def test_counts_and_prices_equal_the_tidy_series():
    frames = read(PrimeIntellect(), raw(FILE))
    wanted = {"source": SOURCE}
    for kind, table, value, key in (
        ("availability", "availability", "available", ["zone", "instance_type"]),
        ("price", "prices", "price_usd", ["zone", "instance_type", "product"]),
    ):
        want = tidy(table, **wanted)
        want = want[want["instance_type"].str.startswith("A100_80GB_SXM4")]
        column = "available" if kind == "availability" else "spot_price_usd_per_hour"
        want = want.set_index([*key, "timestamp"])[column].sort_index()
        found = frames[kind].set_index([*key, "observed_at"])[value].sort_index()
        assert len(want) > 9000
        matched = found.loc[found.index.droplevel(-1).isin(want.index.droplevel(-1).unique())]
        assert matched.index.tolist() == want.index.tolist()
        assert matched.tolist() == want.tolist()


def test_every_snapshot_gives_every_series_and_absence_counts_0():
    frames = read(PrimeIntellect(), raw(FILE))
    counts = frames["availability"]
    assert frames["rejected"].empty
    # all, 5 providers and 8 sizes (the tidy table has four of the sizes)
    assert len(counts) == 957 * (1 + 5 + 8)
    assert counts["line"].nunique() == 957
    per_series = counts.groupby(["zone", "instance_type"])["available"]
    assert (per_series.size() == 957).all()
    assert (counts[counts["zone"] == "lambdalabs"]["available"] == 0).sum() == 101
    assert (counts[counts["instance_type"] == "A100_80GB_SXM4_x2"]["available"] == 0).sum() == 20
    # no offer, no price
    prices = frames["price"]
    assert len(prices[prices["zone"] == "lambdalabs"]) == 957 - 101


def test_a_snapshot_derives_the_documented_rows(tmp_path):
    text = "\n".join(
        [
            snapshot("2025-10-19T21:00:00+00:00", providers={"a": 2, "b": 1}, sizes={"1x": 3}),
            snapshot("2025-10-19T21:30:00+00:00", providers={"a": 5}, sizes={"8x": 5}, total=5),
        ]
    )
    frames = read(PrimeIntellect(), write(tmp_path / "h.jsonl", text + "\n"), source="mine")
    counts = frames["availability"]
    got = {(r.line, r.zone, r.instance_type): r.available for r in counts.itertuples()}
    gpu = "H100_80GB_SXM5"
    assert got == {
        (1, "all", gpu): 3, (1, "a", gpu): 2, (1, "b", gpu): 1, (1, "all", f"{gpu}_x1"): 3, (1, "all", f"{gpu}_x8"): 0,
        (2, "all", gpu): 5, (2, "a", gpu): 5, (2, "b", gpu): 0, (2, "all", f"{gpu}_x1"): 0, (2, "all", f"{gpu}_x8"): 5,
    }  # fmt: skip
    assert counts["capacity"].isna().all()
    assert counts["kind"].unique().tolist() == ["offers"]
    prices = {(r.line, r.zone, r.instance_type, r.product): r.price_usd for r in frames["price"].itertuples()}
    assert prices[1, "all", gpu, "per GPU, median over offers"] == 2.0
    assert prices[2, "all", f"{gpu}_x8", "per instance, min over offers"] == 9.0
    assert (2, "b", gpu, "per GPU, min over offers") not in prices
    assert counts["source"].unique().tolist() == ["mine"]


def test_lines_that_are_no_snapshot_are_rejected_with_the_reason(tmp_path):
    good = snapshot("2025-10-19T21:00:00+00:00", providers={"a": 2})
    bad = [
        '{"timestamp": 1}',
        "",
        good[:50],
        "[]",
        good.replace('"total"', '"totals"'),
        good.replace('"count"', '"n"'),
    ]
    frames = read(PrimeIntellect(), write(tmp_path / "h.jsonl", "\n".join([good, *bad])))
    assert frames["rejected"]["line"].tolist() == [2, 3, 4, 5, 6, 7]
    reasons = frames["rejected"]["reason"].tolist()
    assert reasons[0] == "no timestamp"
    assert reasons[1] == "empty line"
    assert reasons[2].startswith("not JSON")
    assert reasons[3:] == ["not a JSON object", "no availability.total", "no count of 'a' in by_provider"]
    assert frames["availability"]["line"].unique().tolist() == [1]
    assert frames["availability"]["observed_at"].iloc[0] == pd.Timestamp("2025-10-19T21:00:00Z")
