"""Contract of live sources: checked options, bounded pages of canonical rows, clear errors, no look-ahead;
and no row of another product is accepted as a price.
"""

import datetime as dt
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest
from forms_kit import quick_first
from live_fetching import items, rows_of
from loopback import AT, Azure, Ec2, Gcp, Reply, Vast, azure_item, gcp_sku, serve, vast_offer

from slackwater.warehouse.catalogue import list_price
from slackwater.warehouse.errors import FetchError, SettingsError
from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.contract import AVAILABILITY_COLUMNS, PRICE_COLUMNS, REJECTED_COLUMNS
from slackwater.warehouse.sources.live.contract import FetchedPage, FetchRequest, Mark, PartFailed
from slackwater.warehouse.sources.live.transport import Retry, Transport

COLUMNS = {"price": PRICE_COLUMNS, "availability": AVAILABILITY_COLUMNS, "rejected": REJECTED_COLUMNS}
#: Every source with its example.
EXAMPLES = {name: source.example for name, source in LIVE_SOURCES.items()}
SECRETS = {
    variable: f"secret-of-{variable.lower()}-0123456789"
    for example in EXAMPLES.values()
    for variable in example.credentials
}
#: The option that holds the address, by source; a probe has none.
ADDRESS = {
    name: next((option for option in ("url", "endpoint_url") if option in source.options), None)
    for name, source in LIVE_SOURCES.items()
}


def answer_of(name):
    """Return a server function that answers each request with the example's response."""
    text = EXAMPLES[name].answer
    form = "text/xml;charset=UTF-8" if text.startswith("<") else "application/json"
    return lambda _: Reply(text, headers={"Content-Type": form})


_ECHO = " ".join(SECRETS.values())
#: Responses in no API's form that echo our secrets.
BROKEN = {
    "out of order": Reply(_ECHO, status=503),
    "refused": Reply(_ECHO, status=403),
    "html": Reply(f"<html>{_ECHO}", headers={"Content-Type": "text/html"}),
    "other json": Reply({"message": _ECHO}),
    "cut": Reply(_ECHO, cut=10),
}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))


def asked(options, **others) -> FetchRequest:
    return FetchRequest(options=options, at=AT.to_pydatetime(), every=dt.timedelta(hours=1), **others)


def options_of(name, url="http://host/"):
    address = ADDRESS[name]
    return EXAMPLES[name].options | ({address: url} if address else {})


def fetched(name, server, **others):
    options = options_of(name, server.url)
    transport = Transport(seed=1, retry=Retry(tries=2), seconds=5.0, sleep=lambda _: None)
    try:
        return list(LIVE_SOURCES[name].fetch(asked(options, **others), transport))
    finally:
        transport.close()


def test_every_live_source_is_here():
    for name, source in LIVE_SOURCES.items():
        assert source.name == name
        assert all(source.options.values())


