"""Seconds of a steady turn over 20 markets, compared with an empty flow on the same embedded engine and process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.flows.engine.run import no_heartbeat, prepare_engine
from slackwater.flows.engine.serving import start_embedded_server
from slackwater.warehouse.sources.simulated import generate

MARKETS = 20
DAYS = 15
AT = pd.Timestamp("2026-03-10T06:00Z")
NAMES = {
    "observed_at": "timestamp", "price_usd": "spot_price_usd_per_hour", "capacity": "capacity_probed",
    "on_demand_usd": "on_demand_price_usd_per_hour",
}  # fmt: skip


def tidy_markets(folder: Path, until: pd.Timestamp, *, markets: int = MARKETS, days: float = DAYS) -> None:
    """Write tidy tables of at least ``markets`` simulated markets, using several seeds."""
    tables: dict[str, list[pa.Table]] = {"price": [], "availability": []}
    start = AT - pd.Timedelta(days=days)
    for seed in range(markets // 7 + 1):
        for batch in generate(start.to_pydatetime(), until.to_pydatetime(), seed=seed):
            table = batch.table.drop_columns(["file", "line", "known_at"])
            zone = pa.array([f"{value}-{seed}" for value in table["zone"].to_pylist()])
            table = table.set_column(table.column_names.index("zone"), "zone", zone)
            table = table.set_column(
                table.column_names.index("source"), "source", pa.array(["bench"] * len(zone))
            )
            tables[batch.kind].append(
                table.rename_columns([NAMES.get(name, name) for name in table.column_names])
            )
    for kind, name in (("price", "prices"), ("availability", "availability")):
        merged = pa.concat_tables(tables[kind], promote_options="permissive")
        pq.write_table(merged, folder / f"{name}.parquet")


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tidy_markets(folder, AT + pd.Timedelta(hours=2))
        prepare_engine(folder)
        start_embedded_server()
        settings = folder / "slackwater.toml"
        settings.write_text(f"max_markets = {MARKETS}\n")
        from prefect import flow

        from slackwater.flows.engine.flows import pipeline

        @flow
        def empty() -> int:
            return 0

        empty()

        def turn(steps: int) -> dict[str, Any]:
            answer: dict[str, Any] = pipeline(
                db=folder / "w.duckdb",
                at=(AT + steps * pd.Timedelta("30min")).to_pydatetime(),
                data=folder,
                report=folder / "r.html",
                settings=settings,
            )
            return answer

        seconds = {}
        with no_heartbeat():  # as in the commands
            seconds["first_turn"], answer = timed(lambda: turn(0))
            seconds["steady_turn"] = min(timed(lambda k=k: turn(k))[0] for k in (1, 2))
            seconds["empty_flow"] = min(timed(empty)[0] for _ in range(3))
        markets = len({row["market"] for row in answer["accuracy"]})
    beyond = seconds["steady_turn"] - seconds["empty_flow"]
    return {"markets": markets, "seconds": seconds, "steady_beyond_empty": beyond, "aim": 15.0}


def timed(function: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    print(run())
