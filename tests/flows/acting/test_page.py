"""The page on acting on decisions: its settings, programs, keys and options are there."""

import re
from pathlib import Path

from command_kit import options_of

from slackwater.flows.acting.drivers import DRIVERS, Place
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


def test_every_key_and_option_on_the_page_is_there():
    table = DOC.split("| key | meaning |")[1].split("\n\n")[0]
    keys = {key for line in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert keys <= set(schema("decision")["required"])
    assert len(keys) > 10
    given = options_of("job", "report")
    for option in re.findall(r"slackwater job report.*", DOC):
        assert all(word in given for word in re.findall(r"(?<=\s)--[a-z][a-z-]+", option))
