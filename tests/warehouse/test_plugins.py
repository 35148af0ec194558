"""The optional extras: their modules are declared in pyproject.toml, and a missing one is named with its remedy."""

import re
import tomllib
from pathlib import Path

import pytest

from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.plugins import EXTRAS, has_extra, require_extra

ROOT = Path(__file__).parents[2]


def test_pyproject_installs_the_modules_of_every_extra():
    with open(ROOT / "pyproject.toml", "rb") as file:
        declared = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        installed = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in declared[extra]}
        assert set(modules) <= installed


def test_a_missing_extra_is_found_expected_and_remedied(monkeypatch):
    assert has_extra("serve")
    require_extra("serve", "`slackwater ui`")
    monkeypatch.setitem(EXTRAS, "serve", ("prefect", "no_such_module"))
    assert not has_extra("serve")
    with pytest.raises(SettingsError) as raised:
        require_extra("serve", "`slackwater ui`")
    assert str(raised.value) == (
        "`slackwater ui` needs no_such_module, which is not installed; expected the optional extra serve; "
        'pip install "slackwater[serve]"'
    )
