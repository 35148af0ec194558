"""Ratings of markets by their provider, as known at a given time: placement scores and interruption bands (M13.1)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from slackwater.warehouse.columns import BAND, SCORE
from slackwater.warehouse.documents import read_sql
from slackwater.warehouse.history import Market, Ratings
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds

#: Greatest age of a placement score and of an interruption band, in hours.
SCORE_HOURS, BAND_HOURS = 24, 60 * 24


def known_ratings(store: Store, requests: Sequence[tuple[Market, pd.Timestamp]]) -> list[Ratings]:
    """Return the ratings of markets, each as known at its time; a rating of the zone is preferred to that of the region."""
    if not requests:
        return []
    rows = store.execute(
        read_sql(__package__, "ratings"),
        {
            "provider": [market.provider for market, _ in requests],
            "region": [market.region for market, _ in requests],
            "zone": [market.zone for market, _ in requests],
            "instance_type": [market.instance_type for market, _ in requests],
            "known_us": [microseconds(at, "known_at") for _, at in requests],
            "score_hours": SCORE_HOURS,
            "band_hours": BAND_HOURS,
        },
    )
    newest: list[dict[str, tuple[int, int]]] = [{} for _ in requests]
    for place, kind, value, at_us in rows:
        newest[place][kind] = value, at_us
    return [_ratings(kinds.get(SCORE), kinds.get(BAND)) for kinds in newest]


def _ratings(score: tuple[int, int] | None, band: tuple[int, int] | None) -> Ratings:
    return Ratings(
        score=None if score is None else score[0],
        scored_at=None if score is None else pd.Timestamp(score[1], unit="us", tz="UTC"),
        band=None if band is None else band[0],
    )
