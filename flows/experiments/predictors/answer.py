"""What choosing among forecasters comes to: every way of choosing on the same jobs, and the sentences worth reading (M10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flows.accuracy.error_cost import NONE, PERFECT
from flows.experiments.predictors.study import PredictorRounds, notes_of
from flows.show.blocks import Block, Notes, Table
from optimization.selection.choosing import Spans, follow_least_loss, play_delayed, play_delayed_bandit
from optimization.selection.learners import BANDITS, LEARNERS
from optimization.trials.comparison import interval, resampled_means

#: The learners that choose with full information, and the bandits, by name; seeds of the bandits' draws.
CHOSEN_LEARNERS, CHOSEN_BANDITS = ("blend", "adahedge"), ("exp3 x16", "ar-ucb pooled")
SEEDS = 8
#: The forecaster that plans unless told otherwise; without it the last one asked for stands in its place.
DEFAULT = "combined"
COLUMNS = {
    "way": "way of choosing", "kind": "kind", "mean_utility": "utility", "ahead": "ahead of the default",
    "ahead_low": "from", "ahead_high": "to",
}  # fmt: skip
ARM_COLUMNS = {
    "arm": "forecaster", "mean_utility": "utility", "ahead": "ahead of the default", "ahead_low": "from",
    "ahead_high": "to", "loss": "wrong instances a slot", "best_in_markets": "best in markets",
}  # fmt: skip


def predictors_answer(rounds: PredictorRounds, *, data: str, seed: int, fast: bool) -> dict[str, Any]:
    """The object of ``experiment predictors --json``; utilities in units of each job's on-demand-only cost."""
    default = DEFAULT if DEFAULT in rounds.arms else rounds.arms[-2]
    answer: dict[str, Any] = {
        "data": data,
        "seed": seed,
        "fast": fast,
        "jobs": len(rounds.markets),
        "synthetic_jobs": rounds.synthetic,
        "markets": len(set(rounds.markets)),
        "default": default,
        "arms": list(rounds.arms),
        "policies": {
            name: policy_answer(rounds, place, default=default, seed=seed)
            for place, name in enumerate(rounds.policies)
        },
        "notes": notes_of(rounds),
    }
    return answer | {"findings": findings(answer)}


def policy_answer(rounds: PredictorRounds, place: int, *, default: str, seed: int) -> dict[str, Any]:
    """One policy: every arm alone, and every way of choosing, each beside the default forecaster (paired, 95 % by bootstrap)."""
    raw, shares = rounds.raw[:, :, place], rounds.shares[:, :, place]
    base = raw[:, rounds.arms.index(default)]
    ways = _ways(rounds, raw, shares, seed)
    perfect = rounds.perfect[:, place]
    earned = np.column_stack([raw, perfect, *(chances for _, _, chances in ways)])
    ahead = earned - base[:, None]
    low, high = interval(resampled_means(ahead, rng=np.random.default_rng([seed, 41])))
    mean, better = earned.mean(axis=0), ahead.mean(axis=0)
    wins = _best_in_markets(rounds, raw)
    n = len(rounds.arms)
    return {
        "arms": [
            {
                "arm": arm,
                "mean_utility": float(mean[i]),
                "ahead": float(better[i]),
                "ahead_low": float(low[i]),
                "ahead_high": float(high[i]),
                "loss": _mean_known(rounds.losses[:, i]),
                "best_in_markets": wins[arm],
            }
            for i, arm in enumerate(rounds.arms)
        ],
        "perfect": {"mean_utility": float(mean[n]), "ahead": float(better[n])},
        "ways": [
            {
                "way": way,
                "kind": kind,
                "mean_utility": float(mean[n + 1 + i]),
                "ahead": float(better[n + 1 + i]),
                "ahead_low": float(low[n + 1 + i]),
                "ahead_high": float(high[n + 1 + i]),
            }
            for i, (way, kind, _) in enumerate(ways)
        ],
    }


#: From the places of some jobs and their spans to the chances (jobs, arms) with which each arm is chosen.
Choose = Callable[[np.ndarray, Spans], np.ndarray]


def _by_learner(name: str, arms: tuple[str, ...], shares: np.ndarray) -> Choose:
    return lambda at, spans: play_delayed(LEARNERS[name], arms, shares[at], spans).chances


def _by_bandit(name: str, arms: tuple[str, ...], shares: np.ndarray, seed: int) -> Choose:
    """The mean chances over several seeds of the draws."""

    def choose(at: np.ndarray, spans: Spans) -> np.ndarray:
        rngs = [np.random.default_rng([s, 43]) for s in range(seed, seed + SEEDS)]
        runs = [play_delayed_bandit(BANDITS[name], arms, shares[at], spans, rng=rng) for rng in rngs]
        return np.asarray(np.mean([run.chances for run in runs], axis=0))

    return choose


