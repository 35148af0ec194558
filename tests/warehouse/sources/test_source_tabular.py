import gzip
import random

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from forms_kit import quick_first
from source_files import DATA, batches, count, options, read, tidy, write, write_parquet

from slackwater.warehouse.errors import SettingsError, SourceFileError
from slackwater.warehouse.sources.files.tabular import Tabular

PRICES = "provider,region,zone,instance_type,product,timestamp,spot_price_usd_per_hour,on_demand_price_usd_per_hour,source\n"
COUNTS = "provider,region,zone,instance_type,timestamp,available,capacity_probed,gap_seconds,kind,truncated,source\n"
PRICE_LINE = "aws,us-east-1,us-east-1a,g3.8xlarge,Linux/UNIX,2021-03-02T01:45:29Z,0.68,2.28,here\n"
COUNT_LINE = "gcp,us-east1,us-east1-c,v100,2021-12-10T13:07:45Z,80,80,60,held,false,here\n"


def test_csv_rows_come_out_as_text_with_their_line(tmp_path):
    path = write(tmp_path / "prices.csv", PRICES + PRICE_LINE + PRICE_LINE.replace("0.68", "oops"))
    found = read(Tabular(), path)["price"]
    assert found["line"].tolist() == [2, 3]
    assert found["price_usd"].tolist() == [
        "0.68",
        "oops",
    ]  # the store casts values, and rejects invalid values
    assert found["on_demand_usd"].tolist() == ["2.28", "2.28"]
    assert found["source"].tolist() == ["here", "here"]
    assert found["file"].unique().tolist() == [str(path)]


def test_kind_is_told_by_the_columns_not_by_the_name(tmp_path):
    path = write(tmp_path / "whatever.csv", COUNTS + COUNT_LINE)
    found = read(Tabular(), path)
    assert len(found["availability"]) == 1
    assert found["price"].empty
    row = found["availability"].iloc[0]
    assert (row["available"], row["capacity"], row["kind"], row["truncated"]) == ("80", "80", "held", "false")


def test_columns_may_come_in_any_order_and_others_are_ignored(tmp_path):
    columns = {
        "note": ["x"], "spot_price_usd_per_hour": [0.5], "timestamp": ["2021-03-02"], "provider": ["aws"],
        "region": ["us-east-1"], "zone": ["us-east-1a"], "instance_type": ["p3.2xlarge"],
    }  # fmt: skip
    path = tmp_path / "x.csv"
    pacsv.write_csv(pa.table(columns), path)
    row = read(Tabular(), path)["price"].iloc[0]
    assert row["price_usd"] == "0.5"
    assert row["source"] == "tabular"
    assert pd.isna(row["product"])
    assert read(Tabular(), path, source="mine")["price"].iloc[0]["source"] == "mine"


def test_lines_with_a_wrong_number_of_fields_are_rejected_with_their_number(tmp_path):
    lines = [PRICE_LINE, "too,few\n", "\n", PRICE_LINE, PRICE_LINE.rstrip() + ",too,many\n", PRICE_LINE]
    found = read(Tabular(), write(tmp_path / "prices.csv", PRICES + "".join(lines)))
    assert found["price"]["line"].tolist() == [2, 5, 7]
    rejected = found["rejected"]
    assert rejected["line"].tolist() == [3, 4, 6]
    assert rejected["raw"].tolist() == ["too,few", "", PRICE_LINE.rstrip() + ",too,many"]
    assert rejected["reason"].tolist() == [
        "2 fields where 9 were expected", "empty line", "11 fields where 9 were expected"
    ]  # fmt: skip


@pytest.mark.parametrize(("ending", "column"), [("Spot", "mode"), ("Windows", "product")])
def test_instance_types_that_differ_by_an_ending_are_of_its_way_to_buy_or_system(tmp_path, ending, column):
    kinds = ["ND96 v5", f"ND96 v5 {ending}", "ND96 v5 Low Priority", "NC24 v4"]
    lines = [PRICE_LINE.replace("Linux/UNIX,", "").replace("g3.8xlarge", kind) for kind in kinds]
    header = PRICES.replace("product,", "")
    stated = read(Tabular(), write(tmp_path / "prices.csv", header + "".join(lines)))["price"][
        column
    ].tolist()
    others = kinds[1:3] if ending == "Windows" else [kinds[0], *kinds[2:]]
    assert [text for text in stated if not pd.isna(text)] == others
    alone = read(Tabular(), write(tmp_path / "alone.csv", header + lines[0] + lines[3]))["price"]
    assert column not in alone or alone[column].isna().all()


