"""Parsers for stored JSON texts; the texts are not trusted, as an older version or another program may have written them."""

from __future__ import annotations

import json
from typing import Any


def why_unreadable(text: str, form: type = dict) -> str:
    """Return why a text is not a JSON object (or list, by ``form``); "" if it is.

    >>> why_unreadable("{"), why_unreadable("[]"), why_unreadable('{"a": 1}')
    ('no JSON', 'a JSON list where an object is expected', '')
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(found, form):
        words = "object" if isinstance(found, dict) else "list" if isinstance(found, list) else "value"
        return f"a JSON {words} where {'an object' if form is dict else 'a list'} is expected"
    return ""


def read_object(text: str | None, *required: str) -> dict[str, Any] | None:
    """Return the JSON object in a stored text; {} for an empty text, None if it is no object or lacks a ``required`` key."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and all(key in found for key in required) else None


def read_list(text: str | None) -> list[Any]:
    """Return the JSON list in a stored text; [] for an empty text or any other content."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []
