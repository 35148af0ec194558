"""What README and docs claim in figures, and measuring it again: ``python -m benchmarks.claims [NAME ...] [--keep DIR] [--json]``.

``docs/claims.toml`` is the ledger. Under ``[measured.NAME]`` stands what was run (command, seed, data, date, minutes on two cores);
each ``[[claim]]`` quotes the words of a page with the figures in them, and says where in the command's answer each is found and
what it came to. Each ``[[table]]`` is a table of a page, found by its headings, cell by cell: a row has a value, or a list of
them, for every cell after its label, and a column the path of its figures with ``{row}`` in the place of the row's key. A test
compares pages and ledger: every figure of a page is in a quoted claim, in a declared table, in words that are listed as plain
(names, dates, settings), or in a section that is listed as outside, and every figure is the value rounded as it is written.

Run, it makes the named measurements again (all without a name: hours) and prints what moved. Commands need the real histories in
the folder ``SLACKWATER_DATA``. With ``--keep`` every answer is kept in a folder as it ends, as ``NAME.json``, and those that are
there are compared without being measured again: so all can be measured in several sittings.
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
#: A figure as it is written: digits with separators of thousands and decimals; not the digits of a name, as in H100.
FIGURE = re.compile(r"(?<![A-Za-z\d.])(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)")
#: A figure of a table's cell, with the minus that is its own: not the one of a range.
SIGNED = re.compile(rf"(?:(?<![\w)%.])[-−])?{FIGURE.pattern}")
#: What is no prose: blocks of code, code in a line, and where links lead.
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|^    [^\n]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was run: words of a command whose answer is one JSON object, ``DIR`` standing for the folder of histories."""

    name: str
    command: tuple[str, ...]
    seed: int | None
    data: str
    date: str
    minutes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A figure: as it is written, where in the answer it is (None: counted by hand), what that came to, and what it is
    multiplied by to be written."""

    says: str
    path: str | None
    value: float
    times: float
    tolerance: float

    @property
    def rounds(self) -> bool:
        """Whether the value, rounded as the figure is written, is the figure."""
        return rounded(self.value * self.times, self.says)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Words of pages with figures in them."""

    measured: str
    pages: tuple[str, ...]
    text: str
    figures: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedTable:
    """A table of a page: its headings, and by the label of a row the values of each cell after it.

    ``paths`` leads by heading to each figure of a cell, with ``{row}`` for the row's key (``keys``; where there are none the
    label without its marks); a column without a path and a row without a key were counted by hand. ``times`` is by heading
    what values are multiplied by to be written.
    """

    measured: str
    page: str
    heads: tuple[str, ...]
    rows: Mapping[str, tuple[tuple[float, ...], ...]]
    paths: Mapping[str, tuple[str, ...]]
    times: Mapping[str, float]
    keys: Mapping[str, str]

    def path(self, label: str, head: str, place: int) -> str | None:
        """Where in the answer a figure of a cell is; None if it was counted by hand."""
        known = self.paths.get(head, ())
        key = self.keys.get(label) if self.keys else label.strip("*` ")
        return known[place].replace("{row}", key) or None if key and place < len(known) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All claims and tables; by page the words whose figures are none, and the headings of sections that are not looked at."""

    measured: Mapping[str, Measured]
    claims: tuple[Claim, ...]
    grids: tuple[QuotedTable, ...]
    plain: Mapping[str, tuple[str, ...]]
    outside: Mapping[str, tuple[str, ...]]


def number(text: str) -> float:
    """A figure as it is written."""
    return float(text.replace(",", "").replace("−", "-"))


def half_a_digit(text: str) -> float:
    """Half a unit of the last digit of a figure, and what adding in floating point may take."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) * (1.0 + 1e-9)


def rounded(value: float, says: str) -> bool:
    """Whether a value, rounded as a figure is written, is the figure."""
    return abs(value - number(says)) <= half_a_digit(says)


