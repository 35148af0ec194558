"""Tools of others read what the page docs/other-tools.md says, as it says it, in an environment of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_kit import call

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "other-tools.md").read_text(encoding="utf-8")
TOOLS = ("polars", "dbt-core==1.10.13", "dbt-duckdb==1.9.6", "duckdb==1.5.5")


def block(language: str, word: str) -> str:
    """Return the code block of the page that has a word."""
    (found,) = [
        text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL) if word in text
    ]
    return found


@pytest.mark.slow
def test_polars_and_dbt_read_a_warehouse_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "tools"], check=True)
    made = subprocess.run(["tools/bin/pip", "install", "--quiet", *TOOLS], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no registry of packages has {', '.join(TOOLS)}")
    call("run", "--at", "2026-03-10T08:00Z")
    call("export", "DIR", "--views")
    given = subprocess.run(
        ["tools/bin/python", "-c", block("python", "polars")], capture_output=True, text=True
    )
    assert given.returncode == 0, given.stderr
    assert "simulated/" in given.stdout
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sources.yml").write_bytes((ROOT / "examples" / "bi" / "sources.yml").read_bytes())
    (tmp_path / "models" / "costs.sql").write_text("select * from {{ source('slackwater', 'job_costs') }}")
    (tmp_path / "dbt_project.yml").write_text("name: costs\nprofile: slackwater\n")
    (tmp_path / "profiles.yml").write_text(block("yaml", "attach"))
    monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    built = subprocess.run(["tools/bin/dbt", "build", "--profiles-dir", "."], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout
    assert re.search(r"PASS=\d+ WARN=0 ERROR=0", built.stdout)
