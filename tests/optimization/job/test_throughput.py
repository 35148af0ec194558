"""Throughput forms and their shared table of rates (M2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from slackwater.optimization.job.definition import Amdahl, Linear, Power, RateTable, rates
from slackwater.warehouse.errors import JobError


@pytest.mark.parametrize(
    ("throughput", "expected"),
    [
        (Linear(alpha=2.0, beta=0.5), [0.0, 2.5, 4.5, 6.5]),
        (Amdahl(parallel=0.5, scale=3.0), [0.0, 3.0, 4.0, 4.5]),
        (Power(exponent=0.5, scale=2.0), [0.0, 2.0, 2.0 * 2**0.5, 2.0 * 3**0.5]),
        (RateTable(rates=(1.0, 1.5, 1.25)), [0.0, 1.0, 1.5, 1.25]),
    ],
)
def test_rates_of_every_form(throughput, expected):
    assert rates(throughput, 3) == pytest.approx(expected)


def test_a_table_ends_where_it_ends():
    with pytest.raises(JobError, match="ends at 2"):
        rates(RateTable(rates=(1.0, 2.0)), 3)


@pytest.mark.parametrize("wrong", [Linear(alpha=1.0, beta=-2.0), RateTable(rates=(1.0, float("nan"), 2.0))])
def test_rates_that_are_none_are_refused_every_time(wrong):
    for _ in range(2):
        with pytest.raises(JobError, match="positive finite"):
            rates(wrong, 3)


def test_the_shared_table_cannot_be_written():
    table = rates(Linear(), 4)
    with pytest.raises(ValueError, match="read-only"):
        table[1] = 7.0
    assert rates(Linear(), 4) is table
    assert rates(Linear(), 5) is not table


def test_a_table_keeps_its_own_rates():
    measured = [1.0, 1.8]
    table = RateTable(rates=measured)  # type: ignore[arg-type]
    measured[1] = 9.0
    assert rates(table, 2).tolist() == [0.0, 1.0, 1.8]
    assert hash(table) == hash(RateTable(rates=(1.0, 1.8)))


def test_forms_of_one_shape_are_told_apart():
    @dataclass(frozen=True)
    class Doubling:
        alpha: float = 1.0
        beta: float = 0.0

        def rate(self, n: int) -> float:
            return 2.0**n if n else 0.0

    assert np.array_equal(rates(Doubling(), 3), [0, 2, 4, 8])
    assert np.array_equal(rates(Linear(), 3), [0, 1, 2, 3])
