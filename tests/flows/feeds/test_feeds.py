"""Feeds into the warehouse: fetched page by page, resumed after a stop, no rows lost or duplicated, no secrets printed."""

import json
import logging
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from command_kit import call, printed
from forms_kit import quick_first
from loopback import AT, Azure, Ec2, Loopback, Reply, azure_item, ec2_error, price_history, serve
from make import job_text, make_turn, work
from test_turn import small_settings

from slackwater.flows.config import Feed, Settings, read_settings
from slackwater.flows.feeds.fetch import (
    collected_due,
    fetch_feed,
    fetch_states,
    find_feed,
    is_due,
    last_fetches,
    store_collected,
)
from slackwater.flows.show.blocks import Table
from slackwater.flows.turn import stages
from slackwater.flows.turn.stages import TurnProgress, whole_turn
from slackwater.flows.turn.work import example_requests
from slackwater.warehouse.asof import load_history
from slackwater.warehouse.errors import InputError, SettingsError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import append
from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.live.transport import Retry, Secrets, Transport
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.schema import MIGRATIONS, migrate

HOUR = pd.Timedelta(hours=1)
SECRET = "aws-secret-abcdefghijklmnop"
TABLES = ("price", "availability", "markets", "series", "imports", "rejected", "assumptions", "fetches")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    surround(monkeypatch, tmp_path)


def surround(monkeypatch, folder):
    """Set credentials where boto3 looks for them, and remove proxies, which would intercept the loopback interface."""
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
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE123456789")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "none"))


def aws_feed(server: Loopback, **options):
    given = {"endpoint_url": server.url, "regions": ["us-east-1"], "page": 5, "days": 2} | options
    return Feed(name="spot", source="aws-spot", every_minutes=60, options=given)


def fetch(store, feed, at=AT, *, tries=3, **others):
    waits: list[float] = []
    transport = Transport(seed=1, retry=Retry(tries=tries), seconds=5.0, sleep=waits.append)
    return fetch_feed(store, feed, at=at, transport=transport, **others)


def prices(store) -> pd.DataFrame:
    frame = store.arrow(
        "SELECT region, zone, instance_type, product, observed_at, known_at, price_usd, on_demand_usd FROM price "
        "JOIN series USING (sid) JOIN markets USING (mid) ORDER BY ALL"
    )
    return frame.to_pandas()


def one_region(hours=30, **others):
    return Ec2({"us-east-1": price_history("us-east-1", hours, start=AT - hours * HOUR)}, **others)


class Stopped(BaseException):
    """Exception in place of a killed process."""


def test_a_history_is_read_page_by_page_and_known_as_stated(store):
    with serve(one_region(page=25)) as server:
        fetched = fetch(store, aws_feed(server))
    assert (fetched.status, fetched.added, fetched.repeated, fetched.rejected) == ("done", 60, 0, 0)
    assert fetched.requests == len(server.seen) == 3
    found = prices(store)
    assert len(found) == 60
    # M1.2: older history is known when observed; rows observed within the feed's interval are known at the fetch.
    followed = found["observed_at"] >= AT - HOUR
    assert (found["known_at"] == found["observed_at"].where(~followed, AT)).all()
    assert followed.sum() == 2
    rules = set(read_rows(store, "imports")["known_at_rule"])
    assert rules == {
        "observed_at before 2026-01-05T11:00:00+00:00, then max(observed_at, 2026-01-05T12:00:00+00:00)"
    }
    assert server.seen[0].form["ProductDescription.1"] == "Linux/UNIX"


