"""What README and docs claim in figures, and measuring it again: ``python -m benchmarks.claims [NAME ...] [--json]``.

``docs/claims.toml`` is the ledger. Under ``[measured.NAME]`` stands what was run (command, seed, data, date, minutes on two cores);
each ``[[claim]]`` quotes the words of a page with the figures in them, and says where in the command's answer each is found and
what it came to. A test compares pages and ledger: every figure of a page's prose is in a quoted claim, or in words that are
listed as plain (names, dates, settings), and every figure is the value rounded as it is written.

Run, it makes the named measurements again (all without a name: hours) and prints what moved. Commands need the real histories in
the folder ``SLACKWATER_DATA``.
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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEDGER = ROOT / "docs" / "claims.toml"
#: A figure as it is written: digits with separators of thousands and decimals; not the digits of a name, as in H100.
FIGURE = re.compile(r"(?<![A-Za-z\d.])\d+(?:,\d{3})*(?:\.\d+)?")
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
        return abs(self.value * self.times - number(self.says)) <= half_a_digit(self.says)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Words of pages with figures in them."""

    measured: str
    pages: tuple[str, ...]
    text: str
    figures: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All claims, and by page the words whose figures are none."""

    measured: Mapping[str, Measured]
    claims: tuple[Claim, ...]
    plain: Mapping[str, tuple[str, ...]]


def number(text: str) -> float:
    """A figure as it is written."""
    return float(text.replace(",", ""))


def half_a_digit(text: str) -> float:
    """Half a unit of the last digit of a figure, and what adding in floating point may take."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) * (1.0 + 1e-9)


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
        told = tuple(
            Told(
                says=one["says"],
                path=one.get("path"),
                value=float(one["value"]),
                times=float(one.get("times", 1.0)),
                tolerance=float(one.get("tolerance", half_a_digit(one["says"]) / one.get("times", 1.0))),
            )
            for one in own["figures"]
        )
        pages = own["pages"]
        claim = Claim(
            measured=own["measured"], pages=tuple(pages), text=" ".join(own["text"].split()), figures=told
        )
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
    return Ledger(measured=measured, claims=tuple(claims), plain=plain)


def prose(page: str) -> str:
    """The text of a page in one line, what is no prose left out."""
    return " ".join(CODE.sub(" ` ", page).split())


def faults(name: str, page: str, ledger: Ledger) -> list[str]:
    """Where a page and the ledger disagree: claims that it does not make, and figures that no entry has."""
    text = prose(page)
    covered = [False] * len(text)
    found = []
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
    words = [str(data) if word == "DIR" else word for word in one.command]
    if one.seed is not None:
        words += ["--seed", str(one.seed)]
    ran = subprocess.run(
        [sys.executable, "-m", "flows.cli", *words, "--json"], stdout=subprocess.PIPE, check=True, cwd=ROOT
    )
    answer: object = json.loads(ran.stdout)
    return answer


def moved(ledger: Ledger, name: str, answer: object) -> Iterator[dict[str, object]]:
    """Each figure of a measurement: as written, what it was and is, and whether it moved by more than its tolerance."""
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


def run(names: Iterable[str], ledger: Ledger, data: Path) -> dict[str, list[dict[str, object]]]:
    """Measure again, by name; each is printed as it ends."""
    results: dict[str, list[dict[str, object]]] = {}
    for name in names:
        one = ledger.measured[name]
        print(f"{name}: {' '.join(one.command)} (about {one.minutes:g} minutes)", file=sys.stderr, flush=True)
        results[name] = list(moved(ledger, name, measure(one, data)))
        for row in results[name]:
            mark = "MOVED" if row["moved"] else "holds"
            print(
                f"  {mark}  {row['says']:>8}  was {row['was']:.5g}  is {row['is']:.5g}  {row['claim']}",
                file=sys.stderr,
            )
    return results


def main(words: Sequence[str]) -> int:
    """Measure the named claims again; 1 if one moved, 2 for a name that is none."""
    ledger = read_ledger()
    names = [word for word in words if not word.startswith("-")] or list(ledger.measured)
    unknown = [name for name in names if name not in ledger.measured]
    data = Path(os.environ.get("SLACKWATER_DATA", "../shared/data"))
    if unknown or not data.is_dir():
        print(
            f"no measurement {unknown[0]!r}; there are: {', '.join(ledger.measured)}"
            if unknown
            else f"{data} is absent; set SLACKWATER_DATA to the folder of histories",
            file=sys.stderr,
        )
        return 2
    results = run(names, ledger, data)
    if "--json" in words:
        print(json.dumps(results, indent=2))
    return int(any(row["moved"] for rows in results.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
