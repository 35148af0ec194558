"""``slackwater experiment predictors``: choose among forecasters of unknown accuracy (M10, M5.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.flows.accuracy.units import cores
from slackwater.flows.command import Answer, progress, say
from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Figure, Fold, Notes, Section, numbers
from slackwater.flows.show.charts import Axis, dots
from slackwater.forecasting.accuracy.intervals import EVEN, TOO_FEW, interval_words, verdict
from slackwater.optimization.selection.contract import normalise, utility_bounds
from slackwater.optimization.selection.learners import LEARNERS
from slackwater.studies.experiments.error import NONE, PERFECT, POLICIES, JobForecasts, replay_models
from slackwater.studies.experiments.material import make_scenarios, read_tapes
from slackwater.studies.experiments.study import StudyOptions, join_banner, join_note, quick_look
from slackwater.studies.learners import BANDITS
from slackwater.studies.rounds import Spans, follow_least_loss, play_delayed, play_delayed_bandit
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import Grid, Scenario, blocks_of
from slackwater.warehouse.errors import SettingsError

#: Forecasters to choose from, and those used with ``--fast``.
FORECASTERS = ("last_value", "arima", "lightgbm", "markov", "smoothing", "combined")
FAST_FORECASTERS = ("last_value", "markov", "smoothing")
#: Jobs for each cell of the grid.
JOBS_A_CELL, FAST_JOBS_A_CELL = 4, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRounds:
    """Jobs in the order of their starts, replayed under every forecaster, without forecasts, and under perfect forecasts.

    ``arms``: the forecasters and `NONE`. ``raw`` (jobs, arms, policies): utilities in units of on-demand-only cost; ``shares``:
    the same in the bounds of M5.2; ``perfect`` (jobs, policies). ``losses`` (jobs, arms): mean number per slot of instances
    forecast but absent, or present but not forecast; NaN for `NONE`. ``spans`` are in slots since the epoch. ``markets``: the
    availability series. ``blocks`` (jobs,): blocks for intervals.
    """

    arms: tuple[str, ...]
    policies: tuple[str, ...]
    raw: np.ndarray
    shares: np.ndarray
    perfect: np.ndarray
    losses: np.ndarray
    spans: Spans
    markets: tuple[str, ...]
    synthetic: int
    blocks: np.ndarray


def predictors_study(study: StudyOptions, *, models: Sequence[str]) -> Answer:
    """Replay a folder's test jobs under every forecaster, and choose among the forecasters job after job."""
    fast = study.fast
    names = tuple(models) or (FAST_FORECASTERS if fast else FORECASTERS)
    rounds = replay_forecasters(
        study.data, names, seed=study.seed, per_cell=FAST_JOBS_A_CELL if fast else JOBS_A_CELL
    )
    return predictors_report(predictors_answer(rounds, data=str(study.data), seed=study.seed, fast=fast))


