"""The arithmetic of a slot: one file a rule, computed by hand; every implementation returns the same.

Plain Python, compiled code, tables of policies, the constants of the Pyomo program, the label solver, the induction.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pyomo.environ as pyo
import pytest
from make import make_job, make_view, make_window

from slackwater.optimization.job.definition import TOLERANCE, Job, Linear, on_demand_to_go, work_needed
from slackwater.optimization.kernels import labels as bounds
from slackwater.optimization.kernels import rules
from slackwater.optimization.kernels.compiling import kernel
from slackwater.optimization.kernels.induction import Game, induct
from slackwater.optimization.kernels.labels import end_value
from slackwater.optimization.policies.pace import cheapest_split as policy_split
from slackwater.optimization.policies.pace import pace
from slackwater.optimization.window.plan import (
    EndRule,
    HorizonProblem,
    cheap_spot,
    cheapest_split,
    slot_costs,
    slot_usd,
)
from slackwater.optimization.window.solver import horizon_model, possible_endings
from slackwater.optimization.window.twin import terms_of

#: Less than any rounding of work that matters: an amount that is exact in decimal may be slightly more in binary.
HAIR = 1e-10
NO_SPOT = make_window([2.0], [0])


def cases(rule: str):
    told = tomllib.loads((Path(__file__).parent / "rules" / f"{rule}.toml").read_text(encoding="utf-8"))[
        "case"
    ]
    return [pytest.param(case, id=case["name"]) for case in told]


@kernel
def compiled_mu(restart, n, before):
    return rules.efficiency(restart, n, before)


@kernel
def compiled_value(value, slots):
    return rules.value_at(value, slots)


@kernel
def compiled_slots(rest, first, gain):
    return rules.slots_needed(rest, first, gain)


@kernel
def compiled_ending(sizes, gain, restart, value, slot_usd, slot, rest, before):
    return rules.ending(sizes, gain, restart, value, slot_usd, slot, rest, before)


@kernel
def compiled_split(n, available, price, on_demand):
    spot = rules.spot_held(n, available, price, on_demand)
    return spot, rules.slot_cost(n, spot, price, on_demand)


def job_of(*, n_min=1, n_max=5, alpha=1.0, value=100.0, deadline=10, workload=20.0, **rest) -> Job:
    return make_job(
        name="golden",
        workload=workload,
        deadline_slots=deadline,
        n_min=n_min,
        n_max=n_max,
        throughput=Linear(alpha=alpha),
        value=value,
        mu_up=rest.pop("up", 1.0),
        mu_down=rest.pop("down", 1.0),
        **rest,
    )


@pytest.mark.parametrize("case", cases("mu"))
def test_mu(case):
    n, before, mu = case["n"], case["before"], case["mu"]
    job = job_of(up=case["up"], down=case["down"])
    restart = job.restart
    problem = HorizonProblem(
        job=job, slot=0, done=0.0, n_previous=before, window=NO_SPOT, end_rule=EndRule.ON_DEMAND_TO_GO
    )
    model = horizon_model(problem)
    for why in (model.up, model.kept, model.down):
        if not why[0, n].fixed:
            why[0, n].set_value(1)
        for j in model.SIZES:
            if j != n:
                why[0, j].set_value(0)
    told = {
        "plain": rules.efficiency(restart, n, before),
        "compiled": compiled_mu(restart, n, before),
        "array": rules.efficiency_table(restart, 5)[before, n],
        "job": job.efficiency(n, before),
        "pace": pace(job, 1.0).work[before][n] / n,
        "pyomo": pyo.value(model.work[0]) * job.workload / n,
    }
    assert told == pytest.approx(dict.fromkeys(told, mu), rel=1e-12)
    assert rules.least_efficiency(restart, n) <= mu


@pytest.mark.parametrize("case", cases("value"))
def test_value(case):
    value = rules.Value(case["usd"], case["deadline"], case["gamma"])
    job = job_of(value=case["usd"], deadline=case["deadline"], gamma=case["gamma"])
    told = {
        "plain": rules.value_at(value, case["slots"]),
        "compiled": compiled_value(value, case["slots"]),
        "job": job.completion_value(case["slots"]),
    }
    assert told == pytest.approx(dict.fromkeys(told, case["value"]), rel=1e-12)


@pytest.mark.parametrize("case", cases("slots_needed"))
def test_slots_needed(case):
    rest, first, gain = case["rest"], case["first"], case["gain"]
    told = {
        "plain": rules.slots_needed(rest, first, gain),
        "compiled": compiled_slots(rest, first, gain),
        "array": rules.slots_needed_each(np.array([[rest]]), np.array([first]), np.array([gain]))[0, 0],
    }
    assert told == dict.fromkeys(told, case["slots"])


def test_slots_needed_is_the_least_number_everywhere():
    rng = np.random.default_rng(0)
    rest = np.concatenate([rng.uniform(0.0, 50.0, 2000), rng.integers(1, 40, 2000) * 0.1 + 1e-7])
    first, gain = (
        rng.choice([-1.3, 0.0, 0.09, 0.1, 0.7], rest.size),
        rng.choice([0.1, 0.3, 1.0, 7.0], rest.size),
    )
    each = rules.slots_needed_each(rest, first, gain)
    for z, f, g, k in zip(rest.tolist(), first.tolist(), gain.tolist(), each.tolist(), strict=True):
        assert k == rules.slots_needed(z, f, g) == compiled_slots(z, f, g)
        assert f + (k - 1) * g >= z
        assert k == 1 or f + (k - 2) * g < z


def test_a_rest_that_is_never_done_ends():
    for gain in (1e-300, 0.0):
        assert rules.slots_needed(1.0, 0.0, gain) == compiled_slots(1.0, 0.0, gain) == rules.MOST_SLOTS


def endings_of(case) -> dict[str, float]:
    """Return the value of a case's termination by every implementation."""
    rest, before, slot, usd = case["rest"], case["before"], case["slot"], case["usd"]
    job = job_of(
        n_min=case["n_min"], n_max=case["n_max"], alpha=case["alpha"], value=case["value"], workload=100.0,
        deadline=case["deadline"], gamma=case["gamma"], up=case["up"], down=case["down"],
    )  # fmt: skip
    sizes = np.concatenate([[0], np.arange(job.n_min, job.n_max + 1)])
    gain = sizes * case["alpha"]
    asked = (sizes, gain, job.restart, job.worth, usd, slot, rest, before)
    done = work_needed(job.workload) - rest + HAIR
    plain, quick = rules.ending(*asked), compiled_ending(*asked)
    to_go = on_demand_to_go(job, done=done, n_previous=before, slot=slot, on_demand_usd=usd, slot_hours=1.0)
    for n, slots in (
        (sizes[plain.size], plain.slots),
        (sizes[quick.size], quick.slots),
        (to_go.n, to_go.slots),
    ):
        assert (n, slots) == (case["n"], case["slots"])
    told = {"plain": plain.usd, "compiled": quick.usd, "termination": to_go.value_usd}
    window = make_window([2.0], [0], on_demand_usd=usd)
    problem = HorizonProblem(
        job=job, slot=slot - 1, done=done, n_previous=before, window=window, end_rule=EndRule.ON_DEMAND_TO_GO
    )
    terms, j = terms_of(problem), int(np.searchsorted(sizes, before))
    told["twin"] = end_value(terms, terms.line, done, j)
    if case["n"]:
        told["pyomo"] = possible_endings(problem)[int(np.searchsorted(sizes, case["n"])), case["slots"]]
    if slot == job.deadline_slots:
        slack = TOLERANCE * job.workload
        game = Game(
            sizes=sizes, gain=gain, available=np.zeros(1, np.int64), chain=np.ones((1, 1, 1)), price=np.array([2.0]),
            price_chain=np.ones((1, 1)), on_demand=usd, restart=job.restart, value=job.worth, slot=slot - 1,
            slack=slack, step=max(rest + slack - HAIR, slack / 2), points=2,
        )  # fmt: skip
        told["induction"] = induct(game, 1)[0, 0, 0, j, 1]
    return told


