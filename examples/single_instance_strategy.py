"""Slackwater's policy for one instance as a strategy of the "Can't Be Late" simulators (NSDI 2024, ADRS, Frontier-CS).

The file needs NumPy only. Name it as the strategy file (docs/multi-region-simulators.md); in a simulator of your own:

    policy = SingleInstancePolicy(work_seconds=48 * 3600, deadline_seconds=52 * 3600, overhead_seconds=720, gap_seconds=600)
    kind = policy.act(elapsed_seconds=0, done_seconds=0, has_spot=True, held="none")   # "spot", "on_demand" or "none"

Waiting and running spot need an overhead of slack after a gap without any work, a start of spot also the overhead that it pays
(M4.3), so the deadline holds even if all spot is lost. Below that, a table of backward induction (M4.6) expects to lose the work
of the last gap before a loss, as these simulators count it, until a loss has kept it. Nothing is known of the market before the
run.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any, Literal

import numpy as np

Kind = Literal["none", "spot", "on_demand"]

#: Time step of the table: 10 minutes, or a longer gap of the simulator. A step has 10 ticks.
STEP_SECONDS, TICKS = 600, 10
#: First step of each bin of the age of the current run, and limits between the bins of the share of the last day that was up.
AGES, SHARES = (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 95, 144, 216), (0.4, 0.7)
#: Probability that a run of each age ends within 10 minutes, by share, down and up. Estimated by
#: `slackwater.studies.single_instance.estimate` from the open traces of single instances of 2022 and 2023.
FLIP = np.array([
    [[.2881, .1847, .1201, .1164, .0733, .0476, .0534, .0357, .0231, .0236, .0215, .0221, .0078, .0050],
     [.2936, .2277, .1264, .1631, .0899, .0803, .0367, .0594, .0497, .0419, .0490, .0228, .0095, .0059],
     [.3839, .3329, .2638, .1715, .1449, .0804, .0851, .0757, .1044, .0270, .0231, .0228, .0095, .0059]],
    [[.3706, .2793, .2046, .1981, .1274, .0946, .0649, .0535, .0408, .0636, .0147, .0157, .0079, .0046],
     [.2534, .1726, .1481, .1204, .0573, .0716, .0477, .0406, .0360, .0252, .0262, .0063, .0079, .0046],
     [.2398, .1551, .1094, .0835, .0525, .0414, .0298, .0246, .0188, .0154, .0132, .0156, .0077, .0045]],
])  # fmt: skip
#: Probability that the share rises or falls by a bin within 10 minutes, by share, down and up.
RISES = np.array([[0.0006, 0.0011, 0.0], [0.0125, 0.0105, 0.0]])
FALLS = np.array([[0.0, 0.0101, 0.0188], [0.0, 0.0006, 0.0005]])
#: Cost, in steps of on-demand, of a state in which the deadline cannot be met.
IMPOSSIBLE = 1e6
#: Costs that differ by less are equal: spot before on-demand, on-demand before waiting.
NEAR = 1e-4


def after_one_step(value: np.ndarray, steps: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected values if the run goes on and if it ends, each times its probability.

    ``value`` is (down or up, share, age, ...); ``steps`` is the length of a step in units of 10 minutes.
    """
    shape = (*FLIP.shape, *[1] * (value.ndim - 3))
    flip = (1.0 - (1.0 - FLIP) ** steps).reshape(shape)
    rises, falls = (
        (1.0 - (1.0 - rate) ** steps).reshape(2, -1, *[1] * (value.ndim - 2)) for rate in (RISES, FALLS)
    )
    shared = (1.0 - rises - falls) * value
    shared[:, :-1] += (rises * np.roll(value, -1, axis=1))[:, :-1]
    shared[:, 1:] += (falls * np.roll(value, 1, axis=1))[:, 1:]
    older = np.append(np.minimum(1.0, steps / np.diff(AGES)), 0.0).reshape(-1, *[1] * (value.ndim - 3))
    stays = (1.0 - older) * shared
    stays[:, :, :-1] += (older * np.roll(shared, -1, axis=2))[:, :, :-1]
    return (1.0 - flip) * stays, flip * value[::-1, :, :1]