def test_the_header_of_a_joined_file_is_no_row_and_no_value_of_its_columns(tmp_path):
    header = PRICES.replace(",source", ",offer")
    lines = [PRICE_LINE.replace("here", "reserved"), header, PRICE_LINE.replace("here", "on-demand")]
    frames = read(Tabular(), write(tmp_path / "prices.csv", header + "".join(lines)))
    assert frames["rejected"][["line", "reason"]].to_numpy().tolist() == [[3, "the header again"]]
    assert frames["price"]["mode"].tolist() == ["reserved", "on-demand"]  # which the store rejects


@pytest.mark.parametrize("before", ["\n", "\r\n  \r\n", "sep=,\n", "\ufeffsep=,\r\n\r\n"])
def test_lines_before_the_header_are_passed_over_and_counted(tmp_path, before):
    path = write(tmp_path / "prices.csv", before + PRICES + PRICE_LINE + "too,few\n" + PRICE_LINE)
    found, header = read(Tabular(), path), before.count("\n") + 1
    assert found["price"]["line"].tolist() == [header + 1, header + 3]
    assert found["rejected"]["line"].tolist() == [header + 2]
    assert Tabular().recognised(path)


def test_json_is_refused_as_such(tmp_path):
    with pytest.raises(SourceFileError, match="line 1: JSON; expected a CSV or Parquet file; save it as CSV"):
        read(Tabular(), write(tmp_path / "prices.json", '[{"provider": "aws"}]'))


def test_an_unclosed_quote_loses_no_line(tmp_path):
    broken = PRICE_LINE.replace("Linux/UNIX", '"Linux/UNIX')
    text = (
        PRICES + PRICE_LINE + "bad\n" + broken + PRICE_LINE + PRICE_LINE.replace("0.68", '0.69"') + PRICE_LINE
    )
    found = read(Tabular(), write(tmp_path / "prices.csv", text))
    lines = sorted(found["price"]["line"].tolist() + found["rejected"]["line"].tolist())
    assert lines == [2, 3, 4, 5, 6, 7]
    assert 2 in found["price"]["line"].tolist()


def test_line_numbers_hold_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("slackwater.warehouse.sources.files.reading._BLOCK_BYTES", 4096)
    good, bad = PRICE_LINE, "x,y\n"
    text = "".join(bad if i % 97 == 5 else good for i in range(2000))
    path = write(tmp_path / "prices.csv", PRICES + text)
    found = batches(Tabular(), path)
    assert sum(b.kind == "price" for b in found) > 10  # bounded chunks
    frames = read(Tabular(), path)
    expected_bad = [i + 2 for i in range(2000) if i % 97 == 5]
    assert frames["rejected"]["line"].tolist() == expected_bad
    assert frames["price"]["line"].tolist() == sorted(set(range(2, 2002)) - set(expected_bad))


@pytest.mark.parametrize("seeds", quick_first([range(50), range(50, 150)]))
def test_every_line_of_a_mangled_file_is_a_row_or_a_rejection(tmp_path, monkeypatch, seeds):
    good = PRICE_LINE.rstrip()
    mangled = [
        good,
        "x,y",
        "",
        good + ",more",
        good.replace("Linux/UNIX", '"a, b"'),
        good.replace("Linux/UNIX", '"open'),
        ",,,,,,,,",
        good.replace("here", '"he""re"'),
    ]
    path, read_whole, refused = tmp_path / "prices.csv", 0, []
    for seed in seeds:
        rng = random.Random(seed)
        monkeypatch.setattr(
            "slackwater.warehouse.sources.files.reading._BLOCK_BYTES", rng.choice([400, 1000, 1 << 20])
        )
        lines = [*rng.choices(mangled, weights=[20, 1, 1, 1, 2, 1, 1, 1], k=rng.randrange(1, 40)), good]
        end = rng.choice(["\n", "\r\n"])
        path.write_text(PRICES.replace("\n", end) + end.join(lines) + rng.choice([end, ""]), newline="")
        try:
            found = read(Tabular(), path)
        except SourceFileError:  # a quote that stays open over a whole block
            refused.append("".join(lines))
            continue
        numbers = [n for kind in ("price", "rejected") if len(found[kind]) for n in found[kind]["line"]]
        assert sorted(numbers) == list(range(2, len(lines) + 2)), lines
        read_whole += 1
    assert read_whole > len(seeds) / 2
    assert all('"open' in text for text in refused)


