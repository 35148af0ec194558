"""A scriptable HTTP server on the loopback interface, and fakes of the APIs in their documented forms."""

import base64
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pandas as pd

AT = pd.Timestamp("2026-01-05T12:00Z")


@dataclass
class InstanceEntry:
    """A request as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: str

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body).items()}

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Reply:
    """A response: ``cut`` bytes of the body are sent, then the connection is dropped; ``slow`` seconds pass before the body."""

    body: object = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    slow: float = 0.0
    date: pd.Timestamp | None = AT

    def raw(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


Answer = Callable[[InstanceEntry], Reply]


class Loopback:
    """Server that responds with ``answer(seen)``, but first with the faults in ``faults`` by request number (from 1)."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.faults: dict[int, Reply] = {}
        self.seen: list[InstanceEntry] = []
        self.url = ""

    def reply(self, seen: InstanceEntry) -> Reply:
        self.seen.append(seen)
        fault = self.faults.get(len(self.seen))
        return self.answer(seen) if fault is None else fault


def _handler(loopback: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return self._date

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            parts = urlsplit(self.path)
            reply = loopback.reply(
                InstanceEntry(
                    method=self.command,
                    path=parts.path,
                    query={name: values[0] for name, values in parse_qs(parts.query).items()},
                    headers={name.lower(): value for name, value in self.headers.items()},
                    body=self.rfile.read(size).decode(),
                )
            )
            raw = reply.raw()
            self._date = "nonsense" if reply.date is None else format_datetime(reply.date.to_pydatetime())
            self.send_response(reply.status)
            for name, value in ({"Content-Type": "application/json"} | reply.headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            time.sleep(reply.slow)
            with suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(raw if reply.cut is None else raw[: reply.cut])
            if reply.cut is not None:
                self.close_connection = True

        do_GET = do_POST = do_PUT = _serve

    return Handler


@contextmanager
def serve(answer: Answer) -> Iterator[Loopback]:
    """Run a server on a free port, for the time of the block."""
    loopback = Loopback(answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(loopback))
    server.daemon_threads = True
    loopback.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield loopback
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ec2_error(code: str, status: int, words: str = "no", **headers: str) -> Reply:
    xml = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(words)}</Message></Error></Errors>"
        "<RequestID>r-1</RequestID></Response>"
    )
    return Reply(body=xml, status=status, headers={"Content-Type": "text/xml", **headers})


def ec2_xml(operation: str, inner: str, token: str | None) -> Reply:
    more = f"<nextToken>{token}</nextToken>" if token else "<nextToken/>"
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<{operation}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<requestId>r-1</requestId>{inner}{more}</{operation}Response>"
    )
    return Reply(body=xml, headers={"Content-Type": "text/xml;charset=UTF-8"})


@dataclass
class Ec2:
    """Fake spot price history by region, newest first, paged by opaque tokens; regions in ``denied`` refuse."""

    prices: dict[str, list[tuple[str, str, str, str, str]]]
    page: int = 100
    denied: dict[str, str] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    stuck: bool = False

    def __call__(self, seen: InstanceEntry) -> Reply:
        region = seen.headers["authorization"].split("Credential=")[1].split("/")[2]
        asked = seen.form
        if asked["Action"] == "DescribeRegions":
            names = sorted({*self.prices, *self.denied})
            items = "".join(f"<item><regionName>{name}</regionName></item>" for name in names)
            return ec2_xml("DescribeRegions", f"<regionInfo>{items}</regionInfo>", None)
        if region in self.denied:
            return ec2_error(self.denied[region], 403, f"You are not authorized in {region}")
        start, end = pd.Timestamp(asked["StartTime"]), pd.Timestamp(asked["EndTime"])
        token = asked.get("NextToken")
        if token in self.expired:
            self.expired.discard(token)
            return ec2_error("InvalidNextToken", 400, "The token has expired")
        at = int(base64.b64decode(token).decode().split(":")[1]) if token else 0
        rows = sorted(self._listed(region, start, end, asked), key=lambda row: row[4], reverse=True)
        more = at + self.page < len(rows)
        following = base64.b64encode(f"page:{at if self.stuck else at + self.page}".encode()).decode()
        items = "".join(_price_item(row) for row in rows[at : at + self.page])
        history = f"<spotPriceHistorySet>{items}</spotPriceHistorySet>"
        return ec2_xml("DescribeSpotPriceHistory", history, following if more else None)

    def _listed(self, region, start, end, asked):
        """Return the changes in the range, and for each series the price in force at its start."""
        types = {value for name, value in asked.items() if name.startswith("InstanceType.")}
        products = {value for name, value in asked.items() if name.startswith("ProductDescription.")}
        before: dict[tuple[str, ...], tuple] = {}
        for row in sorted(self.prices[region], key=lambda one: one[4]):
            if (types and row[1] not in types) or (products and row[2] not in products):
                continue
            at = pd.to_datetime(row[4], utc=True, errors="coerce")
            if pd.isna(at) or start <= at <= end:
                yield row
            elif at < start:
                before[row[:3]] = row
        yield from before.values()


def _price_item(row: tuple[str, str, str, str, str]) -> str:
    zone, kind, product, price, at = (escape(value) for value in row)
    return (
        f"<item><availabilityZone>{zone}</availabilityZone><instanceType>{kind}</instanceType>"
        f"<productDescription>{product}</productDescription><spotPrice>{price}</spotPrice>"
        f"<timestamp>{at}</timestamp></item>"
    )


