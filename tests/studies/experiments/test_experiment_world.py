"""``slackwater experiment world``: jobs, verdicts and the command on a small folder."""

from dataclasses import replace

import numpy as np
import pytest
from command_kit import call
from tidy_folder import write_tidy

from slackwater.studies.experiments import world
from slackwater.studies.experiments.world import (
    AS_WELL,
    LOADS,
    PAYS,
    PLAN,
    POLICIES,
    RULE_WINS,
    RULES,
    kinds_of,
    plan_verdict,
    replay_stretch,
    run_world,
    stretches,
    world_answer,
    world_case,
)


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    folder = write_tidy(tmp_path_factory.mktemp("world") / "tidy")
    return stretches(folder, every_days=2, rng=np.random.default_rng(1))


def test_starts_lie_in_the_later_half_with_record_and_readings_between_slots(starts):
    assert {start.market for start in starts} == {"H100, 8 instances", "V100, 4 instances"}
    assert {start.slots for start in starts} == {20, 48}
    for start in starts:
        assert start.first >= 190  # half of eight days in half hours
        assert start.within.shape == (start.slots, 2)
        assert len(start.counts) == start.first + start.slots


def test_every_start_has_a_job_of_each_shape_and_loads_take_turns(starts):
    kinds = kinds_of(starts[0])
    assert len(kinds) == 8
    assert len({(kind.form, kind.price, kind.times) for kind in kinds}) == 8
    assert [kind.load for kind in kinds[:4]] == [LOADS[(starts[0].turn + i) % len(LOADS)] for i in range(4)]
    alone = replace(starts[0], n_max=1, price=np.full(len(starts[0].counts), 0.4))
    assert {(kind.form, kind.price) for kind in kinds_of(alone)} == {("linear", "moving")}


def test_the_job_of_a_start_has_its_load_and_a_hard_deadline(starts):
    start = starts[0]
    kind = kinds_of(start)[0]
    case = world_case(start, kind)
    job = case.cases[0].job
    most = job.throughput.rate(job.n_max) * start.slots * start.hours
    assert job.workload == pytest.approx(kind.load * most)
    assert job.must_finish
    assert case.cases[0].window.available.tolist() == start.counts[start.first :].tolist()
    assert len(case.readings[0].times) == 3 * start.slots


def test_no_replay_under_the_guard_is_late_and_some_without_it_are(starts):
    chosen = starts[:3]
    found = np.concatenate([replay_stretch(start, ("MSU", "Reserve(60)", "OD-only")) for start in chosen])
    guarded, bare, slot_model = found[:, :2, :, 1], found[:, 2, :, 1], found[:, 3, :, 1]
    assert guarded.sum() == 0
    assert bare.sum() > 0
    assert slot_model.sum() == 0


def row(**intervals):
    against = {name: {"mean": 0.0, "interval": (-0.02, -0.01)} for name in RULES}
    return {"cheaper_than_plan": against | {n: {"mean": 0.0, "interval": i} for n, i in intervals.items()}}


def test_planning_pays_where_the_plan_is_cheaper_than_every_rule():
    assert plan_verdict(row())["verdict"] == PAYS
    assert plan_verdict(row(Sizing=(-0.01, 0.01))) == {"verdict": AS_WELL, "rules": ["Sizing"]}
    assert plan_verdict(row(Sizing=(-0.01, 0.01), MSU=(0.01, 0.02))) == {
        "verdict": RULE_WINS,
        "rules": ["MSU"],
    }
    assert plan_verdict(row(UP=(float("nan"), float("nan"))))["verdict"] == AS_WELL


def test_costs_are_in_units_of_on_demand_only_at_slots(starts, monkeypatch):
    """Of two of the eight jobs of a start; the slow test has all."""
    monkeypatch.setattr(world, "kinds_of", lambda start: kinds_of(start)[::4])
    runs = run_world(starts[:1])
    place = POLICIES.index("OD-only")
    assert runs.cost[:, 0, place] == pytest.approx(1.0)
    assert runs.cost[:, 3, place] == pytest.approx(1.0)
    value = world_answer(runs, data="folder", seed=1, fast=True)
    assert value["jobs"] == 2
    assert value["late_under_guard"] == 0
    assert value["guarded_replays"] == 2 * 2 * len(POLICIES)
    first = value["all_markets"][0]
    assert first["cheaper_than_greedy"][PLAN]["mean"] == pytest.approx(
        first["cost"]["MSU"] - first["cost"][PLAN]
    )


@pytest.mark.slow
def test_the_experiment_as_a_command(tmp_path):
    folder = write_tidy(tmp_path / "tidy")
    page = tmp_path / "w.html"
    words = ["experiment", "world", "--data", str(folder), "--fast", "--json", "--html", str(page)]
    found = call(*words).value
    assert found["late_under_guard"] == 0
    assert found["findings"][0].startswith("0 of ")
    assert "Policies in the world between decisions" in page.read_text(encoding="utf-8")