@pytest.mark.parametrize("case", cases("ending"))
def test_ending(case):
    told = endings_of(case)
    assert told == pytest.approx(dict.fromkeys(told, case["worth"]), rel=1e-6)


@pytest.mark.parametrize("case", cases("split"))
def test_split(case):
    n, available, price, dear = case["n"], case["available"], case["price"], case["on_demand"]
    window = make_window([price], [available], on_demand_usd=dear, slot_hours=0.5)
    job = job_of(n_max=5)
    spot, usd = compiled_split(n, available, price, dear)
    plain = rules.spot_held(n, available, price, dear)
    view = make_view(job, price=price, available=available, on_demand_usd=dear, slot_hours=0.5)
    problem = HorizonProblem(
        job=job, slot=0, done=0.0, n_previous=0, window=window, end_rule=EndRule.ON_DEMAND_TO_GO
    )
    model = horizon_model(problem)
    spots = {
        "plain": plain, "compiled": spot, "statement": cheapest_split(window, 0, n).spot, "policies": policy_split(view, n).spot,
    }  # fmt: skip
    usable = {
        "plain": rules.usable_spot(available, price, dear),
        "array": int(rules.usable_spot(np.array([available]), np.array([price]), dear)[0]),
        "window": int(cheap_spot(window)[0]),
    }
    assert {min(n, count) for count in usable.values()} == {case["spot"]}
    paid = {
        "plain": rules.slot_cost(n, plain, price, dear) * 0.5,
        "compiled": usd * 0.5,
        "statement": slot_usd(window, 0, cheapest_split(window, 0, n)),
        "model": slot_costs(job, window)[0, n],
        "pyomo": model.cost[0, n] * model.unit_usd,
        "twin": bounds.slot_costs(terms_of(problem), window.price, window.available)[0, n],
    }
    assert spots == dict.fromkeys(spots, case["spot"])
    assert paid == pytest.approx(dict.fromkeys(paid, case["usd"]), rel=1e-12)


def test_no_other_module_reads_the_time_of_a_restart():
    """`InstanceTimes.restart_seconds` states it for a group of n instances; its input is not read elsewhere."""
    root = Path(rules.__file__).parents[2]
    found = [
        str(path.relative_to(root))
        for layer in ("optimization", "flows")
        for path in (root / layer).rglob("*.py")
        if re.search(r"\btimes(_of\([^)]*\))?\.restart\b", path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_other_module_compares_a_spot_price_with_the_on_demand_price():
    """`usable_spot` and `spot_is_cheaper` are the only comparison; the audit and the levels of beliefs have separate ones."""
    compares = re.compile(
        r"price(\[[^\]]*\])? *(<|>=|>|<=) *[\w.]*on_demand|on_demand(_usd)? *(>|<=|<|>=) *[\w.]*price\b"
    )
    own = {"kernels/rules.py", "window/audit.py", "market/belief.py"}
    root = Path(rules.__file__).parents[1]
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if compares.search(path.read_text(encoding="utf-8"))
    }
    assert found <= own
