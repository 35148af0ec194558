"""Tables in JSON or CSV over HTTP: location of the rows, mapping of fields to columns, and paging."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urljoin, urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from slackwater.warehouse.amounts import parsed_decimal
from slackwater.warehouse.columns import because
from slackwater.warehouse.errors import FetchError
from slackwater.warehouse.sources.column_facts import (
    counts_gpus,
    currency_of,
    gpus_in,
    non_spot_values,
    non_utc_zone,
    plain_name,
    price_unit,
)
from slackwater.warehouse.sources.contract import (
    AVAILABILITY_COLUMNS,
    PER_SECOND,
    PRICE_COLUMNS,
    Address,
    Kind,
    Options,
    Row,
    Table,
    iso_of_epoch,
    label_option,
    pack,
    rejection,
)
from slackwater.warehouse.sources.live.contract import (
    WHOLE,
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    NoPrice,
    PartFailed,
    left_out,
    next_page,
    price_of,
    why_not_in_force,
)
from slackwater.warehouse.sources.live.transport import Response, Transport

#: Columns that the source fills itself.
_OWN = ("source", "file", "line", "known_at")
_LARGEST_FIELD = 1_000_000
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
#: Columns that identify a market and a time.
_IDENTITY = ("provider", "region", "zone", "instance_type", "product", "observed_at")
#: Columns by which the store rejects prices of another purchase option, which disagree with no spot price.
_SOLD_BY = ("mode", "unit", "currency")
#: Columns that tell machines of one name apart: their prices and counts are never combined.
_MACHINE = ("gpus", "gpu_memory")
#: Path elements: every entry of a list or object (in a path of rows); the enclosing entry, and the
#: entry's name (in a field).
_EACH, _AROUND, _KEY = "*", "^", "@key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Texts that a field of a row must have, or must not have if ``wanted`` is false."""

    values: frozenset[str]
    wanted: bool = True

    def holds(self, found: str) -> bool:
        """Return whether a row with this text is read."""
        return (found in self.values) == self.wanted


def _conditions(value: object) -> dict[str, Condition]:
    expected = ValueError("a table: field = value, a list of values, or { not = ... }")
    if not isinstance(value, Mapping):
        raise expected
    found: dict[str, Condition] = {}
    for name, condition in value.items():
        wanted = not isinstance(condition, Mapping)
        texts = condition if wanted else condition.get("not") if len(condition) == 1 else None
        texts = texts if isinstance(texts, list | tuple) else [texts]
        if not all(isinstance(text, str | int | float) for text in texts):
            raise expected
        found[str(name)] = Condition(values=frozenset(map(_plain, texts)), wanted=wanted)
    return found


def _body(value: object) -> object:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise ValueError("a table, written as JSON into the request") from None
    return value


def _whole_numbers(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping) or not all(
        type(number) is int and number >= 0 for number in value.values()
    ):
        raise ValueError("a table: word = whole number of at least 0")
    return {str(name): number for name, number in value.items()}


