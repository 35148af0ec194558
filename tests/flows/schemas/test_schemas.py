"""The published schemas: listed by one command, documented, and strict enough to detect a wrong answer."""

import json
from pathlib import Path

import jsonschema
import pytest
from command_kit import call
from published import closed, keeps_to

from slackwater.flows.cli import COMMANDS
from slackwater.flows.schemas.forms import FORMS, names, schema

DOCS = Path(__file__).parents[3] / "docs" / "schemas.md"


def test_the_command_lists_them_and_prints_each():
    listed = call("schema", "--json").value["schemas"]
    assert [row["name"] for row in listed] == names()
    for name in names():
        assert json.loads(call("schema", name).out) == schema(name)
        jsonschema.Draft202012Validator.check_schema(schema(name))
    assert call("schema", names()[0], "--json").value == schema(names()[0])
    refused = call("schema", "nonsense")
    assert refused.code == 2
    assert "one of decision, run" in refused.err


def test_each_is_that_of_a_command_and_stands_in_the_documentation():
    text = DOCS.read_text()
    assert set(FORMS) <= set(COMMANDS)
    for name in names():
        assert f"`{name}`" in text


def test_everything_that_is_said_has_a_type():
    def bare(part, where):
        if isinstance(part, dict):
            for key, value in part.get("properties", {}).items():
                if not {"type", "const", "enum", "anyOf"} & set(value):
                    yield f"{where}.{key}"
                yield from bare(value, f"{where}.{key}")
            yield from bare(part.get("items"), where)

    assert [path for name in names() for path in bare(schema(name), name)] == []


def test_a_key_more_less_or_of_another_type_is_found():
    good = {"forecasts": []}
    keeps_to("forecast", good)
    for bad in ({}, {"forecasts": {}}, good | {"more": 1}, {"forecasts": [{"market": "m"}]}):
        with pytest.raises(jsonschema.ValidationError):
            keeps_to("forecast", bad)
    jsonschema.validate(good | {"more": 1}, schema("forecast"))  # readers ignore unknown keys
    assert "additionalProperties" in closed(schema("forecast"))
