"""The accuracy page: complete, self-contained, escaped, reproducible, and clear about weak results (M6.5 to M6.7)."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from accuracy_demo import (
    MODELS,
    demo_accuracy,
    demo_cost,
    demo_drift,
    demo_market,
    demo_predictability,
    judged,
)
from page_kit import unpacked
from tidy_folder import write_tidy

from slackwater.flows.accuracy.page import About, accuracy_page
from slackwater.flows.accuracy.page.by_market import (
    MOST_DRAWN,
    OPEN,
    by_loss,
    daily_figures,
    drawn_limit,
    fan_figures,
    fans_section,
    market_fans,
)
from slackwater.flows.accuracy.page.sections import (
    Models,
    Sentence,
    accuracy_ranks,
    answer,
    before_name,
    beyond_chance,
    claims,
    class_rows,
    market_skills,
    money_rows,
    money_section,
    over_steps,
    shown_steps,
    skill_text,
    weighted,
)
from slackwater.flows.accuracy.units import BacktestPlan, panels_of, run_course
from slackwater.flows.show import Figures, Fold, Section, Table
from slackwater.flows.show import Page as PageOf
from slackwater.flows.show.page import render_page
from slackwater.flows.show.skills import compared
from slackwater.forecasting.accuracy.tables import Accuracy
from slackwater.forecasting.diagnosis.drift import drift_sentences, drift_table
from slackwater.forecasting.diagnosis.predictability import predictability
from slackwater.forecasting.origins import TIMETABLE, Rolling, second_half
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.series import series_of
from slackwater.studies.experiments.material import history_of, read_tapes
from slackwater.warehouse.errors import InputError

VOID = {"meta", "br", "wbr", "img", "link", "input", "hr"}
SECTIONS = (
    "answer", "pooled", "money", "markets", "calibration", "fans", "daily", "predictability", "fallbacks", "method",
)  # fmt: skip
EVIL = 'aws/<b>x</b>/"y"/z\'&$1$@<script>alert(1)</script>'
ABOUT = About(data="a folder", uncalibrated="combined_raw", alternation=("Probes alternate <here>.",))


def render_accuracy_page(accuracy: Accuracy, **more) -> str:
    return render_page(accuracy_page(accuracy, **more))


def all_blocks(blocks):
    """Yield the blocks and, recursively, the blocks nested in them."""
    for block in blocks:
        yield block
        if isinstance(block, Fold | Section):
            yield from all_blocks(block.blocks)
        elif isinstance(block, Figures):
            yield from block.figures


class Page(HTMLParser):
    """HTML parser that checks the nesting of tags and collects the tags and the visible text of each section."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.outer: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.sections: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.sections.append(dict(attrs)["id"])
            if len(self.sections) == 1:
                self.outer.append(self.sections[0])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "section":
            self.sections.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.setdefault(self.sections[0] if self.sections else "", []).append(data)

    def text(self, section: str) -> str:
        return " ".join("".join(self.texts.get(section, [])).split())


@pytest.fixture(scope="module")
def accuracy() -> Accuracy:
    return demo_accuracy(markets=3, steps=6)


@pytest.fixture(scope="module")
def small() -> Accuracy:
    """Return a report on one market per variable with a flat price, for tests that do not depend on the markets."""
    return demo_accuracy(markets=1, steps=2, days=3)


@pytest.fixture(scope="module")
def bare(small: Accuracy) -> str:
    """Return the page with the scores alone."""
    return render_accuracy_page(small, about=About(data="x"))


def everything(accuracy: Accuracy) -> PageOf:
    """Return the page with the scores and all optional sections: predictability, drift and cost of errors."""
    return accuracy_page(
        accuracy,
        about=ABOUT,
        predictability=demo_predictability(markets=3, steps=6),
        drift=demo_drift(3),
        cost=demo_cost(),
    )


@pytest.fixture(scope="module")
def made(accuracy: Accuracy) -> PageOf:
    return everything(accuracy)


@pytest.fixture(scope="module")
def whole(made: PageOf) -> str:
    return render_page(made)


