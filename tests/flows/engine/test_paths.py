"""Path parameters of deployments: every flow refuses paths outside the folder and writes nothing."""

import os
from importlib import import_module
from pathlib import Path

import pytest

from slackwater.flows.engine.serving import DEPLOYMENTS, flow_name
from slackwater.flows.paths import ALLOWED, allow_paths, require_inside
from slackwater.warehouse.errors import SettingsError


def flow_of(deployment):
    module, _, function = deployment.flow.rpartition(".")
    return getattr(import_module(module), function)


def paths_of(flow) -> list[str]:
    """Return the names of the flow's path parameters, according to its schema."""
    return [
        name
        for name, said in flow.parameters.properties.items()
        if "path" in str(said.get("format", said.get("anyOf")))
    ]


FLOWS = {flow_name(one): flow_of(one) for one in DEPLOYMENTS}
PARAMETERS = [(name, parameter) for name, flow in FLOWS.items() for parameter in paths_of(flow)]
OUTSIDE = (
    "{elsewhere}/kept.html", "../home/kept.html", "a/../../home/kept.html", "link/new.html", "link.html", "dangling.html",
    "/", "..", "a\0b.html",
)  # fmt: skip


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Return a folder of deployments, with links into a second folder that holds files of the user, and that folder."""
    folder, elsewhere = tmp_path / "served", tmp_path / "home"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "kept.html").write_text("precious")
    (folder / "link").symlink_to(elsewhere)
    (folder / "link.html").symlink_to(elsewhere / "kept.html")
    (folder / "dangling.html").symlink_to(elsewhere / "new.html")
    monkeypatch.chdir(folder)
    monkeypatch.delenv(ALLOWED, raising=False)
    return folder, elsewhere


def test_every_flow_has_paths_and_the_pages_are_among_them():
    assert {name for name, _ in PARAMETERS} == set(FLOWS)
    assert {parameter for _, parameter in PARAMETERS} == {"db", "data", "settings", "report", "html", "keep"}


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_path_out_of_the_folder_is_refused_by_every_flow(places, monkeypatch, name, parameter):
    folder, elsewhere = places
    monkeypatch.setattr("slackwater.flows.runs.is_deployed", lambda: True)
    before = sorted(os.listdir(folder))
    given = {"start": "2026-03-10T06:00Z", "end": "2026-03-10T06:00Z"} if name == "backfill" else {}
    for path in OUTSIDE:
        with pytest.raises(SettingsError, match=rf"parameter {parameter} = .* leads out of the folder"):
            FLOWS[name].fn(**given, **{parameter: Path(path.format(elsewhere=elsewhere))})
        assert sorted(os.listdir(folder)) == before, path
        assert {file.name: file.read_text() for file in elsewhere.iterdir()} == {"kept.html": "precious"}


@pytest.mark.parametrize("parameter", ["html", "report"])
@pytest.mark.parametrize(
    "path", ["slackwater.duckdb", "slackwater.toml", ".prefect/auth", "page", "page.html.py"]
)
def test_a_page_takes_the_place_of_no_other_file(places, parameter, path):
    with pytest.raises(SettingsError, match="a page, whose name ends with"):
        require_inside({parameter: Path(path)})


def test_paths_in_the_folder_are_taken(places):
    folder, _ = places
    require_inside({
        "db": Path("slackwater.duckdb"), "html": Path("reports/new/page.html"), "report": folder / "page.HTM", "keep": None,
        "data": folder, "settings": Path("a/../slackwater.toml"),
    })  # fmt: skip


def test_what_the_command_was_given_is_taken_wherever_it_is(places, monkeypatch):
    folder, elsewhere = places
    monkeypatch.setenv(ALLOWED, str(folder / "link"))
    require_inside({"html": Path("link/page.html")})
    monkeypatch.setenv(ALLOWED, "")
    allow_paths([Path("../home/w.duckdb")])
    require_inside({"db": elsewhere / "w.duckdb"})
    for path in (elsewhere / "w.duckdb.html", elsewhere / "page.html"):
        with pytest.raises(SettingsError, match=ALLOWED):
            require_inside({"html": path})


def test_a_flow_that_somebody_calls_takes_any_path(places, capsys):
    _, elsewhere = places
    assert FLOWS["status"].fn(db=elsewhere / "w.duckdb") == {}  # the path is accepted
    assert f"no warehouse at {elsewhere / 'w.duckdb'} yet" in capsys.readouterr().err