def test_gzip_byte_order_mark_and_windows_line_ends(tmp_path):
    text = "\ufeff" + (PRICES + PRICE_LINE).replace("\n", "\r\n")
    path = write(tmp_path / "prices.csv.gz", gzip.compress(text.encode()))
    row = read(Tabular(), path)["price"].iloc[0]
    assert (row["provider"], row["source"], row["line"]) == ("aws", "here", 2)


def test_parquet_keeps_its_types_and_naive_times_are_utc(tmp_path):
    columns = {c: ["a"] * 3 for c in ("provider", "region", "zone", "instance_type")}
    columns |= {
        "timestamp": pd.date_range("2021-01-01", periods=3, freq="h").to_pydatetime().tolist(),
        "available": [1, 2, 3],
    }
    found = batches(Tabular(), write_parquet(tmp_path / "availability.parquet", columns))
    table = found[0].table
    assert table.schema.field("observed_at").type == pa.timestamp("us", tz="UTC")
    assert table["available"].to_pylist() == [1, 2, 3]
    assert table["line"].to_pylist() == [1, 2, 3]


def test_a_folder_means_its_own_tables_only(tmp_path):
    write(tmp_path / "prices.csv", PRICES + PRICE_LINE)
    write(tmp_path / "extra.csv", COUNTS + COUNT_LINE)
    write(tmp_path / "notes.csv", "a,b\n1,2\n")
    write(tmp_path / "README.md", "no table")
    write(tmp_path / "sub" / "prices.csv", PRICES + PRICE_LINE)
    assert [p.name for p in Tabular().files([tmp_path])] == ["extra.csv", "prices.csv"]
    # A matching file name is read, and rejected with an error rather than skipped.
    write(tmp_path / "availability.csv", "a,b\n1,2\n")
    assert [p.name for p in Tabular().files([tmp_path])] == ["availability.csv", "extra.csv", "prices.csv"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_row_of_both_kinds_is_one_of_each_and_an_empty_cell_is_none(tmp_path, suffix):
    both = "provider,region,zone,instance_type,timestamp,available,spot_price_usd_per_hour\n" + "".join(
        f"gcp,us-east1,us-east1-c,v100,2021-12-10T1{i}:00:00Z,{count},{price}\n"
        for i, (count, price) in enumerate((("3", "1.5"), ("", "1.25"), ("4", ""), ("", " ")))
    )
    path = write(tmp_path / "both.csv", both)
    if suffix == ".parquet":
        path = tmp_path / "both.parquet"
        frame = pd.read_csv(tmp_path / "both.csv", skipinitialspace=True)
        frame["available"] = frame["available"].astype("Int64")
        frame.to_parquet(path)
    found = batches(Tabular(), path)
    rows = {batch.kind: batch.table.select([name, "line"]).to_pylist() for batch, name in zip(
        found, ("price_usd", "available"), strict=True
    )}  # fmt: skip
    first = 1 if suffix == ".parquet" else 2
    assert [row["line"] - first for row in rows["price"]] == [0, 1, 3]  # the last row has an invalid price
    assert [row["line"] - first for row in rows["availability"]] == [0, 2]
    assert [float(row["available"]) for row in rows["availability"]] == [3, 4]
    assert [float(row["price_usd"]) for row in rows["price"][:2]] == [1.5, 1.25]


def test_a_table_with_a_repeated_column_is_refused(tmp_path):
    twice = PRICES.rstrip() + ",zone\n" + PRICE_LINE.rstrip() + ",z\n"
    with pytest.raises(SourceFileError, match="'zone' occurs twice"):
        batches(Tabular(), write(tmp_path / "twice.csv", twice))


def test_unknown_options_are_refused(tmp_path):
    path = write(tmp_path / "prices.csv", PRICES + PRICE_LINE)
    with pytest.raises(SettingsError, match=r"option 'colour' of the source 'tabular'; expected one of map"):
        Tabular().read(path, options(colour="x"))


def test_parquet_and_csv_of_the_same_table_say_the_same(tmp_path):
    frame = tidy("availability", zone="us-west-2a", instance_type="p3.16xlarge").head(500)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    one = read(Tabular(), tmp_path / "a.parquet")["availability"]
    two = read(Tabular(), tmp_path / "a.csv")["availability"]
    assert one["available"].tolist() == pd.to_numeric(two["available"]).tolist()
    assert one["observed_at"].tolist() == two["observed_at"].tolist()


def test_the_open_data_set_is_read_whole_in_chunks():
    tidy("prices", zone="nowhere")  # skips without the data
    files = Tabular().files([DATA])
    assert [p.name for p in files] == ["availability.parquet", "prices.parquet"]
    found = {p.name: batches(Tabular(), p) for p in files}
    assert count(found["availability.parquet"], "availability") == 343_689
    assert count(found["prices.parquet"], "price") == 293_207
    assert all(b.table.num_rows <= 131_072 for some in found.values() for b in some)
    assert Tabular().assumptions(files[0], options()) == ()


@pytest.mark.slow
def test_ten_million_csv_rows_stream_in_bounded_memory(tmp_path):
    path = tmp_path / "prices.csv"
    block = (PRICE_LINE * 100_000).encode()
    with path.open("wb") as file:
        file.write(PRICES.encode())
        for _ in range(100):
            file.write(block)
    before, rows, highest = pa.total_allocated_bytes(), 0, 0
    for batch in Tabular().read(path, options()):
        rows += batch.table.num_rows
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert rows == 10_000_000
    assert highest < 400 << 20


NAMED = "Timestamp,SpotPrice,OnDemandPrice,InstanceType,AvailabilityZone,OS\n"
NAMED_LINE = "2021-03-02T00:00Z,0.68,3.06,p3.2xlarge,us-west-2a,Linux/UNIX\n"


def test_common_column_names_are_known_and_what_is_missing_is_stated(tmp_path):
    path = write(tmp_path / "mine.csv", NAMED + NAMED_LINE)
    with pytest.raises(SourceFileError, match=r"no column for provider, region .*--set provider=\.\.\."):
        read(Tabular(), path)
    row = read(Tabular(), path, provider="aws")["price"].iloc[0]
    assert (row["provider"], row["region"], row["zone"], row["instance_type"]) == (
        "aws", "us-west-2", "us-west-2a", "p3.2xlarge"
    )  # fmt: skip
    assert (row["price_usd"], row["on_demand_usd"], row["product"]) == ("0.68", "3.06", "Linux/UNIX")
    frames = read(
        Tabular(),
        write(tmp_path / "moon.csv", NAMED + NAMED_LINE + NAMED_LINE.replace("us-west-2a", "moon")),
        provider="aws",
    )
    assert frames["rejected"]["reason"].tolist() == ["unknown zone 'moon' of aws, whose region is not stated"]
    assert read(Tabular(), path, provider="AWS")["price"].iloc[0]["region"] == "us-west-2"
    with pytest.raises(SourceFileError, match="a column 'AvailabilityZone' and a stated zone"):
        read(Tabular(), path, provider="aws", zone="x")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_are_mapped(tmp_path, suffix):
    frame = pd.DataFrame(
        {
            "when": ["2021-03-02T00:00Z"],
            "where": ["z1"],
            "what": ["h100"],
            "price": [1.5],
            "region": ["r1"],
            "count": [3],
        }
    )
    path = tmp_path / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    words = {
        "timestamp": "when",
        "zone": "where",
        "instance_type": "what",
        "price": "price",
        "available": "count",
    }
    frames = read(Tabular(), path, map=words, provider="lab", kind="held")
    price, count = frames["price"].iloc[0], frames["availability"].iloc[0]
    assert (price["provider"], price["zone"], price["instance_type"], float(price["price_usd"])) == (
        "lab",
        "z1",
        "h100",
        1.5,
    )
    assert (int(count["available"]), count["kind"]) == (3, "held")
    with pytest.raises(SourceFileError, match="no column 'gone'"):
        read(Tabular(), path, map=words | {"zone": "gone"}, provider="lab")
    with pytest.raises(SettingsError, match="not 'colour'"):
        read(Tabular(), path, map={"colour": "what"})


def test_a_bare_price_is_none_until_somebody_says_which_and_two_candidates_are_refused(tmp_path):
    text = "provider,region,zone,instance_type,timestamp,price\naws,r,z,t,2021-03-02,1\n"
    with pytest.raises(SourceFileError, match=r"'price' does not say which price.*--map price=price"):
        read(Tabular(), write(tmp_path / "a.csv", text))
    assert len(read(Tabular(), tmp_path / "a.csv", map={"price": "price"})["price"]) == 1
    twice = text.replace("price\n", "spot_price,SpotPriceUSD\n").replace(",1\n", ",1,2\n")
    with pytest.raises(SourceFileError, match=r"could all be spot_price_usd_per_hour.*say which"):
        read(Tabular(), write(tmp_path / "b.csv", twice))


@pytest.mark.parametrize(
    ("unit", "text"), [("epoch_s", "1614643200"), ("epoch_ms", "1614643200000"), ("epoch_s", "1614643200.0")]
)
def test_epochs_are_read_where_they_are_stated(tmp_path, unit, text):
    path = write(tmp_path / "a.csv", PRICES + PRICE_LINE.replace("2021-03-02T01:45:29Z", text))
    assert read(Tabular(), path, time=unit)["price"]["observed_at"].tolist() == [
        pd.Timestamp("2021-03-02", tz="UTC")
    ]


def test_gpu_memory_and_number_tell_instances_of_one_name_apart(tmp_path):
    head = "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour,gpu_memory_gb,gpus\n"
    lines = [
        f"m,r,z,{name},2021-03-02,{usd},{memory},{gpus}\n"
        for name, usd, memory, gpus in [
            ("A100", 1, "40", 1), ("A100", 2, "80 GB", 1), ("A100", 12, "81559", 8), ("A100", 9, "", 8), ("L4", 3, "24", 1)
        ]
    ]  # fmt: skip
    for order in (lines, lines[::-1]):
        frames = read(Tabular(), write(tmp_path / "a.csv", head + "".join(order)))
        found = dict(zip(frames["price"]["price_usd"], frames["price"]["instance_type"], strict=True))
        assert found == {"1": "A100_40GB_x1", "2": "A100_80GB_x1", "12": "A100_80GB_x8", "3": "L4"}
        assert frames["rejected"]["reason"].tolist() == [
            "no gpu_memory or gpus of an instance type that has several: 'A100'"
        ]


SPOT_LINES = "aws,us-east-1,us-east-1{zone},p3.2xlarge,2026-03-0{day} 00:00:00,{usd},{text}\n"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("name", "spot", "other", "column"),
    [
        ("pricing", "spot", "on-demand", "mode"),
        ("tier", "Spot", "standard", "mode"),
        ("term", "", "1yr no upfront", "mode"),
        ("reserved", "false", "true", "mode"),
        ("on_demand", "no", "yes", "mode"),
        ("basis", "instance", "gpu", "unit"),
        ("whatever", "USD/h", "$ per GPU-hour", "unit"),
        ("price_period", "hour", "month", "unit"),
        ("ccy", "USD", "EUR", "currency"),
        ("image", "Ubuntu 22.04", "Windows Server 2022", "product"),
        ("software", "Linux", "RHEL8", "product"),
        ("skuName", "ND96isr H100 v5 Spot", "ND96isr H100 v5 Low Priority", "mode"),
        ("meter", "ND96isr H100 v5 Spot", "ND96isr H100 v5", "mode"),
        ("productName", "NDsr v5 Series", "NDsr v5 Series Windows", "product"),
    ],
)
def test_an_unread_column_is_known_by_its_values(tmp_path, suffix, name, spot, other, column):
    head = f"provider,region,zone,instance_type,timestamp,spot_price,{name}\n"
    lines = [
        SPOT_LINES.format(zone="a", day=1, usd=0.9, text=spot),
        SPOT_LINES.format(zone="b", day=2, usd=1.9, text=other),
    ]
    path = write(tmp_path / "t.csv", head + "".join(lines))
    if suffix == ".parquet":
        path = tmp_path / "t.parquet"
        pd.read_csv(tmp_path / "t.csv").to_parquet(path)
    stated = {row["zone"][-1]: row[column] for row in read(Tabular(), path)["price"].to_dict("records")}
    assert pd.isna(stated["a"])
    assert isinstance(stated["b"], str)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("accelerator", ["GPU", "GPU"]),
        ("interval", ["day", "day"]),
        ("model", ["L4", "A100"]),
        ("notes", ["spot is cheaper than on-demand", ""]),
        ("pool", ["blue spot", "green"]),
        ("uptime", ["12 hours", "30 days"]),
        ("period", ["2026-03", "2026-03"]),
        ("on_demand", ["3.06", "3.06"]),
    ],
)
def test_an_unread_column_with_other_values_says_nothing(tmp_path, name, texts):
    head = f"provider,region,zone,instance_type,timestamp,spot_price,{name}\n"
    lines = [
        SPOT_LINES.format(zone=zone, day=1, usd=0.9, text=text)
        for zone, text in zip("ab", texts, strict=True)
    ]
    found = read(Tabular(), write(tmp_path / "t.csv", head + "".join(lines)))["price"]
    assert not found[["mode", "unit", "currency", "product"]].notna().any(axis=None)
    assert found["on_demand_usd"].eq("3.06").all() == (name == "on_demand")


