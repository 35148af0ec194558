"""The report page: complete, self-contained, escaped, reproducible, with text in place of missing charts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from page_kit import accept, unpacked
from report_demo import NOW, STEP, demo_data, demo_panel

from slackwater.flows.ledger.headline import decisions_summary
from slackwater.flows.show.page import render_page
from slackwater.flows.turn.report.leaderboard import (
    BOARD_ROWS,
    PolicyResults,
    board_table,
    changes_of,
    common_hindsight,
    costs_figure,
    is_baseline,
    leaderboard_blocks,
    leaders_of,
    shown_policies,
    shown_rows,
    utility_range,
    weights_section,
)
from slackwater.flows.turn.report.page import ReportData, decided_for, report_page, write_report
from slackwater.flows.turn.report.panels import gap_runs, market_charts
from slackwater.flows.turn.report.recent_errors import recent_scores
from slackwater.forecasting.accuracy.tables import with_common
from slackwater.warehouse.errors import InputError

VOID = {"meta", "br", "wbr", "img", "link", "input", "hr"}
SECTIONS = ("decisions", "markets", "accuracy", "policies", "ingest", "notes")
EVIL = "<b>x</b> & \"$y$\" 'z'"


class Page(HTMLParser):
    """HTML parser that checks the nesting of tags and collects tags and the visible text of each section."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.section = ""
        self.sections: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page.replace("<wbr>", ""))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section" and "section" not in self.open:
            self.section = dict(attrs)["id"]
            self.sections.append(self.section)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "section" and "section" not in self.open:
            self.section = ""

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.setdefault(self.section, []).append(data)

    def text(self, section: str) -> str:
        return " ".join(" ".join(self.texts.get(section, [])).split())


def render_report(data: ReportData) -> str:
    return render_page(report_page(data))


@pytest.fixture(scope="module")
def data() -> ReportData:
    return demo_data(markets=5, rounds=20)


@pytest.fixture(scope="module")
def page(data: ReportData) -> str:
    return render_report(data)


NOTHING = PolicyResults(leaderboard=[], movers=[], findings=["No job has ended yet."])


def empty() -> ReportData:
    return ReportData(
        at=NOW, run_id="run-1", simulated=False, planner="m", decisions=[], accuracy=pd.DataFrame(), learned=NOTHING,
        ingested={}, panels=[], notes=[],
    )  # fmt: skip


def test_page_is_well_formed_and_has_every_section(page):
    parsed = Page(page)
    assert page.startswith("<!DOCTYPE html>")
    assert parsed.sections == list(SECTIONS)
    assert "2026-05-04 12:00 UTC" in parsed.text("")
    assert "run-20260504T120000Z" in parsed.text("")
    links = {a["href"] for tag, a in parsed.tags if tag == "a"}
    assert links == {f"#{section}" for section in SECTIONS}


def test_page_needs_no_network(page):
    own = unpacked(page)
    assert not re.search(
        r"https?:|@import|url\((?!#)|\bsrc=|<link|<iframe|<object|<image", re.sub(r"//.*", "", own)
    )


def test_ids_are_unique_and_every_reference_resolves(page):
    ids = [a["id"] for _, a in Page(page).tags if a.get("id")]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', page))
    assert used
    assert used <= set(ids)


