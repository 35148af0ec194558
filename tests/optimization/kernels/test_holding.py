"""Backward induction in the world compared with a decision tree on its grid (M4.12)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from slackwater.optimization.kernels.holding import HeldJob, induct_held
from slackwater.optimization.kernels.rules import Value, late_limit

#: Tolerance of tables in single precision, relative to the largest values.
SINGLE = 2e-6
#: Grid steps of work that one more instance does in a slot.
STEPS = 16


def random_game(rng: np.random.Generator, *, slots: int, n_max: int) -> HeldJob:
    """Return a small game whose work falls on grid points."""
    states, levels = int(rng.integers(1, n_max + 2)), int(rng.integers(1, 3))
    available = np.sort(rng.choice(n_max + 1, states, replace=False)).astype(np.int64)
    sizes = np.arange(n_max + 1)
    gain = np.append(0, np.cumsum(STEPS // rng.integers(1, 3, n_max))).astype(float)
    deadline = slots + int(rng.integers(0, 2))
    restarts = rng.choice([0.0, 0.125, 0.25], n_max + 1)
    return HeldJob(
        sizes=sizes,
        gain=gain,
        available=available,
        chain=rng.dirichlet(np.ones(states), (slots, states)).astype(np.float32),
        price=rng.choice([0.1, 0.4, 1.0, 1.3], levels, replace=False),
        price_chain=rng.dirichlet(np.ones(levels), (slots, levels)).astype(np.float32),
        on_demand=1.0,
        fresh=restarts + rng.choice([0.0, 0.125]),
        wait=float(rng.choice([0.0, 0.125])),
        restart=restarts,
        unsaved=float(rng.choice([0.0, 0.25])),
        gap=float(rng.choice([0.5, 1.0])),
        guarded=bool(rng.random() < 0.7),
        value=Value(5.0 * n_max, deadline, 1.5),
        slot=deadline - slots,
        slack=1e-9,
        step=1.0,
        points=int(rng.integers(STEPS + 1, 3 * STEPS * n_max)),
    )


class Tree:
    """Values by the rules themselves: the instances that are held are a pair (on-demand, spot)."""

    def __init__(self, game: HeldJob) -> None:
        self.game = game
        self.beyond = game.value.usd + game.sizes[-1] * game.on_demand * late_limit(game.value)
        self.before = cache(self._before)

    def usd(self, n: int) -> float:
        return n * self.game.on_demand

    def allowed(self, i: int, on_demand: int, spot: int, rest: float) -> bool:
        game = self.game
        if not game.guarded or (on_demand > 0 and spot == 0):
            return True
        left = game.value.deadline - game.slot - i
        anew = game.gain[-1] * (left - game.gap - game.wait - game.fresh[-1])
        ready = max(game.gap, game.wait + game.fresh[on_demand])
        part = game.gain[on_demand] * (left - ready - game.restart[on_demand])
        return rest <= max(anew, part) + 1e-6

    def chosen(self, i: int, s: int, x: int, target: tuple[int, int], rest: float, lost: float) -> float:
        """Return the value of a target in slot i that works after ``lost`` slots, less its cost."""
        game, (on_demand, spot) = self.game, target
        n = on_demand + spot
        paid = on_demand * game.on_demand + spot * game.price[x]
        work = (1.0 - lost) * game.gain[n]
        if n and work >= rest:
            return game.value.usd - paid * (lost + rest / game.gain[n])
        return self.after(i, s, x, target, round(rest - work)) - paid

    def after(self, i: int, s: int, x: int, target: tuple[int, int], rest: int) -> float:
        game, total = self.game, 0.0
        (on_demand, spot), rest = target, min(rest, game.points - 1)
        for then in range(len(game.available)):
            for y in range(len(game.price)):
                share = float(game.chain[i, s, then]) * float(game.price_chain[i, x, y])
                count = int(game.available[then])
                gone, kept = spot > count, (on_demand, min(spot, count))
                if spot and not gone and on_demand and then != s:
                    kept = (0, 0)  # the table knows no mix with less spot than there is
                if sum(kept) == 0:
                    kept, gone = (0, 0), False
                total += share * self.before(i + 1, then, y, kept, gone, rest)
        return total

    def _before(self, i: int, s: int, x: int, held: tuple[int, int], gone: bool, rest: int) -> float:
        game = self.game
        left = game.value.deadline - game.slot - i
        if left == 0:
            return self.ended(rest)
        if rest == 0:
            return game.value.usd
        found = [-np.inf]
        cheap = game.price[x] < game.on_demand
        targets = {(0, 0)}
        for n in range(1, game.sizes.size):
            spot = min(n, int(game.available[s])) if cheap else 0
            targets |= {(n - spot, spot), (n, 0)}
            takes = game.fresh[n] + game.wait + rest / game.gain[n]
            if game.guarded and takes <= left + 1e-6:
                found.append(game.value.usd - self.usd(n) * takes)
        for target in targets:
            on_demand, spot = target
            lost = 0.0 if not sum(target) else game.fresh[sum(target)] + (game.wait if on_demand else 0.0)
            if self.allowed(i, *target, rest):
                found.append(self.chosen(i, s, x, target, rest, lost))
            if held[1] and not cheap:
                continue  # expensive spot is let go
            same_kind = (spot > 0) == (held[1] > 0) or not sum(target)
            part = sum(target) and same_kind and on_demand <= held[0] and spot <= held[1]
            if part and (gone or target != held) and self.allowed(i, *target, rest):
                found.append(self.chosen(i, s, x, target, rest, game.restart[sum(target)]))
        if sum(held) and not gone and (cheap or not held[1]):
            unsaved = game.unsaved * game.gain[sum(held)] if held[1] else 0.0
            if self.allowed(i, *held, rest + unsaved):
                found.append(self.chosen(i, s, x, held, rest, 0.0))
            takes = rest / game.gain[sum(held)]
            if game.guarded and not held[1] and takes <= left + 1e-6:
                found.append(game.value.usd - self.usd(held[0]) * takes)
        return max(found)

    def ended(self, rest: int) -> float:
        game = self.game
        if rest == 0:
            return game.value.usd
        if game.guarded:
            return -self.beyond
        limit, best = late_limit(game.value) - game.value.deadline, 0.0
        for n in range(1, game.sizes.size):
            late = game.wait + game.fresh[n] + rest / game.gain[n]
            best = max(best, game.value.usd * max(0.0, 1.0 - late / limit) - late * self.usd(n))
        return best


def check_against_tree(seed: int, *, slots: int, n_max: int) -> None:
    """Compare the values after every choice in every slot and state of the market, at four amounts of work left."""
    game = random_game(np.random.default_rng(seed), slots=slots, n_max=n_max)
    whole = np.zeros(slots + 1, np.int64), np.full(slots + 1, game.points)
    kept, tree = induct_held(game, slots, *whole), Tree(game)
    sizes = game.sizes.size
    for i in range(slots):
        for s, count in enumerate(game.available.tolist()):
            for x in range(len(game.price)):
                targets = [(0, 0)]
                for n in range(1, sizes):
                    targets.append((n - min(n, count), min(n, count)))
                targets += [(n, 0) for n in range(1, sizes)]
                for k, target in enumerate(targets):
                    for rest in sorted({0, 1, STEPS, game.points - 1}):
                        told = tree.after(i, s, x, target, rest)
                        found = kept[i, s, x, k, rest]
                        assert found == pytest.approx(told, abs=SINGLE * tree.beyond), (i, s, x, target, rest)


@pytest.mark.parametrize("seed", range(24))
def test_values_are_those_of_the_decision_tree(seed):
    check_against_tree(seed, slots=1 + seed % 3, n_max=1 + seed % 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_values_are_those_of_the_decision_tree_long(seed):
    check_against_tree(seed, slots=1 + seed % 3, n_max=1 + seed % 3)