@pytest.fixture(scope="module")
def page(whole: str) -> Page:
    return Page(whole)


def of(accuracy: Accuracy, variable: str) -> tuple[pd.DataFrame, pd.DataFrame, Models]:
    scores = accuracy.scores[accuracy.scores["variable"] == variable]
    pooled = accuracy.pooled[accuracy.pooled["variable"] == variable]
    return scores, pooled, Models.of(scores["model"], accuracy.default)


def said(
    accuracy: Accuracy, variable: str = "count", *, default: str = "combined", **tables: pd.DataFrame
) -> list[Sentence]:
    """Return the sentences of the answer section, with some tables of the report replaced."""
    return answer(variable, replace(accuracy, **tables), Models.of(MODELS, default))


def renamed(accuracy: Accuracy, old: str, new: str) -> Accuracy:
    tables = {
        name: getattr(accuracy, name).assign(market=lambda t: t["market"].replace(old, new))
        for name in ("scores", "periods", "daily", "fans")
    }
    return replace(accuracy, **tables)


def test_every_section_is_there_and_speaks(page: Page) -> None:
    assert tuple(page.outer) == SECTIONS
    assert all(len(page.text(section)) > 100 for section in SECTIONS)


def test_nothing_is_loaded_from_anywhere(page: Page, whole: str) -> None:
    for _, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attrs.get(name) or "#").startswith("#")
    assert not re.search(
        r"https?:|@import|url\((?!#)|fetch\(|XMLHttpRequest|<link|<img|<iframe",
        unpacked(whole),
    )


def test_ids_are_unique_and_references_resolve(page: Page) -> None:
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    wanted = {attrs["href"][1:] for _, attrs in page.tags if (attrs.get("href") or "").startswith("#")}
    assert wanted <= set(ids)


def test_every_market_stands_in_every_table_of_markets(page: Page, accuracy: Accuracy) -> None:
    for market in accuracy.scores["market"].unique():
        key = market.partition("@")[0]
        for section in ("markets", "fans", "daily", "predictability"):
            assert key in page.text(section), (section, key)


def test_every_market_has_the_compared_models_side_by_side(made: PageOf, accuracy: Accuracy) -> None:
    found = [b for b in all_blocks(made.blocks) if isinstance(b, Table) and ", errors in " in b.title]
    assert len(found) == accuracy.scores.groupby(["variable", "market"]).ngroups
    for table in found:
        assert {row["model"] for row in table.rows} >= {
            "last_value", "seasonal_naive", "arima", "lightgbm", "combined (default)",
        }  # fmt: skip


def test_every_chart_has_a_name_and_stands_beside_words_or_a_table(made: PageOf) -> None:
    for section in (block for block in made.blocks if isinstance(block, Section)):
        own = list(all_blocks(section.blocks))
        figures = [block for block in own if getattr(block, "kind", "") == "figure"]
        assert all(figure.label for figure in figures)
        assert (
            not figures
            or all(figure.captions for figure in figures)
            or any(isinstance(b, Table) for b in own)
        )


def test_same_tables_same_bytes_whatever_the_order_of_rows(whole: str) -> None:
    again = demo_accuracy(markets=3, steps=6)
    turned = replace(
        again,
        scores=again.scores.iloc[::-1],
        pooled=again.pooled.iloc[::-1],
        daily=again.daily.iloc[::-1],
        fans=again.fans.iloc[::-1],
    )
    assert render_page(everything(turned)) == whole


def test_hostile_names_are_escaped(small: Accuracy) -> None:
    evil = renamed(small, demo_market("count", 0), EVIL)
    text = render_accuracy_page(replace(evil, notes=(EVIL,)), about=replace(ABOUT, data=EVIL))
    page = Page(text)
    assert "<b>x" not in text
    assert "<script>alert" not in text
    assert EVIL in page.text("method")
    assert "<b>x</b>" in page.text("markets")
    assert "<b>x</b>" in page.text("fans")


