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


def run(environment, *words):
    return subprocess.run(
        [sys.executable, "-m", "slackwater.flows.cli", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_command_of_another_package_is_listed_and_runs(environment):
    overview = run(environment, "--help").stdout
    assert "Print how long to wait." in overview
    assert "Jobs of the patient." in overview
    assert json.loads(run(environment, "patience", "--hours", "3", "--json").stdout) == {"hours": 3.0}
    assert "wait 2.0 hours" in run(environment, "green", "jobs").stdout
    assert "patient" not in run(environment, "plan", "--help").stdout  # the product's name is not replaced


def test_a_command_that_cannot_be_imported_is_named(environment, tmp_path):
    (tmp_path / "site" / "patient_jobs.py").write_text("import no_such_module\n")
    called = run(environment, "--help")
    assert called.returncode == 2
    assert "'patient_jobs:patience' cannot be imported: No module named 'no_such_module'" in called.stderr
