"""Everything declared is explained in the tables of the glossary page."""

import described
import pytest

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
    for form in ("TurnError", "MarketMeasures", "ClassMeasures"):
        for name, key in forms.schema_of_type(form)["properties"].items():
            assert f"| `{name}` |" in text
            assert key["description"].endswith(".")


def test_a_key_of_an_error_without_words_is_no_page(monkeypatch):
    wordless = {"novelty": Field(kind="number", words="")}
    monkeypatch.setitem(forms._ROWS, "Wordless", lambda: wordless)
    with pytest.raises(ValueError, match="novelty has no description"):
        described._form_words("Wordless")


def test_a_field_more_is_on_the_page(monkeypatch):
    field = Field(kind="number?", words="Energy of the slot.", heading="energy", unit="kWh")
    monkeypatch.setitem(fields.DECISION, "energy_kwh", field)
    assert "| `energy_kwh` | energy, kWh | Energy of the slot. |" in described.words()


def test_columns_of_the_tables_of_errors_are_explained():
    explained = set(described.HEADINGS)
    measures = {"rmse", "mase", "pinball", "brier", "skill_brier", "absent", "unpredicted", "cover"}
    assert measures <= explained
    assert explained <= {*forms.form("MarketMeasures"), *forms.form("ClassMeasures")}