def test_undefined_is_a_dash_and_the_page_says_what_it_means(whole: str, page: Page) -> None:
    assert not re.search(r">\s*(nan|None|inf|NaT|<NA>)\s*<", whole)
    shown = re.sub(r"<script.*?</script>", "", whole, flags=re.DOTALL).lower()
    assert "nan" not in re.sub(r"\w*nan\w+|\w+nan", "", shown)
    flat = demo_market("price", 0).partition("@")[0]
    assert re.search(
        rf"{re.escape(flat)}[^%]*— — — — undecided",
        page.text("markets").replace("——", "— —").replace("—", "— ").replace("  ", " "),
    )
    assert "means undefined" in page.text("markets")


def test_a_good_default_is_not_called_weak(accuracy: Accuracy) -> None:
    for variable in ("count", "price"):
        sentences = said(accuracy, variable)
        assert not any(sentence.weak for sentence in sentences)
        assert "better than last value at every step" in sentences[0].text
        assert "335 forecasts a step" not in sentences[0].text
        assert "with errors on 7 days; 95 % intervals by days" in sentences[0].text
    assert any("not compared (too few days with errors) on 1 of 3 markets" in one.text for one in sentences)


def test_a_default_that_loses_everywhere_is_called_weak() -> None:
    lost = demo_accuracy(markets=2, steps=2, days=8, shift=-1.2)
    sentences = said(lost)
    assert sentences[0].weak
    assert sentences[0].text.startswith(
        "Weak result: on the count, the default (combined) compared with last value is worse at every step"
    )
    assert any(
        one.weak and "worse on 2 of 2 markets. Worse by more than 2 %:" in one.text for one in sentences
    )
    page = render_accuracy_page(lost, about=About(data="x"))
    assert "▼ Weak result" in Page(page).text("answer")


def test_of_too_few_days_nothing_is_said_but_how_many() -> None:
    """A model three times as bad on two days of forecasts: no skill in sentences, cells or curves."""
    short = demo_accuracy(markets=2, steps=2, days=2, shift=-2.0)
    blank = {"skill_low": np.nan, "skill_high": np.nan, "days": 2, "verdict": "too few"}
    tables = {
        name: (table := getattr(short, name)).assign(
            **{key: table[key].where(table["model"] == "last_value", value) for key, value in blank.items()}
        )
        for name in ("scores", "pooled", "classes")
    }
    first = said(short, **tables)[0]
    assert first.weak
    assert first.text == "On the count: too few days to compare: errors on 2, at least 3 wanted."
    page = Page(render_accuracy_page(replace(short, **tables), about=About(data="x")))
    for section in ("answer", "pooled", "markets"):
        assert not re.search(r"[−+]\d+\.\d", page.text(section)), section
    assert page.text("pooled").count("too few") > 10


def test_the_worst_market_at_one_step_is_named_with_its_interval(accuracy: Accuracy) -> None:
    scores = accuracy.scores
    one = (
        (scores["model"] == "combined")
        & (scores["market"] == demo_market("count", 0))
        & (scores["step"] == 2)
    )

    def named(low: float, high: float, word: str) -> list[Sentence]:
        table = scores.assign(
            skill_pinball=scores["skill_pinball"].mask(one, -0.3), skill_low=scores["skill_low"].mask(one, low),
            skill_high=scores["skill_high"].mask(one, high), verdict=scores["verdict"].mask(one, word),
        )  # fmt: skip
        return [s for s in said(accuracy, scores=table) if s.text.startswith("At one step alone")]

    (within,) = named(-0.7, 0.1, "even")
    assert f"{demo_market('count', 0)}: even (-70 to 10 %) at 2 slots" in within.text
    assert "beyond that interval at 0" in within.text
    assert not within.weak
    assert named(-0.5, -0.1, "worse")[0].weak
    assert demo_market("count", 0) not in named(np.nan, np.nan, "too few")[0].text.partition(":")[0]


