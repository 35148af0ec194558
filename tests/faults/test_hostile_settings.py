"""Hostile job files and settings, and hostile market names from a file to the page."""

import asyncio
import random
from pathlib import Path

import httpx
import pandas as pd
import pytest
from fault_hostile import CHANGES
from fault_samples import tidy_prices

from slackwater.flows.config import Settings, read_settings
from slackwater.flows.ui.app import make_app
from slackwater.flows.ui.pages import VIEWS
from slackwater.flows.ui.reading import Snapshots
from slackwater.optimization.job.request import read_request, slot_job
from slackwater.warehouse.errors import SlackwaterError
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store

AT = pd.Timestamp("2021-03-02T00:00Z")
JOB = (Path(__file__).resolve().parents[2] / "examples" / "llama-8b-lora.toml").read_bytes()
SETTINGS = b"""
models = ["last_value", "markov"]
planner = "markov"
horizon = 3
max_markets = 2
simulated_days = 4
step_minutes = 30
[[feeds]]
name = "spot"
source = "aws-spot"
every_minutes = 60
options = { regions = ["us-east-1"], page = 5 }
"""
#: Inputs that a fuzzer is unlikely to find.
TRAPS = (
    b"a = " + b"[" * 100_000,
    b"horizon = " + b"9" * 5000,
    b"\x00",
    b"horizon = 1e400",
    b"deadline_in = 'P9999999Y'",
)


def broken(content, number):
    """Return the content, changed in one to three ways."""
    rng = random.Random(f"settings {number}")
    for change in (rng.choice(list(CHANGES)) for _ in range(rng.choice((1, 1, 2, 3)))):
        content = CHANGES[change](rng, content)
    return content


def used_job(path):
    request = read_request(path).with_place(at=AT, market="simulated/b/c/h100", source="s")
    return slot_job(request, step=pd.Timedelta("30min"), on_demand_usd=3.0)


@pytest.mark.parametrize(("use", "content"), [(used_job, JOB), (read_settings, SETTINGS)])
def test_broken_files_of_words_are_refused_in_words_or_used(tmp_path, use, content):
    whole = tmp_path / "whole.toml"
    whole.write_bytes(content)
    use(whole)
    refused = 0
    for number, text in enumerate([*TRAPS, *(broken(content, number) for number in range(100))]):
        path = tmp_path / f"{number}.toml"
        path.write_bytes(text)
        try:
            use(path)
        except SlackwaterError as error:
            assert str(error).strip()
            refused += 1
    assert refused >= len(TRAPS)


def test_hostile_names_of_markets_come_in_and_are_only_shown(tmp_path):
    """From a file of a source through the warehouse to every page: shown as text, never as a tag, a formula or a path."""
    name = "<script>alert(1)</script><img src=x onerror=alert(2)>'); DROP TABLE price; --"
    shown = name.replace("/", "|")  # a market name with a slash is refused
    text = tidy_prices(40).replace("us-east-1a", f'"{shown}"')
    (tmp_path / "prices.csv").write_text(text)
    db = tmp_path / "w.duckdb"
    with open_store(db) as store:
        counts = ingest(store, "tabular", tmp_path / "prices.csv", imported_at=AT)
    assert counts.added == 40
    pages = asyncio.run(every_page(db, f"aws/us-east-1/{shown}/g3.8xlarge"))
    assert any("alert(1)" in text for _, text in pages), "it is shown somewhere"
    for path, text in pages:
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path


async def every_page(db, market):
    """Return (path, text) of every page of the app, using this market for market pages."""
    app = make_app(Snapshots(db, Settings(), lambda: AT))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        paths = ["/" if view.name == "glance" else f"/{view.name}" for view in VIEWS]
        asked = [(path, params) for path in paths for params in ({}, {"market": market}, {"key": market})]
        return [(path, (await client.get(path, params=params)).text) for path, params in asked]
