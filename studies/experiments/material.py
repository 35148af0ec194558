"""Inputs of experiments: the series of a folder on the slot grid, and replays over processes (M1.3, M7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.executor import fan_out
from slackwater.flows.turn.estimates import timetable_of
from slackwater.forecasting.origins import backtest, key_of
from slackwater.forecasting.predictor import FittedPredictor, Panel, Predictor
from slackwater.forecasting.predictors import FLOOR, make_predictor
from slackwater.forecasting.quantiles import Variable
from slackwater.optimization.market.window import PointForecast, Quantiles, of_quantiles
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.score import hindsight
from slackwater.optimization.selection.contract import utility_bounds
from slackwater.optimization.window.plan import Outcome
from slackwater.studies.audit import audit_outcome
from slackwater.studies.replays import replay_pool
from slackwater.studies.trials.comparison import day_blocks
from slackwater.studies.trials.scenarios import (
    Draw,
    Grid,
    Part,
    Scenario,
    Tape,
    aligned,
    draw_scenarios,
    held_within,
    moving_paths,
    peers_of,
    sample_and_hold,
    scenario_of,
)
from slackwater.warehouse.asof import PRICE_MAX_AGE
from slackwater.warehouse.catalogue import known_conventions
from slackwater.warehouse.errors import MarketError, SettingsError, SourceFileError
from slackwater.warehouse.history import AVAILABLE, GAPS_UNTIL_STALE, PRICE, ROW_KNOWN_AT, History, Market

# ---
# Read the two tidy tables of a folder and put their series on the slot grid (M1.3).

STEP = pd.Timedelta(minutes=30)
#: The longest deadline of the grid: a series is long enough if its test half is longer (M7).
LONGEST_JOB = 48
#: Maximum number of price paths per source (`moving_paths`).
PATHS_PER_SOURCE = 12
#: Kinds of counts that a job could have launched; listed offers do not test a launch.
LAUNCHABLE = ("probe", "held")

_PLACE = ("provider", "region", "zone", "instance_type", "timestamp")
PRICE_COLUMNS = (*_PLACE, "spot_price_usd_per_hour", "on_demand_price_usd_per_hour", "source")
COUNT_COLUMNS = (*_PLACE, "available", "capacity_probed", "gap_seconds", "kind", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tapes:
    """Series of a folder that E1 can use, on a common grid; ``notes`` explains which series were omitted and why."""

    counts: tuple[Tape, ...]
    paths: tuple[Tape, ...]
    notes: tuple[str, ...]


def read_table(folder: Path, name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return ``folder/name.parquet`` with UTC timestamps.

    Raises `SourceFileError` for a missing file or column, an unreadable file, an empty table or timestamps of another type.
    """
    path = folder / f"{name}.parquet"
    if not path.is_file():
        there = (
            ", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "no such folder"
        )
        raise SourceFileError(
            folder,
            0,
            f"no {name}.parquet ({there or 'an empty folder'})",
            expected="a folder with prices.parquet and availability.parquet",
            remedy="give that folder with --data",
        )
    try:
        table = pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise SourceFileError(
            path, 0, f"not readable as Parquet ({error})", expected="a Parquet file"
        ) from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise SourceFileError(
            path,
            0,
            f"no column {', '.join(missing)}",
            expected=f"columns {', '.join(columns)}",
            remedy="rename the columns",
        )
    if table.empty:
        raise SourceFileError(path, 0, "no row", expected="at least one observation")
    if not pd.api.types.is_datetime64_any_dtype(table["timestamp"]):
        raise SourceFileError(
            path, 0, f"timestamp of type {table['timestamp'].dtype}", expected="timestamps (UTC)"
        )
    return table.assign(timestamp=pd.to_datetime(table["timestamp"], utc=True).dt.as_unit("ns"))


def read_tapes(folder: Path, *, paths_per_source: int = PATHS_PER_SOURCE, single: bool = False) -> Tapes:
    """Return availability series and price paths of a folder, each with a test half longer than the longest deadline.

    Availability: kinds `LAUNCHABLE` with a stated probe capacity of at least two, or of exactly one if ``single``. Prices: paths
    with a known on-demand price, those with most changes of each source. Raises `SourceFileError` for unusable tables and
    `MarketError` if no series is long enough.
    """
    prices = read_table(folder, "prices", PRICE_COLUMNS)
    counts = read_table(folder, "availability", COUNT_COLUMNS)
    notes: list[str] = []
    least = 1 if single else 2
    probed = [tape for tape in count_tapes(counts, least_capacity=least) if not single or tape.bound == 1]
    long_counts = tuple(tape for tape in probed if _long_enough(tape))
    paths = [path for path in price_tapes(prices, counts) if _long_enough(path)]
    for what, kept, found in (
        ("count series", len(long_counts), len(probed)),
        (
            "price paths with an on-demand price",
            len(paths),
            prices.groupby(_series_keys(prices), dropna=False).ngroups,
        ),
    ):
        if not kept:
            raise MarketError(
                f"{folder}: {found} {what}, none long enough",
                expected=f"at least one with more than {2 * LONGEST_JOB + 1} slots of {STEP / pd.Timedelta(minutes=1):.0f} minutes",
                remedy="give a folder with longer series",
            )
        notes.append(f"{kept} of {found} {what} are long enough")
    chosen = moving_paths(paths, most=paths_per_source)
    if len(chosen) < len(paths):
        notes.append(
            f"{len(chosen)} price paths used: at most {paths_per_source} of each source, the liveliest of each type"
        )
    return Tapes(counts=long_counts, paths=tuple(chosen), notes=tuple(notes))


def count_tapes(table: pd.DataFrame, *, least_capacity: int = 2) -> Iterator[Tape]:
    """Yield the launchable availability series with a stated capacity of at least ``least_capacity``, on the slot grid.

    They are ordered by source and market.
    """
    conventions = known_conventions()
    usable = table[table["kind"].isin(LAUNCHABLE) & table["capacity_probed"].notna()]
    for _, rows in usable.groupby(["source", *_PLACE[:4]], dropna=False, sort=True):
        capacity = int(rows["capacity_probed"].max())
        if capacity < least_capacity:
            continue
        rows = _ordered(rows)
        stated = rows["gap_seconds"].dropna()
        # Without a stated gap, the median interval between observations is used.
        gaps = stated if len(stated) else rows["timestamp"].diff().dt.total_seconds().fillna(0.0)
        gap = pd.Timedelta(seconds=float(gaps.median()))
        tape = _tape(
            rows,
            "available",
            bound=float(capacity),
            max_age=max(STEP, GAPS_UNTIL_STALE * gap),
            real_clock=conventions.real_clock(str(rows["source"].iloc[0])),
        )
        yield replace(tape, within=_within(rows, tape, gap))


def price_tapes(prices: pd.DataFrame, counts: pd.DataFrame) -> Iterator[Tape]:
    """Yield the price series with a known on-demand price, on the slot grid, by source, market and product.

    The on-demand price is the newest price stated in the first half of the series' time, so that it uses no information from the
    test part. A price read at every probe of its source is valid until the last of those probes.
    """
    conventions = known_conventions()
    probes = counts.groupby(["source", *_PLACE[:4]], dropna=False)["timestamp"].max()
    for key, rows in prices.groupby(_series_keys(prices), dropna=False, sort=True):
        source = str(key[0])
        rows = _ordered(rows)
        middle = rows["timestamp"].iloc[0] + (rows["timestamp"].iloc[-1] - rows["timestamp"].iloc[0]) / 2
        stated = rows.loc[(rows["timestamp"] <= middle), "on_demand_price_usd_per_hour"].dropna()
        if stated.empty or not stated.iloc[-1] > 0:
            continue
        probed = conventions.probed_price(source)
        yield _tape(
            rows,
            "spot_price_usd_per_hour",
            bound=float(stated.iloc[-1]),
            max_age=pd.Timedelta(days=36500) if probed else PRICE_MAX_AGE,
            real_clock=conventions.real_clock(source),
            until=probes.get(key[:5]) if probed else None,
        )


def _series_keys(prices: pd.DataFrame) -> list[str]:
    return ["source", *_PLACE[:4], *(["product"] if "product" in prices.columns else [])]


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in ascending time, with the last row of duplicate times."""
    return rows.sort_values("timestamp", kind="stable").drop_duplicates("timestamp", keep="last")


def _tape(
    rows: pd.DataFrame,
    column: str,
    *,
    bound: float,
    max_age: pd.Timedelta,
    real_clock: bool,
    until: pd.Timestamp | None = None,
) -> Tape:
    """Return a series on the grid from its first slot to the last slot that begins by its last observation (or by ``until``)."""
    times = pd.DatetimeIndex(rows["timestamp"])
    last = times[-1] if until is None else max(times[-1], until)
    grid = pd.date_range(times[0].ceil(STEP), last.floor(STEP), freq=STEP)
    values = sample_and_hold(
        _plain(times),
        rows[column].to_numpy(dtype=float, na_value=np.nan),
        _plain(grid),
        max_age=max_age.to_timedelta64(),
    )
    place = {str(name): value for name, value in rows.iloc[0].items()}
    return Tape(
        variable="count" if column == "available" else "price",
        market=Market(**{name: str(place[name]) for name in _PLACE[:4]}),
        source=str(place["source"]),
        product="" if column == "available" or pd.isna(place.get("product")) else str(place["product"]),
        values=values,
        bound=bound,
        first=times[0].ceil(STEP),
        step=STEP,
        real_clock=real_clock,
    )


def _within(rows: pd.DataFrame, tape: Tape, gap: pd.Timedelta) -> np.ndarray | None:
    """Return the counts probed between the slots of a trace, None if the interval between probes is unknown."""
    if not gap > pd.Timedelta(0):
        return None
    grid = pd.date_range(tape.first, periods=len(tape), freq=tape.step)
    return held_within(
        _plain(pd.DatetimeIndex(rows["timestamp"])),
        rows["available"].to_numpy(dtype=float, na_value=np.nan),
        _plain(grid),
        gap=gap.to_timedelta64(),
    )


def _plain(times: pd.DatetimeIndex) -> np.ndarray:
    return times.tz_convert("UTC").tz_localize(None).to_numpy(dtype="datetime64[ns]")


def _long_enough(tape: Tape) -> bool:
    return len(tape) - tape.half > LONGEST_JOB and tape.half > LONGEST_JOB


# Worlds: zones of one kind that were probed at the same time.


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Markets on common slots: availability and prices, shape (slots,), with NaN availability in gaps.

    ``synthetic``: the availability of some market is paired with the prices of a different market. ``ahead[market][t]``: counts
    forecast in slot t for the slots t+1, t+2, ..., shape (h,). ``within`` has the counts read between slots, where there are
    any (`Tape.within`).
    """

    name: str
    counts: Mapping[str, np.ndarray]
    prices: Mapping[str, np.ndarray]
    on_demand_usd: Mapping[str, float]
    slot_hours: float
    synthetic: bool
    ahead: Mapping[str, Mapping[int, np.ndarray]] | None = None
    within: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Number of slots of the record."""
        return len(next(iter(self.counts.values())))


#: Minimum number of zones in a world.
LEAST_ZONES = 2
#: Shorter records have no room for a stream in their second half.
LEAST_SLOTS = 200


def read_worlds(folder: Path, *, least_capacity: int = 2) -> list[tuple[World, list[Tape]]]:
    """Return every instance type that at least two zones of a source probed at the same time, with its availability series.

    Prices are the zones' prices in the source; a price stored only once is a catalogue price and is used for all slots. Zones
    without prices get a synthetic pairing with the longest price series of the instance type in the folder, from its first slot
    on. Types with most zones come first. Raises `MarketError` if no type has two zones.
    """
    prices = read_table(folder, "prices", PRICE_COLUMNS)
    counts = read_table(folder, "availability", COUNT_COLUMNS)
    paths = list(price_tapes(prices, counts))
    kinds: dict[tuple[object, ...], list[Tape]] = {}
    for tape in count_tapes(counts, least_capacity=least_capacity):
        kinds.setdefault((*tape.kind, tape.first, len(tape)), []).append(tape)
    worlds = []
    for zones in kinds.values():
        if len(zones) >= LEAST_ZONES and len(zones[0]) >= LEAST_SLOTS:
            world = _world(zones, paths, prices)
            if world is not None:
                worlds.append((world, zones))
    if not worlds:
        raise MarketError(
            f"{folder}: no instance type was probed in two zones at the same time",
            expected="counts of at least two zones of one source",
            remedy="give a folder with more zones",
        )
    return sorted(worlds, key=lambda one: (-len(one[1]), one[0].name))


def _world(zones: Sequence[Tape], paths: Sequence[Tape], prices: pd.DataFrame) -> World | None:
    own = {(path.market, path.source): path for path in paths}
    hours = STEP / pd.Timedelta(hours=1)
    joined = [path for path in paths if path.market.instance_type == zones[0].market.instance_type]
    joined.sort(key=lambda path: (-len(path), path.label))
    price, dear, synthetic = {}, {}, False
    for z, zone in enumerate(zones):
        path = own.get((zone.market, zone.source))
        values = np.full(len(zone), np.nan)
        if path is not None:
            values = aligned(zone, path) if len(path) else np.full(len(zone), _stated_once(prices, path))
        if path is None or not np.isfinite(values).any():
            long_enough = [one for one in joined if len(one) >= len(zone)]
            if not long_enough:
                return None
            path, synthetic = long_enough[z % len(long_enough)], True
            values = path.values[: len(zone)]
        price[zone.market.zone] = _fill_gaps(values)
        dear[zone.market.zone] = path.bound
    kind = f"{zones[0].market.instance_type}, {zones[0].market.provider}, {len(zones)} zones"
    return World(
        name=kind,
        counts={zone.market.zone: zone.values for zone in zones},
        prices=price,
        on_demand_usd=dear,
        slot_hours=hours,
        synthetic=synthetic,
        within={zone.market.zone: zone.within for zone in zones if zone.within is not None},
    )


def _stated_once(prices: pd.DataFrame, path: Tape) -> float:
    """Return the price of a series with a single observation, a catalogue price."""
    own = prices["source"].eq(path.source) & prices["zone"].eq(path.market.zone)
    own &= prices["instance_type"].eq(path.market.instance_type) & prices["region"].eq(path.market.region)
    return float(prices.loc[own, "spot_price_usd_per_hour"].iloc[-1])


def _fill_gaps(values: np.ndarray) -> np.ndarray:
    """Return prices with gaps filled by the last known price, or by the first price at the start."""
    return pd.Series(values).ffill().bfill().to_numpy(dtype=float)


# Scenarios of E1 with the forecasts that would have been issued in each of their slots (M6.4, M7).

#: Number of lead times forecast: more than twice the widest window of the pool; the last value is used beyond.
HORIZON = 12


Progress = Callable[[int, int], None]


def make_scenarios(
    tapes: Tapes,
    *,
    grid: Grid,
    part: Part,
    per_cell: int,
    seed: int,
    planner: str | None = None,
    progress: Progress | None = None,
) -> list[Scenario]:
    """Draw ``per_cell`` jobs for each cell of the grid on pairings of ``tapes``, each with its record and issued forecasts.

    ``planner`` names the forecaster (default: that of the settings). It is estimated on the timetable of the settings and uses
    only observations available by a slot, in either part. ``progress(done, total)`` counts the forecasts issued. The same tapes,
    part and seed give the same scenarios.
    """
    settings = Settings.model_validate({})
    rng = np.random.default_rng([seed, 0 if part == "train" else 1])
    draws = draw_scenarios(tapes.counts, tapes.paths, grid=grid, part=part, per_cell=per_cell, rng=rng)
    ahead = _quantiles(draws, tapes, planner or settings.planner, settings, progress)
    peers = {tape.label: peers_of(tape, tapes.counts) for tape in tapes.counts}
    return [
        scenario_of(draw, peers=peers[draw.counts.label], forecasts=_issued(draw, ahead)) for draw in draws
    ]


def _quantiles(
    draws: Sequence[Draw], tapes: Tapes, planner: str, settings: Settings, progress: Progress | None
) -> dict[str, dict[int, np.ndarray]]:
    """Return forecasts of every series that the draws use, at every slot they need: label -> slot -> quantiles (h, 19)."""
    slots: dict[str, set[int]] = {}
    for draw in draws:
        for tape, start in ((draw.counts, draw.count_start), (draw.path, draw.path_start)):
            slots.setdefault(tape.label, set()).update(range(start, start + draw.cell.deadline_slots))
    total = sum(map(len, slots.values()))
    ahead: dict[str, dict[int, np.ndarray]] = {}
    done = 0
    for panel in panels_of((*tapes.counts, *tapes.paths)):
        asked = {tape.label: slots[tape.label] for tape in panel if tape.label in slots}

        def told(more: int) -> None:
            nonlocal done
            done += more
            if progress is not None:
                progress(done, total)

        ahead |= issued_quantiles(panel, asked, planner=planner, settings=settings, progress=told)
    return ahead


def panels_of(tapes: Sequence[Tape]) -> list[list[Tape]]:
    """Return groups of series whose forecasters learn from each other: same variable, source and product."""
    found: dict[tuple[str, str, str], list[Tape]] = {}
    for tape in tapes:
        found.setdefault((tape.variable, tape.source, tape.product), []).append(tape)
    return list(found.values())


def _issued(draw: Draw, ahead: dict[str, dict[int, np.ndarray]]) -> list[PointForecast]:
    """Return the forecasts available in each slot of a job, combined from the price path and the availability series."""
    prices, counts = ahead[draw.path.label], ahead[draw.counts.label]
    capacity = int(draw.counts.bound)
    return [
        of_quantiles(
            Quantiles(
                price=prices[draw.path_start + t], count=counts[draw.count_start + t], capacity=capacity
            )
        )
        for t in range(draw.cell.deadline_slots)
    ]


def issued_quantiles(
    panel: Sequence[Tape],
    slots: Mapping[str, Iterable[int]],
    *,
    planner: str,
    settings: Settings,
    progress: Callable[[int], None] | None = None,
) -> dict[str, dict[int, np.ndarray]]:
    """Return forecasts of series of a panel at the given slots, by label: slot -> quantiles of the next `HORIZON` values, (h, 19).

    Each variable is forecast separately, with the other variable constant. The forecaster is estimated on the settings'
    timetable, on the whole panel if it learns from several markets, and uses no observation after the slot (M6.4).
    """
    if not slots:
        return {}
    histories = {tape.label: history_of(tape) for tape in panel}
    wanted = {tape.label: sorted(set(slots[tape.label])) for tape in panel if tape.label in slots}
    made = backtest(
        list(histories.values()),
        _OfOne(predictor=make_predictor(planner), variable=panel[0].variable),
        origins={
            key_of(histories[tape.label]): [tape.time(t) for t in wanted[tape.label]]
            for tape in panel
            if tape.label in wanted
        },
        horizon=HORIZON,
        timetable=timetable_of(settings),
        progress=progress,
    )
    return {
        label: {
            slot: forecast.quantiles(panel[0].variable).astype(float)
            for slot, forecast in zip(own, made[key_of(histories[label])], strict=True)
        }
        for label, own in wanted.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfOne:
    """Predictor for one variable; the other variable is constant and is forecast by its last value."""

    predictor: Predictor
    variable: Variable

    @property
    def name(self) -> str:
        return self.predictor.name

    @property
    def pooled(self) -> bool:
        return self.predictor.pooled

    def fit(self, panel: Panel) -> FittedPredictor:
        return self.predictor.fit(panel) if panel.variable == self.variable else _CONSTANT.fit(panel)


_CONSTANT = make_predictor(FLOOR)


def history_of(tape: Tape) -> History:
    """Return a series as a history whose other variable is constant, for forecasters of a single variable."""
    index = pd.date_range(tape.first, periods=len(tape), freq=tape.step)
    constant = np.where(np.isnan(tape.values), np.nan, 1.0)
    is_price = tape.variable == "price"
    known = pd.Series(index, index=index)
    frame = pd.DataFrame(
        {
            PRICE: tape.values if is_price else constant,
            AVAILABLE: constant if is_price else tape.values,
            ROW_KNOWN_AT: known,
        }
    )
    return History(
        market=tape.market,
        step=tape.step,
        known_at=index[-1],
        frame=frame,
        on_demand_usd=tape.bound if is_price else 1.0,
        capacity=1 if is_price else int(tape.bound),
        real_clock=tape.real_clock,
        source=tape.source,
        within=tape.within,
    )


# ---
# Replay many policies on many scenarios, over processes, with the same results in the same order.


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRun:
    """Results of every policy on every job.

    ``jobs`` has a row for each job: job, deadline_slots, load, mu_up, n_max, counts, path, source, synthetic, start (UTC),
    unit (the OD-only cost, USD), low and high (hindsight's bracket, USD), bound_low and bound_high (the bounds of M5.2, USD).
    ``utility`` and ``cost`` (USD), ``on_time`` and ``late`` have shape (jobs, policies), in the order of ``jobs`` and ``policies``.
    Late jobs finished after the deadline d; jobs that are neither on time nor late were given up.
    """

    jobs: pd.DataFrame
    policies: tuple[str, ...]
    utility: np.ndarray
    cost: np.ndarray
    on_time: np.ndarray
    late: np.ndarray

    @property
    def unit(self) -> np.ndarray:
        """Each job's OD-only cost, USD, shape (jobs,)."""
        return self.jobs["unit"].to_numpy(dtype=float)

    @property
    def blocks(self) -> np.ndarray:
        """Each job's block, shape (jobs,): availability series and day of the start, because jobs of a block share slots."""
        return day_blocks(self.jobs["counts"], self.jobs["start"])

    @property
    def relative(self) -> np.ndarray:
        """Utilities in units of each job's OD-only cost, shape (jobs, policies)."""
        return np.asarray(self.utility / self.unit[:, None])

    @property
    def normalised(self) -> np.ndarray:
        """Utilities in the fixed bounds of M5.2, clipped to [0, 1], shape (jobs, policies)."""
        low = self.jobs["bound_low"].to_numpy(dtype=float)[:, None]
        high = self.jobs["bound_high"].to_numpy(dtype=float)[:, None]
        return np.asarray(np.clip((self.utility - low) / (high - low), 0.0, 1.0))


def run_pool(
    scenarios: Sequence[Scenario],
    policies: Sequence[Policy[Any]],
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> PoolRun:
    """Replay ``policies`` on every scenario with its issued forecasts, and bracket hindsight.

    Every outcome is audited (M3.5). Results and their order do not depend on ``processes``. ``progress(done, total)`` counts
    jobs. Raises `SettingsError` without jobs or policies, for a duplicate policy, or for fewer than one process.
    """
    names = [policy.name for policy in policies]
    if not scenarios or not names or len(set(names)) < len(names):
        raise SettingsError(
            f"{len(scenarios)} jobs and {len(names)} policies, {len(set(names))} of different names",
            expected="at least one of each, no policy twice",
        )
    rows = list(fan_out(_score, scenarios, tuple(policies), processes=processes, progress=progress))
    table = np.array([row.results for row in rows], dtype=float)
    return PoolRun(
        jobs=pd.DataFrame([row.job for row in rows]),
        policies=tuple(names),
        utility=table[:, 0],
        cost=table[:, 1],
        on_time=table[:, 2] > 0,
        late=table[:, 3] > 0,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """Results of a job: its table row, and utility, cost, on time and late of every policy, shape (4, policies)."""

    job: dict[str, Any]
    results: np.ndarray


def _score(scenario: Scenario, policies: tuple[Policy[Any], ...]) -> _Row:
    outcomes = replay_pool(
        policies, scenario.job, scenario.window, forecasts=scenario.forecasts, record=scenario.record
    )
    for outcome in outcomes:
        audit_outcome(scenario.job, scenario.window, outcome)
    return _Row(job_row(scenario), results_of(outcomes))


def results_of(outcomes: Sequence[Outcome]) -> np.ndarray:
    """Return utility and cost (USD), on time and late (1 or 0) of each outcome, shape (4, outcomes)."""
    return np.array(
        [
            [o.utility_usd for o in outcomes],
            [o.total_cost_usd for o in outcomes],
            [float(o.on_time) for o in outcomes],
            [float(not o.on_time and o.finish_slots is not None) for o in outcomes],
        ]
    )


def job_row(scenario: Scenario) -> dict[str, Any]:
    """Return the row of `PoolRun.jobs`, including hindsight."""
    draw, cell, window = scenario.draw, scenario.draw.cell, scenario.window
    bracket = hindsight(scenario.job, window)
    low, high = utility_bounds(scenario.job, on_demand_usd=window.on_demand_usd, slot_hours=window.slot_hours)
    return {
        "job": draw.name,
        "deadline_slots": cell.deadline_slots,
        "load": cell.load,
        "mu_up": cell.mu_up,
        "n_max": cell.n_max,
        "counts": draw.counts.label,
        "path": draw.path.label,
        "source": draw.counts.source,
        "synthetic": draw.synthetic,
        "start": scenario.at,
        "unit": scenario.unit,
        "low": bracket.low,
        "high": bracket.high,
        "bound_low": low,
        "bound_high": high,
    }
