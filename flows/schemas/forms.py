"""JSON Schemas of the JSON answers of the commands, whose keys are declared in ``data/forms.toml``.

Times are ISO 8601 in UTC, money is USD, unknown and undefined values are null. Keys may be added:
readers must ignore keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from slackwater.flows.ledger.fields import BOARD, DECISION, DELIVERED, Field, read_fields
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import InputError

#: Keys of forecast errors, in the answers of turns and of the command ``accuracy`` (M6.5).
MEASURES: Final = read_fields("measure")
#: Rows of answers whose keys are declared elsewhere. That of `slackwater fill` has the fields computed from job
#: and decision, so no reason for the policy.
_ROWS: Final[Mapping[str, Callable[[], Mapping[str, Field]]]] = {
    "DecisionRow": lambda: {name: field for name, field in DECISION.items() if name not in DELIVERED},
    "FilledDecision": lambda: {name: field for name, field in DECISION.items() if field.value is not None},
    "BoardRow": lambda: BOARD,
    "SlotQuantiles": lambda: {
        "step_ahead": Field(kind="whole", words="Lead time in slots; 1 is the next slot."),
        "slot": Field(kind="time", words=""),
        **{
            name: Field(kind="number", words="")
            for name in ("mean", *(f"q{k:02d}" for k in range(5, 100, 5)))
        },
    },
}
#: JSON Schemas of the types of values, by name.
_VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "text": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
    "flag": {"type": "boolean"},
    "whole": {"type": "integer"},
    "count": {"type": "integer", "minimum": 0},
    "number": {"type": "number"},
    "amount": {"type": "number", "minimum": 0},
    "positive": {"type": "number", "exclusiveMinimum": 0},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "texts": {"type": "array", "items": {"type": "string"}},
    "object": {"type": "object", "additionalProperties": True},
}
_OPTIONAL: Final = "optional "  # Before the type of a key that may be absent


def form(name: str) -> Mapping[str, Field]:
    """Return the keys of a form, a table of ``data/forms.toml`` or rows declared elsewhere; raises `KeyError`."""
    if name in _ROWS:
        return _ROWS[name]()
    table = dict(read_data(__package__, "forms")[name])
    inherited = filter(None, table.pop("extends", "").split(", "))
    fields = {key: field for other in inherited for key, field in form(other).items()}
    fields |= {key: MEASURES[key] for key in table.pop("measures", "").split()}
    declared = {key: text.partition(": ") for key, text in table.items()}
    return fields | {key: Field(kind=kind, words=words) for key, (kind, _, words) in declared.items()}


def schema_of_type(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a type by its name.

    >>> schema_of_type("list of count?"), schema_of_type("one of a, b")
    ({'type': ['array', 'null'], 'items': {'type': 'integer', 'minimum': 0}}, {'enum': ['a', 'b'], 'type': 'string'})
    """
    first, _, rest = kind.partition(" of ")
    if " | " in kind:
        return {"anyOf": [schema_of_type(alternative) for alternative in kind.split(" | ")]}
    if kind.endswith("?"):
        inner = schema_of_type(kind[:-1])
        return inner | {"type": [inner["type"], "null"]}
    if first == "one":
        return _schema_of_choice([int(text) if text.isdecimal() else text for text in rest.split(", ")])
    if first == "list":
        return {"type": "array", "items": schema_of_type(rest)}
    if first == "map":
        return {"type": "object", "additionalProperties": schema_of_type(rest)}
    return dict(_VALUES[kind]) if kind in _VALUES else schema_of_fields(form(kind))


def _schema_of_choice(values: list[int | str]) -> dict[str, Any]:
    if len(values) == 1:
        return {"const": values[0]}
    return {"enum": values, "type": "integer" if isinstance(values[0], int) else "string"}


def schema_of_fields(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the JSON Schema of objects with these fields."""
    properties = {
        name: {
            **schema_of_type(field.kind.removeprefix(_OPTIONAL)),
            **field.limits,
            **({"description": field.words} if field.words else {}),
        }
        for name, field in fields.items()
    }
    required = [name for name, field in fields.items() if not field.kind.startswith(_OPTIONAL)]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


REPLAY: Final = "slackwater.replay/2"  # Versions of answers, as in their key ``schema``
BACKTEST: Final = "slackwater.backtest/1"
#: Title and form of each answer by command. The schema "decision" is generated from `DECISION` instead.
FORMS: Final[dict[str, tuple[str, str]]] = {
    "run": ("One turn of the loop: `slackwater run --json`", "TurnAnswer"),
    "forecast": ("Forecasts of price and count: `slackwater forecast --json`", "ForecastAnswer"),
    "replay": (
        "A job simulated on recorded market data: `slackwater replay --json`",
        "ReplayAnswer | ReplaysAnswer",
    ),
    "backtest": ("A job simulated at many starts: `slackwater backtest --json`", "BacktestAnswer"),
    "accuracy": (
        "Accuracy of forecasts compared with last value: `slackwater accuracy --json`",
        "AccuracyAnswer",
    ),
    "status": ("Done, missing, failed and stale slots: `slackwater status --json`", "StatusAnswer"),
    "fill": ("A fine-tuning request filled: `slackwater fill --json`", "FillAnswer"),
    "rent": ("GPUs for each job of a stream: `slackwater rent --json`", "RentAnswer"),
}
PROMISE: Final = "Within a version, keys may be added, but no key is removed or changes its type: readers must ignore unknown keys."


def schema(name: str) -> dict[str, Any]:
    """Return the published JSON Schema of an answer; raises `InputError` for an unknown name."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:slackwater:{name}"}
    if name == "decision":
        heading = {"title": "Decision of slackwater for a job and a slot", "description": PROMISE}
        return head | {"$id": "urn:slackwater:decision:2"} | heading | schema_of_fields(DECISION)
    if name not in FORMS:
        raise InputError(f"unknown schema {name!r}", expected=f"one of {', '.join(names())}")
    title, kind = FORMS[name]
    version = {"replay": f":{REPLAY.rpartition('/')[2]}"}.get(name, "")
    return head | {"$id": head["$id"] + version, "title": title} | schema_of_type(kind)


def names() -> list[str]:
    """Return the names of all schemas."""
    return ["decision", *FORMS]
