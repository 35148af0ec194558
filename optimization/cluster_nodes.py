"""Which node a job runs on: no job is split over nodes, and whole powers of two always fit when moved together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def best_fit(free: Sequence[int], gpus: int) -> int | None:
    """The node with the least free GPUs that has ``gpus`` of them, the first of equals; None if there is none.

    >>> best_fit([8, 3, 2], 2), best_fit([1, 1], 2)
    (2, None)
    """
    fitting = [(room, node) for node, room in enumerate(free) if room >= gpus]
    return min(fitting)[1] if fitting else None


def pack(
    wanted: Mapping[int, int], held: Mapping[int, tuple[int, int]], *, nodes: int, gpus_per_node: int
) -> dict[int, int]:
    """A node for every job of ``wanted`` (job -> GPUs), moving as few as may be of ``held`` (job -> (node, GPUs)).

    A job that keeps its GPUs keeps its node, and newcomers take the best fit. Only if one does not fit so are all packed anew,
    the largest first, each on its old node where that has room: widths that divide one another then always fit when their sum
    does. A job that fits nowhere is left out.
    """
    free = [gpus_per_node] * nodes
    placed: dict[int, int] = {}
    for job, gpus in wanted.items():
        if job in held and held[job][1] == gpus:
            placed[job] = held[job][0]
            free[placed[job]] -= gpus
    news = sorted((job for job in wanted if job not in placed), key=lambda job: (-wanted[job], job))
    for job in news:
        node = best_fit(free, wanted[job])
        if node is None:
            return _pack_anew(wanted, held, [gpus_per_node] * nodes)
        placed[job] = node
        free[node] -= wanted[job]
    return placed


def _pack_anew(
    wanted: Mapping[int, int], held: Mapping[int, tuple[int, int]], free: list[int]
) -> dict[int, int]:
    placed: dict[int, int] = {}
    for job in sorted(wanted, key=lambda job: (-wanted[job], job not in held, job)):
        old = held[job][0] if job in held else None
        node = old if old is not None and free[old] >= wanted[job] else best_fit(free, wanted[job])
        if node is not None:
            placed[job] = node
            free[node] -= wanted[job]
    return placed


def fits(free: Sequence[int], widths: Sequence[int]) -> bool:
    """Whether jobs of ``widths`` GPUs can start on ``free`` GPUs by node without moving anything, placed as `pack` does.

    >>> fits([8, 3], [2, 8]), fits([7, 7], [8])
    (True, False)
    """
    room = list(free)
    for gpus in sorted(widths, reverse=True):
        node = best_fit(room, gpus)
        if node is None:
            return False
        room[node] -= gpus
    return True
