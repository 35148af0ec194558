"""The ledger of claims against the pages that make them (`benchmarks.claims`)."""

from __future__ import annotations

import re

import pytest

from benchmarks.claims import (
    CODE,
    FIGURE,
    LEDGER,
    ROOT,
    faults,
    main,
    moved,
    number,
    prose,
    read_ledger,
    value_at,
)


@pytest.fixture(scope="module")
def ledger():
    return read_ledger()


@pytest.fixture(scope="module")
def pages(ledger):
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in ledger.plain}


def test_every_figure_of_a_page_has_an_entry(ledger, pages):
    assert "README.md" in pages
    assert [fault for name, page in pages.items() for fault in faults(name, page, ledger)] == []


def test_every_claim_is_made_on_pages_that_are_checked(ledger):
    assert {page for claim in ledger.claims for page in claim.pages} <= set(ledger.plain)


def test_every_figure_is_its_value_rounded(ledger):
    wrong = [
        (claim.text, one.says, one.value)
        for claim in ledger.claims
        for one in claim.figures
        if not one.rounds
    ]
    assert wrong == []


def test_a_changed_digit_of_a_page_is_noticed(ledger, pages):
    """Every digit of every figure in the prose, one at a time."""
    for name, page in pages.items():
        code = [match.span() for match in CODE.finditer(page)]
        for figure in FIGURE.finditer(page):
            if any(low <= figure.start() < high for low, high in code):
                continue
            at = next(i for i in range(figure.end() - 1, figure.start() - 1, -1) if page[i].isdigit())
            other = str((int(page[at]) + 1) % 10)
            assert faults(name, page[:at] + other + page[at + 1 :], ledger), (name, page[at - 30 : at + 10])


def test_a_figure_without_an_entry_and_a_claim_that_is_not_made_are_named(ledger):
    page = (ROOT / "README.md").read_text(encoding="utf-8") + "\nIt saves 98.7 % of everything.\n"
    found = faults("README.md", page, ledger)
    assert len(found) == 1
    assert "98.7" in found[0]
    claim = next(one for one in ledger.claims if "README.md" in one.pages)
    bare = prose(page).replace(claim.text, "nothing")
    assert any("does not say" in fault for fault in faults("README.md", bare, ledger))


def test_figures_are_numbers_with_separators_and_not_the_digits_of_names():
    assert FIGURE.findall("On 1,080 jobs of H100s, 0.77 (73-78), at 1, 2.") == ["1,080", "0.77", "73", "78", "1", "2"]  # fmt: skip
    assert number("1,080.5") == 1080.5


def test_values_are_found_by_key_by_row_and_by_place():
    rows = [{"mover": "A", "n": 1, "cost": 2}, {"mover": "A", "n": 2, "cost": 3}]
    answer = {"worlds": [{"movers": rows}], "p": {"x.y": 4}}
    assert value_at(answer, "worlds[0].movers[mover=A].cost") == 2
    assert value_at(answer, "worlds[0].movers[mover=A,n=2].cost") == 3
    assert value_at(answer, 'p."x.y"') == 4
    assert value_at([{"name": "a, b", "cost": 5}], '[name="a, b"].cost') == 5
    with pytest.raises(LookupError, match="no mover=B"):
        value_at(answer, "worlds[0].movers[mover=B].cost")


SMALL = """
[measured.one]
command = "experiment pool --data DIR"
seed = 7
data = "made up"
date = 2026-01-02
minutes = 1

[[claim]]
measured = "one"
pages = ["a.md"]
text = "captures 0.77 of it, 16 %"
figures = [
    { says = "0.77", path = "best.captured", value = 0.7731 },
    { says = "16", path = "rows[step=2].skill", value = 0.1622, times = 100, tolerance = 0.001 },
]

[plain]
"a.md" = ["exit code 2"]
"""


def test_what_moved_is_told_with_what_it_was(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(SMALL)
    small = read_ledger(path)
    answer = {"best": {"captured": 0.7735}, "rows": [{"step": 1, "skill": 0}, {"step": 2, "skill": 0.1640}]}
    rows = list(moved(small, "one", answer))
    assert [(row["was"], row["is"], row["moved"]) for row in rows] == [
        (0.7731, 0.7735, False),
        (0.1622, 0.1640, True),
    ]
    assert faults("a.md", "It captures 0.77 of\nit, 16 %; exit code 2, `--n 3`.", small) == []
    assert len(faults("a.md", "It captures 0.77 of it, 16 %; exit code 3.", small)) == 2


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ('measured = "one"', 'measured = "two"', "two"),
        ('says = "0.77"', 'says = "0.78"', "0.78"),
    ],
)
def test_a_ledger_that_contradicts_itself_is_refused(tmp_path, before, after, named):
    path = tmp_path / "claims.toml"
    path.write_text(SMALL.replace(before, after))
    with pytest.raises(ValueError, match=named):
        read_ledger(path)


def test_a_name_that_is_none_is_said(capsys, monkeypatch):
    assert main(["nonsense"]) == 2
    assert "no measurement 'nonsense'" in capsys.readouterr().err


def test_the_ledger_gives_every_measurement_its_command_and_date(ledger):
    for one in ledger.measured.values():
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", one.date)
        assert one.command
        assert one.minutes > 0
    assert LEDGER.name == "claims.toml"
