"""Weights in the warehouse: recomputed from the stored utilities bit by bit, with any learner (M5.3)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from make import make_job, make_window

from slackwater.flows.config import Settings, read_settings
from slackwater.flows.ledger.rounds import (
    learn,
    outcome_frame,
    save_scored,
    scored_in_slot_model,
    stored_rounds,
)
from slackwater.flows.turn.report.leaderboard import in_one_model
from slackwater.optimization.moving.definition import in_one_market
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import Case
from slackwater.optimization.replay.score import EndedJob, ScoredJob, score_job
from slackwater.optimization.selection.contract import weigh
from slackwater.optimization.selection.learned import learner_regret
from slackwater.optimization.selection.learners import DEFAULT_LEARNER, LEARNERS, learner_named
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.times import microseconds

AT = pd.Timestamp("2026-01-05T10:00:00Z")
NAMES = ["OD-only", "MSU", "UP", "AHANP(0.7)"]


@pytest.fixture(scope="module")
def scored() -> list[ScoredJob]:
    rng = np.random.default_rng(3)
    policies = [policy_named(name) for name in NAMES]
    done = []
    for k in range(6):
        job = make_job(name=f"j{k}", workload=rng.uniform(8, 20), deadline_slots=8, n_max=4, value=30)
        window = make_window(rng.uniform(0.2, 0.9, 8), rng.integers(0, 5, 8))
        case = Case(job=job, window=window, forecasts=[None] * 8)
        ended = EndedJob(job=in_one_market(job), start=AT, cases=(case,))
        done.append(score_job(ended, policies))
    return done


@pytest.mark.parametrize("name", quick_first(sorted(LEARNERS, key=lambda name: name != DEFAULT_LEARNER)))
def test_stored_weights_are_rebuilt_to_the_last_bit(name, scored, tmp_path):
    learner, db = learner_named(name), tmp_path / "w.duckdb"
    for k, part in enumerate((scored[:2], scored[2:5], scored[5:])):
        with open_store(db) as store:  # closed and reopened between the turns
            save_scored(
                store,
                learn([(AT + k * pd.Timedelta("1h"), part)], groups=[(stored_rounds(store, NAMES), learner)]),
            )
    with open_store(db) as store:
        rounds = stored_rounds(store, NAMES)
        rows = read_rows(store, "weights", order_by=["round"])
    assert rounds.jobs == tuple(f"j{k}" for k in range(6))
    utilities = np.array([[row.normalised for row in one.ledger] for one in scored])
    assert rounds.utilities.tobytes() == utilities.tobytes()
    rebuilt = rounds.weights(learner)
    assert [w.log_weight.tobytes() for w in rebuilt] == [
        w.log_weight.tobytes() for w in weigh(learner, NAMES, utilities)
    ]
    stored = rows.pivot(index="round", columns="policy", values="log_weight")[NAMES].to_numpy()
    assert stored.tobytes() == np.array([w.log_weight for w in rebuilt[1:]]).tobytes()
    assert len(np.unique(stored[-1])) == len(NAMES), "the jobs told the policies apart"


def test_another_learner_goes_on_from_the_same_utilities(scored):
    """Rounds are stored, not weights: a later learner computes its weights from the first round on."""
    with open_store(":memory:") as store:
        save_scored(
            store, learn([(AT, scored[:4])], groups=[(stored_rounds(store, NAMES), learner_named("anytime"))])
        )
        save_scored(
            store, learn([(AT, scored[4:])], groups=[(stored_rounds(store, NAMES), learner_named("squint"))])
        )
        rounds = stored_rounds(store, NAMES)
        rows = read_rows(store, "weights", order_by=["round"])
    last = rows[rows["round"] == 6].set_index("policy")["log_weight"][NAMES].to_numpy()
    assert last.tobytes() == rounds.weights(learner_named("squint"))[-1].log_weight.tobytes()


def test_a_policy_more_in_the_pool_keeps_what_was_learned_of_the_others(scored):
    """Rounds of the old policies stay; the new policy sleeps in them until it is replayed, then all weights are recomputed."""
    learner, new = learner_named(DEFAULT_LEARNER), "AHANP(0.5)"
    wide = [*NAMES, new]
    with open_store(":memory:") as store:
        save_scored(store, learn([(AT, scored)], groups=[(stored_rounds(store, NAMES), learner)]))
        before = read_rows(store, "weights", order_by=["round", "policy"])
        slept = stored_rounds(store, wide)
        assert slept.jobs == tuple(f"j{k}" for k in range(6))
        assert slept.utilities[:, :4].tolist() == stored_rounds(store, NAMES).utilities.tolist()
        assert np.isnan(slept.utilities[:, 4]).all()
        assert slept.lacking("j0") == (new,)
        old = stored_rounds(store, NAMES).newest(learner).probability
        now = slept.newest(learner).probability
        assert np.argsort(now[:4]).tolist() == np.argsort(old).tolist()
        assert now[4] > 0
        # Later the new policy is replayed on the stored jobs.
        again = [score_job(one.ended, [policy_named(new)]) for one in scored]
        later = AT + pd.Timedelta("1h")
        new_rounds = learn([(later, again)], groups=[(slept, learner)])
        save_scored(store, new_rounds)
        (learned,) = new_rounds.rounds
        after = read_rows(store, "weights", order_by=["round", "policy"])
        found = stored_rounds(store, wide)
    assert found.settled_jobs() == set(found.jobs)
    whole = np.array(
        [
            [row.normalised for row in (*one.ledger, *two.ledger)]
            for one, two in zip(scored, again, strict=True)
        ]
    )
    assert found.utilities.tolist() == learned.utilities.tolist() == whole.tolist()
    kept = after[after["policy"] != new].reset_index(drop=True)
    assert kept.equals(before), "what was stored of the old ones stays"
    assert sorted(after[after["policy"] == new]["round"]) == list(range(1, 7))
    rebuilt = [w.log_weight.tolist() for w in found.weights(learner)]
    assert rebuilt == [w.log_weight.tolist() for w in weigh(learner, wide, whole)]
    # Before the replay the new policy was still asleep.
    assert np.isnan(found.before(microseconds(later, "at")).utilities[:, 4]).all()
    assert learner_regret(ledger_of(found, learner), learner)["static_regret"].iloc[-1] >= 0


def ledger_of(rounds, learner):
    """Return the rounds as rows of job, policy and utility."""
    return pd.DataFrame(
        [
            {"job": job, "policy": name, "normalised": value}
            for job, row in zip(rounds.jobs, rounds.full(learner), strict=True)
            for name, value in zip(rounds.names, row.tolist(), strict=True)
        ]
    )


def test_a_policy_less_and_rounds_of_two_pools_are_read_as_one(scored):
    """Warehouse of an older version, in which a new pool repeated the same jobs in later rounds."""
    learner = learner_named(DEFAULT_LEARNER)
    table = [
        {"round": k + 1, "job": f"j{k}", "policy": name, "scored_at": AT, "utility": 0.5, "log_weight": 0.0}
        for k in range(2)
        for name in NAMES[:2]
    ] + [
        {"round": k + 3, "job": f"j{k}", "policy": name, "scored_at": AT + pd.Timedelta("1h"),
         "utility": 0.75, "log_weight": 0.0}
        for k in range(2)
        for name in NAMES[:3]
    ]  # fmt: skip
    with open_store(":memory:") as store:
        write_rows(store, "weights", pd.DataFrame(table))
        found = stored_rounds(store, NAMES[:3])
        assert found.jobs == ("j0", "j1")
        assert found.utilities.tolist() == [[0.5, 0.5, 0.75]] * 2, "what was learned first stays"
        assert stored_rounds(store, NAMES[:1]).utilities.tolist() == [[0.5]] * 2
        save_scored(store, learn([(AT, scored[2:3])], groups=[(stored_rounds(store, NAMES), learner)]))
        rows = read_rows(store, "weights", where={"job": "j2"})
    assert set(rows["round"]) == {5}


def test_the_learner_of_the_settings(tmp_path):
    assert Settings().learner == DEFAULT_LEARNER
    file = tmp_path / "s.toml"
    file.write_text('learner = "squint"\n')
    assert read_settings(file).learner == "squint"
    file.write_text('learner = "oracle"\n')
    with pytest.raises(SettingsError, match=r"learner.*oracle.*adahedge"):
        read_settings(file)


# ---
# Outcomes of an older version, which scored in the slot model.


def test_outcomes_of_the_slot_model_are_read_and_kept_out_of_means_in_the_world(scored):
    with open_store(":memory:") as store:
        save_scored(
            store, learn([(AT, scored)], groups=[(stored_rounds(store, NAMES), learner_named("anytime"))])
        )
        assert scored_in_slot_model(store) == set()
        store.execute(
            'UPDATE outcomes SET details = json_merge_patch(details, \'{"model": null, "finish_seconds": null}\') '
            "WHERE job IN ('j0', 'j3')"
        )
        assert scored_in_slot_model(store) == {"j0", "j3"}
        outcomes = outcome_frame(store, NAMES)
    assert set(outcomes["job"]) == {f"j{k}" for k in range(6)}
    means, (told,) = in_one_model(outcomes)
    assert set(means["job"]) == {"j1", "j2", "j4", "j5"}
    assert told.startswith("2 jobs scored by an older version")
    old = outcomes[outcomes["job"].isin(["j0", "j3"])]
    assert in_one_model(old)[0].equals(old), "without a job in the world the old means are shown"
