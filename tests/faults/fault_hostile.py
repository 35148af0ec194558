"""Files as an attacker or a bad disk would make them: valid files of each source, broken in one or several ways."""

import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from fault_samples import OPTIONS, sample_files
from fault_tables import digest_of, imported

from slackwater.warehouse.errors import InputError, SlackwaterError
from slackwater.warehouse.observations import Appended, ingest_file
from slackwater.warehouse.sources import SOURCES
from slackwater.warehouse.sources.contract import SourceOptions
from slackwater.warehouse.store.connection import Store, open_store

ABSURD = (
    b"1e308", b"-1", b"NaN", b"inf", b"-Infinity", b"1e999", b"", b"9" * 400, b"0x10", b"-0.0", b"1_000", b"2147483648",
    b"9223372036854775808", b"1e-320", b"true", b"null", "\u0661\u0662".encode(), b"0001-01-01", b"9999-12-31T23:59:60Z",
    b"infinity", b"epoch", b"+00:00", b"1970-01-01T00:00:00+99:99", b"[]", b"{}",
)  # fmt: skip
NAMES = (
    b"'); DROP TABLE price; --", b'" OR 1=1 --', b"$1", b"../../../../etc/passwd", b"..\\..\\windows", b"/dev/stdin",
    b"<script>alert(1)</script>", b"{{ 7*7 }}", b"%s%n", b"a\x00b", b"\x1b[2J", "\u202egnp".encode(), b"=cmd|' /C calc'!A0",
    "\U0001f4a5".encode() * 50, b"x" * 1_000_000, b"\xff\xfe", b"a/b@c", b" ", b"\xc2\xa0", b"NULL",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORD = re.compile(rb"[A-Za-z][A-Za-z0-9_.\-]{2,}")

Change = Callable[[random.Random, bytes], bytes]


def _one_of(pattern: re.Pattern[bytes], others: tuple[bytes, ...]) -> Change:
    def change(rng: random.Random, content: bytes) -> bytes:
        found = list(pattern.finditer(content))
        for match in sorted(
            rng.sample(found, min(len(found), rng.choice((1, 1, 3, 12)))), key=lambda m: -m.start()
        ):
            content = content[: match.start()] + rng.choice(others) + content[match.end() :]
        return content

    return change


def _lines(work: Callable[[random.Random, list[bytes]], list[bytes]]) -> Change:
    return lambda rng, content: b"\n".join(work(rng, content.split(b"\n")))


def _shuffled(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    head, *rest = lines
    rng.shuffle(rest)
    return [head, *rest]


def _doubled(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    at = rng.randrange(len(lines))
    return lines[:at] + lines[at : at + rng.randint(1, 20)] * rng.randint(2, 4) + lines[at + 1 :]


def _flipped(rng: random.Random, content: bytes) -> bytes:
    raw = bytearray(content)
    for _ in range(rng.choice((1, 5, 50))):
        if raw:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def _put(*pieces: bytes) -> Change:
    def change(rng: random.Random, content: bytes) -> bytes:
        at = rng.randint(0, len(content))
        return content[:at] + rng.choice(pieces) + content[at:]

    return change


CHANGES: dict[str, Change] = {
    "cut": lambda rng, content: content[: rng.randint(0, len(content))],
    "cut in front": lambda rng, content: content[rng.randint(0, len(content)) :],
    "hole": lambda rng, content: content[: (at := rng.randint(0, len(content)))] + content[at + rng.randint(1, 400) :],
    "twice": lambda rng, content: content + content,
    "lines doubled": _lines(_doubled),
    "lines in another order": _lines(_shuffled),
    "absurd numbers": _one_of(_NUMBER, ABSURD),
    "hostile names": _one_of(_WORD, NAMES),
    "flipped bytes": _flipped,
    "nul bytes": _put(b"\x00", b"\x00" * 5000),
    "byte order mark": lambda rng, content: rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xef\xbb\xbf" * 2)) + content,
    "utf-16": lambda rng, content: content.decode("utf-8", "replace").encode("utf-16"),
    "line ends": lambda rng, content: content.replace(b"\n", rng.choice((b"\r", b"\r\n", b"\n\n", b"\x0b", b"\xe2\x80\xa8"))),
    "quotes": _put(b'"', b"'", b'"""', b'"\n"', b'\\"'),
    "separators": _put(b",,,", b"\t", b";", b"," * 3000),
    "braces": _put(b"{", b"[", b"[" * 5000, b"}", b'{"a":' * 2000),
    "a huge field": _put(b"z" * 1_000_000),
}  # fmt: skip


def _cells(rng: random.Random, content: bytes) -> bytes:
    """Return a Parquet table of the same columns, as text, with some absurd, hostile or non-text cells."""
    table = pq.read_table(pa.BufferReader(content))
    columns = {}
    for name in table.column_names:
        cells = [str(cell).encode() for cell in table[name].to_pylist()]
        for _ in range(rng.choice((0, 0, 1, 3))):
            cells[rng.randrange(len(cells))] = rng.choice((*ABSURD, *NAMES[:-6], b"\xc3", b"\xed\xa0\x80"))
        columns[name] = pa.array(cells, pa.binary()).cast(pa.string(), safe=False)
    made = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), made, row_group_size=rng.choice((7, 1000)))
    return made.getvalue().to_pybytes()


#: Changes of tables that are not text.
TABLE_CHANGES: dict[str, Change] = {
    "cells": _cells, **{name: CHANGES[name] for name in ("cut", "cut in front", "hole", "twice", "flipped bytes", "nul bytes")},
}  # fmt: skip


@dataclass(slots=True)
class Fuzzed:
    """Results for hostile files."""

    files: int = 0
    refused: int = 0
    kept: int = 0
    read: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    digest: dict[str, list[str]] | None = None
    """Of the warehouse after a file that was refused; None where it is another one since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A valid file of one form of a source."""

    source: str
    name: str
    content: bytes

    @property
    def form(self) -> str:
        """The name of the form: source and file name."""
        return f"{self.source} {self.name}"


def samples(rows: int = 30) -> list[Sample]:
    """Return one file of every form of every source, including the tidy tables as Parquet."""
    found = [
        Sample(source=source, name=name, content=text.encode())
        for source, own in sample_files(rows).items()
        for name, text in own.items()
        if name not in ("h100_1.json", "h100_2.json")  # same form as the first
    ]
    for one in [one for one in found if one.source == "tabular"]:
        head, *lines = [line.split(",") for line in one.content.decode().splitlines()]
        whole = [line for line in lines if len(line) == len(head)]
        made = pa.BufferOutputStream()
        pq.write_table(pa.table({name: [line[i] for line in whole] for i, name in enumerate(head)}), made)
        name = one.name.replace(".csv", ".parquet")
        found.append(Sample(source=one.source, name=name, content=made.getvalue().to_pybytes()))
    return found


#: Files per warehouse, and the largest number of broken files of a form in it.
TOGETHER = 100


def fuzz(folder: Path, *, files: int, seed: int) -> Fuzzed:
    """Ingest ``files`` broken files of every form in turn into one warehouse, and finally valid files."""
    told, rng, every = Fuzzed(), random.Random(f"{seed} hostile"), samples()
    with open_store(":memory:") as store:
        for number in range(files):
            _broken(store, folder, every[number % len(every)], rng, told, f"file {number} of seed {seed}")
        _good_ones_beside(store, folder, told)
    return told


def fuzz_form(folder: Path, sample: Sample, *, files: int, seed: int) -> Fuzzed:
    """Ingest ``files`` broken files of one form, `TOGETHER` per warehouse."""
    told, rng = Fuzzed(), random.Random(f"{seed} {sample.form}")
    for start in range(0, files, TOGETHER):
        told.digest = None
        with open_store(":memory:") as store, tempfile.TemporaryDirectory(dir=folder) as own:
            for number in range(start, min(start + TOGETHER, files)):
                _broken(store, Path(own), sample, rng, told, f"file {number} of seed {seed}")
    return told


def _broken(store: Store, folder: Path, sample: Sample, rng: random.Random, told: Fuzzed, which: str) -> None:
    """Ingest one broken file of a form under a valid name."""
    known = TABLE_CHANGES if sample.name.endswith(".parquet") else CHANGES
    content = sample.content
    changes = [rng.choice(list(known)) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if "cells" in changes:
        changes = ["cells", *(one for one in changes if one != "cells")]  # of a table that can still be read
    for change in changes:
        content = known[change](rng, content)
    path = folder / sample.source / str(told.files) / sample.name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    told.changes += Counter(changes)
    _ingest_one(store, sample.source, path, told, f"{which} ({sample.name}: {', '.join(changes)})")
    told.files += 1


def _ingest_one(store: Store, source: str, path: Path, told: Fuzzed, where: str) -> None:
    """Ingest a file under a separate label: a refused file leaves nothing, an accepted file has all its rows accounted for."""
    options = SourceOptions(values={**OPTIONS[source], "source": "hostile"})
    before, told.digest = told.digest or digest_of(store), None
    try:
        done = ingest_file(store, SOURCES[source], path, options=options)
    except SlackwaterError as error:
        told.refused += 1
        told.digest = digest_of(store)
        if told.digest != before or not str(error).strip() or len(str(error)) > 5000:
            told.failures.append(f"{where}: refused ({str(error)[:200]}), but something of it stayed")
        if not isinstance(error, InputError):
            told.failures.append(f"{where}: refused by {type(error).__name__} ({str(error)[:200]})")
        return
    except Exception as error:
        told.failures.append(f"{where}: {error!r}"[:500])
        return
    batches = list(SOURCES[source].read(path, options))
    read = sum(batch.table.num_rows for batch in batches)
    told.kept += 1
    told.read += read
    told.rows += Counter(added=done.added, repeated=done.repeated, rejected=done.rejected)
    counted = imported(store)
    if done.added + done.repeated + done.rejected != read:
        told.failures.append(f"{where}: {read} rows read, {done} accounted for")
    if counted["added"] != counted["held"] or counted["unkept"]:
        told.failures.append(f"{where}: the warehouse holds other rows than it counted: {counted}")
    lines = {int(line) for batch in batches for line in batch.table["line"].to_pylist() if line is not None}
    missing = sorted(rows_of_file(path) - lines)
    if missing:
        told.failures.append(
            f"{where}: nothing is told of {len(missing)} of its rows, the first {missing[:5]}"
        )


_AN_EVENT = re.compile(rb"\d+\s*,\s*(add|remove)\s*,\s*\S+\s*")


def _pages(text: str) -> Iterator[list]:
    """Yield the rows of each JSON document in a text, as far as it is valid; a bare list, or objects in lines, are rows."""
    reader, place = json.JSONDecoder(parse_int=str), 0
    while place < len(text):
        try:
            found, place = reader.raw_decode(text, place + len(text[place:]) - len(text[place:].lstrip()))
        except ValueError:
            return
        if isinstance(found, list):
            yield found
        elif isinstance(found, dict):
            yield found.get("SpotPriceHistory") or found.get("data") or found.get("zone_results") or []


def rows_of_file(path: Path) -> set[int]:
    """Return the numbers of the file's rows as its source numbers them, computed without the source."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        return set(range(1, pq.read_metadata(path).num_rows + 1))
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = content.decode("utf-16", "replace").encode("utf-8", "surrogatepass")
    if path.suffix == ".json":
        return set(range(1, sum(map(len, _pages(content.decode("utf-8-sig", "surrogateescape")))) + 1))
    by_arrow = path.suffix == ".csv" and path.name != "events.csv"
    lines = re.split(rb"\r\n|\r|\n" if by_arrow and b'"' not in content else rb"\n", content)
    if not lines[-1]:
        lines.pop()
    first = 2 if by_arrow else 1
    every = set(range(first, len(lines) + 1))
    if path.name == "events.csv":  # an event is no row: it changes the counts of minutes
        every -= {number for number in every if _AN_EVENT.fullmatch(lines[number - 1])}
    return every


def _good_ones_beside(store: Store, folder: Path, told: Fuzzed) -> None:
    """Check that valid files are imported as if there had been no broken files."""
    with open_store(":memory:") as fresh:
        for source, files in sample_files(30).items():
            for name, text in files.items():
                path = folder / "good" / source / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                options = SourceOptions(values={**OPTIONS[source], "source": "good"})
                here: Appended = ingest_file(store, SOURCES[source], path, options=options)
                if here != (there := ingest_file(fresh, SOURCES[source], path, options=options)):
                    told.failures.append(
                        f"good file {source}/{name}: {here} beside hostile ones, {there} alone"
                    )
