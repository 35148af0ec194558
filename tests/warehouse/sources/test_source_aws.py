import json

import pandas as pd
import pytest
from source_files import options, raw, read, tidy, write

from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.files.aws import Aws, region_of_zone_id

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
    assert found["on_demand_usd"].isna().all()  # AWS does not report it here


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


def test_another_price_is_no_spot_price_where_a_record_leaves_that_empty(tmp_path):
    records = [RECORD | {"SpotPrice": spot, "Price": "3.06"} for spot in (None, "", "0.9180")]
    shell = {name: value for name, value in RECORD.items() if name != "SpotPrice"} | {"Price": "0.9180"}
    frames = read(Aws(), write(tmp_path / "h.json", json.dumps([*records, shell])))
    assert frames["price"]["line"].tolist() == [3, 4]
    assert frames["price"]["price_usd"].tolist() == ["0.9180", "0.9180"]
    assert frames["rejected"]["reason"].tolist() == ["record without SpotPrice"] * 2


def test_a_time_in_the_zone_of_another_field_is_not_utc(tmp_path):
    texts = ("2021-05-30 20:47:31", "2021-05-30T20:47:31+00:00")
    records = [
        RECORD | {"Timestamp": text, "timezone": zone} for text in texts for zone in ("UTC", "Asia/Tokyo", 8)
    ]
    frames = read(Aws(), write(tmp_path / "h.json", json.dumps(records)))
    assert frames["price"]["line"].tolist() == [1, 4, 5, 6]
    assert frames["rejected"]["reason"].tolist() == [
        f"time in the zone {zone!r}, not in UTC: write it with its offset" for zone in ("Asia/Tokyo", "8")
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


def price_rows(path, **values):
    frames = read(Aws(), path, **values)
    columns = ["zone", "region", "instance_type", "product", "price_usd"]
    return frames["price"][columns].to_numpy().tolist(), frames["rejected"]


ROW = ["us-east-1a", "us-east-1", "p3.2xlarge", "Linux/UNIX", "0.9180"]
FORMS = {
    "pages after each other": json.dumps({"SpotPriceHistory": [RECORD], "NextToken": "abc"}, indent=1)
    + "\n"
    + json.dumps({"SpotPriceHistory": [], "NextToken": ""}, indent=1),
    "a list of pages (jq -s)": json.dumps([{"SpotPriceHistory": [RECORD]}, {"SpotPriceHistory": []}]),
    "a bare list": json.dumps([RECORD], indent=2),
    "records after each other (jq)": json.dumps(RECORD, indent=2),
    "a list of lists (--query)": json.dumps([[RECORD[name] for name in reversed(RECORD)]]),
    "PowerShell's ConvertTo-Json": json.dumps(
        [
            {k: v for k, v in RECORD.items() if k != "SpotPrice"}
            | {"Price": "0.9180", "InstanceType": {"Value": "p3.2xlarge"}}
        ]
    ),
    "JSON of pandas, times in milliseconds": json.dumps([RECORD | {"Timestamp": 1622407651000}]),
    "JSON with times in seconds": json.dumps([RECORD | {"Timestamp": 1622407651}]),
    "JSON of PowerShell 5": json.dumps([RECORD | {"Timestamp": "/Date(1622407651000)/"}]),
    "objects of --query with other names": json.dumps(
        [dict(zip(["az", "type", "os", "price", "time"], RECORD.values(), strict=True))]
    ),
    "jq -r @csv": ",".join(f'"{field}"' for field in RECORD.values()) + "\n",
    "fields with spaces (awk)": " ".join(RECORD.values()) + "\n",
    "text without the word": "\t".join(RECORD.values()) + "\n",
    "text with the zone ID": "\t".join(
        ["SPOTPRICEHISTORY", "us-east-1a", "use1-az4", *list(RECORD.values())[1:]]
    )
    + "\n",
    "text of --query in another order": "\t".join(reversed(RECORD.values())) + "\n",
    "text with the end of the pages": "None\n" + "\t".join(RECORD.values()) + "\nNEXTTOKEN\tNone\n",
    "CSV with the index of pandas": ",AvailabilityZone,InstanceType,ProductDescription,SpotPrice,Timestamp\n0,"
    + ",".join(RECORD.values())
    + "\n",
    "CSV with semicolons": ";".join(RECORD) + "\n" + ";".join(RECORD.values()) + "\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_cli_gives_the_same_row(tmp_path, form):
    path = write(tmp_path / "history", FORMS[form])
    assert Aws().files([path]) == [path]
    rows, rejected = price_rows(path)
    assert rows == [ROW]
    assert rejected.empty
    times = pd.to_datetime(read(Aws(), path)["price"]["observed_at"], utc=True)
    assert times.tolist() == [pd.Timestamp(RECORD["Timestamp"])]


def test_a_number_that_is_not_named_as_the_spot_price_is_no_price(tmp_path):
    other = {"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge", "OnDemandPrice": "3.06"}
    path = write(tmp_path / "h.json", json.dumps([other | {"Timestamp": RECORD["Timestamp"]}]))
    with pytest.raises(SourceFileError, match="record without SpotPrice"):
        price_rows(path)


FEE = ["us-east-1a", "p4d.24xlarge", "283.20", "2026-03-01T11:30:00+00:00"]


@pytest.mark.parametrize("write_list", [
    lambda fields: "\t".join(fields) + "\n", lambda fields: ",".join(fields) + "\n", lambda fields: json.dumps([fields]),
])  # fmt: skip
def test_a_fee_of_days_in_a_list_without_names_is_no_price(tmp_path, write_list):
    with pytest.raises(SourceFileError, match="fee of a capacity block"):
        price_rows(write(tmp_path / "fee", write_list(FEE)))
    hourly = [text.replace("283.20", "11.80") for text in FEE]
    assert price_rows(write(tmp_path / "hourly", write_list(hourly)))[0][0][-1] == "11.80"


def test_a_spot_price_far_above_on_demand_is_one_where_it_is_named(tmp_path):
    named = dict(zip(["AvailabilityZone", "InstanceType", "SpotPrice", "Timestamp"], FEE, strict=True))
    assert price_rows(write(tmp_path / "a", json.dumps([named])))[0][0][-1] == "283.20"
    whole = [*FEE[:2], "Linux/UNIX", *FEE[2:]]
    assert price_rows(write(tmp_path / "b", "\t".join(whole) + "\n"))[0][0][-1] == "283.20"


def test_what_query_leaves_out_is_stated(tmp_path):
    text = "us-east-1a\t0.9180\t2021-05-30T20:47:31.000Z\n"
    path = write(tmp_path / "text", text)
    with pytest.raises(
        SourceFileError, match="record without InstanceType; state it with --set instance_type=NAME"
    ):
        price_rows(path)
    assert price_rows(path, instance_type="p3.2xlarge")[0] == [[*ROW[:3], "unspecified", "0.9180"]]
    assert price_rows(path, instance_type="p3.2xlarge", product="Linux/UNIX")[0] == [ROW]
    table = write(
        tmp_path / "t.csv",
        "SpotPrice,AvailabilityZone,Timestamp\n0.9180,us-east-1a,2021-05-30 20:47:31+00:00\n",
    )
    with pytest.raises(SourceFileError, match=r"no column InstanceType.*--set instance_type=NAME"):
        price_rows(table)
    assert price_rows(table, instance_type="p3.2xlarge", product="Linux/UNIX")[0] == [ROW]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-----------\n|  DescribeSpotPriceHistory  |\n", "--output table"),
        ("SpotPriceHistory:\n- AvailabilityZone: us-east-1a\n", "--output yaml"),
        ("- NextToken: ''\n  SpotPriceHistory:\n", "--output yaml"),
        ("- Price: '0.9'\n  Zone: us-east-1a\n", "--output yaml"),
        ("AvailabilityZone   : us-east-1a\r\nPrice              : 0.918\r\n", "Format-List"),
        ("An error occurred (UnauthorizedOperation) when calling ...\n", "error message of the AWS CLI"),
    ],
)
def test_other_output_of_the_cli_is_refused_with_the_remedy(tmp_path, text, words):
    with pytest.raises(SourceFileError, match=words):
        price_rows(write(tmp_path / "history", text))


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_answer_that_ends_before_the_history_does_says_so(tmp_path, form):
    text = {
        "json": json.dumps({"SpotPriceHistory": [RECORD], "NextToken": "eyJOZXh0VG9rZW4iOiBudWxsfQ=="}),
        "text": "\t".join(RECORD.values()) + "\nNEXTTOKEN\teyJOZXh0VG9rZW4iOiBudWxsfQ==\n",
    }[form]
    rows, rejected = price_rows(write(tmp_path / "h", text))
    assert rows == [ROW]
    assert rejected["reason"].tolist() == ["NextToken: more pages follow; ask again without --max-items"]


