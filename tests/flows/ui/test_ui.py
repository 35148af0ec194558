"""The user interface: every page and its data on a real warehouse, hostile names, refused requests, and a real browser."""

import asyncio
import html
import itertools
import json
import re
import shutil
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import httpx
import pandas as pd
import pytest
import uvicorn
from chromium import chromium_page, find_chromium
from command_kit import call
from make import make_request
from past_jobs import past_jobs
from test_turn import AT, one_turn

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket
from slackwater.flows.histories import read_history
from slackwater.flows.jobs.bill import cost_rows, totals
from slackwater.flows.ledger.decisions import decisions_of, placements_of
from slackwater.flows.ledger.headline import compared_words, headline
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.ledger.open_job import open_job
from slackwater.flows.ledger.reports import Report, save_report
from slackwater.flows.ledger.stages import save_failure
from slackwater.flows.ledger.terms import save_change
from slackwater.flows.monitoring.completeness import expected_updates, freshness
from slackwater.flows.show.formats import usd
from slackwater.flows.ui import pages
from slackwater.flows.ui.app import make_app, warm_up
from slackwater.flows.ui.command import bound_socket
from slackwater.flows.ui.jobs import hourly_cost, jobs_data
from slackwater.flows.ui.markets import markets_data
from slackwater.flows.ui.pages import VIEWS
from slackwater.flows.ui.reading import Reading, Snapshots
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import open_reader, open_store

STEP = pd.Timedelta(minutes=30)
NOW = AT + STEP + pd.Timedelta(minutes=10)
MARKET = "simulated/east/east-a/h100"
HOSTILE = "<img src=x onerror=alert(1)>'; DROP TABLE jobs; --/../ü&\"%2F#?"
ALARM = "nothing came <b>since</b> 05:00"


def request_of(name: str, gpu_hours: float):
    terms = {"n_max": 4, "workload": {"amount": gpu_hours, "unit": "gpu_hours"}}
    return make_request(
        name, at=AT, market=MARKET, checkpoint={"resumable": True, "overhead_minutes": 2}, **terms
    )


def two_turns(db: Path, settings: Settings) -> None:
    """Run two turns with a job with a hostile name and a hopeless job, then store a failure and an alarm."""
    one_turn(
        db, settings, requests=[request_of(HOSTILE, 8), request_of("hopeless", 500), *past_jobs(2, before=AT)]
    )
    one_turn(db, settings, at=AT + STEP)
    with open_store(db) as store:
        save_failure(store, "run-before", at=AT - STEP, stage="forecast", reason="<i>solver</i> gave up")
        alarm = {
            "kind": "stale source",
            "subject": MARKET,
            "raised_at": AT,
            "severity": "serious",
            "text": ALARM,
            "began_at": AT,
        }
        write_rows(store, "alarms", [alarm])


@pytest.fixture(scope="module")
def made(watched) -> Path:
    """Return the warehouse for read-only use."""
    return watched


@pytest.fixture(scope="module", autouse=True)
def untouched(made) -> bytes:
    """Return the contents of the warehouse file before the first page is rendered."""
    return made.read_bytes()


@pytest.fixture
def db(made, tmp_path) -> Path:
    """Return a private copy of the warehouse."""
    return Path(shutil.copy(made, tmp_path / "w.duckdb"))


class Asking:
    """Client that calls the app without a socket; exceptions of the app propagate unless ``raising`` is False."""

    def __init__(self, app, *, raising: bool = True) -> None:
        self._app = app
        self._raising = raising

    def request(self, method: str, path: str, **more) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app, raise_app_exceptions=self._raising)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8642") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def get(self, path: str, **more) -> httpx.Response:
        return self.request("GET", path, **more)


def client_of(db: Path, settings, *, now: pd.Timestamp = NOW) -> Asking:
    return Asking(make_app(Snapshots(db, settings, lambda: now)))


@pytest.fixture(scope="module")
def snapshots(made, settings) -> Snapshots:
    """Return snapshots shared by all read-only tests, so that the data of each page are computed once."""
    return Snapshots(made, settings, lambda: NOW)


@pytest.fixture(scope="module")
def client(snapshots) -> Asking:
    return Asking(make_app(snapshots))


