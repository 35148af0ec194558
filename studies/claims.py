"""Repeat the measurements behind figures of pages: ``python -m slackwater.studies.claims [NAME ...] [--keep DIR] [--json]``.

``docs/claims.toml`` is the ledger. ``[measured.NAME]`` describes a measurement (command, seed, data, date, minutes on two cores).
Each ``[[claim]]`` quotes text of a page, with the path of each of its figures in the command's answer and the measured value. Each
``[[table]]`` describes a table of a page, found by its headings: a row has a value, or a list of values, for every cell after its
label, and a column has the path of its figures with ``{row}`` in place of the row's key. A test compares pages and ledger: every
figure of a page must be in a quoted claim, in a declared table, in text listed as plain (names, dates, settings), or in a section
listed as outside, and every figure must be the value rounded to the digits written.

The command repeats the named measurements (without names all of them, which takes hours) and prints the figures that changed.
Commands need the real histories in the folder ``SLACKWATER_DATA``. With ``--keep`` every answer is stored in a folder as
``NAME.json`` when it ends, and stored answers are compared without a new measurement, so that a run can be interrupted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEDGER = ROOT / "docs" / "claims.toml"
#: Figure in text: digits with thousands separators and decimals; not the digits of a name such as H100.
FIGURE = re.compile(r"(?<![A-Za-z\d.])(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)")
#: Figure in a table cell, with its minus sign; not the dash of a range.
SIGNED = re.compile(rf"(?:(?<![\w)%.])[-−])?{FIGURE.pattern}")
#: Parts of a page that are not prose: code blocks, inline code and link targets.
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|^    [^\n]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurement: words of a command that prints a JSON object, with ``DIR`` in place of the folder of histories."""

    name: str
    command: tuple[str, ...]
    seed: int | None
    data: str
    date: str
    minutes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFigure:
    """Figure of a claim.

    ``says``: the figure as written; ``path``: its path in the answer (None: counted by hand); ``value``: the measured value;
    ``times``: factor from the value to the written figure; ``tolerance``: allowed change of the value.
    """

    says: str
    path: str | None
    value: float
    times: float
    tolerance: float

    @property
    def rounds(self) -> bool:
        """Whether the value, rounded to the digits of the figure, equals the figure."""
        return rounded(self.value * self.times, self.says)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Text with figures that is quoted from pages."""

    measured: str
    pages: tuple[str, ...]
    text: str
    figures: tuple[ReportedFigure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedTable:
    """Table of a page: its headings, and by row label the values of each cell after the label.

    ``paths``: by heading the path of each figure of a cell, with ``{row}`` for the row's key (``keys``, by default the label
    without markup); columns without a path and rows without a key were counted by hand. ``times``: by heading the factor from
    values to written figures.
    """

    measured: str
    page: str
    heads: tuple[str, ...]
    rows: Mapping[str, tuple[tuple[float, ...], ...]]
    paths: Mapping[str, tuple[str, ...]]
    times: Mapping[str, float]
    keys: Mapping[str, str]

    def path(self, label: str, head: str, place: int) -> str | None:
        """Return the path of a cell's figure in the answer; None if it was counted by hand."""
        known = self.paths.get(head, ())
        key = self.keys.get(label) if self.keys else label.strip("*` ")
        return known[place].replace("{row}", key) or None if key and place < len(known) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All claims and tables; by page, plain text whose figures are not claims, and headings of sections that are not checked."""

    measured: Mapping[str, Measured]
    claims: tuple[Claim, ...]
    grids: tuple[QuotedTable, ...]
    plain: Mapping[str, tuple[str, ...]]
    outside: Mapping[str, tuple[str, ...]]


def number(text: str) -> float:
    """Return the number of a figure as written."""
    return float(text.replace(",", "").replace("−", "-"))


def half_a_digit(text: str) -> float:
    """Return half a unit of a figure's last digit, plus a margin for floating-point errors."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) * (1.0 + 1e-9)


def rounded(value: float, says: str) -> bool:
    """Return whether a value, rounded to the digits of a figure, equals the figure."""
    return abs(value - number(says)) <= half_a_digit(says)