def test_a_line_that_is_no_json_costs_itself(tmp_path):
    good = json.dumps(RECORD)
    rows, rejected = price_rows(write(tmp_path / "h.jsonl", f"{good}\n{good[:40]}\n{good}\n"))
    assert rows == [ROW, ROW]
    assert rejected["line"].tolist() == [2]


@pytest.mark.parametrize(
    "zone", ["us-west-2-lax-1a", "us-east-1-wl1-bos-wlz-1", "eusc-de-east-1a", "me-central-1b", "afs1-az2"]
)
def test_zones_of_every_sort_have_a_region(tmp_path, zone):
    rows, rejected = price_rows(write(tmp_path / "h.json", json.dumps([RECORD | {"AvailabilityZone": zone}])))
    assert rejected.empty
    assert rows[0][0] == zone


@pytest.mark.parametrize(
    "query", [("zone", "price", "time"), ("time", "type", "zone", "price"), ("price", "time", "id")]
)
@pytest.mark.parametrize("separator", ["\t", ",", " "])
def test_text_without_a_header_is_found_in_a_folder_of_files(tmp_path, query, separator):
    fields = {"zone": "us-east-1a", "id": "use1-az6", "type": "p3.2xlarge", "price": "0.9180",
              "time": "2021-05-30T20:47:31+00:00"}  # fmt: skip
    (tmp_path / "prices").mkdir()
    file = tmp_path / "prices" / "p3.2xlarge"
    file.write_text(separator.join(fields[name] for name in query) + "\n")
    (tmp_path / "notes.txt").write_text("prices of last week\n")
    assert Aws().files([tmp_path]) == [file]
    found = read(Aws(), file, instance_type="p3.2xlarge")
    assert len(found["price"]) == 1


