"""Make the archetypes of availability (M13.2) from measured series: ``python -m slackwater.studies.archetypes DATA FILE``.

The file has the numbers of transitions between the states of a request, not the measurements.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from slackwater.optimization.belief.archetypes import AGES, CELLS, REQUESTS, STATES, STEPS, request_states
from slackwater.optimization.belief.launches import UNKNOWN, state_ages
from slackwater.studies.experiments.material import COUNT_COLUMNS, LAUNCHABLE, read_table

#: Instance types without a GPU: their availability is not that of jobs that fine-tune.
WITHOUT_GPU: Final = ("r5.16xlarge", "c3-highcpu-88")
_SERIES = ["source", "provider", "region", "zone", "instance_type"]


def transitions(seconds: np.ndarray, states: np.ndarray, step: float) -> np.ndarray:
    """Return the transitions between states a ``step`` (seconds) apart by age in steps, shape (AGES, 3, 3).

    Every reading begins a pair with the newest reading a step later. The overlapping pairs are
    scaled to the number of steps in the series.
    """
    gap = float(np.median(np.diff(seconds)))
    before = [_states_at(seconds, states, seconds - k * step, gap) for k in range(AGES - 1, 0, -1)]
    ages = state_ages(np.column_stack([*before, states]))[:, -1]
    after = np.searchsorted(seconds, seconds + step + 1e-6, side="right") - 1
    age = seconds + step - seconds[after]
    known = (after > np.arange(len(seconds))) & (age <= 1.5 * gap) & (seconds + step <= seconds[-1] + gap)
    known[-1] = False
    found = np.zeros((AGES, STATES, STATES))
    np.add.at(found, (ages[known], states[known], states[after][known]), 1.0)
    steps = (seconds[-1] - seconds[0]) / step
    return np.asarray(found * min(1.0, steps / max(1.0, found.sum())))


def _states_at(seconds: np.ndarray, states: np.ndarray, times: np.ndarray, gap: float) -> np.ndarray:
    """Return the states by the newest readings at some times, `UNKNOWN` before the first and after one and a half gaps."""
    place = np.searchsorted(seconds, times + 1e-6, side="right") - 1
    known = (place >= 0) & (times - seconds[place] <= 1.5 * gap)
    return np.where(known, states[place], UNKNOWN)


def archetype_rows(data: Path) -> pd.DataFrame:
    """Return the rows of the file: a series, a request and a step each, with the numbers of transitions by age."""
    table = read_table(data, "availability", COUNT_COLUMNS)
    table = table[table["kind"].isin(LAUNCHABLE) & ~table["instance_type"].isin(WITHOUT_GPU)]
    rows = []
    for key, series in table.groupby(_SERIES, sort=True):
        series = series.sort_values("timestamp")
        counts, stated = series["available"].to_numpy(dtype=float), series["capacity_probed"].max()
        capacity = max(1, int(counts.max() if pd.isna(stated) else stated))
        seconds = series["timestamp"].astype("int64").to_numpy() / 1e9
        for request in (n for n in REQUESTS if n == 1 or n <= capacity):
            states = request_states(counts, request)
            for step in STEPS:
                found = transitions(seconds, states, step * 60.0)
                rows.append(
                    dict(zip(_SERIES, key, strict=True))
                    | {"first_day": f"{series['timestamp'].iloc[0]:%Y-%m-%d}", "capacity": capacity}
                    | {"request": request, "step_minutes": step}
                    | {name: round(float(cell), 2) for name, cell in zip(CELLS, found.ravel(), strict=True)}
                )
    return pd.DataFrame(rows)


def main(data: str, file: str) -> None:
    """Write the file."""
    archetype_rows(Path(data)).to_csv(file, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
