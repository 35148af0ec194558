"""Stored rows with an unreadable text are counted; of measured errors, the recent ones."""

import pandas as pd

from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.foreign import unreadable_rows

AT = pd.Timestamp("2026-03-10T06:00Z")


def test_unreadable_measurements_are_counted_from_a_time_on():
    with open_store(":memory:") as store:
        for days, text in ((0, "{"), (1, "[]"), (1, "{}"), (20, "{")):
            store.execute(
                "INSERT INTO accuracy (measured_at, market, source, model, variable, step, more) "
                "VALUES (?, 'm', 's', 'x', 'price', 1, ?)",
                [(AT - pd.Timedelta(days=days)).to_pydatetime(), text],
            )
        counted = {
            since: unreadable_rows(store, measured_since=(AT - pd.Timedelta(days=since)).to_pydatetime())
            for since in (0.5, 14, 30)
        }
    assert counted == {
        since: [f"{count} rows of accuracy are left out: more cannot be read"]
        for since, count in ((0.5, 1), (14, 2), (30, 3))
    }
