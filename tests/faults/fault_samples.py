"""A small file of every source's format, with repeated and unusable rows, and its number of rows."""

import json
from pathlib import Path

from slackwater.studies.sources.vastai import COLUMNS as VAST_COLUMNS
from slackwater.warehouse.sources import SOURCES

#: Sources of files, and required options other than their files.
OPTIONS: dict[str, dict[str, str]] = {name: {} for name in SOURCES.all_names() if SOURCES[name].has_files} | {
    "bamboo": {"start": "2022-01-01", "zone": "us-west-2a", "instance_type": "p3.2xlarge"},
    "skypilot": {"start": "2023-08-27"},
}
_OWN = "https://console.vast.ai/api/v0/bundles/"


def _aws(hours: int) -> str:
    records = [
        {
            "AvailabilityZone": f"us-east-1{'ab'[hour % 2]}",
            "InstanceType": "p3.2xlarge",
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{0.918 + hour / 100:.4f}",
            "Timestamp": f"2021-05-{1 + hour // 24:02d}T{hour % 24:02d}:47:31+00:00",
        }
        for hour in range(hours)
    ]
    records += [records[0], {**records[1], "AvailabilityZone": "mars-1"}, {**records[2], "SpotPrice": "-1"}]
    return json.dumps({"SpotPriceHistory": records})


def _archive(rows: int) -> str:
    lines = [
        f"use1-az6\tp3.2xlarge\tLinux/UNIX\t{0.9 + i / 1000:.3f}\t2022-05-{1 + i % 28:02d}T18:20:41+00:00"
        for i in range(rows)
    ]
    return (
        "\n".join([*lines, lines[0], "use1-az6\tp3.2xlarge\tLinux/UNIX\tdear\t2022-05-30T18:20:41+00:00"])
        + "\n"
    )


def _counts(rows: int) -> str:
    lines = [f"2021-12-10, {i // 60:02d}:{i % 60:02d}:45, {i % 80}" for i in range(rows)]
    return "\n".join([*lines, lines[-1], "2021-12-10, 23:00:00, many"]) + "\n"


def _events(rows: int) -> str:
    return "".join(f"{60000 * i},add,n{i}\n" for i in range(rows)) + "noise\n60000,remove,z\n"


def _snapshots(rows: int) -> str:
    lines = [
        json.dumps(
            {
                "timestamp": f"2025-10-{1 + i // 24:02d}T{i % 24:02d}:00:00+00:00",
                "gpu_type": "H100_80GB",
                "socket_type": "SXM5",
                "price_stats": {"min": 1.0 + i / 100, "median": 2.0},
                "availability": {"total": 3 + i % 4},
                "by_provider": {
                    "a": {"count": 2, "min": 1.5, "avg": 2},
                    "b": {"count": 1 + i % 4, "min": 1.5, "avg": 2},
                },
                "by_config": {"1x": {"count": 3, "min_total": 9.0}},
            }
        )
        for i in range(rows)
    ]
    return "\n".join([*lines, '{"timestamp": "never"}']) + "\n"


def _probes(rows: int) -> str:
    lines = [f"2023-02-{15 + i // 24:02d} {i % 24:02d}:08:16,{i % 3 % 2}" for i in range(rows)]
    return "\n".join(["date,availability", *lines, lines[0], "soon,1"]) + "\n"


def _round(number: int) -> str:
    results = {
        f"us-east4-{zone}": {"instances_created": number % 9, "instances_requested": 16} for zone in "abc"
    }
    return json.dumps(
        {
            "scheduled_at": f"2025-10-03T{10 + number:02d}:10:00-07:00",
            "ended_at": f"2025-10-03T{10 + number:02d}:11:25-07:00",
            "interval_sec": 600,
            "status": "success",
            "zone_results": results,
            "zones_probed": [*sorted(results), "us-east4-z"],
        }
    )


def _trace(rows: int) -> str:
    return json.dumps({"metadata": {"gap_seconds": 300}, "data": [i % 17 for i in range(rows)]})


def tidy_prices(rows: int) -> str:
    """Return prices of one market as a tidy CSV file, with unusable rows."""
    head = "provider,region,zone,instance_type,product,timestamp,spot_price_usd_per_hour,on_demand_price_usd_per_hour,source"
    lines = [
        f"aws,us-east-1,us-east-1a,g3.8xlarge,Linux/UNIX,2021-03-{1 + i // 24:02d}T{i % 24:02d}:45:29Z,"
        f"{0.6 + i / 1000:.3f},2.28,here"
        for i in range(rows)
    ]
    bad = [
        "too,few",
        lines[0].replace("0.600", "oops"),
        lines[0].replace("0.600", "nan"),
        lines[-1].replace(",2.28", ",-2"),
    ]
    return "\n".join([head, *lines, lines[0], *bad]) + "\n"


def _tidy_counts(rows: int) -> str:
    head = "provider,region,zone,instance_type,timestamp,available,capacity_probed,gap_seconds,kind,truncated,source"
    lines = [
        f"gcp,us-east1,us-east1-c,v100,2021-12-{1 + i // 24:02d}T{i % 24:02d}:07:45Z,{i % 80},80,60,held,false,here"
        for i in range(rows)
    ]
    return "\n".join([head, *lines, lines[3], lines[4].replace(",80,60", ",1e308,60"), ""]) + "\n"


def _offers(rows: int) -> str:
    lines = [
        f"2026-01-{1 + i % 28:02d},vast.ai,L40S,1,US,spot,0.5,0.5,0.5,{i % 5},{_OWN},2026-01-{1 + i % 28:02d}T20:30:00+00:00"
        for i in range(rows)
    ]
    return "\n".join([",".join(VAST_COLUMNS), *lines, "2026-01-01,vast.ai,L40S"]) + "\n"


def sample_files(rows: int = 40) -> dict[str, dict[str, str]]:
    """Return source -> file name -> content; a source without samples here contributes its examples."""
    examples = {name: dict(SOURCES[name].examples) for name in OPTIONS}
    return examples | {
        "aws": {"history.json": _aws(rows), "prices.tsv": _archive(min(rows, 28))},
        "bamboo": {"v100x1-east1c.txt": _counts(rows), "events.csv": _events(rows)},
        "primeintellect": {"h100.jsonl": _snapshots(rows)},
        "skynomad": {"us-west-2a_v100_1.csv": _probes(rows)}
        | {f"h100_{i}.json": _round(i) for i in range(3)},
        "skypilot": {"us-west-2a_v100_1.json": _trace(rows)},
        "tabular": {"prices.csv": tidy_prices(rows), "availability.csv": _tidy_counts(rows)},
        "vastai": {"observations.csv": _offers(min(rows, 28))},
    }


def write_samples(folder: Path, rows: int = 40) -> None:
    """Write the samples below ``folder``, in a folder for each source."""
    for source, files in sample_files(rows).items():
        (folder / source).mkdir(parents=True)
        for name, content in files.items():
            (folder / source / name).write_text(content)
