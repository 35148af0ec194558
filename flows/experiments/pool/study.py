"""``slackwater experiment pool``: E1, the pool of policies on the scenario grid, beside the baselines and hindsight (M7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flows.accuracy.error_cost import join_note
from flows.accuracy.units import cores
from flows.command import Answer
from flows.command.progress import progress, say
from flows.experiments.command import StudyOptions
from flows.experiments.material import Tapes, read_tapes
from flows.experiments.material_scenarios import make_scenarios
from flows.experiments.pool.ahap import (
    Variants,
    ahap_variants,
    claims,
    default_sentence,
    run_variants,
    variant_rows,
)
from flows.experiments.pool.answer import CELL, comparison_of, pool_answer
from flows.experiments.pool.ideas import idea_columns, idea_rows, ideas_answer
from flows.experiments.runner import PoolRun, run_pool
from flows.show.blocks import Block, Notes, Table
from optimization.policies.committed_horizon import Ahap
from optimization.policies.contract import Policy
from optimization.policies.pool import load_pool
from optimization.trials.scenarios import Grid, Scenario
from optimization.trials.tapes import Part

__all__ = ["PoolRun", "Size", "fast_pool", "pool_experiment", "pool_study", "run_pool", "size_of"]

TOP_ROWS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the experiment is: jobs a cell in the test and training part, jobs of each part in AHAP's table, the grid.

    ``planner`` names the forecaster, None the settings' own.
    """

    test: int
    train: int
    table: int
    grid: Grid = field(default_factory=Grid)
    planner: str | None = None


#: The forecaster of a quick look: the default one takes four times as long over it.
FAST_PLANNER = "markov"
FULL, FAST = Size(test=20, train=4, table=216), Size(test=3, train=1, table=27, planner=FAST_PLANNER)


def size_of(fast: bool) -> Size:
    """The size of the experiment, or of a quick look at it."""
    return FAST if fast else FULL


