import pandas as pd
import pytest
from source_files import options, raw, read, tidy, write

from slackwater.studies.sources.bamboo import Bamboo
from slackwater.warehouse.errors import SourceFileError

COUNTS = "bamboo_gcp_v100x1-east1c.txt"
EVENTS = "bamboo_aws_p3_events.csv"


def test_the_count_list_gives_every_line_and_its_last_lines_are_the_tidy_series():
    found = read(Bamboo(), raw(COUNTS))["availability"]
    assert len(found) == 1477
    assert found["line"].tolist() == list(range(1, 1478))
    want = tidy("availability", source="uclasystem/bamboo:traces/gcloud/v100x1-east1c.txt")
    last = found.drop_duplicates("observed_at", keep="last").sort_values("observed_at")
    assert len(last) == len(want) == 1461
    assert last["observed_at"].tolist() == want["timestamp"].tolist()
    assert last["available"].tolist() == want["available"].tolist()
    place = ["provider", "region", "zone", "instance_type"]
    assert found.iloc[0][place].tolist() == want.iloc[0][place].tolist()
    assert found["capacity"].unique().tolist() == [80]
    assert found["source"].unique().tolist() == ["bamboo:counts"]
    assert found["kind"].unique().tolist() == ["held"]


def test_the_events_give_a_count_a_minute_equal_to_the_tidy_series():
    found = read(Bamboo(), raw(EVENTS))["availability"]
    want = tidy("availability", source="uclasystem/bamboo:traces/p3-trace.csv")
    assert len(found) == len(want) == 683
    assert found["available"].tolist() == want["available"].tolist()
    assert found["observed_at"].tolist() == want["timestamp"].tolist()
    assert found["capacity"].tolist() == want["capacity_probed"].tolist()
    assert found["line"].iloc[-1] == 344
    assert found["source"].unique().tolist() == ["bamboo:events"]
    assert found["line"].is_monotonic_increasing
    assert found.iloc[0][["provider", "region", "zone", "instance_type"]].tolist() == [
        "aws", "unknown", "unknown", "p3.2xlarge"
    ]  # fmt: skip


def test_what_is_not_in_the_files_is_said():
    said = " / ".join(Bamboo().assumptions(raw(EVENTS), options()))
    assert "1970-01-01" in said
    assert "zone and region unknown" in said
    assert "32" in said
    assert "p3.2xlarge" in said
    told = options(start="2022-01-01", zone="us-west-2a", instance_type="p3.2xlarge", capacity="48")
    assert Bamboo().assumptions(raw(EVENTS), told) == ()
    assert any("UTC" in text for text in Bamboo().assumptions(raw(COUNTS), options()))


def test_events_are_counted_up_to_and_including_the_minute(tmp_path):
    text = "0,add,a\n60000,add,b\n60001,remove,a\n30000,add,c\n150000,remove,b\n"
    found = read(Bamboo(), write(tmp_path / "e.csv", text), start="2022-01-01", zone="us-west-2a")[
        "availability"
    ]
    assert found["available"].tolist() == [1, 3, 2, 1]
    assert found["line"].tolist() == [1, 4, 4, 5]
    assert found["observed_at"].iloc[-1] == pd.Timestamp("2022-01-01T00:03Z")
    assert found["region"].unique().tolist() == ["us-west-2"]


def test_impossible_events_and_broken_lines_are_rejected_and_do_not_count(tmp_path):
    text = "0,add,a\n0,add,a\n60000,remove,z\nnoise\n\n120000,add,b\n99999999999999,add,c\n"
    frames = read(Bamboo(), write(tmp_path / "e.csv", text))
    assert frames["availability"]["available"].tolist() == [1, 1, 2]
    reasons = frames["rejected"].set_index("line")["reason"].to_dict()
    assert sorted(reasons) == [2, 3, 4, 5, 7]
    assert "more than a year" in reasons[7]
    assert "adds a node that is there" in reasons[2]
    assert "removes a node that is not there" in reasons[3]


def test_count_lines_that_cannot_be_read_are_rejected(tmp_path):
    text = "2021-12-10, 13:07:45, 80\n2021-12-10, 13:08, 70\n2021-12-10, 13:07:45, 79\n"
    frames = read(Bamboo(), write(tmp_path / "v100x1-west1b.txt", text))
    assert frames["availability"]["available"].tolist() == [80, 79]
    assert frames["availability"]["zone"].unique().tolist() == ["us-west1-b"]
    assert frames["rejected"]["line"].tolist() == [2]


def test_a_count_list_without_a_place_is_refused(tmp_path):
    with pytest.raises(SourceFileError, match="option zone="):
        read(Bamboo(), write(tmp_path / "trace.txt", "2021-12-10, 13:07:45, 80\n"))
