"""Whether an answer keeps to its published schema, and says nothing that the schema does not know."""

import json
from functools import cache

import jsonschema

from flows.schemas.forms import schema
from flows.show.formats import as_json

CHECKER = jsonschema.Draft202012Validator


def closed(form):
    """The schema with no room for keys that it does not name."""
    if isinstance(form, list):
        return [closed(one) for one in form]
    if not isinstance(form, dict):
        return form
    own = {key: closed(value) for key, value in form.items()}
    return own | {"additionalProperties": False} if isinstance(form.get("properties"), dict) else own


@cache
def checker(name):
    """The checker of a published schema that is one itself."""
    form = closed(schema(name))
    CHECKER.check_schema(form)
    return CHECKER(form, format_checker=CHECKER.FORMAT_CHECKER)


def keeps_to(name, value):
    """Raise if a value, as ``--json`` prints it, is not of the published form."""
    checker(name).validate(json.loads(as_json(value)))
