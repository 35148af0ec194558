import json

import pandas as pd
import pytest
from source_files import options, raw, read, tidy, write

from slackwater.studies.sources.skynomad import SkyNomad
from slackwater.studies.sources.skypilot import SkyPilot
from slackwater.warehouse.errors import SettingsError, SourceFileError

SIXTEEN = "skypilot_16node_us-west-2a_v100_1.json"
PRICED = "skypilot_prices_us-east-1b_intel_64.json"


def trace(path, data, gap=300, **more):
    return write(path, json.dumps({"metadata": {"gap_seconds": gap}, "data": data, **more}))


def test_sixteen_node_trace_equals_the_tidy_series():
    found = read(SkyPilot(), raw(SIXTEEN), start="2023-08-27")["availability"]
    want = tidy(
        "availability",
        source="skypilot-org/spot-traces:availability/16-node/aws-08-27-2023",
        zone="us-west-2a",
        instance_type="p3.2xlarge",
    )
    assert len(found) == len(want) == 4736
    assert found["available"].tolist() == want["available"].tolist()
    assert found["observed_at"].tolist() == want["timestamp"].tolist()
    for ours, theirs in (("capacity", "capacity_probed"), ("gap_seconds", "gap_seconds"), ("kind", "kind")):
        assert found[ours].tolist() == want[theirs].tolist()
    place = ("provider", "region", "zone", "instance_type")
    assert found.iloc[0][list(place)].tolist() == want.iloc[0][list(place)].tolist()


def test_priced_trace_has_a_price_at_every_sample_and_the_tidy_series_is_its_changes():
    frames = read(SkyPilot(), raw(PRICED), start="2023-04-19")
    where = {"source": "skypilot-org/spot-traces:preemption/1-node/aws-04-19-2023", "zone": "us-east-1b"}
    counts, prices = frames["availability"], frames["price"]
    want = tidy("availability", **where)
    assert len(counts) == len(prices) == len(want) == 16_090
    assert counts["available"].tolist() == want["available"].tolist()
    assert counts["observed_at"].tolist() == want["timestamp"].tolist()
    assert counts["kind"].unique().tolist() == ["held"]
    kept = tidy("prices", **where)
    changed = prices[prices["price_usd"].diff().ne(0) | (prices.index == len(prices) - 1)]
    assert changed["price_usd"].tolist() == kept["spot_price_usd_per_hour"].tolist()
    assert changed["observed_at"].tolist() == kept["timestamp"].tolist()


def test_an_undated_trace_counts_from_1970_and_says_so():
    path = raw(SIXTEEN)
    found = read(SkyPilot(), path)["availability"]
    assert found["observed_at"].iloc[0] == pd.Timestamp("1970-01-01T00:00Z")
    assert found["line"].tolist() == list(range(1, 4737))
    said = SkyPilot().assumptions(path, options())
    assert len(said) == 1
    assert "1970-01-01" in said[0]
    assert SkyPilot().assumptions(path, options(start="2023-08-27")) == ()


def test_folders_tell_date_nodes_kind_and_label(tmp_path):
    path = trace(tmp_path / "preemption/4-node/aws-08-03-2023/us-east-1f_v100_1.json", [0, 4, 2])
    found = read(SkyPilot(), path)["availability"]
    assert found["observed_at"].iloc[0] == pd.Timestamp("2023-08-03T00:00Z")
    assert found["capacity"].tolist() == [4, 4, 4]
    assert found["kind"].tolist() == ["held"] * 3
    assert found["source"].unique().tolist() == ["skypilot:4node:2023-08-03"]
    assert SkyPilot().assumptions(path, options()) == ()
    assert read(SkyPilot(), path, kind="probe")["availability"]["kind"].tolist() == ["probe"] * 3


