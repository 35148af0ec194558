"""The page on acting on decisions: its settings, programs, keys and options are there."""

import json
import re
import shlex
from pathlib import Path

from advice_kit import BEGIN
from command_kit import call, options_of
from test_act_command import Renter

from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.stopping import StopSignals
from slackwater.flows.config import read_settings
from slackwater.flows.schemas.forms import schema

DOC = (Path(__file__).resolve().parents[3] / "docs" / "acting-on-decisions.md").read_text()


def block(kind):
    return "\n".join(part.split("```")[0] for part in DOC.split(f"```{kind}\n")[1:])


def test_the_settings_on_the_page_are_settings(tmp_path):
    file = tmp_path / "slackwater.toml"
    file.write_text(block("toml"))
    settings = read_settings(file)
    assert [(sink.name, sink.kind) for sink in settings.sinks] == [("drop", "file"), ("launcher", "webhook")]
    assert {driver.kind for driver in settings.drivers} == set(DRIVERS)
    for driver in settings.drivers:
        place = Place(name=driver.name, db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
        assert DRIVERS[driver.kind](driver.options, place).name


def test_the_first_commands_of_the_page_run_as_they_are_written(tmp_path, monkeypatch):
    def interrupt(signals, seconds):
        signals.exit_code = 143
        return True

    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    monkeypatch.setattr(StopSignals, "wait", interrupt)
    monkeypatch.setattr("slackwater.flows.clock.now", lambda: BEGIN)
    (tmp_path / "slackwater.toml").write_text('[[drivers]]\nname = "trial"\nkind = "simulated"\n')
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line, comments=True)[1:] for line in block("bash").split("\n\n")[0].splitlines()]
    assert [words[0] for words in lines] == ["act"] * 4
    seen = []
    for words in lines:
        words = ["demo" if word == "my-job" else word for word in words]
        done = call(*words, "--db", "w.duckdb", "--json")
        rows = json.loads(done.out)["jobs"]
        seen.append((done.code, [(row["job"], row["on_demand"] > 0, len(row["commands"])) for row in rows]))
    dry, acts, named, down = seen
    assert dry == (0, [("demo", False, 1)])
    assert acts == named == (143, [("demo", True, 0)])
    assert down == (0, [("demo", False, 0)])


def test_every_key_and_option_on_the_page_is_there():
    table = DOC.split("| key | meaning |")[1].split("\n\n")[0]
    keys = {key for line in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert keys <= set(schema("decision")["required"])
    assert len(keys) > 10
    given = options_of("job", "report")
    for option in re.findall(r"slackwater job report.*", DOC):
        assert all(word in given for word in re.findall(r"(?<=\s)--[a-z][a-z-]+", option))
