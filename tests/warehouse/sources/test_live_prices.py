"""Price lists and marketplaces: Azure, Google Cloud, Vast.ai, on servers that return their documented forms."""

import pandas as pd
import pytest
from live_fetching import items, marked, rows_of
from loopback import AT, Azure, Gcp, Reply, Vast, azure_item, gcp_sku, serve, vast_offer

from slackwater.warehouse.catalogue import product_rank
from slackwater.warehouse.errors import FetchError, SettingsError
from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.live.contract import Mark, PartFailed
from slackwater.warehouse.sources.live.transport import Retry, Transport

VAST_KEY, GCP_KEY = Vast([]).key, Gcp([]).key


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "GOOGLE_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VAST_API_KEY", VAST_KEY)
    monkeypatch.setenv("GCP_API_KEY", GCP_KEY)
    monkeypatch.setenv("HOME", str(tmp_path))


def azure_items(region="eastus"):
    v100, a100 = "Standard_NC6s_v3", "Standard_NC24ads_A100_v4"
    windows = "Virtual Machines NCSv3 Series Windows"
    return [
        azure_item(region, v100, 3.06, spot=False),
        azure_item(region, v100, 0.918, spot=True),
        azure_item(region, v100, 4.5, spot=False, productName=windows),
        azure_item(region, v100, 1.4, spot=True, productName=windows),
        azure_item(region, v100, 0.7, spot=False, meterName="NC6s v3 Low Priority"),
        azure_item(region, a100, 1.5, spot=True),
        azure_item(region, "Standard_D2s_v5", 0.02, spot=True),
        azure_item(region, "Standard_D2s_v5", 0.096, spot=False),
    ]


def azure_options(server, **others):
    return {"url": server.url, "regions": ["eastus"]} | others


def test_azure_spot_meters_with_the_on_demand_price_of_the_same_size_and_product():
    with serve(Azure(azure_items())) as server:
        found = items("azure-retail", azure_options(server))
    rows = rows_of(found, "price")
    assert {
        (row["instance_type"], row["product"]): (row["price_usd"], row["on_demand_usd"]) for row in rows
    } == {
        ("Standard_NC6s_v3", "Linux/UNIX"): ("0.918", "3.06"),
        ("Standard_NC6s_v3", "Windows"): ("1.4", "4.5"),
        ("Standard_NC24ads_A100_v4", "Linux/UNIX"): ("1.5", None),
    }
    first = rows[0]
    assert (first["provider"], first["region"], first["zone"]) == ("azure", "eastus", "all")
    assert first["observed_at"] == AT.to_pydatetime()
    # 8 meters and then 4 spot meters, two a page.
    assert len(server.seen) == 4 + 2
    assert "contains(meterName, 'Spot')" in server.seen[-1].query["$filter"]


@pytest.mark.parametrize("words", ["RHEL", "Red Hat Enterprise Linux", "SUSE", "Ubuntu Pro", "SQL Server"])
def test_azure_prices_with_the_licence_of_a_system_are_of_that_product(words):
    product, newer = f"Virtual Machines NCSv3 Series {words}", "2025-01-01T00:00:00Z"
    licensed = [
        azure_item(
            "eastus", "Standard_NC6s_v3", usd, spot=spot, productName=product, effectiveStartDate=newer
        )
        for usd, spot in ((1.2, True), (3.5, False))
    ]
    with serve(Azure([*azure_items(), *licensed])) as server:
        rows = rows_of(items("azure-retail", azure_options(server, instance_types=["*NC6s*"])), "price")
    found = {row["product"]: (row["price_usd"], row["on_demand_usd"]) for row in rows}
    assert found.pop("Linux/UNIX") == ("0.918", "3.06")
    assert found.pop("Windows") == ("1.4", "4.5")
    assert list(found.values()) == [("1.2", "3.5")]
    assert product_rank(next(iter(found))) is None


@pytest.mark.parametrize("words", ["Capacity Reservation", "Azure Hybrid Benefit", "Expired"])
def test_azure_meters_of_other_ways_to_buy_are_left_out(words):
    changed = {"productName": f"NCSv3 {words}", "effectiveStartDate": "2025-01-01T00:00:00Z"}
    other = [azure_item("eastus", "Standard_NC6s_v3", 0.5, spot=spot, **changed) for spot in (True, False)]
    with serve(Azure([*azure_items(), *other])) as server:
        found = items("azure-retail", azure_options(server, instance_types=["*NC6s*"]))
    linux = [row for row in rows_of(found, "price") if row["product"] == "Linux/UNIX"]
    assert [(row["price_usd"], row["on_demand_usd"]) for row in linux] == [("0.918", "3.06")]
    assert "left out: " in found[0].notes[0]


