"""Explanations of every name and figure of the output, from the declarations of the fields; the site has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from slackwater.flows.config import ALARM_KINDS
from slackwater.flows.ledger.fields import BOARD, DECISION, OUTCOME, Field
from slackwater.flows.schemas import forms

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
    "run 3 on-demand instances and 4 spot instances": "Instances of all decided jobs, from the start of the slot to its end.",
    "the job is 0.4 slots ahead of schedule": "Work done, compared with an even pace from start to deadline, in slots of that "
    "pace; *on schedule* without a difference.",
    "22 slots are left to the deadline": "The job begins with this slot.",
    "slack is 10 slots": "Number of slots that could pass without work before only on-demand at full size would be in time.",
    "spot costs 0.18 of on-demand": "The spot price of this slot as a share of the on-demand price.",
    "probability of 4 spot in the next slot: 92 %": "By the belief about the market; of at least 4 spot instances.",
    "at risk, likely late": "Risk of missing the deadline from 10 %, and from 50 %.",
    "cannot be done by ...": "On-demand alone at full size is too slow from here: the shortfall, and the instances or the deadline "
    "that would be enough.",
    "regret 0.002 (bound 1.501)": "Utility of the best single policy minus that of the selection, summed over rounds, and its "
    "proven maximum.",
    "leads with 92 % of the weight": "The policy with the largest weight; it decides the next job.",
}


def reference() -> str:
    """Return the tables as Markdown; the site puts them into `docs/words.md`."""
    return "\n".join(
        [
            "## Sentences of a turn\n\n| words | meaning |\n| --- | --- |",
            *(_row(both) for both in SENTENCES.items()),
            "",
            *_section(
                "Decision", "A row of `slackwater run`, `plan` and `job show`.", _field_words(DECISION)
            ),
            *_section(
                "Policy on the leaderboard",
                "Means over the jobs that ended, on which every policy was replayed. The row `hindsight` is the optimum with known "
                "future.",
                _field_words(BOARD),
            ),
            *_section(
                "Policy on a job",
                "`slackwater replay`, `slackwater job show`, a job's page.",
                _field_words(OUTCOME),
            ),
            *_section(
                "Forecast errors of a turn",
                "`accuracy` of `slackwater run --json`, and the page of a turn.",
                _typed_dict_words(forms.TurnError),
            ),
            *_section(
                "The accuracy report",
                "`slackwater accuracy`: by market, by class of markets, and pooled over all.",
                {**_typed_dict_words(forms.MarketMeasures), **_typed_dict_words(forms.ClassMeasures)},
            ),
            *_alarms(),
        ]
    )


def _alarms() -> Iterator[str]:
    """Yield the table of the kinds of alarms."""
    yield from ("## Alarms", "", "Names in code are settings of `[alarms]` ([defaults](settings.md)).", "")
    yield from ("| alarm | severity | condition |", "| --- | --- | --- |")
    for name, kind in ALARM_KINDS.items():
        yield _row((name, "serious" if kind.serious else "warning", kind.words))
    yield ""


def _field_words(fields: Mapping[str, Field]) -> dict[str, tuple[str, str]]:
    return {name: (one.label if one.heading else "", one.words) for name, one in fields.items()}


def _typed_dict_words(form: Any) -> dict[str, tuple[str, str]]:
    """Return heading and description of the keys of a `TypedDict`; raises `KeyError` for a key without one."""
    keys: Mapping[str, Mapping[str, Any]] = forms.schema_of(form)["properties"]
    return {name: (HEADINGS.get(name, ""), one["description"]) for name, one in keys.items()}


def _section(heading: str, about: str, rows: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield from (f"## {heading}", "", about, "", "| key | printed as | meaning |", "| --- | --- | --- |")
    yield from (_row((f"`{name}`", printed, words)) for name, (printed, words) in rows.items())
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    print(reference(), end="")
