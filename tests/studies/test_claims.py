"""The ledger of claims compared with the pages that make them (`slackwater.studies.claims`)."""

from __future__ import annotations

import itertools
import re
import subprocess
from dataclasses import replace

import pytest

from slackwater.studies.claims import (
    CODE,
    FIGURE,
    LEDGER,
    ROOT,
    SIGNED,
    faults,
    main,
    measure,
    moved,
    number,
    prose,
    read_ledger,
    run,
    stored_answer,
    table_faults,
    value_at,
    without_sections,
)


@pytest.fixture(scope="module")
def ledger():
    return read_ledger()


def looked_at(name, page, ledger):
    """Return the page without excluded sections; the rest stays on its lines."""
    return without_sections(page, ledger.outside.get(name, ()))


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


def sections(page):
    """Return the parts of a page from heading to heading, and the code in each as spans."""
    code = [match.span() for match in CODE.finditer(page)]
    heads = [match.start() for match in re.finditer("^#+ ", page, re.MULTILINE)]
    cuts = [0, *(at for at in heads if at and not within(code, at)), len(page)]
    for low, high in itertools.pairwise(cuts):
        yield page[low:high], [(start - low, end - low) for start, end in code]


def within(spans, at):
    return any(low <= at < high for low, high in spans)


def test_a_changed_digit_of_a_page_is_noticed(ledger, pages):
    """Changes every digit of every figure in the prose and in declared tables, one at a time.

    Compares within the section: claims of other sections are missing before and after.
    """
    bare, changed = replace(ledger, outside={}), 0
    for name, whole in pages.items():
        for part, code in sections(looked_at(name, whole, ledger)):
            missing = set(faults(name, part, bare))
            assert not any("without an entry" in fault for fault in missing)
            for figure in FIGURE.finditer(part):
                if within(code, figure.start()):
                    continue
                at = next(i for i in range(figure.end() - 1, figure.start() - 1, -1) if part[i].isdigit())
                other = str((int(part[at]) + 1) % 10)
                found = set(faults(name, part[:at] + other + part[at + 1 :], bare))
                assert found - missing, (name, part[at - 30 : at + 10])
                changed += 1
    assert changed > 500


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
    assert FIGURE.findall("skill .290, v0.5, 2.5 and 1.") == [".290", "2.5", "1"]
    assert SIGNED.findall("−0.12 (-2.82 to .33), 0.70-0.86, 6 -7") == [
        "−0.12",
        "-2.82",
        ".33",
        "0.70",
        "0.86",
        "6",
        "-7",
    ]
    assert number("−0.12") == -0.12


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


TABLE = """
[[table]]
measured = "one"
page = "a.md"
heads = ["model", "1", "cover", "note"]
paths = { "1" = "rows[model={row}].skill", cover = ["", "rows[model={row}].cover"] }
times = { "1" = 100 }
keys = { "**`trees`**" = "trees", "the net" = "net" }
[table.rows]
"**`trees`**" = [0.2513, [0.8, 0.79], ""]
"the net" = [-0.0312, [0.7, 0.66], 12]

[outside]
"a.md" = ["## Settings"]
"""
PAGE = """It captures 0.77 of it, 16 %; exit code 2.

| model | 1 | cover | note |
| --- | --: | --- | --- |
| **`trees`** | 25.1 | .80, .79 | 80 % and `9` |
| the net | −3 | .70 (.66) | 12 of them |

## Settings

54 cells.

### More of them

20 jobs.

## Next
"""