def test_the_next_fetch_goes_on_from_the_mark(store):
    ec2 = one_region()
    with serve(ec2) as server:
        feed = aws_feed(server)
        fetch(store, feed)
        ec2.prices["us-east-1"] += price_history("us-east-1", 3, start=AT + HOUR / 2)
        before = len(server.seen)
        later = fetch(store, feed, AT + 3 * HOUR)
        assert server.seen[before].form["StartTime"] == "2026-01-05T11:00:00Z"
    # Three new hours in two zones; the overlapping rows are already known.
    assert (later.status, later.added) == ("done", 6)
    assert later.repeated == 4
    new = prices(store).query("observed_at > @AT")
    assert (new["known_at"] == AT + 3 * HOUR).all()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return the result and the rows of an undisturbed fetch of five pages."""
    with pytest.MonkeyPatch.context() as patch:
        surround(patch, tmp_path_factory.mktemp("unbroken"))
        with serve(one_region(hours=10, page=4)) as server, open_store(":memory:") as store:
            return fetch(store, aws_feed(server)), prices(store)


@pytest.mark.parametrize("after", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 2, 4)), 3])
def test_killed_after_any_page_it_ends_with_the_same_rows(store, after, unbroken):
    whole, expected = unbroken
    with serve(one_region(hours=10, page=4)) as server:
        feed = aws_feed(server)
        with pytest.MonkeyPatch.context() as patch:
            kill_after_pages(patch, after)
            with pytest.raises(Stopped):
                fetch(store, feed)
        row = fetch_states(store).get("spot")
        assert prices(store).empty  # nothing of a fetch before its end
        assert last_fetches(store) == {}
        if after:
            assert (row.status, row.finished) == ("partial", False)
            assert f"stopped after page {after} (us-east-1)" in row.reason
        server.seen.clear()
        again = fetch(store, feed)
        # Continues after the last stored page.
        assert len(server.seen) == 5 - after
    assert again.status == "done"
    assert (again.added, again.repeated) == (whole.added, whole.repeated) == (20, 0)
    pd.testing.assert_frame_equal(prices(store), expected)
    assert len(read_rows(store, "fetches")) == 1


def test_a_fetch_that_an_older_version_left_unfinished_continues_after_the_upgrade(tmp_path, unbroken):
    """Before schema step 0015 each page was stored with a row of the unfinished fetch."""
    path, (_, expected) = tmp_path / "w.duckdb", unbroken
    with serve(one_region(hours=10, page=4)) as server:
        feed = aws_feed(server)
        with pytest.MonkeyPatch.context() as patch, open_store(":memory:") as store:
            kill_after_pages(patch, 2)
            with pytest.raises(Stopped):
                fetch(store, feed)
            state = fetch_states(store)["spot"]
        with duckdb.connect(str(path)) as old:
            migrate(old, MIGRATIONS[: MIGRATIONS.index("0015_staged_pages")])
            row = ["spot", AT.to_pydatetime(), "partial", 8, 0, 0, 2, state.watermark(), state.reason]
            old.execute(f"INSERT INTO fetches VALUES ({', '.join('?' * len(row))})", row)
        with open_store(path, say=lambda _: None) as store:
            server.seen.clear()
            again = fetch(store, feed)
            assert (again.status, again.added) == ("done", 8 + 12)
            assert len(server.seen) == 3  # the pages after the mark
            found = prices(store)
    keys = ["zone", "observed_at", "known_at", "price_usd"]
    assert len(found) == len(found.merge(expected, on=keys)) == 12


def kill_after_pages(monkeypatch, pages: int) -> None:
    from slackwater.flows.feeds import fetch as feeds

    kept = []
    keep = feeds._Fetch._keep

    def killed(self, page):
        if len(kept) == pages:
            raise Stopped
        kept.append(page)
        keep(self, page)

    monkeypatch.setattr(feeds._Fetch, "_keep", killed)


@pytest.mark.parametrize("cut_at", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4))])
def test_a_network_cut_in_the_middle_of_paging_loses_and_doubles_nothing(store, cut_at, unbroken):
    _, expected = unbroken
    with serve(one_region(hours=10, page=4)) as server:
        feed = aws_feed(server)
        server.faults = {number: Reply("<x>" * 100, cut=20) for number in range(cut_at, cut_at + 3)}
        cut = fetch(store, feed)
        assert cut.status == ("failed" if cut_at == 1 else "partial")
        assert "us-east-1: EC2 in us-east-1" in cut.reason
        server.faults = {}
        again = fetch(store, feed, AT)
        assert again.status == "done"
        assert again.added == 20
    pd.testing.assert_frame_equal(prices(store), expected)


def test_a_listing_that_was_cut_is_finished_an_hour_later(store):
    ec2 = one_region(hours=10, page=4)
    with serve(ec2) as server:
        feed = aws_feed(server)
        server.faults = {number: Reply("", status=503) for number in (3, 4, 5)}
        assert fetch(store, feed).status == "partial"
        server.faults = {}
        ec2.prices["us-east-1"] += price_history("us-east-1", 1, start=AT + HOUR / 2)
        assert fetch(store, feed, AT + HOUR).status == "done"
    found = prices(store)
    assert len(found) == 22
    assert not found.duplicated(["zone", "observed_at"]).any()


def test_an_expired_page_token_starts_the_range_again(store):
    ec2 = one_region(hours=10, page=4)
    with serve(ec2) as server:
        feed = aws_feed(server)
        server.faults = {number: Reply("", status=503) for number in (3, 4, 5)}
        assert fetch(store, feed).status == "partial"
        server.faults = {}
        ec2.expired = {last_fetches(store)["spot"].marks["us-east-1"].listing.token}
        again = fetch(store, feed)
        assert (again.status, again.added) == ("done", 20)
    assert again.repeated == 8
    assert len(prices(store)) == 20


def test_a_server_that_repeats_its_token_does_not_loop(store):
    with serve(one_region(hours=10, stuck=True, page=4)) as server:
        fetched = fetch(store, aws_feed(server))
        assert len(server.seen) <= 3
    assert fetched.status == "partial"
    assert "same next page twice" in fetched.reason


def test_throttling_is_waited_out(store):
    with serve(one_region(hours=10, page=8)) as server:
        server.faults = {
            1: ec2_error("RequestLimitExceeded", 503, "Request limit exceeded."),
            3: ec2_error("Throttling", 400, **{"Retry-After": "9"}),
            5: Reply("oops", status=500),
        }
        fetched = fetch(store, aws_feed(server))
    assert (fetched.status, fetched.added, fetched.requests) == ("done", 20, 6)


def test_one_region_that_denies_leaves_the_others(store):
    regions = [f"us-east-{number}" for number in (1, 2, 3, 10)]
    history = {region: price_history(region, 2, start=AT - 3 * HOUR) for region in regions[:-1]}
    ec2 = Ec2(history, page=10, denied={regions[-1]: "UnauthorizedOperation"})
    with serve(ec2) as server:
        feed = aws_feed(server, regions=[])
        fetched = fetch(store, feed)
        assert (fetched.status, fetched.added) == ("partial", 12)
        assert fetched.reason == (
            "us-east-10: EC2 in us-east-10 refused: UnauthorizedOperation You are not authorized in us-east-10"
        )
        assert not is_due(feed, fetched, AT + HOUR / 2)
        # The region is allowed now: only that region is fetched again.
        ec2.prices[regions[-1]] = price_history(regions[-1], 2, start=AT - 3 * HOUR)
        ec2.denied.clear()
        server.seen.clear()
        again = fetch(store, feed)
    assert (again.status, again.added, again.reason) == ("done", 16, "")
    assert [seen.form["Action"] for seen in server.seen] == ["DescribeRegions", "DescribeSpotPriceHistory"]


def test_the_same_time_again_asks_nobody(store):
    with serve(one_region(hours=4)) as server:
        feed = aws_feed(server)
        first = fetch(store, feed)
        server.seen.clear()
        assert fetch(store, feed) == first
        assert server.seen == []


def test_an_earlier_time_is_refused(store):
    with serve(one_region(hours=4)) as server:
        feed = aws_feed(server)
        fetch(store, feed)
        with pytest.raises(
            InputError, match=r"was fetched at 2026-01-05 12:00:00.00:00, after 2026-01-05 11:00"
        ):
            fetch(store, feed, AT - HOUR)


def test_history_read_by_hand_is_known_when_it_was_observed_and_moves_no_mark(store):
    with serve(one_region(hours=60)) as server:
        feed = aws_feed(server, days=1)
        first = fetch(store, feed)
        until = first.marks["us-east-1"].until
        by_hand = fetch(store, feed, span=(AT - 50 * HOUR, AT - 30 * HOUR))
        found = prices(store)
        assert by_hand.status == "done"
        assert by_hand.marks["us-east-1"].until == until
        assert found["observed_at"].min() < AT - 48 * HOUR
        old = found[found["observed_at"] < AT - 24 * HOUR]
        assert (old["known_at"] == old["observed_at"]).all()
        # The same range again adds nothing.
        assert fetch(store, feed, span=(AT - 50 * HOUR, AT - 30 * HOUR)).added == by_hand.added
        assert not prices(store).duplicated(["zone", "observed_at"]).any()
        with pytest.raises(SettingsError, match="a start before the end"):
            raise_reason(fetch(store, feed, span=(AT, AT - HOUR)))


def raise_reason(fetched) -> None:
    assert fetched.status in ("failed", "partial")
    raise SettingsError(fetched.reason)


def test_rows_from_the_future_are_kept_but_not_seen_before_their_time(store):
    ahead = [("us-east-1a", "p3.2xlarge", "Linux/UNIX", "9.0", "2026-01-05T14:00:00.000Z")]
    ec2 = one_region(hours=30)
    ec2._listed = lambda *_: [*ec2.prices["us-east-1"], *ahead]
    with serve(ec2) as server:
        fetch(store, aws_feed(server, page=100))
    last = prices(store).iloc[-31:]
    assert pd.Timestamp("2026-01-05T14:00Z") in set(last["known_at"])
    market = Market.parse("aws/us-east-1/us-east-1a/p3.2xlarge")
    asked = {"step": HOUR, "source": "aws-spot"}
    from slackwater.warehouse.asof import HistoryAssumptions

    assumed = HistoryAssumptions(always_available=4, on_demand_usd=10.0)
    seen = load_history(store, market, end=AT + 2 * HOUR, known_at=AT + HOUR, assumptions=assumed, **asked)
    assert (seen.frame == 9.0).sum().sum() == 0
    then = load_history(
        store, market, end=AT + 2 * HOUR, known_at=AT + 2 * HOUR, assumptions=assumed, **asked
    )
    assert (then.frame == 9.0).sum().sum() == 1


def test_hostile_rows_are_rejected_and_counted(store):
    at = "2026-01-05T10:00:00.000Z"
    linux = "Linux/UNIX"
    rows = [
        ("us-east-1a", "p3.2xlarge", linux, "0.9", at),
        ("us-east-1a", "p4d.24xlarge", linux, "-1", at),
        ("us-east-1a", "p4d.24xlarge", linux, "1e999", at),
        ("us-east-1a", "p4d.24xlarge", linux, "NaN", at),
        ("us-east-1a", "p4d.24xlarge", linux, "cheap", at),
        ("us-east-1a", "p4d.24xlarge", linux, "1.0", "yesterday"),
        ("us-east-1a", "p4d.24xlarge", linux, "1.0", "9999-12-31T00:00:00Z"),
        ("'; DROP TABLE price; --", "p3.2xlarge", linux, "1.0", at),
        ("us/east", "p3.2xlarge", linux, "1.0", at),
        ("", "p3.2xlarge", linux, "1.0", at),
        ("us-east-1a", "x" * 200_000, linux, "oops", at),
    ]
    ec2 = Ec2({"us-east-1": rows}, page=100)
    ec2._listed = lambda *_: rows
    with serve(ec2) as server:
        fetched = fetch(store, aws_feed(server))
    assert (fetched.status, fetched.added, fetched.rejected) == ("done", 2, 9)
    reasons = " ".join(read_rows(store, "rejected")["reason"])
    for words in (
        "is negative",
        "not a number",
        "is not a time",
        "outside 1900..2200",
        "contains / or @",
        "no zone",
    ):
        assert words in reasons
    # Names are stored literally.
    assert "'; DROP TABLE price; --" in set(prices(store)["zone"])


def test_what_is_asked_anew_after_the_options_change(store):
    ec2 = one_region(hours=10)
    ec2.prices["us-east-1"] += price_history("us-east-1", 10, start=AT - 10 * HOUR, kind="g5.xlarge")
    with serve(ec2) as server:
        fetch(store, aws_feed(server, instance_types=["p3.2xlarge"]))
        both = aws_feed(server, instance_types=["p3.2xlarge", "g5.xlarge"])
        fetched = fetch(store, both, AT + HOUR)
    # The history of the new instance type is fetched too; the known type repeats.
    assert (fetched.added, fetched.repeated) == (20, 20)
    assert not prices(store).duplicated(["zone", "instance_type", "observed_at"]).any()


def test_no_credentials_is_a_failed_fetch_that_says_so(store, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with serve(one_region()) as server:
        fetched = fetch(store, aws_feed(server))
        assert server.seen == []
    assert fetched.status == "failed"
    assert "no AWS credentials found" in fetched.reason


def test_the_servers_clock_is_compared_with_ours(store):
    with serve(one_region(hours=2)) as server:
        ahead = fetch(store, aws_feed(server), clock=AT - pd.Timedelta(minutes=20))
        assert ahead.reason == "the server's clock is 1,200 s ahead of our clock"
        assert ahead.status == "done"
        behind = fetch(store, aws_feed(server), AT + 5 * HOUR)
        assert behind.reason == "the server's clock is 18,000 s behind the logical time"


@pytest.mark.parametrize(
    ("off", "observed", "words"),
    [
        ("3h", "3h", "10,800 s ahead of our clock"),
        ("25h", "0h", "90,000 s ahead of our clock, which is believed instead"),
        ("-25h", "0h", "90,000 s behind our clock, which is believed instead"),
        ("36500D", "0h", "ahead of our clock, which is believed instead"),
    ],
)
def test_a_servers_date_more_than_a_day_off_is_not_believed(store, off, observed, words):
    """Current rows are dated by the server's clock, or by ours if the two differ by more than a day."""
    rows = [{"zone": "a", "cost": 1.0}]
    with serve(lambda _: Reply({"rows": rows}, date=AT + pd.Timedelta(off))) as server:
        columns = {
            "provider": "=lab",
            "region": "=here",
            "zone": "zone",
            "instance_type": "=x",
            "price_usd": "cost",
        }
        options = {"url": f"{server.url}/prices", "rows": "rows", "columns": columns}
        feed = Feed(name="lab", source="http", options=options)
        fetched = fetch(store, feed, clock=AT)
    assert (fetched.status, fetched.added) == ("done", 1)
    assert words in fetched.reason
    assert prices(store)["observed_at"].tolist() == [AT + pd.Timedelta(observed)]


