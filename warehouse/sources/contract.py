"""Interface of a source of observations: it reads files and returns canonical Arrow tables, without losing rows.

A source only translates. It does not cast, remove duplicates or filter: every row it finds goes into a
`Batch` as found (as text if the file has text), with its file and line. The store casts, validates and counts
the rows, and stores those that cannot be used as rejected. A file that is not of the source's format is
refused with `SourceFileError`, which names the file, the line and the remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from slackwater.warehouse.amounts import parsed_number
from slackwater.warehouse.columns import ARROW_TYPES, COLUMN, StatedReason, because, columns_of
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.inputs import InputModel

Kind = Literal["price", "availability", "rejected"]

#: Columns of a ``price`` batch. All may be text; ``observed_at`` is ISO 8601 text or a timestamp
#: (`Source.time_zone`). The store checks ``mode`` (how the instance is bought), ``unit``,
#: ``currency``, ``valid_from`` and ``valid_until`` as found, and rejects rows that are no valid spot
#: price in USD per instance-hour; null states nothing.
PRICE_COLUMNS = tuple(column.name for column in columns_of("price"))
#: Columns of an ``availability`` batch. ``kind``: probe, held or offers; or score or band, a rating of the provider
#: (`RATINGS`), which is no number of instances (``available`` = the rating, ``capacity`` = its maximum).
AVAILABILITY_COLUMNS = tuple(column.name for column in columns_of("availability"))
#: Columns of a ``rejected`` batch: rows that could not be parsed.
REJECTED_COLUMNS = ("file", "line", "raw", "reason", "code")
#: Reason of a rejected row with bytes that are not UTF-8. Until then its texts hold these bytes in
#: the form of the error handler "surrogateescape".
NOT_UTF8 = because("line.not_utf8")
_LOOSE_BYTE = re.compile("[\udc80-\udcff]")
#: Maximum number of rows of a batch built row by row; files read through Arrow are cut by bytes instead.
CHUNK_ROWS = 50_000

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "price": PRICE_COLUMNS,
    "availability": AVAILABILITY_COLUMNS,
    "rejected": REJECTED_COLUMNS,
}
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A chunk of rows of a single kind, with the columns named above (missing optional columns are null)."""

    kind: Kind
    table: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """User-supplied facts that the files do not contain.

    ``values``: the source's named options (``zone``, ``instance_type``, ``start``, ...), documented
    by the source; each is a text, or a table of texts (the columns of the source ``tabular``).
    """

    values: Mapping[str, str | Mapping[str, str]]


class Source(Protocol):
    """A reader of a file format, or of a generator used in place of files."""

    name: str
    """Name on the command line."""
    has_files: bool
    """False if rows do not come from files, so that an import cannot be identified by file content."""
    examples: Mapping[str, str]
    """File name -> the smallest file of that format, text only; shown with the options and used by the contract tests."""

    @property
    def options(self) -> Mapping[str, str]:
        """Return the supported options: name -> help text."""
        ...

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Return the files that this source reads in ``paths`` (files or folders), sorted; raises `SourceFileError` if none."""
        ...

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the rows of a file in chunks of bounded size; raises `SourceFileError` if it is not of this format."""
        ...

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """Return sentences on the assumptions made for this file (for example an undated trace counted from 1970-01-01)."""
        ...

    def time_zone(self, path: Path, options: SourceOptions) -> str:
        """Return the zone of times without offset: "UTC" if the format documents it, else "" (such times are rejected)."""
        ...


def batch_of(kind: Kind, rows: int, columns: Mapping[str, Any]) -> Batch:
    """Return a batch: Arrow arrays are used unchanged, lists are typed, scalars are repeated, absent columns are null."""
    arrays = [_column(name, columns.get(name), rows) for name in COLUMNS[kind]]
    return Batch(kind=kind, table=pa.table(arrays, names=list(COLUMNS[kind])))


def _column(name: str, value: Any, rows: int) -> pa.Array | pa.ChunkedArray:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value
    wanted = ARROW_TYPES[COLUMN[name].type] if name in COLUMN else pa.string()
    if value is None:
        return pa.nulls(rows, wanted)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return _typed_array(list(value), wanted)
    return pa.repeat(_typed_array([value], wanted)[0], rows)


