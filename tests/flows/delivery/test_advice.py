"""The decision document: its form for decisions of every kind, its stability, and safe file names."""

import hashlib
import json
import re
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from advice_kit import AHAP, BEGIN, MARKET, SOURCE, STEP, decided_row, hold, new_store, request
from test_job_report import report

from slackwater.flows.config import Sink
from slackwater.flows.delivery import CannotSendError, as_text, file_name, folder_name, headers_of
from slackwater.flows.ledger.decisions import SCHEMA, document, key_of
from slackwater.flows.schemas.forms import schema
from slackwater.warehouse.errors import InputError

PROMISED = json.loads((Path(__file__).parents[2] / "golden" / "decision-2.json").read_text())
RIGID = {"resumable": False, "overhead_minutes": 3}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Yield decisions of every kind, keyed by their special property."""
    with new_store(tmp_path_factory.mktemp("market")) as store:
        asked = {
            "plain": {},
            "planned": {"policy": AHAP},
            "stochastic": {"policy": "Stochastic"},
            "on-demand only": {"asked": request(checkpoint=RIGID)},
            "must finish": {"asked": request(value_usd=None)},
            "hopeless": {"asked": request(workload={"amount": 900.0, "unit": "instance_hours"})},
            "finished": {"reports": [report(3, finished=True)]},
            "reported": {"reports": [report(4, progress=7.5, spot=3)]},
            "in debt": {
                "asked": request(checkpoint={"resumable": True, "overhead_minutes": 90}),
                "decided": hold((1, 0), 5) | hold((2, 0), 1),
            },
            "synthetic": {"asked": request(market="lab/r1/z2/a3-highgpu-1g")},
            "one slot left": {"asked": request(deadline_in="3h")},
        }
        decided = hold((1, 0), 5)
        yield {name: decided_row(store, 5, **{"decided": decided} | terms) for name, terms in asked.items()}


def test_real_decisions_of_every_kind_keep_to_the_schema(rows):
    form = schema("decision")
    jsonschema.Draft202012Validator.check_schema(form)
    checker = jsonschema.Draft202012Validator(
        form, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for name, row in rows.items():
        whole = document(row)
        checker.validate(whole)
        assert json.loads(as_text(whole)) == whole, name
        assert set(row) <= set(whole), name


def test_the_kinds_are_what_they_are_called(rows):
    made = {name: document(row) for name, row in rows.items()}
    assert made["plain"]["schema"] == SCHEMA
    assert made["plain"]["planned"] is None
    assert [row["slot"] for row in made["planned"]["planned"]] == [
        (BEGIN + slot * STEP).isoformat() for slot in (6, 7)
    ]
    assert made["on-demand only"]["spot"] == 0
    assert made["on-demand only"]["policy"] == "OD-only"
    assert made["must finish"]["must_finish"] is True
    assert made["hopeless"]["late_probability"] == 1.0
    assert made["hopeless"]["shortfall"].startswith("cannot be done by")
    # only the warning reports the shortfall, so it appears once
    assert "best effort" not in made["hopeless"]["reason"]
    assert (made["finished"]["on_demand"], made["finished"]["spot"]) == (0, 0)
    assert made["finished"]["progress_share"] == 1.0
    assert (made["reported"]["progress_from"], made["plain"]["progress_from"]) == ("reported", "decided")
    assert made["reported"]["progress"] == pytest.approx(7.5 + 0.5 * 0.95, abs=0.1)
    assert 0 <= made["in debt"]["progress"] < 1  # its restart takes longer than a slot
    assert made["synthetic"]["synthetic"]
    assert made["plain"]["synthetic"] == []
    assert made["plain"]["valid_until"] == made["plain"]["slot_end"] == (BEGIN + 6 * STEP).isoformat()
    assert made["plain"]["market_parts"] == {
        "provider": "lab", "region": "r1", "zone": "z1", "instance_type": "a3-highgpu-1g",
    }  # fmt: skip


def flattened(form, where=""):
    """Return the type of every key of a schema, including nested objects and lists."""
    found = {}
    for key, part in form.get("properties", {}).items():
        kind = part.get("type", type(part.get("const")).__name__)
        found[where + key] = sorted(kind) if isinstance(kind, list) else kind
        found |= flattened(part, f"{where}{key}.")
        found |= flattened(part.get("items", {}), f"{where}{key}[].")
    return found


def test_no_key_of_this_version_goes_or_changes_its_type():
    """New keys are allowed. On failure, move the change to decision-3.json with a new schema name."""
    assert PROMISED["schema"] == SCHEMA
    now = flattened(schema("decision"))
    assert {key: now.get(key) for key in PROMISED["keys"]} == PROMISED["keys"]
    required = set(schema("decision")["required"])
    assert {key for key in PROMISED["keys"] if "." not in key} <= required
    assert schema("decision")["properties"]["schema"] == {
        "const": SCHEMA, "description": "Name and version of this format.",
    }  # fmt: skip


def test_real_documents_have_what_was_promised_with_its_type(rows):
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
             "object": dict, "null": type(None), "str": str}  # fmt: skip
    for row in rows.values():
        whole = document(row)
        for key, kind in PROMISED["keys"].items():
            if "." not in key:
                allowed = tuple(kinds[one] for one in ([kind] if isinstance(kind, str) else kind))
                flat = [one for part in allowed for one in (part if isinstance(part, tuple) else (part,))]
                assert isinstance(whole[key], tuple(flat)), key


def test_the_key_depends_on_job_market_source_and_slot_alone(rows):
    row = rows["plain"]
    other = row | {
        "on_demand": 7,
        "reason": "else",
        "slot": pd.Timestamp(row["slot"]).tz_convert("Asia/Tokyo").isoformat(),
    }
    assert key_of(other) == key_of(row)
    for change in ({"job": "x"}, {"market": "a/b/c/d"}, {"source": "s"}, {"slot": "2026-01-01T00:00:00Z"}):
        assert key_of(row | change) != key_of(row)
    parts = {"job": "a", "market": MARKET, "source": "b c"}, {"job": "a b", "market": MARKET, "source": "c"}
    assert len({key_of(row | one) for one in parts}) == 2


def test_a_decision_of_an_older_version_says_so(rows):
    old = {key: value for key, value in rows["plain"].items() if key != "slot_end"}
    with pytest.raises(InputError, match="older version"):
        document(old)


NAMES = [
    "llama-8b", "UPPER.case_1", "../../etc/passwd", "..", ".", "", "/abs", "a/b", "a\\b", "a\0b", "x" * 500, ".hidden",
    "-rf", "~root", "con:", "a b", "ünïcode", "名前", "new\nline", "$(id)", "a" * 80, "a" * 81, "\ud800", "a-b",
    "etc-passwd-" + hashlib.sha256(b"../../etc/passwd").hexdigest()[:12],
]  # fmt: skip


def test_folder_names_are_harmless_and_no_two_alike(tmp_path):
    made = [folder_name(name) for name in NAMES]
    assert len(set(made)) == len(NAMES)
    for folder in made:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", folder), folder
        assert (tmp_path / folder).resolve().parent == tmp_path.resolve()
    assert made[:2] == NAMES[:2]


def test_files_sort_by_slot():
    assert file_name(pd.Timestamp("2026-03-10T08:30+02:00")) == "20260310T063000Z.json"


def test_headers_have_the_token_and_the_key():
    sink = Sink(name="w", kind="webhook", url="https://h/x", token_env="T", secret_env="S")
    headers = headers_of(sink, b"{}", "k", {"T": "tok", "S": "s3cret"}, sent=1)
    assert headers["Authorization"] == "Bearer tok"
    assert headers["Idempotency-Key"] == "k"


@pytest.mark.parametrize(
    ("secret", "code"),  # made with the Python package standardwebhooks 1.0
    [
        ("whsec_MfKQ9r8GKYqTwjUPD8ILPZIo2LaLaSw", "v1,cEO9kOrs9Lka9glQFuLagqAF3VpcWaj+HaESzqkl9c4="),
        ("plain secret", "v1,mcBldEVf7FSwFZP6CEtlPL0C0z42yyDL/OzGUfkj6bk="),
    ],
)
def test_any_library_of_standard_webhooks_can_check_the_signature(secret, code):
    body = b'{"test": 2432232314}'
    sink = Sink(name="w", kind="webhook", url="https://h/x", secret_env="S")
    headers = headers_of(sink, body, "tune@1", {"S": secret}, sent=1614265330)
    assert headers["webhook-signature"] == code
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("tune@1", "1614265330")


def test_a_secret_that_is_no_base64_is_not_said():
    sink = Sink(name="w", kind="webhook", url="https://h/x", secret_env="S")
    with pytest.raises(CannotSendError, match="not base64") as error:
        headers_of(sink, b"", "k", {"S": "whsec_!!secret!!"}, sent=1)
    assert "!!" not in str(error.value)


@pytest.mark.parametrize("environment", [{}, {"T": " "}, {"T": "a\r\nX: y"}, {"T": "tök"}])
def test_a_token_that_is_missing_or_no_header_is_not_said(environment):
    sink = Sink(name="w", kind="webhook", url="https://h/x", token_env="T")
    with pytest.raises(CannotSendError) as error:
        headers_of(sink, b"", "k", environment, sent=1)
    assert "variable T" in str(error.value)
    assert not any(value.strip() and value in str(error.value) for value in environment.values())


def test_source_is_said(rows):
    assert document(rows["plain"])["source"] == SOURCE
