"""Any JSON or CSV over HTTP: where the rows are, which field is which column, and how pages follow each other."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl, urljoin, urlsplit

from pydantic import Field, ValidationInfo, field_validator

from warehouse.errors import FetchError
from warehouse.sources.contract import (
    AVAILABILITY_COLUMNS,
    PRICE_COLUMNS,
    Address,
    Kind,
    Options,
    Row,
    Table,
    label_option,
    pack,
    rejection,
)
from warehouse.sources.live.contract import (
    WHOLE,
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    PartFailed,
    next_page,
)
from warehouse.sources.live.transport import Response, Transport

#: Columns that are ours to fill.
_OWN = ("source", "file", "line", "known_at")
_LARGEST_FIELD = 1_000_000
_TIME_UNITS = {"epoch_s": 1, "epoch_ms": 1000}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class HttpOptions(Options):
    """How a table is asked for and read."""

    url: Address = Field("", validate_default=True, description="address of the first page")
    kind: Literal["price", "availability"] = Field(
        "price", description="price or availability (default: price)"
    )
    format: Literal["json", "csv"] = Field("json", description="json or csv (default: json)")
    rows: str = Field(
        "", description="path of the list of rows in a JSON answer (default: the answer itself)"
    )
    columns: Table = Field(
        {}, validate_default=True, description="table: column of ours -> field of a row, or =constant"
    )
    time: Literal["iso", "iso_utc", "epoch_s", "epoch_ms"] = Field(
        "iso",
        description="how observed_at is written: iso (default), iso_utc where times without a zone are in UTC, epoch_s or epoch_ms",
    )
    params: Table = Field({}, description="table of query parameters; ${NAME} is taken from the environment")
    headers: Table = Field({}, description="table of headers; ${NAME} is taken from the environment")
    paging: Literal["none", "next_link", "page", "cursor"] = Field(
        "none", description="none (default), next_link, page or cursor"
    )
    next: str = Field("next", description="path of the next link or cursor in the answer (default: next)")
    page_param: str = Field(
        "", description="query parameter of the page number or cursor (default: page or cursor)"
    )
    first_page: int = Field(1, ge=0, le=1_000_000, description="number of the first page (default: 1)")
    most_pages: int = Field(1000, ge=1, le=100_000, description="pages read at most (default: 1000)")
    source: str = label_option("http")

    @field_validator("columns")
    @classmethod
    def _known(cls, columns: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        price = info.data.get("kind", "price") == "price"
        allowed = [name for name in (PRICE_COLUMNS if price else AVAILABILITY_COLUMNS) if name not in _OWN]
        needed = ("provider", "region", "zone", "instance_type", "price_usd" if price else "available")
        if unknown := sorted(set(columns) - set(allowed)):
            raise ValueError(f"only {', '.join(allowed)} (not {unknown[0]!r})")
        if missing := [name for name in needed if name not in columns]:
            raise ValueError(f"also {', '.join(missing)}")
        return columns

    @field_validator("paging")
    @classmethod
    def _possible(cls, paging: str, info: ValidationInfo) -> str:
        if info.data.get("format") == "csv" and paging in ("next_link", "cursor"):
            raise ValueError("none or page for CSV, which has no place for a link")
        return paging

    @property
    def place(self) -> str:
        """The address without its query."""
        return urlsplit(self.url)._replace(query="", fragment="").geturl()

    @property
    def query(self) -> dict[str, str]:
        """The query of the address and the parameters."""
        return dict(parse_qsl(urlsplit(self.url).query)) | self.params

    @property
    def page_name(self) -> str:
        """Query parameter of the page number or cursor."""
        return self.page_param or ("cursor" if self.paging == "cursor" else "page")


class HttpRows(LiveSource[HttpOptions]):
    """Rows of a table as the settings map them; a snapshot unless a column ``observed_at`` is mapped.

    A mapping value is a field of the row (a dotted path in JSON, a heading in CSV), or a constant after ``=``. In ``headers`` and
    ``params``, ``${NAME}`` stands for an environment variable: so credentials stay out of the settings. Pages end with an
    empty page, without a next one, or at ``most_pages``, which is said.
    """

    name = "http"
    form = HttpOptions
    example = Example(
        options={
            "columns": {
                "provider": "=own",
                "region": "=r1",
                "zone": "=z1",
                "instance_type": "type",
                "price_usd": "usd",
            },
            "headers": {"Authorization": "Bearer ${HTTP_SOURCE_TOKEN}"},
        },
        answer='[{"type": "h100", "usd": 1.5}]',
        credentials=("HTTP_SOURCE_TOKEN",),
    )

    def assumed(self, options: HttpOptions) -> tuple[str, ...]:
        """That rows without a time are true when they are read."""
        if "observed_at" in options.columns:
            return ()
        return ("rows without a time of their own, observed when they were read",)

    def zone_of(self, options: HttpOptions) -> str:
        """Of any table nobody knows which zone its times are in, unless the option ``time`` says it."""
        return "UTC" if options.time == "iso_utc" else ""

    def pages(
        self, options: HttpOptions, asked: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """The pages; raises `FetchError` when one cannot be read or is not of the form that was described."""
        if asked.is_done(WHOLE):
            return
        headers, params = _filled(options.headers, transport), _filled(options.query, transport)
        token = asked.token(WHOLE)
        seen: set[str | None] = {token}
        while True:
            url, query = _place(options, params, token)
            answer, whole = _asked(options, transport, url, query, headers)
            rows = _json_rows(whole, options, answer) if options.format == "json" else _csv_rows(answer)
            token = _next(options, whole, rows, token, answer)
            cut = token is not None and len(seen) >= options.most_pages
            notes = (f"cut off after {options.most_pages} pages",) if cut else ()
            yield _page(options, rows, asked, transport, token=None if cut else token, notes=notes)
            if cut or next_page(token, seen, answer.url) is None:
                return


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


def _asked(
    options: HttpOptions, transport: Transport, url: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[Response, Any]:
    """The answer and, for JSON, what it says; an answer that is no JSON may have been cut, and is asked for again."""

    def once() -> tuple[Response, Any]:
        answer = transport.ask_once("GET", url, params=query or None, headers=headers)
        return answer, answer.json() if options.format == "json" else None

    return transport.patiently(once)


def _filled(table: Mapping[str, str], transport: Transport) -> dict[str, str]:
    """The table with environment variables filled in; their values become secrets."""
    filled = {}
    for name, text in table.items():
        filled[name] = _VARIABLE.sub(lambda match: _from_environment(match[1], transport), text)
        if any(ord(character) < 32 for character in filled[name]):
            raise FetchError(f"header or parameter {name!r} has a control character in it")
    return filled


def _from_environment(name: str, transport: Transport) -> str:
    found = os.environ.get(name)
    if not found:
        raise FetchError(
            f"environment variable {name} is not set",
            remedy="set it to the credential, or take it out of the feed's options",
        )
    transport.secrets.add(found)
    return found


def _place(options: HttpOptions, params: Mapping[str, str], token: str | None) -> tuple[str, dict[str, str]]:
    if options.paging == "page":
        return options.place, {**params, options.page_name: token or str(options.first_page)}
    if options.paging == "cursor" and token is not None:
        return options.place, {**params, options.page_name: token}
    if options.paging == "next_link" and token is not None:
        return token, {}
    return options.place, dict(params)


def _next(
    options: HttpOptions, whole: Any, rows: Sequence[object], token: str | None, answer: Response
) -> str | None:
    """The token of the page after this one, None at the end; raises `FetchError` for a link that leads elsewhere."""
    if options.paging == "none" or not rows:
        return None
    if options.paging == "page":
        return str(int(token or options.first_page) + 1)
    found = at_path(whole, options.next)
    if found is None or found == "":
        return None
    if not isinstance(found, str):
        raise FetchError(f"{answer.url} has a next page that is no text", expected="a link or cursor")
    if options.paging == "cursor":
        return found
    try:
        link = urljoin(options.place, found)
        elsewhere = urlsplit(link)[:2] != urlsplit(options.place)[:2]
    except ValueError as error:
        raise FetchError(f"{answer.url} has a next page that is no address", expected="a link") from error
    # Headers with credentials go where the settings say, and nowhere an answer says.
    if elsewhere:
        raise FetchError(
            f"{answer.url} has a next page on another host",
            expected=f"one on {urlsplit(options.place).netloc}",
            remedy="use paging by page or cursor",
        )
    return link


def _json_rows(whole: Any, options: HttpOptions, answer: Response) -> list[object]:
    rows = at_path(whole, options.rows)
    if not isinstance(rows, list):
        raise FetchError(
            f"{answer.url} has no list of rows at {options.rows or 'the top'!r}",
            remedy="correct the option rows",
        )
    return rows


def _csv_rows(answer: Response) -> list[object]:
    csv.field_size_limit(_LARGEST_FIELD)
    try:
        return list(csv.DictReader(io.StringIO(answer.text()), strict=True))
    except csv.Error as error:
        raise FetchError(f"{answer.url} is no CSV: {error}") from error


def _page(
    options: HttpOptions,
    rows: Sequence[object],
    asked: FetchRequest,
    transport: Transport,
    *,
    token: str | None,
    notes: tuple[str, ...],
) -> FetchedPage:
    constants = {
        "source": options.source,
        "file": options.source,
        "observed_at": asked.observed_at(transport.server_date),
    }
    if options.kind == "availability":
        constants |= {"gap_seconds": int(asked.every.total_seconds())}
    found = (_row(line, row, options) for line, row in enumerate(rows, start=1))
    return FetchedPage(part=WHOLE, batches=tuple(pack(found, constants)), token=token, notes=notes)


def _row(line: int, row: object, options: HttpOptions) -> tuple[Kind, Row]:
    if not isinstance(row, Mapping):
        return rejection(line, str(row)[:1000], "not a row with fields")
    values: dict[str, Any] = {"line": line}
    for name, field in options.columns.items():
        if field.startswith("="):
            values[name] = field[1:]
        else:
            found = row.get(field) if options.format == "csv" else at_path(row, field)
            if isinstance(found, list | Mapping):
                return rejection(line, json.dumps(row, default=str)[:1000], f"{name} is a list or an object")
            values[name] = None if found is None else _plain(found)
    if "observed_at" in values and options.time in _TIME_UNITS:
        values["observed_at"] = _epoch(values["observed_at"], _TIME_UNITS[options.time])
    return options.kind, values


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
