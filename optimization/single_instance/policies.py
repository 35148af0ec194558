"""The rules of the single-instance benchmark: how a slot passes, and what a sequence of choices costs.

A slot goes: see whether spot is up -> a spot instance is lost if it is not -> choose nothing, spot or on-demand -> pay the whole
slot -> a start owes the full overhead, which eats time before work does and is carried past the slot. What an instance still owes
when it is given up or lost is lost with it: the next start owes the full overhead again.

The policies of the single-instance scoreboard: on-demand only, greedy, uniform progress, and tables of backward induction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from optimization.kernels.single import (
    ON_DEMAND,
    SPOT,
    follow,
    greedy,
    induct,
    induct_known,
    play,
    uniform_progress,
)
from optimization.single_instance.setting import Setting
from optimization.single_instance.states import Chain, MarketStates
from warehouse.errors import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job that ran its course: ``actions`` (slots used,) int8, its bill, and the slots it used.

    ``slots_used`` is None for a missed deadline; ``starts`` counts the overheads begun.
    """

    actions: np.ndarray
    cost_usd: float
    slots_used: int | None
    starts: int

    @property
    def missed(self) -> bool:
        """True if work was left at the deadline."""
        return self.slots_used is None


def settle(setting: Setting, up: np.ndarray, actions: np.ndarray) -> Run:
    """What a sequence of choices does and costs: the only place where a run is scored.

    ``up`` (slots,) is bool, ``actions`` (slots,) int8; both cover the slots to the deadline, and those after the finish are not
    looked at. Raises `PolicyError` for a wrong shape, an unknown action, or spot where it is down.
    """
    if up.shape != (setting.slots,) or actions.shape != (setting.slots,):
        raise PolicyError(
            f"{up.shape} slots seen and {actions.shape} actions", expected=f"({setting.slots},) of both"
        )
    if actions.min() < 0 or actions.max() > ON_DEMAND:
        raise PolicyError(f"actions {np.unique(actions)}", expected="0 (none), 1 (spot) or 2 (on-demand)")
    used, starts, wrong = play(setting.ticks, up, actions)
    if wrong >= 0:
        raise PolicyError(f"spot chosen in slot {wrong}, where it is down", expected="none or on-demand")
    taken = actions[: used if used >= 0 else setting.slots]
    spot, on_demand = int((taken == SPOT).sum()), int((taken == ON_DEMAND).sum())
    cost = spot * setting.ticks.spot_usd + on_demand * setting.ticks.on_demand_usd
    return Run(actions=taken, cost_usd=cost, slots_used=used if used >= 0 else None, starts=starts)


class SinglePolicy(Protocol):
    """What to hold in each slot of one run; never looks ahead (M4.9)."""

    @property
    def name(self) -> str:
        """Name in tables."""
        ...

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """Actions (slots,) int8; entry t depends on ``before`` (slots seen before the job) and ``up[: t + 1]`` only."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandOnly:
    """M4.1: on-demand until the work is done."""

    name: str = "OD-only"

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """On-demand in every slot."""
        return np.full(up.size, ON_DEMAND, dtype=np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """M4.2: spot whenever it is up, on-demand to the end once waiting could miss."""

    name: str = "MSU"

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """See `kernels.greedy`."""
        return np.asarray(greedy(setting.ticks, up))


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformProgress:
    """M4.3, single-cluster form; without ``hysteresis`` it leaves on-demand for spot at once."""

    name: str = "UP"
    hysteresis: bool = True

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """See `kernels.uniform_progress`."""
        return np.asarray(uniform_progress(setting.ticks, up, self.hysteresis))


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicy:
    """M4.6 on one instance (ours): the best action of every state of a learned chain, by exact backward induction.

    ``action`` (slots + 1, states, holdings, slack + 1) serves its own deadline and every earlier one with the same work, overhead
    and prices. ``remember`` says whether the slots before the job are looked at.
    """

    name: str
    setting: Setting
    states: MarketStates
    action: np.ndarray
    expected_cost_usd: np.ndarray
    remember: bool = True

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """Read the table along the run; raises `PolicyError` if made for other work, overhead or prices, or a nearer deadline."""
        if setting.ticks != self.setting.ticks or setting.slots > self.setting.slots:
            raise PolicyError(
                f"a table for {self.setting}", expected=f"one that covers {setting}", remedy="make it anew"
            )
        seen = np.concatenate([before, up]) if self.remember else up
        return np.asarray(follow(setting.ticks, self.action, self.states.code(seen)[-up.size :], up))


def make_table(name: str, setting: Setting, states: MarketStates, chain: Chain) -> TablePolicy:
    """Solve a setting exactly on a chain: least expected bill among the policies that meet the deadline on every path.

    ``expected_cost_usd`` (states,) is the bill to expect from each state with nothing held, in the setting's first slot.
    Raises `PolicyError` if the chain has not one state per state of ``states``.
    """
    if chain.up.size != states.count:
        raise PolicyError(f"a chain of {chain.up.size} states", expected=f"{states.count}")
    rows = (chain.start, chain.to, chain.chance)
    action, value = induct(setting.ticks, setting.slots, setting.slack, chain.up, rows)
    return TablePolicy(
        name=name, setting=setting, states=states, action=action, expected_cost_usd=value[:, 0, -1]
    )


def run(policy: SinglePolicy, setting: Setting, trace: np.ndarray, start: int) -> Run:
    """One job of a policy on ``trace`` from slot ``start``; raises `PolicyError` if the trace ends before its deadline."""
    stop = start + setting.slots
    if start < 0 or stop > trace.size:
        raise PolicyError(f"slots {start} to {stop} of a trace of {trace.size}", expected="a start inside it")
    up = trace[start:stop]
    return settle(setting, up, policy.actions(setting, trace[:start], up))


def optimum(setting: Setting, up: np.ndarray) -> Run:
    """The cheapest run when the whole trace is known, under the same rules; it never misses (M4.7).

    ``up`` is bool, shape (slots,). Exact, because the slack has the setting's own tick.
    """
    action = induct_known(setting.ticks, setting.slack, up)
    return settle(
        setting, up, np.asarray(follow(setting.ticks, action, np.zeros(up.size, dtype=np.int64), up))
    )