def test_a_default_as_good_as_last_value_is_called_weak(accuracy: Accuracy) -> None:
    pooled = accuracy.pooled
    own = pooled["model"] == "combined"
    small = pooled.assign(skill_pinball=pooled["skill_pinball"].mask(own, 0.004))
    first = said(accuracy, pooled=judged(small, half=0.001))[0]
    assert first.weak
    assert "hardly better than last value: 0 % better (0 to 0 %) at 1 slot" in first.text
    even = said(accuracy, pooled=judged(small))[0]
    assert even.weak
    assert "compared with last value is even at every step: even (-2 to 2 %) at 1 slot" in even.text


def test_markets_beyond_chance_are_counted_in_the_answer(accuracy: Accuracy) -> None:
    scores = accuracy.scores
    only = (scores["market"] == demo_market("count", 0)) | (scores["verdict"] == "")
    first = said(accuracy, scores=scores.assign(verdict=scores["verdict"].where(only, "even")))[0]
    assert "(at 1 slot better on 1, worse on 0 of 3 markets, beyond their intervals)" in first.text


def test_steps_that_lose_are_named(accuracy: Accuracy) -> None:
    pooled = accuracy.pooled
    late = (pooled["model"] == "combined") & pooled["step"].isin([3, 4, 6])
    first = said(
        accuracy, pooled=judged(pooled.assign(skill_pinball=pooled["skill_pinball"].where(~late, -0.03)))
    )[0]
    assert first.weak
    assert "is better at steps 1–2, 5, worse at steps 3–4, 6:" in first.text


def test_coverage_off_by_more_than_two_points_is_weak(accuracy: Accuracy) -> None:
    pooled = accuracy.pooled
    off = (pooled["model"] == "combined") & (pooled["step"] == 2)
    found = said(accuracy, pooled=pooled.assign(coverage_90=pooled["coverage_90"].where(~off, 0.871)))
    weak = [sentence.text for sentence in found if sentence.weak]
    assert len(weak) == 1
    assert "its 90 % interval held 87.1 to" in weak[0]
    assert "narrower than promised" in weak[0]
    assert re.search(r"counted as inside: 8\d\.\d to 8\d\.\d % and 9\d\.\d to 9\d\.\d %\.", weak[0])


def test_another_model_that_beats_the_default_is_named_with_its_interval(accuracy: Accuracy) -> None:
    found = said(accuracy, default="markov")
    assert found[-1].weak
    assert re.fullmatch(
        r"combined compared with the default, all steps together: \d+ % better \(\d+ to \d+ %\)\.",
        found[-1].text,
    )
    alike = accuracy.daily[accuracy.daily["model"] == "combined"]
    same = pd.concat([accuracy.daily[accuracy.daily["model"] != "markov"], alike.assign(model="markov")])
    even = said(accuracy, default="markov", daily=same)[-1]
    assert (even.weak, even.text.endswith("even (0 to 0 %).")) == (False, True)


@pytest.mark.parametrize(
    ("default", "words"), [("absent", "was not measured"), ("last_value", "last value itself")]
)
def test_a_default_that_cannot_be_compared(small: Accuracy, default: str, words: str) -> None:
    (only,) = said(small, default=default)
    assert words in only.text
    assert render_accuracy_page(replace(small, default=default), about=About(data="x"))


def test_market_skills_are_those_of_the_sums(accuracy: Accuracy) -> None:
    daily = accuracy.daily
    market = demo_market("count", 1)
    own = daily[daily["market"] == market]
    losses = {m: sum(r.n * r.pinball for r in own[own["model"] == m].itertuples()) for m in MODELS}
    found = market_skills(daily[daily["variable"] == "count"])
    assert found.loc[(market, "arima"), "skill_pinball"] == pytest.approx(
        1 - losses["arima"] / losses["last_value"]
    )
    assert found.loc[(market, "arima"), "days"] == 7
    flat = market_skills(daily[daily["variable"] == "price"]).loc[demo_market("price", 0)]
    assert flat["skill_pinball"].isna().all()
    assert set(flat["verdict"]) == {"", "too few"}


