"""Commands of other packages: an installed entry point is listed and runs."""

import json
import os
import subprocess
import sys

import pytest
from plugin_package import install


@pytest.fixture
def environment(tmp_path):
    """Return an environment with a package that registers commands."""
    return os.environ | {"PYTHONPATH": str(install(tmp_path / "site")), "COLUMNS": "80"}


#: Runs command lines in turn; prints exit codes, standard outputs and standard errors.
TURNS = """
import contextlib, io, json, sys
from slackwater.flows.cli import main
found = []
for words in json.loads(sys.argv[1]):
    out, err, sys.argv[1:] = io.StringIO(), io.StringIO(), words
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            found.append([end.code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


def run(environment, *commands):
    """Return exit codes, standard outputs and standard errors of command lines that one process runs."""
    words = json.dumps([command.split() for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", TURNS, words], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_command_of_another_package_is_listed_and_runs(environment):
    overview, hours, green, plan = (
        out
        for _, out, _ in run(environment, "--help", "patience --hours 3 --json", "green jobs", "plan --help")
    )
    assert "Print how long to wait." in overview
    assert "Jobs of the patient." in overview
    assert json.loads(hours) == {"hours": 3.0}
    assert "wait 2.0 hours" in green
    assert "patient" not in plan  # the product's name is not replaced


def test_a_command_that_cannot_be_imported_is_named(environment, tmp_path):
    (tmp_path / "site" / "patient_jobs.py").write_text("import no_such_module\n")
    ((code, _, err),) = run(environment, "--help")
    assert code == 2
    assert "'patient_jobs:patience' cannot be imported: No module named 'no_such_module'" in err
