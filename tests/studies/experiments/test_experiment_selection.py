"""E3: learning which policy to trust, from rounds to the answer and the page."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_kit import printed
from page_kit import charts_of, rendered
from tidy_folder import write_tidy

from slackwater.flows.show.formats import plain
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.selection.contract import weigh
from slackwater.studies.experiments.material import make_scenarios, read_tapes, run_pool
from slackwater.studies.experiments.selection import (
    PoolRounds,
    attainable_bounds,
    rounds_of,
    selection_answer,
    selection_experiment,
    selection_report,
    told_rounds,
)
from slackwater.studies.learners import BANDITS, INFORMED
from slackwater.studies.rounds import abundance
from slackwater.studies.trials.scenarios import Grid

NAMES = ("OD-only", "MSU", "UP", "AHANP(0.7)", "AHAP(3,1,0.9)", "<b>bold</b>")
ORDERS = ("random_order", "regime_switch", "hostile_switch")


def rounds(seed: int, jobs: int, *, kind: float) -> PoolRounds:
    """Return jobs on two kinds of markets; the second policy is best on one kind, the fourth on the other."""
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(np.linspace(0.1, 1.9, jobs))
    skill = np.where(
        (kinds > 1.0)[:, None], [0, 0.20, 0.1, 0.05, 0.1, 0], [0, 0.04, 0.1, 0.04 + kind, 0.1, 0]
    )
    raw = 0.5 + 0.5 * kinds[:, None] / 2 + skill + rng.normal(0, 0.02, (jobs, len(NAMES)))
    return PoolRounds(
        names=NAMES, jobs=tuple(f"j{k}" for k in range(jobs)), raw=raw,
        wide=np.clip((raw + 3.0) / 4.5, 0, 1), tight=np.clip((raw + 1.3) / 2.8, 0, 1), kinds=kinds,
        sources=tuple(f"lab:{int(one)}" for one in kinds),
    )  # fmt: skip


@pytest.fixture(scope="module")
def result():
    return selection_experiment(rounds(1, 120, kind=0.15), rounds(2, 240, kind=0.15), seed=3)


@pytest.fixture(scope="module")
def answer(result):
    return selection_answer(result, data="folder", seed=3, fast=False)


@pytest.fixture(scope="module")
def report(result, answer):
    return selection_report(result, answer)


@pytest.fixture(scope="module")
def page(report):
    return rendered(report)


@pytest.fixture(scope="module")
def text(report):
    return printed(report.blocks)


def test_the_answer_is_one_object_of_plain_values(answer):
    again = json.loads(json.dumps(plain(answer), allow_nan=False))
    assert (again["jobs"], again["policies"], again["seed"]) == (240, 6, 3)
    assert again["training"][0]["learner"] == again["learner"]
    for name in ORDERS:
        order = again[name]
        assert set(order["learners"]) == set(INFORMED)
        assert len(order["stretches"]) == 1 + order["shifts"]
        for one in order["learners"].values():
            assert one["within_bound"]
            assert one["within_shifting_bound"]
            assert one["regret"] <= one["bound"]
            assert one["curves"]["round"][-1] == 240
            assert one["curves"]["regret"][-1] == one["regret"]
        total = np.sum(list(order["weights"]["policies"].values()), axis=0) + order["weights"]["others"]
        np.testing.assert_allclose(total, 1.0)
    assert again["random_order"]["learners"]["adahedge"]["shifting_bound"] is not None, (
        "without a switch it is the static one"
    )
    assert again["regime_switch"]["learners"]["adahedge"]["shifting_bound"] is None, "none is proven"


def test_the_numbers_are_those_of_the_rounds(result, answer):
    test = rounds(2, 240, kind=0.15)
    assert answer["random_order"]["best_fixed_utility"] == pytest.approx(test.raw.mean(axis=0).max())
    switched = answer["regime_switch"]
    first = test.raw[test.kinds > np.median(test.kinds)]
    assert switched["switch_after"] == [120]
    assert switched["stretches"][0]["best_fixed"] == "MSU"
    assert switched["stretches"][0]["best_fixed_utility"] == pytest.approx(first.mean(axis=0).max())
    assert switched["stretches"][1]["best_fixed"] == "AHANP(0.7)"
    chances = [w.probability for w in weigh(INFORMED["squint"], NAMES, test.wide)[:-1]]
    assert answer["random_order"]["learners"]["squint"]["sampled_utility"] == pytest.approx(
        float((np.array(chances) * test.raw).sum(axis=1).mean())
    )


def test_a_real_switch_makes_training_choose_a_learner_that_forgets(answer):
    assert answer["learner"] == "blend"
    moved = answer["regime_switch"]["learners"]
    assert moved["blend"]["shifting_regret"] < moved["adahedge"]["shifting_regret"]
    assert moved["blend"]["stretches"][1]["share_of_best_fixed"] > 0.97


def test_findings_say_what_the_numbers_say(answer):
    text = " ".join(answer["findings"])
    share = answer["random_order"]["learners"]["blend"]["settled"]["share"]
    assert f"{share:.4f}" in text
    assert ("is kept" in text) == (share >= 0.98)
    assert "No learner's regret was above its bound" in text
    worse = json.loads(json.dumps(plain(answer)))
    worse["random_order"]["learners"]["squint"]["within_bound"] = False
    worse["random_order"]["learners"]["blend"]["settled"]["share"] = 0.9
    from slackwater.studies.experiments.selection import findings

    said = " ".join(findings(worse))
    assert "ABOVE its bound: squint (random_order)" in said
    assert "NOT kept" in said


def test_bandits_are_shown_beside_the_learner_that_sees_all(answer, page, text):
    told = json.loads(json.dumps(plain(answer["bandits"]), allow_nan=False))
    assert set(told["bandits"]) == set(BANDITS)
    for name, one in told["bandits"].items():
        for order in ORDERS:
            low, high = one[order]["settled_interval"]
            assert low <= one[order]["settled_utility"] <= high
            worth = told["full_information"][order] - one[order]["settled_utility"]
            assert one[order]["full_information_is_worth"] == pytest.approx(worth)
        assert one["within_bounds"], name
        assert (one["random_order"]["bound"] is None) == name.startswith("ar-ucb")
    test = rounds(2, 240, kind=0.15)
    assert told["drawn_at_random"]["random_order"] == pytest.approx(test.raw[120:].mean())
    assert told["full_information"]["random_order"] > max(
        one["random_order"]["settled_utility"] for one in told["bandits"].values()
    )
    best = np.argsort(-rounds(1, 120, kind=0.15).raw.mean(axis=0), kind="stable")[:8]
    assert told["few_policies"] == [NAMES[i] for i in best]
    assert all(any(line.startswith(f"{name} makes") for line in told["findings"]) for name in BANDITS)
    assert 'id="bandits"' in page
    assert "drawn at random" in text


@pytest.mark.slow  # the quick form: an answer with the switch, above
def test_one_policy_best_everywhere_leaves_no_hostile_switch():
    raw = np.tile(np.array([0.5, 0.9, 0.6, 0.6, 0.6, 0.5]), (40, 1)) + np.linspace(0, 0.1, 40)[:, None]
    same = PoolRounds(
        names=NAMES, jobs=tuple(f"j{k}" for k in range(40)), raw=raw, wide=raw / 2, tight=raw / 2, kinds=np.arange(40.0),
        sources=("lab:counts",) * 40,
    )  # fmt: skip
    result = selection_experiment(same, same, seed=0)
    answer = selection_answer(result, data="folder", seed=0, fast=True)
    assert answer["hostile_switch"]["switch_after"] == []
    assert any("no hostile switch" in line for line in answer["findings"])
    assert "hostile" in rendered(selection_report(result, answer))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_and_page(answer, page):
    again = selection_experiment(rounds(1, 120, kind=0.15), rounds(2, 240, kind=0.15), seed=3)
    same = selection_answer(again, data="folder", seed=3, fast=False)
    assert json.dumps(plain(same)) == json.dumps(plain(answer))
    assert rendered(selection_report(again, same)) == page
    other = selection_answer(
        selection_experiment(rounds(1, 120, kind=0.15), rounds(2, 240, kind=0.15), seed=4),
        data="folder",
        seed=4,
        fast=False,
    )
    drawn = [a["random_order"]["learners"]["anytime"]["drawn_utility"] for a in (answer, other)]
    assert drawn[0] != drawn[1]


@pytest.mark.slow
def test_the_page_needs_no_network_and_escapes_names(answer, page):
    assert page.startswith("<!DOCTYPE html>")
    assert "<b>bold</b>" not in page
    assert len(charts_of(page)) == 3 * (len(answer["random_order"]["learners"]) + 2) + 2 + 1
    for line in answer["findings"]:
        assert line.split(",")[0].split("<")[0] in page.replace("&#39;", "'")


def test_the_tables_for_people(answer, text):
    assert "random order" in text
    assert "Jobs through a switch of market" in text
    assert answer["findings"][0] in text.replace("\n", " ")


def test_told_rounds_hold_the_first_and_the_last():
    assert told_rounds(3).tolist() == [1, 2, 3]
    many = told_rounds(1000)
    assert (many[0], many[-1], len(many)) == (1, 1000, 25)


@pytest.mark.slow
def test_rounds_of_replayed_jobs(tmp_path):
    """From a folder to rounds: utilities in on-demand-only costs, within both bounds, on real replays of a small pool."""
    tapes = read_tapes(write_tidy(tmp_path / "data"))
    grid = Grid(deadlines=(10,), loads=(0.5,), mu_ups=(0.9, 0.6), n_maxes=(4,))
    scenarios = make_scenarios(tapes, grid=grid, part="test", per_cell=4, seed=1)
    run = run_pool(scenarios, [policy_named(name) for name in ("OD-only", "MSU", "UP", "AHANP(0.7)")])
    made = rounds_of(run, scenarios)
    assert made.raw.shape == made.wide.shape == made.tight.shape == (8, 4)
    np.testing.assert_allclose(made.raw[:, 0], 0.5)
    for k, one in enumerate(scenarios):
        low, high = attainable_bounds(
            one.job, on_demand_usd=one.window.on_demand_usd, slot_hours=one.window.slot_hours
        )
        np.testing.assert_allclose(made.tight[k] * (high - low) + low, run.utility[k])
        assert made.kinds[k] == abundance(one.job, one.window)
    assert np.ptp(made.tight, axis=1).mean() > np.ptp(made.wide, axis=1).mean()
    result = selection_experiment(made, made, seed=0)
    assert selection_answer(result, data="d", seed=0, fast=True)["jobs"] == 8
