"""The real raw files through their sources into a store: every row counted, and nothing added the second time."""

import pytest
from source_files import options, raw

from slackwater.warehouse.observations import Appended, ingest_file
from slackwater.warehouse.sources import SOURCES
from slackwater.warehouse.store.connection import open_store

#: added, rejected
EXPECTED = {
    ("aws", "aws_describe-spot-price-history_g3.8xlarge.json"): (2175, 0),
    ("aws", "aws_spot_prices_2022-05.tsv.zst"): (33_362, 0),
    ("bamboo", "bamboo_aws_p3_events.csv"): (683, 0),
    ("bamboo", "bamboo_gcp_v100x1-east1c.txt"): (
        1446,
        31,
    ),  # 15 times occur twice or more, with different counts
    ("primeintellect", "primeintellect_A100_80GB_SXM4.jsonl"): (13_563 + 13_398, 0),
    ("skynomad", "skynomad_availability_us-west-2a_v100_1.csv"): (20_158, 0),
    ("skynomad", "skynomad_h100_probe_20251003-171000.json"): (13, 0),
    ("skypilot", "skypilot_16node_us-west-2a_v100_1.json"): (4736, 0),
    ("skypilot", "skypilot_prices_us-east-1b_intel_64.json"): (2 * 16_090, 0),
    ("vastai", "vastai_observations.csv"): (9321 + 11_742, 1597),
}


#: Large files of sources with a smaller one.
LARGE = (
    "aws_spot_prices_2022-05.tsv.zst",
    "skynomad_availability_us-west-2a_v100_1.csv",
    "skypilot_prices_us-east-1b_intel_64.json",
    "primeintellect_A100_80GB_SXM4.jsonl",
)


@pytest.mark.parametrize(
    ("name", "file"),
    [pytest.param(*key, marks=pytest.mark.slow if key[1] in LARGE else ()) for key in EXPECTED],
)
def test_every_row_of_the_real_files_is_counted(tmp_path, name, file):
    path, source = raw(file), SOURCES[name]
    added, rejected = EXPECTED[name, file]
    with open_store(tmp_path / "w.duckdb") as store:
        first = ingest_file(store, source, path, options=options())
        again = ingest_file(store, source, path, options=options())
    assert first == Appended(added=added, repeated=0, rejected=rejected)
    assert again == Appended(added=0, repeated=added, rejected=rejected)
