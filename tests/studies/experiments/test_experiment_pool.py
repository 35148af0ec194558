"""E1 end to end on a small folder: no look-ahead, the same results over processes, the form of the answer."""

import json
from dataclasses import replace
from html import escape

import numpy as np
import pandas as pd
import pytest
from page_kit import charts_of, rendered
from tidy_folder import write_tidy

from slackwater.flows.config import Settings
from slackwater.flows.executor import fan_out
from slackwater.forecasting.origins import forecast
from slackwater.optimization.policies.committed_horizon import Commit
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.replay.run import replay
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.optimization.window.plan import EndRule
from slackwater.studies.experiments.material import (
    HORIZON,
    _issued,
    _quantiles,
    issued_quantiles,
    make_scenarios,
    panels_of,
    read_tapes,
    run_pool,
)
from slackwater.studies.experiments.pool import (
    CELL,
    COARSE,
    Size,
    ahap_variants,
    answer_of,
    comparison_of,
    contrast,
    fast_pool,
    pool_answer,
    pool_experiment,
    pool_report,
    run_variants,
    variant_rows,
)
from slackwater.studies.trials.scenarios import Grid, Tape, on_demand_only_cost, peers_of, scenario_of
from slackwater.warehouse.errors import SettingsError

GRID = Grid(deadlines=(6, 10), loads=(0.3, 0.7), mu_ups=(0.6,), n_maxes=(4, 8))
#: The fast planner; the default is tested separately.
PLANNER = "markov"
NAMES = (
    "OD-only",
    "MSU",
    "UP",
    "AHANP(0.4)",
    "AHANP(0.9)",
    "AHAP(1,1,0.9)",
    "AHAP(3,1,0.9)",
    "AHAP(3,3,0.5)",
    "Trust(0.5)",
    "ROSS(3)",
)
#: The policies that a gain may be measured from.
BASES = [name for name in NAMES if not name.startswith(("AHAP", "Trust", "ROSS"))]


@pytest.fixture(scope="module")
def tapes(tmp_path_factory):
    return read_tapes(write_tidy(tmp_path_factory.mktemp("tidy")))


@pytest.fixture(scope="module")
def policies():
    return [policy_named(name) for name in NAMES]


@pytest.fixture(scope="module")
def scenarios(tapes):
    return make_scenarios(tapes, grid=GRID, part="test", per_cell=2, seed=5, planner=PLANNER)


@pytest.fixture(scope="module")
def run(scenarios, policies):
    return run_pool(scenarios, policies)


def scrambled(tape: Tape, after: int, seed: int) -> Tape:
    """Return other values in every slot after ``after``, with the same gaps."""
    values = tape.values.copy()
    rng = np.random.default_rng(seed)
    fresh = (
        rng.integers(0, int(tape.bound) + 1, len(values)).astype(float)
        if tape.variable == "count"
        else rng.uniform(0.05, 0.9, len(values)) * tape.bound
    )
    values[after + 1 :] = np.where(np.isnan(values[after + 1 :]), np.nan, fresh[after + 1 :])
    return replace(tape, values=values)


