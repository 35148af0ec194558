"""What ``export``, ``import``, ``compact`` and ``publish`` do."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pandas as pd

from flows.clock import parse_time
from flows.command.answer import print_json, print_table, say_to_stderr
from warehouse.exchange.compact import compact
from warehouse.exchange.export import export_store, read_manifest
from warehouse.exchange.import_ import import_folder
from warehouse.exchange.share import publish_generation
from warehouse.reader import open_reader
from warehouse.store.connection import open_store


def export_command(folder: Path, *, db: Path, tables: str | None, since: str | None, as_json: bool) -> None:
    """``slackwater export``: Parquet files and a manifest."""
    names = [name.strip() for name in (tables or "").split(",") if name.strip()]
    with open_reader(db) as store:
        manifest = export_store(
            store, folder, tables=names, since=parse_time(since, "--since") if since else None
        )
    rows = [{"table": name, "rows": one.rows, "sha256": one.sha256} for name, one in manifest.tables.items()]
    if as_json:
        print_json({"folder": str(folder), "since": manifest.since or None, "tables": rows})
        return
    print_table(f"Exported to {folder}", rows, {"table": "table", "rows": "rows", "sha256": "SHA-256"})


def import_command(folder: Path, *, db: Path, as_json: bool) -> None:
    """``slackwater import``: merge an exported folder."""
    read_manifest(folder)  # before a warehouse is made for it
    with open_store(db, say=say_to_stderr) as store:
        done = import_folder(store, folder)
    rows = [
        {"table": name, "added": one.added, "repeated": one.repeated, "rejected": one.rejected}
        for name, one in done.items()
    ]
    if as_json:
        print_json({"folder": str(folder), "tables": rows})
        return
    print_table(
        f"Imported from {folder}", rows, {name: name for name in ("table", "added", "repeated", "rejected")}
    )


def compact_command(*, db: Path, keep_fitted: float, as_json: bool) -> None:
    """``slackwater compact``: a smaller file with the same rows."""
    open_reader(db).close()  # a warehouse that is not there is not made
    with open_store(db, say=say_to_stderr) as store:
        done = compact(store, keep_fitted=pd.Timedelta(days=keep_fitted))
    row = {
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "bytes_saved": done.bytes_before - done.bytes_after,
        "fitted_dropped": done.fitted_dropped,
    }
    if as_json:
        print_json(row)
    else:
        print_table(f"Compacted {db}", [row], {name: name.replace("_", " ") for name in row})


def publish_command(
    folder: Path, *, db: Path, form: Literal["parquet", "ducklake"], keep: int, as_json: bool
) -> None:
    """``slackwater publish``: a generation for readers on shared storage."""
    with open_reader(db) as store:
        if form == "ducklake":
            from warehouse.exchange.share import publish_to_lake

            done = publish_to_lake(store, folder, keep=keep)
        else:
            done = publish_generation(store, folder, keep=keep)
    row = {"folder": str(folder), "form": form, "generation": done.number, "published": done.new}
    if as_json:
        print_json(row)
    else:
        print_table("Published", [row], {name: name for name in row})
