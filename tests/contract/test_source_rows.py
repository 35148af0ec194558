"""Contract of the rows of every file source: order of rows, placeholders, times, unknown names."""

import json
import random
from collections import Counter
from dataclasses import dataclass

import pandas as pd
import pytest

from slackwater.studies.sources.vastai import COLUMNS as VAST_COLUMNS
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.sources import SOURCES
from slackwater.warehouse.store.connection import open_store


@dataclass(frozen=True)
class Line:
    """One price, independent of a source's format."""

    time: str = "2026-03-05T12:00:00+00:00"
    usd: str = "9.83"
    on_demand: str = "21.95"
    product: str = "Linux/UNIX"
    zone: str = "us-east-1a"


def aws_record(line):
    names = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")
    return dict(zip(names, (line.zone, "p4d.24xlarge", line.product, line.usd, line.time), strict=True))


def aws_json(lines):
    return json.dumps({"SpotPriceHistory": [aws_record(line) for line in lines]})


def aws_lines(lines):
    return "".join(json.dumps(aws_record(line)) + "\n" for line in lines)


def aws_text(lines):
    return "".join("\t".join(["SPOTPRICEHISTORY", *aws_record(line).values()]) + "\n" for line in lines)


def aws_csv(lines):
    return "SpotPrice,Timestamp,InstanceType,ProductDescription,AvailabilityZone\n" + "".join(
        f"{line.usd},{line.time},p4d.24xlarge,{line.product},{line.zone}\n" for line in lines
    )


def aws_archive(lines):
    return "".join("\t".join(aws_record(line).values()) + "\n" for line in lines)


def tabular(lines):
    return (
        "provider,region,zone,instance_type,product,timestamp,spot_price_usd_per_hour,on_demand_price_usd_per_hour\n"
        + "".join(
            f"aws,us-east-1,{line.zone},p4d.24xlarge,{line.product},{line.time},{line.usd},{line.on_demand}\n"
            for line in lines
        )
    )


def tabular_named(lines):
    return "Cloud;Region;AvailabilityZone;InstanceType;OS;Time;SpotPrice;OnDemandPrice\n" + "".join(
        f"aws;us-east-1;{line.zone};p4d.24xlarge;{line.product};{line.time};{line.usd};{line.on_demand}\n"
        for line in lines
    )


def vastai(lines):
    rows = []
    for line in lines:
        day = line.time[:10] if line.time[:4] == "2026" else "2026-03-05"
        for rental, usd in (("spot", line.usd), ("on_demand", line.on_demand)):
            rows.append(
                f"{day},vast.ai,A100,8,{line.zone},{rental},{usd},{usd},{usd},3,https://console.vast.ai/,{line.time}"
            )
    return "\n".join([",".join(VAST_COLUMNS), *rows]) + "\n"


def primeintellect(lines):
    return "".join(
        json.dumps(
            {
                "timestamp": line.time, "gpu_type": "A100_80GB", "socket_type": "SXM4", "price_stats": {"min": line.usd},
                "availability": {"total": 3}, "by_provider": {line.zone: {"count": 3, "min": line.usd}}, "by_config": {},
            }
        )
        + "\n"
        for line in lines
    )  # fmt: skip


def catalogue(lines):
    head = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
    return head + "".join(
        f"p4d.24xlarge,96,1152,A100,8,,{line.on_demand},{line.usd},us-east-1,{line.zone}\n" for line in lines
    )


#: (source, file name, its writer); every file source whose prices are written line by line.
FORMS = {
    "aws-json": ("aws", "history.json", aws_json),
    "aws-lines": ("aws", "history.jsonl", aws_lines),
    "aws-text": ("aws", "history.txt", aws_text),
    "aws-csv": ("aws", "history.csv", aws_csv),
    "aws-archive": ("aws", "history.tsv", aws_archive),
    "tabular": ("tabular", "prices.csv", tabular),
    "tabular-named": ("tabular", "prices.csv", tabular_named),
    "vastai": ("vastai", "observations.csv", vastai),
    "primeintellect": ("primeintellect", "a100.jsonl", primeintellect),
    "skypilot-catalogue": ("skypilot-catalogue", "aws_2026-03-05.csv", catalogue),
}
TIMED = [name for name in FORMS if name != "skypilot-catalogue"]
WITH_ON_DEMAND = ["tabular", "tabular-named", "vastai", "skypilot-catalogue"]