def test_a_secret_is_nowhere(store, capsys, caplog, tmp_path):
    def echo(seen):
        return ec2_error("AuthFailure", 401, f"signature of {SECRET} and AKIAEXAMPLE123456789 {seen.headers}")

    with serve(echo) as server, caplog.at_level(logging.DEBUG, logger="httpx"), caplog.at_level(logging.INFO):
        fetched = fetch(store, aws_feed(server))
    kept = [fetched.reason, caplog.text, *capsys.readouterr()]
    kept += [str(read_rows(store, table).to_dict()) for table in TABLES]
    assert fetched.status == "failed"
    assert "AuthFailure" in fetched.reason
    for text in kept:
        assert SECRET not in text
        assert "AKIAEXAMPLE123456789" not in text


def test_feeds_that_are_due_are_fetched_in_a_turn_and_one_that_fails_stops_none(store):
    items = [azure_item("eastus", "Standard_NC6s_v3", 0.9, spot=True)]
    with serve(one_region(hours=4)) as ec2, serve(Azure(items)) as azure:
        broken = Feed(name="broken", source="http", tries=1, options={
            "url": "http://127.0.0.1:9/", "columns": dict.fromkeys(
                ("provider", "region", "zone", "instance_type", "price_usd"), "x")})  # fmt: skip
        list_prices = Feed(name="azure", source="azure-retail", every_minutes=240,
                           options={"url": azure.url, "regions": ["eastus"]})  # fmt: skip
        settings = Settings(feeds=(broken, list_prices, aws_feed(ec2)))

        def due(at):
            quiet = {"say": lambda _: None}
            with collected_due(store, settings.feeds, at=at, seed=settings.seed, **quiet) as found:
                return store_collected(store, found, **quiet)

        first = due(AT)
        assert first == {
            "broken": {"added": 0, "repeated": 0, "rejected": 0},
            "azure": {"added": 1, "repeated": 0, "rejected": 0},
            "spot": {"added": 8, "repeated": 0, "rejected": 0},
        }
        assert due(AT + HOUR / 2).keys() == {"broken"}
        assert due(AT + HOUR).keys() == {"broken", "spot"}
        # A backfilled turn fetches nothing: sources cannot be queried for their past answers.
        assert due(AT - HOUR) == {}
        late = make_turn(store, AT + 9 * HOUR, settings, made="backfill")
        assert stages.ingest(late, TurnProgress()).ingested == {}
    row = last_fetches(store)["broken"]
    assert row.status == "failed"
    assert "cannot be reached" in row.reason


