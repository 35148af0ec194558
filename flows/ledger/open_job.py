"""A stored job at the slot to decide: its markets, decisions and reports in slots and work units (M2.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from slackwater.flows.following import Freshness
from slackwater.flows.ledger.decisions import in_force
from slackwater.flows.ledger.reports import MOMENT, Report, counting, measured_times
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.belief.archetypes import ALL, NONE, PART
from slackwater.optimization.belief.launches import Launch, launch_state
from slackwater.optimization.job.definition import Allocation, Job
from slackwater.optimization.job.request import JobRequest, first_slot
from slackwater.optimization.moving.definition import IDLE, MultiMarketPolicy, job_in_markets, placement
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.decision import NOTHING, LiveJob, ReportedState, Revision, live_job
from slackwater.optimization.replay.run import SlotMarket
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import History, Ratings


def as_reported(
    reports: Iterable[Report], request: JobRequest, job: Job, *, start: pd.Timestamp, step: pd.Timedelta
) -> list[ReportedState]:
    """Return reports in slots and work units, each for the first slot that starts at or after the reported time."""
    found = []
    for report in reports:
        place = max(0.0, (report.reported_at - start) / step)
        slot = math.ceil(place - 1e-9)
        done = None if report.progress is None else report.progress / request.workload.amount * job.workload
        found.append(
            ReportedState(
                slot=slot,
                done=job.workload if report.ends else done,
                size=None if report.held is None else report.held.total,
                early=min(max(0.0, slot - place), 1.0 - 1e-9),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBefore:
    """The instances that a job runs as a slot begins; ``reported``: from a report, else computed from decisions."""

    allocation: Allocation = NOTHING
    reported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """State of a job at the slot to decide, on the M >= 1 markets of ``histories``.

    ``reports`` are those in force by then; ``fresh`` tests for stale data. ``policy`` decides the job, and
    ``because`` is why it was chosen ("": the first multi-market policy, before a round). The properties of a
    single market are those of market ``place``; M means that the job has not begun.
    """

    request: JobRequest
    histories: tuple[History, ...]
    live: LiveJob
    reports: tuple[Report, ...] = ()
    policy: Policy[Any] | MultiMarketPolicy[Any] | None = None
    because: str = ""
    fresh: Freshness | None = None
    place: int = 0

    def in_market(self, m: int) -> OpenJob:
        """Return the job as seen from market ``m``."""
        return replace(self, place=m)

    @property
    def chosen_because(self) -> str:
        """The reason for its policy."""
        number = len(self.places)
        many = (
            f"because the job may run in {number} markets" if number > 1 else "because the job names markets"
        )
        return self.because or f"a multi-market policy, {many}"

    @property
    def places(self) -> tuple[str, ...]:
        """The names of its markets, as in decisions."""
        return tuple(history.market.key for history in self.histories)

    @property
    def market(self) -> int:
        """Index of the market whose prices and counts describe the job: its place, else the first market."""
        return self.place if self.place < len(self.histories) else 0

    @property
    def run(self) -> Job:
        """The job as its market runs it."""
        return self.live.job.runs[self.market]

    @property
    def history(self) -> History:
        """The history of its market; for a job that has not begun, with the assumptions of all markets."""
        history = self.histories[self.market]
        if self.place < len(self.histories):
            return history
        assumed = (text for own in self.histories for text in own.assumptions)
        return replace(history, assumptions=tuple(dict.fromkeys(assumed)))

    @property
    def seen(self) -> SlotMarket:
        """The observations of its market."""
        return self.live.seen[self.market]

    @property
    def forecast(self) -> Forecast | None:
        """The forecast for its market that was issued in the slot to decide."""
        return self.live.forecasts[self.market]

    @property
    def held(self) -> HeldBefore:
        """Instances that run at the decision: those at the present second, or at the start of the slot by report or decision."""
        slot = self.live.slot
        if self.live.moment is not None:
            return HeldBefore(allocation=self.live.moment.held, reported=True)
        for report, found in zip(reversed(self.reports), reversed(self.live.reported), strict=True):
            if found.slot == slot and report.held is not None:
                return HeldBefore(allocation=report.held, reported=True)
        return HeldBefore(allocation=self.live.ran(slot - 1).allocation)

    def after(self, decided: Mapping[int, tuple[str | None, Allocation]]) -> OpenJob:
        """Return the job with later decisions, by slot: a market's name (None: no instances), and the allocation."""
        own = {
            slot: IDLE if key is None else placement(self.places.index(key), allocation)
            for slot, (key, allocation) in decided.items()
            if key is None or key in self.places
        }
        return replace(self, live=replace(self.live, decided={**self.live.decided, **own}))

    @property
    def stale(self) -> str | None:
        """A note that the newest observation of its market is stale, None if it is not or if ``fresh`` is None."""
        return None if self.fresh is None else self.fresh.stale(self.history, self.live.now)

    @property
    def progress_report(self) -> Report | None:
        """The newest report with progress, None if progress is computed from the decisions alone."""
        with_progress = [report for report in self.reports if report.finished or report.progress is not None]
        return with_progress[-1] if with_progress else None


