"""``slackwater status``: its output, exit codes and page; it writes nothing and starts nothing."""

import hashlib
import json
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from forms_kit import quick_first
from make import save_run
from page_kit import figures_of, unpacked
from published import keeps_to
from storeprocess import run_python
from test_alarms import AT, HALF, every, lively, put
from test_status_completeness import A, facts_of, issued_rows, job_row, run_rows, seen_rows

from slackwater.flows import cli
from slackwater.flows.config import Settings
from slackwater.flows.following import present_note, present_of
from slackwater.flows.ledger.stages import STAGES, save_failure
from slackwater.flows.monitoring.alarms import Alarm
from slackwater.flows.monitoring.completeness import classify, feed_freshness, freshness
from slackwater.flows.monitoring.status import (
    LOOKS,
    Status,
    check_has_turn,
    group_rows,
    stage_map,
    status_blocks,
    status_page,
)
from slackwater.flows.show.blocks import Table
from slackwater.flows.show.page import render_page
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.store.connection import open_store

MARKET = "aws/r/z/g@s"


def warehouse(folder: Path, *, end: pd.Timestamp = AT) -> Path:
    """Return a warehouse with three complete slots of a market up to ``AT``; its counts end at ``end``."""
    db = folder / "w.duckdb"
    with open_store(db) as store:
        times = every(10, end=end)
        put(store, "availability", times, lively(len(times)))
        put(store, "price", times[::36], [1.0] * len(times[::36]))
        for place in range(3):
            slot = AT - place * HALF
            store.execute(
                "INSERT INTO vintages VALUES (?, 'aws/r/z/g', 's', 'combined', ?, 1800, ?, 48, 16, '', '', FALSE)",
                [place, slot.to_pydatetime(), slot.to_pydatetime()],
            )
            for stage in STAGES:
                save_run(store, f"run-{place}", at=slot, stage=stage, details={})
    return db


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return such a warehouse for read-only use."""
    return warehouse(tmp_path_factory.mktemp("well"))


@pytest.fixture(scope="module")
def silent(tmp_path_factory) -> Path:
    """Return a read-only warehouse whose counts ended seventy minutes before ``AT``."""
    return warehouse(tmp_path_factory.mktemp("silent"), end=AT - pd.Timedelta(minutes=70))


def run(monkeypatch, capsys, *arguments) -> tuple[int, str]:
    """Return the exit code and the output of the status command."""
    monkeypatch.setattr(sys, "argv", ["slackwater", "status", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    return int(ended.value.code), said.out + said.err


def test_the_exit_code_says_what_is_wrong(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    well = shutil.copy(made, tmp_path / "w.duckdb")
    asked = ("--db", well, "--at", AT.isoformat())
    code, said = run(monkeypatch, capsys, *asked)
    assert code == 0, said
    assert "All 6 due tasks are done; no alarm." in said
    code, said = run(monkeypatch, capsys, "--db", well, "--at", (AT + 3 * HALF).isoformat())
    assert (code, "stale source" in said) == (5, True)
    assert "missing" in said
    with open_store(well) as store:
        times = every(10, days=1, end=AT + HALF)
        put(store, "availability", times[times > AT], lively(int((times > AT).sum())))
        save_failure(store, "run-x", at=AT + HALF, stage="forecast", reason="OSError: no space left")
    code, said = run(monkeypatch, capsys, "--db", well, "--at", (AT + HALF).isoformat())
    assert code == 3
    assert "OSError: no space left" in said


def test_an_alarm_alone_is_four(silent, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "--db", silent, "--at", AT.isoformat())
    assert (code, "stale source" in said) == (4, True)


def test_the_answer_is_one_object_and_nothing_is_written(silent, tmp_path, monkeypatch, capsys):
    db = silent
    before = hashlib.sha256(db.read_bytes()).digest()
    page = tmp_path / "out" / "status.html"
    code, said = run(monkeypatch, capsys, "--db", db, "--at", AT.isoformat(), "--json", "--html", page)
    answer = json.loads(said)
    keeps_to("status", answer)
    assert (answer["schema"], answer["exit_code"]) == ("slackwater.status/1", code)
    assert {row["stage"] for row in answer["completeness"]} == set(STAGES)
    assert answer["not_done"] == []
    assert answer["doubtful"][0]["stage"] == "ingest"
    (fresh, _) = answer["freshness"]
    assert (fresh["age_minutes"], fresh["late_by_minutes"], fresh["stale"]) == (70.0, 60.0, True)
    alarm, empty = answer["alarms"]
    assert empty["kind"] == "empty ingest"
    assert (alarm["kind"], alarm["severity"], alarm["raised_at"]) == ("stale source", "serious", None)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert hashlib.sha256(db.read_bytes()).digest() == before


def test_user_errors_are_two(made, tmp_path, monkeypatch, capsys):
    db = made
    for arguments, words in (
        (("--db", tmp_path / "none.duckdb"), "no warehouse"),
        (("--db", db, "--at", "noon"), "--at 'noon'"),
        (("--db", db, "--at", AT.isoformat(), "--market", "aws/r/z/other"), "has no forecast and no job"),
        (("--db", db, "--at", AT.isoformat(), "--since", (AT + HALF).isoformat()), "no slot from"),
    ):
        code, said = run(monkeypatch, capsys, *arguments)
        assert code == 2
        assert words in said
    code, said = run(monkeypatch, capsys, "--db", db, "--at", AT.isoformat(), "--market", MARKET)
    assert code == 0


def test_nothing_followed_is_not_well_and_has_a_page_too(made, tmp_path, monkeypatch, capsys):
    page = tmp_path / "s.html"
    code, said = run(monkeypatch, capsys, "--db", made, "--at", "2026-08-01", "--html", page)
    assert code == 3
    assert "No market was followed" in said
    assert "No market was followed in these slots." in Page(page.read_text()).text


def test_without_a_time_a_living_pipeline_is_seen_from_now_and_a_history_from_its_end(made, tmp_path):
    db = shutil.copy(made, tmp_path / "w.duckdb")
    settings = Settings()
    with open_store(db) as store:
        for now in (AT - pd.Timedelta(days=2), AT + pd.Timedelta(days=29)):
            assert present_of(store, settings, clock=now) == now
        years = AT + pd.Timedelta(days=900)
        at = present_of(store, settings, clock=years)
        assert (at, present_note(years, years)) == (AT, "")
        assert "newest turn, 2026-03-20 00:00 UTC" in present_note(at, years)
        store.execute(
            "INSERT INTO fetches VALUES ('f', ?, 'done', 1, 0, 0, 1, '{}', '')", [AT.to_pydatetime()]
        )
        assert present_of(store, settings, clock=years) == years
    with open_store(":memory:") as empty:
        assert present_of(empty, settings, clock=AT) == AT
        with pytest.raises(MarketError, match="no turn has run"):
            check_has_turn(empty)


@pytest.mark.parametrize("page", quick_first([False, True]))
def test_the_command_loads_no_engine_and_no_solver(made, tmp_path, page):
    db, more = made, ["--html", str(tmp_path / "s.html")] if page else []
    code = (
        "import sys; from slackwater.flows import cli; "
        f"sys.argv = ['slackwater', 'status', '--db', {str(db)!r}, '--at', '2026-03-20', *{more!r}]\n"
        "try:\n    cli.main()\nexcept SystemExit as ended:\n    assert ended.code == 0, ended.code\n"
        "found = {'prefect', 'pyomo', 'lightgbm', 'scipy.stats'} & set(sys.modules)\nassert not found, found"
    )
    other = run_python(code)
    _, said = other.communicate()
    assert other.returncode == 0, said


class Page(HTMLParser):
    """HTML parser that checks the nesting of tags and collects their attributes and the text."""

    void = ("meta", "br", "wbr", "link", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


EVIL = '<script>alert("x")</script>'


def demo() -> Status:
    """Return a status with all states, for a market and job with hostile names and reasons."""
    runs = run_rows((3, "forecast", "failed", EVIL, []))
    issued = pd.concat([issued_rows(A, [0]), issued_rows(A, [1], price_fallback="flat"),
                        issued_rows(A, [2], newest_row=pd.Timestamp("2026-03-10T00:00Z"))])  # fmt: skip
    facts = facts_of(issued=issued, runs=runs, seen=seen_rows(A, [0] * 6), jobs=[job_row(EVIL, deadline=2)])
    with open_store(":memory:") as store:
        feeds = feed_freshness(store, Settings(), at=AT)
    return Status(
        at=AT,
        completeness=classify(facts, Settings()),
        freshness=freshness(facts.promises, at=AT),
        feeds=feeds,
        alarms=(Alarm(kind="drift", subject=f"{MARKET} {EVIL}", severity="warning", since=AT, text=EVIL),),
        note="as at the newest turn",
    )


def test_the_page_is_whole_escaped_and_readable_without_colour():
    made = status_page(demo())
    content = render_page(made)
    own = unpacked(content)
    page = Page(content)
    assert EVIL not in content
    assert EVIL in page.text
    assert "http://" not in own
    assert "https://" not in own
    maps = {figure.title: figure for figure in figures_of(made.blocks)}
    assert list(maps) == list(STAGES)
    forecast = maps["forecast"]
    assert forecast.label == "forecast: of 6 slots 1 done, 1 fallback, 1 stale, 1 failed, 2 missing"
    assert forecast.label.partition("slots ")[2] in page.text
    boxes = forecast.specifications()[0]["datasets"]["rows"]
    assert {box["state"]: box["letter"] for box in boxes} == {
        state: letter for state, (_, letter) in LOOKS.items()
    }
    hour = 3_600_000
    assert sum(box["x2"] - box["x"] for box in boxes) == 3 * hour
    tables = [one for tag, one in page.tags if tag == "table"]
    assert len(tables) >= 4
    assert render_page(status_page(demo())) == content


def test_a_terminal_is_shown_the_verdict_and_the_same_sections():
    verdict, *blocks = status_blocks(demo())
    assert [block.heading for block in blocks] == ["Alarms", "Completeness", "Freshness"]
    assert verdict.startswith("3 missing") or "due tasks" in verdict
    assert not list(figures_of(blocks))
    titles = [block.title for block in blocks[1].blocks if isinstance(block, Table)]
    assert titles[0].startswith("Done slots of the due slots")


def test_a_map_without_anything_due_says_so():
    figure = stage_map("score", [], AT, AT, HALF)
    assert (figure.specs, figure.why) == ([], "Nothing was due.")


def test_markets_with_the_same_problem_share_a_row_of_the_page():
    def row(name, reason="x"):
        return {
            "name": name,
            "stage": "ingest",
            "state": "failed",
            "since": AT,
            "until": AT,
            "slots": 1,
            "reason": reason,
        }

    rows = group_rows([*map(row, "abcdef"), row("g", "y"), row("h") | {"state": "missing"}])
    assert [(one["name"], one["reason"]) for one in rows] == [("a, b, c, d, and 3 more", "x; y"), ("h", "x")]
