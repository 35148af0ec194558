"""The pages of the UI: data of the front page, and the data source of each page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import pandas as pd

from slackwater.flows.clock import parse_time
from slackwater.flows.ledger.headline import RISK_UNKNOWN, overview, savings
from slackwater.flows.ledger.stages import LIVE
from slackwater.flows.show.formats import (
    as_number,
    duration,
    number,
    percent,
    plural,
    price,
    significant,
    text,
    usd,
    utc,
)
from slackwater.flows.show.page import show_filters, vega_config
from slackwater.flows.ui.jobs import STATES, job_data, job_values, jobs_data, open_rows
from slackwater.flows.ui.markets import market_data, market_values, market_view, markets_data, nearest_market
from slackwater.flows.ui.reading import Reading, UiPage
from slackwater.flows.ui.record import accuracy, policies
from slackwater.flows.ui.runs import alarm_rows, completeness, run_rows, runs_data
from slackwater.warehouse.errors import InputError, MarketError

if TYPE_CHECKING:
    from jinja2 import Environment


#: Runs on the front page, and the age of the newest turn, in slots, from which it is reported as late.
SHOWN_RUNS: Final = 12
LATE_SLOTS: Final = 2


def glance_data(reading: Reading) -> dict[str, Any]:
    """Return the verdict ("well", "look" or "act") with its findings, the decided instances, open jobs, alarms and newest runs."""
    jobs = open_rows(reading)
    runs = run_rows(reading, most=SHOWN_RUNS)
    alarms = alarm_rows(reading)
    findings = [*_turn_findings(reading, runs), *_alarm_findings(alarms), *_job_findings(jobs)]
    findings.sort(key=lambda finding: finding["level"] != "act")
    levels = {finding["level"] for finding in findings}
    current = [job["hold"] for job in jobs if job["hold"] and job["hold"]["current"]]
    saved, alone = savings(current)
    return {
        "at": reading.at,
        "run": reading.run,
        "next_slot": reading.at,
        "slot_minutes": reading.settings.step_minutes,
        "verdict": "act" if "act" in levels else "look" if "look" in levels else "well",
        "findings": findings,
        "hold": {
            "expected_cost_usd": sum(as_number(row["expected_cost_usd"]) or 0.0 for row in current),
            "saved_usd": saved if alone else None,
            "saved_share": saved / alone if alone else None,
            "on_demand": sum(int(row["on_demand"]) for row in current),
            "spot": sum(int(row["spot"]) for row in current),
            "jobs": len(current),
        },
        "jobs": jobs,
        "alarms": alarms,
        "runs": runs,
    }


def _finding(level: str, text: str, link: str, remedy: str = "") -> dict[str, str]:
    return {"level": level, "text": text[:1].upper() + text[1:], "link": link, "remedy": remedy}


def _turn_findings(reading: Reading, runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the problems of the newest turn: none yet, late, failed, or unfinished."""
    if reading.at is None:
        return [_finding("look", "There is no turn yet.", "/runs", "`slackwater run` runs a turn.")]
    found = []
    age = reading.now - reading.at
    if age >= LATE_SLOTS * reading.step:
        level = "act" if reading.present == reading.now else "look"
        found.append(
            _finding(
                level,
                f"The newest turn is {duration(age.floor('min'))} old; a slot is {duration(reading.step)}, "
                "so its decisions are out of date.",
                "/runs",
                "`slackwater run` runs the turn of the present slot, `slackwater serve` a turn in every slot.",
            )
        )
    live = [run for run in runs if LIVE in run["made"]] or runs
    newest = live[0] if live else None
    if newest and newest["status"] == "failed":
        found.append(_finding("act", f"Run {newest['run']} failed: {'; '.join(newest['reasons'])}", "/runs"))
    elif newest and newest["status"] == "part":
        found.append(
            _finding(
                "look",
                f"Run {newest['run']} has no {' and no '.join(newest['missing'])} stage yet.",
                "/runs",
                "It is running, or was stopped: the same run again completes it.",
            )
        )
    if newest:
        found += [_finding("look", text, "/runs") for text in newest["left_out"]]
    return found


def _alarm_findings(alarms: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        _finding(
            "act" if alarm["severity"] == "serious" else "look",
            f"{alarm['kind']}, {alarm['subject']}: {alarm['text']} (since {utc(alarm['since'])})",
            "/completeness",
        )
        for alarm in alarms
    ]


