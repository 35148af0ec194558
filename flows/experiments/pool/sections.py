"""The report of E1: utility by policy, gains, headroom by cell, AHAP's variants, and what of paper A holds here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flows.experiments.drawings import Dots, draw_gains, draw_heat, draw_intervals
from flows.experiments.pool.ideas import idea_columns, idea_rows
from flows.experiments.runner import join_banner
from flows.show.blocks import Page, Section, figures, study, study_page
from flows.show.drawing import house_style

TOP = 15


def pool_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer of ``experiment pool``."""
    with house_style():
        return study_page(
            title="Policies on the scenario grid (E1)",
            about=(
                f"{answer['jobs']} jobs drawn with seed {answer['seed']} from the later half of every series of {answer['data']}. "
                "Utilities are in units of each job's on-demand-only cost; intervals are 95 %, by a paired bootstrap over jobs."
            ),
            synthetic=join_banner(answer),
            sections=[
                _policies(answer),
                _gains(answer),
                _cells(answer),
                *_ideas(answer),
                _ahap(answer),
                _claims(answer),
                _selection(answer),
            ],
            notes=answer["notes"],
        )


def _shown(answer: Mapping[str, Any]) -> list[str]:
    """The best policies, and the baselines wherever they stand."""
    names = list(answer["policies"])
    bases = _baselines(answer)
    return names[:TOP] + [name for name in names[TOP:] if name in bases]


def _sharpened(answer: Mapping[str, Any]) -> str:
    found = answer["sharpened"]
    if found is None:
        return ""
    return (
        f" ({found['baseline']}, a sharpened greedy rule of ours, reaches {found['mean_utility']:.4f}, and over it "
        f"{found['headroom_captured']:.0%} of the headroom was captured)"
    )


def _baselines(answer: Mapping[str, Any]) -> list[str]:
    return list(next(iter(answer["policies"].values()))["relative_gain"])


def _policies(answer: Mapping[str, Any]) -> Section:
    names, rows = _shown(answer), answer["policies"]
    best, base, hindsight = answer["best"], answer["baseline"], answer["hindsight"]
    level = rows[base]["mean_utility"]
    dots = Dots(
        labels=names,
        mean=np.array([rows[n]["mean_utility"] for n in names]),
        low=np.array([level + rows[n]["ahead_of_baseline_interval"][0] for n in names]),
        high=np.array([level + rows[n]["ahead_of_baseline_interval"][1] for n in names]),
        baseline=np.array([n in _baselines(answer) for n in names]),
    )
    train, room = answer["train"], rows[best]["headroom_interval"]
    return study(
        anchor="policies",
        heading="Utility by policy",
        sentences=[
            f"Best is {best} with {rows[best]['mean_utility']:.4f}; "
            f"the best baseline is {base} with {level:.4f}{_sharpened(answer)}; "
            f"hindsight is {hindsight['low']:.4f} to {hindsight['high']:.4f} (dashed line).",
            f"Bars are 95 % intervals of the paired difference from {base}: jobs differ far more than policies do on one job.",
            f"{best} captured {rows[best]['headroom_captured']:.3f} of the headroom [{room[0]:.3f}, {room[1]:.3f}].",
            f"Chosen on {train['jobs']} jobs of the earlier half: {train['best']}, which captured "
            f"{train['headroom_captured_on_test']:.3f} of the headroom here.",
        ],
        figure=draw_intervals(dots, bound=answer["hindsight"]["high"], name="utilities"),
        table=figures(
            columns={
                "policy": "Policy", "mean_utility": "Mean utility", "from": "95 % from", "to": "to",
                "headroom_captured": "Headroom captured", "mean_cost_usd": "Mean cost, USD", "on_time": "On time", "late": "Late",
            },
            rows=[{**row, "policy": name, "from": row["interval"][0], "to": row["interval"][1]} for name, row in rows.items()],
        ),
        unfold=f"All {len(rows)} policies",
    )  # fmt: skip


def _gains(answer: Mapping[str, Any]) -> Section:
    names, rows = [name for name in _shown(answer) if name != "OD-only"], answer["policies"]
    gains = {
        base: np.array([rows[name]["relative_gain"][base] for name in names]) for base in _baselines(answer)
    }
    largest = answer["largest_gain"]
    sentences = [
        f"Largest gain over {row['baseline']} in any cell: {100 * row['gain']:.1f} % by {row['policy']} at "
        + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["cell"].items())
        + "."
        for row in largest["found"]
    ]
    sentences.append(
        f"Paper A's only published figure is up to {100 * largest['paper_a']:.1f} % over its baselines."
    )
    return study(
        anchor="gains",
        heading="Gain over each baseline",
        sentences=sentences,
        figure=draw_gains(names, gains, name="gains"),
    )


