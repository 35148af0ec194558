"""Whether the intervals hold what they promise: coverage and width by step, reliability of chances and of levels (M6.6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from flows.accuracy.page.drawings import Curve, Reliability, draw_coverage, draw_reliability
from flows.accuracy.page.reading import LAST_VALUE, UNITS, Models, by_step, shown_steps
from flows.show.formats import MISSING, as_number, significant
from forecasting.accuracy.columns import Accuracy
from forecasting.accuracy.losses import PERCENTS


def before_name(models: Models, uncalibrated: str) -> str:
    """The default before its intervals were calibrated, ``uncalibrated``, if it was measured; "" if not."""
    return uncalibrated if uncalibrated != models.default and uncalibrated in models.names else ""


def calibration_view(variable: str, accuracy: Accuracy, models: Models, uncalibrated: str) -> dict[str, Any]:
    """A drawing of coverage for each of the three intervals, a table of coverage and width, and the reliability diagram."""
    pooled = accuracy.pooled[accuracy.pooled["variable"] == variable]
    before = before_name(models, uncalibrated)
    shown = [
        name for name in (LAST_VALUE, before, models.default) if name and (pooled["model"] == name).any()
    ]
    return {
        "figures": [_coverage(variable, pooled, models, shown, level, before) for level in PERCENTS],
        "before": before,
        "steps": shown_steps(pooled["step"]),
        "rows": [row for name in shown for row in _rows(pooled[pooled["model"] == name], name, models)],
        "reliability": _reliability(variable, accuracy, models),
        "unit": UNITS[variable],
        "chances": variable == "count",
    }


def _coverage(
    variable: str, pooled: pd.DataFrame, models: Models, shown: list[str], level: int, before: str
) -> dict[str, str]:
    table = 100 * by_step(pooled, f"coverage_{level}")
    curves = [
        Curve(
            label=name, y=table[name].to_numpy(dtype=float), bold=name == models.default,
            style=BEFORE_STYLE if name == before else models.style(name),
        )
        for name in shown
    ]  # fmt: skip
    svg = draw_coverage(
        table.index.to_numpy(dtype=float), curves, nominal=level / 100, name=f"coverage-{variable}-{level}",
        label=f"Coverage of the {level} % interval by step, {variable}",
    )  # fmt: skip
    return {"title": f"{level} % interval", "svg": svg}


#: The line of the default before calibration: dashed, of another colour than every model beside it.
BEFORE_STYLE = 1


def _rows(own: pd.DataFrame, name: str, models: Models) -> list[dict[str, Any]]:
    own = own.set_index("step")
    steps = shown_steps(own.index)
    return [
        {
            "model": models.title(name),
            "reference": name == LAST_VALUE,
            "level": f"{level} %",
            "coverage": [_share(own[f"coverage_{level}"].get(step), level) for step in steps],
            "closed": [_share(own[f"coverage_{level}_closed"].get(step), level)["text"] for step in steps],
            "width": [significant(own[f"width_{level}"].get(step)) for step in steps],
        }
        for level in PERCENTS
    ]


def _share(value: Any, level: int) -> dict[str, Any]:
    found = as_number(value)
    if found is None:
        return {"text": MISSING, "off": False}
    return {"text": f"{100 * found:.1f}", "off": abs(found - level / 100) > 0.02 + 1e-9}


def _reliability(variable: str, accuracy: Accuracy, models: Models) -> str | None:
    """Counts: chance of "at least n" against how often it came true. Prices: level against the share at or below its quantile."""
    if variable == "count":
        table, x, y = accuracy.calibration, "chance", "frequency"
        axis = ("chance given to “at least n instances”, %", "how often it came true, %")
        by = ["model", "bin"]
    else:
        table = accuracy.reliability[accuracy.reliability["variable"] == variable]
        x, y, by = "level", "share", ["model", "level"]
        axis = ("level of the quantile, %", "actual values at or below it, %")
    if table.empty:
        return None
    drawn = [
        _promises(table[table["model"] == name], name, models, (x, y, by[1]))
        for name in models.names
        if (table["model"] == name).any()
    ]
    return draw_reliability(
        drawn, axis=axis, name=f"reliability-{variable}", label=f"Reliability, {variable}"
    )


def _promises(rows: pd.DataFrame, name: str, models: Models, columns: tuple[str, str, str]) -> Reliability:
    """Means over the steps, weighted by the number of forecasts."""
    x, y, by = columns
    rows = rows[rows["n"].astype(float) > 0].dropna(subset=[x, y])
    n = rows["n"].astype(float)
    promised, came = (
        (rows[column].astype(float) * n).groupby(rows[by]).sum() / n.groupby(rows[by]).sum()
        for column in (x, y)
    )
    return Reliability(
        label=name, promised=np.asarray(promised, dtype=float), came=np.asarray(came, dtype=float),
        style=models.style(name), bold=name == models.default,
    )  # fmt: skip
