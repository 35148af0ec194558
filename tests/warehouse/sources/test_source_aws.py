import json

import pandas as pd
import pytest
from source_files import options, raw, read, tidy, write

from warehouse.errors import SourceFileError
from warehouse.sources.files.aws import Aws, region_of_zone_id

HISTORY = "aws_describe-spot-price-history_g3.8xlarge.json"
EMPTY = "aws_describe-spot-price-history_empty.json"
ARCHIVE = "aws_spot_prices_2022-05.tsv.zst"
RECORD = {
    "AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX",
    "SpotPrice": "0.9180", "Timestamp": "2021-05-30T20:47:31+00:00",
}  # fmt: skip
KEY = ["zone", "instance_type", "product", "timestamp"]


def as_tidy(prices):
    frame = prices.rename(columns={"observed_at": "timestamp"})
    return frame.assign(price=pd.to_numeric(frame["price_usd"])).set_index(KEY).sort_index()


def test_the_json_equals_the_tidy_series_of_all_products_and_zones():
    frames = read(Aws(), raw(HISTORY))
    found = as_tidy(frames["price"])
    want = tidy("prices", source="LucianaMarques/amazon-spot-dataset", instance_type="g3.8xlarge")
    want = want.set_index(KEY).sort_index()
    assert frames["rejected"].empty
    assert len(found) == len(want) == 2175
    assert found.index.equals(want.index)
    assert found["price"].tolist() == want["spot_price_usd_per_hour"].tolist()
    assert sorted(found.index.get_level_values("product").unique()) == [
        "Linux/UNIX", "Red Hat Enterprise Linux", "SUSE Linux", "Windows"
    ]  # fmt: skip
    assert found["region"].unique().tolist() == ["us-east-1"]
    assert found["on_demand_usd"].isna().all()  # AWS does not say it here


def test_the_archive_is_counted_whole_and_holds_the_tidy_rows():
    frames = read(Aws(), raw(ARCHIVE))
    assert len(frames["price"]) == 33_362
    assert frames["rejected"].empty
    assert frames["price"]["line"].tolist() == list(range(1, 33_363))
    want = tidy("prices", source="ericpauley/aws-spot-price-history").set_index(KEY).sort_index()
    found = as_tidy(frames["price"]).loc[want.index]
    assert len(found) == len(want) == 1965
    assert found["price"].tolist() == want["spot_price_usd_per_hour"].tolist()
    assert found["region"].tolist() == want["region"].tolist()


def test_an_empty_answer_is_refused_with_the_remedy():
    with pytest.raises(SourceFileError, match=r"no record.*check the instance type and region") as caught:
        read(Aws(), raw(EMPTY))
    assert EMPTY in str(caught.value)
    assert caught.value.line == 1


def test_a_file_without_extension_is_found_and_read(tmp_path):
    path = write(tmp_path / "p3.2xlarge", json.dumps({"SpotPriceHistory": [RECORD], "NextToken": ""}))
    write(tmp_path / "LICENSE", "text")
    assert Aws().files([tmp_path]) == [path]
    row = read(Aws(), path)["price"].iloc[0]
    assert (row["price_usd"], row["line"], row["source"], row["provider"]) == ("0.9180", 1, "aws", "aws")
    assert Aws().assumptions(path, options()) == ()


def test_records_that_cannot_be_used_are_rejected(tmp_path):
    records = [RECORD, RECORD | {"AvailabilityZone": "mars-1"}, {k: RECORD[k] for k in list(RECORD)[:3]}, 7]
    frames = read(Aws(), write(tmp_path / "h.json", json.dumps({"SpotPriceHistory": records})))
    assert frames["price"]["line"].tolist() == [1]
    assert frames["rejected"]["line"].tolist() == [2, 3, 4]
    assert frames["rejected"]["reason"].tolist()[:2] == [
        "unknown zone 'mars-1': no AWS zone or zone ID of a known region",
        "record without SpotPrice",
    ]


def test_an_unknown_zone_id_prefix_is_a_rejected_row(tmp_path):
    good = "use1-az6\tp3.2xlarge\tLinux/UNIX\t0.918\t2022-05-31T18:20:41+00:00\n"
    text = (
        good + good.replace("use1", "moon7") + "use1-az6\tp3.2xlarge\n" + good.replace("use1-az6", "euw3-az1")
    )
    frames = read(Aws(), write(tmp_path / "a.tsv", text))
    assert frames["price"]["line"].tolist() == [1, 4]
    assert frames["price"]["region"].tolist() == ["us-east-1", "eu-west-3"]
    assert frames["price"]["zone"].tolist() == ["use1-az6", "euw3-az1"]
    assert sorted(frames["rejected"]["line"]) == [2, 3]
    reasons = dict(zip(frames["rejected"]["line"], frames["rejected"]["reason"], strict=True))
    assert "'moon7-az6'" in reasons[2]
    assert "2 fields where 5" in reasons[3]


def test_every_zone_id_prefix_of_the_tidy_table_is_known_with_its_region():
    want = tidy("prices", source="ericpauley/aws-spot-price-history")
    pairs = set(zip(want["zone"], want["region"], strict=True))
    assert pairs
    assert all(region_of_zone_id(zone) == region for zone, region in pairs)
    assert region_of_zone_id("use1") is None