def addresses(client: Asking) -> dict[str, str]:
    """Return addresses that cover every view."""
    vintages = client.get("/api/market", params={"key": MARKET}).json()["vintages"]
    ended = next(job["job"] for job in client.get("/api/jobs?state=ended").json()["jobs"])
    return {
        "/": "glance", "/jobs": "jobs", "/jobs?state=running": "jobs", "/jobs?state=finished": "jobs",
        "/job?" + urlencode({"name": HOSTILE}): "job", "/job?name=hopeless": "job",
        "/job?" + urlencode({"name": ended}): "job", "/markets": "markets", f"/market?key={quote(MARKET)}": "market",
        "/market?" + urlencode({"key": MARKET, "issued": vintages[-3], "model": "last_value"}): "market",
        "/accuracy": "accuracy", "/accuracy?" + urlencode({"at": AT.isoformat()}): "accuracy", "/policies": "policies",
        "/completeness": "completeness", "/runs": "runs",
    }  # fmt: skip


class Outline(HTMLParser):
    """HTML parser that collects the tags with their attributes, in order, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.said += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def test_every_page_is_sound(client):
    """Language, landmarks, a single h1, heading order, scopes, captions, ids, and no external resources."""
    for path in addresses(client):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        page = Outline(answer.text)
        shown = re.sub(r"<(script|style)\b.*?</\1>", " ", answer.text, flags=re.DOTALL)
        assert not re.search(r"\b(nan|NaN|NaT|None|inf|Infinity)\b", re.sub(r"<[^>]+>", " ", shown)), path
        assert page.all("html")[0]["lang"] == "en"
        assert [len(page.all(tag)) for tag in ("main", "header", "footer", "h1")] == [1, 1, 1, 1], path
        levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1, path
        assert all(later <= before + 1 for before, later in itertools.pairwise(levels)), (path, levels)
        assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th")), path
        assert len(page.all("caption")) == len(page.all("table")), path
        ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
        assert len(ids) == len(set(ids)), path
        assert {attrs["aria-labelledby"] for attrs in page.all("section")} <= set(ids), path
        assert [a.get("aria-current") for a in page.all("a")].count("page") == 1, path
        assert page.all("a")[0]["href"] == "#content", path
        drawn = [attrs for attrs in page.all("svg") if attrs.get("aria-hidden") != "true"]
        assert all(attrs.get("role") == "img" for attrs in drawn), path
        assert all(attrs.get("aria-label") or attrs.get("aria-labelledby") for attrs in drawn), path
        for tag, attrs in page.tags:
            for name in ("src", "href", "action"):
                link = attrs.get(name)
                assert link is None or (link.startswith(("/", "#")) and not link.startswith("//")), (
                    path,
                    tag,
                    link,
                )
            assert not [name for name in attrs if name.startswith("on")], (path, tag)
        assert not page.all("style")
        programs = [attrs for attrs in page.all("script") if attrs.get("type") != "application/json"]
        assert [attrs["src"] for attrs in programs] in (
            ["/static/ui.js"],
            ["/static/ui.js", "/static/vega.js", "/static/draw.js"],
        )


def follow_links(client, most: int) -> set[str]:
    """Follow the links from the front page, at most ``most`` pages; every link must lead to a page. Return the visited paths."""
    seen: list[str] = []
    todo = ["/"]
    while todo and len(seen) < most:
        path = todo.pop(0)
        answer = client.get(path)
        assert answer.status_code == 200, path
        seen.append(path)
        if "html" in answer.headers["content-type"]:
            links = [
                urlsplit(a["href"])._replace(fragment="").geturl() for a in Outline(answer.text).all("a")
            ]
            todo += [link for link in dict.fromkeys(links) if link and link not in [*seen, *todo]]
    return set(seen)


def test_the_links_of_the_front_page_lead_somewhere(client):
    pages = {"/jobs", "/markets", "/accuracy", "/policies", "/completeness", "/runs", "/api"}
    assert pages <= follow_links(client, 14)


@pytest.mark.slow
def test_every_link_of_every_page_leads_somewhere(client):
    assert len(follow_links(client, 300)) > 40


def test_hostile_names_are_shown_as_they_are(client, made):
    page = client.get("/job", params={"name": HOSTILE}).text
    for text in (page, client.get("/").text, client.get("/jobs").text):
        assert "<img" not in text
        assert HOSTILE in Outline(text).said
    assert "<i>solver" not in client.get("/runs").text
    assert "<i>solver</i> gave up" in Outline(client.get("/runs").text).said
    assert "<b>since" not in client.get("/").text
    assert ALARM in Outline(client.get("/").text).said
    assert client.get("/api/job", params={"name": HOSTILE}).json()["job"]["job"] == HOSTILE
    with open_reader(made) as store:
        assert HOSTILE in set(read_rows(store, "jobs")["name"])


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "\x00",
        *(
            pytest.param(text, marks=pytest.mark.slow)
            for text in ("'; DROP TABLE runs; --", "../../etc/passwd", "%s{{7*7}}")
        ),
    ],
)
def test_hostile_questions_are_only_words(client, made, text):
    before = made.read_bytes()
    asked = {
        "/job": "name",
        "/market": "key",
        "/jobs": "state",
        "/runs": "page",
        "/accuracy": "at",
        "/api/job": "name",
    }
    for path, key in asked.items():
        answer = client.get(path, params={key: text})
        assert answer.status_code in (400, 404), (path, key)
        assert "<script>alert" not in answer.text
        if path in ("/job", "/market"):
            assert text in Outline(answer.text).said or "\x00" in text
    for key in ("issued", "model"):
        assert client.get("/market", params={"key": MARKET, key: text}).status_code == 400
    assert made.read_bytes() == before


def test_the_front_page_says_what_to_hold_and_who_is_in_danger(client, made):
    data = client.get("/api/glance").json()
    with open_reader(made) as store:
        rows = [json.loads(text) for text in read_rows(store, "decisions")["details"]]
    due = [row for row in rows if pd.Timestamp(row["slot"]) == AT + STEP]
    assert len(due) == 2
    saved = [row for row in due if row["saved_usd"] is not None]
    alone = sum(row["on_demand_only_usd"] for row in saved)
    assert data["hold"] == {
        "on_demand": sum(row["on_demand"] for row in due), "spot": sum(row["spot"] for row in due), "jobs": len(due),
        "expected_cost_usd": pytest.approx(sum(row["expected_cost_usd"] for row in due)),
        "saved_usd": pytest.approx(sum(row["saved_usd"] for row in saved)),
        "saved_share": pytest.approx(sum(row["saved_usd"] for row in saved) / alone),
    }  # fmt: skip
    page = client.get("/").text
    assert f"${usd(data['hold']['saved_usd'])} less than on-demand only" in page
    assert data["verdict"] == "act"
    texts = [finding["text"] for finding in data["findings"]]
    assert any("hopeless is likely late: the risk of missing its deadline is 100 %" in text for text in texts)
    assert any("Stale source" in text and ALARM in text for text in texts)
    assert data["jobs"][0]["job"] == "hopeless"  # the job at risk is listed first
    # an old failure is in the ledger, not on the front page
    assert not any("run-before" in text for text in texts)


def test_the_front_page_says_when_the_turns_have_stopped(made, settings):
    late = client_of(made, settings, now=NOW + pd.Timedelta(hours=5))
    texts = [finding["text"] for finding in late.get("/api/glance").json()["findings"]]
    assert any("5.2 h old" in text and "out of date" in text for text in texts)


def test_a_jobs_standing_is_that_of_the_decider(client, made, settings):
    """Progress equals the state from which the allocate stage starts (M2.4); the cost is that of the bill."""
    with open_reader(made) as store:
        job = find_job(store, HOSTILE)
        rows = decisions_of(store, HOSTILE)
        followed = FollowedMarket(market=Market.parse(MARKET), source=rows[-1]["source"], at=AT + STEP)
        history = read_history(store, followed, settings=settings, start=job.start)
        running = open_job(job.request, [history], decided=placements_of(rows)).live
        progress = running.progress()
        (bill,) = totals(cost_rows(store, HOSTILE))
    data = client.get("/api/job", params={"name": HOSTILE}).json()
    assert len(rows) == len(data["decisions"]) == 2
    assert progress.done > 0
    assert data["job"]["cost_usd"] == pytest.approx(bill["paid_usd"])
    assert bill["paid_usd"] >= progress.cost_usd > 0
    assert data["job"]["share_done"] == pytest.approx(progress.done / running.run.workload)
    assert data["job"]["share_expected"] == pytest.approx(1 / 12)
    assert [slot["held_spot"] is None for slot in data["slots"]] == [False, True]
    assert data["slots"][1]["decided_spot"] == rows[1]["spot"]
    page = client.get("/job", params={"name": HOSTILE}).text
    assert html.unescape(page).count(data["job"]["hold"]["headline"])
    assert data["job"]["hold"]["headline"].startswith(headline(rows[1]).partition(" until ")[0])


def test_an_ended_job_shows_every_policy_and_the_best_first(client, made):
    name = "past-2"  # a job with a hard deadline
    data = client.get("/api/job", params={"name": name}).json()
    with open_reader(made) as store:
        outcomes = read_rows(store, "outcomes", where={"job": name})
    assert len(data["outcomes"]) == len(outcomes) >= 4
    assert data["job"]["value_usd"] is None
    by = outcomes.set_index("policy")["utility_usd"]
    utilities = [by[row["policy"]] for row in data["outcomes"]]
    assert utilities == sorted(utilities, reverse=True)
    # Figures that depend on the imputed value are hidden, costs are shown.
    assert {row["utility_usd"] for row in data["outcomes"]} == {None}
    page = Outline(client.get("/job", params={"name": name}).text).said
    assert "utilit" not in page.lower()
    best = data["outcomes"][0]
    assert (
        f"The best policy is {best['policy']}: {usd(best['cost_usd'])} USD, "
        f"{compared_words(best['saved_share'], best['saved_usd'])}" in page
    )
    assert best["saved_usd"] == pytest.approx(best["on_demand_only_usd"] - best["cost_usd"])
    listed = next(job for job in client.get("/api/jobs?state=ended").json()["jobs"] if job["job"] == name)
    assert listed["best"]["policy"] == data["outcomes"][0]["policy"]


def test_a_running_job_shows_its_change_its_cost_an_hour_and_its_instances(client):
    jobs = client.get("/api/jobs").json()["jobs"]
    job = next(job for job in jobs if job["job"] == "hopeless")
    hold = job["hold"]
    paid = hold["on_demand"] * hold["on_demand_usd_per_hour"] + hold["spot"] * (
        hold["spot_usd_per_hour"] or 0.0
    )
    assert hold["usd_per_hour"] == pytest.approx(paid)
    assert paid > 0
    assert [(row["on_demand"], row["spot"]) for row in job["recent"]][-1] == (hold["on_demand"], hold["spot"])
    for page in (client.get("/jobs").text, client.get("/job", params={"name": "hopeless"}).text):
        told = Outline(page).said
        assert f"{usd(paid)} USD an hour" in told
        assert hold["change"].lower() in told.lower()
        assert f"now {hold['on_demand']} on-demand and {hold['spot']} spot" in page


def test_a_cost_an_hour_needs_the_prices_of_the_instances_it_counts():
    row = {"on_demand": 0, "spot": 2, "on_demand_usd_per_hour": None, "spot_usd_per_hour": 1.5}
    assert hourly_cost(row) == 3.0
    assert hourly_cost(row | {"on_demand": 1}) is None
    assert hourly_cost(row | {"spot_usd_per_hour": None}) is None


def test_ended_jobs_are_grouped_by_outcome(db, settings):
    end = AT + pd.Timedelta(hours=6)
    with open_store(db) as store:
        report = Report(job=HOSTILE, reported_at=end, known_at=end, finished=True)
        save_report(store, report, find_job(store, HOSTILE))
    with open_reader(db) as store:
        reading = Reading(
            store=store, settings=settings, db=db, now=end + 5 * STEP, at=end + 5 * STEP, run=None
        )
        data = jobs_data(reading, state="ended")
    found = {row["job"]: row["outcome"] for row in data["jobs"]}
    assert next(row["share_done"] for row in data["jobs"] if row["job"] == HOSTILE) == 1.0
    assert (found[HOSTILE], found["hopeless"], found["past-1"]) == ("on time", "missed", "replayed only")
    assert data["endings"] == {"on time": 1, "missed": 1, "replayed only": 2}
    assert list(found.values()) == ["on time", "missed", "replayed only", "replayed only"]


@pytest.mark.parametrize(
    ("words", "name", "key"), [(("job", "list"), "jobs", "job"), (("markets",), "markets", "market")]
)
def test_the_lists_of_pages_and_terminal_have_the_same_rows(client, made, words, name, key):
    code, out, _ = call(*words, "--db", made, "--at", (AT + STEP).isoformat(), "--json")
    assert code == 0
    pages = {row[key]: row for row in client.get(f"/api/{name}").json()[name]}
    for row in json.loads(out)[name]:
        shown = pages.pop(row[key])
        assert {field for field, value in row.items() if shown[field] != value} <= {"state"}
    assert not pages


def test_the_markets_page_and_the_status_command_agree_on_stale_markets(made, settings):
    found = []
    with open_reader(made) as store:
        for hours in (0, 1, 3, 24, 72):
            at = AT + STEP + pd.Timedelta(hours=hours)
            reading = Reading(store=store, settings=settings, db=made, now=at, at=at, run=None)
            rows = markets_data(reading)["markets"]
            known = [(row["market"], row["source"]) for row in rows]
            table = freshness(expected_updates(store, known, at=at, step=reading.step), at=at)
            for row in rows:
                key = (row["market"], row["source"])
                assert row["stale"] == any(
                    own["stale"] for own in table if (own["market"], own["source"]) == key
                )
            found.append(sum(row["stale"] for row in rows))
    assert found[0] == 0
    assert found[-1] == len(rows)


def test_the_newest_values_are_of_the_planned_product_and_no_scores(tmp_path, settings):
    """A newer Windows price and a newer placement score are not shown as the price and the count."""
    market, files = "aws,us-east-1,us-east-1a,p4d.24xlarge", tmp_path / "files"
    files.mkdir()
    (files / "prices.csv").write_text(
        "provider,region,zone,instance_type,product,observed_at,price_usd\n"
        f"{market},Linux/UNIX,2026-03-10T00:00:00Z,8.0\n{market},Windows,2026-03-10T01:00:00Z,19.0\n"
    )
    (files / "availability.csv").write_text(
        "provider,region,zone,instance_type,observed_at,available,kind\n"
        f"{market},2026-03-10T00:00:00Z,3,probe\n{market},2026-03-10T01:00:00Z,9,score\n"
    )
    db, at = tmp_path / "w.duckdb", pd.Timestamp("2026-03-10T02:00Z")
    assert call("ingest", "tabular", *sorted(files.iterdir()), "--db", db).code == 0
    with open_reader(db) as store:
        (row,) = markets_data(Reading(store=store, settings=settings, db=db, now=at, at=at, run=None))[
            "markets"
        ]
    assert (row["price_usd"], row["available"]) == (8.0, 3.0)


def test_a_job_whose_terms_changed_says_so_and_why_it_is_not_replayed(db, settings):
    with open_store(db) as store:
        request = find_job(store, HOSTILE).request
        later = request.model_copy(update={"deadline": request.ends + 2 * STEP})
        assert save_change(store, later, at=AT + STEP)
    client = client_of(db, settings)
    row = client.get("/api/job", params={"name": HOSTILE}).json()["job"]
    assert pd.Timestamp(row["deadline"]) == pd.Timestamp(later.deadline)
    assert (pd.Timestamp(row["changed_at"]), row["changed_under_way"]) == (AT + STEP, True)
    page = Outline(client.get("/job", params={"name": HOSTILE}).text).said
    assert f"terms changed {AT + STEP:%Y-%m-%d %H:%M} UTC" in page
    assert "no policy is replayed on it" in page


def test_past_vintages_are_shown_against_what_came(client, made):
    newest = client.get("/api/market", params={"key": MARKET}).json()
    assert newest["issued_at"] == (AT + STEP).isoformat() == newest["vintages"][-1]
    assert all(row["price"]["came"] is None for row in newest["forecast"])
    before = client.get("/api/market", params={"key": MARKET, "issued": AT.isoformat()}).json()
    assert before["past"][-1]["slot"] == AT.isoformat()
    assert before["forecast"][0]["count"]["came"] == newest["past"][-1]["available"]
    assert before["forecast"][1]["count"]["came"] is None  # nothing later is observed yet
    with open_reader(made) as store:
        sql = "SELECT q10, q50, q90 FROM forecasts JOIN vintages USING (vid) WHERE market = ? AND model = ? "
        sql += "AND issued_at = ? AND variable = 'count' AND step_ahead = 1"
        (stored,) = store.execute(sql, [MARKET, before["model"], AT.to_pydatetime()])
    shown = before["forecast"][0]["count"]
    assert (shown["q10"], shown["q50"], shown["q90"]) == stored
    page = client.get("/market", params={"key": MARKET, "issued": AT.isoformat()}).text
    assert "1 slot so far lie in the 80 % band" in page
    assert 'rel="next"' in page


def test_runs_accuracy_policies_and_completeness_are_the_warehouses(client, made, monkeypatch):
    runs = client.get("/api/runs").json()
    assert [run["status"] for run in runs["runs"]] == ["done", "done", "failed"]
    assert runs["runs"][2]["reasons"] == ["forecast: <i>solver</i> gave up"]
    accuracy = client.get("/api/accuracy").json()
    with open_reader(made) as store:
        measured = read_rows(store, "accuracy", where={"measured_at": AT + STEP})
    assert len(accuracy["accuracy"]) == len(measured) > 0
    assert accuracy["measured"] == [(AT + STEP).isoformat(), AT.isoformat()]
    policies = client.get("/api/policies").json()
    assert len(policies["round_jobs"]) == len(policies["weights"]) == 2
    assert all(sum(row) == pytest.approx(1) for row in policies["weights"])
    complete = client.get("/api/completeness").json()
    forecasts = {row["market"]: row["states"] for row in complete["stages"]["forecast"]}
    assert forecasts[MARKET].count("d") >= 2
    assert len({len(row["states"]) for rows in complete["stages"].values() for row in rows}) == 1


def test_prefect_is_linked_when_it_is_known(made, settings, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert 'href="http://127.0.0.1:4200/runs"' in client_of(made, settings).get("/runs").text
    monkeypatch.setenv("PREFECT_UI_URL", "javascript:alert(1)")
    monkeypatch.delenv("PREFECT_API_URL")
    assert "javascript:" not in client_of(made, settings).get("/runs").text


def test_only_get_and_head_from_known_hosts(client, settings, made):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = client.request(method, "/jobs")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"
    head = client.request("HEAD", "/jobs")
    assert (head.status_code, head.content) == (200, b"")
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        assert client.get("/", headers={"host": host}).status_code == 421
    for path in ("/", "/api/glance", "/static/ui.css", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe-inline" not in headers["content-security-policy"].split("style-src-attr")[0]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/api/glance", "/api/state", "/metrics", "/static/ui.js", "/nothing"]
)
def test_pages_of_other_sites_read_nothing(client, path):
    own = "http://127.0.0.1:8642"
    assert client.get(path, headers={"origin": own}).status_code == (404 if path == "/nothing" else 200)
    for origin in ("https://evil.example", "null", "http://localhost:1", f"{own}.evil.example"):
        answer = client.get(path, headers={"origin": origin})
        assert (answer.status_code, answer.text) == (403, "Requests from pages of other sites are refused.\n")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    headers = client.get(path).headers
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize("origin", ["https://evil.example", "own"])
def test_there_are_no_websockets(snapshots, origin):
    app = make_app(snapshots)
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    origin = "http://localhost" if origin == "own" else origin
    headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
    scope = {
        "type": "websocket",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": headers,
        "root_path": "",
    }
    asyncio.run(app(scope, receive, send))
    assert [one["type"] for one in sent] == ["websocket.close"]


def test_nothing_is_there(client):
    for path in (
        "/nothing",
        "/job",
        "/job?name=nobody",
        "/market?key=a/b/c/d",
        "/market?key=x",
        "/static/../app.py",
        "/docs",
    ):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert 'href="/"' in answer.text
        assert len(Outline(answer.text).all("h1")) == 1
    assert "hopeless" in client.get("/job?name=nobody").text  # the page lists the existing jobs
    assert MARKET in client.get("/market?key=x/y/z/h100").text
    wrong = client.get("/api/market", params={"key": MARKET, "issued": "2020-01-01"})
    assert wrong.status_code == 400
    assert "expected" in wrong.json()["error"]
    for path in (
        "/runs?page=0x",
        "/jobs?state=asleep",
        "/accuracy?at=later",
        f"/market?key={MARKET}&model=oracle",
    ):
        assert client.get(path).status_code == 400, path


def test_a_mistake_of_the_program_is_a_page_too(made, settings, monkeypatch):
    broken = pages.PageView(
        name="runs", template="runs.html", menu="/runs", about="", read=lambda reading, query: {}["x"]
    )
    monkeypatch.setattr("slackwater.flows.ui.app.VIEWS", (broken,))
    asking = Asking(make_app(Snapshots(made, settings, lambda: NOW)), raising=False)
    answer = asking.get("/runs")
    assert answer.status_code == 500
    assert "KeyError" in answer.text
    assert 'href="/"' in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert asking.get("/api/runs").json()["error"]["remedy"]


def test_a_page_past_the_end_is_the_last_one(client):
    assert client.get("/api/runs?page=99").json()["page"] == 1
    assert client.get("/api/jobs?page=0").json()["page"] == 1


def test_lists_are_filtered_on_the_server_and_hostile_patterns_are_only_words(client, monkeypatch):
    every = client.get("/api/markets").json()
    assert every["known"] == every["fitting"] >= 1
    assert client.get("/api/markets", params={"q": MARKET}).json()["fitting"] >= 1
    assert client.get("/api/jobs", params={"q": HOSTILE.split()[0]}).json()["jobs"]
    for path, none in (("/markets", "fits the filter"), ("/jobs", "No job fits the filter")):
        for text in (
            "<script>alert(1)</script>",
            "'; DROP TABLE jobs; --",
            '"><img src=x>',
            "[",
            "{{7*7}}",
            "*a" * 99,
        ):
            started = time.monotonic()
            answer = client.get(path, params={"q": text, "page": 7})
            assert answer.status_code == 200, text
            assert time.monotonic() - started < 5, text
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text
            assert none in answer.text or text != "{{7*7}}"
        assert client.get(path, params={"q": "x" * 201}).status_code == 400
        assert client.get(path, params={"page": "-1"}).status_code == 400
    monkeypatch.setattr("slackwater.flows.ui.jobs.PAGE_JOBS", 1)
    pages = client.get("/api/jobs", params={"page": 2, "q": "*"}).json()
    assert pages["page"] == 2
    assert len(pages["jobs"]) == 1
    assert 'href="/jobs?q=%2A&amp;page=1"' in client.get("/jobs", params={"page": 2, "q": "*"}).text


def test_no_warehouse_an_empty_one_and_a_damaged_one(tmp_path, settings):
    db = tmp_path / "w.duckdb"
    client = client_of(db, settings)
    warm_up(Snapshots(db, settings, lambda: NOW))  # as at the start of the command
    missing = client.get("/jobs")
    assert not list(tmp_path.iterdir()), "looking makes nothing"
    assert missing.status_code == 503
    assert "No warehouse yet" in missing.text
    assert "slackwater run" in missing.text
    with open_store(db):
        pass
    for path in ("/", "/jobs", "/markets", "/accuracy", "/policies", "/completeness", "/runs"):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert 'class="empty"' in answer.text, path
        assert client.get(f"/api{path if path != '/' else '/glance'}").status_code == 200
    for file in tmp_path.rglob("*.duckdb"):
        file.write_bytes(b"no database at all" * 1000)
    damaged = client.get("/jobs")
    assert damaged.status_code == 503
    assert "cannot be read" in damaged.text
    assert db.read_bytes().startswith(b"no database")


def test_a_new_turn_shows_after_a_reload_while_a_writer_works(db, settings):
    client = client_of(db, settings)
    assert client.get("/api/state").json()["at"] == (AT + STEP).isoformat()
    one_turn(db, settings, at=AT + 2 * STEP)
    assert client.get("/api/state").json()["at"] == (AT + 2 * STEP).isoformat()
    with open_store(db) as writer, writer.transaction():
        save_failure(writer, "run-half", at=AT + 3 * STEP, stage="ingest", reason="half a turn")
        assert client.get("/api/state").json()["at"] == (AT + 2 * STEP).isoformat()
        assert "half a turn" not in client.get("/runs").text
    assert client.get("/api/state").json()["run"] == "run-half"


def test_the_page_changes_nothing(client, made, untouched):
    """Holds for new and for cached pages."""
    of = {"job": {"name": "hopeless"}, "market": {"key": MARKET}}
    for view in VIEWS:
        assert client.get(f"/api/{view.name}", params=of.get(view.name)).status_code == 200
    assert made.read_bytes() == untouched


def test_the_index_of_the_api_names_every_address(client):
    index = client.get("/api").json()
    assert set(index["views"]) == {f"/api/{view.name}" for view in VIEWS}


@pytest.fixture(scope="module")
def served(snapshots):
    """Yield the address of the app on a real server."""
    taken = bound_socket("127.0.0.1", 0)
    taken.listen()
    app = make_app(snapshots)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=20)


needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine")
#: Elements reachable by keyboard, in page order, without the contents of closed details.
REACHABLE = """
Array.from(document.querySelectorAll('a[href], button, select, input:not([type=hidden]), summary, [tabindex="0"]'))
  .filter(e => e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true}) && !e.closest('[hidden]'))
  .filter(e => { const d = e.closest('details:not([open])'); return !d || e.tagName === 'SUMMARY'; }).length