def price_history(region: str, hours: int, *, start: pd.Timestamp, kind: str = "p3.2xlarge"):
    """Return one price change an hour in two zones."""
    return [
        (
            f"{region}{zone}",
            kind,
            "Linux/UNIX",
            f"{0.918 + 0.01 * hour + 0.1 * (zone == 'b'):.4f}",
            (start + pd.Timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        )
        for hour in range(hours)
        for zone in "ab"
    ]


def azure_item(region: str, size: str, price: float, *, spot: bool, **others: object) -> dict[str, object]:
    """Return an item of the Retail Prices API, with the fields of its documented example."""
    name = size.removeprefix("Standard_").replace("_", " ") + (" Spot" if spot else "")
    return {
        "currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price,
        "armRegionName": region, "location": "EU West", "effectiveStartDate": "2020-08-01T00:00:00Z",
        "meterId": "000a794b-bdb0-58be-a0cd-0c3a0f222923", "meterName": name, "productId": "DZH318Z0BQPS",
        "skuId": "DZH318Z0BQPS/00TG", "availabilityId": None, "productName": "Virtual Machines NCSv3 Series",
        "skuName": name, "serviceName": "Virtual Machines", "serviceId": "DZH313Z7MMC8",
        "serviceFamily": "Compute", "unitOfMeasure": "1 Hour", "type": "Consumption",
        "isPrimaryMeterRegion": True, "armSkuName": size, **others,
    }  # fmt: skip


@dataclass
class Azure:
    """Fake price list, filtered and paged: ``$filter`` in this project's form, ``$skip`` in the next link of another host."""

    items: list[dict[str, object]]
    page: int = 2

    def __call__(self, seen: InstanceEntry) -> Reply:
        wanted = seen.query["$filter"]
        rows = [
            item
            for item in self.items
            if f"armRegionName eq '{item['armRegionName']}'" in wanted
            and ("contains(meterName, 'Spot')" not in wanted or "Spot" in str(item["meterName"]))
        ]
        skip = int(seen.query.get("$skip", 0))
        more = skip + self.page < len(rows)
        query = (
            f"api-version=2023-01-01-preview&$filter={wanted.replace(' ', '%20')}&$skip={skip + self.page}"
        )
        return Reply(
            {
                "BillingCurrency": "USD",
                "CustomerEntityId": "Default",
                "CustomerEntityType": "Retail",
                "Items": rows[skip : skip + self.page],
                "NextPageLink": f"https://prices.azure.com:443/api/retail/prices?{query}" if more else None,
                "Count": len(rows[skip : skip + self.page]),
            }
        )


def vast_offer(model: str, gpus: int, usd: float, country: str, **others: object) -> dict[str, object]:
    """Return an offer with the relevant fields of the documented response; different offers have different ids."""
    number = zlib.crc32(repr((model, gpus, usd, country, others)).encode())
    return {
        "id": number, "ask_contract_id": number, "dph_base": usd * 2, "dph_total": usd * 2.1,
        "geolocation": f"Atlantis, {country}", "gpu_name": model, "gpu_ram": 24576, "is_bid": False,
        "min_bid": usd, "num_gpus": gpus, "rentable": True, "rented": False, **others,
    }  # fmt: skip


@dataclass
class Vast:
    """Fake offer search: needs its key, sorts as requested and stops at the limit."""

    offers: list[object]
    key: str = "vast-secret-0123456789"

    def __call__(self, seen: InstanceEntry) -> Reply:
        if seen.headers.get("authorization") != f"Bearer {self.key}":
            return Reply({"success": False, "error": "auth_error", "msg": "Invalid user key"}, status=401)
        return Reply({"offers": self.offers[: seen.json["limit"]]})


def gcp_sku(description: str, usage: str, usd: float, regions: list[str], **others: object):
    """Return a SKU of the Cloud Billing Catalog, as documented: money is whole units and billionths."""
    units = int(usd)
    group = "CPU" if "Core" in description else "RAM" if "Ram" in description else "GPU"
    return {
        "name": "services/6F81-5844-456A/skus/0000", "skuId": "0000", "description": description,
        "category": {"serviceDisplayName": "Compute Engine", "resourceFamily": "Compute",
                     "resourceGroup": group, "usageType": usage},
        "serviceRegions": regions,
        "pricingInfo": [{"effectiveTime": "2026-01-01T00:00:00Z", "summary": "", "pricingExpression": {
            "usageUnit": "GiBy.h" if group == "RAM" else "h", "displayQuantity": 1, "tieredRates": [
                {"startUsageAmount": 0, "unitPrice": {
                    "currencyCode": "USD", "units": str(units), "nanos": round((usd - units) * 1e9)}}]}}],
        "serviceProviderName": "Google", **others,
    }  # fmt: skip


@dataclass
class Gcp:
    """Fake catalogue of one service in pages; the key must be in the header."""

    skus: list[object]
    page: int = 2
    key: str = "gcp-secret-0123456789"

    def __call__(self, seen: InstanceEntry) -> Reply:
        if seen.headers.get("x-goog-api-key") != self.key:
            return Reply({"error": {"code": 403, "status": "PERMISSION_DENIED"}}, status=403)
        at = int(seen.query.get("pageToken", "p0")[1:])
        more = at + self.page < len(self.skus)
        return Reply(
            {"skus": self.skus[at : at + self.page], "nextPageToken": f"p{at + self.page}" if more else ""}
        )
