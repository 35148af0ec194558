"""Predicted and observed availability of measured markets, by the state of a request and its age (M13.3).

The belief knows the counts of the past at level 4 (M13.1); the zone of a market is left out of its archetypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.executor import fan_out
from slackwater.optimization.belief.archetypes import ALL, archetypes
from slackwater.optimization.belief.launches import UNKNOWN, known_states, states_between
from slackwater.optimization.belief.mixture import Mixture
from slackwater.studies.experiments.material import COUNT_COLUMNS, count_tapes, read_table
from slackwater.studies.experiments.world import market_of, most_instances
from slackwater.studies.experiments.world_jobs import RECORD_SLOTS
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import Tape

#: Slots ahead whose availability is predicted; the last is the longest.
AHEAD: Final = (1, 4, 12, 24, 48)
#: Upper ends, in slots, of the groups of ages of a state; the last group has no end.
AGES: Final = (1, 3, 8, 24)
STATE_WORDS: Final = ("none", "part", "all")
#: Slots between two predictions of a series.
EVERY, FAST_EVERY = 4, 24
#: Slots ahead in which losses are counted, and the sampled paths of their expected number.
LOSS_SLOTS, PATHS = 24, 40


def belief_tapes(data: Path) -> list[Tape]:
    """Return the count series of a folder that jobs of `world` run on."""
    counts = read_table(data, "availability", COUNT_COLUMNS)
    return [tape for tape in count_tapes(counts, least_capacity=1) if market_of(tape) is not None]


def predictions(tape: Tape, every: int) -> pd.DataFrame:
    """Return a row for each prediction in the later half of a series: state, age, predicted and observed, losses likewise."""
    return pd.DataFrame(list(_predictions(tape, every)))


def _predictions(tape: Tape, every: int) -> Iterator[dict[str, Any]]:
    request = most_instances(tape)
    states = known_states(tape.values, request)
    prior = archetypes(request, tape.step / pd.Timedelta(hours=1), (tape.market.zone,))
    between = _between(tape, request, prior.parts)
    inside = np.column_stack([states[:-1], between[1:]])
    rng = np.random.default_rng(len(tape))
    later = np.array(AHEAD)
    for now in range(tape.half, len(tape) - AHEAD[-1], every):
        if (states[np.append(now, now + later)] == UNKNOWN).any():
            continue
        past = slice(max(0, now - RECORD_SLOTS), now + 1)
        belief = Mixture.of(prior, states[past], between[past])
        yield {
            "series": tape.label,
            "request": request,
            "state": int(states[now]),
            "age": int(np.searchsorted(AGES, _age(states[: now + 1]))),
            "predicted": _marginals(belief)[later - 1],
            "observed": (states[now + later] == ALL).astype(float),
            "expected_losses": expected_losses(belief, rng),
            "losses": losses(inside[now : now + LOSS_SLOTS].ravel()[None])[0],
        }


def _between(tape: Tape, request: int, parts: int) -> np.ndarray:
    """Return the states between every slot and the slot before, shape (slots, parts - 1)."""
    within = np.full((len(tape), 0), np.nan) if tape.within is None else tape.within
    return states_between(within, request, parts)


def _age(states: np.ndarray) -> int:
    """Return for how many slots the last of ``states`` has lasted."""
    other = np.flatnonzero(states != states[-1])
    return len(states) - 1 - int(other[-1]) if len(other) else len(states)


def _marginals(belief: Mixture) -> np.ndarray:
    """Return the probability that all of the request is available in each of the next slots."""
    here, found = belief.present, np.empty(AHEAD[-1])
    for k, step in enumerate(belief.steps(AHEAD[-1])):
        here = here @ step
        found[k] = here[ALL]
    return found


def losses(states: np.ndarray) -> np.ndarray:
    """Return how often each path of states (paths, times) falls to a lower state; unknown states are left out."""
    return np.array([int((np.diff(path[path != UNKNOWN]) < 0).sum()) for path in states])


def expected_losses(belief: Mixture, rng: np.random.Generator) -> float:
    """Return the mean number of losses in the next `LOSS_SLOTS` slots of sampled paths."""
    states = belief.sample(LOSS_SLOTS, paths=PATHS, rng=rng)
    inside = belief.sample_inside(states, rng)
    parts = np.concatenate([states[:, :-1, None], inside], axis=2)
    return float(losses(parts.reshape(PATHS, -1)).mean())


def availability_rows(found: pd.DataFrame, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return by state and age how likely all of the request was predicted to be available, and how often it was."""
    return [_availability_row(own, rng) for _, own in found.groupby(["state", "age"])]


def _availability_row(own: pd.DataFrame, rng: np.random.Generator) -> dict[str, Any]:
    state, age = (int(own[key].iloc[0]) for key in ("state", "age"))
    return {"state": STATE_WORDS[state], "age": age_words(age), "slots": len(own)} | {
        f"ahead_{h}": pair for h, pair in zip(AHEAD, _pairs(own, rng), strict=True)
    }


def _pairs(own: pd.DataFrame, rng: np.random.Generator) -> list[dict[str, Any]]:
    predicted, observed = (np.stack(own[key].to_list()) for key in ("predicted", "observed"))
    low, high = resampled(predicted - observed, blocks=own["series"].to_numpy(), rng=rng).interval()
    return [
        {"predicted": float(p), "observed": float(o), "interval": [float(a), float(b)]}
        for p, o, a, b in zip(predicted.mean(axis=0), observed.mean(axis=0), low, high, strict=True)
    ]


def age_words(group: int) -> str:
    """Return the words of a group of ages.

    >>> [age_words(k) for k in range(5)]
    ['1', '2 to 3', '4 to 8', '9 to 24', 'over 24']
    """
    if group == len(AGES):
        return f"over {AGES[-1]}"
    first = AGES[group - 1] + 1 if group else 1
    return f"{first}" if first == AGES[group] else f"{first} to {AGES[group]}"


def loss_rows(found: pd.DataFrame, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the expected and the observed losses of spot in the next `LOSS_SLOTS` slots, by size of the request."""
    several = found["request"] > 1
    groups = {"all": found, "1 instance": found[~several], "several instances": found[several]}
    return [{"request": name} | _loss_row(own, rng) for name, own in groups.items() if len(own)]


def _loss_row(own: pd.DataFrame, rng: np.random.Generator) -> dict[str, Any]:
    both = own[["expected_losses", "losses"]].to_numpy(dtype=float)
    draws = resampled(both, blocks=own["series"].to_numpy(), rng=rng)
    low, high = draws.interval(draws.means[:, :1] / np.maximum(draws.means[:, 1:], 1e-9) - 1.0)
    expected, observed = both.mean(axis=0)
    return {
        "slots": len(own),
        "expected": float(expected),
        "observed": float(observed),
        "expected_less_observed": float(expected / max(observed, 1e-9) - 1.0),
        "interval": [float(low[0]), float(high[0])],
    }


def all_predictions(
    tapes: Sequence[Tape], every: int, *, processes: int = 1, tell: Any = None
) -> pd.DataFrame:
    """Return the predictions in every series."""
    return pd.concat(
        fan_out(predictions, tapes, every, processes=processes, progress=tell), ignore_index=True
    )