def _ways(
    rounds: PredictorRounds, raw: np.ndarray, shares: np.ndarray, seed: int
) -> list[tuple[str, str, np.ndarray]]:
    """(name, kind, what each job earned) of every way of choosing; what learners earn is the mean under their weights."""
    made: list[tuple[str, str, np.ndarray]] = []

    def add(way: str, kind: str, choose: Choose) -> None:
        whole = choose(np.arange(len(raw)), rounds.spans)
        made.append((way, kind, (whole * raw).sum(axis=1)))
        apart = _each_market(rounds, choose)
        made.append((f"{way}, each market apart", kind, (apart * raw).sum(axis=1)))

    for name in CHOSEN_LEARNERS:
        add(name, "utility, all arms seen", _by_learner(name, rounds.arms, shares))
    for name in CHOSEN_BANDITS:
        add(name, "utility, played arm seen", _by_bandit(name, rounds.arms, shares, seed))
    add(
        "least error so far",
        "accuracy",
        lambda at, spans: np.eye(len(rounds.arms))[follow_least_loss(rounds.losses[at], spans)],
    )
    best = np.eye(len(rounds.arms))[[int(raw.mean(axis=0).argmax())] * len(raw)]
    made.append(("best in hindsight", "hindsight", (best * raw).sum(axis=1)))
    apart = _each_market(
        rounds, lambda at, _: np.eye(len(rounds.arms))[[int(raw[at].mean(axis=0).argmax())] * len(at)]
    )
    made.append(("best in hindsight, each market apart", "hindsight", (apart * raw).sum(axis=1)))
    return made


def _each_market(rounds: PredictorRounds, choose: Choose) -> np.ndarray:
    """Chances (jobs, arms) of a way that starts anew in each market."""
    chances = np.zeros((len(rounds.markets), len(rounds.arms)))
    markets = np.array(rounds.markets, dtype=object)
    for market in sorted(set(rounds.markets)):
        at = np.flatnonzero(markets == market)
        spans = Spans(start=rounds.spans.start[at], known=rounds.spans.known[at])
        chances[at] = choose(at, spans)
    return chances


def _best_in_markets(rounds: PredictorRounds, raw: np.ndarray) -> dict[str, int]:
    """In how many markets each arm has the largest mean."""
    markets = np.array(rounds.markets, dtype=object)
    wins = dict.fromkeys(rounds.arms, 0)
    for market in sorted(set(rounds.markets)):
        wins[rounds.arms[int(raw[markets == market].mean(axis=0).argmax())]] += 1
    return wins


def _mean_known(values: np.ndarray) -> float | None:
    seen = values[np.isfinite(values)]
    return float(seen.mean()) if seen.size else None


def findings(answer: Mapping[str, Any]) -> list[str]:
    """Sentences computed from the numbers, whichever way they fall."""
    return [line for name, own in answer["policies"].items() for line in _of_policy(name, own, answer)]


def _of_policy(policy: str, own: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    default = answer["default"]
    ways = {row["way"]: row for row in own["ways"]}
    learned = [row for row in own["ways"] if row["kind"] != "hindsight"]
    best, arm = max(learned, key=lambda row: row["mean_utility"]), _best_arm(own)
    bandit = max(
        (row for row in learned if row["kind"] == "utility, played arm seen"),
        key=lambda row: row["mean_utility"],
    )
    accuracy, blend = ways["least error so far"], ways[CHOSEN_LEARNERS[0]]
    apart = ways["best in hindsight, each market apart"]["mean_utility"]
    perfect = own["perfect"]["mean_utility"]
    return [
        f"{policy}: always {default} makes {_utility(own, default):.4f}; in hindsight {arm['arm']} is the best single choice "
        f"({arm['mean_utility']:.4f}), and the best for each market apart makes {apart:.4f}; {PERFECT} forecasts {perfect:.4f}.",
        f"{policy}: the best way of choosing without hindsight is {best['way']} ({best['kind']}): {_points(best)} against always "
        f"{default}"
        + (", which is not beyond chance." if best["ahead_low"] <= 0 <= best["ahead_high"] else "."),
        f"{policy}: {CHOSEN_LEARNERS[0]} by utility {_points(blend)}, the best bandit ({bandit['way']}) {_points(bandit)}, the "
        f"least error so far {_points(accuracy)}: choosing by accuracy is "
        + ("better" if accuracy["mean_utility"] > blend["mean_utility"] else "no better")
        + " than choosing by what the plans earned.",
        f"{policy}: without any forecast ({NONE}) {_points(_row(own, NONE))}.",
    ]


def _best_arm(own: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = max(own["arms"], key=lambda row: row["mean_utility"])
    return found


def _row(own: Mapping[str, Any], arm: str) -> Mapping[str, Any]:
    return next(row for row in own["arms"] if row["arm"] == arm)


def _utility(own: Mapping[str, Any], arm: str) -> float:
    return float(_row(own, arm)["mean_utility"])


def _points(row: Mapping[str, Any]) -> str:
    """``+0.12 points (-0.10 to +0.34)``: hundredths of on-demand-only cost."""
    return (
        f"{100 * row['ahead']:+.2f} points ({100 * row['ahead_low']:+.2f} to {100 * row['ahead_high']:+.2f})"
    )


def predictors_blocks(answer: Mapping[str, Any]) -> list[Block]:
    """Two tables a policy, the findings and the notes."""
    blocks: list[Block] = []
    for policy, own in answer["policies"].items():
        blocks.append(
            Table(f"{policy}: each forecaster alone, {answer['jobs']} jobs", own["arms"], ARM_COLUMNS)
        )
        blocks.append(Table(f"{policy}: ways of choosing", own["ways"], COLUMNS))
    for line in answer["findings"]:
        blocks.append(line)
    blocks.append(Notes(answer["notes"]))
    return blocks