@pytest.mark.parametrize("name", EXAMPLES)
class TestEverySource:
    def test_the_registry_names_it_by_its_own_name(self, name):
        assert LIVE_SOURCES[name].name == name

    def test_an_unknown_option_is_refused(self, name):
        with pytest.raises(SettingsError, match=r"option 'no_such_option' of the source .*expected one of"):
            LIVE_SOURCES[name].check(EXAMPLES[name].options | {"no_such_option": "1"})

    def test_options_of_the_wrong_type_are_refused(self, name):
        options = options_of(name)
        for option in LIVE_SOURCES[name].options:
            with pytest.raises(SettingsError, match=f"option {option}"):
                LIVE_SOURCES[name].check(options | {option: object()})

    def test_checking_asks_nobody_and_needs_no_credentials(self, name, monkeypatch):
        for secret in SECRETS:
            monkeypatch.delenv(secret)
        with serve(answer_of(name)) as server:
            source = LIVE_SOURCES[name]
            source.check(options_of(name, server.url))
            words = source.assumptions(options_of(name, server.url))
            assert server.seen == []
        assert isinstance(words, tuple)

    def test_rows_are_canonical_and_never_from_after_the_logical_time(self, name):
        with serve(answer_of(name)) as server:
            found = fetched(name, server)
        rows = 0
        for item in found:
            assert isinstance(item, FetchedPage)
            for batch in item.batches:
                assert tuple(batch.table.column_names) == COLUMNS[batch.kind]
                rows += batch.table.num_rows
                for row in batch.table.to_pylist():
                    assert row["source"]
                    assert row["known_at"] is None
                    at = row["observed_at"]
                    at = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
                    assert at <= AT.to_pydatetime()
        assert rows >= 1
        assert found[-1].token is None

    def test_the_same_answers_give_the_same_pages(self, name):
        with serve(answer_of(name)) as server:
            first, second = fetched(name, server), fetched(name, server)
        assert [(page.part, page.token, page.notes) for page in first] == [
            (page.part, page.token, page.notes) for page in second
        ]
        tables = [[batch.table for page in found for batch in page.batches] for found in (first, second)]
        assert all(one.equals(other) for one, other in zip(*tables, strict=True))

    def test_a_part_that_is_done_at_this_time_is_not_asked_again(self, name):
        with serve(answer_of(name)) as server:
            parts = {page.part for page in fetched(name, server)}
            server.seen.clear()
            done = {part: Mark(done_at=AT.to_pydatetime()) for part in parts}
            assert fetched(name, server, marks=done) == []
            assert server.seen == []

    @pytest.mark.parametrize("broken", BROKEN)
    def test_a_server_out_of_order_is_a_failure_in_words_without_secrets(self, name, broken):
        if ADDRESS[name] is None:
            pytest.skip("asks no server")
        with serve(lambda _: BROKEN[broken]) as server:
            try:
                found = fetched(name, server)
            except FetchError as error:
                words = [str(error)]
            else:
                words = [item.reason for item in found if isinstance(item, PartFailed)]
        assert words
        assert all(words)
        assert not any(secret in text for secret in SECRETS.values() for text in words)


def test_no_secret_is_left_in_the_surroundings_of_a_probe_by_us():
    """A probe inherits the user's environment, and no additions of ours."""
    before = dict(os.environ)
    with serve(lambda _: Reply("")) as server:
        fetched("probe", server)
    assert dict(os.environ) == before


# ---
# A price belongs to the requested product, whatever else the response holds and in whatever order.

SIZE = "Standard_NC24ads_A100_v4"
IOWA = ["us-central1"]
LATER, EARLIER = "2026-02-01T00:00:00Z", "2025-01-01T00:00:00Z"


@dataclass
class Api:
    """The rows of an API that make its prices, and by kind rows that must not change them."""

    answer: Callable[[list, int], Callable]
    rows: list
    options: dict = field(default_factory=dict)
    others: dict[str, list] = field(default_factory=dict)
    doubts: dict[str, list] = field(default_factory=dict)


def meter(price, *, spot=True, **others):
    return azure_item("eastus", SIZE, price, spot=spot, **others)


def part(name, usd, usage="OnDemand", **others):
    return gcp_sku(f"{name} running in Iowa", usage, usd, IOWA, **others)