def _cells(answer: Mapping[str, Any]) -> Section:
    cells = answer["cells"]
    rows = list(dict.fromkeys((c["deadline_slots"], c["load"]) for c in cells))
    columns = list(dict.fromkeys((c["mu_up"], c["n_max"]) for c in cells))
    table = np.full((len(rows), len(columns)), np.nan)
    for cell in cells:
        at = rows.index((cell["deadline_slots"], cell["load"])), columns.index((cell["mu_up"], cell["n_max"]))
        value = cell["default_headroom_captured"]
        table[at] = np.nan if value is None else value
    coarse = answer["cells_by_deadline_load_overhead"]
    won = sum(1 for c in coarse if (c["default_headroom_captured"] or 0) > 0)
    return study(
        anchor="cells",
        heading="Headroom captured by cell",
        sentences=[
            f"{answer['best']} against the best baseline of each cell. It is ahead in {won} of {len(coarse)} cells by deadline, "
            "load and overhead. An en dash: the baseline is as good as hindsight.",
        ],
        figure=draw_heat(
            table,
            [f"d {d}, load {load:g}" for d, load in rows],
            [f"mu {mu:g}, N {n}" for mu, n in columns],
            name="cells",
        ),
        table=figures(
            columns={
                "deadline_slots": "Deadline, slots", "load": "Load", "mu_up": "mu up", "jobs": "Jobs", "best": "Best",
                "baseline": "Best baseline", "best_utility": "Utility", "baseline_utility": "Baseline", "hindsight": "Hindsight",
                "headroom_captured": "Headroom captured", "default_headroom_captured": f"by {answer['best']}",
            },
            rows=coarse,
            digits=3,
        ),
    )  # fmt: skip


def _ideas(answer: Mapping[str, Any]) -> list[Section]:
    """One sentence a published idea, computed from its differences; none where the pool has no such policy."""
    found = answer["published_ideas"]
    if not found["rows"]:
        return []
    beside = ", ".join(found["references"])
    return [
        study(
            anchor="ideas",
            heading="Published ideas",
            sentences=[
                f"Each family after another published idea stands for its member that was best on the training half, beside "
                f"{beside}, chosen likewise. Differences are means over jobs in units of the on-demand-only cost with 95 % "
                "intervals of a paired bootstrap; a cell (deadline, load, overhead) is won or lost where its own interval "
                "leaves 0 out.",
                *[row["sentence"] for row in found["rows"]],
            ],
            table=figures(columns=idea_columns(found["references"]), rows=idea_rows(answer)),
            unfold="The differences as a table",
        )
    ]


def _ahap(answer: Mapping[str, Any]) -> Section:
    found = answer["ahap"]
    trained = {(r["end_rule"], r["commit"], r["forecasts"]): r["mean_utility"] for r in found["train_rows"]}
    rows = [
        {
            **row,
            "from": row["interval"][0],
            "to": row["interval"][1],
            "train": trained[row["end_rule"], row["commit"], row["forecasts"]],
        }
        for row in found["rows"]
    ]
    return study(
        anchor="ahap",
        heading="AHAP: end rules, commitment, forecasts",
        sentences=[f"Means over windows on {found['jobs']} jobs; perfect forecasts are a bound, no policy has them."],
        table=figures(
            columns={
                "end_rule": "End rule", "commit": "Commitment", "forecasts": "Forecasts", "mean_utility": "Mean utility",
                "from": "95 % from", "to": "to", "train": "On the training half",
            },
            rows=rows,
        ),
    )  # fmt: skip


def _claims(answer: Mapping[str, Any]) -> Section:
    return study(anchor="claims", heading="What holds on this data", sentences=answer["claims"])


def _selection(answer: Mapping[str, Any]) -> Section:
    s = answer["selection"]
    return study(
        anchor="selection",
        heading="Selection",
        sentences=[
            f"The default selector ({s['learner']}) over the same jobs: {s['sampled_utility']:.4f} when a policy is drawn by "
            f"weight, {s['leader_utility']:.4f} when the leader is followed; the best fixed policy is {s['best_fixed']} with "
            f"{s['best_fixed_utility']:.4f}. Regret {s['regret']:.2f}, bound {s['bound']:.2f} (normalised utilities)."
        ],
    )
