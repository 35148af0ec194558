"""E2 on a small folder: errors of a known size, constant results of policies without forecasts, crossings, the report."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command_kit import call
from page_kit import charts_of, rendered
from tidy_folder import write_tidy

from slackwater.optimization.market.window import PointForecast
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.policies.reactive import Ahanp
from slackwater.optimization.replay.run import replay
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.experiments.error import (
    KINDS,
    POLICIES,
    STEPS,
    ErrorPlan,
    JobForecasts,
    count_error,
    crossing,
    error_answer,
    error_report,
    replay_models,
    run_error,
    shapes,
    wrong_forecasts,
)
from slackwater.studies.experiments.material import make_scenarios, read_tapes
from slackwater.studies.experiments.pool import ideas_and_rules, tradeoff_rows
from slackwater.studies.policies import PUBLISHED_IDEAS
from slackwater.studies.trials.scenarios import Grid

SIZES = (0.0, 0.3, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tidy(tmp_path_factory.mktemp("tidy"))


@pytest.fixture(scope="module")
def scenarios(folder):
    grid = Grid(deadlines=(8,), loads=(0.5, 0.7), mu_ups=(0.9,), n_maxes=(4, 8))
    return make_scenarios(
        read_tapes(folder), grid=grid, part="test", per_cell=3, seed=1, planner="last_value"
    )


@pytest.fixture(scope="module")
def plan():
    policies = tuple(Ahap(omega=omega, commitment=v, sigma=0.9) for omega, v in ((1, 1), (4, 1), (4, 4)))
    beside = tuple(policy_named(name) for name in ("RHIG(3,0.9)", "MSU-trim", "Trust(1)"))
    return ErrorPlan(policies=policies, kinds=KINDS, sizes=SIZES, seed=3, beside=beside)


@pytest.fixture(scope="module")
def run(scenarios, plan):
    return run_error(scenarios, plan, reactive=Ahanp(sigma=0.8))


def test_shapes_are_those_of_the_pool():
    assert len(shapes(fast=False)) == 15
    assert set(shapes(fast=True)) < set(shapes(fast=False))


def test_wrong_forecasts_are_the_truth_plus_the_same_errors_times_the_size(scenarios, plan):
    s = scenarios[0]
    truth = perfect_forecasts(s.window, STEPS)
    for kind in KINDS:
        none, small, large = wrong_forecasts(s, kind, plan)
        for t, f in enumerate(truth):
            np.testing.assert_array_equal(none[t].price, f.price)
            np.testing.assert_array_equal(none[t].available, f.available)
            assert len(small[t].price) == len(f.price) == min(STEPS, len(truth) - 1 - t)
        p_o = s.window.on_demand_usd
        inside = [
            (b[k] - a[k], c[k] - a[k])
            for a, b, c in ((n.price, m.price, g.price) for n, m, g in zip(none, small, large, strict=True))
            for k in range(len(a))
            if 0.02 * p_o < b[k] < 0.98 * p_o and 0.02 * p_o < c[k] < 0.98 * p_o
        ]
        assert len(inside) >= 2
        np.testing.assert_allclose([b for _, b in inside], [a / 0.3 for a, _ in inside], rtol=1e-9)
        other = wrong_forecasts(scenarios[1], kind, plan)[1]
        assert not np.array_equal(
            other[0].price - scenarios[1].window.price[1 : 1 + STEPS], small[0].price - truth[0].price
        )


def test_policies_that_read_no_forecast_are_not_hurt(run):
    assert np.ptp(run.utility[:, :, :, 0], axis=(1, 2)) == pytest.approx(0.0, abs=1e-12)
    assert np.ptp(run.utility[:, :, :, 1], axis=(1, 2)).max() > 0


def test_size_zero_is_perfect_forecasts(run, scenarios, plan):
    for j in (0, 3):
        s = scenarios[j]
        for i, policy in enumerate(plan.policies):
            alone = (
                replay(policy, s.job, s.window, forecasts=perfect_forecasts(s.window, STEPS)).utility_usd
                / s.unit
            )
            assert run.utility[j, :, 0, i] == pytest.approx(alone)
    assert run.reactive[2] == pytest.approx(
        replay(Ahanp(sigma=0.8), scenarios[2].job, scenarios[2].window).utility_usd / scenarios[2].unit
    )


def test_the_same_seed_gives_the_same_errors(run, scenarios, plan):
    again = run_error(scenarios[:2], plan, reactive=Ahanp(sigma=0.8))
    np.testing.assert_array_equal(again.utility, run.utility[:2])


@pytest.mark.parametrize(
    ("utility", "level", "expected"),
    [
        ([1.0, 0.9, 0.5], 0.8, 0.1 + 0.1 / 0.4 * 0.4),
        ([1.0, 0.9, 0.5], 0.9, 0.1),
        ([1.0, 0.9, 0.5], 0.4, np.nan),
        ([0.3, 0.9, 0.5], 0.4, 0.0),
    ],
)
def test_crossings_by_interpolation(utility, level, expected):
    assert crossing((0.0, 0.1, 0.5), np.array(utility), level) == pytest.approx(expected, nan_ok=True)


def test_the_answer(run):
    answer = error_answer(run, data="here", seed=1)
    assert answer["jobs"] == 12
    assert len(answer["curves"]) == len(KINDS) * 3
    for row in answer["robustness"]:
        own = [c for c in answer["curves"] if (c["omega"], c["v"]) == (row["omega"], row["v"])]
        assert row["consistency"] == pytest.approx(own[0]["mean_utility"][0])
        assert row["robustness"] == pytest.approx(min(min(c["mean_utility"]) for c in own))
    level = answer["prediction_free"]["mean_utility"]
    one_slot = next(c["mean_utility"][0] for c in answer["curves"] if c["omega"] == 1)
    for curve in answer["curves"]:
        if curve["omega"] > 1:
            below = min(curve["mean_utility"]) <= one_slot
            assert below == np.isfinite(curve["worse_than_one_slot_at"])
        low, high = np.array(curve["ahead_interval"]).T
        ahead = np.array(curve["mean_utility"]) - level
        assert (low <= ahead + 1e-12).all()
        assert (ahead <= high + 1e-12).all()


def test_the_ideas_beside_stand_in_the_same_table(run):
    """Compares consistency and robustness of the policies of M10 with a slow version; without forecasts both figures agree."""
    answer, first = error_answer(run, data="here", seed=1), len(run.plan.policies)
    assert [row["policy"] for row in answer["published_ideas"]] == ["RHIG(3,0.9)", "MSU-trim", "Trust(1)"]
    for i, row in enumerate(answer["published_ideas"]):
        found = run.utility[..., first + i]
        means = [found[:, k, e].mean() for k in range(len(KINDS)) for e in range(len(SIZES))]
        assert row["consistency"] == pytest.approx(found[:, 0, 0].mean())
        assert row["robustness"] == pytest.approx(min(means))
        if row["policy"] != "RHIG(3,0.9)":
            assert row["consistency"] == pytest.approx(row["robustness"])
    assert {row["policy"] for row in tradeoff_rows(answer)} >= {"AHAP(4,1)", "MSU-trim"}
    names = {policy.name.split("(")[0] for policy in ideas_and_rules()}
    assert names == {*PUBLISHED_IDEAS, "UP", "MSU-trim"}


def test_the_page(run, tmp_path):
    answer = {**error_answer(run, data="here <b>", seed=1), "notes": ["a note & more"]}
    text = rendered(error_report(answer))
    assert len(charts_of(text)) == len(KINDS) + 1
    assert "here &lt;b&gt;" in text
    assert "a note &amp; more" in text
    joined = answer["synthetic_jobs"]
    assert 0 < joined <= answer["jobs"]
    assert f"In {joined} of {answer['jobs']} jobs one market" in text
    measured = rendered(error_report({**answer, "synthetic_jobs": 0}))
    assert "Synthetic joins" not in measured
    assert rendered(error_report(answer)) == text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pool", "error"])
def test_the_command_answers_in_json_and_writes_a_page(folder, tmp_path, name):
    page = tmp_path / "deep" / "page.html"
    words = (name, "--data", folder, "--fast", "--seed", 2, "--processes", 1, "--html", page, "--json")
    code, out, err = call("experiment", *words)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["jobs"] > 0
    assert answer["seed"] == 2
    text = page.read_text()
    assert len(charts_of(text)) >= (3 if name == "pool" else 2)
    again = json.loads(call("experiment", *words)[1])
    assert again == answer
    assert page.read_text() == text


@pytest.mark.parametrize("name", ["pool", "error", "selection", "cant-be-late"])
def test_every_experiment_is_documented(name):
    code, out, _ = call("experiment", name, "--help")
    assert code == 0
    assert "Usage" in out
    for option in ("--data", "--fast", "--seed", "--json", "--html"):
        assert option in out


@pytest.mark.parametrize("name", ["pool", "error"])
def test_a_bad_folder_is_one_line(tmp_path, name):
    code, out, err = call("experiment", name, "--data", tmp_path / "nowhere", "--json")
    assert code == 2
    assert out == ""
    assert [line for line in err.splitlines() if not line.startswith("  ")] == [
        f"slackwater: no file or folder {tmp_path / 'nowhere'}; check the path"
    ]


def test_perfect_forecasts_lose_nothing_and_wrong_counts_cost_money(scenarios):
    rows = []
    for scenario in scenarios:
        truth = perfect_forecasts(scenario.window, 12)
        empty = [replace(one, available=np.zeros_like(one.available)) for one in truth]
        case = JobForecasts(scenario=scenario, forecasts=(tuple(truth), tuple(empty)))
        rows.append(replay_models(case, POLICIES))
    utility, error = np.moveaxis(np.array(rows), 3, 0)
    oracle, none_there, perfect, blind = range(4)
    np.testing.assert_allclose(utility[:, oracle], utility[:, perfect], atol=1e-9)
    assert utility[:, perfect].mean() - utility[:, none_there].mean() > 0.005
    assert (error[:, [oracle, perfect]] == 0).all()
    assert error[:, none_there].mean() > 1
    assert np.isnan(error[:, blind]).all()


def test_no_forecast_is_planning_the_present_slot_alone(scenarios):
    scenario = scenarios[0]
    case = JobForecasts(scenario=scenario, forecasts=((None,) * len(scenario.window),))
    alone = replay(policy_named("AHAP(1,1,0.9)"), scenario.job, scenario.window, record=scenario.record)
    assert replay_models(case, POLICIES)[2, 0, 0] == pytest.approx(alone.utility_usd / scenario.unit)


def test_count_errors_are_those_of_the_steps_read():
    truth = [PointForecast(price=np.array([1.0, 2.0]), available=np.array([4, 4]))]
    issued = [PointForecast(price=np.array([1.5, 2.0, 1.0]), available=np.array([2, 5, 9]))]
    assert count_error(issued, truth) == pytest.approx(1.5)
    assert np.isnan(count_error([None], truth))