def rebuilt(scenario, tapes, slot, planner=PLANNER):
    """Return the same draw on a world in which everything after the job's slot ``slot`` differs."""
    draw = scenario.draw
    end = draw.counts.time(draw.count_start + slot)
    world = [scrambled(t, int((end - t.first) // t.step), seed=i) for i, t in enumerate(tapes.counts)]
    counts = next(t for t in world if t.label == draw.counts.label)
    there = draw.path.time(draw.path_start + slot)
    paths = [scrambled(t, int((there - t.first) // t.step), seed=99 + i) for i, t in enumerate(tapes.paths)]
    path = next(t for t in paths if t.label == draw.path.label)
    other = replace(draw, counts=counts, path=path)
    everything = replace(tapes, counts=tuple(world), paths=tuple(paths))
    ahead = _quantiles([other], everything, planner, Settings.model_validate({}), None)
    return scenario_of(other, peers=peers_of(counts, world), forecasts=_issued(other, ahead))


def test_what_comes_after_a_job_is_no_part_of_it(scenarios, tapes):
    for scenario in scenarios[:4]:
        d = scenario.job.deadline_slots
        other = rebuilt(scenario, tapes, d - 1)
        assert other.job == scenario.job
        for name in ("price", "available", "observed"):
            np.testing.assert_array_equal(getattr(other.window, name), getattr(scenario.window, name))
        for name in ("price", "available", "peers"):
            np.testing.assert_array_equal(getattr(other.record, name), getattr(scenario.record, name))
        for mine, theirs in zip(scenario.forecasts, other.forecasts, strict=True):
            np.testing.assert_array_equal(mine.price, theirs.price)
            np.testing.assert_array_equal(mine.available, theirs.available)


@pytest.mark.parametrize("slot", [0, 3])
def test_no_decision_knows_what_comes_after_its_slot(scenarios, tapes, policies, slot):
    changed = 0
    for scenario in scenarios[:3]:
        other = rebuilt(scenario, tapes, slot)
        same_job = replace(other, job=scenario.job)  # its value and unit follow from on-demand alone
        assert other.unit == pytest.approx(scenario.unit)
        for policy in policies:
            one, two = (
                replay(policy, s.job, s.window, forecasts=s.forecasts, record=s.record)
                for s in (scenario, same_job)
            )
            assert one.allocations[: slot + 1] == two.allocations[: slot + 1], policy.name
            changed += one.allocations != two.allocations
    assert changed > 0  # the scrambled future does matter later on


def test_forecasts_are_those_that_the_planner_would_have_issued(tapes):
    from slackwater.studies.experiments.material import history_of

    tape = tapes.counts[0]
    settings = Settings.model_validate({})
    slots = [200, 201, 230, 260, 300]
    found = issued_quantiles([tape], {tape.label: slots}, planner="markov", settings=settings)[tape.label]
    for slot in slots:
        history = history_of(tape).until(tape.time(slot))
        alone = forecast(history, "markov", horizon=HORIZON).quantiles("count")
        np.testing.assert_array_equal(found[slot], alone)
    assert len({found[slot].tobytes() for slot in slots}) > 1


@pytest.mark.slow
def test_a_planner_over_panels_learns_from_the_peers_but_not_from_their_future(tapes):
    """Scrambling every series after a slot changes no forecast up to it; scrambling the peers before it does."""
    own = tapes.counts[0]
    panel = next(one for one in panels_of(tapes.counts) if own in one)
    slots = [191]  # an estimation happens here
    settings = Settings.model_validate({})

    def issued(world):
        found = issued_quantiles(world, {own.label: slots}, planner="combined", settings=settings)[own.label]
        return np.array([found[slot] for slot in slots])

    as_it_was = issued(panel)
    np.testing.assert_array_equal(
        issued([scrambled(t, slots[-1], seed=i) for i, t in enumerate(panel)]), as_it_was
    )
    before = [own, *(scrambled(t, 10, seed=i) for i, t in enumerate(panel) if t is not own)]
    assert (issued(before) != as_it_was).any()
    assert len(panel) > 1


def test_scenarios_come_again_with_their_seed(scenarios, tapes):
    again = make_scenarios(tapes, grid=GRID, part="test", per_cell=2, seed=5, planner=PLANNER)
    other = make_scenarios(tapes, grid=GRID, part="test", per_cell=2, seed=6, planner=PLANNER)
    where = [
        (s.draw.counts.label, s.draw.path.label, s.draw.count_start, s.draw.path_start) for s in scenarios
    ]
    assert [
        (s.draw.counts.label, s.draw.path.label, s.draw.count_start, s.draw.path_start) for s in again
    ] == where
    assert [
        (s.draw.counts.label, s.draw.path.label, s.draw.count_start, s.draw.path_start) for s in other
    ] != where


def test_train_and_test_jobs_do_not_meet(tapes, scenarios):
    train = make_scenarios(tapes, grid=GRID, part="train", per_cell=1, seed=5, planner=PLANNER)
    for s in train:
        d = s.draw
        assert d.count_start + s.job.deadline_slots <= d.counts.half
        assert d.path_start + s.job.deadline_slots <= d.path.half
    for s in scenarios:
        assert s.draw.count_start >= s.draw.counts.half
        assert s.draw.path_start >= s.draw.path.half


def test_a_run_is_the_replays_job_by_job(run, scenarios, policies):
    assert run.utility.shape == (len(scenarios), len(policies))
    for k in (0, 5):
        s = scenarios[k]
        for i, policy in enumerate(policies):
            alone = replay(policy, s.job, s.window, forecasts=s.forecasts, record=s.record)
            assert run.utility[k, i] == alone.utility_usd
            assert run.cost[k, i] == alone.total_cost_usd
            assert run.on_time[k, i] == alone.on_time
        assert run.jobs["unit"][k] == on_demand_only_cost(s.job, s.window)
        assert run.jobs["job"][k] == s.draw.name
    assert (run.utility <= run.jobs["high"].to_numpy()[:, None] + 1e-6).all()
    assert (run.jobs["low"] <= run.jobs["high"] + 1e-9).all()
    assert ((run.normalised >= 0) & (run.normalised <= 1)).all()
    assert run.relative[:, 0] == pytest.approx(0.5)  # OD-only: 1.5 of value for 1 of cost


@pytest.mark.slow  # `tests/optimization/replay/test_batch.py` spreads over processes in the short suite
def test_two_processes_give_the_same_run(run, scenarios, policies):
    seen = []
    two = run_pool(scenarios, policies, processes=2, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_array_equal(two.utility, run.utility)
    np.testing.assert_array_equal(two.cost, run.cost)
    assert two.jobs.equals(run.jobs)
    assert seen == [(k, len(scenarios)) for k in range(1, len(scenarios) + 1)]


def test_mistakes_are_named(scenarios, policies):
    with pytest.raises(SettingsError, match="1 of different names"):
        run_pool(scenarios, [policies[0], policies[0]])
    with pytest.raises(SettingsError, match="0 jobs"):
        run_pool([], policies)
    with pytest.raises(SettingsError, match="0 processes"):
        list(fan_out(len, [1], None, processes=0))


def test_the_answer_adds_up(run):
    answer = json.loads(json.dumps(pool_answer(run, data="here", seed=5)))
    assert {"data", "seed", "jobs", "baseline", "hindsight", "policies", "selection", "cells"} <= set(answer)
    assert answer["jobs"] == len(run.jobs)
    assert answer["hindsight"]["low"] <= answer["hindsight"]["high"] + 1e-12
    means = {name: row["mean_utility"] for name, row in answer["policies"].items()}
    assert set(means) == set(NAMES)
    assert list(means.values()) == sorted(means.values(), reverse=True)
    assert answer["baseline"] == max(BASES, key=means.get)
    best, room = answer["policies"][answer["best"]], answer["hindsight"]["high"] - means[answer["baseline"]]
    assert best["headroom_captured"] == pytest.approx(
        (means[answer["best"]] - means[answer["baseline"]]) / room
    )
    assert best["relative_gain"]["UP"] == pytest.approx(
        (means[answer["best"]] - means["UP"]) / abs(means["UP"])
    )
    assert best["interval"][0] <= best["mean_utility"] <= best["interval"][1]
    assert {"sampled_utility", "leader_utility", "best_fixed", "regret", "bound"} <= set(answer["selection"])
    assert answer["selection"]["regret"] <= answer["selection"]["bound"]
    assert len(answer["cells"]) == 8
    assert sum(cell["jobs"] for cell in answer["cells"]) == len(run.jobs)
    assert {*CELL, "best", "headroom_captured"} <= set(answer["cells"][0])
    assert len(answer["cells_by_deadline_load_overhead"]) == 4
    assert {*COARSE, "default_headroom_captured"} <= set(answer["cells_by_deadline_load_overhead"][0])
    top = answer["largest_gain"]["found"][0]
    place = np.flatnonzero((run.jobs[list(CELL)] == list(top["cell"].values())).all(axis=1))
    cell = dict(zip(NAMES, run.relative[place].mean(axis=0), strict=True))
    assert top["gain"] == pytest.approx(
        (cell[top["policy"]] - cell[top["baseline"]]) / abs(cell[top["baseline"]])
    )


def test_a_cell_is_compared_with_its_own_best_baseline(run):
    place = np.flatnonzero((run.jobs["deadline_slots"] == 6) & (run.jobs["load"] == 0.3))
    found = comparison_of(run, place)
    assert found.mean == pytest.approx(run.relative[place].mean(axis=0))
    assert found.mean[found.of(found.baseline)] == max(found.mean[:5])


def test_ahaps_variants(scenarios):
    variants = ahap_variants()
    assert len({v.name for v in variants}) == len(variants)
    assert {v.end_rule for v in variants} >= {EndRule.TARGET, EndRule.ON_DEMAND_TO_GO}
    assert {v.commit for v in variants if v.commitment > 1} == set(Commit)
    found = run_variants(scenarios[:3], variants)
    s, i = scenarios[1], len(variants) // 2
    perfect = replay(
        variants[i], s.job, s.window, forecasts=perfect_forecasts(s.window, HORIZON), record=s.record
    )
    held = replay(variants[i], s.job, s.window, record=s.record)
    assert found.utility[1, 2, i] == pytest.approx(perfect.utility_usd / s.unit)
    assert found.utility[1, 1, i] == pytest.approx(held.utility_usd / s.unit)
    rows = variant_rows(found, rng=np.random.default_rng(0))
    assert all(row["interval"][0] <= row["mean_utility"] <= row["interval"][1] for row in rows)
    assert {row["forecasts"] for row in rows} == {"issued", "last_value", "perfect"}


@pytest.mark.slow  # the quick form: the run, the answer and its contrasts, here
def test_the_whole_experiment_and_its_page(tapes, policies, tmp_path):
    size = Size(test=2, train=1, table=3, grid=GRID, planner=PLANNER)
    done = pool_experiment(tapes, policies, size=size, seed=4, processes=1)
    assert len(done.test.jobs) == 16
    assert len(done.train.jobs) == 8
    assert (done.train.jobs["start"].max() + pd.Timedelta(hours=3)) <= done.test.jobs["start"].min()
    answer = answer_of(done, data="here & there", seed=4)
    chosen = answer["train"]["best"]
    assert chosen == done.train.policies[int(done.train.relative.mean(axis=0).argmax())]
    assert answer["train"]["mean_utility_on_test"] == answer["policies"][chosen]["mean_utility"]
    assert any("larger window" in claim for claim in answer["claims"])
    assert any("commitment" in claim for claim in answer["claims"])
    ideas = answer["published_ideas"]["rows"]
    assert [row["policy"] for row in ideas] == ["Trust(0.5)", "ROSS(3)"]
    text = rendered(pool_report(answer))
    assert len(charts_of(text)) == 2 + len(next(iter(answer["policies"].values()))["relative_gain"])
    assert "here &amp; there" in text
    for sentence in [*answer["claims"], *(row["sentence"] for row in ideas)]:
        assert escape(sentence, quote=False).replace("'", "&#39;") in text
    assert rendered(pool_report(answer)) == text


def test_contrasts_say_what_they_found():
    rng = np.random.default_rng(0)
    base = rng.normal(0, 1, 300)
    days = np.arange(300) // 10
    assert contrast(base, base + 0.1, days, rng=rng).verdict == "helps"
    assert contrast(base, base - 0.1, days, rng=rng).verdict == "hurts"
    noise = rng.normal(0, 0.1, 300) * np.tile([1, -1], 150)
    assert contrast(base, base + noise, days, rng=rng).verdict == "is even"
    # A shift common to all jobs of a day counts as a single observation, however many jobs the day has.
    shifts = np.repeat([0.3, -0.2, 0.3, -0.2, 0.25, -0.2], 50)
    assert contrast(base, base + shifts, np.arange(300) // 50, rng=rng).verdict == "is even"
    assert contrast(base, base + shifts, np.arange(300), rng=rng).verdict == "helps"


def test_the_quick_pool_keeps_every_family():
    pool = load_pool()
    quick = fast_pool(pool)
    families = lambda policies: {policy.name.split("(")[0] for policy in policies}  # noqa: E731
    assert families(quick) == families(pool)
    assert len(quick) < len(pool) / 2
