"""What routes leave for others: spot counts and money of a joint program (ours)."""

from __future__ import annotations

import numpy as np

from optimization.joint import JointJob, Route
from optimization.joint_search import Search


class Stock:
    """Counts (w, markets) and team money that are left, as routes take them and give them back."""

    def __init__(self, searching: Search) -> None:
        self.counts = searching.available.copy()
        self._place = {market: m for m, market in enumerate(searching.markets)}
        self._money = {name: team.left_usd for name, team in searching.problem.teams.items()}

    def most_usd(self, job: JointJob) -> float:
        """What ``job`` may still pay: by its own cap and by what its team has left."""
        team = self._money.get(job.team, np.inf) if job.team is not None else np.inf
        return float(max(0.0, min(job.left_usd, team)))

    def take(self, job: JointJob, route: Route) -> None:
        """Take what a route holds and pays."""
        self._change(job, route, 1)

    def give_back(self, job: JointJob, route: Route) -> None:
        """Undo `take`."""
        self._change(job, route, -1)

    def _change(self, job: JointJob, route: Route, sign: int) -> None:
        for i, m, spot in spots(route, self._place):
            self.counts[i, m] -= sign * spot
        if job.team is not None:
            self._money[job.team] -= sign * route.capped_usd

    def holds(self, route: Route) -> bool:
        """True if the spot instances of a route are there."""
        return all(self.counts[i, m] >= spot for i, m, spot in spots(route, self._place))

    @property
    def sound(self) -> bool:
        """True if nothing is taken that was not there."""
        return bool((self.counts >= 0).all()) and all(left >= -1e-6 for left in self._money.values())


def spots(route: Route, place: dict[str, int]) -> list[tuple[int, int, int]]:
    """(slot, market index, spot instances) wherever a route holds any."""
    return [
        (i, place[one.market], one.allocation.spot)
        for i, one in enumerate(route.places)
        if one.market is not None and one.allocation.spot
    ]