@pytest.mark.parametrize("sign", ["€", "£", "¥", "¢", "%"])
def test_a_price_in_another_currency_or_in_percent_by_its_heading_is_none(tmp_path, sign):
    text = PRICES.replace("spot_price_usd_per_hour", f"Spot price ({sign})") + PRICE_LINE
    with pytest.raises(SourceFileError, match="Spot price"):
        read(Tabular(), write(tmp_path / "t.csv", text))
    assert len(read(Tabular(), write(tmp_path / "t.csv", text.replace(sign, "$")))["price"]) == 1


@pytest.mark.parametrize(
    ("zone", "usable"),
    [("UTC", True), ("+00:00", True), ("", True), ("Europe/Berlin", False), ("-05:00", False)],
)
def test_times_of_a_zone_in_another_column_are_not_utc(tmp_path, zone, usable):
    head = "provider,region,zone,instance_type,timestamp,spot_price,timezone\n"
    line = SPOT_LINES.format(zone="a", day=1, usd=0.9, text=zone)
    stated = line.replace("00:00:00", "00:00:00+02:00")
    found = read(Tabular(), write(tmp_path / "t.csv", head + line + stated))
    assert len(found["price"]) == 1 + usable
    reasons = [] if found["rejected"].empty else found["rejected"]["reason"].tolist()
    assert reasons == ([] if usable else [f"time in the zone {zone!r}, not in UTC: write it with its offset"])


@pytest.mark.parametrize(("kind", "gpus", "usable"), [
    ("p4d.24xlarge", "8", True), ("p4d.24xlarge", "8.0", True), ("p4d.24xlarge", "1", False), ("p4d.24xlarge", "", True),
    ("p3.2xlarge", "8", False), ("box", "3", True), ("p3.2xlarge", "0.5", True),
])  # fmt: skip
def test_a_row_of_other_gpus_than_its_type_has_is_of_no_whole_instance(tmp_path, kind, gpus, usable):
    head = "provider,region,zone,instance_type,timestamp,spot_price,gpus\n"
    lines = f"aws,r,a,{kind},2021-03-02,1.2,{gpus}\naws,r,b,p4d.24xlarge,2021-03-02,1.2,8\n"
    frames = read(Tabular(), write(tmp_path / "t.csv", head + lines))
    assert len(frames["price"]) == 1 + usable
    assert set(frames["price"]["instance_type"]) <= {"p4d.24xlarge", kind}  # rows set aside name nothing
    if not usable:
        assert "no price or count of the whole instance" in frames["rejected"]["reason"][0]