def later(value: np.ndarray, used: int) -> np.ndarray:
    """Return ``value`` (..., slack) at a slack smaller by ``used``, `IMPOSSIBLE` where there is none."""
    out = np.full_like(value, IMPOSSIBLE)
    if used < value.shape[-1]:
        out[..., used:] = value[..., : value.shape[-1] - used]
    return out


@lru_cache(maxsize=4)
def solve(
    steps: int, slack: int, overhead: int, lost: int, reserve: int, spot_share: float, length: float
) -> np.ndarray:
    """Return the best actions by backward induction, packed bits of (steps left, spot or on-demand, state, holding, slack).

    Times are ticks. ``lost`` is the work that a loss takes back; waiting needs a slack of ``reserve``, spot also the overhead that
    it pays. A holding is nothing, spot or on-demand, these by the steps that they have run until the overhead is paid.
    """
    levels = max(1, -(-overhead // TICKS))
    owed = np.maximum(overhead - TICKS * np.arange(levels + 1), 0)
    eaten = np.minimum(owed, TICKS)
    room = np.arange(slack + 1) - reserve
    value = np.zeros((*FLIP.shape, 1 + 2 * levels, slack + 1), dtype=np.float32)
    bits = np.zeros((steps + 1, 2, *value.shape[:-1], -(-(slack + 1) // 8)), dtype=np.uint8)
    spot = slice(1, 1 + levels)
    for left in range(1, steps + 1):
        stays, ends = after_one_step(value, length)
        ahead = stays + ends
        done = np.arange(slack + 1) >= left * TICKS
        wait = np.where(room >= 0, later(ahead[..., 0, :], TICKS), IMPOSSIBLE)
        kept, gone = stays[1, ..., spot, :], ends[1, ..., 0, :]
        for m in range(value.shape[-2]):
            ran = 0 if m == 0 else (m - 1) % levels + 1
            on_spot, on_demand = (ran, 0) if 0 < m <= levels else (0, ran)
            to = min(on_demand, levels - 1)
            best = 1.0 + later(ahead[..., 1 + levels + to, :], int(eaten[on_demand]))
            takes = np.zeros(best.shape, dtype=bool)
            waits = wait < best - NEAR
            best = np.where(waits, wait, best)
            eats = int(eaten[on_spot])
            run = later(kept[..., min(on_spot, levels - 1), :], eats) + later(gone, min(eats + lost, TICKS))
            run = np.where(room >= eats, spot_share + run, IMPOSSIBLE)
            takes[1] = run <= best[1] + NEAR
            best[1] = np.minimum(run, best[1])
            value[..., m, :] = np.where(done, 0.0, best)
            bits[left, 0, ..., m, :] = np.packbits(takes & ~done, axis=-1)
            bits[left, 1, ..., m, :] = np.packbits(~takes & ~waits & ~done, axis=-1)
    return bits


class SingleInstancePolicy:
    """Policy for a run on one instance, which is called in each gap of a simulator, the first at 0 seconds.

    ``spot_share`` is the spot price as a share of the on-demand price.
    """

    def __init__(
        self,
        *,
        work_seconds: float,
        deadline_seconds: float,
        overhead_seconds: float,
        gap_seconds: float,
        spot_share: float = 0.318,
    ) -> None:
        self.work, self.deadline, self.overhead = work_seconds, deadline_seconds, overhead_seconds
        self.gap, self.spot_share = gap_seconds, spot_share
        self.step = max(gap_seconds, STEP_SECONDS)
        self.tick = self.step / TICKS
        self.loses = True
        self._ups: deque[bool] = deque(maxlen=max(1, round(86_400 / gap_seconds)))
        self._age, self._since, self._done = 0, 0.0, 0.0
        self._held: Kind = "none"
        self._acted: Kind = "none"

    def act(self, *, elapsed_seconds: float, done_seconds: float, has_spot: bool, held: Kind) -> Kind:
        """Return the kind of instance for the gap that begins now.

        ``held`` ran in the last gap; spot without ``has_spot`` is lost now.
        """
        self._observe(done_seconds, has_spot, held)
        self._acted = self._choose(self.deadline - elapsed_seconds, self.work - done_seconds, has_spot)
        return self._acted

    def _observe(self, done: float, has_spot: bool, held: Kind) -> None:
        """Record the gap that has ended: the market, the age of the instance, and whether a loss took work back."""
        same = bool(self._ups) and self._ups[-1] == has_spot
        self._age = self._age + 1 if same else 1
        self._ups.append(has_spot)
        if not has_spot and self._acted == "spot" and held != "on_demand":
            before = self._since if self._held == "spot" else 0.0
            worked = self.gap - min(self.gap, max(0.0, self.overhead - before))
            if worked > 0:
                self.loses = done - self._done < worked / 2
        now: Kind = "none" if held == "spot" and not has_spot else held
        self._since = 0.0 if now == "none" else self._since + self.gap if now == self._held else self.gap
        self._held, self._done = now, done

    def _choose(self, left: float, work: float, has_spot: bool) -> Kind:
        if work <= 1e-6:
            return "none"
        if left - self.gap - work < self.overhead - 1e-6:  # the exact guard (M4.3)
            return "on_demand"
        overhead, lost = (int(np.ceil(s / self.tick - 1e-9)) for s in (self.overhead, self.gap))
        reserve = int(np.ceil((self.gap + self.overhead) / self.tick - 1e-9))
        slack = int((self.deadline - self.work) / self.tick + 1e-9)
        bits = solve(
            int(self.deadline / self.step + 1e-9), slack, overhead, lost if self.loses else 0, reserve,
            self.spot_share, self.step / STEP_SECONDS,
        )  # fmt: skip
        minutes = self.gap / 60
        share = (sum(self._ups) * minutes + 30) / (
            len(self._ups) * minutes + 60
        )  # an hour of half availability
        age = int(np.searchsorted(AGES, max(1.0, self._age * minutes / 10), side="right")) - 1
        state = (int(has_spot), int(np.searchsorted(SHARES, share)), age)
        levels = max(1, -(-overhead // TICKS))
        ran = min(levels, max(1, int(self._since / self.step + 1e-9)))
        holding = 0 if self._held == "none" else ran + (levels if self._held == "on_demand" else 0)
        x = min(max(int((left - work) / self.tick + 1e-9), 0), slack)
        byte = bits[(int(left / self.step + 1e-9), slice(None), *state, holding, x // 8)]
        spot, on_demand = (byte >> (7 - x % 8)) & 1
        return "spot" if spot and has_spot else "on_demand" if on_demand else "none"


class Solution:
    """Entry of Frontier-CS: this file is the strategy."""

    def solve(self, spec_path: str | None = None) -> dict[str, str]:
        """Return the path of the strategy file."""
        return {"program_path": __file__}


try:
    from sky_spot.strategies.strategy import Strategy
    from sky_spot.utils import ClusterType
except ImportError:  # no such simulator here: `SingleInstancePolicy` alone
    pass
else:
    KINDS: dict[Kind, Any] = {
        "none": ClusterType.NONE,
        "spot": ClusterType.SPOT,
        "on_demand": ClusterType.ON_DEMAND,
    }
    # An evaluator may load this file twice, and the simulator accepts a name once.
    getattr(Strategy, "SUBCLASSES", {}).pop("slackwater", None)

    class SlackwaterStrategy(Strategy):
        """`SingleInstancePolicy` in the simulator's interface."""

        NAME = "slackwater"

        def _step(self, last_cluster_type: Any, has_spot: bool) -> Any:
            if self.env.elapsed_seconds <= 0:
                self._policy = SingleInstancePolicy(
                    work_seconds=self.task_duration,
                    deadline_seconds=self.deadline,
                    overhead_seconds=self.restart_overhead,
                    gap_seconds=self.env.gap_seconds,
                )
            held = next(kind for kind, cluster in KINDS.items() if cluster == last_cluster_type)
            done = float(sum(self.task_done_time))
            elapsed = self.env.elapsed_seconds
            return KINDS[
                self._policy.act(elapsed_seconds=elapsed, done_seconds=done, has_spot=has_spot, held=held)
            ]

        @classmethod
        def _from_args(cls, parser: Any) -> SlackwaterStrategy:
            return cls(parser.parse_known_args()[0])
