"""Options of a source, declared once as a pydantic model: the fields are the names, their descriptions the help.

The command line gives text, the settings give TOML; both are read here, and what cannot be used is refused with the
name of the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from warehouse.errors import SettingsError


class Options(BaseModel):
    """The options of a source without any; each source has its own model."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)


OptionsT = TypeVar("OptionsT", bound=Options)


def label_option(default: str | None, words: str = "") -> Any:
    """The field ``source`` of every model: the label of all rows."""
    return Field(default, description=f"label of all rows (default: {words or default})")


def help_of(model: type[Options]) -> dict[str, str]:
    """Option name -> one sentence of help."""
    return {name: field.description or "" for name, field in model.model_fields.items()}


def read_options(source: str, model: type[OptionsT], values: Mapping[str, Any]) -> OptionsT:
    """The options of a source as its model; raises `SettingsError` for one that it does not know or cannot use."""
    if unknown := sorted(set(values) - set(model.model_fields)):
        raise SettingsError(
            f"option {unknown[0]!r} of the source {source!r}", expected=f"one of {', '.join(help_of(model))}"
        )
    for name, value in values.items():
        if isinstance(value, bool) and not _holds(model, name, bool):  # to pydantic true is 1
            raise _refused(source, name, value, _expected(model, name))
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    raise _refused(source, name, values.get(name), _words(model, name, first))


def _refused(source: str, name: str, value: object, expected: str) -> SettingsError:
    # An address may hold a password, a table of headers a key: they are not printed.
    hidden = value is None or isinstance(value, Mapping) or "://" in str(value)
    shown = "" if hidden else f" = {value!r}"
    return SettingsError(f"option {name}{shown} of the source {source!r} cannot be used", expected=expected)


def _words(model: type[Options], name: str, error: ErrorDetails) -> str:
    """What is expected of an option: the words of our own validators, else what its type and bounds say."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return _expected(model, name)


def _holds(model: type[Options], name: str, kind: type) -> bool:
    annotation = model.model_fields[name].annotation
    return annotation is kind or kind in get_args(annotation)


def _expected(model: type[Options], name: str) -> str:
    field = model.model_fields[name]
    for part in (field.annotation, *get_args(field.annotation)):
        if get_origin(part) is Literal:
            return f"one of {', '.join(get_args(part))}"
    if _holds(model, name, bool):
        return "true or false"
    for kind, words in ((int, "a whole number"), (float, "a number")):
        if _holds(model, name, kind):
            low = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
            high = next((one.le for one in field.metadata if hasattr(one, "le")), None)
            return f"{words} of at least {low}" if high is None else f"{words} from {low} to {high}"
    return "a text"


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of texts")
    return tuple(one.strip() for one in value if one.strip())


def _table(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str | int | float) and not isinstance(one, bool) for one in value.values()
    ):
        raise ValueError("a table of texts")
    return {str(key): str(one) for key, one in value.items()}


def _moment(value: object) -> datetime | None:
    if value is None or isinstance(value, datetime):
        at = value
    else:
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError as error:
            raise ValueError("a time such as 2023-08-27T00:00Z") from error
    if at is None:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        usable = False
    else:
        usable = usable and "@" not in parts.netloc
    if not usable:
        raise ValueError("http://host/... or https://host/... without user and password")
    return text.rstrip("/")


#: A list of texts, or one text with commas.
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
#: A table of texts and numbers, as texts.
Table = Annotated[dict[str, str], BeforeValidator(_table)]
#: A time in ISO 8601; without a zone it is UTC.
Moment = Annotated[datetime | None, BeforeValidator(_moment)]
#: An http(s) address without user and password, as those would be printed; a trailing slash is dropped.
Address = Annotated[str, AfterValidator(_address)]
