"""A live feed over the loopback interface: a server process for killed fetches, and a soak test with random faults."""

import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# Imports of the first AWS request, loaded here once rather than in every child that fetches.
import boto3.session  # noqa: F401
import botocore.client  # noqa: F401
import httpcore  # noqa: F401
import pandas as pd
from fault_moments import Child, done
from fault_stages import AT, DB, HOUR, credentials, ec2, fetch
from loopback import Loopback, Reply, ec2_error, price_history, serve

from slackwater.warehouse.sources.live.aws import AwsClients, AwsSpotOptions
from slackwater.warehouse.sources.live.transport import Transport
from slackwater.warehouse.store.connection import open_store

REGION = "us-east-1"
#: About one request in this many has a fault.
EVERY = 3
KINDS = (
    "cut",
    "cut before the body",
    "throttled",
    "unavailable",
    "broken",
    "slow",
    "garbage",
    "a page",
    "token again",
)


class FeedServer:
    """A process that answers as AWS does, until it is stopped."""

    def __init__(self, folder: Path) -> None:
        credentials()
        urls, url = os.pipe()
        stopped, self._stop = os.pipe()
        self._child = Child(folder, lambda: self._serve(url, stopped))
        os.close(url)
        os.close(stopped)
        with os.fdopen(urls) as pipe:
            self.url = pipe.readline().strip()
        # boto caches EC2's description, which is slow to parse: loaded here once rather than in every child
        # that fetches.
        options = AwsSpotOptions(endpoint_url=self.url)
        AwsClients(options, Transport(seed=0)).call(REGION, "describe_regions")

    def _serve(self, url: int, stopped: int) -> None:
        os.close(self._stop)
        with serve(ec2()) as server:
            os.write(url, f"{server.url}\n".encode())
            os.close(url)
            os.read(stopped, 1)

    def stop(self) -> None:
        os.close(self._stop)
        self._child.wait()


def fault_of(kind: str) -> Reply:
    """Return the response of a faulty server or network."""
    text = "<?xml version='1.0'?><DescribeSpotPriceHistoryResponse><spotPriceHistorySet><item>"
    return {
        "cut": Reply(text * 40, cut=400),
        "cut before the body": Reply(text * 40, cut=0),
        "throttled": ec2_error("RequestLimitExceeded", 503, **{"Retry-After": "1"}),
        "unavailable": Reply("", status=503),
        "broken": ec2_error("InternalError", 500),
        "slow": Reply(text, slow=0.8),
        "garbage": Reply(bytes(range(256)) * 9),
        "a page": Reply("<html><body>Sign in</body></html>", headers={"Content-Type": "text/html"}),
        "token again": ec2_error("InvalidNextToken", 400, "The token has expired"),
    }[kind]


@dataclass(slots=True)
class Soaked:
    """Injected faults of a soak test, and its results."""

    fetches: int
    requests: int
    faults: dict[str, int]
    statuses: dict[str, int]
    rows: int
    lost: int
    doubled: int
    misread: int


def soak(folder: Path, *, fetches: int, seed: int) -> Soaked:
    """Fetch a growing history repeatedly through faults; in the end the rows are the server's."""
    folder.mkdir()
    credentials()
    answer = done(folder, lambda: _soaked(fetches, random.Random(seed))).answer
    return Soaked(**answer)


def _soaked(fetches: int, rng: random.Random) -> dict[str, object]:
    history, injected, statuses = ec2(6), Counter(), Counter()
    with serve(history) as server:
        for number in range(fetches):
            at = AT + number * HOUR
            _plan_faults(server, rng, injected)
            history.stuck = rng.random() < 0.1  # a token that leads back to the same page
            injected["page again"] += history.stuck
            statuses[str(fetch(server.url, at=at, seed=number, tries=3, seconds=0.5)["status"])] += 1
            history.prices[REGION] += price_history(REGION, 1, start=at + HOUR / 2)
        server.faults.clear()
        history.stuck = False
        at = AT + fetches * HOUR
        statuses[str(fetch(server.url, at=at, tries=3)["status"])] += 1
        injected["page again"] += 0
        told = {"fetches": fetches + 1, "requests": len(server.seen), "statuses": dict(statuses)}
    met = {kind: count for kind, count in injected.items() if count}
    return {**told, "faults": met, **_compared(history.prices[REGION])}


def _plan_faults(server: Loopback, rng: random.Random, injected: Counter[str]) -> None:
    """Plan faults for some of the next requests, counted when they occur."""
    server.faults.clear()
    for ahead in range(1, 40):
        if rng.random() < 1 / EVERY:
            server.faults[len(server.seen) + ahead] = _counted(rng.choice(KINDS), injected)


class _Met(Reply):
    """A fault that counts itself when it is sent."""

    kind = ""
    injected: Counter[str]

    def raw(self) -> bytes:
        self.injected[self.kind] += 1
        return super().raw()


def _counted(kind: str, injected: Counter[str]) -> Reply:
    fault = fault_of(kind)
    met = _Met(
        body=fault.body,
        status=fault.status,
        headers=fault.headers,
        cut=fault.cut,
        slow=fault.slow,
        date=fault.date,
    )
    met.kind, met.injected = kind, injected
    return met


def _compared(listed: list[tuple[str, str, str, str, str]]) -> dict[str, int]:
    """Compare the rows of the warehouse with those of the server, and return the counts of its imports."""
    wanted = Counter((zone, pd.Timestamp(at).isoformat(), float(price)) for zone, _, _, price, at in listed)
    with open_store(DB) as store:
        frame = store.arrow(
            "SELECT zone, observed_at, price_usd FROM price JOIN series USING (sid) JOIN markets USING (mid)"
        ).to_pandas()
        added, held = store.execute(
            "SELECT (SELECT sum(added) FROM imports), (SELECT count(*) FROM price) + (SELECT count(*) FROM availability)"
        )[0]
    found = Counter(
        (zone, pd.Timestamp(at).tz_convert("UTC").isoformat(), price)
        for zone, at, price in zip(frame["zone"], frame["observed_at"], frame["price_usd"], strict=True)
    )
    return {
        "rows": len(frame),
        "lost": (wanted - found).total(),
        "doubled": (found - wanted).total(),
        "misread": int(added - held),
    }
