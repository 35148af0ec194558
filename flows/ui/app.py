"""The web app: all pages, and the same data as JSON under ``/api``, read-only, with access checks and security headers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from slackwater.flows.engine.guard import Guard
from slackwater.flows.show.formats import plain
from slackwater.flows.show.page import asset, properties
from slackwater.flows.ui.metrics import MEDIA_TYPE, metrics_text
from slackwater.flows.ui.pages import VIEWS, Data, PageView, Query, render, values_of
from slackwater.flows.ui.reading import Snapshots
from slackwater.flows.ui.reports import PATH, ReportReceiver
from slackwater.warehouse.errors import (
    InputError,
    JobError,
    MarketError,
    SlackwaterError,
    StoreError,
    StoreLockedError,
)

#: Static files and their media types.
STATIC: Final = {
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
DRAWING: Final = ("vega.js", "draw.js")  # Scripts that draw charts; page files embed them instead
#: Content security policy: charts use style attributes (for custom colours); scripts and style
#: sheets come only from this server.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def make_app(
    snapshots: Snapshots,
    *,
    bound: str = "127.0.0.1",
    names: Iterable[str] = (),
    receiver: ReportReceiver | None = None,
) -> Guard:
    """Return the app for a warehouse at the address ``bound`` or host ``names``; with a ``receiver`` it takes reports."""
    routes = [
        Route("/api", _api_index),
        Route("/api/state", partial(_state, snapshots)),
        Route("/metrics", partial(_metrics, snapshots)),
    ]
    for view in VIEWS:
        routes += [
            Route(_path(view), partial(_html, view, snapshots)),
            Route(f"/api/{view.name}", partial(_json, view, snapshots)),
        ]
    routes += [Route("/static/{name}", _static), Route("/favicon.ico", _icon)]
    if receiver is not None:
        routes.append(Route(PATH, receiver.answer, methods=["POST"]))
    failed = partial(_error, snapshots)
    app = Starlette(
        routes=routes, exception_handlers=dict.fromkeys((HTTPException, SlackwaterError, 500), failed)
    )
    methods = ("GET", "HEAD") if receiver is None else ("GET", "HEAD", "POST")  # POST: one route, else 405
    return Guard(app, bound=bound, names=names, policy=POLICY, methods=methods)


def _path(view: PageView) -> str:
    return "/" if view.name == "glance" else f"/{view.name}"


def _html(view: PageView, snapshots: Snapshots, request: Request) -> Response:
    values = _values(view, snapshots, dict(request.query_params))
    text = render(view.template, values | {"now": snapshots.clock()}, path=view.menu)
    return HTMLResponse(text, headers=_FRESH)


def _values(view: PageView, snapshots: Snapshots, query: Query) -> Data:
    key = ("page", view.name, tuple(sorted(query.items())))
    return snapshots.result_of(key, lambda reading: values_of(view, reading, query), timed=view.timed)


def _json(view: PageView, snapshots: Snapshots, request: Request) -> Response:
    query = dict(request.query_params)
    key = ("api", view.name, tuple(sorted(query.items())))
    text = snapshots.result_of(
        key, lambda reading: _json_text(view.read(reading, query).data), timed=view.timed
    )
    return Response(text, media_type="application/json", headers=_FRESH)


def _json_text(value: Any) -> str:
    """Return JSON without "<", so that it is harmless if interpreted as HTML."""
    return json.dumps(plain(value), allow_nan=False).replace("<", "\\u003c")


_FRESH: Final = {"cache-control": "no-cache"}  # Browsers must revalidate; the server answers from its cache
#: The chart script is large and changes only with releases.
_LASTING: Final = {"cache-control": "max-age=86400"}


def _api_index(request: Request) -> Response:
    return JSONResponse(
        {
            "version": 1,
            "views": {f"/api/{view.name}": view.about for view in VIEWS},
            "state": "/api/state: the newest turn, for a page that waits for the next one",
            "metrics": "/metrics: OpenMetrics",
        }
    )


def _state(snapshots: Snapshots, request: Request) -> Response:
    state = snapshots.result_of("state", lambda reading: plain({"at": reading.at, "run": reading.run}))
    return JSONResponse(state, headers=_FRESH)


def _metrics(snapshots: Snapshots, request: Request) -> Response:
    text = snapshots.result_of("metrics", metrics_text, timed=True)
    return Response(text, headers={"content-type": MEDIA_TYPE, **_FRESH})


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name in DRAWING:
        script = asset(name)
        return Response(script, media_type="text/javascript; charset=utf-8", headers=_LASTING)
    if name not in STATIC:
        raise HTTPException(404)
    if name == "ui.css":
        return Response(style_sheet(), media_type=STATIC[name], headers=_FRESH)
    content = (files("slackwater.flows") / "ui" / "static" / name).read_bytes()
    return Response(content, media_type=STATIC[name], headers=_FRESH)


def style_sheet() -> str:
    """Return the style sheet of all pages: colours, styles of the blocks, then styles of the UI."""
    ui_css = (files("slackwater.flows") / "ui" / "static" / "ui.css").read_text(encoding="utf-8")
    return f"{properties()}\n{asset('blocks.css')}\n{ui_css}"


def _icon(request: Request) -> Response:
    return RedirectResponse("/static/icon.svg", status_code=308)


def _error(snapshots: Snapshots, request: Request, error: Exception) -> Response:
    """Return an error as a page with a link back, or as JSON under ``/api`` and ``/metrics``.

    Status 404 for unknown names, 400 for other input, 503 for the warehouse; 500 for internal errors,
    which the server logs in full.
    """
    code, expected, remedy = 500, "", ""
    if isinstance(error, HTTPException):
        code, title, found = error.status_code, "Error", str(error)
        if code == 404:
            title, found = "Not found", f"There is no page {request.url.path}."
    elif isinstance(error, SlackwaterError):
        found, expected, remedy = error.found, error.expected, error.remedy
        if isinstance(error, StoreError):
            code, title = 503, "The warehouse cannot be read" if snapshots.db.exists() else "No warehouse yet"
            if isinstance(error, StoreLockedError):
                title = "The warehouse is being written"
        elif isinstance(error, JobError | MarketError):
            title, code = "Not found", 404
        else:
            title, code = "This cannot be shown", 400 if isinstance(error, InputError) else 500
    else:
        title = "This went wrong"
        found = f"This page could not be rendered ({type(error).__name__}); it is a mistake of the program, not yours"
        remedy = "report it with what the server printed"
    headers = _FRESH | ({"retry-after": "5"} if code == 503 else {})
    if request.url.path.startswith(("/api", "/metrics")):
        body = {"error": {"found": found, "expected": expected, "remedy": remedy}}
        return Response(_json_text(body), status_code=code, media_type="application/json", headers=headers)
    values = {
        "title": title, "found": found, "expected": expected, "remedy": remedy, "code": code, "now": snapshots.clock(),
        "at": None, "run": None, "warehouse": snapshots.db.name, "simulated": False, "some_simulated": False, "step": "",
    }  # fmt: skip
    return HTMLResponse(render("error.html", values, path=""), status_code=code, headers=headers)


def warm_up(snapshots: Snapshots) -> None:
    """Render every page that needs no name, so that the first visitor does not wait for imports."""
    for view in VIEWS:
        if view.name not in ("job", "market"):
            try:
                render(
                    view.template, _values(view, snapshots, {}) | {"now": snapshots.clock()}, path=view.menu
                )
            except SlackwaterError:  # the page will show this error
                return