def test_history_read_by_hand_does_not_put_off_the_next_fetch(store):
    with serve(one_region(hours=60)) as server:
        feed = aws_feed(server, days=1)
        fetch(store, feed)
        later = AT + 0.75 * HOUR
        by_hand = fetch(store, feed, later, span=(AT - 40 * HOUR, AT - 38 * HOUR))
        assert by_hand.status == "done"
        assert not is_due(feed, by_hand, later)
        assert is_due(feed, by_hand, AT + HOUR)


def test_a_turn_with_feeds_has_no_simulated_market(store):
    with serve(one_region(hours=4)) as server:
        settings = Settings(feeds=(aws_feed(server),))
        turn = make_turn(store, AT, settings)
        assert stages.ingest(turn, TurnProgress()).ingested == {
            "spot": {"added": 8, "repeated": 0, "rejected": 0}
        }
        assert stages.ingest(turn, TurnProgress()).ingested == {}
    (run,) = read_rows(store, "runs").to_dict("records")
    assert (run["stage"], run["status"], json.loads(run["details"])["spot"]["added"]) == ("ingest", "done", 8)
    assert set(list_markets(store)["source"]) == {"aws-spot"}


@pytest.mark.slow
def test_a_whole_turn_on_live_prices(store, tmp_path):
    """A job names a market whose prices come from a feed: it is forecast, decided and reported, and not called simulated."""
    with serve(one_region(hours=240)) as server:
        chosen = read_settings(small_settings(tmp_path, measured_origins=0))
        settings = chosen.model_copy(update={"feeds": (aws_feed(server, days=10, page=1000),)})
        market = "aws/us-east-1/us-east-1a/p3.2xlarge"
        request = example_requests()[0].with_place(at=AT, market=market, source=None)
        turn = make_turn(store, AT, settings)
        result = whole_turn(turn, data=None, requests=[request], report=tmp_path / "report.html")
    assert result.ingested == {"spot": {"added": 480, "repeated": 0, "rejected": 0}}
    (decision,) = result.decisions
    assert (decision["job"], pd.Timestamp(decision["slot"])) == (request.name, AT)
    vintages = read_rows(store, "vintages")
    assert set(vintages["source"]) == {"aws-spot"}
    assert vintages["newest_row"].max() <= AT
    assert "SIMULATED" not in (tmp_path / "report.html").read_text()


