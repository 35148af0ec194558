"""Queues and workloads of Kueue: the options that name them, and the fields that are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field, model_validator

from slackwater.flows.acting.contract import KINDS, DriverError, Kind
from slackwater.flows.acting.drivers import DriverOptions

#: Annotation of a ClusterQueue: the job whose orders set its quotas.
OWNER: Final = "slackwater/job-name"
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"


class Flavors(DriverOptions):
    """The ResourceFlavors of a market."""

    spot: str = Field(min_length=1, description="flavor of its spot nodes")
    on_demand: str = Field(min_length=1, description="flavor of its on-demand nodes")

    def of(self, kind: Kind) -> str:
        """Return the flavor of a kind."""
        return self.spot if kind == "spot" else self.on_demand


class QuotaOptions(DriverOptions):
    """Options ``quota`` of the driver."""

    cluster_queue: str = Field(
        min_length=1, description="ClusterQueue; {job} is the job's name in lower case"
    )
    resource: str = Field("nvidia.com/gpu", description="resource whose quota is set")
    per_node: int = Field(gt=0, description="amount of the resource in a node, which a pod requests")
    flavors: dict[str, Flavors] = Field(min_length=1, description="flavors by market")

    @model_validator(mode="after")
    def _check_flavors(self) -> QuotaOptions:
        if len(self.places) < 2 * len(self.flavors):
            raise ValueError("expected a flavor for each market and kind, each named once")
        return self

    @property
    def places(self) -> dict[str, tuple[str, Kind]]:
        """Market and kind by flavor."""
        return {
            flavors.of(kind): (market, kind) for market, flavors in self.flavors.items() for kind in KINDS
        }

    def queue_of(self, job: str) -> str:
        """Return the name of the ClusterQueue of a job."""
        readable = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
        return self.cluster_queue.replace("{job}", readable or "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedWorkload:
    """Workload that Kueue has admitted to a queue, with its pods; ``since`` is the time of its admission."""

    name: str
    flavor: str
    nodes: int
    since: str
    active: bool
    pods: tuple[Mapping[str, Any], ...]

    @property
    def is_placed(self) -> bool:
        """Whether one of its pods has a node."""
        return any("startTime" in pod.get("status", {}) for pod in self.pods)


def quota_owner(queue: Mapping[str, Any]) -> str | None:
    """Return the job whose orders set the quotas of a ClusterQueue, None before the first."""
    owner = queue["metadata"].get("annotations", {}).get(OWNER)
    return None if owner is None else str(owner)


def quotas_of(queue: Mapping[str, Any], options: QuotaOptions) -> dict[str, dict[str, Any]]:
    """Return the quotas of the resource in a ClusterQueue by flavor."""
    return {
        flavor["name"]: quota
        for group in queue["spec"].get("resourceGroups", ())
        for flavor in group["flavors"]
        for quota in flavor["resources"]
        if quota["name"] == options.resource
    }


def check_quotas_limit(queue: Mapping[str, Any], options: QuotaOptions) -> None:
    """Raise `DriverError` if a ClusterQueue could admit pods beyond the quotas of an order."""
    name, quotas = queue["metadata"]["name"], quotas_of(queue, options)
    if quotas.keys() != options.places.keys():
        raise DriverError(
            f"ClusterQueue {name} has {options.resource} in flavors {', '.join(quotas) or 'none'}",
            expected=f"{', '.join(options.places)}, as in the options",
        )
    if not (queue["spec"].get("cohortName") or queue["spec"].get("cohort")):
        return
    for flavor, quota in quotas.items():
        if str(quota.get("borrowingLimit")) != "0":
            raise DriverError(
                f"ClusterQueue {name} may borrow {options.resource} of flavor {flavor}",
                expected="borrowingLimit: 0",
            )


def whole_number(quantity: Any) -> int:
    """Return a quantity of whole devices, which the API may state in thousands.

    >>> whole_number("16"), whole_number("2k")
    (16, 2000)
    """
    text = str(quantity)
    digits, factor = (text[:-1], 1000) if text.endswith("k") else (text, 1)
    if not digits.isdigit():
        raise DriverError(f"quantity {text!r}", expected="a whole number")
    return int(digits) * factor


def has_resource(pod: Mapping[str, Any], resource: str) -> bool:
    """Return whether a pod requests a resource."""
    return any(
        resource in container.get("resources", {}).get("requests", {})
        for container in pod["spec"]["containers"]
    )


def queue_of(workload: Mapping[str, Any]) -> str:
    """Return the ClusterQueue that has admitted a workload, "" for none."""
    return str((workload.get("status", {}).get("admission") or {}).get("clusterQueue", ""))


def admitted_workload(
    workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], options: QuotaOptions
) -> AdmittedWorkload | None:
    """Return an admitted workload with its pods, None if it does not use the resource."""
    meta, status = workload["metadata"], workload["status"]
    assigned = [
        pod_set
        for pod_set in status["admission"]["podSetAssignments"]
        if options.resource in pod_set.get("flavors", {})
    ]
    if not assigned:
        return None
    nodes = sum(pod_set["count"] for pod_set in assigned)
    used = sum(whole_number(pod_set["resourceUsage"][options.resource]) for pod_set in assigned)
    flavors = {pod_set["flavors"][options.resource] for pod_set in assigned}
    if used != nodes * options.per_node or len(flavors) > 1 or not flavors <= options.places.keys():
        raise DriverError(
            f"workload {meta['name']} has {nodes} pods with {used} {options.resource} of {', '.join(sorted(flavors))}",
            expected=f"{options.per_node} a pod, of one of {', '.join(options.places)}",
        )
    reached = {
        condition["type"]: condition
        for condition in status.get("conditions", ())
        if condition["status"] == "True"
    }
    return AdmittedWorkload(
        name=meta["name"],
        flavor=flavors.pop(),
        nodes=nodes,
        since=reached.get("QuotaReserved", {}).get("lastTransitionTime", ""),
        active=workload["spec"].get("active", True) and "Finished" not in reached,
        pods=tuple(pod for pod in pods if matching_uids(workload) & matching_uids(pod)),
    )


def matching_uids(item: Mapping[str, Any]) -> set[str]:
    """Return the UIDs by which pods are matched with workloads: those of an object, its owners and its JobSet."""
    meta = item["metadata"]
    found = {owner["uid"] for owner in meta.get("ownerReferences", ())}
    return found | {meta["uid"], meta.get("labels", {}).get(JOBSET_UID, meta["uid"])}


def surplus_workloads(
    admitted: Collection[AdmittedWorkload], nodes: Mapping[str, int]
) -> list[AdmittedWorkload]:
    """Return the workloads above a number of nodes by flavor: first those without a node, then the newest."""
    left, found = dict(nodes), []
    kept_first = sorted(admitted, key=lambda item: (not item.is_placed, item.since, item.name))
    for workload in kept_first:
        if not workload.active:
            continue
        if workload.nodes <= left[workload.flavor]:
            left[workload.flavor] -= workload.nodes
        else:
            found.append(workload)
    return found