def test_azure_stays_on_its_host_and_stores_a_region_once_its_last_page_has_come():
    with serve(Azure(azure_items())) as server:
        (page,) = items("azure-retail", azure_options(server))
        assert page.token is None
        server.faults = {number: Reply("", status=503) for number in (10, 11, 12)}
        (failed,) = items("azure-retail", azure_options(server))
    assert isinstance(failed, PartFailed)


def test_azure_regions_fail_alone():
    answer = Azure([*azure_items("eastus"), *azure_items("westeurope")])

    def one_denies(seen):
        return Reply("", status=404) if "'eastus'" in seen.query["$filter"] else answer(seen)

    with serve(one_denies) as server:
        found = items("azure-retail", azure_options(server, regions=["eastus", "westeurope"]))
    assert isinstance(found[0], PartFailed)
    assert (found[0].part, "answered 404" in found[0].reason) == ("eastus", True)
    assert {row["region"] for row in rows_of(found, "price")} == {"westeurope"}


def test_azure_odd_items_are_rejected_rows():
    odd = [
        azure_item("eastus", "Standard_NC6s_v3", 1.0, spot=True, currencyCode="EUR"),
        azure_item("eastus", "Standard_NC6s_v3", 1.0, spot=True, unitOfMeasure="100 Hours"),
    ]
    with serve(Azure(odd)) as server:
        found = items("azure-retail", azure_options(server))
        assert [row["reason"] for row in rows_of(found, "rejected")] == [
            "currency 'EUR', expected USD",
            "unit '100 Hours', expected 1 Hour",
        ]
    for body in ([], {"Items": 5}, {"Error": "x"}):
        with serve(lambda seen, body=body: Reply(body)) as server:
            (failed,) = items("azure-retail", azure_options(server))
            assert "without Items" in failed.reason or "not" in failed.reason


def test_azure_pages_without_end_end():
    def forever(seen):
        return Reply({"Items": [], "NextPageLink": "https://prices.azure.com/api?$skip=1"})

    with serve(forever) as server:
        (failed,) = items("azure-retail", azure_options(server))
        assert "same next page twice" in failed.reason
        assert len(server.seen) <= 3


def test_a_snapshot_answered_too_late_is_observed_when_it_was_answered():
    late = AT + pd.Timedelta(hours=2, minutes=5)
    answer = Azure(azure_items())

    def slow_server(seen):
        reply = answer(seen)
        reply.date = late
        return reply

    with serve(slow_server) as server:
        found = items("azure-retail", azure_options(server))
    assert {row["observed_at"] for row in rows_of(found, "price")} == {late.to_pydatetime()}


def vast_options(server, **others):
    return {"url": server.url} | others


OFFERS = [
    vast_offer("RTX 4090", 1, 0.20, "SE"),
    vast_offer("RTX 4090", 1, 0.40, "SE"),
    vast_offer("RTX 4090", 1, 0.30, "US"),
    vast_offer("H100 SXM", 8, 9.00, "US", gpu_ram=81559),
]


def test_vast_offers_become_prices_and_counts_by_country_and_size():
    with serve(Vast(OFFERS)) as server:
        (page,) = items("vast-offers", vast_options(server, gpu_models=["RTX 4090", "H100 SXM"]))
        assert [seen.json["type"] for seen in server.seen] == ["bid", "on-demand"]
        assert server.seen[0].path == "/api/v0/bundles/"
        assert server.seen[0].json["gpu_name"] == {"in": ["RTX 4090", "H100 SXM"]}
    prices = {
        (row["region"], row["instance_type"], row["product"]): (row["price_usd"], row["on_demand_usd"])
        for row in rows_of([page], "price")
    }
    size = "RTX_4090_24GB_x1"
    assert prices["SE", size, "interruptible, min over offers"] == (0.20, pytest.approx(0.60))
    assert prices["SE", size, "interruptible, median over offers"] == (
        pytest.approx(0.30),
        pytest.approx(0.60),
    )
    assert prices["SE", size, "interruptible, quartile 1 over offers"][0] == pytest.approx(0.25)
    assert prices["all", size, "interruptible, quartile 3 over offers"][0] == pytest.approx(0.35)
    assert prices["US", "H100_SXM_80GB_x8", "interruptible, min over offers"] == (9.0, 18.0)
    counts = {
        (row["region"], row["instance_type"]): row["available"] for row in rows_of([page], "availability")
    }
    assert counts == {("SE", size): 2, ("US", size): 1, ("all", size): 3, ("US", "H100_SXM_80GB_x8"): 1,
                      ("all", "H100_SXM_80GB_x8"): 1}  # fmt: skip
    assert {
        (row["kind"], row["truncated"], row["gap_seconds"]) for row in rows_of([page], "availability")
    } == {("offers", False, 3600)}


