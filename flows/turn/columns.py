"""What is shown of a decision and of the leaderboard: names, units, formats and words of their columns."""

from __future__ import annotations

from flows.show.blocks import Column
from flows.show.formats import fixed, percent, usd

DECISION_COLUMNS: dict[str, Column | str] = {
    "job": "job",
    "market": "market",
    "slot": Column(heading="slot", unit="UTC", words="When the instances are held; one slot long."),
    "on_demand": Column(heading="on-demand", words="On-demand instances to hold in the slot."),
    "spot": Column(heading="spot", words="Spot instances to hold in the slot."),
    "expected_cost_usd": Column(
        heading="expected cost",
        unit="$",
        format=usd,
        words="Of the whole job, what is paid already included.",
    ),
    "expected_finish": Column(heading="expected finish", unit="UTC"),
    "deadline": Column(heading="deadline", unit="UTC"),
    "late_probability": Column(
        heading="P(late)", format=percent, words="Share of sampled futures in which the deadline is missed."
    ),
    "policy": "policy",
    "reason": "why",
}
BOARD_COLUMNS: dict[str, Column | str] = {
    "policy": "policy",
    "jobs": Column(heading="jobs", words="Ended jobs it was replayed on."),
    "mean_utility": Column(
        heading="utility",
        unit="OD-only cost = 1",
        format=fixed(3),
        words="Value of the finished job minus the rent, over what the job costs on on-demand alone.",
    ),
    "mean_cost_usd": Column(heading="cost", unit="$", format=usd),
    "on_time": Column(heading="on time", format=percent),
    "gap_to_hindsight": Column(
        heading="gap to hindsight", format=fixed(3), words="To the best that knowing the future allows."
    ),
    "weight": Column(heading="weight", format=percent, words="How far the selection trusts it."),
}
#: Policies that are shown wherever others are.
BASELINES = ("OD-only", "MSU", "UP")
