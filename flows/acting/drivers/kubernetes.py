"""Pods of a Kubernetes cluster, by ``kubectl``: a workload for each kind of a job in a market, scaled to the order.

The user's manifest is a Deployment or a Job. Node selectors put its pods on nodes of the market and
the kind. A server-side apply of the same numbers changes nothing, so that an interrupted order can
be repeated; pods that the cluster cannot place stay pending. With the option ``quota`` the driver
sets quotas of Kueue instead (`slackwater.flows.acting.drivers.kueue`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import Field, model_validator

from slackwater.flows.acting.contract import KINDS, Brought, Driver, Instance, Kind, Order, workload_name
from slackwater.flows.acting.drivers import DriverOptions, Place, read_options
from slackwater.flows.acting.drivers.kueue import QuotaDriver
from slackwater.flows.acting.drivers.pods import Kubectl, pod_instance
from slackwater.flows.acting.drivers.quotas import QuotaOptions
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.history import WHOLE, Market

JOB, KIND, WORKLOAD, MARKET = "slackwater/job", "slackwater/kind", "slackwater/workload", "slackwater/market"
#: Labels of nodes with their region, zone and instance type.
REGION, ZONE, TYPE = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "node.kubernetes.io/instance-type",
)
CAPACITY: Final = "karpenter.sh/capacity-type"
#: Kinds of manifests, with the field that has the number of pods.
SCALED: Final = {"Deployment": "replicas", "Job": "parallelism"}


class Options(DriverOptions):
    """Options of the driver."""

    manifest: Path | None = Field(None, description="file of a Deployment or a Job, one pod a node")
    quota: QuotaOptions | None = Field(None, description="quotas of Kueue to set, in place of a manifest")
    namespace: str = Field("default", description="namespace of the workloads")
    context: str | None = Field(None, description="context of the kubeconfig")
    spot: dict[str, str] = Field({CAPACITY: "spot"}, description="labels of spot nodes")
    on_demand: dict[str, str] = Field({CAPACITY: "on-demand"}, description="labels of on-demand nodes")
    kubectl: tuple[str, ...] = Field(("kubectl",), min_length=1, description="program and first arguments")
    timeout_seconds: float = Field(120.0, gt=0, le=3600, description="time limit of a call, seconds")

    @model_validator(mode="after")
    def _check_form(self) -> Options:
        if (self.manifest is None) == (self.quota is None):
            raise ValueError("expected manifest or quota, and not both")
        return self


class KubernetesDriver(Driver):
    """Driver of a Kubernetes cluster that scales workloads."""

    settle_seconds = 0.0  # an order states numbers, and the API has them once it has answered
    retry_seconds = math.inf  # pods that have no node stay requested

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        self._kubectl = kubectl_of(options)
        self._manifest: dict[str, Any] | None = None

    def listed(self, job: str, markets: Collection[str], now: datetime) -> Sequence[Instance]:
        """Return the pods of a job that have a node, and those that ended as long as the cluster lists them."""
        found = self._kubectl.read_json("get", "pods", "-l", f"{JOB}={job_label(job)}", "-o", "json")
        return [instance for pod in found["items"] if (instance := instance_of(pod, job, now)) is not None]

    def bring(self, order: Order, now: datetime) -> Brought:
        """Delete the workloads that the order leaves out, then apply those that it states."""
        deleted, kept = self._workloads(order)
        if deleted:
            self._kubectl.call(*self._deletion(deleted))
        if kept:
            self._kubectl.call(*APPLY, given=json.dumps({"apiVersion": "v1", "kind": "List", "items": kept}))
        return Brought()

    def commands(self, order: Order, held: Sequence[Instance]) -> list[str]:
        """Return the calls of ``kubectl``."""
        deleted, kept = self._workloads(order)
        names = {workload_name(instance.job, instance.market, instance.kind) for instance in held}
        calls = [self._kubectl.command(*self._deletion([name])) for name in deleted if name in names]
        return calls + [
            f"{self._kubectl.command(*APPLY)} <<< {shlex.quote(json.dumps(workload))}" for workload in kept
        ]

    def _workloads(self, order: Order) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the names of the workloads to delete, and the workloads to apply."""
        deleted: list[str] = []
        kept: list[dict[str, Any]] = []
        for market in order.markets:
            for kind in KINDS:
                if count := order.count(kind) if market == order.market else 0:
                    labels = self._options.spot if kind == "spot" else self._options.on_demand
                    kept.append(
                        workload(self._template(), order, kind, count, labels, self._options.namespace)
                    )
                else:
                    deleted.append(workload_name(order.job, market, kind))
        return deleted, kept

    def _deletion(self, names: Sequence[str]) -> list[str]:
        return ["delete", self._template()["kind"].lower(), *names, "--ignore-not-found", "--wait=false"]

    def _template(self) -> dict[str, Any]:
        """Return the user's manifest; raises `SettingsError` unless it is a single Deployment or Job."""
        if self._manifest is None:
            file = str(self._options.manifest)
            found = self._kubectl.read_json(
                "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", file
            )
            if found.get("kind") not in SCALED:
                raise SettingsError(
                    f"driver {self.name!r}: {file} has a {found.get('kind')}",
                    expected="one Deployment or one Job; a JobSet runs with the option quota, on Kueue",
                )
            self._manifest = found
        return self._manifest


