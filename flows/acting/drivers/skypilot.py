"""A SkyPilot cluster per job, through the command line ``sky`` (0.14 or later): launched, resized and taken down.

A cluster is either all spot or all on-demand, and training runs in one cluster. A decision that
mixes both runs all its instances on demand, which also meets the deadline and costs more. Names
of clusters derive from job, market and kind, so that a repeated call finds the cluster of the first.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from slackwater.flows.acting.contract import (
    KINDS,
    Brought,
    Driver,
    DriverError,
    Instance,
    Kind,
    Order,
    count_by_kind,
    workload_name,
)
from slackwater.flows.acting.drivers import DriverOptions, Place, read_options
from slackwater.flows.acting.drivers.calls import call_program
from slackwater.warehouse.history import WHOLE, Market

#: Providers of markets -> clouds of SkyPilot, where the names differ.
CLOUDS = {"vastai": "vast", "vast.ai": "vast"}
#: Parts of SkyPilot's messages if a cloud has no capacity.
NO_CAPACITY = ("ResourcesUnavailableError", "Failed to acquire resources", "Failed to provision")


class Options(DriverOptions):
    """Options of the driver."""

    task: Path = Field(
        description="task file (YAML) with setup and run; run resumes from the newest checkpoint"
    )
    sky: tuple[str, ...] = Field(("sky",), min_length=1, description="program and arguments before a command")
    accelerators: str | None = Field(
        None, description="such as H100:8, in the place of the market's instance type"
    )
    timeout_seconds: float = Field(1800.0, gt=0, description="time limit of a call, seconds")
    retry_seconds: float = Field(
        300.0, gt=0, description="seconds after which a cluster that was refused is requested again"
    )


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A cluster as reported by SkyPilot.

    ``works``: it is up or being launched with all its nodes. ``mark`` differs between clusters that
    had the same name in turn.
    """

    name: str
    nodes: int
    works: bool
    launched_at: datetime | None = None
    mark: str = ""


class SkyPilotDriver(Driver):
    """Driver of SkyPilot."""

    settle_seconds = 0.0  # the API server of SkyPilot has its own record of clusters

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.retry_seconds = options.retry_seconds
        self._options = options

    def fitted(self, on_demand: int, spot: int) -> tuple[int, int]:
        """Return the instances of a single cluster for a decision: all of one kind."""
        return (on_demand + spot, 0) if on_demand and spot else (on_demand, spot)

    def listed(self, job: str, markets: Collection[str], now: datetime) -> Sequence[Instance]:
        """Return the nodes of the clusters of a job in ``markets``."""
        clusters = self._clusters()
        return [
            Instance(
                id=f"{name}.{clusters[name].mark}#{node}",
                job=job,
                key="",
                market=market,
                kind=kind,
                since=min(clusters[name].launched_at or now, now),
            )
            for market in sorted(markets)
            for kind in KINDS
            if (name := workload_name(job, market, kind)) in clusters and clusters[name].works
            for node in range(clusters[name].nodes)
        ]

    def bring(self, order: Order, now: datetime) -> Brought:
        """Take down the clusters of other markets and kinds, then launch or resize the cluster of the order."""
        for call in self._calls(order, self._clusters()):
            refused = self._run(call)
            if refused:
                return Brought(refused=f"{order.total} instances: {refused}")
        return Brought()

    def commands(self, order: Order, held: Sequence[Instance]) -> list[str]:
        """Return the calls of ``sky`` for an order, with the clusters that ``held`` states."""
        counts = {
            workload_name(order.job, market, kind): count_by_kind(held, market)[kind]
            for market in order.markets
            for kind in KINDS
        }
        clusters = {name: _Cluster(name, n, True) for name, n in counts.items() if n}
        return [shlex.join([*self._options.sky, *call]) for call in self._calls(order, clusters)]

    def _calls(self, order: Order, clusters: Mapping[str, _Cluster]) -> list[list[str]]:
        """Return the calls that bring the clusters of a job to an order."""
        kind: Kind = "spot" if order.spot else "on_demand"
        wanted = workload_name(order.job, order.market, kind) if order.total else ""
        names = {
            workload_name(order.job, market, kind_of_instance)
            for market in order.markets
            for kind_of_instance in KINDS
        }
        present = clusters.get(wanted)
        broken = present is not None and not present.works
        to_end = sorted(name for name in names & set(clusters) if name != wanted or broken)
        calls = [["down", "--yes", name] for name in to_end]
        if not order.total or (present is not None and present.works and present.nodes == order.total):
            return calls
        if present is None or broken:
            return [*calls, self._launch(order, wanted, kind)]
        # The training of the old size ends first: two would resume from the same checkpoint.
        calls.append(["cancel", "--yes", "--all", wanted])
        resize = ["--resize", "--num-nodes", str(order.total)]
        return [*calls, ["launch", "--yes", "--detach-run", "-c", wanted, *resize, str(self._options.task)]]

    def _launch(self, order: Order, name: str, kind: Kind) -> list[str]:
        market = Market.parse(order.market)
        cloud = CLOUDS.get(market.provider.lower(), market.provider.lower())
        zones = [market.zone] if market.zone not in (WHOLE, market.region) else []
        parts = [cloud, *([market.region, *zones] if market.region != WHOLE else [])]
        kinds = {"spot": "--use-spot", "on_demand": "--no-use-spot"}
        machine = (
            ["--gpus", self._options.accelerators]
            if self._options.accelerators
            else ["--instance-type", market.instance_type]
        )
        size = ["--num-nodes", str(order.total), kinds[kind], "--infra", "/".join(parts)]
        tags = ["--env", f"SLACKWATER_JOB={order.job}", "--env", f"SLACKWATER_KEY={order.key}"]
        call = ["launch", "--yes", "--detach-run", "-c", name, *size, *machine, *tags]
        return [*call, str(self._options.task)]

    def _clusters(self) -> dict[str, _Cluster]:
        """Return all clusters by name, with the state that their clouds state now."""
        out = self._call(["status", "--refresh", "--output", "json"])
        try:
            rows = json.loads(out[out.index("[") : out.rindex("]") + 1])
            found = [_cluster(row) for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise DriverError(
                f"the answer of `sky status`: {error}", expected="the JSON of SkyPilot 0.14"
            ) from error
        return {cluster.name: cluster for cluster in found}

    def _run(self, words: Sequence[str]) -> str:
        """Make a call; return why there is no capacity, "" if it succeeded."""
        try:
            self._call(words)
        except DriverError as error:
            reason = next((text for text in NO_CAPACITY if text in str(error)), "")
            if reason:
                return "no capacity"
            raise
        return ""

    def _call(self, words: Sequence[str]) -> str:
        program = [*self._options.sky, *words]
        return call_program(
            program,
            name=f"`{shlex.join(program[:3])}`",
            timeout_seconds=self._options.timeout_seconds,
            expected="SkyPilot's command line",
            remedy="pip install skypilot",
        )


def _cluster(row: Mapping[str, Any]) -> _Cluster:
    launching = row["status"] == "INIT" and row.get("init_kind") != "unhealthy"
    return _Cluster(
        name=row["name"],
        nodes=int(row["nodes"]),
        launched_at=datetime.fromtimestamp(int(row["launched_at"]), UTC),
        works=row["status"] == "UP" or launching,
        mark=str(row["cluster_hash"])[:8],
    )


def create(options: Mapping[str, Any], place: Place) -> SkyPilotDriver:
    """Create the driver from its options."""
    return SkyPilotDriver(place.name, read_options(Options, options, place))