def test_vast_countries_and_memory_in_other_spellings_are_the_same_market():
    offers = [
        vast_offer("H100 SXM", 1, 1.0, "US", gpu_ram=81559),
        vast_offer("H100 SXM", 1, 2.0, "us", gpu_ram=80.0),
        vast_offer("H100 SXM", 1, 3.0, "US", gpu_ram="80"),
        vast_offer("H100 SXM", 1, 4.0, "US", gpu_ram="80", verified=False),
        vast_offer("H100 SXM", 2, 4.0, "UK", gpu_ram="80"),
        vast_offer("H100 SXM", 2, 4.0, "GB", gpu_ram="80"),
    ]
    with serve(Vast(offers)) as server:
        (page,) = items("vast-offers", vast_options(server))
    assert {
        (row["region"], row["instance_type"]): row["available"] for row in rows_of([page], "availability")
    } == {("US", "H100_SXM_80GB_x1"): 3, ("all", "H100_SXM_80GB_x1"): 3,
          ("GB", "H100_SXM_80GB_x2"): 2, ("all", "H100_SXM_80GB_x2"): 2}  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "size"), [((), "RTX_4090_24GB_x1"), (("SE\trtx_4090_24GB_x1",), "rtx_4090_24GB_x1")]
)
def test_vast_models_in_other_capitals_are_the_same_market(memory, size):
    offers = [vast_offer(name, 1, usd, "SE", gpu_ram=24564) for name, usd in
              (("RTX 4090", 0.2), ("rtx 4090", 0.3), ("RTX 4090", 0.4))]  # fmt: skip
    with serve(Vast(offers)) as server:
        (page,) = items("vast-offers", vast_options(server), marks={"all": Mark(memory=memory)})
    counted = {
        (row["region"], row["instance_type"]): row["available"] for row in rows_of([page], "availability")
    }
    assert counted == {("SE", size): 3, ("all", size): 3}
    assert {row["instance_type"] for row in rows_of([page], "price")} == {size}


def test_vast_cut_off_at_the_limit_is_marked_and_says_nothing_of_absent_series():
    memory = ("SE\tL40S_48GB_x1", "all\tL40S_48GB_x1")
    with serve(Vast(OFFERS)) as server:
        options = vast_options(server, limit=4)
        (page,) = items("vast-offers", options, marks={"all": Mark(memory=memory)})
        assert page.notes == ("cut off at 4 offers: counts are lower bounds",)
        counts = rows_of([page], "availability")
        assert all(row["truncated"] for row in counts)
        assert not any("L40S" in row["instance_type"] for row in counts)
        # A complete response: types seen before and no longer listed have no offers.
        (page,) = items("vast-offers", vast_options(server), marks={"all": Mark(memory=memory)})
        absent = [row for row in rows_of([page], "availability") if "L40S" in row["instance_type"]]
    assert [(row["region"], row["available"]) for row in absent] == [("SE", 0), ("all", 0)]
    assert set(memory) < set(page.memory)


def test_vast_hostile_offers_are_rejected_rows():
    hostile = [
        vast_offer("RTX 4090", 1, 0.2, "SE", min_bid="1e999"),
        vast_offer("RTX 4090", -3, 0.2, "SE"),
        vast_offer("RTX 4090", 1, 0.2, "SE", num_gpus=[1]),
        vast_offer("a/b@c", 1, 0.2, "SE"),
        "not an offer",
        None,
        {"gpu_name": "x" * 100_000},
    ]
    with serve(Vast(hostile)) as server:
        (page,) = items("vast-offers", vast_options(server))
    rejected = rows_of([page], "rejected")
    # Each search rejects its invalid offers; for the on-demand search dph_base of the first is valid.
    assert len(rejected) == 7 + 6
    assert all(len(row["raw"]) <= 1000 for row in rejected)
    assert rows_of([page], "price") == []


