"""The numbered rules of docs/method.md and the pages it names: cited rules exist, are in order, and name their folder or module."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The pages of rules, in the order of their numbers; docs/method.md has M1 to M6, M12 and M13.
PAGES = [
    ROOT / "docs" / name
    for name in (
        "method.md",
        "experiments.md",
        "renting.md",
        "configurations.md",
        "published-ideas.md",
        "method-markets.md",
    )
]
#: Where rules are cited: the product, its tests, examples and benchmarks, and every page.
FOLDERS = ("warehouse", "forecasting", "optimization", "flows", "tests", "benchmarks", "examples", "docs")
SUFFIXES = {".py", ".md", ".toml", ".sql", ".html"}
#: ``M2``, ``M2.4``, ``E1``; not the ``M0 90`` of a drawing, nor its numbers.
CITED = re.compile(r"\b(?:M\d+(?:\.\d+)?|E\d)\b(?![ ,]?-?\d)")
#: ``M3.3b`` or ``M3.3 (b)``: a part of a rule.
PART = re.compile(r"\b(M\d+\.\d+)(?:([a-z])\b| \(([a-z])\))")
HEADING = re.compile(r"^#{2,3} (M\d+(?:\.\d+)?|E\d)(?: (.*))?$")
OTHER_HEADING = re.compile(r"^#{1,2} ")
WHERE = re.compile(r"^Where: (.+?)\.$", re.MULTILINE | re.DOTALL)


def read_page(page: Path) -> list[tuple[str, str]]:
    """Return (number, text) of every heading with a number, in the order of the page; another heading ends a rule."""
    rules: list[tuple[str, str]] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        found = HEADING.match(line)
        if found:
            rules.append((found[1], ""))
            inside = True
        elif OTHER_HEADING.match(line):
            inside = False
        elif inside:
            number, text = rules[-1]
            rules[-1] = (number, f"{text}{line}\n")
    return rules


def read_rules() -> list[tuple[str, str]]:
    """Return (number, text) of every rule of every page."""
    return [rule for page in PAGES for rule in read_page(page)]


def texts() -> Iterator[tuple[str, str]]:
    """Yield (path, text) of every file that may cite a rule."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    for path in (*inside, *ROOT.glob("*.md"), ROOT / "pyproject.toml"):
        if path.suffix in SUFFIXES and path.is_file():
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def place(number: str) -> tuple[str, ...]:
    """Return ``M2.4`` as ("M", "02", "04"), the sort key of rules."""
    return (number[0], *(part.zfill(2) for part in number[1:].split(".")))


def folders_of(text: str) -> list[str]:
    """Return the folders and modules after ``Where:``."""
    found = WHERE.search(text)
    return re.findall(r"`([^`]+)`", found[1]) if found else []


def has_own_rules(number: str, numbers: set[str]) -> bool:
    """Return whether a section is divided into rules."""
    return any(other.startswith(f"{number}.") for other in numbers)


def test_every_cited_rule_is_on_the_page():
    known = dict(read_rules())
    missing, seen = [], set()
    for path, text in texts():
        for number in CITED.findall(text):
            seen.add(number)
            if number not in known:
                missing.append(f"{path}: {number}")
        for number, letter, other in PART.findall(text):
            if f"({letter or other}) " not in known.get(number, ""):
                missing.append(f"{path}: {number} ({letter or other})")
    assert not missing, "\n".join(missing)
    assert {"M1.2", "M2.4", "M4.6", "M10", "E1"} <= seen


def test_every_rule_or_its_section_names_folders_that_exist():
    rules = dict(read_rules())
    numbers = set(rules)
    wrong = []
    for number, text in rules.items():
        if has_own_rules(number, numbers):
            wrong += [f"{number}: {folder}" for folder in folders_of(text) if not (ROOT / folder).exists()]
            continue
        folders = folders_of(text) or folders_of(rules.get(number.split(".")[0], ""))
        if not folders:
            wrong.append(f"{number} names no folder")
        wrong += [f"{number}: {folder}" for folder in folders if not (ROOT / folder).exists()]
    assert not wrong, "\n".join(wrong)


def test_rules_are_unique_and_in_order():
    numbers = [number for number, _ in read_rules()]
    assert len(numbers) == len(set(numbers))
    for page in PAGES:
        here = [number for number, _ in read_page(page) if number.startswith("M")]
        assert here == sorted(here, key=place), page.name
    rules = sorted((number for number in numbers if number.startswith("M")), key=place)
    for section in {number.split(".")[0] for number in rules}:
        parts = [int(number.split(".")[1]) for number in rules if number.startswith(f"{section}.")]
        assert parts == list(range(1, len(parts) + 1)), section
    assert [number for number in rules if "." not in number] == [f"M{i}" for i in range(1, 14)]
    experiments = [number for number in numbers if number.startswith("E")]
    assert experiments == [f"E{i}" for i in range(1, len(experiments) + 1)]