def read_ledger(path: Path = LEDGER) -> Ledger:
    """Read the ledger; raises `ValueError` where a claim names no measurement, or other figures than its words have."""
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
        # Words whose figures nobody takes from an answer need not list them: they are as they are written.
        figures = own.get("figures") or [{"says": says} for says in FIGURE.findall(text)]
        told = tuple(
            Told(
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
    """A table of the ledger: a cell is a value, a list of them, or "" for one without figures."""

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
    """A page without the sections under these headings (a line as it is written), each to the next of its level or above.

    Blank lines stand in their place. Raises `ValueError` for a heading that the page has not.
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
    """The lines of a table in a page, and the cells of its rows. Raises `ValueError` unless there is one with its headings."""
    lines = page.split("\n")
    is_row = [line.lstrip().startswith("|") for line in lines]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    found = [i for i, own in enumerate(cells) if is_row[i] and tuple(own) == grid.heads]
    if len(found) != 1:
        raise ValueError(f"{grid.page} has {len(found)} tables with the headings {grid.heads}")
    end = next((i for i in range(found[0], len(lines)) if not is_row[i]), len(lines))
    return range(found[0], end), cells[found[0] + 2 : end]


def figures_in(cell: str) -> list[str]:
    """The figures of a cell, each with its own minus."""
    return SIGNED.findall(CODE.sub(" ` ", cell))


def table_faults(page: str, grid: QuotedTable) -> tuple[list[str], str]:
    """Where a table of a page and the ledger disagree, and the page without the table."""
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
    """The text of a page in one line, what is no prose left out."""
    return " ".join(CODE.sub(" ` ", page).split())


def faults(name: str, page: str, ledger: Ledger) -> list[str]:
    """Where a page and the ledger disagree: claims that it does not make, cells that differ, and figures that no entry has."""
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
    """The number at ``path`` in an answer: keys with dots between, ``[key=value,...]`` the first such row, ``[3]`` a place.

    ``worlds[0].movers[mover=MeanField].cost``; a key with dots or spaces and a value with a comma stand in quotes. Raises
    `LookupError` naming what is not there.
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
    """The answer of a command, run in a process of its own."""
    words = [re.sub(r"^DIR(?=/|$)", lambda _: str(data), word) for word in one.command]
    if one.seed is not None:
        words += ["--seed", str(one.seed)]
    # A script of the repository prints one object by itself.
    words = words[1:] if words[0] == "python" else ["-m", "flows.cli", *words, "--json"]
    words = [str(ROOT / word) if word.endswith(".py") else word for word in words]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with TemporaryDirectory() as folder:  # what a command keeps beside its answer is of no use here
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
    """Each figure of a measurement: as written, what it was and is, and whether it moved by more than its tolerance.

    The tables of pages are read in the folder ``root``.
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
    """The same of the cells of a table; a figure may move by half a unit of its last digit on the page."""
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
    """Where in the answer of a measurement figures are."""
    for claim in ledger.claims:
        if claim.measured == name:
            yield from (one.path for one in claim.figures if one.path is not None)
    for grid in ledger.grids:
        if grid.measured == name:
            yield from (path for told in grid.paths.values() for path in told if path)


def kept(one: Measured, data: Path, keep: Path | None) -> object:
    """The answer of a command: the one that is kept in a folder, or a new one, which is kept there whole or not at all."""
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
    """Measure again, by name; each is printed as it ends."""
    results: dict[str, list[dict[str, object]]] = {}
    for name in names:
        one = ledger.measured[name]
        if not any(_paths(ledger, name)):
            print(f"{name}: counted by hand, nothing of an answer to compare", file=sys.stderr, flush=True)
            results[name] = []
            continue
        print(f"{name}: {' '.join(one.command)} (about {one.minutes:g} minutes)", file=sys.stderr, flush=True)
        results[name] = list(moved(ledger, name, kept(one, data, keep)))
        for row in results[name]:
            mark = "MOVED" if row["moved"] else "holds"
            print(
                f"  {mark}  {row['says']:>8}  was {row['was']:.5g}  is {row['is']:.5g}  {row['claim']}",
                file=sys.stderr,
            )
    return results


def main(words: Sequence[str]) -> int:
    """Measure the named claims again; 1 if one moved, 2 for a name or an option that is none."""
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