@pytest.mark.parametrize("source", ["vast-offers", "gcp-catalogue"])
def test_a_key_is_needed_and_never_told(source, monkeypatch, tmp_path):
    wrong = "wrong-secret-key-0123456789"

    def echo(seen):
        return Reply({"msg": f"bad key {wrong} {seen.headers}"}, status=401)

    with serve(echo) as server:
        monkeypatch.setenv("VAST_API_KEY", wrong)
        monkeypatch.setenv("GCP_API_KEY", wrong)
        with pytest.raises(FetchError, match="answered 401") as raised:
            items(source, {"url": server.url})
        assert wrong not in str(raised.value)
        assert wrong not in server.seen[0].path + str(server.seen[0].query)
        monkeypatch.delenv("VAST_API_KEY")
        monkeypatch.delenv("GCP_API_KEY")
        server.seen.clear()
        with pytest.raises(FetchError, match=r"no .* API key found; expected one in"):
            items(source, {"url": server.url})
        assert server.seen == []


def test_vast_reads_the_key_file_of_its_own_client(tmp_path, monkeypatch):
    monkeypatch.delenv("VAST_API_KEY")
    file = tmp_path / ".config/vastai/vast_api_key"
    file.parent.mkdir(parents=True)
    file.write_text(VAST_KEY + "\n")
    with serve(Vast(OFFERS)) as server:
        (page,) = items("vast-offers", vast_options(server))
    assert rows_of([page], "price")


def gcp_skus(region="us-central1"):
    spot, usual = "Spot Preemptible ", ""
    skus = []
    for usage, mark, share in (("Preemptible", spot, 0.3), ("OnDemand", usual, 1.0)):
        attached = "attached to Spot Preemptible VMs " if mark else ""
        skus += [
            gcp_sku(f"Nvidia Tesla A100 GPU {attached}running in Iowa", usage, 3.0 * share, [region]),
            gcp_sku(f"Nvidia Tesla A100 80GB GPU {attached}running in Iowa", usage, 4.0 * share, [region]),
            gcp_sku(f"{mark}A2 Instance Core running in Iowa", usage, 0.03 * share, [region, "europe-west4"]),
            gcp_sku(f"{mark}A2 Instance Ram running in Iowa", usage, 0.004 * share, [region, "europe-west4"]),
        ]
    skus.append(gcp_sku("Commitment v1: A2 Core in Iowa", "Commit1Yr", 0.02, [region]))
    skus.append(gcp_sku("Nvidia Tesla T4 GPU running in Iowa", "OnDemand", 0.35, [region]))
    return skus


def test_gcp_prices_of_machine_types_are_the_sums_of_their_parts():
    with serve(Gcp(gcp_skus(), page=3)) as server:
        (page,) = items("gcp-catalogue", {"url": server.url})
        assert server.seen[0].path == "/v1/services/6F81-5844-456A/skus"
        assert len(server.seen) == 4
    rows = {(row["region"], row["instance_type"]): row for row in rows_of([page], "price")}
    one = rows["us-central1", "a2-highgpu-1g"]
    usual = 3.0 + 12 * 0.03 + 85 * 0.004
    assert float(one["on_demand_usd"]) == pytest.approx(usual, rel=1e-9)
    assert float(one["price_usd"]) == pytest.approx(0.3 * usual, rel=1e-6)
    ultra = rows["us-central1", "a2-ultragpu-2g"]
    assert float(ultra["on_demand_usd"]) == pytest.approx(2 * 4.0 + 24 * 0.03 + 340 * 0.004, rel=1e-9)
    # For europe-west4 only cores and memory are known.
    assert {region for region, _ in rows} == {"us-central1"}
    assert len(rows) == 5 + 4


