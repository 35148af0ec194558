"""Everything declared is explained in the tables of the glossary page."""

import described
import pytest
from typing_extensions import TypedDict

from slackwater.flows.ledger import fields
from slackwater.flows.ledger.fields import BOARD, DECISION, OUTCOME, Field
from slackwater.flows.schemas import forms


def test_every_key_and_heading_is_explained():
    text = described.words()
    for one in (DECISION, BOARD, OUTCOME):
        for name, field in one.items():
            assert f"| `{name}` |" in text
            assert field.words.endswith(".")
            assert not field.heading or field.label in text
    for form in (forms.TurnError, forms.MarketMeasures, forms.ClassMeasures):
        for name, key in forms.schema_of(form)["properties"].items():
            assert f"| `{name}` |" in text
            assert key["description"].endswith(".")


def test_a_key_of_an_error_without_words_is_no_page():
    class Wordless(TypedDict):
        novelty: float

    with pytest.raises(KeyError, match="description"):
        described._typed_dict_words(Wordless)


def test_a_field_more_is_on_the_page(monkeypatch):
    field = Field(kind=float | None, words="Energy of the slot.", heading="energy", unit="kWh")
    monkeypatch.setitem(fields.DECISION, "energy_kwh", field)
    assert "| `energy_kwh` | energy, kWh | Energy of the slot. |" in described.words()


def test_columns_of_the_tables_of_errors_are_explained():
    explained = set(described.HEADINGS)
    measures = {"rmse", "mase", "pinball", "brier", "skill_brier", "absent", "unpredicted", "cover"}
    assert measures <= explained
    properties = (
        forms.schema_of(forms.MarketMeasures)["properties"]
        | forms.schema_of(forms.ClassMeasures)["properties"]
    )
    assert explained <= set(properties)
