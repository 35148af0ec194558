"""The parts of the page: who may ask, colours that can be read, addresses that carry any name, drawings that are well formed."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_kit import options_of

import flows.ui
from flows.show.drawing import PALETTE
from flows.ui import charts, guard, pages, runs, server
from flows.ui.job_chart import draw_job
from flows.ui.map_chart import CLASSES, draw_map
from flows.ui.reading import fingerprint
from warehouse.errors import SettingsError

CSS = (Path(flows.ui.__file__).parent / "static" / "ui.css").read_text()


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", block))


LIGHT = variables(CSS[: CSS.index("@media (prefers-color-scheme: dark)")])
DARK = LIGHT | variables(re.search(r"@media \(prefers-color-scheme: dark\) \{(.*?)\n\}", CSS, re.DOTALL)[1])


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_can_be_read(theme):
    papers = ("paper", "card")
    pairs = [*product(("ink", "muted", "link", "on-demand"), papers)]
    pairs += [
        ("ink", "shade"),
        ("muted", "shade"),
        ("bar-ink", "bar"),
        ("bar-muted", "bar"),
        ("paper", "link"),
    ]
    for kind in ("good", "look", "act", "info"):
        pairs += [
            (kind, f"{kind}-paper"),
            ("ink", f"{kind}-paper"),
            ("muted", f"{kind}-paper"),
            (kind, "paper"),
            (kind, "card"),
        ]
        pairs += [("link", f"{kind}-paper"), ("paper", kind)]
    low = {
        pair: contrast(theme[pair[0]], theme[pair[1]])
        for pair in pairs
        if pair[0] in theme and pair[1] in theme
    }
    assert len(low) == len(pairs)
    assert {pair: round(value, 2) for pair, value in low.items() if value < 4.5} == {}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_marks_stand_out_from_their_paper(theme):
    """Lines, bars, cells and the focus ring: 3 to 1 at least."""
    marks = ("series1", "act", "focus", "capacity", "median", "on-demand", "muted", "ink")
    low = {(m, p): contrast(theme[m], theme[p]) for m in marks for p in ("paper", "card")}
    assert {pair: round(value, 2) for pair, value in low.items() if value < 3} == {}


def test_every_colour_of_the_drawings_is_defined_in_both_themes():
    dark_only = variables(re.search(r"@media \(prefers-color-scheme: dark\) \{(.*?)\n\}", CSS, re.DOTALL)[1])
    assert set(PALETTE) <= set(LIGHT)
    assert set(LIGHT) == set(dark_only)
    used = set(re.findall(r"var\(--([\w-]+)\)", CSS))
    assert used <= set(LIGHT)


def test_nothing_in_the_style_or_script_asks_another_host():
    folder = Path(flows.ui.__file__).parent / "static"
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[\w-]+\.\w|@import|url\(", text), file.name


@pytest.mark.parametrize(
    ("header", "bound", "answer"),
    [
        ("127.0.0.1:8642", "127.0.0.1", True),
        ("LOCALHOST:1", "127.0.0.1", True),
        ("[::1]:8642", "::1", True),
        ("evil.example:8642", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("localhost.evil.example", "0.0.0.0", False),
        ("", "127.0.0.1", False),
        ("192.0.2.1", "127.0.0.1", False),
        ("192.0.2.1:8642", "0.0.0.0", True),
        ("watch.example", "0.0.0.0", False),
        ("[2001:db8::1]:80", "::", True),
    ],
)
def test_only_known_host_names_are_answered(header, bound, answer):
    assert guard.may_ask(header, bound=bound) is answer


def test_a_host_name_that_was_allowed_is_answered():
    assert guard.may_ask("Watch.example:80", bound="0.0.0.0", names=["watch.EXAMPLE"])


@pytest.mark.parametrize(
    "name", ["a/b", "..", "x?y=1#z", "<b>&\"'", "übung 7", "a%2Fb", "'; DROP TABLE jobs; --"]
)
def test_an_address_carries_any_name(name):
    from urllib.parse import parse_qs, urlsplit

    link = pages.address("/job", name=name)
    assert parse_qs(urlsplit(link).query) == {"name": [name]}
    assert urlsplit(link).path == "/job"


@pytest.mark.parametrize(
    ("environment", "answer"),
    [
        ({}, None),
        ({"PREFECT_API_URL": "http://127.0.0.1:4200/api/"}, "http://127.0.0.1:4200"),
        (
            {"PREFECT_UI_URL": "https://prefect.example/", "PREFECT_API_URL": "http://x/api"},
            "https://prefect.example",
        ),
        ({"PREFECT_UI_URL": "javascript:alert(1)"}, None),
        ({"PREFECT_UI_URL": "not an address", "PREFECT_API_URL": "http://x:1/api"}, "http://x:1"),
        ({"PREFECT_UI_URL": "http://[broken"}, None),
    ],
)
def test_the_prefect_ui_is_linked_only_at_a_web_address(environment, answer):
    assert runs.prefect_ui(environment) == answer


def test_steps_lift_the_pen_over_gaps():
    scale = charts.Scale(low=0, high=10, start=100, end=0)
    path = charts.steps([0, 10, 20, 30], np.array([1.0, np.nan, 2.0]), scale)
    assert path == "M0 90H10M20 80H30"


def test_a_band_goes_there_above_and_back_below():
    scale = charts.Scale(low=0, high=10, start=100, end=0)
    assert charts.band([0, 10], np.array([1.0]), np.array([2.0]), scale) == "M0 80L10 80L10 90L0 90Z"


def test_ticks_are_round_and_few():
    for high in (0.003, 0.4, 1, 3.06, 8, 16, 49, 1000):
        ticks = charts.nice_ticks(high)
        assert 2 <= len(ticks) <= 6
        assert ticks[-1] <= high * (1 + 1e-9)
    assert charts.nice_ticks(1, whole=True) == [0.0, 1.0]
    assert charts.nice_ticks(0) == [0.0]


def one_job(name: str = "j") -> dict:
    slots = [
        {"slot": f"2026-03-10T0{k}:00:00+00:00", "share_done": k / 10, "share_expected": k / 8, "price_usd": 1.0,
         "available": None if k == 1 else 4.0, "decided_on_demand": 1, "decided_spot": 2,
         "held_on_demand": 1 if k < 2 else None, "held_spot": 2 if k < 2 else None}
        for k in range(3)
    ]  # fmt: skip
    return {"slots": slots, "job": {"job": name, "deadline": "2026-03-10T08:00:00+00:00", "n_max": 4}}


def test_a_job_is_drawn_for_a_window_and_a_phone():
    text = draw_job(one_job("<script>&"), step=pd.Timedelta(hours=1))
    drawings = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert len(drawings) == 2
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) == 4
    for drawing in drawings:
        assert drawing.find("title").text == "Progress and instances of job <script>&"
        classes = [rect.get("class") for rect in drawing.iter("rect")]
        assert classes.count("bar-od") == classes.count("bar-spot") == 2
        assert classes.count("bar-od planned") == classes.count("bar-spot planned") == 1
    assert draw_job({"slots": []}, step=pd.Timedelta(hours=1)) == ""


def test_the_map_has_a_cell_for_every_state_and_none_by_colour_alone():
    states = [*CLASSES, "not due"]
    slots = list(pd.date_range("2026-03-10", periods=len(states), freq="h", tz="UTC"))
    text = draw_map([{"name": "a<b", "states": states}], slots, stage="forecast")
    wide, narrow = (ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    for drawing in (wide, narrow):
        assert [rect.get("class") for rect in drawing.iter("rect")] == list(CLASSES.values())
        marks = {path.get("class") for path in drawing.iter("path")}
        assert marks == {"cell-cross", "cell-dash", "cell-slash"}  # missing is hollow, done is plain
    assert "fill: none" in re.search(r"\.cell-missing \{([^}]*)\}", CSS)[1]


def test_the_fingerprint_follows_the_file_and_what_is_published_beside_it(tmp_path):
    db = tmp_path / "w[1].duckdb"
    assert fingerprint(db) == ()
    db.write_bytes(b"one")
    first = fingerprint(db)
    assert len(first) == 1
    (tmp_path / "w[1].duckdb.read").mkdir()
    second = fingerprint(db)
    (tmp_path / "w[1].duckdb.read" / "000000001-1-1.duckdb").write_bytes(b"copy")
    third = fingerprint(db)
    (tmp_path / "w1.duckdb").write_bytes(b"another warehouse")
    assert len({first, second, third}) == 3
    assert fingerprint(db) == third


def test_a_taken_port_is_said(tmp_path):
    with server.bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port}.*another --port"):
            server.bound_socket("127.0.0.1", port)


def test_stretches_of_the_same_slots_are_told_once():
    def row(market, reason, state="failed"):
        return {"market": market, "source": "s", "stage": "forecast", "state": state, "since": 1, "until": 2,
                "slots": 2, "reason": reason}  # fmt: skip

    found = pages.grouped_stretches(
        [row("a", "x"), row("b", "x"), row("c", "y"), row("d", "", state="missing")]
    )
    assert [(one["markets"], one["reasons"]) for one in found] == [
        ([("a", "s"), ("b", "s"), ("c", "s")], ["x", "y"]),
        ([("d", "s")], []),
    ]


def test_the_documentation_names_every_page_address_and_option():
    from flows.ui.views import VIEWS

    text = (Path(flows.ui.__file__).parents[2] / "docs" / "ui.md").read_text()
    for view in VIEWS:
        assert f"/api/{view.name}" in text
        assert view.menu in text
    options = options_of("ui")
    assert {"--host", "--port", "--allow-host", "--at", "--db", "--settings"} <= options
    assert [option for option in options if option != "--help" and option not in text] == []
