"""The quotas of Kueue that the Kubernetes driver sets, and the workloads that it evicts."""

from __future__ import annotations

import json
from datetime import timedelta

import jsonschema
import pytest
from acting_kit import MARKET, START, Killed
from kueue_kit import PER_NODE, RESOURCE, DirectKubectl, KueueCluster, check_queue, cluster_queue

from slackwater.flows.acting.contract import DriverError, Order, count_by_kind
from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.drivers.kueue import QuotaDriver
from slackwater.flows.acting.drivers.quotas import QuotaOptions
from slackwater.warehouse.errors import SettingsError

FLAVORS = ("p4d-spot", "p4d-od")
QUOTA = {
    "cluster_queue": "{job}",
    "per_node": PER_NODE,
    "flavors": {MARKET: {"spot": "p4d-spot", "on_demand": "p4d-od"}},
}


def driver_on(cluster, lives=None, **options):
    return QuotaDriver("k8s", QuotaOptions(**QUOTA | options), DirectKubectl(cluster, lives))


def order_for(on_demand, spot, *, n=1, job="job", market=MARKET):
    return Order(job=job, token=f"key-{n}", key="key", market=market, on_demand=on_demand, spot=spot)


def held(driver, job="job"):
    return count_by_kind(driver.listed(job, [MARKET], START + timedelta(hours=1)))


def test_an_order_sets_the_quotas_of_both_kinds_and_nothing_else_of_the_queue():
    cluster = KueueCluster(["job"], FLAVORS)
    cluster.objects["clusterqueues", "job"]["metadata"]["annotations"] = {"team": "llm"}
    before = cluster.objects["clusterqueues", "job"]
    driver_on(cluster).bring(order_for(1, 2), START)
    assert cluster.quotas("job") == {"p4d-spot": 16, "p4d-od": 8}
    after = cluster.objects["clusterqueues", "job"]
    assert after["metadata"]["annotations"].items() >= {"team": "llm", "slackwater/token": "key-1"}.items()
    for queue in (before, after):
        for flavor in queue["spec"]["resourceGroups"][0]["flavors"]:
            (quota,) = [one for one in flavor["resources"] if one["name"] == RESOURCE]
            quota["nominalQuota"] = ""
    assert before["spec"] == after["spec"]


@pytest.mark.parametrize("jobsets", [False, True])
def test_orders_are_run_by_pods_of_deployments_and_of_jobsets(jobsets):
    cluster = KueueCluster(["job"], FLAVORS, jobsets=jobsets)
    driver = driver_on(cluster)
    for n, (on_demand, spot) in enumerate([(0, 3), (0, 1), (2, 0), (1, 3), (0, 0), (0, 4)]):
        driver.bring(order_for(on_demand, spot, n=n), START)
        assert sum(held(driver).values()) <= on_demand + spot
        driver.bring(order_for(on_demand, spot, n=n), START)  # evicted JobSets have ended, and wait again
        assert held(driver) == {"on_demand": on_demand, "spot": spot}


def test_nothing_starts_before_what_it_replaces_is_evicted():
    cluster = KueueCluster(["job"], FLAVORS)
    most, plain = [], cluster.patched

    def patched(*words):
        answer = plain(*words)
        most.append(sum(cluster.used("job", flavor) for flavor in FLAVORS))
        return answer

    driver_on(cluster).bring(order_for(0, 2), START)
    cluster.patched = patched
    driver_on(cluster).bring(order_for(2, 0, n=2), START)
    assert max(most) == 2
    assert cluster.used("job", "p4d-od") == 2


@pytest.mark.parametrize("jobsets", [False, True])
def test_an_order_that_is_killed_before_any_call_is_completed_by_the_next(jobsets):
    """No more than the larger of both orders is ever admitted by kind, nor than both states in sum."""
    for before, after in (((0, 3), (0, 1)), ((0, 2), (2, 0)), ((2, 1), (1, 3)), ((1, 2), (0, 0))):
        kills = 0
        while True:
            cluster = KueueCluster(["job"], FLAVORS, jobsets=jobsets)
            driver_on(cluster).bring(order_for(*before), START)
            try:
                driver_on(cluster, lives=kills).bring(order_for(*after, n=2), START)
                break
            except Killed:
                kills += 1
            counts = cluster.used("job", "p4d-od"), cluster.used("job", "p4d-spot")
            assert all(n <= max(pair) for n, *pair in zip(counts, before, after, strict=True))
            assert sum(counts) <= max(sum(before), sum(after))
            for _ in range(2):
                driver_on(cluster).bring(order_for(*after, n=2), START)
            assert tuple(held(driver_on(cluster)).values()) == after
        assert kills >= 4


