import json

import pandas as pd
import pytest
from source_files import raw, read, tidy, write

from slackwater.studies.sources.skynomad import SkyNomad
from slackwater.warehouse.errors import SettingsError, SourceFileError

CSV = "skynomad_availability_us-west-2a_v100_1.csv"
ROUND = "skynomad_h100_probe_20251003-171000.json"


def probe_round(path, results, **more):
    content = {
        "scheduled_at": "2025-10-03T17:10:00-07:00",
        "ended_at": "2025-10-03T17:11:25-07:00",
        "interval_sec": 600,
        "status": "success",
        "zone_results": results,
        "zones_probed": sorted(results),
    }
    return write(path, json.dumps(content | more))


def test_the_csv_equals_the_tidy_series():
    found = read(SkyNomad(), raw(CSV))["availability"]
    want = tidy(
        "availability",
        source="andylizf/skynomad-artifact:v100",
        zone="us-west-2a",
        instance_type="p3.2xlarge",
    )
    assert len(found) == len(want) == 20_158
    assert pd.to_numeric(found["available"]).tolist() == want["available"].tolist()
    assert found["observed_at"].tolist() == want["timestamp"].tolist()
    for ours, theirs in (("capacity", "capacity_probed"), ("gap_seconds", "gap_seconds"), ("kind", "kind")):
        assert found[ours].tolist() == want[theirs].tolist()
    assert found["line"].tolist() == list(range(2, 20_160))
    assert found["region"].unique().tolist() == ["us-west-2"]


def test_the_round_equals_the_first_row_of_every_zone_of_the_tidy_table():
    found = read(SkyNomad(), raw(ROUND))["availability"]
    want = tidy("availability", source="andylizf/skynomad-artifact:h100").groupby("zone").first()
    assert len(found) == 13
    assert len(want) == 9
    found = found.set_index("zone").loc[want.index]
    assert found["available"].tolist() == want["available"].tolist()
    assert found["capacity"].tolist() == want["capacity_probed"].tolist()
    assert found["observed_at"].tolist() == want["timestamp"].tolist()
    assert found["region"].tolist() == want["region"].tolist()
    assert found["instance_type"].unique().tolist() == ["a3-highgpu-1g"]
    assert (
        found["known_at"] == pd.Timestamp("2025-10-03T17:11:25.501906-07:00")
    ).all()  # when the round ended


def test_a_folder_of_rounds_is_read_file_by_file(tmp_path):
    for i in range(3):
        probe_round(
            tmp_path / "h100" / f"r{i}.json",
            {"us-east4-a": {"instances_created": i, "instances_requested": 16}},
        )
    write(tmp_path / "h100" / "other.json", '{"a": 1}')
    files = SkyNomad().files([tmp_path])
    assert [p.name for p in files] == ["r0.json", "r1.json", "r2.json"]
    assert [read(SkyNomad(), p)["availability"]["available"].tolist() for p in files] == [[0], [1], [2]]


def test_a_zone_without_a_result_and_a_failed_round_are_rejected(tmp_path):
    good = {"us-east4-a": {"instances_created": 3, "instances_requested": 16}, "us-west1-a": {}}
    frames = read(
        SkyNomad(), probe_round(tmp_path / "h100_a.json", good, zones_probed=["us-east4-a", "us-west1-b"])
    )
    assert frames["availability"]["zone"].tolist() == ["us-east4-a"]
    assert frames["rejected"]["raw"].tolist() == ["us-west1-a", "us-west1-b"]
    assert frames["rejected"]["reason"].unique().tolist() == ["zone probed without a result"]
    with pytest.raises(SourceFileError, match="status 'failed'"):
        read(SkyNomad(), probe_round(tmp_path / "h100_b.json", good, status="failed"))
    with pytest.raises(SourceFileError, match="status 'zzz") as refused:
        read(SkyNomad(), probe_round(tmp_path / "h100_c.json", good, status="z" * 60_000))
    assert len(str(refused.value)) < 1000, "what is said of a value does not grow with it"


def test_the_type_of_a_round_must_be_told(tmp_path):
    path = probe_round(
        tmp_path / "r.json", {"us-east4-a": {"instances_created": 3, "instances_requested": 16}}
    )
    with pytest.raises(SourceFileError, match="option instance_type="):
        read(SkyNomad(), path)
    found = read(SkyNomad(), path, instance_type="a3-highgpu-1g", source="mine")["availability"].iloc[0]
    assert (found["instance_type"], found["source"]) == ("a3-highgpu-1g", "mine")


def test_broken_csv_lines_are_rejected_and_gap_is_the_median(tmp_path):
    text = "date,availability\n2023-01-01 00:00:00,1\n2023-01-01 00:01:00\n2023-01-01 00:02:00,0\n2023-01-01 00:03:01,7\n"
    path = write(tmp_path / "us-west-2a_v100_1.csv", text)
    frames = read(SkyNomad(), path)
    assert frames["availability"]["line"].tolist() == [2, 4, 5]
    assert frames["availability"]["gap_seconds"].unique().tolist() == [60]
    assert frames["rejected"]["line"].tolist() == [3]
    assert read(SkyNomad(), path, gap_seconds="90")["availability"]["gap_seconds"].unique().tolist() == [90]
    with pytest.raises(SettingsError, match="gap_seconds"):
        read(SkyNomad(), path, gap_seconds="-1")