CHINA = RECORD | {"AvailabilityZone": "cn-north-1a"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"SpotPriceHistory": [CHINA, RECORD]}),
        "".join("SPOTPRICEHISTORY\t" + "\t".join(one.values()) + "\n" for one in (CHINA, RECORD)),
        ",".join(RECORD) + "\n" + "".join(",".join(one.values()) + "\n" for one in (CHINA, RECORD)),
    ],
)
def test_prices_in_yuan_are_no_dollars(tmp_path, text):
    table = read(Aws(), write(tmp_path / "history", text))["price"]
    currency = {row["region"]: row["currency"] for row in table.to_dict("records")}
    assert currency["cn-north-1"] == "CNY"
    assert currency["us-east-1"] in ("USD", None)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_columns_added_to_the_answer_count(tmp_path, form):
    added = {"OnDemandPrice": "3.06", "Currency": "EUR", "pricing_model": "spot"}
    record = RECORD | added
    text = (
        json.dumps([record]) if form == "json" else ",".join(record) + "\n" + ",".join(record.values()) + "\n"
    )
    (row,) = read(Aws(), write(tmp_path / f"h.{form}", text))["price"].to_dict("records")
    assert (row["on_demand_usd"], row["currency"], row["mode"]) == ("3.06", "EUR", "spot")
    assert row["price_usd"] == RECORD["SpotPrice"]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_columns_of_other_names_that_state_another_price_count(tmp_path, form):
    row = {"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge", "SpotPrice": "0.918",
           "Timestamp": "2022-05-31T18:20:41+00:00"}  # fmt: skip
    rows = [row | {"Option": "spot", "Ccy": "USD"}, row | {"Option": "reserved", "Ccy": "EUR"}]
    frame = pd.DataFrame(rows)
    path = tmp_path / f"prices.{form}"
    frame.to_csv(path, index=False) if form == "csv" else frame.to_json(path, orient="records")
    found = read(Aws(), path)["price"]
    assert found["mode"].tolist()[1] == "reserved"
    assert (
        found["currency"].tolist() == ["USD", "EUR"]
        if form == "json"
        else found["currency"].tolist()[1] == "EUR"
    )
    assert pd.isna(found["mode"][0])


@pytest.mark.parametrize("heading", ["OnDemandPrice", "MaxPrice", "Spot price (EUR)", "UpfrontFee"])
@pytest.mark.parametrize("mark", [",", "\t"])
def test_a_table_with_another_price_is_no_list_of_records(tmp_path, heading, mark):
    text = f"AvailabilityZone,InstanceType,{heading},Timestamp\nus-east-1a,p3.2xlarge,3.06,2022-05-31T18:20:41+00:00\n"
    with pytest.raises(SourceFileError, match="columns AvailabilityZone"):
        read(Aws(), write(tmp_path / "prices.csv", text.replace(",", mark)))


def test_the_bid_of_a_spot_request_is_no_spot_price(tmp_path):
    request = {"SpotPrice": "3.06", "InstanceType": "p3.2xlarge", "AvailabilityZone": "us-east-1a",
               "CreateTime": "2022-05-31T18:20:41+00:00", "State": "active"}  # fmt: skip
    with pytest.raises(SourceFileError, match="record without Timestamp"):
        read(Aws(), write(tmp_path / "requests.json", json.dumps([request])))


def test_times_of_a_zone_in_another_column_are_set_aside(tmp_path):
    head = "AvailabilityZone,InstanceType,SpotPrice,Timestamp,TimeZone\n"
    line = "us-east-1a,p3.2xlarge,0.9,2022-05-31 18:20:41{},{}\n"
    lines = [line.format("", "UTC"), line.format("", "Asia/Tokyo"), line.format("+09:00", "Asia/Tokyo")]
    frames = read(Aws(), write(tmp_path / "prices.csv", head + "".join(lines)))
    assert frames["price"]["line"].tolist() == [2, 4]
    assert frames["rejected"]["reason"].tolist() == [
        "time in the zone 'Asia/Tokyo', not in UTC: write it with its offset"
    ]
