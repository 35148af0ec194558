"""From plain values to HTML: the environment of the templates, and what each page draws beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import numpy as np
import pandas as pd

from flows.ledger.fields import BASELINES, DECISION, JOB, Field, columns_of
from flows.show.blocks import Table
from flows.show.charts import Axis, lines
from flows.show.figure import Figure
from flows.show.formats import duration, number, percent, plural, price, significant, text, utc
from flows.show.page import show_filters
from flows.show.theme import vega_config
from flows.turn.page import (
    LAST_VALUE,
    TITLES,
    board_summary,
    changes_told,
    common_bound,
    is_baseline,
    leaders_of,
    market_rows,
    measured_rows,
    model_names,
    ranked,
    utilities_figure,
    variable_parts,
    weights_figure,
    weights_summary,
)
from flows.ui.complete import LETTERS
from flows.ui.job_chart import draw_job
from flows.ui.map_chart import draw_map
from flows.ui.market_chart import draw_market
from flows.ui.reading import Reading

if TYPE_CHECKING:
    from jinja2 import Environment

#: Pages of the navigation: address, name.
PAGES: Final = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/markets", "Markets"),
    ("/accuracy", "Accuracy"),
    ("/policies", "Policies"),
    ("/completeness", "Completeness"),
    ("/runs", "Runs"),
)
#: Outcomes of a job that are shown without unfolding.
TOP_OUTCOMES: Final = 10


def address(path: str, **query: Any) -> str:
    """A path with its query, whatever letters a name has; empty values are left out.

    >>> address("/job", name="a/b & <c>")
    '/job?name=a%2Fb+%26+%3Cc%3E'
    """
    kept = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def ago(time: Any, now: pd.Timestamp) -> str:
    """How long before ``now`` a time is, in words.

    >>> ago("2026-01-01T10:00Z", pd.Timestamp("2026-01-01T12:30Z"))
    '2.5 h ago'
    """
    if time is None:
        return "never"
    gone = now - pd.Timestamp(time)
    if abs(gone) < pd.Timedelta(minutes=1):
        return "now"
    days = abs(gone) / pd.Timedelta(days=1)
    length = f"{days:.0f} days" if days >= 3 else duration(abs(gone))
    return f"{length} ago" if gone > pd.Timedelta(0) else f"in {length}"


def sentence(words: str) -> str:
    """Words as a sentence: a capital first, a full stop last.

    >>> sentence("no job 'x'"), sentence("Why?")
    ("No job 'x'.", 'Why?')
    """
    words = words[:1].upper() + words[1:]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def coded(words: str) -> str:
    """A sentence with what stands between backticks as code; everything in it is escaped.

    >>> str(coded("`slackwater run` makes <one>"))
    '<code>slackwater run</code> makes &lt;one&gt;'
    """
    from markupsafe import Markup, escape

    parts = str(words).split("`")
    if len(parts) % 2 == 0:  # a stray one is a letter like any other
        return escape(words)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else escape(part) for k, part in enumerate(parts)
    )


def stage_counts(stage: Mapping[str, Any] | None) -> str:
    """What a stage of a run did, in a few words.

    >>> stage_counts({"details": {"markets": 7, "forecasts": 49}})
    '7 markets, 49 forecasts'
    >>> stage_counts({"details": {"simulated": {"added": 22, "repeated": 612, "rejected": 0}}})
    '22 rows added'
    """
    details = stage["details"] if stage else {}
    rows = [value for value in details.values() if isinstance(value, Mapping)]
    said = [f"{value:,} {key}" for key, value in details.items() if type(value) is int]
    if rows:
        said.append(f"{sum(int(row.get('added', 0)) for row in rows):,} rows added")
        rejected = sum(int(row.get("rejected", 0)) for row in rows)
        said += [f"{rejected:,} rejected"] if rejected else []
    return ", ".join(said)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of ``flows/templates/ui``: everything is escaped but what passes the filter ``drawing``."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader("flows", "templates/ui"), PackageLoader("flows", "show")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= show_filters() | {
        "utc": utc, "number": number, "percent": percent, "price": price, "text": text, "plural": plural,
        "significant": significant, "coded": coded, "sentence": sentence,
    }  # fmt: skip
    made.globals |= {
        "address": address,
        "ago": ago,
        "counts": stage_counts,
        "pages": PAGES,
        "chart_theme": vega_config(),
    }
    return made


def render(template: str, values: Mapping[str, Any], *, path: str) -> str:
    """One page; ``path`` is the address in the navigation that it belongs to."""
    return environment().get_template(template).render(path=path, **values)


def frame_values(reading: Reading) -> dict[str, Any]:
    """What the frame of every page shows: the newest turn, the warehouse, and whether its markets are simulated."""
    sources = [str(row[0]) for row in reading.store.execute("SELECT DISTINCT source FROM series")]
    return {
        "at": reading.at,
        "run": reading.run,
        "warehouse": reading.db.name,
        "simulated": bool(sources) and all(source.startswith("simulated") for source in sources),
        "some_simulated": any(source.startswith("simulated") for source in sources),
        "step": duration(reading.step),
    }


def decided_table(data: Mapping[str, Any]) -> Table:
    """The decisions for a job, the newest first, each beside the work that was done by then."""
    shares = {utc(row["slot"]): row["share_done"] for row in data["slots"]}
    rows = [{**row, "work_done": shares.get(utc(row["slot"]))} for row in reversed(data["decisions"])]
    done = Field(
        kind=float, words="Of the job, at the start of the slot.", heading="work done", format=percent
    )
    title = "Every decision for this job, the newest first"
    return Table(title, rows, columns_of(DECISION | {"work_done": done}, JOB))


def job_values(reading: Reading, data: Mapping[str, Any]) -> dict[str, Any]:
    """The job's drawing, and its outcomes beside the hindsight bound."""
    outcomes = data["outcomes"]
    top = [row for i, row in enumerate(outcomes) if i < TOP_OUTCOMES or row["policy"] in BASELINES]
    shown = [{**row, "mean_utility": row["utility"]} for row in top]
    return {
        "svg": draw_job(data, step=reading.step),
        "top": top,
        "rest": [row for row in outcomes if row not in top],
        "outcomes": utilities_figure(shown, top[0]["hindsight"]) if top else None,
        "baselines": BASELINES,
        "decided": decided_table(data),
    }


