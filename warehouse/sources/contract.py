"""What a source of observations is: files in, canonical Arrow tables out, nothing lost on the way.

A source only translates. It does no casting, no de-duplication and no filtering of its own: every row it finds goes into
a `Batch` as found (text where the file has text), with the file and line it came from. The store casts, validates,
counts and keeps the rows that cannot be used. A file that is not of the source's format at all is refused with
`SourceFileError`, which names the file, the line and the remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from warehouse.errors import SettingsError
from warehouse.packaged import read_data

Kind = Literal["price", "availability", "rejected"]

#: Columns of a ``price`` batch. All may be text; ``observed_at`` ISO 8601 text or a timestamp (`Source.time_zone`). The store
#: judges ``mode`` (how the instance is bought), ``unit``, ``currency``, ``valid_from`` and ``valid_until`` as found, and rejects
#: what is no spot price in USD per instance-hour that is in force; null states nothing.
PRICE_COLUMNS = (
    "source", "provider", "region", "zone", "instance_type", "product", "observed_at",
    "price_usd", "on_demand_usd", "mode", "unit", "currency", "valid_from", "valid_until", "known_at", "file", "line",
)  # fmt: skip
#: Columns of an ``availability`` batch. ``kind``: probe, held, offers; or score, a placement score that is no count of instances
#: and is kept apart from them (``available`` = the score, ``capacity`` = its best value).
AVAILABILITY_COLUMNS = (
    "source", "provider", "region", "zone", "instance_type", "observed_at", "available", "capacity",
    "gap_seconds", "kind", "truncated", "mode", "known_at", "file", "line",
)  # fmt: skip
#: Columns of a ``rejected`` batch: rows that could not even be taken apart.
REJECTED_COLUMNS = ("file", "line", "raw", "reason")
#: Why a row with half a surrogate pair in a text is rejected.
HALF_CHARACTER = "has half a character in it"
#: The reason of a row with bytes that are no text. Until it is set aside they stand in its texts as `surrogateescape` has them.
NOT_UTF8 = "bytes that are not UTF-8"
_LOOSE_BYTE = re.compile("[\udc80-\udcff]")
#: Most rows of a batch built row by row; files read through Arrow are cut by bytes instead.
CHUNK_ROWS = 50_000

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "price": PRICE_COLUMNS,
    "availability": AVAILABILITY_COLUMNS,
    "rejected": REJECTED_COLUMNS,
}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
#: Types of columns that a source leaves out, and of Python values it hands over.
_TYPES: dict[str, pa.DataType] = {
    "observed_at": _TIMESTAMP,
    "known_at": _TIMESTAMP,
    "price_usd": pa.float64(),
    "on_demand_usd": pa.float64(),
    "available": pa.int64(),
    "capacity": pa.int64(),
    "gap_seconds": pa.int64(),
    "truncated": pa.bool_(),
    "line": pa.int64(),
}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One chunk of rows of one kind, with the columns named above (missing optional ones are null)."""

    kind: Kind
    table: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user says about files that do not say it themselves.

    ``values`` holds the source's own named options (``zone``, ``instance_type``, ``start``, ...), each documented by the source:
    a text, or a table of texts (the columns of `tabular`).
    """

    values: Mapping[str, str | Mapping[str, str]]


class Source(Protocol):
    """A reader of one file format, or of what stands for files."""

    name: str
    """The word used on the command line."""
    has_files: bool
    """False where rows come from no file: then there are no bytes to tell one import from another by."""
    examples: Mapping[str, str]
    """File name -> the smallest file of that form, text only: shown with the options, and held to the contract by the tests."""

    @property
    def options(self) -> Mapping[str, str]:
        """Option name -> one sentence of help, for the options it understands."""
        ...

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """The files this source reads below ``paths`` (files or folders), sorted; raises `SourceFileError` if none."""
        ...

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the rows of one file in chunks of bounded size; raises `SourceFileError` if it is not of this format."""
        ...

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """In words, what had to be assumed to read this file (for example an undated trace counting from 1970-01-01)."""
        ...

    def time_zone(self, path: Path, options: SourceOptions) -> str:
        """The zone of times without an offset: "UTC" where the format documents it, "" where nothing does (they are rejected)."""
        ...


def batch_of(kind: Kind, rows: int, columns: Mapping[str, Any]) -> Batch:
    """A batch of ``rows`` rows: Arrow arrays go in with their own type, lists are typed, scalars repeated, absent ones null."""
    arrays = [_column(name, columns.get(name), rows) for name in COLUMNS[kind]]
    return Batch(kind=kind, table=pa.table(arrays, names=list(COLUMNS[kind])))