@pytest.fixture
def gridded(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(SMALL + TABLE)
    return read_ledger(path)


def test_a_table_is_held_to_its_entry_cell_by_cell(gridded):
    page = PAGE.replace("80 % and `9`", "all of `9`")
    assert faults("a.md", page, gridded) == []
    for before, after in (
        ("25.1", "25.2"), ("−3", "3"), ("(.66)", "(.67)"), (".80, .79", ".80"), ("12 of them", "13 of them"),
        ("the net", "a net"), ("| all of `9` |", "| 1 |"), ("| note |", "| notes |"), ("| 12 of them |", "|"),
        ("## Next", "## Next\n7 more."), ("| the net |", "| more | 1 | 2, 3 | |\n| the net |"),
        ("| the net |", "| the net | −3 | .70 (.66) | 12 of them |\n| the net |"),
    ):  # fmt: skip
        assert before in page
        assert faults("a.md", page.replace(before, after), gridded), (before, after)
    assert len(faults("a.md", PAGE, gridded)) == 1
    assert len(table_faults(page + "\n" + page, gridded.grids[0])[0]) == 1


def test_a_section_outside_ends_where_the_next_of_its_level_begins(gridded):
    assert "20 jobs" not in without_sections(PAGE, ["## Settings"])
    assert "## Next" in without_sections(PAGE, ["## Settings"])
    assert "20 jobs" not in without_sections(PAGE, ["### More of them"])
    assert "54 cells" in without_sections(PAGE, ["### More of them"])
    with pytest.raises(ValueError, match="no section '## None'"):
        without_sections(PAGE, ["## None"])


def test_cells_of_a_table_are_measured_again_by_their_paths(gridded, tmp_path):
    (tmp_path / "a.md").write_text(PAGE)
    rows = [
        {"model": "trees", "skill": 0.26, "cover": 0.79},
        {"model": "net", "skill": -0.0312, "cover": 0.66},
    ]
    answer = {"best": {"captured": 0.7731}, "rows": [{"step": 2, "skill": 0.1622}, *rows]}
    for row in answer["rows"]:
        row.setdefault("model", "")
        row.setdefault("step", 1)
    told = [(row["claim"], row["moved"]) for row in moved(gridded, "one", answer, tmp_path)]
    assert told[2:] == [
        ("**`trees`**, 1", True), ("**`trees`**, cover", False), ("the net, 1", False), ("the net, cover", False),
    ]  # fmt: skip
    alone, first = replace(gridded.grids[0], keys={}), gridded.grids[0]
    assert alone.path("**`trees`**", "1", 0) == first.path("**`trees`**", "1", 0)
    assert alone.path("**`trees`**", "cover", 0) is None
    assert replace(first, keys={"the net": "net"}).path("**`trees`**", "1", 0) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('measured = "one"\npage', 'measured = "two"\npage'),
        ('[0.2513, [0.8, 0.79], ""]', "[0.2513]"),
        ('times = { "1"', 'times = { "3"'),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(tmp_path, before, after):
    path = tmp_path / "claims.toml"
    assert before in TABLE
    path.write_text(SMALL + TABLE.replace(before, after))
    with pytest.raises(ValueError, match=r"claims\.toml: table"):
        read_ledger(path)


def test_words_without_figures_of_an_answer_are_as_they_are_written(tmp_path):
    path = tmp_path / "claims.toml"
    start = SMALL.index("figures = [")
    path.write_text(SMALL[:start] + SMALL[SMALL.index("[plain]") :])
    claim = read_ledger(path).claims[0]
    assert [(one.says, one.value, one.path) for one in claim.figures] == [
        ("0.77", 0.77, None),
        ("16", 16.0, None),
    ]


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
    [('measured = "one"', 'measured = "two"', "two"), ('says = "0.77"', 'says = "0.78"', "0.78")],
)
def test_a_ledger_that_contradicts_itself_is_refused(tmp_path, before, after, named):
    path = tmp_path / "claims.toml"
    path.write_text(SMALL.replace(before, after))
    with pytest.raises(ValueError, match=named):
        read_ledger(path)


def test_what_was_counted_by_hand_is_not_run_and_a_folder_is_put_in(gridded, monkeypatch, tmp_path, capsys):
    ran = []

    def fake(words, **_):
        ran.append(words[1:])
        return subprocess.CompletedProcess(words, 0, stdout=b"{}")

    monkeypatch.setattr(subprocess, "run", fake)
    one = gridded.measured["one"]
    measure(replace(one, command=("fit-configurations", "DIR/finetune"), seed=None), tmp_path)
    measure(replace(one, command=("python", "script.py", "--n", "3")), tmp_path)
    assert ran == [
        ["-m", "slackwater.flows.cli", "fit-configurations", f"{tmp_path}/finetune", "--json"],
        [str(ROOT / "script.py"), "--n", "3", "--seed", "7"],
    ]
    bare = replace(gridded, claims=(), grids=(replace(gridded.grids[0], paths={}),))
    assert run(["one"], bare, tmp_path) == {"one": []}
    assert len(ran) == 2
    assert "counted by hand" in capsys.readouterr().err


def test_answers_that_are_kept_are_not_measured_again(gridded, monkeypatch, tmp_path):
    ran = []

    def fake(words, **_):
        ran.append(words)
        return subprocess.CompletedProcess(words, 0, stdout=b'{"n": 3}')

    monkeypatch.setattr(subprocess, "run", fake)
    one, keep = gridded.measured["one"], tmp_path / "answers"
    answers = [stored_answer(one, tmp_path, folder) for folder in (None, keep, keep)]
    assert answers == [{"n": 3}] * 3
    assert len(ran) == 2
    assert [file.name for file in keep.iterdir()] == ["one.json"]


def test_a_name_that_is_none_is_said(capsys, monkeypatch):
    assert main(["nonsense"]) == 2
    assert "no measurement 'nonsense'" in capsys.readouterr().err


def test_the_ledger_gives_every_measurement_its_command_and_date(ledger):
    for one in ledger.measured.values():
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", one.date)
        assert one.command
        assert one.minutes > 0
    assert LEDGER.name == "claims.toml"


def test_what_can_be_measured_is_listed_and_other_options_are_refused(capsys):
    """Guards against accidental measuring: a complete run takes hours."""
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name}: " in told for name in read_ledger().measured)
    assert main(["--fast"]) == 2
    assert "'--fast'" in capsys.readouterr().err
    assert main(["--keep", "--json"]) == main(["--keep"]) == 2
    assert "needs a folder" in capsys.readouterr().err
