"""Settings from the environment: a single naming rule; they override the file, and command options override them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_kit import call

from slackwater.flows.config import (
    OTHER_VARIABLES,
    PREFIX,
    AlarmSettings,
    BoundSettings,
    Section,
    Settings,
    commented_settings,
    read_settings,
    variable_of,
)
from slackwater.warehouse.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to-run-it.md"


def test_every_setting_is_read():
    """A setting that is declared only would be accepted and ignored."""
    layers = ("warehouse", "forecasting", "optimization", "flows")
    product = "\n".join(path.read_text() for layer in layers for path in (ROOT / layer).rglob("*.py"))
    fields = {
        name: field
        for model in (Settings, AlarmSettings, BoundSettings)
        for name, field in model.model_fields.items()
    }
    unread = {name for name in fields if not re.search(rf"\.{name}\b", product)}
    assert unread == {
        name for name, field in fields.items() if field.description.startswith("no longer used")
    }


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Return a settings file in the working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "slackwater.toml"
    path.write_text(
        'risk_paths = 50\nhorizon = 6\nmodels = ["last_value"]\n[alarms]\nflat_factor = 3.0\ngrace_minutes = 1\n'
    )
    return path


def test_a_variable_goes_before_the_file_and_the_file_before_the_default(file):
    read = read_settings(environment={"SLACKWATER_RISK_PATHS": "250", "SLACKWATER_ALARMS_FLAT_FACTOR": "5"})
    assert (read.risk_paths, read.horizon, read.step_minutes) == (250, 6, 30)
    assert (read.alarms.flat_factor, read.alarms.grace_minutes) == (5.0, 1.0)
    file.unlink()
    read = read_settings(environment={"SLACKWATER_RISK_PATHS": "250", "SLACKWATER_ALARMS_FLAT_FACTOR": "5"})
    assert (read.risk_paths, read.horizon, read.alarms.flat_factor) == (250, 12, 5.0)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("models", "last_value, seasonal_naive", ("last_value", "seasonal_naive")),
        ("models", '["last_value"]', ("last_value",)),
        ("planner", "last_value", "last_value"),
        ("planner", '"last_value"', "last_value"),
        ("pool", "my pools/pool.toml", Path("my pools/pool.toml")),
        ("pool", "7", Path("7")),
        ("trust", "*", ("*",)),
        ("history_days", " 3 ", 3.0),
        ("price_refit_hours", "6.5", 6.5),
        ("horizon", "", 12),
    ],
)
def test_a_value_is_written_as_in_the_file_or_plainly(tmp_path, monkeypatch, name, text, value):
    monkeypatch.chdir(tmp_path)
    assert getattr(read_settings(environment={variable_of(name): text}), name) == value


def test_a_list_of_tables_can_be_given_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read = read_settings(
        environment={
            "SLACKWATER_SINKS": '[{name = "drop", kind = "file", folder = "decisions"}]',
            "SLACKWATER_ALARMS_OFF": "drift,coverage",
        }
    )
    assert [(sink.name, sink.folder) for sink in read.sinks] == [("drop", Path("decisions"))]
    assert read.alarms.off == ("drift", "coverage")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("SLACKWATER_RISK_PATHS", "many", "='many': .*valid integer"),
        ("SLACKWATER_RISK_PATHS", "3\nhorizon = 4", "valid integer"),
        ("SLACKWATER_HORIZON", "99", "='99': .*48; expected largest lead time"),
        ("SLACKWATER_LEARNER", "luck", "unknown learner 'luck'"),
        ("SLACKWATER_ALARMS_FLAT_FACTOR", "0.5", "='0.5': .*greater than 1"),
        ("SLACKWATER_ALARMS_OFF", "thunder", "unknown alarm 'thunder'"),
        ("SLACKWATER_FEEDS", "[{", ": "),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_variable(file, name, text, said):
    with pytest.raises(SettingsError, match=f"(?s)^{name}.*{said}") as caught:
        read_settings(environment={name: text})
    assert "settings file" not in str(caught.value)


def test_what_is_wrong_in_the_file_is_the_files_and_no_secret_is_repeated(file):
    file.write_text("risk_paths = 'many'\n")
    with pytest.raises(SettingsError, match=r"settings file slackwater.toml: risk_paths"):
        read_settings(environment={"SLACKWATER_HORIZON": "6"})
    file.write_text("alarms = 5\n")
    with pytest.raises(SettingsError, match=r"settings file slackwater.toml: alarms"):
        read_settings(environment={"SLACKWATER_ALARMS_FLAT_FACTOR": "6"})
    file.write_text("")
    sink = '[{name = "w", kind = "webhook", url = "https://u:geheim@h/x"}]'
    with pytest.raises(SettingsError, match=r"^SLACKWATER_SINKS: 0\.url: ") as caught:
        read_settings(environment={"SLACKWATER_SINKS": sink})
    assert "geheim" not in str(caught.value)


def test_a_variable_names_the_file_unless_a_command_does(file, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("horizon = 3\n")
    environment = {"SLACKWATER_SETTINGS": str(other)}
    assert read_settings(environment=environment).horizon == 3
    assert read_settings(file, environment=environment).horizon == 6
    other.unlink()
    with pytest.raises(SettingsError, match=r"other.toml \(SLACKWATER_SETTINGS\)"):
        read_settings(environment=environment)


def test_commands_take_them_and_their_own_option_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACKWATER_DB", str(tmp_path / "by-variable.duckdb"))
    assert "by-variable.duckdb" in call("markets").err
    assert "by-option.duckdb" in call("markets", "--db", "by-option.duckdb").err
    monkeypatch.setenv("SLACKWATER_STEP_MINUTES", "soon")
    called = call("backfill", "--from", "2026-01-01", "--to", "2026-01-02")
    assert called.code == 2
    assert "SLACKWATER_STEP_MINUTES='soon'" in called.err


def test_no_two_variables_have_one_name_and_all_are_told():
    tables = {"alarms": AlarmSettings, "bounds": BoundSettings}
    settings = [variable_of(name) for name in Settings.model_fields if name not in tables]
    inner = [variable_of(table, name) for table, model in tables.items() for name in model.model_fields]
    every = [*settings, *inner, *OTHER_VARIABLES]
    assert len(set(every)) == len(every)
    text = PAGE.read_text(encoding="utf-8")
    # variables for users; the others are for tests and benchmarks
    own = set(list(OTHER_VARIABLES)[:12])
    assert all(f"`{name}`" in text for name in own)
    head = "\n".join(commented_settings().splitlines()[:5])
    for name in (
        "SLACKWATER_RISK_PATHS",
        "SLACKWATER_MODELS",
        "SLACKWATER_ALARMS_FLAT_FACTOR",
        "SLACKWATER_SETTINGS",
    ):
        assert name in head
        assert name in text
    named, used = set(), set()
    for folder in ("flows", "forecasting", "optimization", "warehouse", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            found = set(re.findall(r"\b(SLACKWATER_[A-Z_]*[A-Z])\b", path.read_text(encoding="utf-8")))
            used |= found if path != Path(__file__) else set()
            named |= found if folder in ("flows", "warehouse") else set()
    assert used <= set(every), "a variable that the list does not have"
    assert named <= own | set(settings) | set(inner), "a variable that the page does not tell"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RISK_PAHTS", "RISK_PATHS"), ("ALARM_FLAT_FACTOR", "ALARMS_FLAT_FACTOR"),
        ("SNAPSHOT", "SNAPSHOTS"), ("SETTING", "SETTINGS"),
    ],
)  # fmt: skip
def test_a_misspelled_variable_is_refused_with_the_nearest_setting(file, name, meant):
    with pytest.raises(
        SettingsError, match=f"variable {PREFIX}{name} is not a setting; expected {PREFIX}{meant}\\b"
    ) as caught:
        read_settings(environment={f"{PREFIX}{name}": "geheim"})
    assert "slackwater init" in caught.value.remedy
    assert "geheim" not in str(caught.value)


def test_a_misspelled_key_is_refused_with_the_nearest_of_its_table(file):
    for text, said in (
        ("risk_pahts = 5", "risk_pahts is not a setting; expected risk_paths"),
        ("[alarms]\nflat_facter = 5", "alarms.flat_facter is not a setting; expected flat_factor"),
        (
            '[[sinks]]\nname = "d"\nkind = "file"\nfolder = "x"\ntries = 2',
            "sinks.0.tries is not a setting; expected",
        ),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError, match=said):
            read_settings(environment={})


@pytest.mark.parametrize(
    "name", [name for name, field in Settings.model_fields.items() if isinstance(field.default, Section)]
)
def test_an_unknown_key_of_every_section_is_named(file, name):
    own = next(iter(type(Settings.model_fields[name].default).model_fields))
    file.write_text(f"[{name}]\n{own}x = 1\n")
    with pytest.raises(SettingsError, match=rf"{name}\.{own}x is not a setting; expected {own}"):
        read_settings(environment={})


def test_variables_that_are_no_settings_are_known(file):
    file.write_text(
        '[[sinks]]\nname = "w"\nkind = "webhook"\nurl = "https://h/x"\n'
        'token_env = "SLACKWATER_HOOK_TOKEN"\nsecret_env = "SLACKWATER_HOOK_SECRET"\n'
    )
    others = dict.fromkeys(OTHER_VARIABLES, "x") | {f"{PREFIX}SETTINGS": str(file)}
    tokens = {"SLACKWATER_HOOK_TOKEN": "a", "SLACKWATER_HOOK_SECRET": "b", "SLACKWATER_NOTHING": " "}
    assert read_settings(environment={**others, **tokens}).sinks[0].name == "w"


def test_commands_that_need_no_settings_refuse_it_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACKWATER_DBS", "here.duckdb")
    for words in (("job", "list"), ("rejected",), ("markets",)):
        called = call(*words)
        assert called.code == 2
        assert "SLACKWATER_DBS is not a setting; expected SLACKWATER_DB" in called.err
    assert call("markets", "--help").code == 0