def test_a_failure_that_looks_like_markup_is_shown_as_it_is(store):
    with serve(lambda seen: Reply("[/red] [bold] \x1b[31m", status=403)) as server:
        feed = Feed(name="azure", source="azure-retail", options={"url": server.url, "regions": ["eastus"]})
        fetched = fetch(store, feed)
    assert "\x1b" not in fetched.reason
    table = Table(
        "Feeds [x]", [{"feed": "azure", "reason": fetched.reason}], {"feed": "feed", "reason": "why"}
    )
    assert "[/red] [bold]" in printed([table])


def test_the_settings_in_the_documentation_are_settings():
    text = (Path(__file__).parents[3] / "docs/live-sources.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    feeds = [feed for block in blocks for feed in Settings.model_validate(tomllib.loads(block)).feeds]
    assert {feed.source for feed in feeds} == set(LIVE_SOURCES)
    for source in LIVE_SOURCES:
        assert f"## {source}\n" in text


@pytest.mark.slow
@pytest.mark.parametrize("request_number", [1, 2, 4, 6])
def test_a_process_killed_in_the_middle_of_a_fetch_loses_and_doubles_nothing(
    tmp_path, request_number, unbroken
):
    """Kill the real command with SIGKILL while a page is being sent, with the warehouse on disk."""
    settings, db = tmp_path / "s.toml", tmp_path / "w.duckdb"
    _, expected = unbroken
    with serve(one_region(hours=10, page=4)) as server:
        given = f'endpoint_url = "{server.url}", regions = ["us-east-1"], page = 5, days = 2'
        settings.write_text(f'[[feeds]]\nname = "spot"\nsource = "aws-spot"\noptions = {{{given}}}\n')
        command = [
            sys.executable,
            "-m",
            "slackwater.flows.cli",
            "feeds",
            "fetch",
            "spot",
            "--at",
            AT.isoformat(),
        ]
        command += ["--settings", str(settings), "--db", str(db)]
        server.seen.clear()
        server.faults = {request_number: Reply("", slow=30.0)}
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(server.seen) < min(request_number, 5) and child.poll() is None:
            time.sleep(0.05)
        child.kill()
        child.wait()
        server.faults = {}
        with open_store(db) as store:
            again = fetch(store, aws_feed(server))
            assert (again.status, again.added) == ("done", 20)
            pd.testing.assert_frame_equal(prices(store), expected)


@pytest.mark.parametrize(("kind", "rating", "largest"), [("score", 9, 10), ("band", 1, 4)])
def test_a_rating_is_no_count(store, kind, rating, largest):
    """A placement score or interruption band is listed, but neither chosen as a market with counts nor read as counts."""
    from slackwater.warehouse.errors import MarketError
    from slackwater.warehouse.sources.contract import batch_of

    place = {"provider": "aws", "region": "us-east-1", "zone": "use1-az1", "instance_type": "p3.2xlarge"}
    row = {
        **place,
        "source": "aws",
        "observed_at": AT.to_pydatetime(),
        "available": rating,
        "capacity": largest,
    }
    append(store, [batch_of("availability", 1, row | {"kind": kind})], source="aws")
    listing = list_markets(store).iloc[0]
    assert (listing["kind"], bool(listing["has_counts"]), listing["count_rows"]) == (kind, False, 1)
    market = Market.parse("aws/us-east-1/use1-az1/p3.2xlarge")
    with pytest.raises(MarketError, match="no observations known"):
        load_history(store, market, end=AT, step=HOUR, known_at=AT)


@pytest.mark.parametrize("command", quick_first(["plan", "job add", "forecast", "replay"], 2))
def test_a_market_fetched_after_the_slot_began_is_refused_with_the_first_slot_that_knows_it(
    command, tmp_path
):
    """Fetched at 12:03, requested at 12:10: the slot of 12:00 has no price yet; the first slot with a price begins at 12:30."""
    db, job = tmp_path / "w.duckdb", tmp_path / "job.toml"
    job.write_text(job_text("t", deadline_in="12h", n_max=1, workload=work(4, "slots")))
    key = "azure/eastus/all/Standard_NC6s_v3"
    fetched_at, at = AT + pd.Timedelta("3min"), AT + pd.Timedelta("10min")
    items = [
        azure_item("eastus", "Standard_NC6s_v3", usd, spot=spot) for usd, spot in ((0.9, True), (3.0, False))
    ]
    with serve(Azure(items)) as server, open_store(db) as store:
        feed = Feed(name="azure", source="azure-retail", options={"url": server.url, "regions": ["eastus"]})
        assert fetch(store, feed, fetched_at).added == 1
    given = {
        "plan": ["plan", job, "--market", key],
        "forecast": ["forecast", "--market", key],
        "replay": ["replay", "--job", job, "--market", key],
        "job add": ["job", "add", job, "--market", key],
    }[command]
    answer = call(*map(str, given), "--at", at.isoformat(), "--db", str(db))
    words = f"{answer.code} {answer.err}"
    assert "2026-01-05 12:30 UTC" in words or answer.code == 0, words


def test_settings_say_what_is_wrong_with_a_feed(tmp_path):
    file = tmp_path / "slackwater.toml"

    def refused(text: str, words: str) -> None:
        file.write_text(text)
        with pytest.raises(SettingsError, match=words):
            read_settings(file)

    refused(
        '[[feeds]]\nname = "a"\nsource = "moon"',
        "unknown live source 'moon', expected one of aws-placement, aws-spot",
    )
    refused('[[feeds]]\nname = "A b"\nsource = "aws-spot"', "feeds.0.name")
    refused('[[feeds]]\nname = "a"\nsource = "aws-spot"\noptions = {regoins = []}', "option 'regoins'")
    refused('[[feeds]]\nname = "a"\nsource = "aws-spot"\noptions = {days = 100}', "whole number from 1 to 90")
    refused('[[feeds]]\nname = "a"\nsource = "aws-spot"\nevery_minutes = 0', "every_minutes")
    refused(
        '[[feeds]]\nname="a"\nsource="aws-spot"\n[[feeds]]\nname="a"\nsource="aws-spot"',
        "two feeds named 'a'",
    )
    refused(
        '[[feeds]]\nname = "a"\nsource = "azure-retail"\noptions = {regions = ["x\' or"]}', "region names"
    )
    file.write_text('[[feeds]]\nname = "a"\nsource = "aws-spot"\nevery_minutes = 30\n')
    settings = read_settings(file)
    assert find_feed(settings, "a").every_minutes == 30
    with pytest.raises(InputError, match="no feed 'b' in the settings; expected one of a"):
        find_feed(settings, "b")
    assert Secrets({}).scrub("x") == "x"


def test_the_commands(tmp_path):
    items = [azure_item("eastus", "Standard_NC6s_v3", 0.9, spot=True)]
    with serve(Azure(items)) as azure:
        settings, db = tmp_path / "s.toml", tmp_path / "w.duckdb"
        settings.write_text(
            f'[[feeds]]\nname = "azure"\nsource = "azure-retail"\noptions = {{url = "{azure.url}", regions = ["eastus"]}}\n'
            '[[feeds]]\nname = "gone"\nsource = "azure-retail"\ntries = 1\n'
            'options = {url = "http://127.0.0.1:9", regions = ["eastus"]}\n'
        )
        common = ["--settings", str(settings), "--db", str(db), "--json"]
        before = call("feeds", *common).value["feeds"]
        assert [(row["feed"], row["status"]) for row in before] == [
            ("azure", "never fetched"),
            ("gone", "never fetched"),
        ]
        at = ["--at", "2026-01-05T12:00Z"]
        fetched = call("feeds", "fetch", "azure", *at, *common).value
        assert (fetched["status"], fetched["added"]) == ("done", 1)
        failed = call("feeds", "fetch", "gone", *at, *common)
        assert "cannot be reached" in failed.err
        after = call("feeds", *common).value["feeds"]
        assert [(row["feed"], row["status"]) for row in after] == [("azure", "done"), ("gone", "failed")]
        assert call("feeds", *common[:-1]).code == 0
        future = call("feeds", "fetch", "azure", "--at", "2199-01-01", *common)
        assert "lies in the future" in future.err
