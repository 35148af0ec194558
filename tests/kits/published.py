"""Check answers against their published schemas, without additional keys."""

import json
from functools import cache

import jsonschema

from slackwater.flows.schemas.forms import schema
from slackwater.flows.show.formats import as_json

CHECKER = jsonschema.Draft202012Validator


def closed(form):
    """Return the schema with additional keys forbidden."""
    if isinstance(form, list):
        return [closed(one) for one in form]
    if not isinstance(form, dict):
        return form
    own = {key: closed(value) for key, value in form.items()}
    return own | {"additionalProperties": False} if isinstance(form.get("properties"), dict) else own


@cache
def checker(name):
    """Return a validator of a published schema, after checking the schema itself."""
    form = closed(schema(name))
    CHECKER.check_schema(form)
    return CHECKER(form, format_checker=CHECKER.FORMAT_CHECKER)


def keeps_to(name, value):
    """Raise an error unless a value, as printed by ``--json``, has the published form."""
    checker(name).validate(json.loads(as_json(value)))
