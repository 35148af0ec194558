"""The report of E3 as a page: findings, the choice of the learner, and one set of drawings for each order of the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flows.experiments.selection.answer import (
    COLUMNS,
    SWITCH_COLUMNS,
    SWITCHES,
    TRAINING_COLUMNS,
    learner_rows,
    shown_weights,
)
from flows.experiments.selection.bandits import bandit_section
from flows.show.blocks import Page, Section, figures, study, study_page

if TYPE_CHECKING:
    from flows.experiments.selection.study import Played, SelectionResult
from flows.experiments.selection.sections import draw_regrets, draw_shifting, draw_weights_through

#: Policies drawn as lines of their own.
TOP_WEIGHTS = 6
#: What the first jobs of an order with a switch have in common.
BEFORE = {
    "regime_switch": "those whose markets offer most spot for the work to do",
    "hostile_switch": "those on which the policy that is best over all jobs beats a certain other",
}
SOLID_AND_DASHED = (
    "by job (solid), and its proven bound (dashed; none is drawn where none is proven). The axis is linear below 0.1 and "
    "logarithmic above."
)


def selection_page(result: SelectionResult, answer: dict[str, Any]) -> Page:
    """The page of E3; the same result gives the same page."""
    look = "; a quick look, not a result" if answer["fast"] else ""
    sections = [
        study(anchor="findings", heading="Findings", sentences=answer["findings"]),
        study(
            anchor="training",
            heading=f"The learner chosen: {answer['learner']}",
            sentences=[
                "Mean utility that each learner would have realised on jobs of the training part, in three orders of them. Nobody "
                "knows beforehand in which order jobs will come, so the mean decides."
            ],
            table=figures(columns=TRAINING_COLUMNS, rows=answer["training"]),
        ),
    ]
    for name, title in {"random_order": "random order", **SWITCHES}.items():
        sections += _order_sections(name, title, result.played[name], answer, result.chosen)
    return study_page(
        title="Learning which policy to trust",
        about=(
            f"{answer['jobs']} jobs of the test part of {answer['data']}, {answer['policies']} policies, "
            f"seed {answer['seed']}{look}. "
            "Utilities are in units of what the job costs on on-demand alone; regrets are sums of utilities normalised to the "
            "fixed bounds of each job."
        ),
        sections=[*sections, bandit_section(result.bandits, answer["bandits"]), _bounds_section(answer)],
        synthetic="Where a job joins one market's counts with another's prices, no such market was measured.",
    )


def _order_sections(
    name: str, title: str, played: Played, answer: dict[str, Any], chosen: str
) -> Iterator[Section]:
    """Table, regrets and weights of one order of the jobs."""
    own, cut = answer[name], played.cuts[0] if played.cuts else None
    against = "the best single policy" if cut is None else "the best sequence of policies with one change"
    yield study(
        anchor=name,
        heading=f"Jobs in {title}" if cut is None else f"Jobs through a {title}",
        sentences=_about_order(name, own),
        table=figures(columns=COLUMNS if cut is None else SWITCH_COLUMNS, rows=learner_rows(own)),
    )
    if cut is not None:
        yield study(
            anchor=f"{name}-shifting",
            heading=f"Regret through the {title}",
            sentences=[f"Against {against} so far, all learners."],
            figure=draw_shifting(played.summaries, cut, name=f"{name}-shifting-drawing"),
        )
    yield study(
        anchor=f"{name}-regret",
        heading=f"Regret against its bound, {title}",
        sentences=[f"Cumulative regret against {against} so far, {SOLID_AND_DASHED}"],
        figure=draw_regrets(played.summaries, shifting=cut is not None, name=f"{name}-regret-drawing"),
    )
    summary = played.summaries[chosen]
    shown = [int(j) for j in shown_weights(summary.weights)[:TOP_WEIGHTS]]
    yield study(
        anchor=f"{name}-weights",
        heading=f"Weights of {chosen}, {title}",
        sentences=[
            "Weight after each job; the grey area is all other policies together.",
            f"The leader changed {own['leader_changes']['number']} times; the last changes:"
            if own["leader_changes"]["last"]
            else "The leader never changed.",
            *[f"{sentence}." for sentence in own["leader_changes"]["last"]],
        ],
        figure=draw_weights_through(summary, shown, played.cuts, name=f"{name}-weights-drawing"),
    )


def _about_order(name: str, own: dict[str, Any]) -> list[str]:
    if not own["switch_after"]:
        return [f"The best fixed policy is {own['best_fixed']}."]
    before, after = own["stretches"]
    return [
        f"The first {before['jobs']} jobs are {BEFORE[name]}, the other {after['jobs']} come after. The best fixed policy is "
        f"{before['best_fixed']} before the switch and {after['best_fixed']} after it. The learner is not told."
    ]


def _bounds_section(answer: dict[str, Any]) -> Section:
    shares = answer["bounds"]["settled_share_of_best_fixed"]
    return study(
        anchor="bounds",
        heading="What the fixed bounds cost",
        sentences=[
            "Share of the best fixed policy's utility realised after settling, when utilities are normalised to the bounds of M5.2 "
            "(the value of the job; N_max on-demand up to the last slot in which it is worth anything) and to the tighter ones, "
            "which no policy can leave that never pays more than on-demand."
        ],
        table=figures(
            columns={"learner": "learner", "wide": "bounds of M5.2", "attainable": "attainable bounds"},
            rows=[{"learner": name, **both} for name, both in shares.items()],
        ),
    )
