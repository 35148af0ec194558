"""Sixty small replays with exact answers, enumerated outside this project (M2.4-M2.6)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from make import make_job, make_window

from slackwater.optimization import Allocation, Job, View
from slackwater.optimization.job.definition import Linear
from slackwater.optimization.replay.run import replay

CASES = json.loads((Path(__file__).parent / "replays.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Fixed:
    """Policy with predetermined decisions; nothing after the last."""

    decisions: tuple[tuple[int, int], ...]
    name: str = "Fixed"

    def start(self, job: Job) -> None:
        return None

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        return Allocation(*self.decisions[view.slot]), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        return "written down"


def job_of(fields: dict[str, float]) -> Job:
    return make_job(
        name="golden",
        workload=fields["workload"],
        deadline_slots=int(fields["deadline_slots"]),
        n_min=int(fields["n_min"]),
        n_max=int(fields["n_max"]),
        throughput=Linear(alpha=fields["alpha"], beta=fields["beta"]),
        mu_up=fields["mu_up"],
        mu_down=fields["mu_down"],
        value=fields["value"],
        gamma=fields["gamma"],
    )


def test_all_cases_are_here():
    assert len(CASES) == 60
    assert sum(case["expect"]["finished_slot"] is None for case in CASES) > 10


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_replay(case):
    fields, expect = case["job"], case["expect"]
    window = make_window(
        case["price"],
        case["available"],
        on_demand_usd=fields["on_demand_price"],
        slot_hours=fields["slot_hours"],
    )
    outcome = replay(Fixed(tuple(map(tuple, case["decisions"]))), job_of(fields), window)
    assert outcome.cost_usd == pytest.approx(expect["cost"], abs=1e-6)
    assert outcome.progress == pytest.approx(expect["progress"], abs=1e-6)
    assert outcome.finished_slot == expect["finished_slot"]
    assert outcome.utility_usd == pytest.approx(expect["utility"], abs=1e-6)
    assert outcome.utility_usd == pytest.approx(outcome.value_usd - outcome.total_cost_usd, abs=1e-9)
