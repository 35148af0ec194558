"""Blocks on terminals and pages: no cropping, all names escaped, a single script per page, valid chart specifications."""

import json
import random
import re

import pandas as pd
import pytest
from command_kit import printed
from page_kit import accept, unpacked
from rich.cells import cell_len

from slackwater.flows.command import Answer
from slackwater.flows.show import charts
from slackwater.flows.show.blocks import (
    Banner,
    Column,
    Figure,
    Figures,
    Fold,
    Notes,
    Page,
    Section,
    Table,
    Verbatim,
)
from slackwater.flows.show.formats import usd
from slackwater.flows.show.page import COLOURS, asset, breakable, compress_json, render_page
from slackwater.flows.show.terminal import Style, lines_of

DECISION = {
    "job": "llama-8b-lora", "market": "aws/us-east-1/us-east-1a/p4d.24xlarge@probe:test",
    "slot": "2026-05-04T12:00:00+00:00", "spot": 3, "cost": 1234.5,
    "why": "holds 3 on spot because " + " ".join(f"reason{k}" for k in range(40)),
}  # fmt: skip
COLUMNS = {"job": "job", "market": "market", "slot": Column(heading="slot", unit="UTC"), "spot": "spot",
           "cost": Column(heading="cost", unit="$", format=usd), "why": "why"}  # fmt: skip


