"""The table of expected value to go, and equality of horizon programs (M3.1, M3.3c)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window

from slackwater.optimization.window.plan import EndRule, ExpectedToGo, HorizonProblem

JOB = make_job(workload=6.0, deadline_slots=8, n_min=2, n_max=4, value=9.0)
WORK = np.array([-1.0, 2.0, 6.0])
TABLE = np.array([[0.0, 0.0, 1.0, 1.0], [2.0, 3.0, 3.0, 3.0], [8.0, 8.0, 8.5, 9.0]])


def table(work=WORK, value=TABLE):
    return ExpectedToGo(work=work, value_usd=value)


def problem(**changes):
    window = make_window(np.array([0.3, 0.4]), np.array([3, 1]))
    made = HorizonProblem(
        job=JOB,
        slot=1,
        done=1.0,
        n_previous=0,
        window=window,
        end_rule=EndRule.EXPECTED_TO_GO,
        expected=table(),
    )
    return replace(made, **changes)


def test_between_points_linear_and_beyond_the_ends_constant():
    read = [table().at(z, 1) for z in (-9.0, -1.0, 0.5, 2.0, 4.0, 6.0, 7.0)]
    assert read == pytest.approx([0.0, 0.0, 1.5, 3.0, 5.5, 8.0, 8.0])


def test_rounding_is_lifted_and_the_table_cannot_be_changed():
    value = TABLE.copy()
    value[1, 0] = value[0, 0] - 1e-12
    made = table(value=value)
    assert made.value_usd[1, 0] == value[0, 0]
    with pytest.raises(ValueError, match="read-only"):
        made.value_usd[0, 0] = 3.0
    value[2, 0] = 100.0
    assert made.value_usd[2, 0] == 8.0


def test_programs_alike_in_content_have_one_key():
    assert problem().content() == problem().content()
    assert hash(problem().content()) == hash(problem().content())
    others = [
        problem(slot=2),
        problem(done=1.5),
        problem(n_previous=1),
        problem(job=replace(JOB, value=10.0)),
        problem(end_rule=EndRule.TARGET),
        problem(expected=table(value=TABLE * 0.5)),
        problem(expected=table(work=WORK + 0.5)),
        problem(window=problem().window.cut(0, 1)),
        problem(window=replace(problem().window, on_demand_usd=2.0)),
    ]
    assert len({p.content() for p in (problem(), *others)}) == 1 + len(others)


def test_rules_that_do_not_read_the_table_do_not_tell_it_apart():
    target = problem(end_rule=EndRule.TARGET)
    assert target.content() == replace(target, expected=None).content()


def test_a_table_is_kept_in_one_memory_order_whatever_it_came_in():
    """Another memory order would compile the code again, which takes seconds."""
    turned = table(value=np.asfortranarray(TABLE))
    assert turned.value_usd.flags.c_contiguous
    assert turned.content() == table().content()
