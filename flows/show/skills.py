"""How a model compares with last value, in words: shared by turns, reports, the UI and accuracy pages (M6.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slackwater.flows.show.formats import plural, ranges
from slackwater.forecasting.accuracy.intervals import BETTER, EVEN, LEAST_BLOCKS, TOO_FEW, WORSE

#: Explanation of the verdicts.
ABOUT_VERDICTS = (
    f"“{EVEN}”: the 95 % interval, with days as blocks, holds 0; “{TOO_FEW}”: fewer than {LEAST_BLOCKS} days."
)
#: Text in place of an impossible comparison.
_NO_ERROR = "last value made no error"


def compared(row: Mapping[Any, Any]) -> str:
    """Describe how a model compares with last value; the row has `slackwater.forecasting.accuracy.intervals.SKILL_COLUMNS`.

    >>> compared({"verdict": "better", "skill_pinball": 0.21, "skill_low": 0.1, "skill_high": 0.3, "days": 9})
    '21 % better (10 to 30 %)'
    >>> compared({"verdict": "even", "skill_pinball": -0.02, "skill_low": -0.1, "skill_high": 0.06, "days": 9})
    'even (-10 to 6 %)'
    >>> compared({"verdict": "too few", "days": 1}), compared({"verdict": "too few", "days": 0})
    ('too few: 1 day', 'last value made no error')
    """
    if row["verdict"] not in (BETTER, WORSE, EVEN, TOO_FEW):
        return ""
    if row["verdict"] == TOO_FEW:
        return f"{TOO_FEW}: {plural(int(row['days']), 'day')}" if _is_short(row) else _NO_ERROR
    span = f"({100 * row['skill_low']:.0f} to {100 * row['skill_high']:.0f} %)"
    if row["verdict"] == EVEN:
        return f"{EVEN} {span}"
    return f"{100 * abs(row['skill_pinball']):.0f} % {row['verdict']} {span}"


def _is_short(row: Mapping[Any, Any]) -> bool:
    return 0 < int(row["days"]) < LEAST_BLOCKS


def nothing_compared(rows: Iterable[Mapping[Any, Any]]) -> str:
    """Return a sentence that explains why no row can be compared.

    >>> nothing_compared([{"days": 1}])
    'Too few days to compare: errors on 1, at least 3 wanted.'
    >>> nothing_compared([{"days": 0}])
    'Last value made no error (flat series), so nothing can be better.'
    """
    short = [int(row["days"]) for row in rows if _is_short(row)]
    if short:
        return f"Too few days to compare: errors on {max(short)}, at least {LEAST_BLOCKS} wanted."
    return f"{_NO_ERROR.capitalize()} (flat series), so nothing can be better."


def steps_compared(rows: Iterable[Mapping[Any, Any]]) -> str:
    """List the lead times at which a model is better than, even with and worse than last value.

    The rows are those of a single model, with ``step`` and ``verdict``.

    >>> steps_compared([{"step": 1, "verdict": "better"}, {"step": 2, "verdict": "better"}, {"step": 3, "verdict": "even"}])
    'better at steps 1–2, even at step 3'
    >>> steps_compared([{"step": 1, "verdict": "worse"}, {"step": 2, "verdict": "worse"}])
    'worse at every step'
    """
    table = [(int(row["step"]), str(row["verdict"])) for row in rows]
    parts = []
    for verdict in (BETTER, EVEN, WORSE, TOO_FEW):
        steps = [step for step, found in table if found == verdict]
        if steps:
            where = (
                "every step"
                if len(steps) == len(table)
                else f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)}"
            )
            parts.append(f"{'too few days' if verdict == TOO_FEW else verdict} at {where}")
    return ", ".join(parts)
