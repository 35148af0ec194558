"""Paths into JSON: names and list positions joined by dots, ``data.items.0.price``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

from warehouse.errors import FetchError
from warehouse.sources.contract import AVAILABILITY_COLUMNS, PRICE_COLUMNS, Kind
from warehouse.sources.files.reading import Row, pack, rejection
from warehouse.sources.live.contract import WHOLE, Asked, Page, PartFailed
from warehouse.sources.live.options import Given, from_environment
from warehouse.sources.live.transport import Answer, Transport


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path, None if there is nothing.

    >>> at_path({"a": [{"b": 5}]}, "a.0.b"), at_path({"a": 1}, "a.b"), at_path([1], "")
    (5, None, [1])
    """
    for name in path.split(".") if path else ():
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


# ---
# Any JSON or CSV over HTTP: where the rows are, which field is which column, and how pages follow each other.

#: Columns that are ours to fill.
_OWN = ("source", "file", "line", "known_at")
_PAGING = ("none", "next_link", "page", "cursor")
_LARGEST_FIELD = 1_000_000
_TIME_UNITS = {"iso": 0, "epoch_s": 1, "epoch_ms": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    url: str
    kind: Kind
    format: str
    rows: str
    columns: Mapping[str, str]
    time: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    paging: str
    next_path: str
    page_param: str
    first_page: int
    most_pages: int
    label: str


class HttpRows:
    """Rows of a table as the settings map them; a snapshot unless a column ``observed_at`` is mapped.

    A mapping value is a field of the row (a dotted path in JSON, a heading in CSV), or a constant after ``=``. In ``headers`` and
    ``params``, ``${NAME}`` stands for an environment variable: so credentials stay out of the settings. Pages end with an
    empty page, without a next one, or at ``most_pages``, which is said.
    """

    name = "http"
    options: Mapping[str, str] = {
        "url": "address of the first page",
        "kind": "price or availability (default: price)",
        "format": "json or csv (default: json)",
        "rows": "path of the list of rows in a JSON answer (default: the answer itself)",
        "columns": "table: column of ours -> field of a row, or =constant",
        "time": "how observed_at is written: iso (default), epoch_s or epoch_ms",
        "params": "table of query parameters; ${NAME} is taken from the environment",
        "headers": "table of headers; ${NAME} is taken from the environment",
        "paging": "none (default), next_link, page or cursor",
        "next": "path of the next link or cursor in the answer (default: next)",
        "page_param": "query parameter of the page number or cursor (default: page or cursor)",
        "first_page": "number of the first page (default: 1)",
        "most_pages": "pages read at most (default: 1000)",
        "source": "label of all rows (default: http)",
    }

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise `SettingsError` if the options cannot be used."""
        self._wanted(options)

    def assumptions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """That rows without a time are true when they are read."""
        if "observed_at" in self._wanted(options).columns:
            return ()
        return ("rows without a time of their own, observed when they were read",)

    def fetch(self, asked: Asked, transport: Transport) -> Iterator[Page | PartFailed]:
        """Yield the pages; raises `FetchError` when one cannot be read or is not of the form that was described."""
        if asked.is_done(WHOLE):
            return
        wanted = self._wanted(asked.options)
        headers, params = _filled(wanted.headers, transport), _filled(wanted.params, transport)
        token = asked.token(WHOLE)
        seen = {token}
        while True:
            url, query = _place(wanted, params, token)
            answer, whole = _asked(wanted, transport, url, query, headers)
            rows = _json_rows(whole, wanted, answer) if wanted.format == "json" else _csv_rows(answer)
            token = _next(wanted, whole, rows, token, answer)
            cut = token is not None and len(seen) >= wanted.most_pages
            notes = (f"cut off after {wanted.most_pages} pages",) if cut else ()
            yield _page(wanted, rows, asked, transport, token=None if cut else token, notes=notes)
            if token is None or cut:
                return
            if token in seen:
                raise FetchError(f"{answer.url} named the same next page twice", expected="a new one a page")
            seen.add(token)

    def _wanted(self, options: Mapping[str, Any]) -> _Wanted:
        given = Given(self.name, options, self.options)
        kind: Kind = (
            "availability" if given.choice("kind", ("price", "availability")) == "availability" else "price"
        )
        columns = given.table("columns")
        allowed = [
            one for one in (PRICE_COLUMNS if kind == "price" else AVAILABILITY_COLUMNS) if one not in _OWN
        ]
        value = "price_usd" if kind == "price" else "available"
        needed = ("provider", "region", "zone", "instance_type", value)
        if unknown := sorted(set(columns) - set(allowed)):
            raise given.wrong("columns", f"only {', '.join(allowed)} (not {unknown[0]!r})")
        if missing := [name for name in needed if name not in columns]:
            raise given.wrong("columns", f"also {', '.join(missing)}")
        paging = given.choice("paging", _PAGING)
        form = given.choice("format", ("json", "csv"))
        if form == "csv" and paging in ("next_link", "cursor"):
            raise given.wrong("paging", "none or page for CSV, which has no place for a link")
        address = urlsplit(given.url("url"))
        return _Wanted(
            url=address._replace(query="", fragment="").geturl(),
            kind=kind,
            format=form,
            rows=given.text("rows"),
            columns=columns,
            time=given.choice("time", tuple(_TIME_UNITS)),
            params=dict(parse_qsl(address.query)) | given.table("params"),
            headers=given.table("headers"),
            paging=paging,
            next_path=given.text("next", "next"),
            page_param=given.text("page_param", "cursor" if paging == "cursor" else "page"),
            first_page=given.whole("first_page", 1, low=0, high=1_000_000),
            most_pages=given.whole("most_pages", 1000, low=1, high=100_000),
            label=given.text("source", self.name),
        )


def _asked(
    wanted: _Wanted, transport: Transport, url: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[Answer, Any]:
    """The answer and, for JSON, what it says; an answer that is no JSON may have been cut, and is asked for again."""

    def once() -> tuple[Answer, Any]:
        answer = transport.ask_once("GET", url, params=query or None, headers=headers)
        return answer, answer.json() if wanted.format == "json" else None

    return transport.patiently(once)


def _filled(table: Mapping[str, str], transport: Transport) -> dict[str, str]:
    """The table with environment variables filled in; their values become secrets."""
    filled = {}
    for name, text in table.items():
        filled[name], used = from_environment(text)
        for value in used:
            transport.secrets.add(value)
        if any(ord(character) < 32 for character in filled[name]):
            raise FetchError(f"header or parameter {name!r} has a control character in it")
    return filled


def _place(wanted: _Wanted, params: Mapping[str, str], token: str | None) -> tuple[str, dict[str, str]]:
    if wanted.paging == "page":
        return wanted.url, {**params, wanted.page_param: token or str(wanted.first_page)}
    if wanted.paging == "cursor" and token is not None:
        return wanted.url, {**params, wanted.page_param: token}
    if wanted.paging == "next_link" and token is not None:
        return token, {}
    return wanted.url, dict(params)


def _next(
    wanted: _Wanted, whole: Any, rows: Sequence[object], token: str | None, answer: Answer
) -> str | None:
    """The token of the page after this one, None at the end; raises `FetchError` for a link that leads elsewhere."""
    if wanted.paging == "none" or not rows:
        return None
    if wanted.paging == "page":
        return str(int(token or wanted.first_page) + 1)
    found = at_path(whole, wanted.next_path)
    if found is None or found == "":
        return None
    if not isinstance(found, str):
        raise FetchError(f"{answer.url} has a next page that is no text", expected="a link or cursor")
    if wanted.paging == "cursor":
        return found
    link = urljoin(wanted.url, found)
    # Headers with credentials go where the settings say, and nowhere an answer says.
    if urlsplit(link)[:2] != urlsplit(wanted.url)[:2]:
        raise FetchError(
            f"{answer.url} has a next page on another host",
            expected=f"one on {urlsplit(wanted.url).netloc}",
            remedy="use paging by page or cursor",
        )
    return link


def _json_rows(whole: Any, wanted: _Wanted, answer: Answer) -> list[object]:
    rows = at_path(whole, wanted.rows)
    if not isinstance(rows, list):
        raise FetchError(
            f"{answer.url} has no list of rows at {wanted.rows or 'the top'!r}",
            remedy="correct the option rows",
        )
    return rows


def _csv_rows(answer: Answer) -> list[object]:
    csv.field_size_limit(_LARGEST_FIELD)
    try:
        return list(csv.DictReader(io.StringIO(answer.text()), strict=True))
    except csv.Error as error:
        raise FetchError(f"{answer.url} is no CSV: {error}") from error


def _page(
    wanted: _Wanted,
    rows: Sequence[object],
    asked: Asked,
    transport: Transport,
    *,
    token: str | None,
    notes: tuple[str, ...],
) -> Page:
    constants = {
        "source": wanted.label,
        "file": wanted.label,
        "observed_at": asked.observed_at(transport.server_date),
    }
    if wanted.kind == "availability":
        constants |= {"gap_seconds": int(asked.every.total_seconds())}
    found = (_row(line, row, wanted) for line, row in enumerate(rows, start=1))
    return Page(part=WHOLE, batches=tuple(pack(found, constants)), token=token, notes=notes)


def _row(line: int, row: object, wanted: _Wanted) -> tuple[Kind, Row]:
    if not isinstance(row, Mapping):
        return rejection(line, str(row)[:1000], "not a row with fields")
    values: dict[str, Any] = {"line": line}
    for name, field in wanted.columns.items():
        if field.startswith("="):
            values[name] = field[1:]
        else:
            found = row.get(field) if wanted.format == "csv" else at_path(row, field)
            values[name] = None if found is None else _plain(found)
    if "observed_at" in values and wanted.time != "iso":
        values["observed_at"] = _epoch(values["observed_at"], _TIME_UNITS[wanted.time])
    return wanted.kind, values


def _plain(found: object) -> str:
    """A field as text, for the store to cast and judge."""
    return found if isinstance(found, str) else str(found).lower() if isinstance(found, bool) else str(found)


def _epoch(text: object, per_second: int) -> str | None:
    """Seconds or milliseconds since the epoch as ISO 8601; what is no such number stays as it is, for the store to refuse."""
    if text is None:
        return None
    try:
        return datetime.fromtimestamp(float(str(text)) / per_second, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return str(text)