def taken(tmp_path, form, lines, *, session_zone="UTC", listing=False):
    """Return price and count rows, the kinds of reasons, the result, and the markets' listing if it is asked for."""
    source, name, write = FORMS[form]
    path = tmp_path / name
    path.write_text(write(lines))
    with open_store(":memory:", sealed=False) as store:
        store.execute(f"SET TimeZone = '{session_zone}'")
        done = ingest(store, source, path)
        store.execute("SET TimeZone = 'UTC'")
        prices = store.execute(
            "SELECT zone, region, instance_type, product, epoch(observed_at), price_usd, on_demand_usd "
            "FROM price JOIN series USING (sid) JOIN markets USING (mid) ORDER BY ALL"
        )
        counts = store.execute(
            "SELECT zone, region, instance_type, epoch(observed_at), available FROM availability "
            "JOIN series USING (sid) JOIN markets USING (mid) ORDER BY ALL"
        )
        reasons = sorted(Counter(done.reasons).elements())
        listed = list_markets(store).to_csv() if listing else ""
    return prices, counts, reasons, done, listed


def quick_forms(names, turn):
    """Return the quick form's names: one of each source, of a source with several forms the one whose ``turn`` it is."""
    forms = {}
    for name in names:
        forms.setdefault(FORMS[name][0], []).append(name)
    return {of_source[turn % len(of_source)] for of_source in forms.values()}


def each_source(names, turn):
    """Return all names; those that are not among the `quick_forms` are slow."""
    quick = quick_forms(names, turn)
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def in_turn(names, others, turn):
    """Return all pairs; the quick form has each of the `quick_forms` with one of the others, and the slow tests have the rest."""
    quick = quick_forms(names, turn)
    return [
        pytest.param(
            name, other, marks=() if name in quick and number == place % len(others) else pytest.mark.slow
        )
        for place, name in enumerate(names)
        for number, other in enumerate(others)
    ]


def place_of(row):
    """Return the written place, a zone in one source and a region in another; "" for a derived row."""
    return next((name for name in row[:2] if name.startswith("us-east-1") and name != "us-east-1"), "")


def test_every_source_of_files_has_its_rows_here_or_states_none():
    assert {source for source, _, _ in FORMS.values()} == set(SOURCES.all_names()) - {
        "simulated",
        "bamboo",
        "skynomad",
        "skypilot",
    }


