"""``slackwater experiment markets`` on a small folder of zones: worlds, jobs, runs, rows and the page (E6, M11)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_kit import call, printed
from page_kit import charts_of, rendered

from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.world.replay import Launcher, replay_in_world
from slackwater.studies.experiments.markets import (
    BOUND,
    CENTRE,
    DEADLINE,
    EVERYWHERE,
    FORECASTING,
    HOME,
    LOADS,
    MARKETS,
    MEAN_FIELD,
    MOVES,
    ONE_MARKET,
    PLACE,
    SMALL,
    START,
    design_of,
    draws_of,
    findings,
    forecasts_of,
    markets_answer,
    markets_report,
    measured_worlds,
    mover_rows,
    row_of,
    run_draw,
    scene_of,
    slots_of,
)
from slackwater.studies.experiments.pool import FAST_PLANNER
from slackwater.warehouse.errors import MarketError

DAYS, FIRST = 7, pd.Timestamp("2025-03-03T00:05:00Z")


def counts(rng, zone, kind, *, top, source):
    times = pd.date_range(FIRST, periods=DAYS * 48, freq="30min")
    level, state = [], top
    for _ in times:
        state = state if rng.random() < 0.9 else int(rng.integers(0, top + 1))
        level.append(state)
    return pd.DataFrame(
        {
            "provider": "lab", "region": zone[:-1], "zone": zone, "instance_type": kind, "timestamp": times,
            "available": level, "capacity_probed": top, "gap_seconds": 1800, "kind": "probe", "source": source,
        }
    )  # fmt: skip


def prices(rng, zone, kind, *, on_demand, constant, source):
    times = pd.date_range(FIRST, periods=1 if constant else DAYS * 4 + 4, freq="6h")
    return pd.DataFrame(
        {
            "provider": "lab", "region": zone[:-1], "zone": zone, "instance_type": kind, "timestamp": times,
            "spot_price_usd_per_hour": on_demand * (0.25 + (0.0 if constant else 0.1) * rng.random(len(times))),
            "on_demand_price_usd_per_hour": on_demand, "source": source,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return three zones of four instances at constant prices, three of one at moving prices, two without prices."""
    rng, root = np.random.default_rng(5), tmp_path_factory.mktemp("zones")
    many, single = [f"m{i}a" for i in range(3)], [f"s{i}a" for i in range(3)]
    # Zones without prices are paired with a price series of their type and length.
    pd.concat(
        [
            *(counts(rng, zone, "big", top=4, source="lab:many") for zone in many),
            *(counts(rng, zone, "small", top=1, source="lab:single") for zone in single),
            *(counts(rng, zone, "small", top=2, source="lab:other") for zone in ("o1a", "o2a")),
        ]
    ).to_parquet(root / "availability.parquet")
    pd.concat(
        [
            *(
                prices(rng, zone, "big", on_demand=4.0 + i, constant=True, source="lab:many")
                for i, zone in enumerate(many)
            ),
            *(
                prices(rng, zone, "small", on_demand=3.0, constant=False, source="lab:single")
                for zone in single
            ),
        ]
    ).to_parquet(root / "prices.parquet")
    return root


