"""The Kubernetes driver: the workloads that it applies, and the pods that it reads."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import yaml
from acting_kit import MARKET, START
from kubernetes_kit import TRAIN

from slackwater.flows.acting.contract import DriverError, Order, workload_name
from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.drivers.kubernetes import instance_of, workload

#: Values of labels, and names, as Kubernetes accepts them.
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
JOB = yaml.safe_load(TRAIN)
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "spec": {"selector": {"matchLabels": {"app": "train"}}, "template": {"metadata": {"labels": {"app": "train"}},
             "spec": {"containers": [{"name": "train", "image": "example/train:1"}], "nodeSelector": {"pool": "a"}}}},
}  # fmt: skip


def made(template, count, *, kind="spot", n=1, job="Llama 8B (über)"):
    order = Order(
        job=job, token=f"key-{n}", key="key", market=MARKET, on_demand=0, spot=count,
        valid_until=START + timedelta(minutes=30 * n),
    )  # fmt: skip
    return workload(template, order, kind, count, {"karpenter.sh/capacity-type": kind}, "ml")


@pytest.mark.parametrize(("template", "field"), [(JOB, "parallelism"), (DEPLOYMENT, "replicas")])
def test_a_workload_is_the_manifest_scaled_on_the_nodes_of_its_market(template, field):
    found = made(template, 3)
    pod = found["spec"]["template"]
    assert found["spec"][field] == 3
    assert found["metadata"]["name"] == workload_name("Llama 8B (über)", MARKET, "spot")
    assert NAME.fullmatch(found["metadata"]["name"])
    for labels in (found["metadata"]["labels"], pod["metadata"]["labels"], pod["spec"]["nodeSelector"]):
        assert all(LABEL.fullmatch(value) for value in labels.values())
    assert (
        pod["spec"]["nodeSelector"].items()
        >= {
            "topology.kubernetes.io/zone": "us-east-1a",
            "node.kubernetes.io/instance-type": "p4d.24xlarge",
            "karpenter.sh/capacity-type": "spot",
        }.items()
    )
    assert pod["spec"]["containers"] == template["spec"]["template"]["spec"]["containers"]
    if "selector" in found["spec"]:
        assert found["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("template", [JOB, DEPLOYMENT])
def test_another_order_changes_the_number_and_no_pod(template):
    first, second = made(template, 3), made(template, 2, n=2)
    assert first["spec"]["template"] == second["spec"]["template"]
    assert first["metadata"]["annotations"] != second["metadata"]["annotations"]
    assert made(template, 3) == first


def test_pods_are_instances_from_their_node_to_their_end():
    labels = {"slackwater/kind": "spot"}
    meta = {"uid": "u-1", "labels": labels, "annotations": {"slackwater/market": MARKET}}
    begun = {"phase": "Running", "startTime": "2026-03-02T00:05:00Z"}
    now = START + timedelta(hours=1)
    assert instance_of({"metadata": meta, "status": {"phase": "Pending"}}, "j", now) is None
    running = instance_of({"metadata": meta, "status": begun}, "j", now)
    assert (running.since, running.ended, running.market) == (START + timedelta(minutes=5), None, MARKET)
    taken = {"type": "DisruptionTarget", "status": "True"}
    timed = taken | {"lastTransitionTime": "2026-03-02T00:20:00Z"}
    stopped = [{"state": {"terminated": {"finishedAt": f"2026-03-02T00:{n}:00Z"}}} for n in (21, 22)]
    deleted = {"deletionTimestamp": "2026-03-02T00:23:00Z"}
    for more, status, end, minute in (
        ({}, {"phase": "Failed", "conditions": [taken]}, "lost", 60),
        ({}, {"phase": "Failed", "conditions": [timed], "containerStatuses": stopped}, "lost", 20),
        (deleted, {"conditions": [timed], "containerStatuses": stopped}, "lost", 20),
        ({}, {"phase": "Failed", "conditions": [taken], "containerStatuses": stopped}, "lost", 22),
        ({}, {"phase": "Succeeded"}, "finished", 60),
        ({}, {"phase": "Succeeded", "containerStatuses": stopped}, "finished", 22),
        ({}, {"phase": "Failed", "containerStatuses": [{"state": {"terminated": None}}]}, None, 60),
        (deleted, {"containerStatuses": stopped[:1]}, None, 23),
        ({"deletionTimestamp": "2026-03-02T02:00:00Z"}, {}, None, 60),
    ):
        found = instance_of({"metadata": meta | more, "status": begun | status}, "j", now)
        assert (found.end, found.ended) == (end, START + timedelta(minutes=minute))


def test_a_program_that_is_not_there_is_named(tmp_path):
    place = Place(name="k8s", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    options = {"manifest": tmp_path / "train.yaml", "kubectl": [str(tmp_path / "none")]}
    with pytest.raises(DriverError, match="none: No such file"):
        DRIVERS["kubernetes"](options, place).listed("job", [MARKET], START)
