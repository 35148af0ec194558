"""The fence: the command line returns the reference answers, and a difference is detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fence.cases import all_cases
from fence.differences import differences, is_fitted
from fence.normal import normal, packed, summary, text, unpacked

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("SLACKWATER_DATA"), reason="needs the open data")
def test_quick_cases_answer_as_before():
    words = [sys.executable, "-m", "tests.golden.fence", "check", "--quick"]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_every_case_has_an_answer_and_every_answer_a_case():
    """A case without a reference checks nothing."""
    kept = {file.stem for file in (Path(__file__).parent / "fence" / "answers").glob("*.json")}
    assert kept == set(all_cases())


def found(old, new, **options):
    return [
        difference.path for difference in differences(summary(normal(old)), summary(normal(new)), **options)
    ]


def test_a_difference_names_its_place():
    assert found({"a": [{"b": 1.0}]}, {"a": [{"b": 1.0 + 1e-6}]}) == ["$.a[0].b"]
    assert found({"a": [{"b": 1.0}]}, {"a": [{"b": 1.0 + 1e-12}]}) == []
    assert found({"a": 1}, {}) == ["$.a"]
    assert found({"a": True}, {"a": 1}) == ["$.a"]


def test_added_keys_only_if_told():
    assert found({}, {"a": 1}) == ["$.a"]
    assert found({}, {"a": 1}, added_ok=True) == []


def test_records_are_compared_by_name_and_their_order_once():
    old = [{"policy": name, "usd": cost} for name, cost in (("x", 1.0), ("y", 2.0), ("z", 3.0))]
    assert found(old, [old[1], old[0], old[2]]) == ["$ (order, from entry 0)"]
    assert found(old, old[:2]) == ["$[z]"]


def test_long_lists_tell_a_change_in_the_middle_and_a_change_of_places():
    old = [{"policy": f"p{number}", "usd": float(number)} for number in range(50)]
    new = [dict(row) for row in old]
    new[20]["usd"] = 20.1
    assert "$.columns.usd.mean" in found(old, new)
    new[20], new[21] = old[21], old[20]
    assert found(old, new) == ["$.columns.policy.sha256", "$.columns.usd.walk"]
    assert len(text(summary(old))) < 600


def test_what_is_written_is_what_is_read():
    answer = {
        "rows": [{"a": n, "b": [{"c": n}, {"c": 2}, {"c": None}]} for n in range(5)],
        "none": [],
        "words": ["x"] * 99,
    }
    assert unpacked(json.loads(text(packed(answer)))) == answer


def test_what_is_volatile_is_dropped():
    assert normal({"seconds": 1.2, "at": "/tmp/x/a"}, {"/tmp/x": "<scenes>"}) == {"at": "<scenes>/a"}


def test_a_figure_that_hangs_on_the_processor_is_named_and_no_other_may_differ():
    old = {"rate": {"fitted": 1.0, "cost": 1.0}}
    near, far = ({"rate": {"fitted": 1.0 + gap, "cost": 1.0 + gap}} for gap in (1e-6, 1e-3))
    left = [
        [one.path for one in differences(old, new) if not is_fitted({"$.rate.fit*": 1e-5}, one)]
        for new in (near, far)
    ]
    assert left == [["$.rate.cost"], ["$.rate.fitted", "$.rate.cost"]]