#: A server-side apply creates an object, or changes it to the stated fields, in one call.
APPLY: Final = (
    "apply", "--server-side", "--force-conflicts", "--field-manager=slackwater", "--validate=false", "-f", "-",
)  # fmt: skip


def job_label(job: str) -> str:
    """Return the label value of a job: names may have characters that labels must not have.

    >>> job_label("Llama 8B")
    '561a6b00ccf8416d'
    """
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def workload(
    template: Mapping[str, Any],
    order: Order,
    kind: Kind,
    count: int,
    labels: Mapping[str, str],
    namespace: str,
) -> dict[str, Any]:
    """Return the workload of a kind of an order: the manifest, scaled, on the nodes of its market.

    All orders have the same pod template, because a changed template would restart the pods:
    differences are in the annotations of the workload.
    """
    market, name = Market.parse(order.market), workload_name(order.job, order.market, kind)
    found: dict[str, Any] = copy.deepcopy({key: template[key] for key in ("apiVersion", "kind", "spec")})
    given = template.get("metadata", {})
    tags = {"slackwater/job-name": order.job, "slackwater/key": order.key, "slackwater/token": order.token}
    if order.valid_until is not None:
        tags["slackwater/valid-until"] = order.valid_until.isoformat()
    found["metadata"] = {
        "name": name,
        "namespace": namespace,
        "labels": {**given.get("labels", {}), JOB: job_label(order.job)},
        "annotations": {**given.get("annotations", {}), **tags},
    }
    spec = found["spec"]
    spec[SCALED[found["kind"]]] = count
    pod = spec["template"]
    marks = {JOB: job_label(order.job), KIND: kind, WORKLOAD: name}
    meta = {key: value for key, value in pod.get("metadata", {}).items() if value is not None}
    pod["metadata"] = {
        **meta,
        "labels": {**meta.get("labels", {}), **marks},
        "annotations": {**meta.get("annotations", {}), MARKET: order.market},
    }
    where = {REGION: market.region, ZONE: market.zone, TYPE: market.instance_type}
    where = {key: value for key, value in where.items() if value != WHOLE}
    pod["spec"]["nodeSelector"] = {**pod["spec"].get("nodeSelector", {}), **where, **labels}
    if found["kind"] == "Deployment":
        spec["selector"] = {"matchLabels": {WORKLOAD: name}}
    return found


def instance_of(pod: Mapping[str, Any], job: str, now: datetime) -> Instance | None:
    """Return a pod of a workload of this driver as an instance, None before it has a node."""
    meta = pod["metadata"]
    return pod_instance(pod, job=job, market=meta["annotations"][MARKET], kind=meta["labels"][KIND], now=now)


def kubectl_of(options: Options) -> Kubectl:
    """Return the calls of ``kubectl`` with the options of a driver."""
    return Kubectl(
        program=options.kubectl,
        namespace=options.namespace,
        context=options.context,
        timeout_seconds=options.timeout_seconds,
    )


def create(options: Mapping[str, Any], place: Place) -> Driver:
    """Create the driver from its options."""
    read = read_options(Options, options, place)
    if read.quota is not None:
        return QuotaDriver(place.name, read.quota, kubectl_of(read))
    return KubernetesDriver(place.name, read)
