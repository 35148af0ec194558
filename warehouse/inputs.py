"""Base class of the models of values that people write: settings, job files, requests and options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails

from slackwater.warehouse.amounts import is_number


class InputModel(BaseModel):
    """Frozen model that refuses unknown keys, infinite numbers and numbers in text that `is_number` refuses."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _plain_numbers(cls, values: Any) -> Any:
        """Refuse texts such as 1_0, which pydantic reads as 10."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            texts, field = _texts(value), cls.model_fields.get(name)
            kinds = _leaves(field.annotation) if texts and field is not None else set()
            if kinds & {int, float} and not kinds & {str, bool} and not all(map(is_number, texts)):
                error = InitErrorDetails(
                    type="float_parsing" if float in kinds else "int_parsing", loc=(name,), input=value
                )
                raise ValidationError.from_exception_data(cls.__name__, [error])
        return values


#: Type of a value that may have several types, as pydantic puts it into the place of an error.
_TYPE_TRIED = re.compile(r"constrained-\w+|bool|(dict|list|tuple)\[.*\]")
#: Words of pydantic -> words of TOML.
_WORDS = {"a valid tuple": 'a list, such as ["..."]', "a valid dictionary": "a table"}


def all_error_parts(errors: Sequence[ErrorDetails]) -> list[tuple[str, str, str]]:
    """Return `error_parts` of each key; of a value that may have several types only those of its own type, else the first."""
    tried = [error for error in errors if _place(error) != error["loc"]]
    usable = {_place(error)[:1] for error in tried if not error["type"].endswith("_type")}
    found: dict[str, tuple[str, str, str]] = {}
    for error in errors:
        is_of_other_type = error in tried and error["type"].endswith("_type")
        if not is_of_other_type or _place(error)[:1] not in usable:
            parts = error_parts({**error, "loc": _place(error)})
            found.setdefault(parts[0], parts)
    return list(found.values())


def _place(error: ErrorDetails) -> tuple[int | str, ...]:
    """Return the keys to the value of an error, without the types that were tried."""
    return tuple(part for part in error["loc"] if not _TYPE_TRIED.fullmatch(str(part)))


def error_parts(error: ErrorDetails) -> tuple[str, str, str]:
    """Return the key, the type and the message of an error of validation; a table without the key of its form lacks that key."""
    key, given = ".".join(map(str, error["loc"])), error.get("ctx", {})
    named = ".".join(part for part in (key, str(given.get("discriminator", "")).strip("'")) if part)
    if error["type"] == "union_tag_not_found":
        return named, "missing", "Field required"
    if error["type"] == "union_tag_invalid":
        return named, error["type"], f"{given['tag']!r}, expected {given['expected_tags']}"
    message = error["msg"]
    for theirs, words in _WORDS.items():
        message = message.replace(theirs, words)
    return key, error["type"], message


def _leaves(annotation: Any) -> set[Any]:
    """Return the types within a type: ``{int, NoneType}`` for ``int | None``."""
    inner = get_args(annotation)
    return (
        set().union(*map(_leaves, inner))
        if inner
        else {annotation}
        if isinstance(annotation, type)
        else set()
    )


def _texts(value: Any) -> list[str]:
    """Return the texts of a value, and of its items if it is a list."""
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []
