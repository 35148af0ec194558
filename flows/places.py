"""Markets of a job: by name, by its patterns, or proposed; the request placed there (M11.1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import (
    FollowedMarket,
    counted_or_priced,
    followed_row,
    is_counted_lately,
    parse_market,
    slot_to_read,
    step_of,
    taken_at,
)
from slackwater.flows.histories import MarketReader, try_histories
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.show.formats import first_of, join_words, plural, rows_of, utc
from slackwater.optimization.job.markets import check_types, fits, may_run_in
from slackwater.optimization.job.request import JobRequest, first_slot, run_on
from slackwater.optimization.job.units import (
    can_run_on,
    gpu_type_of,
    gpus_per_instance,
    types_without_room,
    work_amount,
)
from slackwater.warehouse.amounts import price
from slackwater.warehouse.asof import first_known_us, not_known_yet, trust_rank
from slackwater.warehouse.catalogue import list_price
from slackwater.warehouse.errors import JobError, MarketError, unknown_market
from slackwater.warehouse.history import WHOLE, History, Market
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.store.connection import Store


def find_market(
    store: Store,
    text: str,
    *,
    at: pd.Timestamp,
    settings: Settings,
    own_end: bool = False,
    listed: Sequence[Mapping[str, Any]] | None = None,
) -> FollowedMarket:
    """Return the followed market for a market name; raises `MarketError` with the most similar known names.

    Without ``@source`` the most trusted source of the market that was known at ``at`` is used, one with prices or counts if
    any; of equally trusted sources one with counts that are not old, else the newest.
    ``listed`` are the rows of the listing at ``at``, for callers that look up many markets.
    """
    market, source = parse_market(text)
    if listed is None:
        listed = rows_of(list_markets(store, known_at=at))
    rows = [
        listed_row
        for listed_row in listed
        if listed_row["market"] == market.key and source in (None, listed_row["source"])
    ]
    if not rows:
        later = not_known_yet(store, market, source, at=at, step=step_of(settings))
        if later is not None:
            raise later
        raise unknown_market(text, (str(listed_row["market"]) for listed_row in listed), at=at)

    def rank(listed_row: Mapping[str, Any]) -> tuple[Any, ...]:
        last = pd.Timestamp(listed_row["last_observed"])
        return (
            not (listed_row["has_price"] or listed_row["has_counts"]),
            trust_rank(listed_row["source"], settings.trust)[0],
            not is_counted_lately(listed_row, step_of(settings), last if own_end else at),
            own_end and not listed_row["has_counts"],
            at - last,
            not listed_row["has_counts"],
            listed_row["source"],
        )

    row = min(rows, key=rank)
    first, last = (pd.Timestamp(row[name]) for name in ("first_observed", "last_observed"))
    when = slot_to_read(last, at, step_of(settings), own_end=own_end, first=first)
    return FollowedMarket(market=market, source=str(row["source"]), at=when)


PlacedJob = tuple[StoredJob, tuple[FollowedMarket, ...]]  # A job and its markets, the home market first


def market_of(known: MarketReader, text: str) -> FollowedMarket:
    """Return the followed market for a market name in a turn; raises as `find_market` does."""
    return find_market(
        known.store,
        text,
        at=known.at,
        settings=known.settings,
        own_end=known.own_end,
        listed=known.market_rows(),
    )


#: Most markets of a multi-market job, and most instances over all of them: tables grow quadratically.
MOST_PLACES, MOST_PLACED = 24, 2048


def places_of(
    known: MarketReader, request: JobRequest, *, notify: Callable[[str], None] = lambda _: None
) -> tuple[FollowedMarket, ...]:
    """Return the markets of a placed multi-market request at one time, its home first, at most `MOST_PLACES` (M11.1).

    With ``n_max`` above 85 there are fewer: markets times instances stay within `MOST_PLACED`.
    ``notify`` is called with a message if markets are left out. A job that cannot resume has a single market: its home,
    else the cheapest on demand, by list price where none was observed (M2.7).

    Candidates are the markets with counts when the job began, in later turns too;
    if no matching market has counts, those with a price (`counted_or_priced`). So a market that a decision
    chose stays a candidate, and a backfilled turn has the same markets. Markets are sorted by on-demand price
    per unit of work, then by number of counts; of each market the most trusted source is used. Raises
    `MarketError` if no market matches, and `JobError` as `check_types` does.
    """
    settings, step = known.settings, step_of(known.settings)
    began = known.at if known.own_end else min(known.at, first_slot(request, step))
    home = None
    if request.market is not None:
        home = market_of(known, request.place).for_job(request)
    fitting_rows = [
        row
        for row in known.market_rows(began)
        if fits(request, Market.parse(row["market"]), str(row["source"]))
    ]
    rows = counted_or_priced(fitting_rows, known, step, began)
    rows.sort(key=lambda row: trust_rank(row["source"], settings.trust))
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        best.setdefault(str(row["market"]), row)
    apart = _without_wholes(list(best.values()), home)
    ranked = sorted(apart, key=lambda row: _cheapest(row, request))
    found = [
        followed_row(row, known).for_job(request)
        for row in ranked
        if home is None or row["market"] != home.market.key
    ]
    found = ([] if home is None else [home]) + found
    if not found:
        later = (
            None
            if fitting_rows
            else _first_later(known, began, lambda market, source: fits(request, market, source))
        )
        raise later or MarketError(
            f"job {request.name!r}: no market fits {' '.join([', '.join(request.markets), *request.filters])} at {utc(began)}"
            + "".join(f"; {text}" for text in types_without_room(request)),
            expected="a market with counts that are not stale, or prices of the last seven days"
            + ("" if request.gpus_max is None else ", and whole instances within gpus_min and gpus_max"),
            remedy="`slackwater markets` lists them",
        )
    at = found[0].at if home is not None else _common_time(request, found)
    fitting = [candidate for candidate in found if candidate.at == at]
    held = gpu_type_of(found[0].market)
    widest = request.n_max or (request.gpus_max or 1) // (1 if held is None else held.gpus) or 1
    most = max(1, min(MOST_PLACES, MOST_PLACED // widest))
    if not request.checkpoint.resumable and len(fitting) > 1:
        if home is None:
            fitting.sort(key=lambda place: _cheapest(best[place.market.key], request, place.at))
        most = 1
        notify(
            f"job {request.name}: cannot resume from a checkpoint, so it runs on demand in a single market, "
            f"{'its home' if home is not None else f'the cheapest of {len(fitting)}'}, {fitting[0].market.key}"
        )
    elif len(fitting) > most:
        notify(
            f"job {request.name}: of {len(fitting)} markets that fit, it is decided among "
            f"{'its home and ' if home is not None else ''}{plural(most - (home is not None), 'market')} that "
            f"{'is' if most - (home is not None) == 1 else 'are'} cheapest on demand; name fewer in its file to choose others"
        )
    places = tuple(fitting[:most])
    check_types(request, [place.market for place in places])
    return places


def uncounted_note(known: MarketReader, request: JobRequest, places: Sequence[FollowedMarket]) -> str:
    """Return which matching markets are left out as only the availability of others was observed (M11.1); "" if none."""
    rows = [
        row
        for row in known.market_rows()
        if request.may_move and fits(request, Market.parse(row["market"]), str(row["source"]))
    ]
    used, step = {place.market.key for place in places}, step_of(known.settings)
    counted = {row["market"] for row in rows if is_counted_lately(row, step, taken_at(row, known))}
    apart = sorted({row["market"] for row in rows if row["has_price"]} - counted - used)
    if not apart or not used & counted:
        return ""
    named = ", ".join(apart[:3]) + (f" and {len(apart) - 3} more" if len(apart) > 3 else "")
    return f"Left out, as availability was observed in other markets of the job only: {named}."


def _without_wholes(
    rows: Sequence[Mapping[str, Any]], home: FollowedMarket | None
) -> list[Mapping[str, Any]]:
    """Return the rows without the markets of a whole region, or of all regions, of which other rows are parts (M11.1).

    They count the same instances, so a job could not have them twice. A home remains, without its parts.
    """
    wholes = [_wholes_of(Market.parse(str(row["market"])), str(row["source"])) for row in rows]
    counted = set().union(*wholes)
    kept = None if home is None else (home.market, home.source)
    return [
        row
        for row, its in zip(rows, wholes, strict=True)
        if (Market.parse(str(row["market"])), str(row["source"])) not in counted and kept not in its
    ]


def _wholes_of(market: Market, source: str) -> set[tuple[Market, str]]:
    """Return the markets of one source, other than a market itself, that count its instances too: its region, all regions."""
    region = replace(market, zone=WHOLE)
    return {(whole, source) for whole in (region, replace(region, region=WHOLE)) if whole != market}


def _first_later(
    known: MarketReader, at: pd.Timestamp, suits: Callable[[Market, str], bool]
) -> MarketError | None:
    """Return the error for the suitable market that becomes known first, after a time; None if there is none."""
    rows = rows_of(list_markets(known.store))
    named = [(Market.parse(str(row["market"])), str(row["source"])) for row in rows]
    first = {
        known_us: place
        for place in reversed(named)
        if suits(*place) and (known_us := first_known_us(known.store, *place)) is not None
    }
    if not first:
        return None
    return not_known_yet(known.store, *first[min(first)], at=at, step=step_of(known.settings))


def markets_of(known: MarketReader, request: JobRequest) -> tuple[FollowedMarket, ...]:
    """Return the markets of a placed request, its home first; raises as `find_market` and `places_of` do."""
    return (
        places_of(known, request) if request.may_move else (market_of(known, request.place).for_job(request),)
    )


def placed_in(
    known: MarketReader, request: JobRequest, *, market: str | None = None
) -> tuple[JobRequest, tuple[FollowedMarket, ...]]:
    """Return a request placed at the time of its markets, and these markets.

    ``market`` is the only market of a single-market job, or the home of a multi-market job, if given. Raises
    `MarketError` for a single-market job without a market, and as `find_market` and `places_of` do.
    """
    if not request.may_move:
        if market is None and request.market is None:
            raise MarketError(f"job {request.name!r} names no market", remedy="give --market MARKET")
        only = market_of(known, market or request.place).for_job(request)
        return request.with_place(at=only.at, market=only.market.key, source=only.source), (only,)
    text = market or (None if request.market is None else request.place)
    if text is not None:
        home = market_of(known, text)
        request = request.model_copy(update={"market": home.market.key, "source": home.source})
    at = known.at.floor(step_of(known.settings))
    placed = request.with_place(at=at, market=request.market, source=request.source)
    found = places_of(known, placed)
    return request.with_place(at=found[0].at, market=request.market, source=request.source), found


def as_filed(request: JobRequest, stored: StoredJob) -> JobRequest:
    """Return the request of a job file, with start, market and source of the stored job where the file omits them.

    ``deadline_in`` counts from the start of the stored job, as when the job was added.
    """
    filed = stored.request
    if request.names_no_market:  # its markets were chosen when it was added
        request = request.model_copy(update={"markets": filed.markets})
    market, source = filed.market, request.source
    if request.market is not None:
        there, named = parse_market(request.market)
        market, source = there.key, named or source
    return request.with_place(
        at=filed.starts, market=market, source=source or (filed.source if market == filed.market else None)
    )


MOST_OTHERS = 4  # Most alternative instance types named in a proposal


def propose_markets(known: MarketReader, request: JobRequest) -> tuple[JobRequest, str]:
    """Return a request without markets with all followed markets of one instance type, and why as a sentence (ours).

    The throughput of a request holds for one instance type. Candidates are the types with the GPUs
    of the request's configuration or ``gpu_type``, else all types. The type with the cheapest
    market over its last day is chosen, ranked by `RecentMarket.screened_usd` as for a request; types with
    known GPUs come first. Raises `JobError` if no followed market matches.
    """
    step, filled = step_of(known.settings), request.configuration

    def suits(market: Market, source: str = "") -> bool:
        held = gpu_type_of(market)
        gpu = None if held is None else (held.gpu_model, held.gpus)
        fits_filled = filled is None or gpu == (filled.gpu_model, filled.gpus_per_instance)
        return fits_filled and may_run_in(request, market) and can_run_on(request, market)

    found: dict[str, list[FollowedMarket]] = {}
    usable = counted_or_priced(known.market_rows(), known, step, known.at)
    for row in usable:
        market = Market.parse(row["market"])
        if suits(market):
            found.setdefault(market.instance_type, []).append(followed_row(row, known))
    if not found:
        later = _first_later(known, known.at, suits)
        raise later or JobError(
            f"job {request.name!r} names no market, and none is followed that fits it",
            expected="market, where it runs (its home, if it may move), or markets, among which it may move",
            remedy='add markets = ["gcp/*/*/a3-highgpu-1g"], or gpu_type = "H100", or give --market MARKET',
        )
    (chosen, why), *others = _types_by_price(known, found, request) if len(found) > 1 else [(*found, "")]
    names = _patterns(found[chosen])
    basis = (
        f"of {plural(len(found), 'instance type')} the cheapest{why}"
        if others
        else "the only instance type that fits"
    )
    wanted = request.gpu_type or (filled.gpu_model if filled else None)
    if wanted is not None:
        basis += f" with {wanted}"
    if others:
        more = first_of((f"{name}{its}" for name, its in others), MOST_OTHERS)
        basis += (
            f", and its throughput is taken to be theirs; else {join_words(more)}: "
            f"name it in the file, as markets = {json.dumps(_patterns(found[others[0][0]]))}, or give --market MARKET"
        )
    return request.model_copy(update={"markets": tuple(names)}), (
        f"job {request.name} names no market: it may move among the "
        f"{plural(len({place.market.key for place in found[chosen]}), 'market')} of {chosen}, {basis}; "
        f"markets = {json.dumps(names)}"
    )


def _patterns(found: Iterable[FollowedMarket]) -> list[str]:
    return sorted({f"{place.market.provider}/*/*/{place.market.instance_type}" for place in found})


def _types_by_price(
    known: MarketReader, found: Mapping[str, Sequence[FollowedMarket]], request: JobRequest
) -> list[tuple[str, str]]:
    """Return instance types, each with its price as text: types with known GPUs first, then by cost of the work.

    The cost is that of the work on the largest number of instances of the request, in the cheapest
    market of the type. The text has the price of an instance-hour and a GPU-hour there.
    """
    from slackwater.optimization.market.recent import RECENT_PERIOD, recent_market  # few files name no market

    followed_markets = [
        (place, place.at - RECENT_PERIOD) for followed in found.values() for place in followed
    ]
    histories = dict(
        zip((place for place, _ in followed_markets), try_histories(known, followed_markets), strict=True)
    )
    ranked = []
    for name, followed in found.items():
        read = [
            recent_market(history) for place in followed if isinstance(history := histories[place], History)
        ]
        _, instances, throughput = run_on(request, followed[0].market)
        priced = [(usd, place.key) for place in read if not np.isnan(usd := place.screened_usd(instances))]
        usd, key = min(priced, default=(np.inf, ""))
        each, gpus = usd / instances, gpus_per_instance(request, followed[0].market)
        a_gpu = f", {price(each / gpus)} a GPU-hour," if gpus and gpus > 1 else ""
        words = f" ({price(each)} USD an instance-hour{a_gpu} by its last day in {key})" if key else ""
        work_usd = each * work_amount(request, followed[0].market, 1.0) / throughput.rate(1)
        ranked.append((all(gpu_type_of(place.market) is None for place in followed), work_usd, name, words))
    return [(name, words) for _, _, name, words in sorted(ranked)]


def _cheapest(
    row: Mapping[str, Any], request: JobRequest, listed_at: pd.Timestamp | None = None
) -> tuple[float, float, str]:
    """Return a sort key: on-demand price per unit of work, most counts first, name.

    A price that was not observed is the list price ``listed_at`` a time (None: unknown).
    """
    price, market = float(row["on_demand_usd"]), Market.parse(str(row["market"]))
    if np.isnan(price) and listed_at is not None:
        known = list_price(market.provider, market.region, market.instance_type, listed_at.to_pydatetime())
        price = np.nan if known is None or known.usd is None else known.usd
    with suppress(JobError):  # `check_types` raises this error for the markets that are used
        price /= run_on(request, market)[2].rate(1)
    return np.inf if np.isnan(price) else price, -float(row["count_rows"]), str(row["market"])


def _common_time(request: JobRequest, found: Sequence[FollowedMarket]) -> pd.Timestamp:
    """Return the time that most markets have in common, preferably within the job; the latest if tied."""
    votes = Counter(place.at for place in found)
    return max(votes, key=lambda at: (request.starts <= at < request.ends, votes[at], at))