@pytest.mark.parametrize("orders", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", each_source(FORMS, 0))
def test_the_order_of_rows_changes_nothing(tmp_path, form, orders):
    """Includes contradictory rows, several products, placeholders and times of several offsets."""
    lines = [
        Line(),
        Line(zone="us-east-1b", product="Windows", usd="30"),
        Line(zone="us-east-1b", usd="7"),
        Line(zone="us-east-1c", usd="5"),
        Line(zone="us-east-1c", usd="6"),
        Line(zone="us-east-1d", usd="0"),
        Line(zone="us-east-1e", time="2026-03-05T14:30:00+02:00", usd="4"),
        Line(zone="us-east-1e", time="2026-03-05T13:30:00+00:00", usd="8", on_demand="22"),
    ]
    expected = taken(tmp_path, form, lines, listing=True)
    for seed in range(orders):
        random.Random(seed).shuffle(lines)
        again = taken(tmp_path, form, lines, listing=True)
        assert again[:3] == expected[:3]
        assert again[4] == expected[4]
    # Of two contradictory rows neither is used.
    assert not {row[5] for row in expected[0] if "us-east-1c" in row} & {5.0, 6.0, 40.0, 48.0}


@pytest.mark.parametrize("form", each_source(FORMS, 3))
def test_a_placeholder_is_no_spot_price_and_is_counted(tmp_path, form):
    odd = ["0", "0.00", "0.000000", "-1", "N/A", "", "-", "NaN", "nan", "inf", "Infinity", "null", "None"]
    lines = [
        Line(),
        *[Line(zone=f"us-east-1{zone}", usd=text) for zone, text in zip("bcdefghijklmn", odd, strict=True)],
    ]
    prices, _, reasons, done, _ = taken(tmp_path, form, lines)
    assert {place for row in prices if (place := place_of(row))} == {"us-east-1a"}
    assert all(row[5] > 0 for row in prices)
    assert done.rejected == len(reasons) == sum(done.reasons.values()) >= len(odd)


@pytest.mark.parametrize("form", each_source(WITH_ON_DEMAND, 0))
def test_a_placeholder_of_an_on_demand_price_costs_itself_alone(tmp_path, form):
    odd = ["0", "0.00", "-1", "inf", "nan"]
    if form != "vastai":  # there an on-demand price is a line, and a line without a number is rejected
        odd += ["N/A", "-", ""]
    lines = [
        Line(),
        *[Line(zone=f"us-east-1{zone}", on_demand=text) for zone, text in zip("bcdefghi", odd, strict=False)],
    ]
    prices, _, _, done, _ = taken(tmp_path, form, lines)
    kept = [row for row in prices if place_of(row) not in ("", "us-east-1a")]
    each = 2 if form == "vastai" else 1
    assert len(kept) == each * len(odd)
    assert all(row[6] is None for row in kept)
    no_price = ("nan", "") if form != "vastai" else ("nan", "inf")
    assert sum(done.set_aside.values()) == each * (len(odd) - sum(text in no_price for text in odd))


BAD_TIMES = [
    "2026-03-05 20:00:00 Asia/Shanghai", "2026-03-05T12:00:00 PST", "2026-03-05T12:00 EST", "03/05/2026", "5 Mar 2026",
    "Mar 5 2026",
    "20260305", "2026-W10-4", "2026-064", "2026-3-5", "2026-03-05T24:00:00Z", "2026-03-05T23:59:60Z", "2026-02-30T12:00:00Z",
    "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T00:00:00Z", "1772712000", "1772712000000", "now", "yesterday", "",
    "2026-03-05T12:00:00+25:00", "2026-03-05T12", "12:00:00",
]  # fmt: skip
#: Seconds and milliseconds since 1970, which records of AWS may have.
UNIX_TIMES = ("1772712000", "1772712000000")
GOOD_TIMES = [
    "2026-03-05T12:00:00Z", "2026-03-05T12:00Z", "2026-03-05 12:00:00+00:00", "2026-03-05T20:00:00+08:00",
    "2026-03-05T07:00:00-0500",
    "2026-03-05T12:00:00.000Z", "2026-03-05T12:00:00.000000+00:00",
]  # fmt: skip
NOON = pd.Timestamp("2026-03-05T12:00Z").timestamp()


@pytest.mark.parametrize(("form", "zone"), in_turn(TIMED, ["America/New_York", "UTC"], 2))
def test_a_time_that_is_not_iso_8601_costs_its_row_and_shifts_no_other(tmp_path, form, zone):
    lines = [Line(), Line(zone="us-east-1c")]
    bad = [text for text in BAD_TIMES if text not in UNIX_TIMES or not form.startswith("aws-")]
    for text in bad:
        lines.insert(1, Line(zone="us-east-1b", time=text))
    prices, counts, reasons, _, _ = taken(tmp_path, form, lines, session_zone=zone)
    assert not [row for row in prices + counts if "us-east-1b" in row and row[-1] != 0]
    assert {row[4] for row in prices} == {NOON}
    assert len(reasons) >= len(bad)


@pytest.mark.parametrize(("form", "zone"), in_turn(TIMED, ["UTC", "Asia/Shanghai"], 1))
def test_one_moment_is_one_moment_however_it_is_written(tmp_path, form, zone):
    apart = form != "primeintellect"  # a snapshot states that the other providers have nothing
    lines = [
        Line(zone=f"us-east-1{letter if apart else 'a'}", time=text)
        for letter, text in zip("abcdefghij", GOOD_TIMES, strict=False)
    ]
    prices, _, reasons, _, _ = taken(tmp_path, form, lines, session_zone=zone)
    assert not reasons
    assert {row[4] for row in prices} == {NOON}


@pytest.mark.parametrize("form", each_source(TIMED, 4))
def test_a_time_without_an_offset_is_utc_where_the_source_documents_it_and_else_none(tmp_path, form):
    documented = FORMS[form][0] in ("aws", "tabular")
    lines = [Line(), Line(zone="us-east-1b", time="2026-03-05T12:00:00")]
    prices, _, reasons, _, _ = taken(tmp_path, form, lines, session_zone="America/New_York")
    found = [row[4] for row in prices if "us-east-1b" in row]
    assert found == ([NOON] * len(found) if documented else [])
    assert bool(found) == documented == (not reasons)


@pytest.mark.parametrize("form", each_source([name for name in FORMS if name.startswith("aws")], 1))
def test_a_name_that_a_source_does_not_know_is_counted_with_the_name(tmp_path, form):
    lines = [Line(), *[Line(zone="moon-1a")] * 2, Line(zone="use99-az1")]
    done = taken(tmp_path, form, lines)[3]
    told = {reason.split(":")[0]: count for reason, count in done.reasons.items()}
    assert told == {"unknown zone 'moon-1a'": 2, "unknown zone 'use99-az1'": 1}


@pytest.mark.parametrize(
    "form", each_source([name for name in FORMS if name.startswith(("aws", "tabular"))], 3)
)
def test_a_price_of_windows_alone_is_no_price_of_the_market(tmp_path, form):
    """Both orders of the rows give the same: `test_the_order_of_rows_changes_nothing`."""
    source, name, write = FORMS[form]
    windows = Line(product="Windows")
    found = []
    for lines in ([windows, Line(usd="3")], [windows]):
        (tmp_path / name).write_text(write(lines))
        with open_store(":memory:", sealed=False) as store:
            ingest(store, source, tmp_path / name)
            found += list_markets(store).to_dict("records")
    both, alone = found
    assert both["has_price"]
    assert both["products"] == "Linux/UNIX; Windows"
    assert not alone["has_price"]
    assert alone["missing"].startswith("Linux price (only Windows)")
    assert pd.isna(alone["on_demand_usd"])


@pytest.mark.parametrize(("form", "how"), in_turn(FORMS, ["bom", "crlf", "cr", "utf-16", "gzip"], 2))
def test_byte_order_marks_line_ends_encodings_and_packing_change_nothing(tmp_path, form, how):
    import gzip

    source, name, write = FORMS[form]
    lines = [Line(), Line(zone="us-east-1b", usd="7")]
    expected = taken(tmp_path, form, lines)
    text = write(lines)
    written = {
        "bom": lambda: b"\xef\xbb\xbf" + text.encode(),
        "crlf": lambda: text.replace("\n", "\r\n").encode(),
        "cr": lambda: text.replace("\n", "\r").encode(),
        "utf-16": lambda: text.replace("\n", "\r\n").encode("utf-16"),
        "gzip": lambda: gzip.compress(text.encode()),
    }
    path = tmp_path / name
    path.write_bytes(written[how]())
    with open_store(":memory:") as store:
        done = ingest(store, source, path)
    assert (done.added, done.rejected) == (expected[3].added, expected[3].rejected)


def test_archives_of_files_are_refused_with_what_to_do(tmp_path):
    path = tmp_path / "history.xlsx"
    path.write_bytes(b"PK\x03\x04 and so on")
    for name in {source for source, _, _ in FORMS.values()}:
        with (
            open_store(":memory:") as store,
            pytest.raises(SourceFileError, match=r"ZIP.*save the sheet as CSV"),
        ):
            ingest(store, name, path, **({"instance_type": "x"} if name in ("aws", "tabular") else {}))