def test_gcp_filters_and_odd_skus():
    skus = gcp_skus()
    broken = {"currencyCode": "EUR", "units": "1", "nanos": 0}
    skus += [
        gcp_sku("Nvidia L4 GPU running in Iowa", "OnDemand", 1.0, ["us-central1"], pricingInfo=[]),
        gcp_sku("Nvidia L4 GPU running in Iowa", "OnDemand", 1.0, []),
        gcp_sku("Nvidia L4 GPU running in Iowa", "OnDemand", 1.0, ["x"], pricingInfo=[{"pricingExpression": {
            "usageUnit": "h", "tieredRates": [{"unitPrice": broken}]}}]),
        gcp_sku("Nvidia L4 GPU running in Iowa", "OnDemand", 1.0, ["x"], pricingInfo=[{"pricingExpression": {
            "usageUnit": "mo", "tieredRates": [{"unitPrice": broken}]}}]),
        gcp_sku("Nvidia L4 GPU running in Iowa", "OnDemand", 1.0, ["x"], pricingInfo=[{"pricingExpression": {
            "usageUnit": "h", "tieredRates": [{"unitPrice": {"units": "9" * 50, "nanos": 0}}]}}]),
        "not a SKU",
    ]  # fmt: skip
    with serve(Gcp(skus, page=100)) as server:
        (page,) = items("gcp-catalogue", {"url": server.url, "instance_types": ["a2-highgpu-1g"]})
    assert [row["instance_type"] for row in rows_of([page], "price")] == ["a2-highgpu-1g"]
    reasons = [row["reason"] for row in rows_of([page], "rejected")]
    for words in (
        "no tieredRates",
        "no serviceRegions",
        "currency 'EUR'",
        "unit 'mo'",
        "units '99999999999999999999' is not a number",
        "not a SKU",
    ):
        assert sum(words in reason for reason in reasons) == 1, words


@pytest.mark.parametrize("words", [
    "running in Iowa for 1 Year", "in Calendar Mode running in Iowa", "running in Iowa (DWS)", "running in Iowa - Reserved",
    "attached to Reservation-bound VMs running in Iowa", "attached to Spot Preemptible VMs running in Iowa, Flex Start",
    "attached to DWS Defined Duration VMs running in Iowa",
])  # fmt: skip
def test_gcp_other_ways_to_rent_are_left_out_wherever_a_description_names_them(words):
    newer = {"effectiveTime": "2025-01-01T00:00:00Z"}
    other = gcp_sku(f"Nvidia Tesla A100 GPU {words}", "OnDemand", 0.5, ["us-central1"])
    other["pricingInfo"] = [entry | newer for entry in other["pricingInfo"]]
    found = {}
    for skus in (gcp_skus(), [other, *gcp_skus()]):
        with serve(Gcp(skus)) as server:
            (page,) = items("gcp-catalogue", {"url": server.url, "instance_types": ["a2-highgpu-1g"]})
        found[len(skus)] = rows_of([page], "price")
        assert rows_of([page], "rejected") == []
    assert len(set(map(str, found.values()))) == 1
    assert any("rented otherwise" in note for note in page.notes)


def test_gcp_machines_of_every_series_with_the_names_of_their_parts():
    """Spot with one SKU per part: 8 of the GPU, the cores and memory, and for A3 Ultra the SSD at a 730th of
    its monthly price.
    """
    parts = {
        "Nvidia H100 80GB Plus GPU": 3.0, "A3Plus Instance Core": 0.01, "A3Plus Instance Ram": 0.001,
        "H200 141GB GPU": 4.0, "A3Ultra Instance Core": 0.01, "A3Ultra Instance Ram": 0.001,
        "A4 Nvidia B200 (1 gpu slice)": 5.0,
        "RTX 6000 96GB": 1.5, "G4 Instance Core": 0.01, "G4 Instance Ram": 0.001,
        "Nvidia Tesla V100 GPU": 0.7, "N1 Predefined Instance Core": 0.007, "N1 Predefined Instance Ram": 0.001,
    }  # fmt: skip
    skus = [gcp_sku(f"Spot Preemptible {name} running in Iowa", "OnDemand", usd, ["us-central1"])
            for name, usd in parts.items()]  # fmt: skip
    ssd = gcp_sku(
        "SSD backed Local Storage attached to Spot Preemptible VMs", "OnDemand", 0.0365, ["us-central1"]
    )
    ssd["pricingInfo"][0]["pricingExpression"]["usageUnit"] = "GiBy.mo"
    with serve(Gcp([*skus, ssd], page=5)) as server:
        (page,) = items("gcp-catalogue", {"url": server.url})
    usd = {row["instance_type"]: float(row["price_usd"]) for row in rows_of([page], "price")}
    assert usd["a3-megagpu-8g"] == pytest.approx(8 * 3 + 208 * 0.01 + 1872 * 0.001 + 6000 * 0.00005)
    assert usd["a3-ultragpu-8g"] == pytest.approx(8 * 4 + 224 * 0.01 + 2952 * 0.001 + 12_000 * 0.00005)
    assert usd["a4-highgpu-8g"] == pytest.approx(40.0)
    assert usd["g4-standard-96"] == pytest.approx(2 * 1.5 + 96 * 0.01 + 360 * 0.001)
    assert usd["n1-standard-8+v100x1"] == pytest.approx(0.7 + 8 * 0.007 + 30 * 0.001)
    assert usd["n1-standard-96+v100x8"] == pytest.approx(5.6 + 96 * 0.007 + 360 * 0.001)
    # One V100 goes with at most 12 vCPUs.
    assert "n1-standard-16+v100x1" not in usd
    assert page.notes == ()


