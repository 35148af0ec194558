"""The report of E3: one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.experiments.selection_answer import (
    COLUMNS,
    SWITCH_COLUMNS,
    SWITCHES,
    TRAINING_COLUMNS,
    learner_rows,
    shown_weights,
)
from flows.experiments.selection_plots import draw_regrets, draw_shifting, draw_weights_through
from flows.inline_svg import PALETTE, house_style
from flows.printing import cell
from flows.report_sections import line_swatch
from warehouse.errors import InputError

if TYPE_CHECKING:
    from flows.experiments.selection import Played, SelectionResult

#: Policies drawn as lines of their own.
TOP_WEIGHTS = 6


def write_page(page: str, path: Path) -> Path:
    """Write a page to ``path``, folders and all; raises `InputError` if that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(
            f"report {path}: {error.strerror}",
            expected="a writable file",
            remedy="choose another path with --html",
        ) from error
    return path


def render_selection(result: SelectionResult, answer: dict[str, Any]) -> str:
    """The page as text; the same result gives the same bytes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("flows", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = Markup  # the drawings are our own markup, escaped where they were made
    environment.globals["swatch"] = line_swatch
    with house_style():
        return environment.get_template("selection.html").render(
            answer=answer,
            palette=PALETTE,
            training=_table(answer["training"], TRAINING_COLUMNS),
            orders=[
                _order(name, title, result.played[name], answer, result.chosen)
                for name, title in {"random_order": "in random order", **SWITCHES}.items()
            ],
            bounds=_table(
                _bound_rows(answer),
                {"learner": "learner", "wide": "bounds of M5.2", "attainable": "attainable bounds"},
            ),
        )


def _order(name: str, title: str, played: Played, answer: dict[str, Any], chosen: str) -> dict[str, Any]:
    """The view of one order: table, drawings, legends and the changes of the leader."""
    own = answer[name]
    summary = played.summaries[chosen]
    shown = [int(j) for j in shown_weights(summary.weights)[:TOP_WEIGHTS]]
    cut = played.cuts[0] if played.cuts else None
    return {
        "name": name,
        "title": title,
        "cut": cut,
        "stretches": own["stretches"],
        "table": _table(learner_rows(own), COLUMNS if cut is None else SWITCH_COLUMNS),
        "regrets": draw_regrets(played.summaries, shifting=cut is not None, name=f"{name}-regret"),
        "shifting": None if cut is None else draw_shifting(played.summaries, cut, name=f"{name}-shifting"),
        "learners": [{"style": i, "label": label} for i, label in enumerate(played.summaries)],
        "weights": draw_weights_through(summary, shown, played.cuts, name=f"{name}-weights"),
        "legend": [
            {"style": i, "label": summary.names[j], "value": f"{100 * summary.weights[-1, j]:.1f} %"}
            for i, j in enumerate(shown)
        ],
        "changes": own["leader_changes"],
    }


def _bound_rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    shares = answer["bounds"]["settled_share_of_best_fixed"]
    return [{"learner": name, **both} for name, both in shares.items()]


def _table(rows: list[dict[str, Any]], columns: dict[str, str]) -> dict[str, Any]:
    return {
        "headings": list(columns.values()),
        "rows": [[cell(row.get(key)) for key in columns] for row in rows],
    }