def specifications(page):
    """Return the chart specifications of a page."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', unpacked(page))
    return [json.loads(text) for text in found]


def test_colours_of_the_drawings_are_the_pages_own(page):
    drawings = json.dumps(specifications(page))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawings)
    defined = set(re.findall(r"--([\w-]+):", page))
    assert set(re.findall(r"var\(--([\w-]+)\)", drawings)) <= defined


def test_every_chart_is_what_the_language_takes(data):
    """Check the charts of one market; those of the other markets are built alike."""
    for spec in specifications(render_report(replace(data, panels=data.panels[:1]))):
        accept(spec)


@pytest.mark.slow
def test_same_data_give_the_same_bytes(data, page, tmp_path):
    assert render_report(data) == page
    first, second = (write_report(data, tmp_path / name / "r.html") for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes() == page.encode()


def test_names_of_users_are_escaped_everywhere(data):
    panel = replace(data.panels[0], title=EVIL, source=EVIL, assumptions=(EVIL,))
    row = dict.fromkeys(("job", "market", "policy", "reason", "model", "status", "slot"), EVIL)
    named = {data.learned.policies[0]: EVIL, data.learned.policies[40]: EVIL + "2"}
    learned = replace(
        data.learned, leaderboard=[{**data.learned.leaderboard[0], "policy": EVIL}], findings=[EVIL],
        policies=tuple(named.get(name, name) for name in data.learned.policies), round_jobs=(EVIL,) * 20,
    )  # fmt: skip
    accuracy = data.accuracy.replace({"model": {"arima": EVIL}, "market": {data.panels[0].title: EVIL}})
    page = render_report(
        replace(
            data, run_id=EVIL, decisions=[row], panels=[panel], learned=learned, notes=[EVIL + "!"], accuracy=accuracy,
            ingested={EVIL: {EVIL: 1}},
        )
    )  # fmt: skip
    assert "<b>" not in page
    parsed = Page(page)
    for section in ("", *SECTIONS):
        assert EVIL in parsed.text(section), section


def test_banner_only_on_a_simulated_market(data, page):
    assert "Simulated market." in Page(page).text("")
    assert "Simulated market" not in render_report(replace(data, simulated=False))


def test_decision_row_shows_what_is_there_and_a_dash_for_what_is_not():
    full = {
        "job": "j",
        "on_demand": 2,
        "spot": 3,
        "late_probability": 0.61,
        "expected_cost_usd": 1234.5,
        "secret": "hidden",
    }
    both = Page(render_report(replace(empty(), decisions=[full, {"job": "bare"}]))).text("decisions")
    assert (
        "j 2 3 1,234.50 — — 61 % (likely late) on-demand can be launched and spot is lost only between slots More on j"
        in both
    ), both
    assert "bare — — — — — unknown — More on bare" in both
    summary = decisions_summary([full, {"job": "bare"}])
    assert summary.startswith("2 jobs: run 3 spot instances and 2 on-demand instances")
    assert summary.endswith("1 job may miss the deadline. For 1 job the risk is unknown.")
    assert decisions_summary([{"job": "bare"}]).endswith("The risk of missing a deadline is unknown.")
    assert decisions_summary([{"late_probability": 0.0}]).endswith(
        "No job is at risk of missing its deadline, assuming that on-demand is granted when needed."
    )
    text = Page(render_report(replace(empty(), decisions=[full]))).text("decisions")
    assert "hidden" not in text
    assert "secret" not in text


def test_every_part_without_data_says_so_in_a_sentence():
    parsed = Page(render_report(empty()))
    for section, sentence in {
        "decisions": "No job is open", "markets": "No market is followed yet", "accuracy": "No forecast has been measured yet",
        "policies": "No job has ended yet", "ingest": "Nothing was read",
        "notes": "Nothing out of the ordinary",
    }.items():  # fmt: skip
        assert sentence in parsed.text(section)


def market_text(panel, **change) -> str:
    return Page(render_report(replace(empty(), panels=[replace(panel, **change)], **{}))).text("markets")


def test_panel_without_forecast_or_slots_or_observations_says_so():
    panel = demo_panel(np.random.default_rng(0), 0, slots=20)
    nothing = np.full(20, np.nan)
    assert "No forecast was issued for this market." in market_text(panel, forecast=None)
    assert "they are all gaps" in market_text(panel, price=nothing, available=nothing)
    assert "they are all gaps" in market_text(panel, price=nothing, available=nothing, forecast=None)
    none = np.array([])
    text = market_text(panel, slots=panel.slots[:0], price=none, available=none, forecast=None)
    assert "No slot was observed yet" in text


@pytest.mark.parametrize(("slots", "horizon"), [(1, 1), (2, 1), (200, 48)])
def test_short_and_long_panels_are_drawn(slots, horizon):
    panel = demo_panel(np.random.default_rng(1), 1, slots=slots, horizon=horizon)
    page = render_report(replace(empty(), panels=[panel]))
    price, count = specifications(page)
    assert price["title"] == "price, USD per instance-hour"
    assert len(count["datasets"]["ahead"]) == horizon


def test_panel_tells_gaps_fallback_assumptions_and_the_end_of_its_record():
    panel = demo_panel(np.random.default_rng(3), 0, slots=30, at=NOW - 3 * STEP)
    price = panel.price.copy()
    price[3:7] = np.nan
    forecast = replace(panel.forecast, price_fallback="flat for 7 days")
    text = market_text(
        panel, price=price, forecast=forecast, assumptions=("a constant price", "another's path")
    )
    assert "slots not observed (of 30): price 4" in text
    assert "assumed: a constant price; another's path" in text
    assert "fell back (price: flat for 7 days)" in text
    assert "The record ends at 2026-05-04 10:30 UTC" in text


def test_markets_with_a_decision_come_first_and_name_the_job(data):
    last = data.panels[-1]
    row = {"job": "mine", "market": last.title, "source": last.source, "on_demand": 1, "spot": 4}
    text = Page(render_report(replace(data, decisions=[row]))).text("markets")
    assert text.index("mine: run 1 on-demand + 4 spot") < text.index("Followed, no decision now")
    assert decided_for(last, row)
    assert decided_for(last, {"market": f"{last.title}@{last.source}"})
    assert not decided_for(last, row | {"source": "another"})
    assert not decided_for(data.panels[0], row)


def accuracy_table(rows) -> pd.DataFrame:
    """Return an error table from rows (market, model, step, n, mae); the other measures are derived from mae."""
    table = pd.DataFrame(rows, columns=["market", "model", "step", "n", "mae"])
    extra = {"variable": "price", "rmse": table["mae"], "mase": np.nan, "pinball": table["mae"] / 2, "coverage_80": 0.8,
             "skill_mae": 0.0, "skill_pinball": 0.0, "brier": np.nan, "fallback_share": 0.0}  # fmt: skip
    return table.assign(**extra)


def on_days(table: pd.DataFrame, days: int = 4) -> pd.DataFrame:
    """Return the same errors repeated on several days."""
    parts = [table.assign(day=NOW.floor("D") + pd.Timedelta(days=day), source="lab") for day in range(days)]
    return pd.concat([with_common(part) for part in parts], ignore_index=True)


def scores_of(table: pd.DataFrame):
    (found,) = recent_scores(table, "m")
    return found


def test_pooled_errors_weigh_forecasts_alike_and_compare_like_with_like():
    table = accuracy_table([
        ("a", "last_value", 1, 10, 1.0), ("a", "m", 1, 10, 0.5),
        ("b", "last_value", 1, 30, 3.0), ("b", "m", 1, 30, 3.5),
        ("c", "last_value", 1, 99, 9.0),
    ])  # fmt: skip
    scores = scores_of(on_days(table))
    (floor,), (own,) = scores.of("last_value"), scores.of("m")
    assert floor["mae"] == pytest.approx(2.5)
    assert own["mae"] == pytest.approx(2.75)
    assert own["skill_pinball"] == pytest.approx(-0.1)
    assert own["n"] == 160
    assert scores.note == "Pooled over 2 markets. Left out: 1 market where not every model was measured."


def test_accuracy_shows_every_model_and_market(data, page):
    text = Page(page).text("accuracy")
    assert "seasonal_naive" in text
    assert "Compared with last value, markov is" in text
    assert page.count("Skill over last value") == 2
    counts, prices = recent_scores(data.accuracy, "markov")
    assert len(counts.markets) == len(prices.markets) == 5 * 5


def test_of_too_few_days_the_report_says_how_many():
    """A model three times as bad as last value on a single day: no number, but the number of days in words."""
    table = accuracy_table(
        [("a", "last_value", s, 5, 1.0) for s in (1, 2)] + [("a", "m", s, 5, 3.0) for s in (1, 2)]
    )
    text = Page(render_report(replace(empty(), accuracy=on_days(table, days=1)))).text("accuracy")
    assert "Too few days to compare: errors on 1, at least 3 wanted." in text
    assert "200 % worse" not in text
    many = Page(render_report(replace(empty(), accuracy=on_days(table, days=5)))).text("accuracy")
    assert "200 % worse (200 to 200 %)" in many


def test_flat_series_have_an_undefined_skill_not_an_infinite_one():
    table = accuracy_table([("a", "last_value", 1, 5, 0.0), ("a", "m", 1, 5, 0.2)])
    text = Page(render_report(replace(empty(), accuracy=on_days(table)))).text("accuracy")
    assert "Last value made no error" in text
    assert "inf" not in text.replace("in full", "")


def test_a_market_of_two_sources_counts_twice():
    one = accuracy_table([("a", "last_value", 1, 5, 1.0), ("a", "m", 1, 5, 2.0)])
    table = pd.concat([one.assign(source="s"), one.assign(source="t", mae=3.0)], ignore_index=True)
    assert set(scores_of(table).markets["market"]) == {"a@s", "a@t"}
    assert scores_of(table).note == "Pooled over 2 markets."
    assert set(scores_of(one.assign(source="s")).markets["market"]) == {"a"}


def test_models_that_share_no_market_are_not_pooled():
    table = accuracy_table([("a", "last_value", 1, 5, 1.0), ("b", "m", 1, 5, 2.0)])
    text = Page(render_report(replace(empty(), accuracy=table))).text("accuracy")
    assert "No market was measured with every model" in text


def test_leaderboard_shows_the_best_and_every_baseline_and_counts_them(data, page):
    board = data.learned.leaderboard
    rows = shown_rows(board)
    assert [row["policy"] for row in rows][:BOARD_ROWS] == [row["policy"] for row in board][:BOARD_ROWS]
    assert {"OD-only", "MSU", "UP"} <= {row["policy"] for row in rows}
    assert f"best {BOARD_ROWS} of 116, and baselines" in board_table(board).title
    policies = page[page.index('<section id="policies"') : page.index('<section id="ingest"')]
    assert policies.count('class="marked"') == 3


def test_hindsight_is_drawn_only_when_all_were_scored_on_the_same_jobs():
    same = [
        {"policy": "UP", "mean_cost_usd": 9.0, "mean_hindsight_usd": 7.5},
        {"policy": "A", "mean_cost_usd": 8.0, "mean_hindsight_usd": 7.5},
    ]
    assert common_hindsight(same) == 7.5
    assert common_hindsight([same[0], same[1] | {"mean_hindsight_usd": 7.6}]) is None
    assert common_hindsight([same[0], {"policy": "A", "mean_cost_usd": 8.0}]) is None


def test_policies_are_told_by_what_they_cost_and_not_by_utilities(data, page):
    """The value of a job may be imputed; the cost and the cost compared with on-demand only are not."""
    assert "utilit" not in Page(page).text("policies").lower()
    rows = [
        {"policy": "A", "mean_cost_usd": 10.0, "mean_on_demand_only_usd": 100.0, "mean_hindsight_usd": 9.0, "on_time": 1.0},
        {"policy": "B", "mean_cost_usd": 11.0, "mean_on_demand_only_usd": 100.0, "mean_hindsight_usd": 9.0, "on_time": 0.5},
        {"policy": "UP", "mean_cost_usd": 12.0, "mean_on_demand_only_usd": 100.0, "mean_hindsight_usd": 9.0, "on_time": 0.0},
        {"policy": "OD-only", "mean_cost_usd": 100.0, "mean_on_demand_only_usd": 100.0, "mean_hindsight_usd": 9.0, "on_time": 1.0},
    ]  # fmt: skip
    figure = costs_figure(rows)
    (spec,) = figure.specifications()
    points = {row["label"]: row for row in spec["datasets"]["rows"]}
    assert list(points) == ["A", "B, on time 50 %", "UP, late", "OD-only"]
    assert points["A"]["value"] == 10.0
    assert points["OD-only"]["beyond"] == "100.00"
    # The number is drawn where its layer filters for it: at the end of the axis, with the value in the chart's data.
    assert f"datum.value >= {points['OD-only']['value']}" in json.dumps(spec).replace("\\u003e", ">")
    assert 12.0 < points["OD-only"]["value"] < 20.0
    assert "optimum in the slot model, 9.00 USD" in figure.captions[0]
    assert "On-demand only costs 100.00 USD" in figure.captions[0]


def test_utility_axis_leaves_out_only_what_lies_far_below():
    utility, baseline = np.array([1.0, 0.98, 0.97, 0.5]), np.array([False, False, True, True])
    low, high = utility_range(utility, baseline, 1.02)
    assert 0.94 < low < 0.97
    assert 1.02 < high < 1.05
    assert utility_range(np.array([1.0]), np.array([True]), None) == pytest.approx((0.95, 1.05))


def test_leader_keeps_the_lead_in_a_tie_and_a_change_names_the_job():
    weights = pd.DataFrame(
        {"A": [1 / 3, 0.5, 0.4, 0.4, 0.2], "B": [1 / 3, 0.3, 0.4, 0.5, 0.3], "C": [1 / 3, 0.2, 0.2, 0.1, 0.5]}
    )
    assert leaders_of(weights.to_numpy()) == [-1, 0, 0, 1, 2]
    assert changes_of(leaders_of(weights.to_numpy())) == [3, 4]
    learned = PolicyResults(
        leaderboard=[], movers=[], findings=[], policies=tuple(weights.columns), weights=tuple(map(tuple, weights.to_numpy())),
        round_jobs=("j1", "j2", "j3", "j4", "j5"),
    )  # fmt: skip
    sentence, _, table = weights_section(learned).blocks
    assert sentence == "After 5 rounds (one a job that ended) C leads with 50 % of the weight."
    assert table.rows == [
        {"round": 4, "job": "j4", "before": "A", "after": "B"},
        {"round": 5, "job": "j5", "before": "B", "after": "C"},
    ]


def test_drawn_policies_are_the_heaviest_and_those_that_led():
    values = np.tile(np.linspace(1, 2, 20), (3, 1))
    values[0, 0] = 9.0
    leaders = leaders_of(values)
    shown = shown_policies(values, leaders)
    assert len(shown) == 8
    assert shown[:3] == [19, 18, 17]
    assert 0 in shown
    tied = replace(NOTHING, policies=("A", "B"), round_jobs=("j",), weights=((0.5, 0.5),))
    assert (
        "After 1 round (one a job that ended) all policies weigh the same" in weights_section(tied).blocks[0]
    )


def test_file_is_replaced_whole_or_not_at_all(data, tmp_path):
    path = tmp_path / "deep" / "report.html"
    write_report(replace(empty(), run_id="old"), path)
    assert write_report(replace(empty(), run_id="new"), path) == path
    assert "new" in path.read_text(encoding="utf-8")
    assert os.listdir(path.parent) == ["report.html"]
    assert path.stat().st_mode & 0o444 == 0o444
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(InputError, match="expected a writable file"):
        write_report(empty(), blocked / "report.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError):
        write_report(empty(), tmp_path / "folder.html")
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_the_last_slot_before_a_gap_is_drawn_over_its_whole_length():
    nan = float("nan")
    panel = replace(
        demo_panel(np.random.default_rng(1), 0, slots=6), price=np.array([1.0, 2.0, nan, nan, 3.0, 4.0])
    )
    rows = market_charts(panel)[0]["datasets"]["past"]
    seen = [(pd.Timestamp(row["x"], unit="ms", tz="UTC"), row["y"]) for row in rows]
    began = panel.slots[0]
    values = [(0, 1.0), (1, 2.0), (2, 2.0), (2, None), (3, None), (4, 3.0), (5, 4.0), (6, 4.0)]
    assert seen == [(began + k * STEP, y) for k, y in values]


def test_gap_runs():
    assert gap_runs(np.array([False, True, True, False, True])) == [(1, 3), (4, 5)]
    assert gap_runs(np.zeros(3, dtype=bool)) == []


def test_drawing_library_is_imported_only_to_draw():
    code = (
        "import sys\nfrom slackwater.flows.turn.report import command\nfrom flows import show\n"
        "sys.exit('altair' in sys.modules or 'jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_report_begins_with_big_numbers_and_is_small(data, page):
    body = page[page.index("<main>") :]
    assert body.index('<dl class="tiles">') < body.index("<table")
    assert len(page.encode()) < 400_000


def test_policies_with_the_same_record_are_one_row(data):
    board = data.learned.leaderboard
    policy = next(row for row in board if not is_baseline(row))
    alike = [{**policy, "policy": f"AHAP({k},1,0.4)"} for k in range(2, 12)]
    rows = shown_rows([policy, *alike, *board[1:]])
    assert any("10 more" in row["policy"] for row in rows)


def test_before_the_first_job_ends_the_leaderboard_is_a_finding():
    assert [block.items for block in leaderboard_blocks(NOTHING)] == [["No job has ended yet."]]