def test_gcp_a_machine_without_the_price_of_a_part_has_none_and_is_counted():
    skus = [sku for sku in gcp_skus() if "Core" not in sku["description"]]
    with serve(Gcp(skus, page=50)) as server:
        (page,) = items("gcp-catalogue", {"url": server.url, "instance_types": ["a2-highgpu-1g"]})
    assert rows_of([page], "price") == []
    assert "no machine type has a complete spot price" in page.notes
    assert (
        "2 machine types without the price of a part: a2-highgpu-1g in us-central1 (on demand: core), "
        "a2-highgpu-1g in us-central1 (spot: core)" in page.notes
    )


def test_gcp_a_page_that_fails_keeps_nothing():
    with serve(Gcp(gcp_skus(), page=3)) as server:
        server.faults = {3: Reply("", status=503), 4: Reply("", status=503)}
        with pytest.raises(FetchError, match="503"):
            items("gcp-catalogue", {"url": server.url})
        server.faults = {}
        assert rows_of(items("gcp-catalogue", {"url": server.url}), "price")


def http_options(server, **others):
    columns = {"provider": "=lambda", "region": "place.region", "zone": "=all", "instance_type": "name",
               "price_usd": "cost", "product": "=Linux/UNIX"}  # fmt: skip
    return {"url": f"{server.url}/v1/prices", "rows": "data.items", "columns": columns} | others


def row(name, cost, **others):
    return {"name": name, "cost": cost, "place": {"region": "r1"}, "at": "2026-01-05T11:00Z", **others}


@pytest.mark.parametrize("paging", ["next_link", "cursor", "page"])
def test_http_json_in_pages(paging):
    rows = [row(f"gpu-{number}", 1 + number / 10) for number in range(5)]

    def answer(seen):
        if paging == "page":
            at = 2 * (int(seen.query["page"]) - 1)
            following = None
        else:
            at = int(seen.query.get("cursor", seen.query.get("at", 0)))
            more = at + 2 < len(rows)
            following = (str(at + 2) if paging == "cursor" else f"/v1/prices?at={at + 2}") if more else None
        return Reply({"data": {"items": rows[at : at + 2]}, "paging": {"next": following}})

    with serve(answer) as server:
        found = items("http", http_options(server, paging=paging, next="paging.next"))
        columns = http_options(server)["columns"] | {"observed_at": "at"}
        timed = http_options(server, paging=paging, next="paging.next", columns=columns)
        history = items("http", timed)
        rest = items("http", timed, marks=marked(history[0]))
    # A snapshot is one page; rows with their own times are stored page by page.
    assert [page.token for page in found] == [None]
    got = [(one["instance_type"], one["region"], one["price_usd"]) for one in rows_of(found, "price")]
    assert got == [(f"gpu-{number}", "r1", str(1 + number / 10)) for number in range(5)]
    assert len(history) >= 3
    assert history[-1].token is None
    assert rows_of(rest, "price") == rows_of(history[1:], "price")