"""
ACTIVE = """(() => { const e = document.activeElement; const all = Array.from(document.querySelectorAll('*'));
return e === document.body ? null : all.indexOf(e); })()"""


def tabbed(page, most: int) -> list[int]:
    """Return the elements that Tab reaches from the top of the page, in order."""
    found: list[int] = []
    for _ in range(most + 2):
        page.press("Tab", 9)
        place = page.js(ACTIVE)
        if place is None or place in found:
            break
        found.append(place)
    return found


@pytest.mark.slow
@needs_chromium
def test_a_browser_shows_every_page_and_a_keyboard_reaches_all_of_it(client, served):
    with chromium_page() as page:
        everywhere = list(addresses(client))
        for width, dark, paths in ((1280, False, everywhere[::2]), (400, True, everywhere)):
            page.look(width=width, dark=dark)
            for path in paths:
                page.open(served + path)
                over = page.js("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert over <= 0, (path, width)
        paper = page.js("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(18, 23, 30)"
        page.look(width=1280)
        for path in ("/", "/jobs", "/accuracy", f"/market?key={quote(MARKET)}"):
            page.open(served + path)
            there = page.js(REACHABLE)
            reached = tabbed(page, there)
            assert len(reached) == there > 8, (path, len(reached), there)
            assert reached == sorted(reached), path  # the order of the page
        assert page.problems == []
        assert {urlsplit(url).netloc for url in page.requests if url.startswith("http")} == {
            urlsplit(served).netloc
        }


@needs_chromium
def test_runs_and_errors_stand_at_the_edge_of_the_page_and_keep_to_its_width(served):
    left = "document.querySelector('h1').getBoundingClientRect().left"
    with chromium_page() as page:
        for width, dark in ((420, False), (1280, True)):
            page.look(width=width, dark=dark)
            edges = set()
            for path in ("/runs", "/no/such/page"):
                page.open(served + path)
                assert page.js("document.documentElement.scrollWidth") <= width
                edges.add(page.js(left))
            assert len(edges) == 1, (width, edges)


@needs_chromium
def test_the_slider_goes_through_the_vintages_by_keyboard(served):
    with chromium_page() as page:
        page.look(width=1280)
        page.open(f"{served}/market?key={quote(MARKET)}")
        before = page.js("document.getElementById('drawn').textContent")
        page.js("document.querySelector('[data-slider]').focus()")
        page.press("ArrowLeft", 37)
        for _ in range(40):
            page.settle(0.1)
            if page.js("document.getElementById('drawn').textContent") != before:
                break
        assert AT.strftime("%Y-%m-%d %H:%M UTC") in page.js("document.getElementById('drawn').textContent")
        assert page.js("document.activeElement.type") == "range"
        assert quote(AT.isoformat(), safe="") in page.js("location.href")
        assert page.js("document.querySelector('[name=issued]').value") == AT.isoformat()
        assert page.problems == []


@needs_chromium
def test_a_decision_is_one_glance_on_a_phone(served):
    """A short card shows instances, cost, saving and the risk of missing the deadline; policy and reason unfold."""
    with chromium_page() as page:
        page.look(width=420)
        page.open(f"{served}/job?{urlencode({'name': HOSTILE})}")
        page.settle(0.5)
        cards = "Array.from(document.querySelectorAll('#decisions ~ .scroll tbody tr')).filter(e => e.checkVisibility())"
        heights = page.js(f"{cards}.map(e => e.getBoundingClientRect().height)")
        assert len(heights) == 2
        assert max(heights) <= 160, heights
        seen = page.js(
            f"Array.from({cards}[0].cells).filter(e => e.checkVisibility()).map(e => e.dataset.label ?? '')"
        )
        assert {
            "on-demand",
            "spot",
            "expected cost, $",
            "saved, $",
            "of on-demand only",
            "risk of missing deadline",
        } <= set(seen)
        assert "why" not in page.js(f"{cards}[0].innerText")
        page.js(f"{cards}[0].querySelector('summary').click()")
        assert "why" in page.js(f"{cards}[0].innerText")
        page.open(f"{served}/")
        rows = "Array.from(document.querySelectorAll('.cards tbody tr'))"
        assert max(page.js(f"{rows}.map(e => e.getBoundingClientRect().height)")) <= 200
        assert page.js("document.documentElement.scrollWidth") <= 420
