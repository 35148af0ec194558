"""Stages compute from facts alone, and forecasts in memory give the decisions and scores of stored forecasts."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make import make_turn
from past_jobs import MARKETS, past_jobs
from test_turn import AT, one_turn, small_settings

from slackwater.flows.config import read_settings
from slackwater.flows.turn import stages
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.decide import decide_slots, read_decision_facts
from slackwater.flows.turn.forecast import (
    forecast_group,
    joined_forecasts,
    lacking_groups,
    planned_forecasts,
    read_forecast_facts,
)
from slackwater.flows.turn.pool import read_pool
from slackwater.flows.turn.results import write
from slackwater.flows.turn.score import read_score_facts, score_slots
from slackwater.flows.turn.stages import TurnProgress
from slackwater.flows.turn.work import find_work
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.request import parse_request
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")


def running_jobs():
    """Return a single-market and a multi-market job that began three slots before `AT`."""
    terms = {
        "n_max": 3, "workload": {"amount": 12.0, "unit": "gpu_hours"}, "throughput": {"form": "linear"},
        "deadline_in": "6h", "checkpoint": {"resumable": True, "overhead_minutes": 3},
    }  # fmt: skip
    where = {"stays": {"market": MARKETS[0]}, "moves": {"markets": ["simulated/*/*/h100"]}}
    asked = [parse_request({"name": name, **terms, **own}, name) for name, own in where.items()]
    return [one.with_place(at=AT - 3 * STEP, market=one.market, source=None) for one in asked]


def values(results):
    """Return the decisions, outcomes and ledger rows of a stage as text."""
    learned = results.learned
    return repr((
        results.decisions, results.runs,
        () if learned is None else (learned.weights, [one.outcomes for _, one in learned.scored]),
    ))  # fmt: skip


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Return results from forecasts in memory, results from stored forecasts, and the forecasts of the jobs either way.

    Everything is computed while the warehouse is closed.
    """
    folder: Path = tmp_path_factory.mktemp("stages")
    settings, db = read_settings(small_settings(folder)), folder / "w.duckdb"
    requests = [*running_jobs(), *past_jobs(2, before=AT)]
    one_turn(db, settings, at=AT - 2 * STEP, requests=requests)

    def turn_on(store) -> Turn:
        return make_turn(store, AT, settings)

    with open_store(db) as store:
        turn = turn_on(store)
        stages.ingest(turn, TurnProgress())
        # The past jobs are replayed again, as if a policy were new.
        pool = read_pool(turn)
        none = pool.rounds.before(0), pool.movers.rounds.before(0)
        pool, work = pool.with_rounds(*none), find_work(turn_on(store), [], scored=())
        (group,) = lacking_groups([turn], [work])
        facts = read_forecast_facts(turn, group)
    results, (measured,) = forecast_group(facts)
    with open_store(db) as store:
        write(store, results)
        read = [
            (
                read_decision_facts([turn_on(store)], [work], pool, planned),
                read_score_facts([turn_on(store)], [work], pool, planned),
                planned_forecasts(turn_on(store), work.jobs_in_markets(), planned),
            )
            for planned in (measured.planned, None)
        ]
    scored_in_batches(read[0][1])
    return [(decide_slots(own)[0], score_slots(ended)[0], found) for own, ended, found in read]


def scored_in_batches(facts):
    """Check that two batches of a job each give the scores of both jobs together."""
    whole, after = score_slots(facts)
    first, rest = score_slots(facts, 1)
    assert (len(rest.ended), len(rest.names[0]), first.runs) == (1, 1, ())
    last, end = score_slots(rest, 1)
    assert [*first.learned.weights, *last.learned.weights] == [*whole.learned.weights]
    assert (last.runs, end.ended) == (whole.runs, ())
    assert np.array_equal(end.pool.rounds.utilities, after.pool.rounds.utilities)


def test_forecasts_in_memory_are_the_stored_forecasts(computed):
    (_, _, memory), (_, _, stored) = computed
    assert memory.keys() == stored.keys()
    for place, forecasts in memory.items():
        for one, other in zip(forecasts, stored[place], strict=True):
            for name in Forecast.__dataclass_fields__:
                assert np.array_equal(getattr(one, name), getattr(other, name)), (place, name)
    # Those of the slots before, which an earlier turn issued, and that of the present slot.
    own = next(forecasts for (job, _), forecasts in stored.items() if job == "stays")
    assert [one.issued_at for one in own] == list(pd.date_range(AT - 3 * STEP, AT, freq=STEP))


def test_forecasts_in_memory_and_stored_forecasts_give_equal_decisions_and_scores(computed):
    (memory, scored, _), (stored, again, _) = computed
    assert {row["job"] for _, row in memory.decisions} == {"stays", "moves"}
    assert {one.ended.run.name for _, one in scored.learned.scored} == {"past-1", "past-2"}
    assert values(memory) == values(stored)
    assert values(scored) == values(again)


def test_forecasts_of_turns_computed_apart_are_joined(computed):
    (_, _, memory), _ = computed
    own = {("market", "source"): next(iter(memory.values()))}
    parts = [{place: forecasts[:2] for place, forecasts in own.items()}, own]
    assert joined_forecasts(parts) == own