def test_http_csv_and_times_and_counts():
    text = "kind,n,when\r\ngpu-a,3,1767610800\r\ngpu-b,-1,bad\r\n"
    columns = {"provider": "=own", "region": "=r", "zone": "=z", "instance_type": "kind", "available": "n",
               "observed_at": "when", "kind": "=probe"}  # fmt: skip
    with serve(lambda seen: Reply(text, headers={"Content-Type": "text/csv"})) as server:
        options = {
            "url": server.url,
            "format": "csv",
            "kind": "availability",
            "time": "epoch_s",
            "columns": columns,
        }
        (page,) = items("http", options)
    found = rows_of([page], "availability")
    assert [(one["instance_type"], one["available"], one["observed_at"]) for one in found] == [
        ("gpu-a", "3", "2026-01-05T11:00:00+00:00"),
        ("gpu-b", "-1", "bad"),
    ]
    assert {one["gap_seconds"] for one in found} == {3600}


def test_http_takes_credentials_from_the_environment_only_to_the_host_of_the_settings(monkeypatch):
    monkeypatch.setenv("LAMBDA_TOKEN_OF_MINE", "top-secret-value-1")
    elsewhere = {"data": {"items": [row("a", 1)]}, "next": "http://evil.invalid/steal"}
    with serve(lambda seen: Reply(elsewhere)) as server:
        options = http_options(
            server, paging="next_link", headers={"Authorization": "Bearer ${LAMBDA_TOKEN_OF_MINE}"}
        )
        with pytest.raises(FetchError, match=r"next page on another host; expected one on 127\.0\.0\.1"):
            items("http", options)
        assert server.seen[0].headers["authorization"] == "Bearer top-secret-value-1"
        monkeypatch.delenv("LAMBDA_TOKEN_OF_MINE")
        with pytest.raises(FetchError, match="environment variable LAMBDA_TOKEN_OF_MINE is not set"):
            items("http", options)


def test_http_rows_that_are_none_and_answers_that_are_not_of_the_form():
    with serve(lambda seen: Reply({"data": {"items": [row("a", 1), 7, None, row("b", True), {}]}})) as server:
        (page,) = items("http", http_options(server))
        assert len(rows_of([page], "rejected")) == 2
        assert [one["price_usd"] for one in rows_of([page], "price")] == ["1", "true", None]
    with (
        serve(lambda seen: Reply({"data": {"items": "many"}})) as server,
        pytest.raises(FetchError, match="no list"),
    ):
        items("http", http_options(server))
    with serve(lambda seen: Reply({"data": {"items": [row("a", 1)]}, "next": "same"})) as server:
        with pytest.raises(FetchError, match="same next page twice"):
            items("http", http_options(server, paging="cursor"))
        assert len(server.seen) <= 3


def test_http_stops_at_its_bound_and_says_so():
    with serve(lambda seen: Reply({"data": {"items": [row("a", 1)]}})) as server:
        found = items("http", http_options(server, paging="page", most_pages=3))
    assert [page.notes for page in found] == [("cut off after 3 pages",)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"url": "file:///etc/passwd"}, "option url of .* without user and password"),
        ({"url": "http://user:pw@host/"}, "option url of .* without user and password"),
        ({"columns": {"provider": "a"}}, "also region, zone, instance_type, price_usd"),
        ({"columns": {"provider": "a", "known_at": "b"}}, "not 'known_at'"),
        ({"format": "csv", "paging": "cursor"}, "none or page for CSV"),
        ({"paging": "magic"}, "one of none, next_link, page, cursor"),
        ({"headers": {"a": [1]}}, "a table of texts"),
    ],
)
def test_http_options_that_cannot_be_used(change, words):
    columns = {"provider": "a", "region": "b", "zone": "c", "instance_type": "d", "price_usd": "e"}
    with pytest.raises(SettingsError, match=words):
        LIVE_SOURCES["http"].check({"url": "http://host/", "columns": columns} | change)


def test_the_transport_counts_what_it_asked():
    transport = Transport(seed=1, retry=Retry(tries=2), seconds=5.0, sleep=lambda _: None)
    with serve(Azure(azure_items())) as server:
        items("azure-retail", azure_options(server), transport=transport)
        assert transport.requests == len(server.seen)


def test_http_unread_fields_that_state_another_way_to_buy_or_unit():
    rows = [
        row("h100", 2.0, offer="spot", per="per instance"),
        row("h100", 4.0, offer="on-demand", per="per instance"),
        row("l4", 0.3, offer="spot", per="per GPU"),
    ]
    with serve(lambda seen: Reply({"data": {"items": rows}})) as server:
        found = rows_of(items("http", http_options(server)), "price")
        scaled = rows_of(items("http", http_options(server, scale={"price_usd": "2"})), "price")
        chosen = rows_of(items("http", http_options(server, where={"offer": "on-demand"})), "price")
    stated = [(found_row["instance_type"], found_row["mode"], found_row["unit"]) for found_row in found]
    assert stated == [("h100", None, None), ("h100", "on-demand", None), ("l4", None, "per GPU")]
    assert [found_row["unit"] for found_row in scaled] == [None] * 3
    assert [(found_row["price_usd"], found_row["mode"]) for found_row in chosen] == [("4.0", None)]