def later_half(world):
    return range(world.slots // 2, world.slots)


@pytest.fixture(scope="module")
def read(folder):
    return measured_worlds(folder)


@pytest.fixture(scope="module")
def runs(read):
    worlds, _ = read
    design = replace(
        design_of([world for world, _ in worlds], fast=True),
        ahead=tuple(
            forecasts_of(world, zones, later_half(world), planner=FAST_PLANNER) for world, zones in worlds
        ),
    )
    drawn = [d for w, (world, _) in enumerate(worlds) for d in draws_of(world, w, seed=2, fast=True)]
    return pd.DataFrame([run for draw in drawn for run in run_draw(draw, design)])


@pytest.fixture(scope="module")
def answer(read, runs):
    return markets_answer(runs, *read, data="d", seed=2, fast=True)


def test_worlds_are_zones_with_prices_of_their_own(read):
    worlds, notes = read
    assert [(world.name, max(tape.bound for tape in zones)) for world, zones in worlds] == [
        ("big, lab, 3 zones", 4.0),
        ("small, lab, 3 zones", 1.0),
    ]
    # A constant stated price covers the whole series of counts.
    assert all(
        np.ptp(path) == 0.0 and len(path) == worlds[0][0].slots for path in worlds[0][0].prices.values()
    )
    assert all(np.ptp(path) > 0.0 for path in worlds[1][0].prices.values())
    assert len(notes) == 1
    assert "lab:other" in notes[0]


def test_a_folder_without_such_zones_is_refused(folder, tmp_path):
    for name in ("availability", "prices"):
        table = pd.read_parquet(folder / f"{name}.parquet")
        table[
            table["source"].eq("lab:single") & table["zone"].ne("s0a") | table["source"].eq("lab:other")
        ].to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(MarketError, match="none in 3 zones"):
        measured_worlds(tmp_path)


def test_forecasts_are_made_for_the_slots_in_which_jobs_of_the_world_run(read):
    worlds = [world for world, _ in read[0]]
    drawn = [d for w, world in enumerate(worlds) for d in draws_of(world, w, seed=2, fast=True)]
    for w in range(len(worlds)):
        slots = slots_of(drawn, w)
        assert slots == sorted(set(slots))
        assert all(range(d.first, d.first + DEADLINE)[-1] in slots for d in drawn if d.world == w)
        assert len(slots) <= DEADLINE * len({d.first for d in drawn if d.world == w})


def test_jobs_begin_in_the_later_half_at_different_times(read):
    world = read[0][1][0]
    drawn = draws_of(world, 1, seed=2, fast=False)
    firsts = [draw.first for draw in drawn]
    assert firsts == sorted(set(firsts))
    assert len(firsts) > 50
    assert firsts[0] >= world.slots // 2
    assert firsts[-1] + DEADLINE <= world.slots
    assert {draw.load for draw in drawn} == set(LOADS)
    assert all(sorted(draw.order) == [0, 1, 2] for draw in drawn)
    assert drawn == draws_of(world, 1, seed=2, fast=False) != draws_of(world, 1, seed=3, fast=False)


def test_sizes_loads_and_homes_take_turns(read):
    worlds = [replace(read[0][0][0], counts={z: 4 * c for z, c in read[0][0][0].counts.items()})]
    drawn = draws_of(worlds[0], 0, seed=2, fast=False)
    varied = [draw for draw in drawn if draw.varied and draw.n_max > 1]
    assert len({draw.first for draw in drawn}) == len(varied) == 72
    assert len([draw for draw in drawn if draw.n_max == 1]) == 72
    pairs = pd.Series([(draw.n_max, draw.load) for draw in varied]).value_counts()
    assert len(pairs) == 9
    assert set(pairs) == {8}
    assert set(pd.Series([draw.home for draw in varied]).value_counts()) == {24}


def test_nothing_after_the_start_is_in_what_was_saved_and_nothing_after_the_deadline_anywhere(read):
    world = read[0][0][0]
    draw = draws_of(world, 0, seed=2, fast=True)[0]
    cut = {
        zone: np.where(np.arange(world.slots) < draw.first, own, 0.0) for zone, own in world.counts.items()
    }
    one, two = scene_of(world, draw), scene_of(replace(world, counts=cut), draw)
    assert one.saved_usd == two.saved_usd
    assert all(len(case.record.available) == draw.first + DEADLINE for case in one.cases)
    cheapest = min(case.window.on_demand_usd for case in one.cases)
    (work,) = {case.job.workload for case in one.cases}
    # Boot and restart take six minutes of the instances of on-demand only.
    assert cheapest * work < one.unit <= cheapest * (work + draw.n_max * 0.1) + 1e-9
    few = one.of([0, 2])
    np.testing.assert_array_equal(few.cases[1].record.peers, one.cases[0].record.available[None])


@pytest.mark.slow
def test_a_job_shares_what_its_cells_see_and_pays_its_own_moves(read, runs):
    """Data shared by cells changes nothing: run alone, each gives the same result."""
    world = read[0][0][0]
    design, draw = design_of([world], fast=True), draws_of(world, 0, seed=2, fast=True)[0]
    whole = scene_of(world, draw)
    own = runs[(runs["world"] == 0) & (runs["first"] == draw.first) & (runs["n_max"] == draw.n_max)]
    for cell in design.cells[0]:
        if cell.axis in (MOVES, PLACE):
            case = whole.movable(cell, draw.home)
            (outcome,) = replay_in_world([MeanField()], case, launcher=Launcher.SLOTS)
            row = own[(own["axis"] == cell.axis) & (own["mover"] == MEAN_FIELD)].iloc[0]
            assert (case.job.job.value - outcome.utility_usd) / whole.unit == pytest.approx(
                row["cost"], abs=1e-12
            )
            assert row["moves"] == outcome.moves


def test_what_turns_would_have_forecast_knows_nothing_of_later_slots(read):
    world, zones = read[0][0]
    first = world.slots // 2
    rng = np.random.default_rng(3)

    def scrambled(values, at):
        return np.where(np.arange(world.slots) <= at, values, rng.permutation(values))

    at = first + 30
    other = [replace(zone, values=scrambled(zone.values, at), within=None) for zone in zones]
    plain = [replace(zone, within=None) for zone in zones]
    one, two = (forecasts_of(world, own, later_half(world), planner=FAST_PLANNER) for own in (plain, other))
    for zone in world.counts:
        assert set(one[zone]) == set(range(first, world.slots))
        for slot in range(first, at + 1):
            np.testing.assert_array_equal(one[zone][slot].quantiles.count, two[zone][slot].quantiles.count)
    assert any(
        not np.array_equal(one[zone][slot].quantiles.count, two[zone][slot].quantiles.count)
        for zone in world.counts
        for slot in range(at + 1, world.slots)
    )


@pytest.mark.slow
def test_the_mover_with_forecasts_is_one_of_the_centre_and_compared_with_the_one_without(runs, answer):
    told = runs[runs["mover"] == FORECASTING]
    assert set(told["axis"]) == {CENTRE}
    assert not np.allclose(
        told.sort_values(["world", "first", "n_max"])["cost"],
        runs[(runs["mover"] == MEAN_FIELD) & (runs["axis"] == CENTRE)].sort_values(["world", "first", "n_max"])["cost"],
    )  # fmt: skip
    for world in answer["worlds"]:
        row, plain = row_of(world["movers"], FORECASTING), row_of(world["movers"], MEAN_FIELD)
        assert row["over_mean_field"] == pytest.approx(row["cost"] - plain["cost"])
        assert (plain["over_mean_field_low"], plain["over_mean_field_high"]) == (0.0, 0.0)
    assert any("with the forecasts that turns would have issued" in line for line in answer["findings"])


@pytest.mark.slow
def test_every_job_is_on_time_and_none_beats_the_bound(runs):
    assert not runs["late"].any()
    key = ["world", "axis", "value", "first", "n_max"]
    best = runs[runs["mover"] == BOUND].set_index(key)["cost"]
    assert (runs["cost"].to_numpy() >= best.loc[pd.MultiIndex.from_frame(runs[key])].to_numpy() - 1e-9).all()
    single = runs[runs["mover"] == ONE_MARKET].set_index(key)["cost"]
    alone = runs[runs["mover"].str.contains("mean over|best market") & (runs["axis"] == CENTRE)]
    assert (
        alone["cost"].to_numpy() >= single.loc[pd.MultiIndex.from_frame(alone[key])].to_numpy() - 1e-9
    ).all()


@pytest.mark.slow
def test_the_rows_are_those_of_the_runs(runs, answer):
    for w, world in enumerate(answer["worlds"]):
        own = runs[(runs["world"] == w) & (runs["axis"] == CENTRE)].groupby("mover")["cost"].mean()
        assert {row["mover"]: row["cost"] for row in world["movers"]} == pytest.approx(own.to_dict())
        cells = world["cells"]
        assert {row["mover"] for row in cells[MOVES]} == set(EVERYWHERE)
        assert {row["value"] for row in cells[MARKETS]} == {"2", "3"}
        assert row_of(cells[PLACE], MEAN_FIELD, "located")["over"] == HOME
        assert bool(cells[SMALL]) == (world["capacity"] > 1)
        assert row_of(world["movers"], BOUND)["captured"] == pytest.approx(1.0, nan_ok=True)
    assert [world["constant_prices"] for world in answer["worlds"]] == [True, False]


def test_captured_is_the_way_from_staying_to_the_bound_by_whole_days():
    table = pd.DataFrame(
        [
            {"first": first, "n_max": 1, "block": first // 10, "mover": mover, "cost": cost, "late": False, "moves": 1}
            for first, costs in (
                (1, (0.5, 0.4, 0.3)), (2, (0.5, 0.4, 0.3)), (11, (0.6, 0.6, 0.2)), (21, (0.6, 0.6, 0.2))
            )
            for mover, cost in zip((START, MEAN_FIELD, BOUND), costs, strict=True)
        ]
    )  # fmt: skip
    rows = mover_rows(table, seed=1)
    assert [row["mover"] for row in rows] == [BOUND, MEAN_FIELD, START]
    mine = row_of(rows, MEAN_FIELD)
    assert mine["captured"] == pytest.approx((2.2 - 2.0) / (2.2 - 1.0))
    assert mine["dearer"] == pytest.approx(-0.2 / 4)
    # The two jobs of the first day are drawn together: the interval ends are the first day alone and the other
    # days alone.
    assert (mine["dearer_low"], mine["dearer_high"]) == (pytest.approx(-0.1), pytest.approx(0.0))
    assert (mine["captured_low"], mine["captured_high"]) == (pytest.approx(0.0), pytest.approx(0.5))


@pytest.mark.slow
def test_findings_say_where_it_loses_and_who_was_late(answer):
    world = answer["worlds"][0]
    said = findings(world)
    assert any("missed their deadline: none" in line for line in said)
    rows = [dict(row) for row in world["movers"]]
    row_of(rows, "Greedy")["late"] = 3
    cells = {axis: [dict(row) for row in own] for axis, own in world["cells"].items()}
    best = row_of(cells[PLACE], "Greedy", "located")
    best |= {"cost": 0.0, "over_mean_field": -0.2, "over_mean_field_low": -0.3, "over_mean_field_high": -0.1}
    cells[PLACE].sort(key=lambda row: (row["value"], row["cost"]))
    said = findings(world | {"movers": rows, "cells": cells})
    assert any("missed their deadline: Greedy 3" in line for line in said)
    assert any("is beaten at" in line and "place located (Greedy 0.0000" in line for line in said)
    best |= {"over_mean_field_low": -0.5, "over_mean_field_high": 0.1}
    said = findings(world | {"movers": rows, "cells": cells})
    assert any(
        "not decided, though cheaper" in line and "place located (Greedy 0.0000" in line for line in said
    )


@pytest.mark.slow
def test_the_page_and_the_tables(answer):
    page = rendered(markets_report(answer))
    assert len(charts_of(page)) == 6
    told = printed(markets_report(answer).blocks)
    assert "one thing varied" in told
    assert "one constant of a catalogue" in told


@pytest.mark.slow
def test_the_experiment_as_a_command(folder, tmp_path):
    page = tmp_path / "m.html"
    words = [
        "experiment",
        "markets",
        "--data",
        folder,
        "--fast",
        "--processes",
        "1",
        "--json",
        "--html",
        page,
    ]
    found = call(*words).value
    assert [world["name"] for world in found["worlds"]] == ["big, lab, 3 zones", "small, lab, 3 zones"]
    assert found["findings"]
    assert "One job, many markets" in page.read_text(encoding="utf-8")