def pricing(*stated):
    """Return the timeline of a SKU's prices: (start, USD) each."""
    unit = {"usageUnit": "h"}
    return [
        {"effectiveTime": start, "pricingExpression": unit | {"tieredRates": [
            {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": str(usd), "nanos": 0}}]}}
        for start, usd in stated
    ]  # fmt: skip


H100 = "Nvidia H100 80GB GPU"
MACHINE = [
    part(H100, 10.0, pricingInfo=pricing((EARLIER, 10))),
    part(f"{H100} attached to Spot Preemptible VMs", 3.0, "Preemptible"),
    part("A3 Instance Core", 0.03),
    part("Spot Preemptible A3 Instance Core", 0.01, "Preemptible"),
    part("A3 Instance Ram", 0.002),
    part("Spot Preemptible A3 Instance Ram", 0.001, "Preemptible"),
]
CARDS = [
    vast_offer("A100 SXM4", 1, 0.95, "US", gpu_ram=81920, verification="verified"),
    vast_offer("A100 SXM4", 1, 1.05, "US", gpu_ram=81251),
    vast_offer("A100 SXM4", 8, 8.0, "US", gpu_ram=81920),
]


def broker(rows, page):
    """Return a JSON list in numbered pages."""

    def answer(seen):
        at = page * (int(seen.query["page"]) - 1)
        return Reply(rows[at : at + page])

    return answer


def gcp(rows, page=100):
    return Gcp(rows, page=page, key=SECRETS["GCP_API_KEY"])


def vast(rows):
    return Vast(rows, key=SECRETS["VAST_API_KEY"])


def ec2(rows, page):
    return Ec2({"us-east-1": rows}, page=page)


def spot_row(product, price, at="2026-01-05T10:00:00.000Z", kind="p4d.24xlarge", zone="us-east-1a"):
    return (zone, kind, product, price, at)


APIS = {
    "azure-retail": Api(
        answer=lambda rows, page: Azure(rows, page=page),
        rows=[meter(1.5), meter(3.7, spot=False), meter(2.5, productName="NCads A100 v4 Series Windows")],
        options={"regions": ["eastus"]},
        others={
            "low priority": [meter(0.7, spot=False, meterName="NC24ads A100 v4 Low Priority")],
            "reservations": [meter(9000, spot=False, type="Reservation", reservationTerm="1 Year")],
            "dev/test": [meter(1.2, spot=False, type="DevTestConsumption")],
            "dedicated hosts": [meter(0.5, spot=False, productName="NCads A100 v4 Series Dedicated Host")],
            "cloud services": [meter(0.5, productName="NCads A100 v4 Series Cloud Services")],
            "tiers": [meter(1.0, tierMinimumUnits=1000.0)],
            "not yet in force": [meter(s, spot=one, effectiveStartDate=LATER) for one, s in ((True, 1.1), (False, 3.0))],
            "no longer in force": [meter(1.9, effectiveStartDate=EARLIER, effectiveEndDate="2026-01-01T00:00:00Z")],
            "superseded": [meter(1.8, effectiveStartDate="2019-08-01T00:00:00Z")],
            "zero": [meter(0.0), meter(0.0, spot=False)],
            "currency": [meter(1.2, currencyCode="EUR"), meter(1.2, spot=False, currencyCode="EUR")],
            "unit": [meter(1.2, unitOfMeasure="1/Month"), meter(1.2, spot=False, unitOfMeasure="100 Hours")],
            "time": [meter(1.2, effectiveStartDate="01/05/2026"), meter(1.2, effectiveStartDate="2026-01-04T00:00:00")],
        },
        doubts={"another price": [meter(1.6)]},
    ),
    "gcp-catalogue": Api(
        answer=lambda rows, page: gcp(rows, page),
        rows=MACHINE,
        options={"instance_types": ["a3-*"]},
        others={
            "flex-start": [part(f"{H100} attached to DWS Defined Duration VMs", 4.0)],
            "reserved": [gcp_sku(f"Reserved {H100} in Iowa in Calendar Mode", "OnDemand", 0.0, IOWA)],
            "committed": [gcp_sku(f"Commitment v1: {H100} in Iowa for 1 Year", "Commit1Yr", 6.0, IOWA),
                          part(H100, 5.0, "Commit3Yr")],
            "other cards": [part("Nvidia H100 80GB Mega GPU", 11.0), part("Nvidia Tesla A100 80GB GPU", 4.0)],
            "not yet in force": [part(H100, 0, pricingInfo=pricing((LATER, 8)))],
            "superseded": [part(H100, 0, pricingInfo=pricing(("2024-06-01T00:00:00Z", 9)))],
            "zero": [part(H100, 0.0)],
            "currency": [part(H100, 1.0, pricingInfo=[{"pricingExpression": {"usageUnit": "h", "tieredRates": [
                {"unitPrice": {"currencyCode": "EUR", "units": "9"}}]}}])],
            "unit": [part(H100, 1.0, pricingInfo=[{"pricingExpression": {"usageUnit": "mo", "tieredRates": [
                {"unitPrice": {"currencyCode": "USD", "units": "9"}}]}}])],
            "time": [part(H100, 1.0, pricingInfo=pricing(("2025-06-01", 9)))],
            "unknown": [part("Nvidia GB300 GPU", 1.0), part("A5 Instance Core", 1.0)],
        },
        doubts={"another price": [part(f"Spot Preemptible {H100}", 3.5, "Preemptible")]},
    ),
    "vast-offers": Api(
        answer=lambda rows, _: vast(rows),
        rows=CARDS,
        others={
            "another memory": [vast_offer("A100 SXM4", 1, 0.4, "CA", gpu_ram=40960)],
            "another model": [vast_offer("A100 PCIE", 1, 0.3, "CA", gpu_ram=81920)],
            "rented": [vast_offer("A100 SXM4", 1, 0.4, "US", gpu_ram=81920, rented=True)],
            "not rentable": [vast_offer("A100 SXM4", 1, 0.4, "US", gpu_ram=81920, rentable=False)],
            "not verified": [vast_offer("A100 SXM4", 1, 0.4, "US", gpu_ram=81920, verification="unverified")],
            "no longer in force": [vast_offer("A100 SXM4", 1, 0.4, "US", gpu_ram=81920, end_date=AT.timestamp() - 60)],
            "zero": [vast_offer("A100 SXM4", 1, 0.0, "US", gpu_ram=81920)],
            "time": [vast_offer("A100 SXM4", 1, 0.4, "US", gpu_ram=81920, end_date="soon")],
            "memory": [vast_offer("A100 SXM4", 1, 0.4, "US", gpu_ram=0)],
            "repeated": CARDS[:1],
        },
        doubts={"another price": [CARDS[2] | {"min_bid": 7.0}]},
    ),
    "http": Api(
        answer=broker,
        rows=[{"gpu": "H100", "gb": 80, "n": 8, "cents": 1600, "spot": True, "cost": "hour"},
              {"gpu": "H100", "gb": 80, "n": 1, "cents": 210, "spot": True, "cost": "hour"}],
        options={
            "columns": {"provider": "=own", "region": "=r1", "zone": "=all", "instance_type": "{gpu}_{gb}GB_x{n}",
                        "price_usd": "cents"},
            "scale": {"price_usd": "0.01"}, "where": {"spot": True, "cost": ["hour"]}, "paging": "page",
        },
        others={
            "mode": [{"gpu": "H100", "gb": 80, "n": 1, "cents": 400, "spot": False, "cost": "hour"}],
            "unit": [{"gpu": "H100", "gb": 80, "n": 1, "cents": 90_000, "spot": True, "cost": "month"}],
            "repeated": [{"gpu": "H100", "gb": 80, "n": 1, "cents": 210, "spot": True, "cost": "hour"}],
        },
        doubts={"another price": [{"gpu": "H100", "gb": 80, "n": 8, "cents": 1500, "spot": True, "cost": "hour"}]},
    ),
    "aws-spot": Api(
        answer=ec2,
        rows=[spot_row("Linux/UNIX", "9.0"), spot_row("Linux/UNIX", "9.5", zone="us-east-1b")],
        options={"regions": ["us-east-1"], "products": [], "page": 5},
        others={},
    ),
}  # fmt: skip
OTHERS = [(name, kind) for name, api in APIS.items() for kind in api.others]
DOUBTS = [(name, kind) for name, api in APIS.items() for kind in api.doubts]


def answered(name, rows, *, page=2):
    api = APIS[name]
    with serve(api.answer(rows, page)) as server:
        return items(name, api.options | {ADDRESS[name]: server.url})


def stated(found):
    """Return all prices and counts without their positions in the response, with the markets of the base rows first."""
    keys = (
        "region",
        "zone",
        "instance_type",
        "product",
        "observed_at",
        "price_usd",
        "on_demand_usd",
        "available",
    )
    return sorted(
        {
            tuple(str(row.get(key)) for key in keys)
            for kind in ("price", "availability")
            for row in rows_of(found, kind)
        }
    )


def markets_of(found):
    return {(row["region"], row["instance_type"]) for row in rows_of(found, "price")}


def noted(found):
    return [note for page in found for note in page.notes]


def test_every_source_of_prices_is_held_to_this():
    assert set(APIS) == set(LIVE_SOURCES) - {"probe", "aws-placement"}  # which return no list of prices


@pytest.mark.parametrize(("seed", "page"), quick_first([(1, 3), (2, 1), (3, 100)]))
@pytest.mark.parametrize("name", APIS)
def test_rows_and_pages_in_another_order_give_the_same(name, seed, page):
    api = APIS[name]
    rows = [*api.rows, *(row for same in (*api.others.values(), *api.doubts.values()) for row in same)]
    first = answered(name, rows)
    kept = len(rows_of(first, "rejected"))
    mixed = random.Random(seed).sample(rows, len(rows))
    again = answered(name, mixed, page=page)
    assert stated(again) == stated(first)
    assert len(rows_of(again, "rejected")) == kept
    assert noted(again) == noted(first)


@cache
def answered_alone(name):
    """Return the pages of the rows of an API without others, which several tests compare with."""
    return answered(name, APIS[name].rows)


@pytest.mark.parametrize(("name", "kind"), OTHERS)
def test_the_price_of_another_thing_changes_no_price_and_is_counted(name, kind):
    api = APIS[name]
    alone = answered_alone(name)
    own = markets_of(alone)
    assert own
    mixed = answered(name, [*api.others[kind], *api.rows, *api.others[kind]])
    assert [row for row in stated(mixed) if (row[0], row[2]) in own and row[0] != "all"] == [
        row for row in stated(alone) if row[0] != "all"
    ]
    told = (rows_of(mixed, "rejected"), noted(mixed), markets_of(mixed) - own)
    assert any(told) or kind in ("superseded", "repeated")


@pytest.mark.parametrize(("name", "kind"), DOUBTS)
def test_prices_of_one_thing_that_differ_are_all_rejected(name, kind):
    api = APIS[name]
    alone = answered_alone(name)
    for rows in ([*api.rows, *api.doubts[kind]], [*api.doubts[kind], *api.rows]):
        found = answered(name, rows)
        assert len(rows_of(found, "rejected")) >= 2
        gone = set(stated(alone)) - set(stated(found))
        assert gone
        assert not set(stated(found)) - set(stated(alone))


def test_names_that_a_source_does_not_know_are_shown():
    found = answered("gcp-catalogue", [*MACHINE, *APIS["gcp-catalogue"].others["unknown"]])
    assert "2 SKUs of GPUs that are not known: a5 instance core, nvidia gb300 gpu" in noted(found)
    with serve(vast(CARDS)) as server:
        (page,) = items("vast-offers", {"url": server.url, "gpu_models": ["A100 SXM4", "A100 SXM"]})
    assert "1 GPU models without an offer: A100 SXM" in page.notes
    with serve(Azure([meter(1.5)])) as server:
        (page,) = items("azure-retail", {"url": server.url, "regions": ["eastus"], "instance_types": ["NC*"]})
    assert page.notes == ("eastus: no spot price of NC*",)
    with serve(gcp(MACHINE)) as server:
        (page,) = items("gcp-catalogue", {"url": server.url, "instance_types": ["a3-highgpu-8g", "h100-*"]})
    assert "1 patterns without a known machine type: h100-*" in page.notes


def test_types_that_are_not_sold_on_demand_have_no_on_demand_price():
    with serve(gcp(MACHINE)) as server:
        found = items("gcp-catalogue", {"url": server.url, "instance_types": ["a3-highgpu-*"]})
    listed = {row["instance_type"]: row["on_demand_usd"] for row in rows_of(found, "price")}
    sold = {
        name: list_price("gcp", "us-central1", name, AT.to_pydatetime()).usd is not None for name in listed
    }
    assert set(sold.values()) == {True, False}
    assert {name for name, usd in listed.items() if usd is not None} == {name for name in sold if sold[name]}


def test_a_spot_price_that_only_the_name_of_the_sku_shows_is_read():
    named = meter(1.5, meterName="NC24ads A100 v4", skuName="NC24ads A100 v4 Spot")
    found = answered("azure-retail", [named, meter(3.7, spot=False)])
    assert [(row["price_usd"], row["on_demand_usd"]) for row in rows_of(found, "price")] == [("1.5", "3.7")]
    again = answered("azure-retail", [meter(1.5), meter(3.7, spot=False)])
    assert stated(found) == stated(again)


def test_the_live_prices_of_a_region_in_mainland_china_are_in_yuan():
    rows = [spot_row("Linux/UNIX", "60.0", zone="cn-north-1a")]
    with serve(Ec2({"cn-north-1": rows}, page=5)) as server:
        found = items("aws-spot", {"endpoint_url": server.url, "regions": ["cn-north-1"]})
    assert [row["currency"] for row in rows_of(found, "price")] == ["CNY"]