def squeezed(text):
    return re.sub(r"[\s─]", "", text)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_cropped_and_no_line_is_too_wide(width, seed):
    rng = random.Random(seed)
    words = [
        "a",
        "north/zone-1",
        "p4d.24xlarge@probe",
        "x" * 45,
        "12.5",
        "日本語の名前",
        "some longer sentence of words",
    ]
    columns = {f"c{k}": f"heading {k}" for k in range(rng.randint(1, 7))}
    rows = [{key: " ".join(rng.choices(words, k=rng.randint(1, 6))) for key in columns} for _ in range(4)]
    text = printed([Table("A title of a table", rows, columns)], width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    letters = sorted(squeezed(text))
    for row in rows:
        for cell in row.values():
            assert set(squeezed(cell)) <= set(letters)
    counted = sum(len(squeezed(cell)) for row in rows for cell in row.values())
    assert len(letters) >= counted


def test_a_decision_is_whole_at_80_columns():
    text = printed([Table("Decision", [DECISION], COLUMNS)], width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "slot: 2026-05-04 12:00 UTC" in text
    assert "cost: $1,234.50" in text
    assert DECISION["why"].split() == text.split("why:")[1].split()


def test_without_a_width_every_row_is_one_line():
    lines = printed([Table("Decision", [DECISION, DECISION], COLUMNS)]).splitlines()
    assert len(lines) == 5  # title, headings, rule, two rows
    assert DECISION["why"] in lines[3]
    assert DECISION["market"] in lines[3]


def test_names_wrap_at_their_separators():
    rows = [{"market": "aws/us-east-1/us-east-1a/p4d.24xlarge", "n": 1, "text": "word " * 6}]
    text = printed([Table("", rows, {"market": "market", "n": "n", "text": "text"})], width=36)
    assert "p4d.24xlarge" in text
    assert "us-east-1a/" in text


def test_only_so_many_rows_on_a_terminal_all_in_a_pipe():
    table = Table("T", [{"a": k} for k in range(50)], {"a": "a"}, most=10)
    assert "49" in printed([table], width=80)
    lines = list(lines_of([table], Style(width=80, abridged=True)))
    assert "... and 40 more, see --json or --html" in lines
    assert "49" not in lines


def test_a_marked_row_is_never_left_out():
    table = Table("T", [{"a": k} for k in range(50)], {"a": "a"}, most=10, marked=lambda row: row["a"] > 47)
    lines = [line.strip() for line in lines_of([table], Style(width=80, abridged=True))]
    assert lines[3:-1] == [*map(str, range(10)), "48", "49", "... and 38 more, see --json or --html"]


def test_a_row_on_a_card_stands_where_its_columns_say_and_a_short_one_on_one_line():
    columns = {
        "job": "job", "why": Column(heading="why", card=21), "cost": Column(heading="cost", unit="$", format=usd, card=12),
        "spot": Column(heading="spot", card=11),
    }  # fmt: skip
    rows = [{"job": "a", "why": "since " + "word " * 14, "cost": -3.5, "spot": 2}]
    assert printed([Table("T", rows, columns, cards=True)], width=60).splitlines() == [
        "T",
        "a",
        "  spot: 2   cost: −$3.50",
        "  why: since word word word word word word word word word",
        "    word word word word word",
    ]
    short = [{**rows[0], "why": "since"}]
    assert "spot:" not in printed([Table("T", short, columns, cards=True)], width=60)


def test_indented_and_verbatim_lines_stay_as_they_are():
    text = "{\n  " + '"a": 1' + "\n}"
    assert printed([text], width=40) == printed([Verbatim(text)], width=40) == text
    assert printed([Verbatim("word " * 40)], width=40) == "word " * 40
    assert "<pre>a &lt; b</pre>" in render_page(Page(title="T", blocks=[Verbatim("a < b")]))


@pytest.mark.parametrize("width", [80, 12, None])
def test_a_line_end_in_a_cell_is_no_line_of_the_answer(width):
    rows = [{"job": "a", "note": "seen\nRun 0 instances"}]
    lines = printed([Table("Reports", rows, {"job": "job", "note": "note"})], width=width).splitlines()
    assert not any(line.strip() == "Run 0 instances" for line in lines)


def test_control_characters_are_shown_and_an_empty_table_says_so():
    assert "\x1b" not in printed([Table("", [{"a": "\x1b[31mred\u202e"}], {"a": "a"})], width=80)
    assert printed([Table("Jobs", [], {"a": "a"})]) == "Jobs: none"


def test_a_section_that_is_only_drawn_has_no_heading_on_a_terminal():
    drawn = Section(
        "Drawn", [Figure(specs=[], label="a chart"), Section("Inner", [Fold("more", ["hidden"])])]
    )
    assert printed([drawn, Section("Said", ["a sentence"])]) == "\nSaid\na sentence"


def test_a_terminal_prints_the_numbers_of_a_chart_and_nothing_else_that_is_folded():
    table = Table("", [{"a": 7}], {"a": "seven"})
    shown = printed([Section("S", [Fold("numbers", [table], printed=True), Fold("more", ["hidden"])])])
    assert "seven" in shown
    assert "hidden" not in shown


def test_a_row_that_begins_with_a_number_keeps_its_heading_as_a_paragraph():
    rows = [{"n": 10, "text": "word " * 60, "more": "word " * 60}]
    text = printed([Table("", rows, {"n": "deadline", "text": "text", "more": "more"})], width=40)
    assert text.startswith("deadline: 10")


def test_an_answer_says_what_it_is_about_before_and_its_notes_after():
    answer = Answer(
        title="T", value={}, about="about", banner=Banner("B.", "warned"), blocks=["found"], notes=["noted"]
    )
    lines = [line for line in answer.lines(Style()) if line]
    assert lines == ["about", "B. warned", "found", "Notes", "* noted"]
    page = render_page(answer.as_page())
    assert all(word in page for word in ("about", "warned", "found", "noted"))


def test_numbers_in_a_page_do_not_break_at_their_commas():
    assert "<wbr>" not in breakable("14,159.28")
    assert "<wbr>" in breakable("a,b")


EVIL = '<b>x</b></script> & "y"'


def evil_page():
    rows = [{"x": k, "y": k, "series": EVIL} for k in range(3)]
    spec = charts.lines(rows, [EVIL], x=charts.Axis(title=EVIL), y=charts.Axis())
    figure = Figure(specs=[spec], label=EVIL, title=EVIL, captions=[EVIL], warnings=[EVIL], strong=[EVIL])
    table = Table(EVIL, [{"a": EVIL}], {"a": Column(heading=EVIL, words=EVIL)}, marked=lambda row: True)
    blocks = [
        Section(EVIL, [EVIL, table, Notes([EVIL]), Figures([figure]), Fold(EVIL, [figure])]),
        Section("Two", []),
    ]
    return Page(title=EVIL, about=EVIL, blocks=blocks, banner=Banner(EVIL, EVIL))


def test_a_page_escapes_every_name_and_loads_nothing():
    page = render_page(evil_page())
    assert "<b>x" not in page
    assert page.count("</script>") == page.count("<script")
    assert page.count('id="charts"') == 1
    own = unpacked(page)
    assert not re.search(r"\bsrc=|https?:|<link|@import", own)
    assert render_page(evil_page()) == page


def test_a_page_without_charts_carries_no_script():
    assert "<script" not in render_page(Page(title="T", blocks=["words"]))


def test_the_bundle_is_small_enough_and_ends_no_script():
    assert len(compress_json(asset("vega.js"))) < 330_000
    assert "</script" not in asset("vega.js")


AXIS = charts.Axis(title="x", low=0.0, high=3.0)
AT = pd.Timestamp("2026-05-04T12:00Z")
POINTS = [{"x": k, "y": 2.0 * k, "low": k, "high": 3 * k, "series": "a"} for k in range(4)]
TIMES = [
    {
        "x": AT + pd.Timedelta(hours=k),
        "x2": AT + pd.Timedelta(hours=k + 1),
        "name": "m",
        "state": "done",
        "why": "",
    }
    for k in range(3)
]
SPECS = {
    "lines": charts.lines(POINTS, ["a"], x=AXIS, y=AXIS, rule=1.0, reference="a", marks=[{"x": 1, "text": "1"}]),
    "scatter": charts.scatter([{"x": 1, "y": 2, "series": "a", "text": "t"}], ["a"], x=AXIS, y=AXIS, rule=1.0, diagonal=(1, 2)),
    "stacks": charts.stacks([{"x": AT, "x2": AT, "a": 1, "b": 0}], {"a": "band50", "b": "on-demand"}, x=AXIS, y=AXIS),
    "spans": charts.lines(POINTS, ["a"], x=AXIS, y=charts.Axis(symlog=0.1, at=(0, 1)), spans=True, rule={"known": 1.0},
                          crosses=[{"x": 1, "y": 1, "series": "a"}]),
    "dots": charts.dots([{"label": "a", "value": 1.0, "kind": "", "low": 0.5, "high": 1.5}], ["a"], x=AXIS, bound=2.0, spans=True),
    "guided": charts.lines(
        [{**row, "point": False} for row in POINTS], ["a"], x=AXIS, y=AXIS, bold="a", around=(0.5, 1.0),
        guide=[{"x": 0, "y": 1}, {"x": 3, "y": 1}],
    ),
    "cells": charts.cells(TIMES, ["m"], ends=(AT, AT), states={"done": ("capacity", "D")}),
    "holdings": charts.holdings(
        [{"x": AT, "x2": AT + pd.Timedelta(hours=1), "y": 0, "y2": 2, "kind": "spot", "planned": False, "held": 2}],
        {"spot": "series1"}, ends=(AT, AT), y=AXIS, line=[{"x": AT, "y": 3}], line_name="available",
    ),
    "fan": charts.fan(charts.Fan(title="t", past=[{"x": AT, "y": 1.0}], gaps=[], ahead=[], limit=2.0, limit_colour="capacity")),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_of_chart_is_what_the_language_takes(kind):
    spec = SPECS[kind]
    accept(spec)
    text = json.dumps(spec, allow_nan=False)
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", text)
    assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(COLOURS)


def test_a_table_may_be_shaded_and_sorted():
    columns = {
        "m": "model",
        "skill": Column(heading="skill", tone=lambda value: "up1" if value > 0 else "down1"),
    }
    rows = [{"m": "a", "skill": 0.5}, {"m": "b", "skill": -0.5}]
    page = render_page(Page(title="T", blocks=[Section("S", [Table("", rows, columns, sortable=True)])]))
    assert '<td class="num up1">0.5</td>' in page
    assert '<td class="num down1">-0.5</td>' in page
    assert page.count(asset("sort.js")) == 1
    assert 'id="charts"' not in page


def test_line_charts_that_are_drawn_alike_share_their_form_and_not_their_data():
    rows = [dict(row, series=name) for name in "ab" for row in POINTS]
    one, two = (charts.lines(own, ["a", "b"], x=AXIS, y=AXIS) for own in (rows, rows[:5]))
    assert (len(one["datasets"]["rows"]), len(two["datasets"]["rows"])) == (8, 5)
    assert {**one, "datasets": {}} == {**two, "datasets": {}}

    def said(**more):
        return json.dumps(charts.lines(rows, ["a", "b"], **{"x": AXIS, "y": AXIS} | more))

    plain = said()
    assert '"domain": ["a", "b"]' in plain
    assert "datum.point !== false" not in plain
    assert "datum.series" not in plain
    assert "datum.series" in said(bold="b")
    assert said(bold="c") == plain, "who is not drawn is not bold"
    changes = {
        "order": ["b", "a"], "reference": "a", "points": False, "spans": True, "time": True,
        "rule": 1.0, "around": (0.0, 1.0), "height": 190, "marks": [{"x": 1, "text": "!"}],
        "guide": [{"x": 1, "y": 1}], "crosses": [{"x": 1, "y": 1, "series": "a"}], "y": charts.Axis(title="y"),
    }  # fmt: skip
    found = [plain, *(said(**{name: value}) for name, value in changes.items())]
    assert len(set(found)) == len(found)
    rows[0]["point"] = False
    assert "datum.point !== false" in said()


def test_the_bold_line_is_drawn_as_its_legend_says():
    """The bold default line is dashed as in the legend, and no thin line below it fills the gaps."""
    rows = [dict(row, series=name) for name in "ab" for row in POINTS]
    spec = charts.lines(rows, ["a", "b"], x=AXIS, y=AXIS, bold="b")
    thin, thick = (layer for layer in spec["layer"] if layer["mark"]["type"] == "line")
    assert thick["encoding"]["strokeDash"] == thin["encoding"]["strokeDash"]
    dashes = dict(
        zip(*(thick["encoding"]["strokeDash"]["scale"][key] for key in ("domain", "range")), strict=True)
    )
    assert dashes["b"] != [1, 0]
    assert [layer["transform"][0]["filter"] for layer in (thin, thick)] == [
        "(datum.series !== 'b')", "(datum.series === 'b')",
    ]  # fmt: skip


def test_a_chart_without_a_value_says_why_instead_of_drawing_axes():
    empty = charts.lines([{"x": 1, "y": None, "series": "a"}], ["a"], x=AXIS, y=AXIS, rule=0.0)
    full = charts.lines([{"x": 1, "y": 2.0, "series": "a"}], ["a"], x=AXIS, y=AXIS)
    page = render_page(Page(title="T", blocks=[Figure(specs=[empty], label="l", why="Nobody measured it.")]))
    assert "Nobody measured it." in page
    assert 'class="chart"' not in page
    assert list(Figure(specs=[empty, full], label="l").specifications()) == [full]
    for kind, spec in SPECS.items():
        assert Figure(specs=[spec], label="l").specifications(), kind


def test_what_is_beyond_an_axis_is_not_drawn_along_its_edge():
    rows = [{"x": x, "y": y, "series": "a"} for x, y in ((1, 0.1), (2, -9.0))]
    spec = charts.lines(rows, ["a"], x=AXIS, y=charts.Axis(low=-0.5))
    line, point = (
        next(one for one in spec["layer"] if one["mark"]["type"] == kind) for kind in ("line", "point")
    )
    assert line["mark"]["clip"]
    assert line["encoding"]["y"]["scale"]["clamp"] is False
    assert "datum.y >= -0.5" in [step["filter"] for step in point["transform"]]


def test_a_card_is_one_glance_and_folds_the_rest():
    columns = {
        "job": "job",
        "spot": Column(heading="spot", glance=True),
        "finish": "finish",
        "why": Column(heading="why", beneath=True),
        "warning": Column(heading="warning", beneath=True, glance=True),
    }
    rows = [{"job": "a", "spot": 3, "finish": "soon", "why": "because", "warning": "late"},
            {"job": "b", "spot": 0, "finish": "later", "why": "so", "warning": None}]  # fmt: skip
    table = Table("T", rows, columns, cards=True)
    page = re.sub(r">\s+<", "><", render_page(Page(title="T", blocks=[table])))
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)', page) == ["job", "spot", "finish"]
    assert '<td data-label="spot" class="num">3</td><td data-label="finish" class="wide">soon</td>' in page
    more = re.findall(r'<td class="more">(.*?)</td>', page)
    assert ["soon" in more[0], "because" in more[0], "late" in more[0]] == [True, True, False]
    beneath = re.findall(r'<tr class="beneath[^"]*">(.*?)</tr>', page)
    assert re.findall(r'<tr class="(beneath[^"]*)">', page) == ["beneath", "beneath wide"]
    assert '<span class="pair wide"><span class="of">why</span> because</span>' in beneath[0]
    assert '<span class="pair"><span class="of">warning</span> late</span>' in beneath[0]
    assert "warning" not in beneath[1]
    # On a terminal, a card shows all its fields directly.
    assert "why: because" in printed([table], width=30)
