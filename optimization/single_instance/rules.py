"""The rules of the single-instance benchmark: how a slot passes, and what a sequence of choices costs.

A slot goes: see whether spot is up -> a spot instance is lost if it is not -> choose nothing, spot or on-demand -> pay the whole
slot -> a start owes the full overhead, which eats time before work does and is carried past the slot. What an instance still owes
when it is given up or lost is lost with it: the next start owes the full overhead again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimization.single_instance.kernels import play
from optimization.single_instance.setting import ON_DEMAND, SPOT, Setting
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