def test_over_steps_leaves_out_what_is_undefined() -> None:
    scores = pd.DataFrame(
        {"market": "a", "model": "m", "n": [10, 30, 60], "pinball": [1.0, 2.0, np.nan], "mae": [np.nan] * 3}
    )
    means = over_steps(scores, ["pinball", "mae"]).loc[("a", "m")]
    assert means["pinball"] == pytest.approx((10 + 60) / 40)
    assert np.isnan(means["mae"])
    assert means["n"] == 100


def test_claims_follow_the_tests_of_significance(accuracy: Accuracy) -> None:
    scores, _, models = of(accuracy, "count")
    market = demo_market("count", 0)
    rows = scores[scores["market"] == market]
    sure = rows["model"].isin(["arima"]) & (rows["step"] <= 3)
    rows = rows.assign(
        skill_pinball=np.where(rows["model"] == "last_value", 0.0, 0.1),
        dm=np.where(sure, 9.0, 1.0),
        dm_p=np.where(sure, 1e-6, 0.3),
    )
    found = claims(rows, models)[market]
    assert (found.short, found.reach) == ("yes, up to step 3", 3)
    assert "arima: predictable up to step 3" in found.sentence
    assert "combined: not predictable" in found.sentence
    assert claims(rows.assign(dm_p=0.3), models)[market].short == "no"
    assert claims(rows.assign(dm_p=np.nan), models)[market].short == "undecided"


def test_beyond_chance_counts_markets(accuracy: Accuracy) -> None:
    scores, _, _ = of(accuracy, "count")
    better, worse, moved = beyond_chance(scores)
    for model in ("combined", "seasonal_naive"):
        own = scores[(scores["model"] == model) & (scores["step"] == 2)]
        assert better.loc[2, model] == sum(own["skill_low"] > 0)
        assert worse.loc[2, model] == sum(own["skill_high"] < 0)
    assert moved.loc[2] == 3
    assert beyond_chance(of(accuracy, "price")[0])[2].loc[2] == 2  # one market has a flat price


def test_calibration_before_and_after_where_both_were_scored(page: Page, whole: str, bare: str) -> None:
    assert "combined_raw: before calibration" in unpacked(whole)
    assert "combined_raw" in page.text("calibration")
    without = Page(bare)
    assert "before calibration" not in without.text("calibration")
    assert "without calibration it was not scored" in without.text("calibration")
    models = Models.of(["combined", "uncalibrated", "last_value"], "combined")
    assert before_name(models, "uncalibrated") == "uncalibrated"
    assert before_name(models, "") == ""


def test_what_was_not_measured_is_said(small: Accuracy, bare: str) -> None:
    page = Page(bare)
    assert "What the errors cost was not measured" in page.text("money")
    assert "Drift was not looked for" in page.text("daily")
    why = About(
        data="x",
        no_cost="what errors cost was not measured: 0 series <here>",
        drift=("count: no mark <yet>.",),
    )
    told = Page(render_accuracy_page(small, about=why))
    assert "What errors cost was not measured: 0 series <here>." in told.text("money")
    assert "count: no mark <yet>." in told.text("daily")
    assert page.text("predictability").count("Not measured in this run") == 2


def test_drift_marks_are_drawn_and_told(page: Page) -> None:
    assert page.text("daily").count("Drift 14 Oct 13:00: loss rose from 0.41 to 0.98.") == 3


def test_many_marks_of_drift_are_only_dated(small: Accuracy) -> None:
    one = demo_drift(1)
    marks = pd.concat([one.assign(at=one["at"] - pd.Timedelta(hours=18 * i)) for i in range(4)])
    ((figure,), _) = daily_figures("count", small, marks)
    assert "Drift" not in figure.captions[0]  # all drift marks are after the drawn days, or on the extra day
    wide = demo_accuracy(markets=1, steps=2, days=8)
    ((figure,), _) = daily_figures("count", wide, marks)
    told = "Drift told 4 times: 12 Oct 07:00, 13 Oct 01:00, 13 Oct 19:00 and 14 Oct 13:00."
    assert told in figure.captions[0]


