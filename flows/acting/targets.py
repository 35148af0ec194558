"""The instances that a job should have at a time: by its newest decision, its standby plan, or the reason to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from slackwater.flows.acting.contract import Kind, Order, count_by_kind, lacking, staying
from slackwater.flows.acting.ledger import JobLaunches, RevisionEntry

#: Part of the key of orders for a job without a decision.
NO_DECISION = "no-decision"
#: Why nothing runs for a job that no turn has decided.
UNDECIDED = "no decision yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDecision:
    """The instances of a slot in a market, by the decision of the slot or its revision.

    ``standby_on_demand`` and ``standby_spot`` are the instances to run in ``standby_market`` (None: in
    ``market``) once all spot is lost; without a standby plan the first is None. ``guarded``: the
    deadline is met even if all spot is lost. ``why`` is the reason of a revision, "" for the
    decision of the slot.
    """

    key: str
    market: str
    slot: datetime
    valid_until: datetime
    on_demand: int
    spot: int
    standby_on_demand: int | None = None
    standby_spot: int = 0
    standby_market: str | None = None
    guarded: bool = False
    why: str = ""

    def with_revision(self, by: RevisionEntry | None) -> SlotDecision:
        """Return the revision of this decision, or this decision if ``by`` revises another or is None.

        ``guarded`` is unchanged.
        """
        if by is None or by.of != self.key:
            return self
        row, lost = by.row, datetime.fromisoformat(by.row["lost_at"])
        standby, market = row["standby_on_demand"], row.get("standby_market")
        return replace(
            self,
            key=by.key,
            market=str(row["market"]),
            on_demand=int(row["on_demand"]),
            spot=int(row["spot"]),
            standby_on_demand=None if standby is None else int(standby),
            standby_spot=int(row.get("standby_spot") or 0),
            standby_market=None if market is None else str(market),
            why=f"spot was lost at {lost:%H:%M} UTC: decided again until {self.valid_until:%H:%M} UTC",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStart:
    """The latest time at which on-demand instances, requested in a market, meet the deadline of a job."""

    at: datetime
    market: str
    on_demand: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveJob:
    """A job to act on, with its newest decision for a slot that has begun.

    ``markets`` are those in which it may have instances. ``ended`` is "finished" or "withdrawn" by
    its reports, else "".
    """

    name: str
    deadline: datetime
    step: timedelta
    budget_usd: float | None = None
    markets: tuple[str, ...] = ()
    ended: str = ""
    decision: SlotDecision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Instances that a job should have, and why; ``final``: nothing more is launched for it."""

    market: str
    on_demand: int
    spot: int
    why: str
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Slots without a decision after which a job is stopped, and the longest time between two passes."""

    idle_slots: int
    every: timedelta


def target_of(
    job: ActiveJob,
    launches: JobLaunches,
    now: datetime,
    limits: Limits,
    *,
    spent_usd: Callable[[], float],
    usd_per_hour: Callable[[Mapping[Kind, int], str], float],
    last_start: Callable[[datetime], LastStart | None],
) -> Target:
    """Return the target of a job at a time.

    ``spent_usd`` returns the sum paid so far, ``usd_per_hour`` the cost of instances by kind in a
    market; both are called for a job with a budget only.
    ``last_start`` returns the latest start of on-demand from the state of the job at a slot; it is
    called only if a guarded job has no decision.
    """
    market = job.decision.market if job.decision is not None else last_market(launches)
    stop = Target(market=market, on_demand=0, spot=0, why="", final=True)
    if job.ended:
        return replace(stop, why=f"the job is {job.ended}")
    if now >= job.deadline:
        return replace(stop, why="the deadline has passed")
    if job.decision is None:
        return Target(market=market, on_demand=0, spot=0, why=UNDECIDED)
    target = _by_decision(job.decision, job.step, launches, now, limits, last_start)
    if job.budget_usd is not None:
        counts: dict[Kind, int] = {"on_demand": target.on_demand, "spot": target.spot}
        held = sum(
            usd_per_hour(count_by_kind(launches.held, there), there)
            for there in {instance.market for instance in launches.held}
        )
        rate = max(usd_per_hour(counts, target.market), held)
        if spent_usd() + rate * (limits.every / timedelta(hours=1)) > job.budget_usd:
            return replace(stop, why=f"the budget of ${job.budget_usd:,.2f} is spent")
    return target


def _by_decision(
    decision: SlotDecision,
    step: timedelta,
    launches: JobLaunches,
    now: datetime,
    limits: Limits,
    last_start: Callable[[datetime], LastStart | None],
) -> Target:
    """Return the target by the newest decision: its instances, its standby plan, or, after its slot, the running instances."""
    market = decision.market
    if now < decision.valid_until:
        if launches.has_lost_all(decision.key) and decision.standby_on_demand is not None:
            why = "all spot was lost: the standby plan until the next decision"
            return Target(
                market=decision.standby_market or market,
                on_demand=decision.standby_on_demand,
                spot=decision.standby_spot,
                why=why,
            )
        why = decision.why or f"the decision for {decision.slot:%Y-%m-%d %H:%M} UTC"
        return Target(market=market, on_demand=decision.on_demand, spot=decision.spot, why=why)
    late = f"no decision since the slot of {decision.slot:%Y-%m-%d %H:%M} UTC"
    last = last_start(decision.slot) if decision.guarded else None
    if last is not None and now + limits.every > last.at:
        why = f"{late}: on-demand meets the deadline only if it starts now"
        return Target(market=last.market, on_demand=last.on_demand, spot=0, why=why)
    if now >= decision.valid_until + limits.idle_slots * step:
        return Target(market=market, on_demand=0, spot=0, why=late)
    if launches.held:  # a standby plan or a revision may have moved them
        market = launches.held[-1].market
    held = count_by_kind(staying(launches.held), market)
    why = f"{late}: nothing new is launched"
    return Target(market=market, on_demand=held["on_demand"], spot=held["spot"], why=why)


def period_of(job: ActiveJob, now: datetime) -> str:
    """Return the key of the decision in force, or that of a slot without a decision once half of it is over, else ""."""
    if job.decision is not None and now < job.decision.valid_until:
        return job.decision.key
    passed = (now - datetime(1970, 1, 1, tzinfo=UTC)) % job.step
    return f"{NO_DECISION}-{now - passed:%Y%m%dT%H%M}" if passed >= job.step / 2 else ""


def last_market(launches: JobLaunches) -> str:
    """Return the market of the newest order, "" before the first."""
    return "" if launches.last is None else launches.last.order.market


def same_target(first: Order, second: Order) -> bool:
    """Return whether two orders state the same instances."""
    return (first.market, first.on_demand, first.spot) == (second.market, second.on_demand, second.spot)


def order_for(job: ActiveJob, launches: JobLaunches, target: Target, now: datetime) -> Order:
    """Return the order of a target: the last order if it has this target and its call did not return, else a new order."""
    key = NO_DECISION if job.decision is None else job.decision.key
    until = None if job.decision is None else job.decision.valid_until
    order = Order(
        job=job.name,
        token=f"{key}-{launches.orders[key] + 1}",
        key=key,
        market=target.market,
        on_demand=target.on_demand,
        spot=target.spot,
        valid_until=until if until is not None and now < until else None,
        elsewhere=tuple(sorted((launches.markets | set(job.markets)) - {target.market})),
    )
    last = launches.last
    if (
        last is not None
        and not launches.answered
        and last.order.key == key
        and same_target(last.order, order)
    ):
        return last.order
    return order.model_copy(update={"missing": lacking(order, launches.held)})
