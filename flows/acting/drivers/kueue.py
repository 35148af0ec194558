"""Pods that Kueue admits: the driver sets the quotas of a job's ClusterQueue, and evicts workloads above them.

The user submits as many pods as the job may use, each of which takes a node. Kueue starts those that
fit the quotas. A lower quota evicts nothing by itself, so the driver deactivates the newest workloads
above it, and activates them again once they have ended: then they wait for the next quota.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from slackwater.flows.acting.contract import Brought, Driver, DriverError, Instance, Order
from slackwater.flows.acting.drivers.pods import Kubectl, pod_instance
from slackwater.flows.acting.drivers.quotas import (
    OWNER,
    AdmittedWorkload,
    QuotaOptions,
    admitted_workload,
    check_quotas_limit,
    has_resource,
    queue_of,
    quota_owner,
    quotas_of,
    surplus_workloads,
    whole_number,
)

QUEUES, WORKLOADS = "clusterqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"
#: Annotation of a workload that the driver has deactivated: its ClusterQueue.
EVICTED: Final = "slackwater/evicted"


class QuotaDriver(Driver):
    """Driver of a Kubernetes cluster with Kueue."""

    settle_seconds = 0.0  # an order states quotas, and the API has them once it has answered
    retry_seconds = 300.0  # workloads that were evicted and have ended meanwhile are queued again

    def __init__(self, name: str, options: QuotaOptions, kubectl: Kubectl) -> None:
        self.name = name
        self._options = options
        self._kubectl = kubectl

    def listed(self, job: str, markets: Collection[str], now: datetime) -> Sequence[Instance]:
        """Return the admitted pods of a job's queue that have a node, and those that ended as long as the cluster lists them."""
        if quota_owner(self._queue(job)) != job:
            return []
        found = {}
        for workload in self._admitted(job, self._items()):
            market, kind = self._options.places[workload.flavor]
            for pod in workload.pods:
                instance = pod_instance(pod, job=job, market=market, kind=kind, now=now)
                if instance is not None:
                    found[instance.id] = instance
        return list(found.values())

    def bring(self, order: Order, now: datetime) -> Brought:
        """Lower the quotas, evict the workloads above them, then raise quotas.

        In this order a replacement starts only after the workload that it replaces is deactivated.
        """
        nodes = self._nodes(order)
        self._kubectl.call(*self._set_quotas(order, nodes, raised=False))
        for call in self._workload_calls(order.job, nodes):
            self._call_if_there(call)
        if order.total:
            self._kubectl.call(*self._set_quotas(order, nodes, raised=True))
        return Brought()

    def commands(self, order: Order, held: Sequence[Instance]) -> list[str]:
        """Return the calls of ``kubectl``, with the quotas of the queue as it is now."""
        nodes = self._nodes(order)
        calls = [*self._workload_calls(order.job, nodes), self._set_quotas(order, nodes, raised=True)]
        return [self._kubectl.command(*call) for call in calls]

    def _call_if_there(self, call: Sequence[str]) -> None:
        """Make a call on a workload, which may have ended since it was listed."""
        try:
            self._kubectl.call(*call)
        except DriverError as error:
            if "(NotFound)" not in str(error):
                raise

    def _nodes(self, order: Order) -> dict[str, int]:
        """Return the number of nodes of an order by flavor."""
        if order.total and order.market not in self._options.flavors:
            raise DriverError(
                f"no flavors of market {order.market}", expected=f"one of {', '.join(self._options.flavors)}"
            )
        return {
            flavor: order.count(kind) if market == order.market else 0
            for flavor, (market, kind) in self._options.places.items()
        }

    def _queue(self, job: str) -> dict[str, Any]:
        return self._kubectl.read_json("get", QUEUES, self._options.queue_of(job), "-o", "json")

    def _items(self) -> Sequence[Mapping[str, Any]]:
        """Return the pods and the workloads of the namespace."""
        return list(self._kubectl.read_json("get", f"pods,{WORKLOADS}", "-o", "json")["items"])

    def _set_quotas(self, order: Order, nodes: Mapping[str, int], *, raised: bool) -> list[str]:
        """Return the call that sets the quotas of a queue; without ``raised`` no quota becomes larger.

        The list of quotas is replaced as a whole, because it is an atomic list of the API. The API refuses the
        call if the queue has changed since it was read.
        """
        queue = self._queue(order.job)
        name = queue["metadata"]["name"]
        quotas = quotas_of(queue, self._options)
        before = {flavor: whole_number(quota["nominalQuota"]) for flavor, quota in quotas.items()}
        if quota_owner(queue) not in (order.job, None) and any(before.values()):
            raise DriverError(
                f"ClusterQueue {name} has the quotas of job {quota_owner(queue)!r}",
                expected="a queue for each job",
            )
        if raised:
            check_quotas_limit(queue, self._options)
        for flavor, quota in quotas.items():
            wanted = nodes.get(flavor, 0) * self._options.per_node
            quota["nominalQuota"] = str(wanted if raised else min(wanted, before[flavor]))
        patch = {
            "metadata": {
                "resourceVersion": queue["metadata"]["resourceVersion"],
                "annotations": {
                    OWNER: order.job,
                    "slackwater/key": order.key,
                    "slackwater/token": order.token,
                },
            },
            "spec": {"resourceGroups": queue["spec"]["resourceGroups"]},
        }
        return patch_call(QUEUES, name, patch)

    def _workload_calls(self, job: str, nodes: Mapping[str, int]) -> Iterator[list[str]]:
        """Yield the calls that deactivate the workloads above the quotas, and activate those that have ended since."""
        items, queue = self._items(), self._options.queue_of(job)
        for workload in surplus_workloads(self._admitted(job, items), nodes):
            patch = {"metadata": {"annotations": {EVICTED: queue}}, "spec": {"active": False}}
            yield patch_call(WORKLOADS, workload.name, patch)
        for item in items:
            is_evicted = item["metadata"].get("annotations", {}).get(EVICTED) == queue
            if is_evicted and not item.get("status", {}).get("admission"):
                patch = {"metadata": {"annotations": {EVICTED: None}}, "spec": {"active": True}}
                yield patch_call(WORKLOADS, item["metadata"]["name"], patch)

    def _admitted(self, job: str, items: Sequence[Mapping[str, Any]]) -> list[AdmittedWorkload]:
        """Return the workloads with the resource that a job's queue has admitted."""
        pods = [
            item for item in items if item["kind"] == "Pod" and has_resource(item, self._options.resource)
        ]
        workloads = [
            admitted_workload(item, pods, self._options)
            for item in items
            if item["kind"] == "Workload" and queue_of(item) == self._options.queue_of(job)
        ]
        return [workload for workload in workloads if workload is not None]


def patch_call(kind: str, name: str, patch: Mapping[str, Any]) -> list[str]:
    """Return the call that merges a patch into an object."""
    return ["patch", kind, name, "--type=merge", "--field-manager=slackwater", "-p", json.dumps(patch)]