def replay_forecasters(
    data: Path, models: Sequence[str], *, seed: int, per_cell: int, grid: Grid | None = None
) -> PredictorRounds:
    """Replay the test jobs of a folder under each of ``models``; all models get the same jobs.

    Raises `SettingsError` for fewer than two models or duplicates, and the errors of `read_tapes` and `make_scenarios`.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise SettingsError(f"forecasters {', '.join(models) or 'none'}", expected="at least two, each once")
    tapes = read_tapes(data)
    for note in tapes.notes:
        say(note)
    issued: dict[str, list[Scenario]] = {}
    for name in models:
        with progress(f"forecasts of {name}", lines=True) as tell:
            issued[name] = make_scenarios(
                tapes, grid=grid or Grid(), part="test", per_cell=per_cell, seed=seed, planner=name, progress=tell
            )  # fmt: skip
    jobs = issued[models[0]]
    cases = [
        JobForecasts(
            scenario=replace(one, forecasts=None),
            forecasts=tuple(issued[name][k].forecasts or () for name in models),
        )
        for k, one in enumerate(jobs)
    ]
    with progress("jobs", lines=True) as tell:
        rows = list(fan_out(replay_models, cases, POLICIES, processes=cores(), progress=tell))
    return rounds_of_results(np.array(rows), jobs, models)


def rounds_of_results(
    results: np.ndarray, jobs: Sequence[Scenario], models: Sequence[str]
) -> PredictorRounds:
    """Return ``results`` of `replay_models`, (jobs, models + perfect + none, policies, 2), as rounds in the order of the starts."""
    step = jobs[0].draw.counts.step
    starts = np.array([float(one.at.value // step.value) for one in jobs])
    known = starts + np.array([one.job.late_limit for one in jobs])
    order = np.argsort(starts, kind="stable")
    at = [*range(len(models)), len(models) + 1]
    raw = results[..., 0]
    bounds = [
        utility_bounds(one.job, on_demand_usd=one.window.on_demand_usd, slot_hours=one.window.slot_hours)
        for one in jobs
    ]
    shares = np.array(
        [normalise(row[at] * one.unit, two) for row, one, two in zip(raw, jobs, bounds, strict=True)]
    )
    return PredictorRounds(
        arms=(*models, NONE),
        policies=POLICIES,
        raw=raw[order][:, at],
        shares=shares[order],
        perfect=raw[order][:, len(models)],
        losses=results[order][:, at, 0, 1],
        spans=Spans(start=starts[order], known=known[order]),
        markets=tuple(jobs[int(k)].draw.counts.label for k in order),
        synthetic=sum(one.draw.synthetic for one in jobs),
        blocks=blocks_of([jobs[int(k)] for k in order]),
    )


def notes_of(rounds: PredictorRounds) -> list[str]:
    """Return notes on the jobs that are needed to interpret the figures."""
    return [
        join_note(rounds.synthetic, len(rounds.markets)),
        "Jobs are met in the order of their starts; what a job was worth is learned when it can last no longer, so that jobs that "
        "overlap in time teach nothing to each other. Jobs of one market and day share slots: intervals draw them together.",
        f"{PERFECT} forecasts and {NONE} (the same policy planning the present slot alone, which reads no forecast) stand beside "
        f"the forecasters; {NONE} can be chosen like one of them.",
    ]


# Results of choosing among forecasters: every method on the same jobs, and sentences on the results (M10).

#: Names of the learners with full information and of the bandits; number of seeds of the bandits' draws.
CHOSEN_LEARNERS, CHOSEN_BANDITS = ("blend", "adahedge"), ("exp3 x16", "ar-ucb pooled")
SEEDS = 8
#: Name of the method that chooses by accuracy.
LEAST_ERROR = "least error so far"
#: Default forecaster; without it, the last requested forecaster is the default.
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
    """Return the object of ``experiment predictors --json``; utilities in units of each job's on-demand-only cost."""
    default = DEFAULT if DEFAULT in rounds.arms else rounds.arms[-2]
    answer: dict[str, Any] = {
        "data": data,
        "seed": seed,
        "fast": fast,
        "jobs": len(rounds.markets),
        "blocks": len(set(rounds.blocks)),
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
    """Return, for a policy, every arm and every method compared with the default forecaster (paired, over blocks)."""
    raw, shares = rounds.raw[:, :, place], rounds.shares[:, :, place]
    base = raw[:, rounds.arms.index(default)]
    ways = _ways(rounds, raw, shares, seed)
    perfect = rounds.perfect[:, place]
    earned = np.column_stack([raw, perfect, *(chances for _, _, chances in ways)])
    ahead = earned - base[:, None]
    names = [way for way, _, _ in ways]
    draws = resampled(ahead, blocks=rounds.blocks, rng=np.random.default_rng([seed, 41]))
    low, high = draws.interval()
    by_error, learned = (len(rounds.arms) + 1 + names.index(way) for way in (LEAST_ERROR, CHOSEN_LEARNERS[0]))
    less_low, less_high = draws.interval(draws.means[:, by_error] - draws.means[:, learned])
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
        "accuracy_less_learned": {
            "difference": float(mean[by_error] - mean[learned]),
            "interval": [float(less_low), float(less_high)],
        },
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


#: Function from indices of jobs and their spans to the probabilities (jobs, arms) of choosing each arm.
Choose = Callable[[np.ndarray, Spans], np.ndarray]


def _by_learner(name: str, arms: tuple[str, ...], shares: np.ndarray) -> Choose:
    return lambda at, spans: play_delayed(LEARNERS[name], arms, shares[at], spans).chances


def _by_bandit(name: str, arms: tuple[str, ...], shares: np.ndarray, seed: int) -> Choose:
    """Return the choice with mean probabilities over several seeds of the draws."""

    def choose(at: np.ndarray, spans: Spans) -> np.ndarray:
        rngs = [np.random.default_rng([s, 43]) for s in range(seed, seed + SEEDS)]
        runs = [play_delayed_bandit(BANDITS[name], arms, shares[at], spans, rng=rng) for rng in rngs]
        return np.asarray(np.mean([run.chances for run in runs], axis=0))

    return choose


def _ways(
    rounds: PredictorRounds, raw: np.ndarray, shares: np.ndarray, seed: int
) -> list[tuple[str, str, np.ndarray]]:
    """Return (name, kind, utility of each job) of every method; utilities of learners are means under their weights."""
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
        LEAST_ERROR,
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
    """Return the probabilities (jobs, arms) of a method that starts again in each market."""
    chances = np.zeros((len(rounds.markets), len(rounds.arms)))
    markets = np.array(rounds.markets, dtype=object)
    for market in sorted(set(rounds.markets)):
        at = np.flatnonzero(markets == market)
        spans = Spans(start=rounds.spans.start[at], known=rounds.spans.known[at])
        chances[at] = choose(at, spans)
    return chances


def _best_in_markets(rounds: PredictorRounds, raw: np.ndarray) -> dict[str, int]:
    """Return the number of markets in which each arm has the largest mean."""
    markets = np.array(rounds.markets, dtype=object)
    wins = dict.fromkeys(rounds.arms, 0)
    for market in sorted(set(rounds.markets)):
        wins[rounds.arms[int(raw[markets == market].mean(axis=0).argmax())]] += 1
    return wins


def _mean_known(values: np.ndarray) -> float | None:
    seen = values[np.isfinite(values)]
    return float(seen.mean()) if seen.size else None


def findings(answer: Mapping[str, Any]) -> list[str]:
    """Return sentences computed from the results, favourable or not."""
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
    accuracy, blend = ways[LEAST_ERROR], ways[CHOSEN_LEARNERS[0]]
    found = verdict(*own["accuracy_less_learned"]["interval"], above="better than", below="worse than")
    apart = ways["best in hindsight, each market apart"]["mean_utility"]
    perfect = own["perfect"]["mean_utility"]
    return [
        f"{policy}: always {default} makes {_utility(own, default):.4f}; in hindsight {arm['arm']} is the best single choice "
        f"({arm['mean_utility']:.4f}), and the best for each market apart makes {apart:.4f}; {PERFECT} forecasts {perfect:.4f}.",
        f"{policy}: the best way of choosing without hindsight is {best['way']} ({best['kind']}): {_points(best)} against always "
        f"{default}.",
        f"{policy}: {CHOSEN_LEARNERS[0]} by utility {_points(blend)}, the best bandit ({bandit['way']}) {_points(bandit)}, the "
        f"least error so far {_points(accuracy)}: choosing by accuracy is "
        + {EVEN: f"{EVEN} with", TOO_FEW: "on too few blocks of jobs to compare with"}.get(found, found)
        + " choosing by what the plans earned.",
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
    """Return text such as ``+0.12 points (-0.10 to +0.34: even)``, in hundredths of on-demand-only cost."""
    return f"{100 * row['ahead']:+.2f} points ({interval_words(100 * row['ahead_low'], 100 * row['ahead_high'], '+.2f')})"


def predictors_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: findings, and for each policy the methods of choosing and the single forecasters."""
    sections = [Section("Findings", [Notes(answer["findings"])], "findings")]
    for place, (policy, own) in enumerate(answer["policies"].items()):
        sections += [
            Section(
                f"Ways of choosing under {policy}",
                [
                    f"Utility beside always planning with {answer['default']}, in hundredths of a job's on-demand-only cost, with "
                    "95 % intervals (paired, bootstrap over blocks of market and day). Learners by utility see what planning with "
                    "every forecaster earned; bandits only what the one they chose earned; the least error so far looks at "
                    "accuracy alone.",
                    _ahead_figure(own),
                    Fold("Numbers", [numbers(COLUMNS, own["ways"])], printed=True),
                ],
                f"ways-{place}",
            ),
            Section(
                f"Each forecaster alone under {policy}", [numbers(ARM_COLUMNS, own["arms"])], f"arms-{place}"
            ),
        ]
    return Answer(
        title="Choosing among forecasters of unknown accuracy",
        about=(
            f"{answer['jobs']} jobs in {answer['blocks']} blocks on {answer['markets']} count series of the "
            f"test part of {answer['data']}, seed "
            f"{answer['seed']}{quick_look(answer)}. Utilities are in units of each job's on-demand-only cost."
        ),
        value=answer,
        banner=join_banner(answer),
        blocks=sections,
        notes=answer["notes"],
    )


def _ahead_figure(own: Mapping[str, Any]) -> Figure:
    """Return a chart with a row for each forecaster and method: the difference from the default, with its interval."""
    rows = [
        {
            "label": row.get("arm", row.get("way")), "kind": "forecaster alone" if "arm" in row else "way of choosing",
            "value": 100 * row["ahead"], "low": 100 * row["ahead_low"], "high": 100 * row["ahead_high"],
        }
        for row in (*own["arms"], *own["ways"])
    ]  # fmt: skip
    axis = Axis(title="ahead of the default, hundredths of on-demand-only cost")
    kinds = {"way of choosing": "series1", "forecaster alone": "series2"}
    spec = dots(rows, [row["label"] for row in rows], x=axis, kinds=kinds, rule=0.0, spans=True)
    return Figure(specs=[spec], label="Ways of choosing beside the default forecaster", width=720)