def test_workloads_without_a_node_are_evicted_before_running_ones():
    cluster = KueueCluster(["job"], FLAVORS)
    cluster.free["p4d-spot"] = 0
    driver_on(cluster).bring(order_for(0, 2), START)
    cluster.free["p4d-spot"] = None
    driver_on(cluster).bring(order_for(0, 4, n=2), START)  # the newer two find nodes
    assert held(driver_on(cluster))["spot"] == 2
    driver_on(cluster).bring(order_for(0, 2, n=3), START)
    assert held(driver_on(cluster))["spot"] == 2


def test_pods_are_those_of_the_job_that_set_the_quotas():
    cluster = KueueCluster(["train"], FLAVORS)
    driver = driver_on(cluster, cluster_queue="train")
    driver.bring(order_for(0, 2), START)
    assert held(driver, "other")["spot"] == 0
    with pytest.raises(DriverError, match="has the quotas of job 'job'"):
        driver.bring(order_for(0, 1, job="other"), START)
    driver.bring(order_for(0, 0, n=2), START)
    driver.bring(order_for(1, 0, job="other"), START)
    assert (held(driver), held(driver, "other")["on_demand"]) == ({"on_demand": 0, "spot": 0}, 1)


def test_a_queue_that_changed_since_it_was_read_is_not_overwritten():
    cluster = KueueCluster(["job"], FLAVORS)
    driver = driver_on(cluster)
    call = driver._set_quotas(order_for(0, 1), {"p4d-spot": 1, "p4d-od": 0}, raised=True)
    cluster.patched("clusterqueues", "job", json.dumps({"metadata": {"annotations": {"a": "b"}}}))
    with pytest.raises(DriverError, match="Conflict"):
        DirectKubectl(cluster).call(*call)


def test_a_workload_that_ended_meanwhile_is_no_error():
    cluster = KueueCluster(["job"], FLAVORS)
    driver_on(cluster).bring(order_for(0, 2), START)
    driver, items = driver_on(cluster), DirectKubectl(cluster).read_json("get", "pods,workloads")["items"]
    driver._items = lambda: items
    cluster.lose("p4d-spot")
    driver.bring(order_for(1, 0, n=2), START)
    assert held(driver_on(cluster)) == {"on_demand": 1, "spot": 0}


def test_queues_that_could_admit_more_than_their_quotas_are_refused():
    for change, told in (
        ({"cohortName": "team"}, "may borrow nvidia.com/gpu of flavor p4d-spot"),
        (cluster_queue("job", [*FLAVORS, "a100"])["spec"], "in flavors p4d-spot, p4d-od, a100"),
    ):
        cluster = KueueCluster(["job"], FLAVORS)
        cluster.objects["clusterqueues", "job"]["spec"] |= change
        with pytest.raises(DriverError, match=told):
            driver_on(cluster).bring(order_for(0, 1), START)
        driver_on(cluster).bring(order_for(0, 0), START)  # nothing is stopped in any case


def test_pods_that_take_half_a_node_are_named():
    cluster = KueueCluster(["job"], FLAVORS)
    driver_on(cluster).bring(order_for(0, 1), START)
    with pytest.raises(DriverError, match=r"8 nvidia\.com/gpu of p4d-spot; expected 16 a pod"):
        held(driver_on(cluster, per_node=16))


def test_a_market_without_flavors_is_named():
    with pytest.raises(
        DriverError, match="no flavors of market aws/eu/eu-1/x; expected one of aws/us-east-1"
    ):
        driver_on(KueueCluster(["job"], FLAVORS)).bring(order_for(0, 1, market="aws/eu/eu-1/x"), START)


def test_commands_of_a_dry_run_are_those_of_the_order():
    cluster = KueueCluster(["job"], FLAVORS)
    driver_on(cluster).bring(order_for(0, 2), START)
    evict, quota = driver_on(cluster).commands(order_for(1, 1, n=2), [])
    assert evict.startswith("kubectl patch workloads.kueue.x-k8s.io workload-job-")
    assert '"active": false' in evict
    assert quota.startswith("kubectl patch clusterqueues.kueue.x-k8s.io job --type=merge")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "expected manifest or quota"),
        ({"manifest": "train.yaml", "quota": QUOTA}, "expected manifest or quota"),
        ({"quota": QUOTA | {"flavors": {MARKET: {"spot": "a", "on_demand": "a"}}}}, "each named once"),
        ({"quota": QUOTA | {"per_node": 0}}, "quota.per_node"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, told):
    place = Place(name="k8s", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    with pytest.raises(SettingsError, match=told):
        DRIVERS["kubernetes"](options, place)


def test_the_schema_of_the_tests_knows_a_wrong_queue():
    queue = cluster_queue("job", FLAVORS)
    check_queue(queue)
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"] = 8
    with pytest.raises(jsonschema.ValidationError):
        check_queue(queue)