def test_options_override_the_names(tmp_path):
    path = trace(tmp_path / "aws-08-03-2023" / "us-east-1f_v100_1.json", [1, 0])
    given = {"zone": "us-central1-a", "instance_type": "c3-highcpu-88", "start": "2023-04-30T05:00+02:00"}
    row = read(SkyPilot(), path, **given, source="mine", capacity="3")["availability"].iloc[0]
    assert (row["provider"], row["region"], row["zone"]) == ("gcp", "us-central1", "us-central1-a")
    assert (row["instance_type"], row["source"], row["capacity"]) == ("c3-highcpu-88", "mine", 3)
    assert row["observed_at"] == pd.Timestamp("2023-04-30T03:00Z")


@pytest.mark.parametrize(
    ("alias", "instance_type"),
    [("v100_1", "p3.2xlarge"), ("v100_8", "p3.16xlarge"), ("k80_1", "p2.xlarge"),
     ("k80_8", "p2.16xlarge"), ("intel_64", "r5.16xlarge")],
)  # fmt: skip
def test_aliases_of_instance_types(tmp_path, alias, instance_type):
    path = trace(tmp_path / f"us-west-2a_{alias}.json", [1])
    assert read(SkyPilot(), path)["availability"]["instance_type"].tolist() == [instance_type]


def test_without_zone_or_type_it_is_refused_with_the_option_to_give(tmp_path):
    with pytest.raises(SourceFileError, match=r"no zone .*option zone="):
        read(SkyPilot(), trace(tmp_path / "v100_1.json", [1]))
    with pytest.raises(SourceFileError, match=r"no instance type .*option instance_type="):
        read(SkyPilot(), trace(tmp_path / "us-west-2a.json", [1]))
    with pytest.raises(SourceFileError, match=r"zone 'moon'"):
        read(SkyPilot(), trace(tmp_path / "us-west-2a_v100_1.json", [1]), zone="moon")


def test_samples_that_are_no_counts_are_rejected_rows(tmp_path):
    path = trace(tmp_path / "us-west-2a_v100_1.json", [1, None, 2.5, "x", 2.0], prices=[0.9, "y", 1, 1, 1])
    frames = read(SkyPilot(), path)
    assert frames["availability"]["line"].tolist() == [1, 5]
    assert frames["availability"]["available"].tolist() == [1, 2]
    assert frames["price"]["line"].tolist() == [1, 3, 4, 5]
    assert sorted(frames["rejected"]["line"]) == [2, 2, 3, 4]


@pytest.mark.parametrize("given", [{"start": "soon"}, {"capacity": "0"}, {"kind": "guess"}, {"speed": "1"}])
def test_options_out_of_range_are_refused(tmp_path, given):
    path = trace(tmp_path / "us-west-2a_v100_1.json", [1])
    with pytest.raises(SettingsError, match=next(iter(given))):
        read(SkyPilot(), path, **given)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"metadata": {"gap_seconds": 300}, "data": []}, "without samples"),
        ({"metadata": {"gap_seconds": 0}, "data": [1]}, "without metadata.gap_seconds"),
        ({"metadata": {"gap_seconds": 300}, "data": 3}, "no list of counts"),
        ({"metadata": {"gap_seconds": 300}, "data": [1, 2], "prices": [1]}, "1 prices for 2 counts"),
        ([1, 2], "without metadata.gap_seconds"),
    ],
)
def test_json_of_another_form_is_refused(tmp_path, content, found):
    path = write(tmp_path / "us-west-2a_v100_1.json", json.dumps(content))
    with pytest.raises(SourceFileError, match=found):
        read(SkyPilot(), path)


@pytest.mark.parametrize("source", [SkyPilot(), SkyNomad()], ids=lambda source: source.name)
@pytest.mark.parametrize("between", ["", "\n"])
def test_a_file_of_two_documents_is_refused_as_a_whole(tmp_path, source, between):
    name = next(name for name in source.examples if name.endswith(".json"))
    path = write(tmp_path / name, between.join([source.examples[name].replace("\n", "")] * 2))
    with pytest.raises(SourceFileError, match="2 JSON values"):
        read(source, path)