def _typed_array(values: list[Any], wanted: pa.DataType) -> pa.Array:
    if not any(isinstance(value, str) for value in values):
        try:
            return pa.array(values, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
    # Text and values of another type become text: the store casts it and counts failures.
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def pack(rows: Iterable[tuple[Kind, Row]], constants: Mapping[str, Any]) -> Iterator[Batch]:
    """Group (kind, row) pairs into batches, with a buffer per kind; ``constants`` fill columns that rows lack."""
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
    """Yield a batch of the rows; rejects only those with an invalid text (JSON can contain an unpaired surrogate)."""
    try:
        yield _pack_one(kind, rows, constants)
    except UnicodeEncodeError:
        wanted = COLUMNS[kind]
        stated = {name: value for name, value in constants.items() if name in wanted and name != "file"}
        reasons = [_half_character({**stated, **row}) for row in rows]
        usable = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
        if usable:
            yield _pack_one(kind, usable, constants)
        refused = [
            {
                "line": row.get("line"),
                "raw": json.dumps({**stated, **row}, default=str),
                "reason": str(reason),
                "code": reason.code,
            }
            for row, reason in zip(rows, reasons, strict=True)
            if reason is not None
        ]
        yield _pack_one("rejected", refused, constants)


def _half_character(row: Row) -> StatedReason | None:
    """Return the rejection reason of the first text that cannot be encoded, None if all can."""
    for name, value in row.items():
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            loose = _LOOSE_BYTE.match(error.object[error.start])
            return NOT_UTF8 if loose else because("line.half_character", name)
    return None


def is_text(text: str) -> bool:
    """Return whether a line read with the error handler "surrogateescape" was valid UTF-8."""
    return text.isascii() or _LOOSE_BYTE.search(text) is None


LONGEST_REASON = 300  # Maximum number of characters of a reason, which may quote the row


def _readable(raw: str, reason: str) -> dict[str, str]:
    r"""Return the raw text, the reason and its code ("" for a reason that is not declared) of a rejected row.

    Bytes that are not UTF-8 are written as ``\xff``; the reason is then `NOT_UTF8`. Other reasons
    are cut to `LONGEST_REASON` characters.
    """
    if not is_text(raw):
        raw = _LOOSE_BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", raw)
        reason = NOT_UTF8
    code = reason.code if isinstance(reason, StatedReason) else ""
    text = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."
    return {"raw": raw, "reason": str(text), "code": code}


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
    """Return a line that cannot be parsed as a row of a ``rejected`` batch; ``reason`` as `because` returns it, or any text."""
    return "rejected", {"line": line, **_readable(raw, reason)}


def rejected_batch(path: Path, rejected: Sequence[tuple[int, str, str]]) -> Batch:
    """Return a ``rejected`` batch of (line, raw text, reason) triples."""
    return _pack_one("rejected", [rejection(*row)[1] for row in rejected], {"file": str(path)})


PER_SECOND = {"epoch_s": 1, "epoch_ms": 1000}  # Unit of a time since 1970 -> units in a second
#: Numbers from here on are milliseconds since 1970 (of 1973), below it seconds (before the year 5138).
MILLISECONDS = 1e11


def iso_of_epoch(value: object, unit: str) -> str | None:
    """Return a time since 1970 in a unit of `PER_SECOND` as ISO 8601; values of another unit as text, for the store to reject."""
    if value is None:
        return None
    try:
        number = parsed_number(str(value))
        if (number >= MILLISECONDS) != (unit == "epoch_ms"):
            return str(value)
        return datetime.fromtimestamp(number / PER_SECOND[unit], UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return str(value)


# ---
# Options of a source, declared as a pydantic model: field names are option names, descriptions are
# help texts.
#
# The command line provides text, the settings provide TOML; both are validated here, and errors
# name the option.


class Options(InputModel):
    """Options of a source that has none; base class of all option models."""

    model_config = ConfigDict(str_strip_whitespace=True)


OptionsT = TypeVar("OptionsT", bound=Options)


def label_option(default: str | None, words: str = "") -> Any:
    """Return the field ``source`` of every model: the label of all rows."""
    return Field(default, description=f"label of all rows (default: {words or default})")


def help_of(model: type[Options]) -> dict[str, str]:
    """Return option name -> help text."""
    return {name: field.description or "" for name, field in model.model_fields.items()}


def read_options(source: str, model: type[OptionsT], values: Mapping[str, Any]) -> OptionsT:
    """Validate the options of a source; raises `SettingsError` for an unknown or invalid option."""
    if unknown := sorted(set(values) - set(model.model_fields)):
        raise SettingsError(
            f"option {unknown[0]!r} of the source {source!r}", expected=f"one of {', '.join(help_of(model))}"
        )
    for name, value in values.items():
        if isinstance(value, bool) and not _has_type(model, name, bool):  # pydantic accepts true as 1
            raise _option_error(source, name, value, _expected_words(model, name))
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    raise _option_error(source, name, values.get(name), _words(model, name, first))


def _option_error(source: str, name: str, value: object, expected: str) -> SettingsError:
    # URLs may contain a password, tables of headers an API key: neither is printed.
    hidden = value is None or isinstance(value, Mapping) or "://" in str(value)
    shown = "" if hidden else f" = {value!r}"
    return SettingsError(f"option {name}{shown} of the source {source!r} cannot be used", expected=expected)


def _words(model: type[Options], name: str, error: ErrorDetails) -> str:
    """Describe the expected value of an option: the message of our validator, else its type and bounds."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return _expected_words(model, name)


def _has_type(model: type[Options], name: str, kind: type) -> bool:
    """Return whether the type of an option is ``kind`` or a union with it."""
    annotation = model.model_fields[name].annotation
    return annotation is kind or kind in get_args(annotation)


def _expected_words(model: type[Options], name: str) -> str:
    field = model.model_fields[name]
    for part in (field.annotation, *get_args(field.annotation)):
        if get_origin(part) is Literal:
            return f"one of {', '.join(get_args(part))}"
    if _has_type(model, name, bool):
        return "true or false"
    for kind, words in ((int, "a whole number"), (float, "a number")):
        if _has_type(model, name, kind):
            low = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
            high = next((bound.le for bound in field.metadata if hasattr(bound, "le")), None)
            return f"{words} of at least {low}" if high is None else f"{words} from {low} to {high}"
    return "a text"


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(element, str) for element in value):
        raise ValueError("a list of texts")
    return tuple(element.strip() for element in value if element.strip())


def _table(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(element, str | int | float) and not isinstance(element, bool) for element in value.values()
    ):
        raise ValueError("a table of texts")
    return {str(key): str(element) for key, element in value.items()}


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


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]  # A list of texts, or a text separated by commas
#: A table of texts and numbers, all converted to text.
Table = Annotated[dict[str, str], BeforeValidator(_table)]
#: A time in ISO 8601; without a zone it is in UTC.
Moment = Annotated[datetime | None, BeforeValidator(_moment)]
#: An http(s) URL without user and password, since URLs are printed; a trailing slash is dropped.
Address = Annotated[str, AfterValidator(_address)]
