"""The pages: what each is made from, what the HTML needs beside it, and the words of its address that are understood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from flows.clock import parse_time
from flows.ui.complete import completeness_data
from flows.ui.glance import glance_data
from flows.ui.jobs import STATES, job_data, jobs_data
from flows.ui.markets import market_data, market_view, markets_data, nearest_market
from flows.ui.pages import (
    accuracy_values,
    completeness_values,
    frame_values,
    job_values,
    market_values,
    policies_values,
)
from flows.ui.reading import Reading
from flows.ui.record import accuracy_data, accuracy_table, policies_data
from flows.ui.runs import runs_data
from warehouse.errors import InputError, MarketError

Query = Mapping[str, str]
Data = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page: ``data`` gives its plain values (what ``/api`` answers), ``values`` what only the HTML needs beside them.

    ``timed`` marks those whose data depend on the clock.
    """

    name: str
    template: str
    menu: str
    about: str
    data: Callable[[Reading, Query], Data]
    values: Callable[[Reading, Data, Query], Data] = lambda reading, data, query: {}
    timed: bool = False


def _page(query: Query) -> int:
    word = query.get("page", "1")
    if not (word.isascii() and word.isdigit() and len(word) < 7):
        raise InputError(f"page {word[:20]!r}", expected="a whole number from 1")
    return int(word)


def _jobs(reading: Reading, query: Query) -> Data:
    state = query.get("state", "")
    if state and state not in STATES:
        raise InputError(f"state {state[:40]!r}", expected=f"one of {', '.join(STATES)}")
    return jobs_data(reading, state=state, page=_page(query))


def _market(reading: Reading, query: Query) -> Data:
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
    return market_data(reading, view)


def _accuracy(reading: Reading, query: Query) -> Data:
    return accuracy_data(reading, accuracy_table(reading, _measured(query)))


def _measured(query: Query) -> pd.Timestamp | None:
    return parse_time(query["at"], "at") if query.get("at") else None


#: Every page and every address of the API, in the order of the documentation.
VIEWS: Final = (
    View(
        name="glance", template="glance.html", menu="/",
        about="Is all well, what must be held in the next slot, which job is in danger.",
        data=lambda reading, query: glance_data(reading), timed=True,
    ),
    View(
        name="jobs", template="jobs.html", menu="/jobs",
        about="Jobs with their progress; ?state=running|waiting|finished|ended, ?page=N.", data=_jobs,
    ),
    View(
        name="job", template="job.html", menu="/jobs",
        about="One job, ?name=NAME: slots, decisions, and every policy's outcome once it has ended.",
        data=lambda reading, query: job_data(reading, query.get("name", "")),
        values=lambda reading, data, query: job_values(reading, data),
    ),
    View(
        name="markets", template="markets.html", menu="/markets", about="Markets with their newest values and freshness.",
        data=lambda reading, query: markets_data(reading),
    ),
    View(
        name="market", template="market.html", menu="/markets",
        about="One market, ?key=provider/region/zone/type@source, with a forecast vintage (?model=, ?issued=) and what came.",
        data=_market, values=lambda reading, data, query: market_values(reading, data),
    ),
    View(
        name="accuracy", template="accuracy.html", menu="/accuracy",
        about="Forecast errors by market, variable, model and step; ?at=TIME for an earlier measurement.", data=_accuracy,
        values=lambda reading, data, query: accuracy_values(data, accuracy_table(reading, _measured(query))),
    ),
    View(
        name="policies", template="policies.html", menu="/policies",
        about="The leaderboard, and the weights of the policies after every round.",
        data=lambda reading, query: policies_data(reading),
        values=lambda reading, data, query: policies_values(data) | {"default_policy": reading.settings.practice_policy},
    ),
    View(
        name="completeness", template="completeness.html", menu="/completeness",
        about="The state of every market, stage and slot of the last days.",
        data=lambda reading, query: completeness_data(reading),
        values=lambda reading, data, query: completeness_values(data), timed=True,
    ),
    View(
        name="runs", template="runs.html", menu="/runs", about="The ledger of runs, the newest first; ?page=N.",
        data=lambda reading, query: runs_data(reading, page=_page(query)),
    ),
)  # fmt: skip


def values_of(view: View, reading: Reading, query: Query) -> Data:
    """Everything that the template of a page is given but the time."""
    data = view.data(reading, query)
    return frame_values(reading) | view.values(reading, data, query) | {"data": data, "query": query}
