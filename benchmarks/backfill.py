"""Time and memory of a backfill of 90 days of hourly slots over 10 markets, all stages with default settings.

Live turns on the same warehouse without the engine are timed for comparison. The environment variable
``SLACKWATER_BACKFILL_DAYS`` shortens the backfill.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from benchmarks.turn import AT, tidy_markets
from slackwater.flows.backfill.run import Backfill, backfill, slots_between
from slackwater.flows.config import Settings
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.stages import whole_turn
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store

MARKETS = 10
STEP = pd.Timedelta(hours=1)
LIVE_TURNS = 3


class Memory:
    """Peak memory of this process and its children together, sampled four times a second.

    ``peak`` counts shared pages once (proportional set size, Linux), ``resident`` once for each process.
    """

    def __enter__(self) -> Memory:
        self.peak = self.resident = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(0.25):
            total = resident = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    rss = process.memory_info().rss
                except psutil.Error:
                    continue
                resident += rss
                total += _proportional(process.pid, rss)
            self.peak, self.resident = max(self.peak, total), max(self.resident, resident)


def _proportional(pid: int, resident: int) -> int:
    """Return the proportional set size of a process in bytes; the resident size if the system does not provide it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return resident
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")]
    return sizes[0] if sizes else resident


def run() -> dict[str, Any]:
    days = float(os.environ.get("SLACKWATER_BACKFILL_DAYS", "90"))
    slots = pd.date_range(AT, periods=round(days * 24), freq=STEP)
    settings = Settings(step_minutes=60, max_markets=MARKETS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tidy_markets(folder, slots[-1] + LIVE_TURNS * STEP, markets=MARKETS, days=21)
        db = folder / "w.duckdb"
        told: list[str] = []
        begin, cpu = time.perf_counter(), time.process_time()
        with Memory() as memory:
            outcomes = backfill(
                Backfill(
                    db=db,
                    slot_range=slots_between(slots[0], slots[-1], slot=STEP),
                    settings=settings,
                    data=folder,
                    say=lambda text: told.append(text),
                    progress=lambda done: _tell(begin, done),
                )
            )
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        live = []
        for k in range(1, LIVE_TURNS + 1):
            start = time.perf_counter()
            with open_store(db) as store:
                at = slots[-1] + k * STEP
                turn = Turn(store=store, at=at, settings=settings, run_id=run_id_of(at))
                result = whole_turn(turn, data=folder, requests=[], report=folder / "r.html")
            live.append(time.perf_counter() - start)
        with open_store(db) as store:
            rows = {table: len(read_rows(store, table)) for table in ("vintages", "decisions", "outcomes")}
        size = db.stat().st_size
    became = [state for one in outcomes for state in one.became.values()]
    return {
        "slots": len(slots), "markets": len({row["market"] for row in result.accuracy}), "seconds": seconds,
        "seconds_a_slot": seconds / len(slots), "live_turn_seconds": min(live),
        "live_over_backfill": min(live) / (seconds / len(slots)), "cpu_seconds_of_the_main_process": cpu,
        "peak_memory_gb": memory.peak / 1e9, "sum_of_resident_gb": memory.resident / 1e9,
        "stages": {state: became.count(state) for state in set(became)},
        "rows": rows, "file_mb": size / 1e6, "told": told[:5], "aim": {"seconds": 900, "memory_gb": 2},
    }  # fmt: skip


def _tell(begin: float, done: int) -> None:
    print(f"  {done} stages, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(run())