def fast_pool(policies: Sequence[Policy[Any]]) -> list[Policy[Any]]:
    """The pool for a quick look: all but most of AHAP, of which three windows and the two ends of commitment are kept."""
    return [
        policy
        for policy in policies
        if not isinstance(policy, Ahap)
        or (
            policy.omega in (1, 3, 5)
            and policy.commitment in (1, policy.omega)
            and policy.sigma in (0.5, 0.9)
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExperiment:
    """Everything that was run: the pool on both parts, and AHAP's variants on both."""

    tapes: Tapes
    size: Size
    policies: tuple[Policy[Any], ...]
    test: PoolRun
    train: PoolRun
    table_test: Variants
    table_train: Variants


def pool_experiment(
    tapes: Tapes, policies: Sequence[Policy[Any]], *, size: Size, seed: int, processes: int
) -> PoolExperiment:
    """Run E1 on the training and the test part of ``tapes``; the same seed gives the same numbers whatever ``processes``."""
    jobs: dict[Part, list[Scenario]] = {}
    sizes: tuple[tuple[Part, int], ...] = (("train", size.train), ("test", size.test))
    for part, per_cell in sizes:
        with progress(f"forecasts of the {part} part") as told:
            jobs[part] = make_scenarios(
                tapes,
                grid=size.grid,
                part=part,
                per_cell=per_cell,
                seed=seed,
                planner=size.planner,
                progress=told,
            )
    runs: dict[str, PoolRun] = {}
    tables: dict[str, Variants] = {}
    for part, scenarios in jobs.items():
        with progress(f"{len(policies)} policies on the {part} jobs") as told:
            runs[part] = run_pool(scenarios, policies, processes=processes, progress=told)
        with progress(f"AHAP's variants on the {part} jobs") as told:
            tables[part] = run_variants(
                scenarios[: size.table], ahap_variants(), processes=processes, progress=told
            )
    return PoolExperiment(
        tapes=tapes,
        size=size,
        policies=tuple(policies),
        test=runs["test"],
        train=runs["train"],
        table_test=tables["test"],
        table_train=tables["train"],
    )


def answer_of(done: PoolExperiment, *, data: str, seed: int) -> dict[str, Any]:
    """The JSON object of the experiment: `pool_answer` of the test jobs, the training part's choice, AHAP's table, the claims."""
    answer = pool_answer(done.test, data=data, seed=seed)
    rng = np.random.default_rng([seed, 3])
    chosen, test = comparison_of(done.train).best, comparison_of(done.test)
    place = test.of(chosen)
    rules = {
        part: variant_rows(table, rng=rng)
        for part, table in (("train", done.table_train), ("test", done.table_test))
    }
    return {
        **answer,
        "train": {
            "jobs": len(done.train.jobs),
            "best": chosen,
            "mean_utility_on_test": float(test.mean[place]),
            "headroom_captured_on_test": float(test.headroom[place]),
        },
        "published_ideas": ideas_answer(done.test, done.train, rng=np.random.default_rng([seed, 5])),
        "ahap": {"jobs": len(done.table_test.utility), "rows": rules["test"], "train_rows": rules["train"]},
        "claims": [
            *claims(done.test, done.policies, done.table_test, rng=rng),
            default_sentence(rules["train"], done.policies),
        ],
        "notes": [
            *done.tapes.notes,
            join_note(int(done.test.jobs["synthetic"].sum()), len(done.test.jobs)),
            *_cell_notes(done),
        ],
    }


def _cell_notes(done: PoolExperiment) -> list[str]:
    """Which cells of the grid no join could serve."""
    served = done.test.jobs[list(CELL)].drop_duplicates()
    missing = len(done.size.grid.cells) - len(served)
    if not missing:
        return []
    widest = max(tape.bound for tape in done.tapes.counts)
    return [
        f"{missing} of {len(done.size.grid.cells)} cells are left out: no count series sees more than {widest:.0f} instances"
    ]


def pool_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """E1 on a folder."""
    from flows.experiments.pool.sections import pool_page

    say(f"read {study.data}")
    tapes = read_tapes(study.data)
    policies = load_pool()
    done = pool_experiment(
        tapes,
        fast_pool(policies) if study.fast else policies,
        size=size_of(study.fast),
        seed=study.seed,
        processes=processes or (1 if study.fast else cores()),
    )
    value = answer_of(done, data=str(study.data), seed=study.seed)
    return Answer(
        title="Policies (E1)", value=value, blocks=pool_blocks(value), page=lambda: pool_page(value)
    )


def pool_blocks(answer: dict[str, Any]) -> list[Block]:
    """The tables of the experiment for a person."""
    blocks: list[Block] = []
    low, high = answer["hindsight"]["low"], answer["hindsight"]["high"]
    rows = [
        {
            "policy": name,
            "utility": row["mean_utility"],
            "interval": "{:.4f} .. {:.4f}".format(*row["interval"]),
            "headroom": row["headroom_captured"],
            "cost": row["mean_cost_usd"],
            "on_time": row["on_time"],
            **{f"over {base}": gain for base, gain in row["relative_gain"].items()},
        }
        for name, row in answer["policies"].items()
    ]
    shown = rows[:TOP_ROWS] + [row for row in rows[TOP_ROWS:] if row["policy"] in rows_of_baselines(answer)]
    columns = {
        "policy": "policy", "utility": "utility (OD-only cost = 1)", "interval": "95 %", "headroom": "headroom captured",
        "cost": "cost $", "on_time": "on time",
    }  # fmt: skip
    gains = {f"over {base}": f"gain over {base}" for base in rows_of_baselines(answer)}
    blocks.append(
        Table(
            f"{len(rows)} policies on {answer['jobs']} jobs (seed {answer['seed']})",
            shown,
            {**columns, **gains},
        )
    )
    blocks.append(
        f"hindsight {low:.4f} to {high:.4f}; best baseline {answer['baseline']}; best policy {answer['best']}"
        f"{sharpened_words(answer)}"
    )
    train, chosen = answer["train"], answer["selection"]
    blocks.append(
        f"chosen on the training half: {train['best']}, utility {train['mean_utility_on_test']:.4f}, "
        f"headroom captured {train['headroom_captured_on_test']:.3f}"
    )
    blocks.append(
        f"selection by {chosen['learner']}: sampled {chosen['sampled_utility']:.4f}, leader {chosen['leader_utility']:.4f}, "
        f"regret {chosen['regret']:.2f} under the bound {chosen['bound']:.2f}"
    )
    blocks += _cells_blocks(answer)
    blocks.append(Notes(answer["claims"]))
    blocks.append(Notes(answer["notes"]))
    return blocks


def sharpened_words(answer: dict[str, Any]) -> str:
    """How much is left over the strongest rule of thumb, which is no published baseline."""
    found = answer["sharpened"]
    if found is None:
        return ""
    return (
        f"; over {found['baseline']} ({found['mean_utility']:.4f}, ours, no baseline) the best policy captured "
        f"{found['headroom_captured']:.3f} of the headroom"
    )


def rows_of_baselines(answer: dict[str, Any]) -> list[str]:
    """The baselines that gains are given over."""
    first = next(iter(answer["policies"].values()))
    return list(first["relative_gain"])


def _cells_blocks(answer: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    blocks.append(Table(
        "Cells by deadline, load and overhead",
        answer["cells_by_deadline_load_overhead"],
        {
            "deadline_slots": "deadline (slots)", "load": "load", "mu_up": "mu up", "best": "best", "baseline": "best baseline",
            "headroom_captured": "headroom captured", "default_headroom_captured": f"by {answer['best']}",
        },
    ))  # fmt: skip
    blocks.append(
        Table(
            "AHAP's variants (mean over windows)",
            answer["ahap"]["rows"],
            {
                "end_rule": "end rule",
                "commit": "commitment",
                "forecasts": "forecasts",
                "mean_utility": "utility",
            },
        )
    )
    blocks += _ideas_blocks(answer)
    for row in answer["largest_gain"]["found"]:
        where = ", ".join(f"{key} {value}" for key, value in row["cell"].items())
        blocks.append(
            f"largest gain over {row['baseline']}: {100 * row['gain']:.1f} % by {row['policy']} at {where}"
        )
    blocks.append(
        f"(paper A's only published figure: up to {100 * answer['largest_gain']['paper_a']:.1f} % over its baselines)"
    )
    return blocks


def _ideas_blocks(answer: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    found = answer["published_ideas"]
    if found["rows"]:
        blocks.append(
            Table("Other published ideas (M10)", idea_rows(answer), idea_columns(found["references"]))
        )
    return blocks
