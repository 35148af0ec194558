"""The runner: each benchmark separately, figures as each ends, and a failure affects no other benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks import runner
from benchmarks.runner import CASES, NEEDS_DATA, ON_REQUEST, figures, main, measure, report

MODULES = {
    "fine_bench": 'def run(): return {"seconds": 1.5, "of": {"parts": [1, 2], "rows": [{"n": 3}]}}',
    "raising_bench": 'def run(): raise KeyError("no such slot")',
    "dying_bench": f"import os\ndef run(): os.kill(os.getpid(), {int(signal.SIGKILL)})",
    "where_bench": 'import os, sys\ndef run(): return {"process": os.getpid(), "fine": "fine_bench" in sys.modules}',
    "exiting_bench": 'import sys\ndef run(): sys.exit("the peers are not there")',
}


@pytest.fixture
def modules(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda *names: {name: f"{name}_bench" for name in names}


def test_every_benchmark_of_the_lists_is_a_module():
    modules = {path.stem for path in Path(runner.__file__).parent.glob("*.py")}
    assert {*CASES, *ON_REQUEST} <= modules
    assert set(NEEDS_DATA) <= {*CASES, *ON_REQUEST}


def test_one_that_fails_is_said_and_the_others_go_on(modules, tmp_path, capsys):
    code = report(modules("fine", "raising", "dying", "exiting", "where"), tmp_path, as_json=True)
    out, err = capsys.readouterr()
    results = json.loads(out)
    assert code == 1
    assert results["fine"] == {"seconds": 1.5, "of": {"parts": [1, 2], "rows": [{"n": 3}]}}
    assert results["raising"] == {"failed": "KeyError: 'no such slot'"}
    assert results["dying"]["failed"].startswith("BrokenProcessPool")
    assert results["exiting"] == {"failed": "SystemExit: the peers are not there"}
    assert results["where"]["process"] != os.getpid()
    assert not results["where"]["fine"], "each is in a process of its own"
    assert 'raise KeyError("no such slot")' in err, "with the line that raised"
    assert "3 of 5 benchmarks failed: raising, dying, exiting" in err


def test_figures_come_as_each_ends(modules, tmp_path, capsys):
    ended = measure(modules("fine", "raising"), tmp_path)
    assert next(ended)[0] == "fine"
    assert "raising" not in capsys.readouterr().err, "the second is not begun when the first has ended"
    assert next(ended) == ("raising", {"failed": "KeyError: 'no such slot'"})
    assert report(modules("fine"), tmp_path, as_json=False) == 0
    assert "fine.of.rows.0.n  3" in capsys.readouterr().out


def test_one_that_needs_the_data_is_left_out_without_them(tmp_path):
    name = min(NEEDS_DATA)
    ((_, found),) = measure({name: "no_such_module"}, tmp_path / "absent")
    assert "SLACKWATER_DATA" in found["left_out"]


def test_names():
    assert not set(CASES) & set(ON_REQUEST)
    assert {*CASES, *ON_REQUEST} >= NEEDS_DATA
    with pytest.raises(SystemExit, match="'sovler' is unknown: expected one of solver"):
        main(["solver", "sovler"])


def test_figures_of_nested_results():
    assert list(figures({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 2}]})) == [
        ("a.b", 1),
        ("a.c", [1, 2]),
        ("d.0.e", 2),
    ]


def test_it_runs_from_a_command_line(modules, tmp_path):
    """Objects sent to a spawned process must not be defined in the ``__main__`` of a package, where it cannot find them."""
    modules("fine")
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "__main__.py").write_text(
        "import pathlib, sys\nfrom benchmarks.runner import report\n"
        'sys.exit(report({"fine": "fine_bench"}, pathlib.Path("."), as_json=True))\n'
    )
    root = str(Path(runner.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-m", "trial"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), root])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout)["fine"]["seconds"] == 1.5
