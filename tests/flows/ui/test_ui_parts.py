"""Parts of the user interface: access control, readable colours, addresses with arbitrary names, well-formed drawings."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_kit import options_of

from slackwater.flows.engine.guard import is_same_origin, may_ask
from slackwater.flows.show.page import COLOURS, properties
from slackwater.flows.turn.report.panels import MarketPanel, market_charts
from slackwater.flows.ui import app, command, pages, runs
from slackwater.flows.ui.jobs import job_figure
from slackwater.flows.ui.reading import fingerprint
from slackwater.forecasting.quantiles import Forecast
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.history import Market

CSS = app.style_sheet()


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", block))


DARK_BLOCKS = re.findall(r"@media screen and \(prefers-color-scheme: dark\) \{(.*?)\}\s*\}", CSS, re.DOTALL)
DARK_ONLY = variables(" ".join(DARK_BLOCKS))
LIGHT = variables(
    re.sub(r"@media screen and \(prefers-color-scheme: dark\) \{.*?\}\s*\}", "", CSS, flags=re.DOTALL)
)
DARK = LIGHT | DARK_ONLY


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
    """Lines, bars, cells and the focus ring have a contrast of at least 3 to 1."""
    marks = ("series1", "act", "focus", "capacity", "median", "on-demand", "muted", "ink")
    low = {(m, p): contrast(theme[m], theme[p]) for m in marks for p in ("paper", "card")}
    assert {pair: round(value, 2) for pair, value in low.items() if value < 3} == {}


def test_every_colour_of_the_charts_is_defined_in_both_themes():
    assert CSS.startswith(properties())
    assert set(COLOURS) <= set(LIGHT)
    assert set(LIGHT) == set(DARK_ONLY)
    used = set(re.findall(r"var\(--([\w-]+)\)", CSS))
    assert used <= {*LIGHT, "font"}


def test_nothing_in_the_style_or_script_asks_another_host():
    folder = Path(app.__file__).parent / "static"
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
    assert may_ask(header, bound=bound) is answer


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://127.0.0.1:8642", "127.0.0.1:8642", True),
        ("http://LOCALHOST:8642", "localhost:8642", True),
        ("http://[::1]:8642", "[::1]:8642", True),
        ("https://watch.example", "watch.example", True),  # behind a proxy that adds TLS
        ("https://watch.example", "watch.example:443", True),
        ("http://127.0.0.1:3000", "127.0.0.1:8642", False),
        ("http://localhost:8642", "127.0.0.1:8642", False),
        ("http://127.0.0.1:8642.evil.example", "127.0.0.1:8642", False),
        ("http://127.0.0.1:8642@evil.example", "127.0.0.1:8642", False),
        ("http://evil.example/127.0.0.1:8642", "127.0.0.1:8642", False),
        ("file://127.0.0.1:8642", "127.0.0.1:8642", False),
        ("chrome-extension://abc", "127.0.0.1:8642", False),
        ("null", "127.0.0.1:8642", False),
        ("", "127.0.0.1:8642", False),
    ],
)
def test_only_pages_of_the_same_address_ask(origin, host, same):
    assert is_same_origin(origin, host) is same


def test_a_host_name_that_was_allowed_is_answered():
    assert may_ask("Watch.example:80", bound="0.0.0.0", names=["watch.EXAMPLE"])


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


def one_job(name: str = "j") -> dict:
    slots = [
        {"slot": f"2026-03-10T0{k}:00:00+00:00", "share_done": k / 10, "share_expected": k / 8, "price_usd": 1.0,
         "available": None if k == 1 else 4.0, "decided_on_demand": 1, "decided_spot": 2,
         "held_on_demand": 1 if k < 2 else None, "held_spot": 2 if k < 2 else None}
        for k in range(3)
    ]  # fmt: skip
    return {"slots": slots, "job": {"job": name, "deadline": "2026-03-10T08:00:00+00:00", "n_max": 4}}


def test_a_job_is_drawn_with_what_was_held_and_what_is_planned():
    figure = job_figure(one_job("<script>&"), step=pd.Timedelta(hours=1))
    assert figure.label == "Progress and instances of job <script>&"
    above, below = (spec["datasets"] for spec in figure.specs)
    done = [row["y"] for row in above["rows"] if row["series"] == "work done"]
    assert done == [0, 10, 20]
    hour, start = 3_600_000, below["rows"][0]["x"]
    assert above["rows"][-1]["x"] - start == 8 * hour  # the uniform progress line ends at the deadline
    boxes = [
        (row["kind"], (row["x"] - start) // hour, row["y"], row["y2"], row["planned"])
        for row in below["rows"]
    ]
    assert boxes == [
        (kind, slot, low, high, slot == 2)
        for slot in range(3)
        for kind, low, high in (("on-demand", 0, 1), ("spot", 1, 3))
    ]
    assert [row["y"] for row in below["line"]] == [4, None, 4, 4]
    assert "20 % of the work was done" in figure.captions[0]
    assert job_figure({"slots": []}, step=pd.Timedelta(hours=1)) is None


def test_a_market_is_drawn_with_its_past_its_gaps_its_fan_and_what_came():
    """Observations after the issue of a forecast are drawn; slots that are still to come are no gaps."""
    step, nan = pd.Timedelta(hours=1), float("nan")
    slots = pd.DatetimeIndex([f"2026-03-10T0{k}:00Z" for k in range(4)])
    market = Market(provider="a", region="b", zone="c", instance_type="d")
    quantiles = np.arange(19.0)[None, :]
    forecast = Forecast(
        market=market, issued_at=slots[2], step=step, predictor="m", newest_row=slots[2], capacity=20,
        price=quantiles, price_mean=np.array([9.0]), count=quantiles, count_mean=np.array([9.0]),
    )  # fmt: skip
    panel = MarketPanel(
        title=market.key, source="s", slots=slots, price=np.array([1.0, nan, 1.5, 1.25]),
        available=np.array([2.0, 2.0, 2.0, nan]), on_demand_usd=4.0, capacity=8, forecast=forecast,
    )  # fmt: skip
    price, count = (spec["datasets"] for spec in market_charts(panel))
    assert [row["y"] for row in price["past"]] == [1.0, 1.0, None, 1.5, 1.25, 1.25]
    assert [(row["x2"] - row["x"]) / 3_600_000 for row in price["gaps"]] == [1]
    (ahead,) = price["ahead"]
    assert [ahead[f"{end}{band}"] for band in (90, 80, 50) for end in ("low", "high")] == [
        0,
        18,
        1,
        17,
        4,
        14,
    ]
    assert (ahead["median"], price["limit"], count["limit"]) == (9, [{"y": 4}], [{"y": 8}])
    assert [row["y"] for row in count["past"]] == [2, 2, 2, 2]  # up to the end of the last known slot


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
    with command.bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port}.*another --port"):
            command.bound_socket("127.0.0.1", port)


def test_the_documentation_names_every_page_address_and_option():
    from slackwater.flows.ui.pages import VIEWS

    text = (Path(app.__file__).parents[2] / "docs" / "ui.md").read_text()
    for view in VIEWS:
        assert f"/api/{view.name}" in text
        assert view.menu in text
    options = options_of("ui")
    assert {"--host", "--port", "--allow-host", "--at", "--db", "--settings"} <= options
    assert [option for option in options if option != "--help" and option not in text] == []