def _column(name: str, value: Any, rows: int) -> pa.Array | pa.ChunkedArray:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value
    wanted = _TYPES.get(name, pa.string())
    if value is None:
        return pa.nulls(rows, wanted)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return _typed(list(value), wanted)
    return pa.repeat(_typed([value], wanted)[0], rows)


def _typed(values: list[Any], wanted: pa.DataType) -> pa.Array:
    if not any(isinstance(value, str) for value in values):
        try:
            return pa.array(values, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
    # Text, and what is not of the type, goes on as text: the store casts it and counts what cannot be cast.
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def pack(rows: Iterable[tuple[Kind, Row]], constants: Mapping[str, Any]) -> Iterator[Batch]:
    """Chunk (kind, row) pairs into batches, one buffer per kind; ``constants`` fill columns that rows leave out."""
    waiting: dict[Kind, list[Row]] = {"price": [], "availability": [], "rejected": []}
    for kind, row in rows:
        waiting[kind].append(row)
        if len(waiting[kind]) >= CHUNK_ROWS:
            yield from _pack_all(kind, waiting[kind], constants)
            waiting[kind] = []
    for kind, left in waiting.items():
        if left:
            yield from _pack_all(kind, left, constants)


def _pack_all(kind: Kind, rows: list[Row], constants: Mapping[str, Any]) -> Iterator[Batch]:
    """A batch of the rows; those with a text that is none (JSON can write half a character) are rejected, not the others."""
    try:
        yield _pack_one(kind, rows, constants)
    except UnicodeEncodeError:
        wanted = COLUMNS[kind]
        said = {name: value for name, value in constants.items() if name in wanted and name != "file"}
        reasons = [_half_character({**said, **row}) for row in rows]
        usable = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
        if usable:
            yield _pack_one(kind, usable, constants)
        refused = [
            {"line": row.get("line"), "raw": json.dumps({**said, **row}, default=str), "reason": reason}
            for row, reason in zip(rows, reasons, strict=True)
            if reason is not None
        ]
        yield _pack_one("rejected", refused, constants)


def _half_character(row: Row) -> str | None:
    """Why a row cannot be written because of the first text that is none, None if it can."""
    for name, value in row.items():
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            return NOT_UTF8 if _LOOSE_BYTE.match(error.object[error.start]) else f"{name} {HALF_CHARACTER}"
    return None


def is_text(text: str) -> bool:
    """Whether no byte of a line that was read with `surrogateescape` was other than UTF-8."""
    return text.isascii() or _LOOSE_BYTE.search(text) is None


#: Characters of a reason that quotes what it found.
LONGEST_REASON = 300


def _readable(raw: str, reason: str) -> tuple[str, str]:
    r"""What was found of a rejected row with bytes that are no text written as ``\xff``, and the reason, which then is these.

    A reason may quote what it found, however long that is: `LONGEST_REASON` characters of it are for people.
    """
    if is_text(raw):
        return raw, reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."
    return _LOOSE_BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", raw), NOT_UTF8


def _pack_one(kind: Kind, rows: Sequence[Row], constants: Mapping[str, Any]) -> Batch:
    columns: dict[str, Any] = {}
    for name in COLUMNS[kind]:
        default = constants.get(name)
        if any(name in row for row in rows):
            columns[name] = [row.get(name, default) for row in rows]
        else:
            columns[name] = default
    return batch_of(kind, len(rows), columns)


def rejection(line: int, raw: str, reason: str) -> tuple[Kind, Row]:
    """A line that cannot be taken apart, as a row of a ``rejected`` batch."""
    raw, reason = _readable(raw, reason)
    return "rejected", {"line": line, "raw": raw, "reason": reason}


def rejected_batch(path: Path, rejected: Sequence[tuple[int, str, str]]) -> Batch:
    """A ``rejected`` batch of (line, raw text, reason) triples."""
    told = [(line, *_readable(raw, reason)) for line, raw, reason in rejected]
    lines, raw, reasons = zip(*told, strict=True) if told else ((), (), ())
    return batch_of(
        "rejected", len(rejected), {"file": str(path), "line": lines, "raw": raw, "reason": reasons}
    )


# ---
# Options of a source, declared once as a pydantic model: the fields are the names, their descriptions the help.
#
# The command line gives text, the settings give TOML; both are read here, and what cannot be used is refused with the
# name of the option.


class Options(BaseModel):
    """The options of a source without any; each source has its own model."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)


OptionsT = TypeVar("OptionsT", bound=Options)


def label_option(default: str | None, words: str = "") -> Any:
    """The field ``source`` of every model: the label of all rows."""
    return Field(default, description=f"label of all rows (default: {words or default})")


def help_of(model: type[Options]) -> dict[str, str]:
    """Option name -> one sentence of help."""
    return {name: field.description or "" for name, field in model.model_fields.items()}


def read_options(source: str, model: type[OptionsT], values: Mapping[str, Any]) -> OptionsT:
    """The options of a source as its model; raises `SettingsError` for one that it does not know or cannot use."""
    if unknown := sorted(set(values) - set(model.model_fields)):
        raise SettingsError(
            f"option {unknown[0]!r} of the source {source!r}", expected=f"one of {', '.join(help_of(model))}"
        )
    for name, value in values.items():
        if isinstance(value, bool) and not _holds(model, name, bool):  # to pydantic true is 1
            raise _refused(source, name, value, _expected(model, name))
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    raise _refused(source, name, values.get(name), _words(model, name, first))


def _refused(source: str, name: str, value: object, expected: str) -> SettingsError:
    # An address may hold a password, a table of headers a key: they are not printed.
    hidden = value is None or isinstance(value, Mapping) or "://" in str(value)
    shown = "" if hidden else f" = {value!r}"
    return SettingsError(f"option {name}{shown} of the source {source!r} cannot be used", expected=expected)


def _words(model: type[Options], name: str, error: ErrorDetails) -> str:
    """What is expected of an option: the words of our own validators, else what its type and bounds say."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return _expected(model, name)


def _holds(model: type[Options], name: str, kind: type) -> bool:
    annotation = model.model_fields[name].annotation
    return annotation is kind or kind in get_args(annotation)


def _expected(model: type[Options], name: str) -> str:
    field = model.model_fields[name]
    for part in (field.annotation, *get_args(field.annotation)):
        if get_origin(part) is Literal:
            return f"one of {', '.join(get_args(part))}"
    if _holds(model, name, bool):
        return "true or false"
    for kind, words in ((int, "a whole number"), (float, "a number")):
        if _holds(model, name, kind):
            low = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
            high = next((one.le for one in field.metadata if hasattr(one, "le")), None)
            return f"{words} of at least {low}" if high is None else f"{words} from {low} to {high}"
    return "a text"


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of texts")
    return tuple(one.strip() for one in value if one.strip())


def _table(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str | int | float) and not isinstance(one, bool) for one in value.values()
    ):
        raise ValueError("a table of texts")
    return {str(key): str(one) for key, one in value.items()}


