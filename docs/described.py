"""Generated parts of the pages on words and on the schema of a warehouse: ``python docs/described.py words|schema``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from slackwater.flows.config import ALARM_KINDS
from slackwater.flows.ledger.fields import BOARD, DECISION, OUTCOME, Field
from slackwater.flows.schemas import forms, tables
from slackwater.warehouse.store.connection import Store, open_store
from slackwater.warehouse.store.schema import TABLES

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


def words() -> str:
    """Return every name and figure of the output with its meaning, as Markdown."""
    return "\n".join(
        [
            "## Sentences of a turn\n\n| words | meaning |\n| --- | --- |",
            *(_row(both) for both in SENTENCES.items()),
            "",
            *_words_section(
                "Decision", "A row of `slackwater run`, `plan` and `job show`.", _field_words(DECISION)
            ),
            *_words_section(
                "Policy on the leaderboard",
                "Means over the jobs that ended, on which every policy was replayed. The row `hindsight` is the optimum with known "
                "future.",
                _field_words(BOARD),
            ),
            *_words_section(
                "Policy on a job",
                "`slackwater replay`, `slackwater job show`, a job's page.",
                _field_words(OUTCOME),
            ),
            *_words_section(
                "Forecast errors of a turn",
                "`accuracy` of `slackwater run --json`, and the page of a turn.",
                _form_words("TurnError"),
            ),
            *_words_section(
                "The accuracy report",
                "`slackwater accuracy`: by market, by class of markets, and pooled over all.",
                _form_words("MarketMeasures", "ClassMeasures"),
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
    return {name: (field.label if field.heading else "", field.words) for name, field in fields.items()}


def _form_words(*names: str) -> dict[str, tuple[str, str]]:
    """Return heading and description of the keys of forms; raises `ValueError` for a key without a description."""
    fields = {key: field for name in names for key, field in forms.form(name).items()}
    if bare := [key for key, field in fields.items() if not field.words]:
        raise ValueError(f"{bare[0]} has no description")
    return {key: (HEADINGS.get(key, ""), field.words) for key, field in fields.items()}


def _words_section(heading: str, about: str, rows: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield from (f"## {heading}", "", about, "", "| key | printed as | meaning |", "| --- | --- | --- |")
    yield from (_row((f"`{name}`", printed, words)) for name, (printed, words) in rows.items())
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


# ---
# The warehouse.

#: Example questions for the page, with the SQL that answers them; tests compare the results with
#: the commands.
QUESTIONS: Final[dict[str, str]] = {
    "What does each market cost now, and what share of on-demand is that?": """
SELECT market, source, observed_at, price_usd, price_usd / on_demand_usd AS share
FROM market_prices
WHERE planned
QUALIFY row_number() OVER (PARTITION BY sid ORDER BY observed_at DESC) = 1
ORDER BY market, source""",
    "How often were at least four instances available, by market?": """
SELECT market, source, avg(CAST(available >= 4 AS INTEGER)) AS share, count(*) AS probes
FROM market_counts
GROUP BY market, source
ORDER BY market, source""",
    "What was a price known to be at an earlier time?": """
SELECT market, source, observed_at, price_usd
FROM price JOIN market_series USING (sid)
WHERE known_at <= $known_at
QUALIFY row_number() OVER (PARTITION BY sid ORDER BY observed_at DESC, known_at DESC) = 1
ORDER BY market, source""",
    "Which decisions were made for a job, slot by slot, and why?": """
SELECT slot, on_demand, spot, policy, expected_cost_usd, late_probability, reason
FROM job_decisions
WHERE job = $job
ORDER BY slot""",
    "Which jobs are expected to be late, by their newest decision?": """
SELECT job, slot, late_probability, deadline
FROM job_decisions
QUALIFY row_number() OVER (PARTITION BY job ORDER BY slot DESC) = 1 AND late_probability >= 0.1
ORDER BY late_probability DESC, job""",
    "What was observed in the markets in the slots of the decisions?": """
SELECT job, slot, spot, available, price_usd
FROM job_decisions AS d
ASOF LEFT JOIN market_counts AS c ON d.market = c.market AND d.source = c.source AND d.slot >= c.observed_at
ASOF LEFT JOIN (FROM market_prices WHERE planned) AS p ON d.market = p.market AND d.source = p.source AND d.slot >= p.observed_at
ORDER BY job, slot""",
    "How large were the errors of the forecasts issued in some slots, by model and lead time?": """
SELECT market, source, model, variable, step_ahead, count(*) AS n,
    avg(abs_error) AS mae, sqrt(avg(squared_error)) AS rmse, avg(pinball) AS pinball
FROM forecast_errors
WHERE issued_at >= $start AND issued_at < $stop
GROUP BY ALL
ORDER BY ALL""",
    "Which model was best at each lead time in the measurements of the last turn?": """
SELECT market, source, variable, step, arg_min(model, pinball) AS best, min(pinball) AS pinball
FROM forecast_accuracy
WHERE newest
GROUP BY ALL
ORDER BY ALL""",
    "Which policies cost least over the ended jobs?": """
SELECT policy, jobs, mean_cost_usd, mean_saved_usd, saved_share, on_time, mean_utility, weight
FROM policy_ranking
ORDER BY mean_utility DESC, policy""",
    "How did the weights of the policies change, round by round?": """
SELECT round, job, policy, weight
FROM policy_weights
ORDER BY round, weight DESC, policy""",
    "What would each policy have cost for a job, and what was the hindsight optimum?": """
SELECT policy, cost_usd, saved_usd, on_time, finish, utility_usd, hindsight_usd
FROM job_outcomes
WHERE job = $job
ORDER BY cost_usd, policy""",
    "Which stages failed or were run later by a backfill?": """
SELECT logical_at, stage, status, made, reason
FROM turn_stages
WHERE status = 'failed' OR made = 'backfill'
ORDER BY logical_at, stage""",
}


def schema() -> str:
    """Return questions, views and tables of a warehouse as Markdown."""
    with open_store(":memory:") as store:
        store.execute(tables.sql())
        lines = ["## Questions", ""]
        for question, answer in QUESTIONS.items():
            lines += [f"**{question}**", "", "```sql", answer.strip(), "```", ""]
        for heading, some in (("Views", tables.VIEWS), ("Tables", TABLES)):
            relations = tables.relations(some)
            lines += [f"## {heading}", "", *_index(relations), ""]
            for name, relation in relations.items():
                lines += _relation_section(store, name, relation)
        return "\n".join(lines)


def _index(some: Mapping[str, tables.Relation]) -> Iterator[str]:
    yield from ("| name | key of a row | joins |", "| --- | --- | --- |")
    for name, relation in some.items():
        joins = ", ".join(f"[{needed}](#{needed})" for needed in _joins(name))
        yield f"| [{name}](#{name}) | {', '.join(f'`{column}`' for column in relation.key)} | {joins} |"


def _joins(name: str) -> list[str]:
    """Return the tables that the rows of a table refer to."""
    if name in TABLES:
        return list(TABLES[name].needs)
    return []


def _relation_section(store: Store, name: str, relation: tables.Relation) -> Iterator[str]:
    kinds: dict[str, Any] = {str(row[0]): row[1] for row in store.execute(f"DESCRIBE {name}")}
    yield from (f"### {name}", "", relation.words, "", "| column | type | meaning |", "| --- | --- | --- |")
    for column, words in relation.columns.items():
        kind = str(kinds[column]).replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ")
        yield f"| `{column}` | {kind} | {words.replace('|', '/')} |"
    yield ""


if __name__ == "__main__":
    print({"words": words, "schema": schema}[sys.argv[1]](), end="")
