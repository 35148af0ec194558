"""What ``slackwater experiment renting`` does: play, print, write the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.command import Answer
from flows.command.progress import progress
from flows.experiments.command import StudyOptions
from flows.experiments.renting.sections import draw_renters
from flows.experiments.renting.study import run_experiment
from flows.show.blocks import Notes, Page, Table, figures, study, study_page
from flows.show.drawing import house_style

COLUMNS = {
    "renter": "renter", "spend": "spend an hour", "loss": "delay an hour", "loss_less_list": "less list price",
    "from": "95 % from", "to": "to", "response_hours": "response, h", "late": "late", "spot_share": "on spot",
    "gpus": "GPUs", "plan_error": "off plan, by half day", "joins_better_than_list": "joins better",
}  # fmt: skip
ARMS = {"even": "an even budget", "by day": "a budget of 1.4 times the average by day and 0.6 times at night"}


def renting_study(study: StudyOptions) -> Answer:
    """A stream of jobs on a budget, on every market of a folder."""
    with progress("markets") as tell:
        value = run_experiment(study.data, seed=study.seed, fast=study.fast, tell=tell)
    value["claims"] = claims(value)
    if study.html is not None:
        value["html"] = str(study.html)
    tables = [Table(f"Renting with {words}", rows_of_arm(value, arm), COLUMNS) for arm, words in ARMS.items()]
    return Answer(
        title="Renting on real markets",
        value=value,
        blocks=[*tables, Notes(value["claims"])],
        page=lambda: renting_page(value),
    )


def rows_of_arm(answer: Mapping[str, Any], arm: str) -> list[dict[str, Any]]:
    """The rows of one arm with the ends of the interval of the paired difference."""
    return [
        {**row, "from": row["loss_less_list_interval"][0], "to": row["loss_less_list_interval"][1]}
        for row in answer["arms"][arm]
    ]


def claims(answer: Mapping[str, Any]) -> list[str]:
    """What the figures say, in words, computed from them."""
    even = {row["renter"]: row for row in answer["arms"]["even"]}
    day = {row["renter"]: row for row in answer["arms"]["by day"]}
    budget, joins = answer["budget"], answer["joins"]
    lines = [
        f"A budget of {budget:g} on-demand GPUs an hour for a load of {answer['load_gpus']:g}. {answer['synthetic_joins']} of "
        f"{joins} markets are synthetic joins of counts with the prices of another market."
    ]
    same, listed = even["same widths on spot"], even["list price"]
    lines.append(
        f"The widths of list price put on spot cost {1 - same['spend'] / listed['spend']:.0%} less, and jobs take "
        f"{same['response_hours'] / listed['response_hours'] - 1:+.1%} longer for restarts."
    )
    for name in ("effective price", "dual price"):
        row = even[name]
        low, high = row["loss_less_list_interval"]
        lines.append(
            f"By {name}: cost of delay {row['loss'] / listed['loss'] - 1:+.0%} against list price "
            f"(difference {row['loss_less_list']:.3f}, 95 % {low:.3f} to {high:.3f}), response "
            f"{row['response_hours'] / listed['response_hours'] - 1:+.0%}, late {row['late']:.1%} instead of "
            f"{listed['late']:.1%}, at a spend of {row['spend'] / budget:.1%} of the budget; better in "
            f"{row['joins_better_than_list']} of {joins} markets."
        )
    best = even["hindsight"]
    lines.append(
        f"The best fixed multiplier in hindsight: cost of delay {best['loss']:.3f} at {best['spend'] / budget:.1%} of the "
        f"budget, the dual price {even['dual price']['loss']:.3f}."
    )
    plan, average = day["spending plan"], day["dual price"]
    lines.append(
        f"Where the budget is larger by day, the spending plan is off its half days by {plan['plan_error']:.0%} of the average, "
        f"the average budget's dual price by {average['plan_error']:.0%}; the plan costs delay: {plan['loss']:.3f} against "
        f"{average['loss']:.3f}."
    )
    return lines


def renting_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer."""
    with house_style():
        sections = [study(anchor="answer", heading="In short", sentences=answer["claims"])]
        for arm, words in ARMS.items():
            rows = rows_of_arm(answer, arm)
            sections.append(
                study(
                    anchor=arm.replace(" ", "-"),
                    heading={"even": "An even budget", "by day": "More by day"}[arm],
                    sentences=[
                        f"With {words}.",
                        "Money is in on-demand instance-hours. Each dot is a mean over markets; bars are 95 % intervals of the "
                        "mean difference from list price, by a bootstrap over markets on which all renters had the same jobs.",
                    ],
                    figure=draw_renters(rows, budget=answer["budget"], name=arm.replace(" ", "-")),
                    table=figures(columns=COLUMNS, rows=rows, digits=3),
                )
            )
        return study_page(
            title="Renting on real markets",
            about=(
                f"{answer['joins']} markets of {answer['data']}, {answer['streams_per_join']} streams of jobs on each, seed "
                f"{answer['seed']}. Widths are chosen from what was known in the slot of the arrival."
            ),
            synthetic=(
                f"In {answer['synthetic_joins']} of {answer['joins']} markets counts are joined with another market's prices."
            ),
            sections=sections,
            notes=answer["markets"],
        )