def open_job(
    request: JobRequest,
    histories: Sequence[History],
    *,
    decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]],
    forecasts: Sequence[Sequence[Forecast]] | None = None,
    peers: Sequence[Sequence[History]] | None = None,
    reports: Sequence[Report] = (),
    revisions: Sequence[Mapping[str, Any]] = (),
    ratings: Sequence[Ratings] | None = None,
    by: tuple[Policy[Any] | MultiMarketPolicy[Any] | None, str] = (None, ""),
    fresh: Freshness | None = None,
) -> OpenJob:
    """Return the state of a job from a placed request and the histories of its markets, its home first; see `live_job`.

    ``decided`` is by slot: the name of a market (None: no instances) and the allocation; ``forecasts``,
    ``peers`` and ``ratings`` are per market; ``by`` is the deciding policy and the reason. Only ``reports`` on a time up to
    the start of the slot to decide, and known by then, are used, and only ``revisions`` of earlier slots.
    Raises `JobError` if a decision or report of a multi-market job names a market that is not among them.
    """
    step, start = histories[0].step, first_slot(request, histories[0].step)
    counted = counting(reports, known_at=histories[0].known_at.floor(step))
    measured = request.model_copy(update=measured_times(counted))
    job = job_in_markets(measured, histories)
    been = {slot: key for slot, (key, _) in decided.items() if key is not None}
    reported = as_reported(counted, request, job.job, start=start, step=step)
    at = _market_indices(
        request,
        histories,
        [
            *been.items(),
            *((own.reported_at, own.market) for own in counted if own.market),
            *((pd.Timestamp(row["revised_at"]), str(row["market"])) for row in revisions),
        ],
    )
    live = live_job(
        job,
        start,
        histories,
        decided={
            slot: IDLE if key is None else placement(at[key], allocation)
            for slot, (key, allocation) in decided.items()
        },
        forecasts=forecasts,
        peers=peers,
        reported=reported,
        names=_short_names(histories),
        launches=[
            launches_of(
                counted,
                decided,
                history.market.key if request.may_move else None,
                start=start,
                step=step,
                revisions=revisions,
            )
            for history in histories
        ],
        ratings=ratings,
        places={
            own.slot: at[report.market]
            for report, own in zip(counted, reported, strict=True)
            if report.market is not None
        },
        revised=_revisions_before(
            revisions, at, start=start, step=step, before=histories[0].known_at.floor(step)
        ),
    )
    return OpenJob(
        request=request,
        histories=tuple(histories),
        live=live,
        reports=tuple(counted),
        policy=by[0],
        because=by[1],
        fresh=fresh,
    )


def _revisions_before(
    revisions: Sequence[Mapping[str, Any]],
    at: Mapping[str, int],
    *,
    start: pd.Timestamp,
    step: pd.Timedelta,
    before: pd.Timestamp,
) -> dict[int, list[Revision]]:
    """Return the revisions of the slots before a time, by slot; ``at`` has the index of each market."""
    found: dict[int, list[Revision]] = {}
    for row in revisions:
        slot, m = pd.Timestamp(row["slot"]), at[str(row["market"])]
        if slot >= before:
            continue
        allocation = Allocation(int(row["on_demand"]), int(row["spot"]))
        found.setdefault(round((slot - start) / step), []).append(
            Revision(
                seconds=(pd.Timestamp(row["revised_at"]) - slot).total_seconds(),
                target=placement(m, allocation),
                lost=((pd.Timestamp(row["lost_at"]) - slot).total_seconds(), m, int(row["spot_left"])),
            )
        )
    return found


def _market_indices(
    request: JobRequest, histories: Sequence[History], been: Sequence[tuple[pd.Timestamp, str]]
) -> dict[str, int]:
    """Return the index of each market in which the job was to be, by name.

    A single-market job was in its only market. Raises `JobError` for a market of a multi-market job
    that is not among ``histories``.
    """
    keys = [history.market.key for history in histories]
    if not request.may_move:
        return {key: 0 for _, key in been}
    for slot, key in been:
        if key not in keys:
            raise JobError(
                f"job {request.name!r} was to be in {key} at {slot}, which cannot be read now",
                expected=f"one of {', '.join(keys)}",
                remedy="bring its source back, or give the job another name",
            )
    return {key: keys.index(key) for _, key in been}


def _short_names(histories: Sequence[History]) -> list[str]:
    """Return short names of the markets: their places if these differ, else the market keys."""
    zones = [history.market.place for history in histories]
    return zones if len(set(zones)) == len(zones) else [history.market.key for history in histories]


# ---
# Own launches of a job, from its reports: evidence of the availability of spot (M13.1).


def launches_of(
    reports: Sequence[Report],
    decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]],
    market: str | None,
    *,
    start: pd.Timestamp,
    step: pd.Timedelta,
    revisions: Sequence[Mapping[str, Any]] = (),
) -> list[Launch]:
    """Return the own launches in a market (None: the only one) by slot of the job whose slot 0 begins at ``start``.

    Each counts for the first slot that starts at or after its report. ``decided`` has the market and the
    allocation of each slot, ``revisions`` those of the rest of a slot, by time. Spot that was decided in one
    market is no request in another where none runs. Instances that were lost were held in the slot before.
    """
    found = []
    for report in reports:
        slot = max(start, (report.reported_at - MOMENT).floor(step))
        place, advised = in_force(decided, revisions, slot, report.reported_at)
        is_request = report.market in (None, place) or bool(report.spot)
        state = _request_state(report, advised.spot if is_request else 0)
        if state is None or market not in (None, report.market or place):
            continue
        held = round((report.held_minutes or 0.0) / (step / pd.Timedelta(minutes=1)))
        index = math.ceil((report.reported_at - start) / step - 1e-9)
        found.append(Launch(slot=index, state=state, held=max(held, 1 if report.lost else 0)))
    return found


def _request_state(report: Report, advised: int) -> int | None:
    """Return the state of the request of a report, None without a request; ``advised`` is the spot decided."""
    requested = advised if report.asked is None else report.asked
    if report.granted is not None and requested:
        return launch_state(report.granted, requested)
    if report.lost:
        return PART if report.spot else NONE
    if report.spot is not None and requested:
        return launch_state(report.spot, requested)
    return ALL if report.held_minutes else None
