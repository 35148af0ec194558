"""The web app: every page and the same data as JSON under ``/api``, read-only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pandas as pd
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from flows.clock import parse_time
from flows.config import Settings
from flows.printing import plain
from flows.ui.complete import completeness_data
from flows.ui.glance import glance_data
from flows.ui.guard import Guard
from flows.ui.jobs import STATES, job_data, jobs_data
from flows.ui.markets import market_data, market_view, markets_data, nearest_market
from flows.ui.pages import (
    accuracy_values,
    completeness_values,
    frame_values,
    job_values,
    market_values,
    policies_values,
    render,
)
from flows.ui.reading import Reading, Snapshots
from flows.ui.record import accuracy_data, accuracy_table, policies_data
from flows.ui.runs import runs_data
from warehouse.errors import InputError, JobError, MarketError, SlackwaterError, StoreError, StoreLockedError

#: Static files and what they are.
STATIC: Final = {
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
Query = Mapping[str, str]
Data = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page: ``data`` gives its plain values (what ``/api`` answers), ``values`` what only the HTML needs beside them."""

    name: str
    template: str
    menu: str
    about: str
    data: Callable[[Reading, Query], Data]
    values: Callable[[Reading, Data, Query], Data] = lambda reading, data, query: {}


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
            remedy=f"known are {', '.join(near)}" if near else error.remedy,
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
        data=lambda reading, query: glance_data(reading),
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
        values=lambda reading, data, query: completeness_values(data),
    ),
    View(
        name="runs", template="runs.html", menu="/runs", about="The ledger of runs, the newest first; ?page=N.",
        data=lambda reading, query: runs_data(reading, page=_page(query)),
    ),
)  # fmt: skip


def make_app(
    db: Path,
    settings: Settings,
    *,
    clock: Callable[[], pd.Timestamp],
    bound: str = "127.0.0.1",
    names: Iterable[str] = (),
) -> Starlette:
    """The app over the warehouse at ``db``; ``bound`` is the address it is served at, ``names`` further host names it answers to.

    The file need not be there yet; ``clock`` gives the time that ages are told by.
    """
    snapshots = Snapshots(db, settings, clock)
    routes = [Route("/api", _api_index), Route("/api/state", _state(snapshots))]
    for view in VIEWS:
        routes.append(Route(_path(view), _html(view, snapshots)))
        routes.append(Route(f"/api/{view.name}", _json(view, snapshots)))
    routes += [Route("/static/{name}", _static), Route("/favicon.ico", _icon)]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, bound=bound, names=tuple(names))],
        exception_handlers={
            HTTPException: _http_error(snapshots),
            SlackwaterError: _user_error(snapshots),
        },
    )
    app.state.snapshots = snapshots
    return app


def _path(view: View) -> str:
    return "/" if view.name == "glance" else f"/{view.name}"


def _asked(request: Request) -> tuple[str, tuple[tuple[str, str], ...]]:
    return request.url.path, tuple(sorted(request.query_params.multi_items()))


def _html(view: View, snapshots: Snapshots) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        query = dict(request.query_params)

        def make(reading: Reading) -> str:
            data = view.data(reading, query)
            values = (
                frame_values(reading) | view.values(reading, data, query) | {"data": data, "query": query}
            )
            return render(view.template, values, path=view.menu)

        return HTMLResponse(snapshots.made(_asked(request), make), headers=_FRESH)

    return page


def _json(view: View, snapshots: Snapshots) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        query = dict(request.query_params)

        def make(reading: Reading) -> str:
            return _json_text(view.data(reading, query))

        text = snapshots.made(_asked(request), make)
        return Response(text, media_type="application/json", headers=_FRESH)

    return answer


def _json_text(value: Any) -> str:
    """JSON without a letter that could begin a tag, should anything ever take it for HTML."""
    return json.dumps(plain(value), allow_nan=False).replace("<", "\\u003c")


#: A reload always asks; the server answers from what it keeps.
_FRESH: Final = {"cache-control": "no-cache"}


def _api_index(request: Request) -> Response:
    """The addresses of the API."""
    return JSONResponse(
        {
            "version": 1,
            "views": {f"/api/{view.name}": view.about for view in VIEWS},
            "state": "/api/state: the newest turn, for a page that waits for the next one",
        }
    )


def _state(snapshots: Snapshots) -> Callable[[Request], Response]:
    def state(request: Request) -> Response:
        return JSONResponse(
            snapshots.made("state", lambda reading: plain({"at": reading.at, "run": reading.run})),
            headers=_FRESH,
        )

    return state


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    content = (files("flows") / "ui" / "static" / name).read_bytes()
    return Response(content, media_type=STATIC[name], headers=_FRESH)


def _icon(request: Request) -> Response:
    return RedirectResponse("/static/icon.svg", status_code=308)


def _http_error(snapshots: Snapshots) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, HTTPException) else 500
        found = f"There is no page {request.url.path}." if code == 404 else str(error)
        return _error(snapshots, request, code, title="Not found" if code == 404 else "Error", found=found)

    return answer


def _user_error(snapshots: Snapshots) -> Callable[[Request, Exception], Response]:
    """Errors with their remedy: 404 for names that are unknown, 400 for other input, 503 for the warehouse."""

    def answer(request: Request, error: Exception) -> Response:
        if not isinstance(error, SlackwaterError):
            raise error
        if isinstance(error, StoreError):
            missing = not snapshots.db.exists()
            title = "No warehouse yet" if missing else "The warehouse cannot be read"
            code = 503
            if isinstance(error, StoreLockedError):
                title = "The warehouse is being written"
        elif isinstance(error, JobError | MarketError):
            title, code = "Not found", 404
        else:
            title, code = "This cannot be shown", 400 if isinstance(error, InputError) else 500
        return _error(
            snapshots,
            request,
            code,
            title=title,
            found=error.found,
            expected=error.expected,
            remedy=error.remedy,
        )

    return answer


def _error(
    snapshots: Snapshots,
    request: Request,
    code: int,
    *,
    title: str,
    found: str,
    expected: str = "",
    remedy: str = "",
) -> Response:
    """An error as a page with a way back, or as JSON under ``/api``."""
    headers = _FRESH | ({"retry-after": "5"} if code == 503 else {})
    if request.url.path.startswith("/api"):
        body = {"error": {"found": found, "expected": expected, "remedy": remedy}}
        return Response(_json_text(body), status_code=code, media_type="application/json", headers=headers)
    values = {
        "title": title, "found": found, "expected": expected, "remedy": remedy, "code": code, "now": snapshots.clock(),
        "at": None, "run": None, "warehouse": snapshots.db.name, "simulated": False, "some_simulated": False, "step": "",
    }  # fmt: skip
    return HTMLResponse(render("error.html", values, path=""), status_code=code, headers=headers)


def warm_up(app: Starlette) -> None:
    """Make every page without a name once, so that the first visitor does not wait for what is loaded on first use."""
    snapshots: Snapshots = app.state.snapshots
    for view in VIEWS:
        if view.name in ("job", "market"):
            continue
        try:
            snapshots.made(("warm", view.name), lambda reading, view=view: _warm(view, reading))
        except SlackwaterError:  # the page will say so
            return


def _warm(view: View, reading: Reading) -> str:
    data = view.data(reading, {})
    values = frame_values(reading) | view.values(reading, data, {}) | {"data": data, "query": {}}
    return render(view.template, values, path=view.menu)