def test_a_capacity_that_was_exceeded_is_no_line(small: Accuracy) -> None:
    fans = market_fans(small.fans[small.fans["variable"] == "count"])
    most = max(np.nanmax(np.append(fan.past, fan.actual)) for fan in fans)
    assert drawn_limit(16.0, fans) == 16.0
    assert np.isnan(drawn_limit(most - 1, fans))


def test_only_one_variable(small: Accuracy) -> None:
    tables = {
        name: getattr(small, name)[lambda t: t["variable"] == "price"]
        for name in ("scores", "pooled", "periods", "reliability", "daily", "fans", "classes")
    }
    text = render_accuracy_page(
        replace(small, **tables, calibration=small.calibration.iloc[:0]), about=About(data="x")
    )
    assert "Count of available instances" not in text
    assert "0 of counts, 1 of prices" in " ".join(Page(text).text("").split())


def test_one_step_and_one_model() -> None:
    tiny = demo_accuracy(markets=1, steps=1, days=1)
    tables = {
        name: getattr(tiny, name)
        for name in ("scores", "pooled", "periods", "reliability", "calibration", "daily", "fans")
    }
    only = {name: table[table["model"] == "last_value"] for name, table in tables.items()}
    assert Page(render_accuracy_page(tiny, about=About(data="x")))
    text = render_accuracy_page(replace(tiny, **only, default="last_value"), about=About(data="x"))
    assert "last value itself" in text


def test_many_markets_are_limited_with_a_note() -> None:
    one = demo_accuracy(markets=1, steps=2)
    count = {name: getattr(one, name)[lambda t: t["variable"] == "count"] for name in ("scores", "fans")}
    n = MOST_DRAWN + 5
    scores = pd.concat([count["scores"].assign(market=f"a/b/c/{i:02d}@s", pinball=1.0 + i) for i in range(n)])
    fans = pd.concat([count["fans"].assign(market=f"a/b/c/{i:02d}@s") for i in range(n)])
    many = replace(one, scores=scores, fans=fans)
    models = Models.of(MODELS, "combined")
    figures, among = fan_figures("count", many)
    assert (len(figures), among) == (MOST_DRAWN, n)
    assert figures[0].title == f"a/b/c/{n - 1:02d}@s"
    (part,) = (block for block in fans_section(many).blocks if isinstance(block, Section))
    grid, fold, left = part.blocks
    assert (len(grid.figures), len(fold.blocks[0].figures)) == (OPEN, MOST_DRAWN - OPEN)
    assert left.startswith("5 markets with less loss are not drawn")
    assert by_loss(scores, models)[-1] == "a/b/c/00@s"


def test_money_is_ranked_beside_accuracy(page: Page, accuracy: Accuracy) -> None:
    cost = demo_cost()
    models = Models.of(MODELS, "combined")
    own = list(all_blocks(money_section(accuracy, cost, "").blocks))
    assert [b.title for b in own if isinstance(b, Table)] == ["Mean over the policies", *cost.policies]
    rows = money_rows(cost.table[cost.table["policy"] == "all"], accuracy_ranks(accuracy.pooled), models)
    ranked = [row for row in rows if not row["reference"]]
    lost = [row["lost"] for row in ranked]
    assert lost == sorted(lost)
    assert {row["model"] for row in rows if row["reference"]} == {
        "perfect forecasts",
        "none: the present slot alone",
    }
    ranks = accuracy_ranks(accuracy.pooled)
    assert ranks["count"].idxmin() == "combined"
    text = page.text("money")
    rho = (
        cost.table[cost.table["policy"] == "all"]
        .set_index("model")["money_rank"]
        .corr(ranks["count"], method="spearman")
    )
    assert (
        f"skill on the count (first 4 steps) {'agree' if rho >= 0.7 else 'agree in part'}: Spearman {rho:.2f} over 7 models"
        in text
    )


