"""A model chosen with zones left out, compared with a slow implementation: no use of the zone or of later data (M6.5)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first

from slackwater.forecasting.accuracy.tables import class_scores
from slackwater.studies.experiments.left_out import BY_DEFAULT, CHOSEN, HINDSIGHT, left_out

MODELS = ("combined", "trees", "last_value")
STEPS = (1, 2, 3)
#: Two sources report one zone; offers are a separate class.
MARKETS = {
    "c/r/a/x@one": "16 and more",
    "c/r/a/y@two": "16 and more",
    "c/r/b/x@one": "16 and more",
    "c/r/c/x@two": "16 and more",
    "m/r/d/z@three": "offers",
}


def table(seed: int, losses=None) -> pd.DataFrame:
    """Return scores of every model; ``losses`` maps (model, market) to pinball losses, otherwise random."""
    rng = np.random.default_rng(seed)
    rows = []
    for market, kind in MARKETS.items():
        scale, n = float(rng.uniform(1, 16)), int(rng.integers(50, 90))
        for step in STEPS:
            loss = {model: float(rng.uniform(0.5, 1.5)) for model in MODELS}
            loss |= {model: losses[model, market] for model in MODELS if losses}
            for model in MODELS:
                skill = 1 - loss[model] / loss["last_value"]
                rows.append(
                    {"variable": "count", "model": model, "market": market, "step": step, "n": n, "mae": 1.0,
                     "pinball": loss[model], "skill_pinball": skill, "skill_low": skill - 0.1, "skill_high": skill + 0.1,
                     "scale": scale, "class": kind, "coverage_80": 0.8}
                )  # fmt: skip
    return pd.DataFrame(rows)


def found(earlier, later, by="zone"):
    return left_out(earlier, later, by=by, models=MODELS, default="combined")


def choice(result, left, kind="16 and more"):
    rows = result.choices[(result.choices["left_out"] == left) & (result.choices["class"] == kind)]
    return rows["model"].item(), rows["skill"].item(), rows["others"].item()


@pytest.mark.parametrize("seed", quick_first(range(3)))
@pytest.mark.parametrize("by", ["zone", "source"])
def test_the_choice_is_that_of_a_slow_twin(seed, by):
    earlier, later = table(seed), table(seed + 100)
    result = found(earlier, later, by)
    for row in result.choices.to_dict("records"):
        skills = {}
        for model in MODELS:
            steps = []
            for step in STEPS:
                own = floor = 0.0
                for market, kind in MARKETS.items():
                    name = market.split("@")[1] if by == "source" else "/".join(market.split("/")[:3])
                    if kind != row["class"] or name == row["left_out"]:
                        continue
                    here = earlier[(earlier["market"] == market) & (earlier["step"] == step)].set_index(
                        "model"
                    )
                    weight = here["n"].iloc[0] / here["scale"].iloc[0]
                    own += here.loc[model, "pinball"] * weight
                    floor += here.loc["last_value", "pinball"] * weight
                steps.append(1 - own / floor if floor else np.nan)
            skills[model] = float(np.mean(steps))
        if row["others"]:
            best = max(skills, key=lambda model: skills[model])
            assert row["model"] == best
            assert row["skill"] == pytest.approx(skills[best])
        else:
            assert row["model"] == "combined"
            assert np.isnan(row["skill"])


ZONES = ("c/r/a", "c/r/b", "c/r/c")


@pytest.mark.parametrize("left", quick_first(ZONES))
def test_neither_the_own_past_nor_anything_later_is_in_the_choice(left):
    earlier = table(1)
    before = found(earlier, table(2))
    own = earlier["market"].str.startswith(left + "/")
    after = found(pd.concat([table(77)[own], earlier[~own]]), table(88))
    assert choice(before, left) == choice(after, left)
    # Guard against a vacuous test: the data that the other choices use has changed.
    assert any(choice(before, zone) != choice(after, zone) for zone in ZONES if zone != left)


def test_what_was_best_elsewhere_and_before_may_not_be_what_is_best():
    before = {(m, k): {"combined": 0.9, "trees": 0.5, "last_value": 1.0}[m] for m in MODELS for k in MARKETS}
    after = {(m, k): {"combined": 0.8, "trees": 1.2, "last_value": 1.0}[m] for m in MODELS for k in MARKETS}
    result = found(table(1, before), table(2, after))
    rows = result.classes[result.classes["class"] == "16 and more"].set_index(["choice", "step"])
    for step in STEPS:
        assert rows.loc[(CHOSEN, step), "model"] == "trees"
        assert rows.loc[(CHOSEN, step), "skill_pinball"] == pytest.approx(-0.2)
        assert rows.loc[(HINDSIGHT, step), "model"] == "combined"
        assert rows.loc[(HINDSIGHT, step), "skill_pinball"] == pytest.approx(0.2)
        assert rows.loc[(BY_DEFAULT, step), "skill_pinball"] == pytest.approx(0.2)
    assert rows.loc[(CHOSEN, 1), "share_worse"] == 1.0


def test_the_worst_market_comes_with_its_interval():
    later = table(5)
    result = found(table(4), later)
    rows = result.classes
    for row in rows[rows["choice"] == BY_DEFAULT].to_dict("records"):
        own = later[
            (later["model"] == "combined") & (later["step"] == row["step"]) & (later["class"] == row["class"])
        ]
        worst = own.loc[own["skill_pinball"].idxmin()]
        assert row["worst_market"] == worst["market"]
        assert (row["worst_low"], row["worst_high"]) == (worst["skill_low"], worst["skill_high"])
        assert row["worst_skill_pinball"] == worst["skill_pinball"]
        assert row["markets"] == own["market"].nunique()


def test_a_zone_is_left_out_with_all_its_types_and_sources():
    result = found(table(1), table(2))
    assert choice(result, "c/r/a")[2] == 2
    assert choice(result, "c/r/b")[2] == 3
    assert choice(found(table(1), table(2), "source"), "one")[2] == 2


def test_last_value_may_be_chosen_and_has_no_skill():
    losses = {(m, k): {"combined": 2.0, "trees": 3.0, "last_value": 1.0}[m] for m in MODELS for k in MARKETS}
    result = found(table(1, losses), table(2, losses))
    rows = result.classes[(result.classes["choice"] == CHOSEN) & (result.classes["class"] == "16 and more")]
    assert set(rows["model"]) == {"last_value"}
    assert np.allclose(rows["skill_pinball"], 0.0)


def test_what_a_choice_is_ahead_of_the_default_has_an_interval_by_zones():
    later = table(6)
    rows = found(table(3), later).classes.set_index(["class", "choice", "step"])
    pooled = class_scores(later).set_index(["class", "model", "step"])["skill_pinball"]
    for (kind, how, step), row in rows.iterrows():
        own = row["skill_pinball"] - pooled[kind, "combined", step]
        assert row["ahead"] == pytest.approx(own, abs=1e-12)
        if how == BY_DEFAULT or kind == "offers":  # no difference, and a single zone
            assert np.isnan(row["ahead_low"])
            assert np.isnan(row["ahead_high"])
    # Two zones with equal losses and one with a gain, by hand: ratio of sums over three blocks, Student t with
    # two degrees.
    losses = {(m, k): 1.0 for m in MODELS for k in MARKETS}
    better = losses | {("trees", "c/r/b/x@one"): 0.4}
    rows = found(table(1, {**losses, **{("trees", k): 0.5 for k in MARKETS}}), table(2, better)).classes
    row = rows[(rows["class"] == "16 and more") & (rows["choice"] == CHOSEN) & (rows["step"] == 1)].iloc[0]
    weights = table(2, better)
    weights = weights[
        (weights["model"] == "trees") & (weights["step"] == 1) & (weights["class"] == "16 and more")
    ]
    floor = (weights["n"] / weights["scale"]).groupby(weights["market"].str.split("/").str[2]).sum()
    gain = floor * np.array([0.0, 0.6, 0.0])
    ratio = gain.sum() / floor.sum()
    spread = np.sqrt(((gain - ratio * floor) ** 2).sum() * 3 / 2) / floor.sum()
    assert row["ahead"] == pytest.approx(ratio)
    assert row["ahead_high"] - ratio == pytest.approx(4.302653 * spread)
    assert ratio - row["ahead_low"] == pytest.approx(4.302653 * spread)