def read_ledger(path: Path = LEDGER) -> Ledger:
    """Read the ledger; raise `ValueError` if an entry names an unknown measurement, or its figures differ from its text."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    measured = {
        name: Measured(
            name=name,
            command=tuple(own["command"].split()),
            seed=own.get("seed"),
            data=own["data"],
            date=str(own["date"]),
            minutes=float(own["minutes"]),
        )
        for name, own in table["measured"].items()
    }
    claims = []
    for own in table["claim"]:
        text = " ".join(own["text"].split())
        # Figures that are not taken from an answer need not be listed: their values are as written.
        figures = own.get("figures") or [{"says": says} for says in FIGURE.findall(text)]
        told = tuple(
            ReportedFigure(
                says=one["says"],
                path=one.get("path"),
                value=float(one.get("value", number(one["says"]) / one.get("times", 1.0))),
                times=float(one.get("times", 1.0)),
                tolerance=float(one.get("tolerance", half_a_digit(one["says"]) / abs(one.get("times", 1.0)))),
            )
            for one in figures
        )
        pages = own["pages"]
        claim = Claim(measured=own["measured"], pages=tuple(pages), text=text, figures=told)
        if claim.measured not in measured:
            raise ValueError(
                f"{path.name}: claim {claim.text!r} is measured by {claim.measured!r}, which is not there"
            )
        if FIGURE.findall(claim.text) != [one.says for one in told]:
            raise ValueError(
                f"{path.name}: the words {claim.text!r} have the figures {FIGURE.findall(claim.text)}, "
                f"the entry {[one.says for one in told]}"
            )
        claims.append(claim)
    plain = {page: tuple(" ".join(words.split()) for words in own) for page, own in table["plain"].items()}
    grids = tuple(_grid(own) for own in table.get("table", ()))
    for grid in grids:
        if grid.measured not in measured:
            raise ValueError(
                f"{path.name}: table {grid.heads} is measured by {grid.measured!r}, which is not there"
            )
        wrong = [label for label, row in grid.rows.items() if len(row) != len(grid.heads) - 1]
        unknown = [head for head in (*grid.paths, *grid.times) if head not in grid.heads]
        if wrong or unknown:
            raise ValueError(
                f"{path.name}: table {grid.heads} has no cell for each heading in {wrong}, and no heading {unknown}"
            )
    outside = {page: tuple(own) for page, own in table.get("outside", {}).items()}
    return Ledger(measured=measured, claims=tuple(claims), grids=grids, plain=plain, outside=outside)


def _grid(own: Mapping[str, Any]) -> QuotedTable:
    """Return a table of the ledger; a cell is a value, a list of values, or "" if it has no figures."""

    def cell(told: Any) -> tuple[float, ...]:
        return () if told == "" else tuple(map(float, told if isinstance(told, list) else [told]))

    return QuotedTable(
        measured=own["measured"],
        page=own["page"],
        heads=tuple(own["heads"]),
        rows={label: tuple(map(cell, row)) for label, row in own["rows"].items()},
        paths={
            head: tuple(told if isinstance(told, list) else [told])
            for head, told in own.get("paths", {}).items()
        },
        times={head: float(told) for head, told in own.get("times", {}).items()},
        keys=own.get("keys", {}),
    )


def without_sections(page: str, headings: Iterable[str]) -> str:
    """Return a page with the sections under these headings (whole lines) replaced by blank lines.

    A section ends at the next heading of its level or above. Raises `ValueError` for a heading that the page does not have.
    """
    lines = page.split("\n")
    for heading in headings:
        if heading not in lines:
            raise ValueError(f"no section {heading!r}")
        first, level = lines.index(heading), len(heading) - len(heading.lstrip("#"))
        ends = (i for i in range(first + 1, len(lines)) if re.match(rf"#{{1,{level}}} ", lines[i]))
        last = next(ends, len(lines))
        lines[first:last] = [""] * (last - first)
    return "\n".join(lines)


def table_at(page: str, grid: QuotedTable) -> tuple[range, list[list[str]]]:
    """Return the lines of a table in a page, and the cells of its rows; raise `ValueError` unless exactly one table matches."""
    lines = page.split("\n")
    is_row = [line.lstrip().startswith("|") for line in lines]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    found = [i for i, own in enumerate(cells) if is_row[i] and tuple(own) == grid.heads]
    if len(found) != 1:
        raise ValueError(f"{grid.page} has {len(found)} tables with the headings {grid.heads}")
    end = next((i for i in range(found[0], len(lines)) if not is_row[i]), len(lines))
    return range(found[0], end), cells[found[0] + 2 : end]


def figures_in(cell: str) -> list[str]:
    """Return the figures of a cell, with minus signs."""
    return SIGNED.findall(CODE.sub(" ` ", cell))


def table_faults(page: str, grid: QuotedTable) -> tuple[list[str], str]:
    """Return the differences between a table of a page and the ledger, and the page without the table."""
    try:
        place, rows = table_at(page, grid)
    except ValueError as error:
        return [str(error)], page
    name, labels = f"{grid.page}: the table of {grid.heads[0]!r}", [row[0] for row in rows]
    wrong = [f"{name} has no row {label!r}" for label in grid.rows if label not in labels]
    wrong += [f"{name}: row {label!r} has no entry" for label in labels if label not in grid.rows]
    wrong += [f"{name}: row {label!r} is there twice" for label in set(labels) if labels.count(label) > 1]
    for label, *row in rows:
        if len(row) != len(grid.heads) - 1:
            wrong.append(f"{name}: row {label!r} has {len(row)} cells")
        for head, cell, values in zip(grid.heads[1:], row, grid.rows.get(label, ()), strict=False):
            figures, times = figures_in(cell), grid.times.get(head, 1.0)
            alike = len(figures) == len(values) and all(
                rounded(value * times, says) for value, says in zip(values, figures, strict=True)
            )
            if not alike:
                wrong.append(f"{name}: row {label!r}, {head!r} says {cell!r}, the entry {list(values)}")
    lines = page.split("\n")
    lines[place.start : place.stop] = [""] * len(place)
    return wrong, "\n".join(lines)


def prose(page: str) -> str:
    """Return the prose of a page as a single line, without `CODE`."""
    return " ".join(CODE.sub(" ` ", page).split())


def faults(name: str, page: str, ledger: Ledger) -> list[str]:
    """Return the differences between a page and the ledger: missing claims, cells that differ, and figures without an entry."""
    page = without_sections(page, ledger.outside.get(name, ()))
    found = []
    for grid in ledger.grids:
        if grid.page == name:
            wrong, page = table_faults(page, grid)
            found += wrong
    text = prose(page)
    covered = [False] * len(text)
    claims = [claim.text for claim in ledger.claims if name in claim.pages]
    for words in (*claims, *ledger.plain.get(name, ())):
        at = text.find(words)
        if at < 0:
            found.append(f"{name} does not say {words!r}")
        while at >= 0:
            covered[at : at + len(words)] = [True] * len(words)
            at = text.find(words, at + 1)
    for match in FIGURE.finditer(text):
        if not all(covered[match.start() : match.end()]):
            around = text[max(0, match.start() - 40) : match.end() + 30]
            found.append(f"{name} says {match.group()} without an entry: ...{around}...")
    return found


def value_at(answer: object, path: str) -> float:
    """Return the number at ``path`` in an answer: dotted keys, ``[key=value,...]`` for the first match, ``[3]`` for an index.

    Example: ``worlds[0].movers[mover=MeanField].cost``. Keys with dots or spaces and values with commas are quoted. Raises
    `LookupError` naming the missing part.
    """
    here: Any = answer
    for key, quoted, row in re.findall(r'([^.\[\]"]+)|"([^"]*)"|\[([^\]]*)\]', path):
        try:
            if row and "=" in row:
                wanted = re.findall(r'(\w+)=(?:"([^"]*)"|([^,]*))', row)
                here = next(
                    one
                    for one in here
                    if all(str(one[name]) == (asked or bare) for name, asked, bare in wanted)
                )
            else:
                here = here[int(row)] if row else here[quoted or key]
        except (KeyError, IndexError, TypeError, StopIteration) as error:
            raise LookupError(f"{path}: no {quoted or key or row}") from error
    return float(here)


def measure(one: Measured, data: Path) -> object:
    """Run the command of a measurement in a separate process and return its answer."""
    words = [re.sub(r"^DIR(?=/|$)", lambda _: str(data), word) for word in one.command]
    if one.seed is not None:
        words += ["--seed", str(one.seed)]
    # Scripts of the repository print JSON without an option.
    words = words[1:] if words[0] == "python" else ["-m", "slackwater.flows.cli", *words, "--json"]
    words = [str(ROOT / word) if word.endswith(".py") else word for word in words]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with TemporaryDirectory() as folder:  # files written by the command are not needed
        ran = subprocess.run(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            check=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
        )
    answer: object = json.loads(ran.stdout)
    return answer


def moved(ledger: Ledger, name: str, answer: object, root: Path = ROOT) -> Iterator[dict[str, object]]:
    """Yield each figure of a measurement: as written, old and new value, and whether it changed by more than its tolerance.

    The pages with tables are read from the folder ``root``.
    """
    for claim in ledger.claims:
        if claim.measured != name:
            continue
        for one in claim.figures:
            if one.path is None:
                continue
            now = value_at(answer, one.path)
            yield {
                "claim": claim.text, "pages": list(claim.pages), "says": one.says, "was": one.value, "is": now,
                "moved": not abs(now - one.value) <= one.tolerance,
            }  # fmt: skip
    for grid in ledger.grids:
        if grid.measured == name:
            page = without_sections(
                (root / grid.page).read_text(encoding="utf-8"), ledger.outside.get(grid.page, ())
            )
            yield from _moved_cells(grid, page, answer)


def _moved_cells(grid: QuotedTable, page: str, answer: object) -> Iterator[dict[str, object]]:
    """Yield the same for the cells of a table, with a tolerance of half a unit of the last digit on the page."""
    for label, *row in table_at(page, grid)[1]:
        for head, cell, values in zip(grid.heads[1:], row, grid.rows.get(label, ()), strict=False):
            for place, (says, value) in enumerate(zip(figures_in(cell), values, strict=False)):
                path = grid.path(label, head, place)
                if path is None:
                    continue
                now, tolerance = value_at(answer, path), half_a_digit(says) / abs(grid.times.get(head, 1.0))
                yield {
                    "claim": f"{label}, {head}", "pages": [grid.page], "says": says, "was": value, "is": now,
                    "moved": not abs(now - value) <= tolerance,
                }  # fmt: skip


def _paths(ledger: Ledger, name: str) -> Iterator[str]:
    """Yield the paths of figures in the answer of a measurement."""
    for claim in ledger.claims:
        if claim.measured == name:
            yield from (one.path for one in claim.figures if one.path is not None)
    for grid in ledger.grids:
        if grid.measured == name:
            yield from (path for told in grid.paths.values() for path in told if path)


def stored_answer(one: Measured, data: Path, keep: Path | None) -> object:
    """Return the answer stored in folder ``keep``, or a new answer, which is then stored there atomically."""
    if keep is None:
        return measure(one, data)
    file = keep / f"{one.name}.json"
    if not file.exists():
        keep.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(measure(one, data)), encoding="utf-8")
        part.replace(file)
    answer: object = json.loads(file.read_text(encoding="utf-8"))
    return answer


def run(
    names: Iterable[str], ledger: Ledger, data: Path, keep: Path | None = None
) -> dict[str, list[dict[str, object]]]:
    """Repeat measurements by name; the figures of each are printed when it ends."""
    results: dict[str, list[dict[str, object]]] = {}
    for name in names:
        one = ledger.measured[name]
        if not any(_paths(ledger, name)):
            print(f"{name}: counted by hand, nothing of an answer to compare", file=sys.stderr, flush=True)
            results[name] = []
            continue
        print(f"{name}: {' '.join(one.command)} (about {one.minutes:g} minutes)", file=sys.stderr, flush=True)
        results[name] = list(moved(ledger, name, stored_answer(one, data, keep)))
        for row in results[name]:
            mark = "MOVED" if row["moved"] else "holds"
            print(
                f"  {mark}  {row['says']:>8}  was {row['was']:.5g}  is {row['is']:.5g}  {row['claim']}",
                file=sys.stderr,
            )
    return results


def main(words: Sequence[str]) -> int:
    """Repeat the named measurements; return 1 if any figure changed, 2 for an unknown name or option."""
    ledger = read_ledger()
    words, keep = list(words), None
    if "--keep" in words:
        place = words.index("--keep")
        if place + 1 == len(words) or words[place + 1].startswith("-"):
            print("--keep needs a folder", file=sys.stderr)
            return 2
        keep = Path(words[place + 1])
        del words[place : place + 2]
    options = [word for word in words if word.startswith("-") and word != "--json"]
    if options and options[0] not in {"-h", "--help"}:
        print(f"no option {options[0]!r}; there are --keep, --json and --help", file=sys.stderr)
        return 2
    if options:
        print(__doc__)
        for one in ledger.measured.values():
            print(f"  {one.name}: {' '.join(one.command)} (about {one.minutes:g} minutes)")
        return 0
    names = [word for word in words if not word.startswith("-")] or list(ledger.measured)
    unknown = [name for name in names if name not in ledger.measured]
    data = Path(os.environ.get("SLACKWATER_DATA", "../shared/data")).resolve()
    if unknown or not data.is_dir():
        print(
            f"no measurement {unknown[0]!r}; there are: {', '.join(ledger.measured)}"
            if unknown
            else f"{data} is absent; set SLACKWATER_DATA to the folder of histories",
            file=sys.stderr,
        )
        return 2
    results = run(names, ledger, data, keep)
    if "--json" in words:
        print(json.dumps(results, indent=2))
    return int(any(row["moved"] for rows in results.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
