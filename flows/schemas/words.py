"""The page that explains every name and figure of the output, generated from the declarations of the fields.

``python -m slackwater.flows.schemas.words > docs/words.md`` writes the page; a test compares the file with
this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from slackwater.flows.ledger.fields import BOARD, DECISION, OUTCOME, Field
from slackwater.flows.schemas import forms

HEAD: Final = """# What the program prints

Every name and figure of decisions, leaderboards, outcomes and forecast errors: as programs read it (`--json`), as it is printed,
and what it means. The words of these pages are explained in [the vocabulary](README.md#vocabulary), names such as
`AHAP(3,1,0.5,expected)` in [names of policies](README.md#names-of-policies), names of forecasters in
[forecasting.md](forecasting.md). Money is USD, times are UTC; what is not known or not defined is null in JSON and a dash on tables
and pages. The other answers: `slackwater schema` lists them, with the meaning of every key.

This page is made from what is declared: `python -m slackwater.flows.schemas.words > docs/words.md`.
"""
#: Heading of each forecast error in tables and on pages.
HEADINGS: Final = {
    "market": "market", "variable": "variable", "model": "model", "class": "capacity, or price", "step": "slots ahead",
    "n": "forecasts measured", "mae": "MAE, mean absolute error, error of the median", "rmse": "RMSE", "mase": "MASE",
    "pinball": "pinball loss", "skill_mae": "MAE skill", "skill_pinball": "skill, compared with last value",
    "days": "days", "verdict": "better, worse, even, too few",
    "coverage_80": "truth inside 80 % band, in 80 %", "coverage_90": "in 90 %", "brier": "Brier", "skill_brier": "Brier skill",
    "fallback_share": "fallback", "absent": "forecast, not there", "unpredicted": "there, not forecast",
    "cover": "either, near ones matched", "share_worse": "series worse than last value", "markets": "series",
    "coverage_80_closed": "ends counted as inside", "width_80": "mean width",
}  # fmt: skip
#: Phrases in the printed output of a turn, with their meanings.
SENTENCES: Final = {
    "hold 3 on-demand instances and 4 spot instances": "What to have in the slot from start to end, over all jobs decided.",
    "0.4 slots ahead of schedule": "How much more is done than an even pace from start to deadline would give, in slots "
    "of that pace; *on schedule* if there is no difference.",
    "first of 22 slots": "The job begins with this slot and has so many to its deadline: it is neither ahead nor behind yet.",
    "slack is 10 slots": "So many slots could pass without work before only on-demand at full size would be in time.",
    "price 0.18 of on-demand": "The spot price of this slot over the on-demand price.",
    "P(spot >= 4 in the next slot) = 0.92": "The chance, by the belief about the market, that at least so many spot instances can "
    "be had in the next slot.",
    "at risk, likely late": "Risk of missing the deadline from 10 %, and from 50 %.",
    "cannot be done by ...": "On-demand alone at full size is too slow from here: by how much, and what would do.",
    "regret 0.002 (bound 1.501)": "What the selection earned less than the best single policy, summed over rounds, beside what "
    "theory promises at most.",
    "leads with 92 % of the weight": "The policy that is trusted most, and how far; it decides the next job.",
}


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(
        [
            HEAD,
            "## Sentences of a turn\n\n| words | meaning |\n| --- | --- |",
            *(_row(both) for both in SENTENCES.items()),
            "",
            *_section(
                "What a decision says",
                "A row of `slackwater run`, `plan` and `job show`.",
                _declared(DECISION),
            ),
            *_section(
                "What the leaderboard says of a policy",
                "Means over the jobs that ended, on which every policy was replayed. The row `hindsight` is the best, had the "
                "future been known.",
                _declared(BOARD),
            ),
            *_section(
                "What a policy made of one job",
                "`slackwater replay`, `slackwater job show`, a job's page.",
                _declared(OUTCOME),
            ),
            *_section(
                "Forecast errors of a turn",
                "`accuracy` of `slackwater run --json`, and the page of a turn.",
                _formed(forms.TurnError),
            ),
            *_section(
                "The accuracy report",
                "`slackwater accuracy`: by market, by class of markets, and pooled over all.",
                {**_formed(forms.MarketMeasures), **_formed(forms.ClassMeasures)},
            ),
        ]
    )


def _declared(fields: Mapping[str, Field]) -> dict[str, tuple[str, str]]:
    """Return heading and description of declared fields."""
    return {name: (one.as_column().label if one.heading else "", one.words) for name, one in fields.items()}


def _formed(form: Any) -> dict[str, tuple[str, str]]:
    """Return heading and description of the keys of a `TypedDict`.

    Raises `KeyError` for a key without a description.
    """
    keys: Mapping[str, Mapping[str, Any]] = forms.schema_of(form)["properties"]
    return {name: (HEADINGS.get(name, ""), one["description"]) for name, one in keys.items()}


def _section(heading: str, about: str, rows: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield from (f"## {heading}", "", about, "", "| key | printed as | meaning |", "| --- | --- | --- |")
    yield from (_row((f"`{name}`", printed, words)) for name, (printed, words) in rows.items())
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")
