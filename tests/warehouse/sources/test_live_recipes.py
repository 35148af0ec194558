"""The feeds of ``examples/feeds`` for the `http` source, on responses in each service's documented form."""

import tomllib
from pathlib import Path

import pytest
from live_fetching import items, rows_of
from loopback import AT, Reply, serve

from slackwater.flows.config import Feed
from slackwater.warehouse.errors import FetchError
from slackwater.warehouse.sources.live.contract import Mark

FOLDER = Path(__file__).parents[3] / "examples" / "feeds"
KEYS = ("LAMBDA_API_KEY", "RUNPOD_API_KEY", "PRIME_API_KEY")


def recipes():
    texts = [file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.toml"))]
    return {feed["name"]: feed for text in texts for feed in tomllib.loads(text)["feeds"]}


RECIPES = recipes()


def lambda_type(name, cents, *regions):
    """Return an entry of GET /api/v1/instance-types, whose ``data`` is an object by name."""
    specs = {"vcpus": 30, "memory_gib": 200, "storage_gib": 512, "gpus": 1}
    return {name: {
        "instance_type": {"name": name, "description": "1x", "price_cents_per_hour": cents, "specs": specs},
        "regions_with_capacity_available": [{"name": region, "description": "somewhere"} for region in regions],
    }}  # fmt: skip


def runpod_type(name, gb, bid, usual, stock):
    price = {"minimumBidPrice": bid, "uninterruptablePrice": usual, "stockStatus": stock}
    return {"displayName": name, "memoryInGb": gb, "lowestPrice": price}


def prime_offer(usd, *, spot=True, stock="Available", gpus=8, provider="datacrunch", **others):
    return {
        "cloudId": "H100.8", "gpuType": "H100_80GB", "socket": "SXM5", "provider": provider, "dataCenter": "FIN-01",
        "country": "FI", "gpuCount": gpus, "gpuMemory": 80, "stockStatus": stock, "security": "secure_cloud",
        "prices": {"onDemand": usd, "communityPrice": None, "isVariable": False, "currency": "USD"}, "isSpot": spot, **others,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in KEYS:
        monkeypatch.setenv(name, f"secret-of-{name}")


def fetched(name, answer, **others):
    feed = Feed(**RECIPES[name])
    with serve(lambda _: Reply(answer)) as server:
        found = items("http", dict(feed.options) | {"url": server.url}, **others)
        (seen,) = server.seen
    if name != "aws-advisor":  # a public address
        assert seen.headers["authorization"] == f"Bearer secret-of-{name.split('-')[0].upper()}_API_KEY"
    return seen, found


def of(found, kind, value):
    return {(row["region"], row["zone"], row["instance_type"]): row[value] for row in rows_of(found, kind)}


def test_every_recipe_is_here():
    assert {name.split("-")[0] for name in RECIPES} >= {"aws", "lambda", "runpod", "prime"}


def test_lambda_counts_regions_with_capacity_and_keeps_the_price_as_on_demand():
    types = lambda_type("gpu_8x_h100_sxm5", 2392, "us-east-1", "us-west-3") | lambda_type("gpu_1x_a10", 75)
    _, found = fetched("lambda-prices", {"data": types})
    assert of(found, "price", "price_usd") == {
        ("us-east-1", "all", "gpu_8x_h100_sxm5"): "23.92",
        ("us-west-3", "all", "gpu_8x_h100_sxm5"): "23.92",
    }
    assert {row["product"] for row in rows_of(found, "price")} == {"on-demand"}
    _, (page,) = fetched("lambda-capacity", {"data": types})
    assert set(of([page], "availability", "available").values()) == {"1"}
    # An hour later one region is no longer listed.
    gone = {"data": lambda_type("gpu_8x_h100_sxm5", 2392, "us-west-3")}
    _, found = fetched("lambda-capacity", gone, marks={"all": Mark(memory=page.memory)}, at=AT)
    assert of(found, "availability", "available") == {
        ("us-east-1", "all", "gpu_8x_h100_sxm5"): "0",
        ("us-west-3", "all", "gpu_8x_h100_sxm5"): "1",
    }


def test_runpod_bids_and_stock_by_a_posted_query():
    types = [
        runpod_type("RTX 4090", 24, 0.2, 0.44, "High"),
        runpod_type("A100 SXM", 80, 0, 1.74, None),
        runpod_type("A100 SXM", 40, 0.6, 1.2, "Low"),
    ]
    seen, found = fetched("runpod-prices", {"data": {"gpuTypes": types}})
    assert seen.method == "POST"
    assert "minimumBidPrice" in seen.json["query"]
    bids = {kind: row["price_usd"] for row in rows_of(found, "price") if (kind := row["instance_type"])}
    assert (bids["RTX_4090_24GB_x1"], bids["A100_SXM_40GB_x1"]) == ("0.2", "0.6")
    _, found = fetched("runpod-stock", {"data": {"gpuTypes": types}})
    assert of(found, "availability", "available") == {
        ("all", "all", "RTX_4090_24GB_x1"): "1",
        ("all", "all", "A100_SXM_80GB_x1"): None,  # a missing answer differs from 0: the store rejects it
        ("all", "all", "A100_SXM_40GB_x1"): "1",
    }


def test_prime_intellect_takes_the_lowest_spot_offer_of_each_provider():
    offers = [
        prime_offer(16.0),
        prime_offer(14.0, cloudId="H100.8b"),
        prime_offer(9.0, stock="Unavailable"),
        prime_offer(8.0, spot=False),
        prime_offer(2.0, gpus=1, provider="hyperstack"),
    ]
    answer = {"H100_80GB": offers, "A100_80GB": []}
    _, found = fetched("prime-prices", answer)
    assert of(found, "price", "price_usd") == {
        ("FI", "datacrunch", "H100_80GB_SXM5_x8"): "14.0",
        ("FI", "hyperstack", "H100_80GB_SXM5_x1"): "2.0",
    }
    assert found[0].notes == ("left out: 1 where isSpot is 'false', 1 where stockStatus is 'Unavailable'",)
    _, found = fetched("prime-stock", answer)
    assert of(found, "availability", "available") == {
        ("FI", "datacrunch", "H100_80GB_SXM5_x8"): "2",
        ("FI", "hyperstack", "H100_80GB_SXM5_x1"): "1",
    }


def test_the_advisor_of_aws_gives_a_band_by_region_and_type():
    linux = {
        kind: {"s": 60, "r": band}
        for kind, band in (("p5.48xlarge", 4), ("p4d.24xlarge", 0), ("m5.large", 1))
    }
    others = {f"m{number}.large": {"s": 70, "r": 0} for number in range(6, 99)}
    answer = {
        "global_rate": "<10%",
        "instance_types": {"p5.48xlarge": {"emr": False, "cores": 192, "ram_gb": 2048.0}},
        "ranges": [{"index": 0, "label": "<5%", "dots": 0, "max": 5}, {"index": 1, "label": "5-10%", "dots": 1, "max": 11}],
        "spot_advisor": {
            "us-east-1": {"Linux": linux, "Windows": {"p5.48xlarge": {"s": 10, "r": 2}}},
            "eu-west-1": {"Linux": others, "Windows": {}},
        },
    }  # fmt: skip
    _, found = fetched("aws-advisor", answer)
    assert of(found, "availability", "available") == {
        ("us-east-1", "all", "p5.48xlarge"): "4",
        ("us-east-1", "all", "p4d.24xlarge"): "0",
    }
    assert {(row["source"], row["kind"]) for row in rows_of(found, "availability")} == {
        ("aws-advisor", "band")
    }
    (note,) = found[0].notes
    assert note.startswith("left out: 1 where @key is 'm10.large', ")
    assert note.endswith(", and 89 of 89 other kinds")


@pytest.mark.parametrize("name", RECIPES)
def test_an_error_in_the_place_of_rows_is_quoted(name):
    with pytest.raises(FetchError, match="no list of rows at"):
        fetched(name, {"message": "bad key"})
