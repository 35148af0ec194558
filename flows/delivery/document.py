"""The decision document: what a decision says to programs outside, in a form that stays (``slackwater.decision/1``)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

import pandas as pd

from flows.ledger.fields import DECISION, whole_row
from flows.show.formats import plain
from warehouse.errors import InputError
from warehouse.history import Market

#: Name and version of the form; the version grows when a key goes or changes its type, never when one is added.
SCHEMA = "slackwater.decision/1"
#: Letters of a file name that every file system takes; a name of more of them, or of others, is shortened and marked.
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
#: How marked names end, which no unmarked one may.
_MARK = re.compile(r"-[0-9a-f]{12}")


def document(decision: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a decision as it was made or as the warehouse keeps it: what `DECISION` names, and what else it says.

    ``key`` is the same for the same job, market and slot, so that what is received twice is acted on once. Raises `InputError` for
    a decision of a version that did not write down what the document says.
    """
    row = whole_row(decision)
    if lacking := [
        name for name, value in row.items() if value is None and name in DECISION and not _may_lack(name)
    ]:
        raise InputError(
            f"the decision for job {row['job']!r} at {row['slot']} was made by an older version: it has no {lacking[0]}",
            expected="a decision that says all that its form promises",
            remedy="`slackwater plan` decides afresh",
        )
    market = Market.parse(str(row["market"]))
    added = {
        "schema": SCHEMA,
        "program": "slackwater",
        "version": program_version(),
        "key": key_of(row),
        "market_parts": {
            "provider": market.provider,
            "region": market.region,
            "zone": market.zone,
            "instance_type": market.instance_type,
        },
        "valid_until": row["slot_end"],
    }
    whole: dict[str, Any] = plain({name: (added | row)[name] for name in DECISION} | row)
    return whole


def _may_lack(name: str) -> bool:
    return type(None) in get_args(DECISION[name].kind)


def key_of(decision: Mapping[str, Any]) -> str:
    """The idempotency key of a decision: 32 hexadecimal digits that depend on its job, market, source and slot alone."""
    parts = [str(decision[name]) for name in ("job", "market", "source")]
    parts.append(pd.Timestamp(decision["slot"]).tz_convert("UTC").isoformat())
    return hashlib.sha256(json.dumps([SCHEMA, *parts]).encode()).hexdigest()[:32]


def as_text(document: Mapping[str, Any]) -> str:
    """A document as JSON text: what files hold and what is sent."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


@cache
def program_version() -> str:
    """The version that is installed, "unknown" for a tree that is not."""
    try:
        return version("slackwater")
    except PackageNotFoundError:
        return "unknown"


def folder_name(job: str) -> str:
    """A folder name for a job, no two jobs alike: its own where that is harmless, else what is harmless of it and a mark.

    >>> folder_name("llama-8b")
    'llama-8b'
    >>> folder_name("../etc/passwd")
    'etc-passwd-7fef78f53440'
    """
    if _SAFE.fullmatch(job) and not _MARK.search(job[-13:]):
        return job
    digest = hashlib.sha256(job.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", job).lstrip("._-")[:60]
    return f"{kept.rstrip('._-') or 'job'}-{digest}"


def file_name(slot: pd.Timestamp) -> str:
    """The file of a slot's decision: 20260310T063000Z.json."""
    return f"{slot.tz_convert('UTC'):%Y%m%dT%H%M%SZ}.json"