class HttpOptions(Options):
    """Request, paging and mapping of a table."""

    url: Address = Field("", validate_default=True, description="address of the first page")
    kind: Literal["price", "availability"] = Field(
        "price", description="price or availability (default: price)"
    )
    format: Literal["json", "csv"] = Field("json", description="json or csv (default: json)")
    rows: str = Field(
        "",
        description="path of the list of rows in a JSON answer (default: the answer itself); * is every entry of a list or object",
    )
    columns: Table = Field(
        {},
        validate_default=True,
        description="table: column of ours -> field of a row, =constant, or a text with {fields}; ^ is the entry around a row, "
        "@key its name",
    )
    where: Annotated[dict[str, Condition], BeforeValidator(_conditions)] = Field(
        {}, description="table: rows to read, field = value, a list of values, or { not = ... }"
    )
    scale: Table = Field(
        {}, description="table: price column -> factor, a number (0.01 for cents) or a field of the row"
    )
    words: Annotated[dict[str, int], BeforeValidator(_whole_numbers)] = Field(
        {}, description="table: word in available -> number of instances; true is 1 and false 0"
    )
    several: Literal["reject", "lowest", "highest", "sum"] = Field(
        "reject",
        description="rows of one market that differ: reject (default), lowest, highest, or sum of counts",
    )
    absent: Literal["unknown", "zero"] = Field(
        "unknown", description="counts of a market seen before and not listed now: unknown (default) or zero"
    )
    time: Literal["iso", "iso_utc", "epoch_s", "epoch_ms"] = Field(
        "iso",
        description="how observed_at is written: iso (default), iso_utc where times without a zone are in UTC, epoch_s or epoch_ms",
    )
    method: Literal["GET", "POST"] = Field("GET", description="GET (default) or POST")
    body: Annotated[dict[str, Any], BeforeValidator(_body)] = Field(
        {}, description="table: JSON body of a POST request; ${NAME} is taken from the environment"
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
    def _check_columns(cls, columns: dict[str, str], info: ValidationInfo) -> dict[str, str]:
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

    @field_validator("body")
    @classmethod
    def _posted(cls, body: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if body and info.data.get("method") != "POST":
            raise ValueError('method = "POST" with a body')
        return body

    @field_validator("scale")
    @classmethod
    def _priced(cls, scale: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        columns = info.data.get("columns", {})
        if unknown := sorted(set(scale) - {name for name in columns if name.endswith("_usd")}):
            raise ValueError(f"only price columns that are mapped (not {unknown[0]!r})")
        return scale

    @field_validator("words")
    @classmethod
    def _check_words(cls, words: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        if words and info.data.get("kind") != "availability":
            raise ValueError('kind = "availability" with words')
        return words

    @field_validator("several")
    @classmethod
    def _check_several(cls, several: str, info: ValidationInfo) -> str:
        if several == "sum" and info.data.get("kind") != "availability":
            raise ValueError("reject, lowest or highest for prices")
        return several

    @field_validator("absent")
    @classmethod
    def _listed(cls, absent: str, info: ValidationInfo) -> str:
        if absent == "zero" and (
            info.data.get("kind") != "availability" or "observed_at" in info.data.get("columns", {})
        ):
            raise ValueError("unknown, except for counts without observed_at")
        return absent

    @property
    def is_snapshot(self) -> bool:
        """Whether rows have no time column, so that they are observed when they are read."""
        return "observed_at" not in self.columns

    @property
    def place(self) -> str:
        """The URL without its query."""
        return urlsplit(self.url)._replace(query="", fragment="").geturl()

    @property
    def query(self) -> dict[str, str]:
        """Query of the URL, together with the parameters."""
        return dict(parse_qsl(urlsplit(self.url).query)) | self.params

    @property
    def page_name(self) -> str:
        """Query parameter of the page number or cursor."""
        return self.page_param or ("cursor" if self.paging == "cursor" else "page")


class HttpRows(LiveSource[HttpOptions]):
    """Rows of a table, mapped by the settings; a snapshot unless a column ``observed_at`` is mapped.

    Rows are the entries of the list at ``rows``; a ``*`` in that path means every entry of a list or object,
    so rows may be nested. A mapping value is a field of the row (a dotted path in JSON, a heading in CSV;
    ``^`` is the enclosing entry, ``@key`` its name), a constant after ``=``, or a text with fields in braces,
    whose spaces become ``_``. In ``headers``, ``params`` and ``body``, ``${NAME}`` is replaced by an
    environment variable, so that credentials stay out of the settings. Paging ends with an empty page, a page
    without successor, or at ``most_pages``, which adds a note.

    A snapshot is stored after its last page: differing rows of the same market are rejected, even
    on different pages, unless ``several`` defines how they count.
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
        """Return the note that rows without a time are observed when they are read."""
        if not options.is_snapshot:
            return ()
        return ("rows without a time of their own, observed when they were read",)

    def zone_of(self, options: HttpOptions) -> str:
        """Return the zone of times, "UTC" only if the option ``time`` states it: it is unknown for arbitrary tables."""
        return "UTC" if options.time == "iso_utc" else ""

    def pages(
        self, options: HttpOptions, asked: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield the pages; raises `FetchError` if a page cannot be read or does not have the described form."""
        if asked.is_done(WHOLE):
            return
        request = _Request(
            headers=_fill_variables(options.headers, transport),
            params=_fill_variables(options.query, transport),
            body=_filled_in(options.body, transport) if options.method == "POST" else None,
        )
        token = None if options.is_snapshot else asked.token(WHOLE)
        seen: set[str | None] = {token}
        found, notes = _Rows(), tuple[str, ...]()
        while True:
            url, query = _place(options, request.params, token)
            answer, whole = _fetch_answer(options, transport, url, query, request)
            try:
                rows = _json_rows(whole, options, answer) if options.format == "json" else _csv_rows(answer)
            except FetchError as error:  # it quotes the answer
                raise transport.printable(error) from error
            token = _next(options, whole, rows, token, answer)
            cut = token is not None and len(seen) >= options.most_pages
            if cut:
                notes, token = (f"cut off after {options.most_pages} pages",), None
            found.read(rows, options)
            if token is None or not options.is_snapshot:
                yield _page(options, found, asked, transport, token=token, notes=notes)
                found = _Rows()
            if cut or next_page(token, seen, answer.url) is None:
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Headers, parameters and body of every request of a fetch, with environment variables filled in."""

    headers: Mapping[str, str]
    params: Mapping[str, str]
    body: object


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A row: its value, its name in the enclosing list or object, and the enclosing row."""

    value: Any
    key: str = ""
    around: _Entry | None = None

    def field(self, path: str) -> Any:
        """Return the value at a dotted path of the row, None if absent."""
        entry: _Entry | None = self
        while entry is not None and path.split(".")[0] == _AROUND:
            entry, path = entry.around, path.partition(".")[2]
        if entry is None:
            return None
        return entry.key if path == _KEY else at_path(entry.value, path)


def at_path(value: Any, path: str) -> Any:
    """Return the value at a dotted path, None if absent.

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


def _fetch_answer(
    options: HttpOptions, transport: Transport, url: str, query: Mapping[str, str], request: _Request
) -> tuple[Response, Any]:
    """Return the answer and, for JSON, its parsed content; an answer that is not JSON may be truncated and is retried."""

    def once() -> tuple[Response, Any]:
        answer = transport.ask_once(
            options.method, url, params=query or None, headers=request.headers, body=request.body
        )
        return answer, answer.json() if options.format == "json" else None

    return transport.patiently(once)


def _fill_variables(table: Mapping[str, str], transport: Transport) -> dict[str, str]:
    """Fill environment variables into headers or parameters."""
    filled: dict[str, str] = _filled_in(table, transport)
    for name, text in filled.items():
        if any(ord(character) < 32 for character in text):
            raise FetchError(f"header or parameter {name!r} has a control character in it")
    return filled


def _filled_in(value: Any, transport: Transport) -> Any:
    """Fill environment variables into the texts of a JSON value; their values become secrets."""
    if isinstance(value, Mapping):
        return {name: _filled_in(element, transport) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_filled_in(element, transport) for element in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _from_environment(match[1], transport), value)
    return value


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
    """Return the token of the next page, None at the end; raises `FetchError` for a link to another host."""
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
    # Credentials in headers are sent only to the host in the settings, never to a host named by an answer.
    if elsewhere:
        raise FetchError(
            f"{answer.url} has a next page on another host",
            expected=f"one on {urlsplit(options.place).netloc}",
            remedy="use paging by page or cursor",
        )
    return link


def _json_rows(whole: Any, options: HttpOptions, answer: Response) -> list[_Entry]:
    """Return the entries at the path ``rows``; raises `FetchError` if the answer has no list there."""
    names = options.rows.split(".") if options.rows else []
    entries = [_Entry(value=whole)]
    path: list[str] = []
    for name in names if names[-1:] == [_EACH] else [*names, ""]:
        if name not in (_EACH, ""):
            path.append(name)
            continue
        entries = [
            _Entry(value=value, key=key, around=entry)
            for entry in entries
            for key, value in _each(
                at_path(entry.value, ".".join(path)), options, answer, keyed=name == _EACH
            )
        ]
        path = []
    return entries


def _each(found: Any, options: HttpOptions, answer: Response, *, keyed: bool) -> list[tuple[str, Any]]:
    if isinstance(found, list):
        return [(str(number), value) for number, value in enumerate(found)]
    if isinstance(found, Mapping) and keyed:
        return [(str(name), value) for name, value in found.items()]
    raise FetchError(
        f"{answer.url} has no list of rows at {options.rows or 'the top'!r}: {answer.text()[:80]!r}",
        remedy="correct the option rows" + ("" if keyed else f"; {_EACH} reads the entries of an object"),
    )


def _csv_rows(answer: Response) -> list[_Entry]:
    csv.field_size_limit(_LARGEST_FIELD)
    try:
        return [_Entry(value=row) for row in csv.DictReader(io.StringIO(answer.text()), strict=True)]
    except csv.Error as error:
        raise FetchError(f"{answer.url} is no CSV: {error}") from error


class _Rows:
    """Rows of several answers, with the number of rows left out."""

    def __init__(self) -> None:
        self._found: list[tuple[Kind, Row, str]] = []
        self._left_out: Counter[str] = Counter()
        self._lines = 0

    def read(self, entries: Sequence[_Entry], options: HttpOptions) -> None:
        """Add the entries of an answer."""
        unread = _unread_fields(entries, options)
        for entry in entries:
            self._lines += 1
            raw = json.dumps(entry.value, default=str)[:1000]
            if not isinstance(entry.value, Mapping):
                self._found.append((*rejection(self._lines, raw, because("record.not_row")), raw))
                continue
            fields = {name: _text_at(entry, name, options) for name in options.where}
            failed = [name for name, condition in options.where.items() if not condition.holds(fields[name])]
            if failed:
                self._left_out[f"where {failed[0]} is {fields[failed[0]][:40]!r}"] += 1
                continue
            self._found.append((*_row(self._lines, entry, options, raw, unread), raw))

    def notes(self) -> tuple[str, ...]:
        """Return notes on the rows left out."""
        return left_out(self._left_out)

    def settled(self, options: HttpOptions, at: datetime) -> list[tuple[Kind, Row]]:
        """Return the rows read ``at`` a time; differing rows of the same market are rejected or combined as ``several`` defines."""
        settled: list[tuple[Kind, Row]] = []
        groups: dict[tuple[object, ...], list[tuple[Row, Decimal, str]]] = {}
        for kind, row, raw in self._found:
            is_usable = kind == options.kind and _is_in_force(row, at)
            number = _number(row, options) if is_usable else None
            if number is None:  # for the store to reject
                settled.append((kind, row))
            else:
                key = tuple(row.get(name) for name in (*_IDENTITY, *_SOLD_BY, *_MACHINE))
                groups.setdefault(key, []).append((row, number, raw))
        for same in groups.values():
            settled += _settle_market(same, options)
        return sorted(settled, key=lambda entry: int(entry[1]["line"]))


def _number(row: Row, options: HttpOptions) -> Decimal | None:
    """Return the price or count of a row, None if it has none or its market is incomplete."""
    if not all(row.get(name) for name in _IDENTITY[:4]):
        return None
    try:
        if options.kind == "price":
            return price_of(row.get("price_usd"), "price_usd")
        count = parsed_decimal(str(row.get("available")))
    except ValueError:  # `NoPrice` too
        return None
    return count if count >= 0 else None


def _is_in_force(row: Row, at: datetime) -> bool:
    """Return whether the price of a row is in force at its time, else ``at`` the time of reading, as far as the row states it."""
    observed = _time(row.get("observed_at")) or at
    return not why_not_in_force(_time(row.get("valid_from")), _time(row.get("valid_until")), observed)


def _time(found: object) -> datetime | None:
    """Return a time as the store reads it, None for another text, which the store rejects."""
    try:
        time = datetime.fromisoformat(str(found).strip())
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _settle_market(same: Sequence[tuple[Row, Decimal, str]], options: HttpOptions) -> list[tuple[Kind, Row]]:
    """Return the rows of a market: unchanged if they agree, else a single row as ``several`` defines, or all as rejected."""
    if len({_row_content(row) for row, _, _ in same}) == 1:
        return [(options.kind, row) for row, _, _ in same]
    if options.several == "reject":
        words = because("record.disagrees", len(same))
        return [rejection(int(row["line"]), raw, words) for row, _, raw in same]
    ordered = sorted(same, key=lambda entry: (entry[1], _row_content(entry[0])))
    if options.several != "sum":
        return [(options.kind, ordered[0 if options.several == "lowest" else -1][0])]
    total = {**ordered[0][0], "available": str(sum(number for _, number, _ in same))}
    total.pop("capacity", None)
    return [(options.kind, total)]


def _row_content(row: Row) -> str:
    """Return the content of a row as text, without its line number."""
    return json.dumps({**row, "line": 0}, sort_keys=True, default=str)


def _page(
    options: HttpOptions,
    found: _Rows,
    request: FetchRequest,
    transport: Transport,
    *,
    token: str | None,
    notes: tuple[str, ...],
) -> FetchedPage:
    at = request.observed_at(transport.server_date)
    constants = {"source": options.source, "file": options.source, "observed_at": at}
    rows = found.settled(options, at)
    memory = None
    if options.kind == "availability":
        constants |= {"gap_seconds": int(request.every.total_seconds())}
    if options.absent == "zero":
        listed = {_name(row) for kind, row in rows if kind == "availability"}
        known = set(request.mark(WHOLE).memory)
        if not notes:  # if the answer was cut off, the absence of a market proves nothing
            rows += [("availability", _nothing(name, options)) for name in sorted(known - listed)]
        memory = tuple(sorted(known | listed))
    return FetchedPage(
        part=WHOLE,
        batches=tuple(pack(rows, constants)),
        token=token,
        memory=memory,
        notes=notes + found.notes(),
    )


def _name(row: Row) -> str:
    return json.dumps([row.get(name) for name in _IDENTITY[:4]])


def _nothing(name: str, options: HttpOptions) -> Row:
    """Return a row with 0 instances for a market that was listed before."""
    row: dict[str, Any] = dict(zip(_IDENTITY[:4], json.loads(name), strict=True))
    row |= {"available": "0", "truncated": "false", "line": 0}
    kind = options.columns.get("kind", "")
    return row | ({"kind": kind[1:]} if kind.startswith("=") else {})


def _text_at(entry: _Entry, field: str, options: HttpOptions) -> str:
    found = _found_at(entry, field, options)
    return "" if found is None else _plain(found)


def _found_at(entry: _Entry, field: str, options: HttpOptions) -> Any:
    return entry.value.get(field) if options.format == "csv" else entry.field(field)


def _unread_fields(
    entries: Sequence[_Entry], options: HttpOptions
) -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """Return by field the column of ours that it states for rows that are no spot prices, and these texts (`non_spot_values`).

    Fields that the options name count by the options only, and so do unit and currency of prices with a factor.
    """
    named = {*options.where, *options.scale.values(), *options.columns.values()}
    named |= {part for text in options.columns.values() for part in _PLACEHOLDER.findall(text)}
    rows = [entry.value for entry in entries if isinstance(entry.value, Mapping)]
    names = dict.fromkeys(name for row in rows for name in row if name not in named)
    found = {}
    for name in names:
        texts = {_plain(row[name]) for row in rows if isinstance(row.get(name), str | bool)}
        column, other = non_spot_values(plain_name(str(name)), texts)
        if other and column not in options.columns and not (options.scale and column in ("unit", "currency")):
            found[name] = column, other
    return found


def _row(
    line: int,
    entry: _Entry,
    options: HttpOptions,
    raw: str,
    unread: Mapping[str, tuple[str, Mapping[str, str]]],
) -> tuple[Kind, Row]:
    values: dict[str, Any] = {"line": line}
    for name, (column, other) in unread.items():
        if text := other.get(_text_at(entry, name, options)):
            values.setdefault(column, text)
    for name, field in options.columns.items():
        if field.startswith("="):
            values[name] = field[1:]
            continue
        names = _PLACEHOLDER.findall(field)
        parts = {column: _found_at(entry, column, options) for column in names or [field]}
        if any(isinstance(part, list | Mapping) for part in parts.values()):
            return rejection(line, raw, because("record.nested", name))
        if any(part is None or part == "" for part in parts.values()):
            values[name] = None
        elif names:
            values[name] = _filled_text(field, parts)
        else:
            values[name] = _plain(parts[field])
    values |= _by_headings(options)
    try:
        for name, factor in options.scale.items():
            values[name] = _scale_price(values[name], factor, _factor(entry, factor, options))
    except NoPrice as error:
        return rejection(line, raw, error.reason.of(name))
    if "available" in values and values["available"] is not None:
        text = str(values["available"])
        values["available"] = str(options.words.get(text, {"true": 1, "false": 0}.get(text, text)))
    if "observed_at" in values and options.time in PER_SECOND:
        values["observed_at"] = iso_of_epoch(values["observed_at"], options.time)
    if reason := _why_refused(entry, values, options):
        return rejection(line, raw, reason)
    return options.kind, values


def _why_refused(entry: _Entry, values: Row, options: HttpOptions) -> str:
    """Return why a row cannot be used: its time is in the zone of another field, or its count is of GPUs; "" if it can."""
    plain = {
        plain_name(str(name)): _plain(value)
        for name, value in entry.value.items()
        if isinstance(value, str | int | float)
    }
    if zone := non_utc_zone(plain, str(values.get("observed_at") or "")):
        return because("time.other_zone", repr(zone))
    headings = (options.columns.get(name, "").rpartition(".")[2] for name in ("available", "capacity"))
    if any(map(counts_gpus, headings)):
        gpus = gpus_in(str(values.get("instance_type") or ""), str(values.get("gpus") or "")) or 1
        return "" if gpus == 1 else because("record.counts_gpus", f"{gpus:g}")
    return ""


def _by_headings(options: HttpOptions) -> dict[str, str]:
    """Return unit and currency that the names of fields of prices without a factor state, if not USD per instance-hour."""
    found: dict[str, str] = {}
    for name in ("price_usd", "on_demand_usd"):
        field = options.columns.get(name, "=")
        if name not in options.scale and not field.startswith("="):
            heading = field.rpartition(".")[2]
            found |= {"unit": price_unit(heading) or found.get("unit", "")}
            found |= {"currency": currency_of(heading) or found.get("currency", "")}
    return {column: text for column, text in found.items() if text and column not in options.columns}


def _filled_text(text: str, parts: Mapping[str, Any]) -> str:
    """Fill fields into the braces of a text, with their spaces replaced by ``_``."""
    return _PLACEHOLDER.sub(lambda match: _plain(parts[match[1]]).strip().replace(" ", "_"), text)


def _factor(entry: _Entry, factor: str, options: HttpOptions) -> object:
    try:
        parsed_decimal(factor)
    except ValueError:
        return _found_at(entry, factor, options)
    return factor


def _scale_price(text: object, name: str, factor: object) -> object:
    """Multiply a price; one that is no number stays, for the store to reject. Raises `NoPrice` for an invalid factor."""
    times = price_of(factor, name)
    try:
        return None if text is None else f"{parsed_decimal(str(text)) * times:f}"
    except ValueError:
        return text


def _plain(found: object) -> str:
    """Return a field as text, for the store to cast and check."""
    return found if isinstance(found, str) else str(found).lower() if isinstance(found, bool) else str(found)