def _moment(value: object) -> datetime | None:
    if value is None or isinstance(value, datetime):
        at = value
    else:
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError as error:
            raise ValueError("a time such as 2023-08-27T00:00Z") from error
    if at is None:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        usable = False
    else:
        usable = usable and "@" not in parts.netloc
    if not usable:
        raise ValueError("http://host/... or https://host/... without user and password")
    return text.rstrip("/")


#: A list of texts, or one text with commas.
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
#: A table of texts and numbers, as texts.
Table = Annotated[dict[str, str], BeforeValidator(_table)]
#: A time in ISO 8601; without a zone it is UTC.
Moment = Annotated[datetime | None, BeforeValidator(_moment)]
#: An http(s) address without user and password, as those would be printed; a trailing slash is dropped.
Address = Annotated[str, AfterValidator(_address)]


# ---
# What is known about sources that their files do not say: patterns on the source label, with the reason.


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """Glob patterns (case-sensitive, ``*`` also matches ``/``) on the source label.

    ``no_clock``: the time of day is unknown, so hour and weekday mean nothing. ``price_of_every_probe``: the price was
    read at every probe and stored when it changed, so it holds for as long as the same source's probes go on.
    """

    no_clock: tuple[str, ...] = ()
    price_of_every_probe: tuple[str, ...] = ()

    def real_clock(self, source: str) -> bool:
        """Whether hour of day and weekday of this source mean anything."""
        return not matches(source, self.no_clock)

    def probed_price(self, source: str) -> bool:
        """Whether this source's prices were read at each of its probes."""
        return matches(source, self.price_of_every_probe)


def matches(source: str, patterns: tuple[str, ...]) -> bool:
    """True if any pattern matches the source label."""
    return any(fnmatchcase(source, pattern) for pattern in patterns)


@cache
def known_conventions() -> Conventions:
    """What ``warehouse/sources/data/conventions.toml`` says, with a reason for each pattern."""
    content = read_data(__package__, "conventions")
    return Conventions(
        no_clock=tuple(str(entry["source"]) for entry in content["no_clock"]),
        price_of_every_probe=tuple(str(entry["source"]) for entry in content["price_of_every_probe"]),
    )
