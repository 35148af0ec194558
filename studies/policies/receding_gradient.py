"""RHIG: receding-horizon inexact gradient steps on the smoothed problem, then rounding (M10).

Based on "Leveraging predictions in smoothed online convex optimization via gradient-based
algorithms" (Li and Li, NeurIPS 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from slackwater.optimization.job.definition import Allocation, Job, check_job
from slackwater.optimization.kernels.rules import after_growing, spot_is_cheaper
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    cheapest_split,
    expected_progress,
    finishing_size,
    is_done,
    narrate,
    pace,
    safety_net,
)
from slackwater.studies.policies.forecast_record import ForecastRecord, noted, usd_per_slot
from slackwater.warehouse.errors import SettingsError

#: Minimal weight of the switching cost: keeps the problem strongly convex where a change is free.
LEAST_SMOOTHING = 0.05
#: Decrease of the price of work with the lead over uniform progress, per workload.
CURVATURE = 1.0


@dataclass(frozen=True, slots=True)
class Iterates:
    """Forecast record and the sizes planned for ``slot``, ``slot + 1``, ..., as shares of n_max."""

    record: ForecastRecord = field(default_factory=ForecastRecord)
    slot: int = 0
    sizes: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecedingGradient:
    """RHIG(W, sigma): one gradient step a slot for each of the next W slots, on accurate forecasts (M10).

    From the paper: the size of a slot is initialised W slots ahead by a simple rule and improved by
    one gradient step in each later slot, always on the newest forecast. Forecasts are used only up
    to the lead time at which they are accurate, because longer ones mislead.

    The problem is ours. Stage cost: (p_s - rho p_o) x for x spot instances within the forecast
    availability, where rho p_o is the value of an instance's work: p_o at uniform progress,
    decreasing with the lead to ``sigma`` p_o. Switching cost: beta / 2 (x - x')^2 with beta from
    mu_up (the loss of M2.4 is not quadratic: the smoothing). *Accurate* lead times are ours as
    well: those at which the forecasts of this job had no larger errors than persistence
    (`forecast_record`). The simple rule is all spot below the on-demand price. Steps use the newest
    neighbours (Gauss-Seidel). Rounding counts the exact loss of a change (`_rounded`); only the
    safety net uses on-demand.

    Raises `SettingsError` for a horizon below 1 or sigma outside (0, 1].
    """

    name_form: ClassVar = NameForm(numbers={"horizon": int, "sigma": float})
    horizon: int
    sigma: float
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise SettingsError(f"RHIG over {self.horizon} slots", expected="at least one")
        if not 0.0 < self.sigma <= 1.0:
            raise SettingsError(
                f"RHIG threshold sigma {self.sigma}", expected="a share of on-demand in (0, 1]"
            )
        object.__setattr__(self, "name", f"RHIG({self.horizon},{self.sigma:g})")

    def start(self, job: Job) -> Iterates:
        """Return no planned sizes; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Iterates()

    def decide(self, state: Iterates, view: View) -> tuple[Allocation, Iterates]:
        """Return the size of this slot after its last gradient step, rounded."""
        record = noted(state.record, view, self.horizon)
        if is_done(view):
            return HOLD_NOTHING, Iterates(record)
        if not view.observed:
            return safety_net(view, HOLD_NOTHING), Iterates(record, state.slot, state.sizes)
        sizes = self._stepped(state, record, view)
        n, enough = self._rounded(sizes, view), finishing_size(view)
        wish = cheapest_split(view, n if enough is None else min(n, enough))
        return safety_net(view, wish), Iterates(record, view.slot, sizes)

    def explain(self, state: Iterates, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and the lead time up to which forecasts are used."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        steps = accurate_steps(noted(state.record, view, self.horizon), view, self.horizon)
        return narrate(view, allocation, rule=f"forecasts are used {steps} slots ahead")

    def _stepped(self, state: Iterates, record: ForecastRecord, view: View) -> tuple[float, ...]:
        """Return the planned sizes from this slot on after one gradient step; new slots start from the simple rule."""
        job, most = view.job, float(view.job.n_max)
        window = view.window(1 + accurate_steps(record, view, self.horizon))
        dear = [float(p) / view.on_demand_usd for p in window.price.tolist()]
        room = [
            min(c, job.n_max) / most if p < 1.0 else 0.0
            for c, p in zip(window.available.tolist(), dear, strict=True)
        ]
        kept = state.sizes[view.slot - state.slot :] if state.sizes else ()
        x = [min(kept[s], room[s]) if s < len(kept) else room[s] for s in range(len(room))]
        rho = self._worth(view, x)
        beta = max(LEAST_SMOOTHING, 2.0 * (1.0 - after_growing(job.restart, job.n_max)))
        before = view.progress.n_previous / most
        for s in reversed(range(len(x))):
            left = x[s - 1] if s else before
            right = x[s + 1] if s + 1 < len(x) else x[s]
            slope = dear[s] - rho + beta * (2.0 * x[s] - left - right)
            x[s] = min(room[s], max(0.0, x[s] - slope / (4.0 * beta)))
        return tuple(x)

    def _rounded(self, sizes: tuple[float, ...], view: View) -> int:
        """Return the whole size of most gain: the planned size, the largest planned, the previous size, or 0.

        Gradient steps change a size gradually, but M2.4 takes (1 - mu) of the whole slot for any
        change. A change is therefore made at once or not at all: each candidate is valued as if
        constant over the planned slots, on the forecast spot.
        """
        job, window = view.job, view.window(len(sizes))
        if not spot_is_cheaper(view.price, view.on_demand_usd):
            return 0
        there, before = min(view.available, job.n_max), view.progress.n_previous
        planned = [int(size * job.n_max + 0.5) for size in (sizes[0], max(sizes))]
        rho = self._worth(view, list(sizes))
        margin = [rho - price / view.on_demand_usd for price in window.price.tolist()]
        best, chosen = 0.0, 0
        for size in sorted(n for n in {*planned, before} if job.n_min <= n <= there):
            kept = sum(
                min(size, count) * m for count, m in zip(window.available.tolist(), margin, strict=True)
            )
            value = kept - rho * (1.0 - job.efficiency(size, before)) * size
            if value > best + WORK_TOLERANCE:
                best, chosen = value, size
        return chosen

    def _worth(self, view: View, sizes: list[float]) -> float:
        """Return rho: the value of an instance's work relative to p_o at the progress that the planned sizes reach."""
        job = view.job
        full = pace(job, view.slot_hours).gain[job.n_max]
        end = view.progress.done + full * sum(sizes)
        lead = (end - expected_progress(job, view.slot + len(sizes))) / job.workload
        return min(1.0, max(self.sigma, 1.0 - CURVATURE * lead))


def accurate_steps(record: ForecastRecord, view: View, most: int) -> int:
    """Return the number of lead times, up to ``most``, whose forecasts cost no more than persistence.

    Counts up to the first lead time at which they cost more.
    """
    if record.forecast is None or record.held is None:
        return 0
    made, held = usd_per_slot(record.forecast, view), usd_per_slot(record.held, view)
    for k in range(most):
        if made[k] > held[k] * (1.0 + WORK_TOLERANCE):
            return k
    return most