def market_values(reading: Reading, data: Mapping[str, Any]) -> dict[str, Any]:
    """The market's drawing, its neighbours among the vintages, and how the vintage did so far."""
    times = list(data["vintages"])
    place = times.index(data["issued_at"]) if data["issued_at"] in times else None
    return {
        "svg": draw_market(data, step=reading.step),
        "place": place,
        "older": times[place - 1] if place else None,
        "newer": times[place + 1] if place is not None and place + 1 < len(times) else None,
        "came": {variable: _came(data["forecast"], variable) for variable in ("price", "count")},
    }


def _came(ahead: Sequence[Mapping[str, Any]], variable: str) -> str:
    """How often the truth lay in the 80 % band, in words; "" while nothing has come."""
    known = [row[variable] for row in ahead if row[variable]["came"] is not None]
    if not known:
        return ""
    inside = sum(row["q10"] - 1e-9 <= row["came"] <= row["q90"] + 1e-9 for row in known)
    return f"{inside} of {plural(len(known), 'slot')} that came lay in the 80 % band"


def accuracy_values(data: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """The charts of errors, skill and coverage by step ahead, and the errors per market."""
    blocks: list[dict[str, Any]] = []
    markets: dict[str, list[dict[str, Any]]] = {}
    if len(table):
        table = measured_rows(table)
        names = model_names(table["model"])
        for variable, rows in data["coverage_80"].items():
            own = table[table["variable"] == variable]
            if len(own):
                sentences, figures, note = variable_parts(own, variable, names)
                cover = _coverage(rows, names, variable)
                figures.append(cover.pop("figure"))
                blocks.append({"variable": variable, "title": TITLES[variable], "sentences": sentences,
                               "figures": figures, "note": note, "cover": cover})  # fmt: skip
        for row in market_rows(table):
            markets.setdefault(row["market"], []).append(row)
    times = data["measured"]
    place = times.index(data["measured_at"]) if data["measured_at"] in times else None
    return {
        "blocks": blocks,
        "markets": list(markets.items()),
        "older": times[place + 1] if place is not None and place + 1 < len(times) else None,
        "newer": times[place - 1] if place else None,
    }


def _coverage(rows: Sequence[Mapping[str, Any]], names: Sequence[str], variable: str) -> dict[str, Any]:
    """The chart of coverage, and the table beside it at a few steps ahead."""
    title, label = "Truth inside the 80 % band, % (80 is right)", f"coverage of the {variable}"
    if not rows:
        why = "Not measured on any market with every model."
        return {
            "figure": Figure(specs=[], label=label, title=title, why=why, width=0),
            "steps": [],
            "rows": [],
        }
    steps = sorted(rows[0]["by_step"])
    shares = {row["model"]: [row["by_step"][step] for step in steps] for row in rows}
    points = [
        {"x": step, "y": 100 * value, "series": model}
        for model, values in shares.items()
        for step, value in zip(steps, values, strict=True)
        if value is not None
    ]
    spec = lines(
        points, [name for name in names if name in shares], order=names, reference=LAST_VALUE, rule=80.0, height=190,
        x=Axis(title="slots ahead", whole=True, zero=False), y=Axis(zero=True),
    )  # fmt: skip
    named = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    return {
        "figure": Figure(specs=[spec], label=label, title=title, width=0),
        "steps": named,
        "rows": [(model, [values[steps.index(step)] for step in named]) for model, values in shares.items()],
    }


def policies_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """The leaderboard with its chart, and the weights with theirs."""
    rows = data["leaderboard"]
    top, rest = ranked(rows)
    drawn = [row for row in top if row.get("mean_utility") is not None]
    weights = np.array(data["weights"], dtype=float)
    found: dict[str, Any] = {
        "top": top,
        "rest": rest,
        "baseline": is_baseline,
        "summary": board_summary([*top, *rest]) if top else "",
        "utilities": utilities_figure(drawn, common_bound(rows)) if drawn else None,
        "weights": None,
        "changes": [],
        "weights_summary": "",
    }
    if len(weights):
        names, leaders = list(data["policies"]), leaders_of(weights)
        found["weights"] = weights_figure(names, weights, leaders)
        found["weights_summary"] = weights_summary(names, weights, leaders)
        found["changes"] = changes_told(names, leaders, data["round_jobs"])
    return found


def completeness_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """The maps of the stages."""
    names = {letter: state for state, letter in LETTERS.items()}
    maps = {}
    for stage, rows in data["stages"].items():
        shown = [
            {"name": row["market"], "states": [names[letter] for letter in row["states"]]} for row in rows
        ]
        maps[stage] = draw_map(shown, data["slots"], stage=stage)
    return {"maps": maps, "grouped": grouped_stretches(data["stretches"])}


def grouped_stretches(stretches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Stretches of the same stage, state and slots as one, with the markets it is about and the reasons that were given."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in stretches:
        key = (row["stage"], row["state"], row["since"], row["until"])
        one = found.setdefault(key, {**row, "markets": [], "reasons": []})
        one["markets"].append((row["market"], row["source"]))
        if row["reason"] and row["reason"] not in one["reasons"]:
            one["reasons"].append(row["reason"])
    return list(found.values())
