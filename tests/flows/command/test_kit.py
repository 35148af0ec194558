"""The command kit: documented commands, one-line errors, exit codes, and cheap progress output."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from command_kit import call
from forms_kit import quick_first
from rich.cells import cell_len

from slackwater.flows.cli import COMMANDS, GROUPS, PROGRAM
from slackwater.flows.command import Answer, Output, Session, deliver, progress, say
from slackwater.flows.show.blocks import Table
from slackwater.warehouse.errors import InputError

ROOT = Path(__file__).parents[3]


@cache
def application():
    """Return the cyclopts application, for read-only use."""
    return PROGRAM.app()


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_says_what_it_does_and_what_each_option_is(words):
    app = application()
    for word in words.split():
        app = app[word]
    arguments = list(app.assemble_argument_collection(parse_docstring=True))
    assert all(argument.parameter.help for argument in arguments if argument.parse and not argument.children)
    assert app.help or app.default_command.__doc__


def test_every_command_is_on_the_page_of_commands():
    rows = (ROOT / "docs" / "commands.md").read_text().splitlines()
    missing = []
    for words, command in COMMANDS.items():
        first, _, second = words.partition(" ")
        own = [row for row in rows if re.search(rf"`(slackwater )?{first}\b", row)]
        if command.function.startswith("slackwater.flows."):
            missing += [] if any(re.search(rf"\b{second}\b", row) for row in own) else [words]
    assert missing == []


def test_every_shared_option_is_read():
    """An option that is declared only would be accepted and ignored."""
    text = (ROOT / "flows" / "command.py").read_text()
    names = {field.name for options in (Output, Session) for field in fields(options)}
    assert [name for name in names if not re.search(rf"\b(self|output)\.{name}\b", text)] == []


@cache
def help_of(words):
    """Return the help text of a command or group at 80 columns, cached for several tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        called = call(*words.split(), "--help")
    assert called.code == 0
    assert "Usage" in called.out
    return called.out


@pytest.mark.parametrize("words", COMMANDS)
def test_every_help_ends_with_a_call_that_can_be_made_and_names_no_rule(words):
    help_text = help_of(words)
    example = COMMANDS[words].example
    assert squeezed(help_text).endswith(squeezed(f"Example: slackwater {words} {example}"))
    application().parse_args([*words.split(), *shlex.split(example)], exit_on_error=False, print_error=False)
    assert not re.findall(r"\b[ME]\d+(?:\.\d+)?\b", help_text)


def squeezed(text):
    return re.sub(r"\s", "", text)


def test_a_shell_is_given_what_completes_commands_and_options(tmp_path):
    script = tmp_path / "slackwater.bash"
    assert call("--install-completion", "--shell", "bash", "--output", script).code == 0
    written = script.read_text()
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    for word in ("leaderboard", "fit-configurations", "cant-be-late", "--progress-share"):
        assert word in written


def test_overviews_name_every_command():
    out = help_of("")
    for words in COMMANDS:
        assert f" {words.split()[0]} " in out
    for group in GROUPS:
        listed = help_of(group)
        assert all(words.split()[1] in listed for words in COMMANDS if words.startswith(f"{group} "))


def test_no_help_is_wider_than_80_columns_or_cropped():
    for words in ("", *PROGRAM.commands, *PROGRAM.groups):
        said = help_of(words)
        assert said.count("\n") > 5, words
        assert max(map(cell_len, said.split("\n"))) <= 80, words
        assert "…" not in said, words


def test_no_command_is_an_overview_and_a_user_error():
    for words in ((), ("job",), ("experiment",)):
        called = call(*words)
        assert called.code == 2
        assert "Usage" in called.out


def test_the_version_is_told():
    assert call("--version").code == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("forecast", "--horizon", "99"), "--horizon"),
        (("forecast", "--horizon", "many"), "--horizon"),
        (("publish", "folder", "--keep", "1"), "--keep"),
        (("replay", "--market", "m"), "--job"),
        (("plan",), "JOB"),
        (("jobs",), "jobs"),
        (("init", "a", "b"), "unexpected 'a', 'b'"),
        (("job", "report", "j", "--spot", "1_0"), "--spot: '1_0' is not a whole number"),
        (("job", "report", "j", "--spot", "2.6"), "--spot: '2.6' is not a whole number"),
        (("job", "report", "j", "--progress", "nan"), "--progress: 'nan' is not a number"),
    ],
)
def test_an_option_that_cannot_be_read_is_named_in_one_line(words, part):
    called = call(*words)
    assert called.code == 2
    assert called.out == ""
    assert called.err.count("\n") == 1
    assert part in called.err
    assert ".;" not in called.err


def answer(**more):
    return Answer(
        title="T", value={"a": float("nan"), "b": [1]}, blocks=[Table("T", [{"a": 1}], {"a": "a"})], **more
    )


def test_one_answer_three_ways(tmp_path, capsys):
    page = tmp_path / "deep" / "page.html"
    assert deliver(answer(exit_code=3), Output(json=True, html=page)) == 3
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1]}
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert deliver(answer(), Output(html=page)) == 0
    assert f"page: {page}" in capsys.readouterr().out
    with pytest.raises(InputError, match="--html"):
        deliver(answer(), Output(html=page / "below.html"))


def test_progress_is_silent_where_nobody_listens(capsys):
    with progress("work", 3) as tell:
        for k in range(4):
            tell(k, 3, "file")
    assert capsys.readouterr().err == ""


class Broken(io.StringIO):
    """Output stream whose reader has closed the pipe."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def test_a_closed_pipe_costs_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Broken())
    say("this goes nowhere")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    say("nor does this")
    with progress("work") as tell:
        tell(1)


def test_a_reader_that_has_enough_is_no_error():
    command = f"{sys.executable} -m slackwater.flows.cli ingest --list | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 141)
    assert "Traceback" not in done.stderr
    assert done.stdout == "Sources\n"


LIST = [sys.executable, "-m", "slackwater.flows.cli", "ingest", "--list"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("more", quick_first([[], ["--json"]]))
def test_output_on_a_full_disk_is_an_error_in_one_line(more):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*LIST, *more], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard output cannot be written: No space left" in done.stderr


def test_a_locale_without_unicode_costs_no_answer():
    plain = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    code = "from slackwater.flows.command import open_streams; open_streams(); print(chr(0x2500))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, **plain}, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, rb"\u2500" + b"\n", b"")


def test_helps_load_nothing_heavy():
    heavy = ("pandas", "numpy", "prefect", "duckdb", "pyomo", "numba", "altair", "pydantic")
    code = (
        "import sys; from slackwater.flows.cli import PROGRAM; PROGRAM.run(['--help']); PROGRAM.run(['plan', '--help']);"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("export",), "slackwater export --help"),
        (("job", "list", "--nonsense"), "slackwater job list --help"),
        (("job", "lst"), "slackwater job --help"),
        (("pln",), "slackwater --help"),
    ],
)
def test_a_refused_command_line_names_the_help_that_describes_it(words, remedy):
    refused = call(*words)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.rstrip().endswith(f"; see `{remedy}`")