def _job_findings(jobs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the jobs at risk of missing their deadline, and the jobs without a decision."""
    found = []
    for job in jobs:
        link = f"job:{job['job']}"
        hold = job["hold"]
        if hold and hold["risk"]:
            chance = 100 * hold["late_probability"]
            level = "act" if hold["risk"] == "likely late" else "look"
            found.append(
                _finding(
                    level,
                    f"Job {job['job']} is {hold['risk']}: the risk of missing its deadline is {chance:.0f} %.",
                    link,
                )
            )
        elif hold and hold["late_probability"] is None and not hold["over"]:
            found.append(_finding("look", f"Job {job['job']}: {RISK_UNKNOWN}.", link))
        if job["problem"]:
            found.append(_finding("look", f"Job {job['job']} cannot be followed: {job['problem']}", link))
        elif job["state"] == "running" and (hold is None or not hold["current"]):
            found.append(
                _finding("look", f"Nothing was decided for job {job['job']} in the newest turn.", link)
            )
    undecided = [finding for finding in found if finding["text"].startswith("Nothing was decided")]
    if len(undecided) > 3:
        rest = [finding for finding in found if finding not in undecided]
        text = f"Nothing was decided for {plural(len(undecided), 'running job')} in the newest turn."
        return [*rest, _finding("look", text, "/jobs?state=running")]
    return found


# ---
# The pages: their data, the parameters of their addresses, and the template environment.

#: Pages of the navigation: address and name.
PAGES: Final = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/markets", "Markets"),
    ("/accuracy", "Accuracy"),
    ("/policies", "Policies"),
    ("/completeness", "Completeness"),
    ("/runs", "Runs"),
)


def address(path: str, **query: Any) -> str:
    """Return a path with an encoded query; empty values are omitted.

    >>> address("/job", name="a/b & <c>")
    '/job?name=a%2Fb+%26+%3Cc%3E'
    """
    kept = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def ago(time: Any, now: pd.Timestamp) -> str:
    """Return the time before ``now`` in words.

    >>> ago("2026-01-01T10:00Z", pd.Timestamp("2026-01-01T12:30Z"))
    '2.5 h ago'
    """
    if time is None:
        return "never"
    age = now - pd.Timestamp(time)
    if abs(age) < pd.Timedelta(minutes=1):
        return "now"
    days = abs(age) / pd.Timedelta(days=1)
    length = f"{days:.0f} days" if days >= 3 else duration(abs(age))
    return f"{length} ago" if age > pd.Timedelta(0) else f"in {length}"


def sentence(words: str) -> str:
    """Return text as a sentence, with a capital letter and a full stop.

    >>> sentence("no job 'x'"), sentence("Why?")
    ("No job 'x'.", 'Why?')
    """
    words = words[:1].upper() + words[1:]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def code_markup(words: str) -> str:
    """Return text as HTML, with the parts between backticks as code; everything is escaped.

    >>> str(code_markup("`slackwater run` makes <one>"))
    '<code>slackwater run</code> makes &lt;one&gt;'
    """
    from markupsafe import Markup, escape

    parts = str(words).split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick is an ordinary character
        return escape(words)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else escape(part) for k, part in enumerate(parts)
    )


def stage_counts(stage: Mapping[str, Any] | None) -> str:
    """Return a short summary of the work of a stage.

    >>> stage_counts({"details": {"markets": 7, "forecasts": 49}})
    '7 markets, 49 forecasts'
    >>> stage_counts({"details": {"simulated": {"added": 22, "repeated": 612, "rejected": 0}}})
    '22 rows added'
    """
    details = stage["details"] if stage else {}
    rows = [value for value in details.values() if isinstance(value, Mapping)]
    texts = [f"{value:,} {key}" for key, value in details.items() if type(value) is int]
    if rows:
        texts.append(f"{sum(int(row.get('added', 0)) for row in rows):,} rows added")
        rejected = sum(int(row.get("rejected", 0)) for row in rows)
        texts += [f"{rejected:,} rejected"] if rejected else []
    return ", ".join(texts)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of the templates of the UI; all values except those with the filter ``drawing`` are escaped."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    result = Environment(
        loader=ChoiceLoader(
            [PackageLoader("slackwater.flows", "templates/ui"), PackageLoader("slackwater.flows", "show")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= show_filters() | {
        "overview": overview,
        "utc": utc, "number": number, "percent": percent, "price": price, "usd": usd, "text": text, "plural": plural,
        "significant": significant, "coded": code_markup, "sentence": sentence,
    }  # fmt: skip
    result.globals |= {
        "address": address,
        "ago": ago,
        "counts": stage_counts,
        "pages": PAGES,
        "chart_theme": vega_config(),
    }
    return result


def render(template: str, values: Mapping[str, Any], *, path: str) -> str:
    """Render a page; ``path`` is its entry in the navigation."""
    return environment().get_template(template).render(path=path, **values)


def frame_values(reading: Reading) -> dict[str, Any]:
    """Return the values of the frame around every page: newest turn, warehouse, and whether its markets are simulated."""
    sources = [str(row[0]) for row in reading.store.execute("SELECT DISTINCT source FROM series")]
    return {
        "at": reading.at,
        "run": reading.run,
        "warehouse": reading.db.name,
        "simulated": bool(sources) and all(source.startswith("simulated") for source in sources),
        "some_simulated": any(source.startswith("simulated") for source in sources),
        "step": duration(reading.step),
    }


Query = Mapping[str, str]
Data = dict[str, Any]


LONGEST_FILTER: Final = 200  # Maximum length of a filter, in characters


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """A page: ``read`` returns its data (the answer of ``/api``) and the values of its template.

    The template ``answer.html`` shows the answer of a command. ``timed`` marks pages whose data
    depend on the current time.
    """

    name: str
    menu: str
    about: str
    read: Callable[[Reading, Query], UiPage]
    template: str = "answer.html"
    timed: bool = False


def _page(query: Query) -> int:
    word = query.get("page", "1")
    if not (word.isascii() and word.isdigit() and len(word) < 7):
        raise InputError(f"page {word[:20]!r}", expected="a whole number from 1")
    return int(word)


def _patterns(query: Query) -> list[str]:
    """Return the patterns of the filter ``?q=``, separated by spaces; raises `InputError` if it is too long."""
    words = query.get("q", "")
    if len(words) > LONGEST_FILTER:
        raise InputError(
            f"a filter of {len(words):,} characters", expected=f"at most {LONGEST_FILTER} characters"
        )
    return words.split()


def _jobs(reading: Reading, query: Query) -> Data:
    state = query.get("state", "")
    if state and state not in STATES:
        raise InputError(f"state {state[:40]!r}", expected=f"one of {', '.join(STATES)}")
    return jobs_data(reading, state=state, page=_page(query), patterns=_patterns(query))


def _market(reading: Reading, query: Query) -> UiPage:
    key = query.get("key", "")
    try:
        view = market_view(reading, key, model=query.get("model", ""), issued=query.get("issued", ""))
    except MarketError as error:
        near = nearest_market(reading, key)
        raise MarketError(
            error.found,
            expected=error.expected,
            remedy=f"choose one of {', '.join(near)}" if near else error.remedy,
        ) from error
    data = market_data(reading, view)
    return UiPage(data=data, values=lambda: market_values(view, data))


def _job(reading: Reading, query: Query) -> UiPage:
    data = job_data(reading, query.get("name", ""))
    return UiPage(data=data, values=lambda: job_values(reading, data))


#: All pages and addresses of the API, in the order of the documentation.
VIEWS: Final = (
    PageView(
        name="glance", template="glance.html", menu="/",
        about="Verdict, instances to run in the next slot, jobs at risk.",
        read=lambda reading, query: UiPage(data=glance_data(reading)), timed=True,
    ),
    PageView(
        name="jobs", template="jobs.html", menu="/jobs",
        about="Jobs with their progress; ?q=PATTERN, ?state=running|waiting|finished|withdrawn|ended, ?page=N.",
        read=lambda reading, query: UiPage(data=_jobs(reading, query)), timed=True,
    ),
    PageView(
        name="job", template="job.html", menu="/jobs",
        about="One job, ?name=NAME: slots, decisions, and every policy's outcome once it has ended.",
        read=_job, timed=True,
    ),
    PageView(
        name="markets", template="markets.html", menu="/markets",
        about="Markets with their newest values and freshness, ?q=PATTERN, ?page=N.",
        read=lambda reading, query: UiPage(
            data=markets_data(reading, patterns=_patterns(query), page=_page(query))
        ),
    ),
    PageView(
        name="market", template="market.html", menu="/markets",
        about="One market, ?key=provider/region/zone/type@source, with a forecast (?model=, ?issued=) and the observations.",
        read=_market,
    ),
    PageView(
        name="accuracy", menu="/accuracy",
        about="Forecast errors by market, variable, model and step; ?at=TIME for an earlier measurement.",
        read=lambda reading, query: accuracy(reading, parse_time(query["at"], "at") if query.get("at") else None),
    ),
    PageView(
        name="policies", menu="/policies",
        about="The leaderboard, and the weights of the policies after every round.",
        read=lambda reading, query: policies(reading),
    ),
    PageView(
        name="completeness", menu="/completeness",
        about="The state of every market, stage and slot of the last days, with freshness and alarms.",
        read=lambda reading, query: completeness(reading), timed=True,
    ),
    PageView(
        name="runs", template="runs.html", menu="/runs", about="The ledger of runs, the newest first; ?page=N.",
        read=lambda reading, query: UiPage(data=runs_data(reading, page=_page(query))),
    ),
)  # fmt: skip


def values_of(view: PageView, reading: Reading, query: Query) -> Data:
    """Return all values of a page's template except the current time."""
    page = view.read(reading, query)
    return frame_values(reading) | page.values() | {"data": page.data, "query": query}
