"""The catalogue of instance types: the complete shared table, dated prices, regions, types without on-demand (M1.1)."""

import csv
import datetime as dt

import pytest
from open_data import DATA

from benchmarks.build_catalogue import COLUMNS, TARGET, gpu_model, rows
from slackwater.optimization.job.units import gpu_type_of
from slackwater.warehouse.catalogue import (
    OnDemandTerms,
    catalogue,
    highest_list_price,
    list_price,
    rows_of,
    terms_for,
)
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.history import Market

SHARED = DATA / "catalog" / "gpu_instances.csv"
shared = pytest.mark.skipif(not SHARED.is_file(), reason=f"no {SHARED}: set SLACKWATER_DATA")
NOW = dt.datetime(2026, 11, 25, tzinfo=dt.UTC)
BEFORE_THE_CUT, AFTER_THE_CUT = (
    dt.datetime(2025, 5, 31, 23, tzinfo=dt.UTC),
    dt.datetime(2025, 6, 1, tzinfo=dt.UTC),
)


def usd(provider, region, kind, at=NOW):
    found = list_price(provider, region, kind, at)
    return None if found is None else found.usd


@shared
def test_the_file_is_what_the_script_makes_of_the_shared_table():
    written = list(csv.reader(TARGET.read_text(encoding="utf-8").splitlines()))
    assert written == [list(COLUMNS), *map(list, rows(SHARED))]


def test_offers_of_vast_have_the_gpu_that_the_live_source_names_them_by():
    """`vast-offers` writes the memory of the card into the type."""
    for name, model in (("H100_SXM_80GB", "H100-SXM5-80GB"), ("A100_SXM4_40GB", "A100-SXM4-40GB")):
        held = gpu_type_of(Market(provider="vast.ai", region="US", zone="all", instance_type=f"{name}_x8"))
        assert (held.gpu_model, held.gpus) == (f"NVIDIA-{model}", 8)
        assert f"_{held.gpu_memory_gib:g}GB" in name


@shared
def test_every_row_of_the_shared_table_is_found_by_its_region():
    with SHARED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["provider"], row["region"], row["instance_type"]
            found = list_price(*key, NOW)
            held = gpu_type_of(Market(provider=key[0], region=key[1], zone="z", instance_type=key[2]))
            assert held is not None
            assert (held.gpus, held.gpu_model) == (
                int(row["gpus"]),
                gpu_model(key[0], key[2], row["gpu_model"]),
            )
            assert held.gpu_memory_gib == (float(row["gpu_memory_gib"]) if row["gpu_memory_gib"] else None)
            if key[2] in ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"):
                assert found.usd is None
            elif price := row["on_demand_usd_per_hour"]:
                assert (found.usd, found.elsewhere) == (float(price), False)


@pytest.mark.parametrize(
    ("provider", "region", "kind", "price"),
    [
        ("aws", "us-east-1", "p4d.24xlarge", 21.957642),
        ("aws", "us-east-1", "p5.48xlarge", 55.04),
        ("aws", "us-east-1", "p4de.24xlarge", 27.44705),
        ("aws", "us-east-1", "p6-b200.48xlarge", 113.9328),
        ("aws", "us-east-1", "g5.xlarge", 1.006),
        ("gcp", "us-central1", "a3-highgpu-8g", 88.49),
        ("gcp", "us-central1", "a2-highgpu-1g", 3.673385),
        ("primeintellect", "any", "A100_80GB_SXM4_x8", 8 * 1.79),
        ("aws", "us-east-1", "p5e.48xlarge", None),  # the table has none
        ("gcp", "us-central1", "a4-highgpu-8g", None),  # no certain price
        ("gcp", "us-central1", "a3-ultragpu-8g", None),
    ],
)
def test_known_figures(provider, region, kind, price):
    assert usd(provider, region, kind) == (None if price is None else pytest.approx(price))
    assert rows_of(provider, kind)


@pytest.mark.parametrize("kind", ["g6.xlarge", "g6e.12xlarge", "p5en.48xlarge", "g4dn.xlarge", "p3.2xlarge"])
def test_common_types_have_a_price(kind):
    assert usd("aws", "us-east-1", kind) > 0


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("p4d.24xlarge", 32.7726, 21.957642), ("p5.48xlarge", 98.32, 55.04)]
)
def test_a_price_is_known_from_its_date(kind, before, after):
    assert usd("aws", "us-east-1", kind, BEFORE_THE_CUT) == before
    assert usd("aws", "us-east-1", kind, AFTER_THE_CUT) == after
    # For another region only the new price is known: before the cut the us-east-1 price is used, and its region
    # is named.
    found = list_price("aws", "eu-north-1", kind, BEFORE_THE_CUT)
    assert (found.usd, found.elsewhere) == (before, True)
    assert "in us-east-1 (none listed in eu-north-1)" in found.words


def test_a_cut_type_without_an_old_price_has_none_before_the_cut():
    assert usd("aws", "us-east-1", "p4de.24xlarge", BEFORE_THE_CUT) is None


def test_a_list_that_is_younger_than_the_time_says_so():
    early, late = (
        list_price("gcp", "us-central1", "a3-highgpu-8g", dt.datetime(year, 11, 1, tzinfo=dt.UTC))
        for year in (2025, 2026)
    )
    assert early.usd == late.usd
    assert "later than this time" in early.words
    assert "later than this time" not in late.words


@pytest.mark.parametrize(
    ("provider", "region", "place"),
    [("aws", "us-east-9", "us-east-1"), ("aws", "eu-south-2", "eu-"), ("aws", "sa-east-1", "us-east-1")],
)
def test_without_a_price_in_the_region_the_most_similar_one_is_taken_and_named(provider, region, place):
    found = list_price(provider, region, "p4d.24xlarge", NOW)
    assert found.elsewhere
    assert f"list price in {place}" in found.words
    assert f"none listed in {region}" in found.words


def test_a_type_that_is_not_sold_on_demand():
    found = list_price("gcp", "us-central1", "a3-highgpu-1g", NOW)
    assert found.usd is None
    assert found.words.startswith("not sold on demand in us-central1")


def test_types_that_are_none():
    assert list_price("aws", "us-east-1", "homemade", NOW) is None
    assert rows_of("primeintellect", "A100_80GB_SXM4_x0") == ()
    assert rows_of("gcp", "p4d.24xlarge") == ()
    assert highest_list_price("aws", "homemade") is None


def test_every_price_is_positive_and_every_type_says_one_number_of_gpus():
    held = {}
    for row in catalogue():
        assert row.on_demand_usd is None or 0 < row.on_demand_usd < 1000
        assert row.regions
        assert row.source
        assert held.setdefault((row.provider, row.instance_type), row.gpus) == row.gpus


def test_terms_match_part_by_part_and_the_first_counts():
    terms = [
        OnDemandTerms(market="aws/us-*/*/p4d.24xlarge", usd=20.0, stated_in="settings"),
        OnDemandTerms(market="aws/*/*/*", usd=None, stated_in="settings"),
    ]
    assert terms_for("aws/us-east-1/us-east-1a/p4d.24xlarge", terms) is terms[0]
    assert terms_for("aws/eu-west-1/eu-west-1a/p4d.24xlarge", terms) is terms[1]
    assert terms_for("gcp/us/us-a/p4d.24xlarge", terms) is None
    with pytest.raises(SettingsError, match="on-demand price -1"):
        OnDemandTerms(market="*", usd=-1.0, stated_in="job")
