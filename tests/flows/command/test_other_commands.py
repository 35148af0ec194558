"""Commands of other packages: an installed entry point is listed and runs."""

import json
import os
import subprocess
import sys

import pytest

MODULE = '''"""Carbon of jobs."""
from typing import Annotated

from slackwater.flows.command import Answer, Output, option


def carbon(*, grams: Annotated[float, option("Carbon per hour.")] = 2.0, output: Output = Output()) -> Answer:
    """Print the carbon of a job."""
    return Answer(title="Carbon", value={"grams": grams}, about=f"carbon {grams}")
'''


@pytest.fixture
def environment(tmp_path):
    """Return an environment with a package that registers commands, as an installer leaves it."""
    (tmp_path / "carbon.py").write_text(MODULE)
    info = tmp_path / "carbon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carbon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[slackwater.commands]\ncarbon = carbon:carbon\nplan = carbon:carbon\ngreen jobs = carbon:carbon\n"
    )
    return os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "80"}


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
    assert "Print the carbon of a job." in overview
    assert "Carbon of jobs." in overview
    assert json.loads(run(environment, "carbon", "--grams", "3", "--json").stdout) == {"grams": 3.0}
    assert "carbon 2.0" in run(environment, "green", "jobs").stdout
    assert "carbon" not in run(environment, "plan", "--help").stdout  # the product's name is not replaced


def test_a_command_that_cannot_be_imported_is_named(environment, tmp_path):
    (tmp_path / "carbon.py").write_text("import no_such_module\n")
    called = run(environment, "--help")
    assert called.returncode == 2
    assert "'carbon:carbon' cannot be imported: No module named 'no_such_module'" in called.stderr
