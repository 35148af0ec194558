"""The exact program of a multi-market job, over all joint states of its markets: slow and obvious, for tiny cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from slackwater.optimization.moving.definition import MarketsJob

#: State of every market in a slot: (price in USD per instance-hour, available spot).
State = tuple[tuple[float, int], ...]
Law = Callable[[int, State], Sequence[tuple[float, State]]]
#: (market or None, instances)
Choice = tuple[int | None, int]


class ExactProgram:
    """Backward induction over (slot, work done, market, instances before, joint state), by enumeration."""

    def __init__(self, job: MarketsJob, on_demand: Sequence[float], hours: float, distribution: Law) -> None:
        self.job, self.on_demand, self.hours, self.distribution = job, on_demand, hours, distribution
        self._value = lru_cache(maxsize=None)(self._best)

    def value(self, slot: int, done: float, place: int | None, before: int, state: State) -> float:
        """Return the expected utility from the start of ``slot`` on, excluding earlier costs."""
        return self._value(slot, round(done, 9), place, before, state)[0]

    def choice(self, slot: int, done: float, place: int | None, before: int, state: State) -> Choice:
        """Return the best choice of the slot."""
        return self._value(slot, round(done, 9), place, before, state)[1]

    def worth_of(
        self, policy: Callable[[int, float, int | None, int, State], Choice], state: State, place: int | None
    ) -> float:
        """Return the expected utility of a policy from the start."""

        @cache
        def follow(slot: int, done: float, place: int | None, before: int, state: State) -> float:
            ended = self._ended(slot, done, place, before)
            if ended is not None:
                return ended
            return self._after(
                slot, done, place, before, state, policy(slot, done, place, before, state), follow
            )

        return follow(0, 0.0, place, 0, state)

    def _ended(self, slot: int, done: float, place: int | None, before: int) -> float | None:
        run = self.job.job
        if done >= run.workload * (1 - 1e-9):
            return run.completion_value(slot)
        return self.ending(slot, done, place, before) if slot == run.deadline_slots else None

    def _best(
        self, slot: int, done: float, place: int | None, before: int, state: State
    ) -> tuple[float, Choice]:
        ended = self._ended(slot, done, place, before)
        if ended is not None:
            return ended, (None, 0)
        choices: list[Choice] = [(None, 0)]
        for m, run in enumerate(self.job.runs):
            choices += [(m, n) for n in range(run.n_min, run.n_max + 1)]

        def on(*at: object) -> float:
            return self.value(*at)  # type: ignore[arg-type]

        return max(
            ((self._after(slot, done, place, before, state, choice, on), choice) for choice in choices),
            key=lambda found: found[0],
        )

    def _after(self, slot, done, place, before, state, choice, on):  # type: ignore[no-untyped-def]
        m, n = choice
        usd, work = 0.0, 0.0
        if m is not None:
            usd, work = self._slot(slot, place, before, m, n, state[m])
            place = m
        done = min(self.job.job.workload, done + work)
        return -usd + sum(
            p * on(slot + 1, round(done, 9), place, n, then)
            for p, then in self.distribution(slot, state)
            if p > 0
        )

    def _slot(
        self, slot: int, place: int | None, before: int, m: int, n: int, there: tuple[float, int]
    ) -> tuple[float, float]:
        run, (price, available) = self.job.runs[m], there
        spot = min(n, available) if price < self.on_demand[m] else 0
        usd = (spot * price + (n - spot) * self.on_demand[m]) * self.hours
        gain = run.throughput.rate(n) * self.hours
        if place is not None and place != m:
            moving = self.job.moving
            moved_usd = float(moving.usd[min(slot, len(moving.usd) - 1), place, m])
            return usd + moved_usd, max(0.0, run.mu_up - moving.taken) * gain
        return usd, (run.mu_up if n > before else run.mu_down if n < before else 1.0) * gain

    def ending(self, slot: int, done: float, place: int | None, before: int) -> float:
        """Return the best value of finishing on on-demand alone from ``slot`` on, 0 if the job is given up (M2.6)."""
        best = 0.0
        for m, run in enumerate(self.job.runs):
            for n in range(run.n_min, run.n_max + 1):
                usd, work = self._slot(slot, place, before, m, n, (self.on_demand[m], 0))
                slots, left = 1, run.workload * (1 - 1e-9) - done - work
                while left > 0 and slots < 100:
                    left -= run.throughput.rate(n) * self.hours
                    usd += n * self.on_demand[m] * self.hours
                    slots += 1
                best = max(best, run.completion_value(slot + slots) - usd)
        return best
