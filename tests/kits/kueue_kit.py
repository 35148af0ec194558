"""A Kubernetes API with Kueue, as far as the driver needs them: queues with quotas, and workloads that they admit.

Every job has a ClusterQueue of its name, and pods with a workload each: those of a Deployment, or of JobSets of one pod.
Kueue admits the oldest workloads to the first flavor with enough quota. A lower quota evicts nothing; an
inactive workload loses its admission and its pod. Queues are checked against a schema of the fields used.
"""

from __future__ import annotations

import json
import shlex

import jsonschema
from acting_kit import Killed
from kubernetes_kit import KINDS as PLAIN
from kubernetes_kit import Cluster, group

from slackwater.flows.acting.contract import DriverError

GROUP, VERSION = "kueue.x-k8s.io", "kueue.x-k8s.io/v1beta2"
KINDS = PLAIN | {"clusterqueues": (VERSION, "ClusterQueue", ""), "workloads": (VERSION, "Workload", "")}
RESOURCE, PER_NODE = "nvidia.com/gpu", 8
#: The time of the first admission; the others follow a second apart.
DAY = "2026-03-02T00:00"

QUANTITY = {"type": "string", "pattern": "^[0-9]+([KMGT]i|[mkMGT])?$"}
#: The fields of a ClusterQueue that the driver reads and writes, as its API states them.
QUEUE_SCHEMA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"enum": ["kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"]},
        "kind": {"const": "ClusterQueue"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {"annotations": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
        "spec": {
            "type": "object",
            "properties": {
                "resourceGroups": {
                    "type": "array",
                    "maxItems": 16,
                    "items": {
                        "type": "object",
                        "required": ["coveredResources", "flavors"],
                        "additionalProperties": False,
                        "properties": {
                            "coveredResources": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                            "flavors": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "object",
                                    "required": ["name", "resources"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "name": {"type": "string"},
                                        "resources": {
                                            "type": "array",
                                            "minItems": 1,
                                            "items": {
                                                "type": "object",
                                                "required": ["name", "nominalQuota"],
                                                "additionalProperties": False,
                                                "properties": {
                                                    "name": {"type": "string"},
                                                    "nominalQuota": QUANTITY,
                                                    "borrowingLimit": QUANTITY,
                                                    "lendingLimit": QUANTITY,
                                                },
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    },
                }
            },
        },
    },
}


def check_queue(queue):
    """Raise `jsonschema.ValidationError` unless a ClusterQueue has the form of its API."""
    jsonschema.validate(queue, QUEUE_SCHEMA)
    for resources in queue["spec"]["resourceGroups"]:
        for flavor in resources["flavors"]:
            assert [one["name"] for one in flavor["resources"]] == resources["coveredResources"]


def cluster_queue(name, flavors, quota=0):
    """Return a ClusterQueue with a quota of GPUs for each flavor."""
    return {
        "apiVersion": VERSION,
        "kind": "ClusterQueue",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", RESOURCE],
                    "flavors": [
                        {
                            "name": flavor,
                            "resources": [
                                {"name": "cpu", "nominalQuota": "1k"},
                                {"name": RESOURCE, "nominalQuota": str(quota)},
                            ],
                        }
                        for flavor in flavors
                    ],
                }
            ],
        },
    }


class KueueCluster(Cluster):
    """A cluster with Kueue, and for each job a queue of its name with ``replicas`` pods of a Deployment or of ``jobsets``.

    An evicted pod of a Deployment is replaced, with another workload; a JobSet waits with its workload.
    """

    kinds = KINDS

    def __init__(self, jobs, flavors, replicas=4, jobsets=False):
        super().__init__()
        self.jobs, self.replicas, self.jobsets, self.admissions = tuple(jobs), replicas, jobsets, 0
        self.free = dict.fromkeys(flavors)
        for job in jobs:
            self.put("clusterqueues", cluster_queue(job, flavors))
        self.reconcile()

    def put(self, plural, item):
        """Store an object as a new version."""
        item["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.objects[plural, item["metadata"]["name"]] = item

    def all_of(self, plural):
        """Return the objects of a kind, oldest first."""
        return [one for (place, _), one in self.objects.items() if place == plural]

    def lose(self, flavor):
        """Take the nodes of a flavor: their pods end, and others in their place find no node."""
        with self._turn:
            self.free[flavor] = 0
            for workload in self.all_of("workloads"):
                if flavor_of(workload) == flavor:
                    self._end(workload)
            self.reconcile()

    def reconcile(self):
        """Do what Kueue and the controller of Deployments do."""
        for workload in self.all_of("workloads"):
            if not workload["spec"]["active"] and flavor_of(workload):
                self._end(workload)
        for job in self.jobs:
            while sum(one["spec"]["queueName"] == job for one in self.all_of("workloads")) < self.replicas:
                self._create(job)
        for workload in self.all_of("workloads"):
            if not flavor_of(workload) and workload["spec"]["active"]:
                self._admit(workload)

    def quotas(self, job):
        """Return the quota of GPUs by flavor."""
        flavors = self.objects["clusterqueues", job]["spec"]["resourceGroups"][0]["flavors"]
        return {
            flavor["name"]: int(one["nominalQuota"])
            for flavor in flavors
            for one in flavor["resources"]
            if one["name"] == RESOURCE
        }

    def used(self, job, flavor):
        """Return the number of nodes that a queue has admitted in a flavor."""
        mine = [one for one in self.all_of("workloads") if one["spec"]["queueName"] == job]
        return sum(flavor_of(one) == flavor for one in mine)

    def _create(self, job):
        name = f"{job}-{next(self._numbers)}"
        workload = {
            "apiVersion": VERSION,
            "kind": "Workload",
            "metadata": {
                "name": f"workload-{name}",
                "namespace": "default",
                "uid": f"uid-workload-{name}",
                "ownerReferences": [{"name": name, "uid": f"uid-{name}"}],
            },
            "spec": {"queueName": job, "active": True},
            "status": {},
        }
        self.put("workloads", workload)
        if not self.jobsets:
            self.put("pods", waiting_pod(name, f"uid-{name}", {}))

    def _admit(self, workload):
        job, name = workload["spec"]["queueName"], workload["metadata"]["ownerReferences"][0]["name"]
        fitting = [
            one for one, quota in self.quotas(job).items() if (self.used(job, one) + 1) * PER_NODE <= quota
        ]
        if not fitting:
            return
        at = f"{DAY}:{self.admissions:02}Z"
        self.admissions += 1
        workload["status"] = {
            "admission": {
                "clusterQueue": job,
                "podSetAssignments": [
                    {
                        "name": "main",
                        "count": 1,
                        "flavors": {"cpu": fitting[0], RESOURCE: fitting[0]},
                        "resourceUsage": {"cpu": "4", RESOURCE: str(PER_NODE)},
                    }
                ],
            },
            "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": at}],
        }
        self.put("workloads", workload)
        labels = {"jobset.sigs.k8s.io/jobset-uid": f"uid-{name}"}
        pod = (
            waiting_pod(name, f"uid-pod-{next(self._numbers)}", labels)
            if self.jobsets
            else self.objects["pods", name]
        )
        pod["spec"] = {key: value for key, value in pod["spec"].items() if key != "schedulingGates"}
        if self.free[fitting[0]] is None:
            pod["status"] = {"phase": "Running", "startTime": f"{DAY}:00Z"}
        self.put("pods", pod)

    def _end(self, workload):
        """Delete the pod of a workload, and the workload unless it is of a JobSet."""
        del self.objects["pods", workload["metadata"]["ownerReferences"][0]["name"]]
        if self.jobsets:
            self.put("workloads", workload | {"status": {}})
        else:
            del self.objects["workloads", workload["metadata"]["name"]]

    def groups(self):
        return [*super().groups(), group(GROUP, "v1beta2")]

    def patched(self, plural, name, body):
        """Merge a patch into an object; refuse an outdated version."""
        known, patch = self.objects.get((plural, name)), json.loads(body)
        if known is None:
            return 404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        version = patch.get("metadata", {}).get("resourceVersion", known["metadata"]["resourceVersion"])
        if version != known["metadata"]["resourceVersion"]:
            return 409, {"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409}
        new = merged(known, patch)
        if plural == "clusterqueues":
            check_queue(new)
        self.put(plural, new)
        self.reconcile()
        return 200, new


class DirectKubectl:
    """Calls of `kubectl` on a cluster without the program; it is killed before call number ``lives``."""

    def __init__(self, cluster, lives=None):
        self.cluster, self.lives, self.calls = cluster, lives, 0

    def read_json(self, *words):
        if self.lives == self.calls:
            raise Killed
        self.calls += 1
        if words[1].startswith("pods"):
            items = [*self.cluster.all_of("pods"), *self.cluster.all_of("workloads")]
            return json.loads(json.dumps({"items": items}))
        return json.loads(json.dumps(self.cluster.objects["clusterqueues", words[2]]))

    def call(self, *words):
        if self.lives == self.calls:
            raise Killed
        self.calls += 1
        _, kind, name, *options = words
        code, answer = self.cluster.patched(kind.partition(".")[0], name, options[options.index("-p") + 1])
        if code != 200:
            raise DriverError(
                f"`kubectl patch` ended with exit code 1: Error from server ({answer['reason']})"
            )
        return ""

    def command(self, *words):
        return shlex.join(["kubectl", *words])


def waiting_pod(name, uid, labels):
    """Return a pod that Kueue has not admitted."""
    requests = {"requests": {"cpu": "4", RESOURCE: str(PER_NODE)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": uid, "labels": labels},
        "spec": {
            "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
            "containers": [{"name": "train", "resources": requests}],
        },
        "status": {"phase": "Pending"},
    }


def flavor_of(workload):
    """Return the flavor of the GPUs of an admitted workload, "" before."""
    (assigned,) = workload["status"].get("admission", {}).get("podSetAssignments", [{}])
    return assigned.get("flavors", {}).get(RESOURCE, "")


def merged(known, patch):
    """Return an object with a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(known) if isinstance(known, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found