def test_classes_of_markets_are_shown_apart(page: Page, accuracy: Accuracy) -> None:
    prices = accuracy.classes[accuracy.classes["variable"] == "price"]
    moving, still = class_rows(prices, Models.of(MODELS, "combined"))
    assert [(row["class"], row["series"]) for row in (moving, still)] == [("moving", 2), ("still", 1)]
    assert skill_text(still["skill_1"]) == "—"
    own = prices[
        (prices["model"] == "combined") & (prices["class"] == "moving") & (prices["step"] == 1)
    ].iloc[0]
    assert skill_text(moving["skill_1"]) == f"{100 * own['skill_pinball']:+.1f}"
    assert "The default by class of markets" in page.text("pooled")
    assert class_rows(prices.iloc[:0], Models.of(MODELS, "combined")) == []


def test_reasons_of_fallbacks_are_told(small: Accuracy) -> None:
    reasons = pd.DataFrame(
        {
            "variable": "price",
            "model": "arima",
            "market": [demo_market("price", 0)] * 2,
            "reason": ["flat <series>", "short"],
            "n": [300, 12],
        }
    )
    page = Page(render_accuracy_page(replace(small, reasons=reasons), about=About(data="x")))
    text = page.text("fallbacks")
    assert "flat <series>: 300 forecasts on 1 market" in text
    assert text.index("flat <series>") < text.index("short: 12 forecasts")
    assert f"{demo_market('price', 0)}always" in text.replace(" ", "")


def test_shown_steps_hold_the_last() -> None:
    assert shown_steps(range(1, 13)) == [1, 2, 4, 8, 12]
    assert shown_steps([1, 2, 3]) == [1, 2, 3]


def test_nothing_scored_is_an_error(accuracy: Accuracy) -> None:
    with pytest.raises(InputError, match="no series was scored"):
        render_accuracy_page(replace(accuracy, scores=accuracy.scores.iloc[:0]), about=ABOUT)


def test_marks_without_their_columns_are_an_error(accuracy: Accuracy) -> None:
    with pytest.raises(InputError, match="marks of drift without found"):
        render_accuracy_page(accuracy, about=ABOUT, drift=demo_drift().drop(columns="found"))


def test_page_of_a_real_backtest(tmp_path) -> None:
    """Use real series, models, scores, predictability and drift; the page repeats the values of the tables."""
    tapes = read_tapes(write_tidy(tmp_path / "tidy", days=5))
    series = [series_of(history_of(tape), tape.variable) for tape in (*tapes.counts, *tapes.paths)]
    panels = tuple(panels_of(series))
    rolling = Rolling(
        panels=panels,
        origins=tuple(tuple(second_half(one) for one in panel.series) for panel in panels),
        predictors={name: make_predictor(name) for name in ("last_value", "seasonal_naive", "markov")},
        horizon=3,
        timetable=TIMETABLE,
    )
    measured = run_course(BacktestPlan(rolling=rolling, default="markov"), notes=("a note",))
    text = render_accuracy_page(
        measured,
        about=About(data="real", drift=drift_sentences(drift_table(series), series)),
        predictability=predictability(series, horizon=3),
        drift=drift_table(series),
    )
    page = Page(text)
    assert not re.search(r">\s*(nan|None|inf|NaT|<NA>)\s*<", text)
    for key in {one.key.partition("@")[0] for one in series}:
        assert key in page.text("markets")
        assert key in page.text("predictability")
    own = measured.pooled[(measured.pooled["model"] == "markov") & (measured.pooled["step"] == 1)].set_index(
        "variable"
    )
    assert f"{compared(own.loc['count'].to_dict())} at 1 slot" in page.text("answer")
    assert page.text("daily").count("Better than last value on") == len(series)


def test_a_mean_over_steps_leaves_out_what_is_undefined():
    own = pd.DataFrame({"n": [1, 1, 3, 0], "mae": [1.0, np.nan, 3.0, 9.0], "brier": [np.nan] * 4})
    assert weighted(own, "mae") == pytest.approx(2.5)
    assert np.isnan(weighted(own, "brier"))
    assert np.isnan(weighted(own, "rmse"))