@pytest.mark.parametrize(
    ("field", "stated"),
    [("usd_per_month", ("per month", None)), ("priceCents", (None, "cents")), ("pricePerHour", (None, None))],
)
def test_http_fields_whose_names_state_another_unit(field, stated):
    rows = [row("h100", 2.0) | {"cost": {field: 2.0}}]
    with serve(lambda seen: Reply({"data": {"items": rows}})) as server:
        options = http_options(server)
        options["columns"] = options["columns"] | {"price_usd": f"cost.{field}"}
        (found,) = rows_of(items("http", options), "price")
        (scaled,) = rows_of(items("http", options | {"scale": {"price_usd": "0.5"}}), "price")
    assert (found["unit"], found["currency"]) == stated
    assert (scaled["unit"], scaled["currency"]) == (None, None)


def http_found(rows, columns, **others):
    """Return rows and reasons of a table whose ``columns`` are mapped to fields of the same name."""
    with serve(lambda seen: Reply({"data": {"items": rows}})) as server:
        options = http_options(server, **others)
        options["columns"] = options["columns"] | {name: name for name in columns}
        found = items("http", options)
    return rows_of(found, options.get("kind", "price")), [
        str(row["reason"]) for row in rows_of(found, "rejected")
    ]


@pytest.mark.parametrize("several", ["reject", "lowest", "highest"])
def test_http_prices_that_are_not_in_force_disagree_with_no_other(several):
    rows = [
        row("h100", 1.0, valid_from="2099-01-01T00:00:00Z", valid_until=""),
        row("h100", 2.0, valid_from="2020-01-01", valid_until="2099-01-01"),
        row("h100", 9.0, valid_from="2020-01-01", valid_until="2021-01-01"),
    ]
    found, reasons = http_found(rows, ["valid_from", "valid_until"], several=several)
    assert [found_row["price_usd"] for found_row in found] == ["1.0", "2.0", "9.0"]  # the store rejects two
    assert reasons == []


def test_http_machines_of_one_name_with_other_memory_are_not_combined():
    rows = [
        row("a100", 0.4, gpu_memory=40),
        row("a100", 0.95, gpu_memory=80),
        row("a100", 0.9, gpu_memory=80),
    ]
    found, _ = http_found(rows, ["gpu_memory"], several="lowest")
    assert [(found_row["price_usd"], found_row["gpu_memory"]) for found_row in found] == [
        ("0.4", "40"),
        ("0.9", "80"),
    ]


def test_http_times_in_the_zone_of_another_field_are_not_utc():
    times = ("2026-03-05 08:00:00", "2026-03-05T08:00:00Z")
    rows = [
        row("h100", 2.0, observed_at=text, tz=zone) for text in times for zone in ("Asia/Tokyo", "UTC", 8)
    ]
    found, reasons = http_found(rows, ["observed_at"], time="iso_utc")
    assert len(found) == 4
    assert reasons == [
        f"time in the zone {zone!r}, not in UTC: write it with its offset" for zone in ("Asia/Tokyo", "8")
    ]


@pytest.mark.parametrize(
    ("kind", "gpus", "usable"), [("8xH100", None, 0), ("h100", 8, 0), ("h100", 1, 1), ("h100", None, 1)]
)
def test_http_a_count_of_gpus_is_no_count_of_instances(kind, gpus, usable):
    rows = [row(kind, 2.0, free_gpus=16, gpus=gpus)]
    with serve(lambda seen: Reply({"data": {"items": rows}})) as server:
        options = http_options(server, kind="availability")
        columns = {
            name: field for name, field in options["columns"].items() if name not in ("price_usd", "product")
        }
        options["columns"] = columns | {"available": "free_gpus", "gpus": "gpus"}
        found = items("http", options)
    assert len(rows_of(found, "availability")) == usable
    assert len(rows_of(found, "rejected")) == 1 - usable
