"""The contract of drivers of `slackwater act`: every driver keeps it, whatever it launches on."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from acting_kit import MARKET, START, make_world
from kubernetes_kit import TRAIN, Cluster, served
from kueue_kit import PER_NODE, KueueCluster
from moto_kit import moto_client, moto_url  # noqa: F401 - a fixture

from slackwater.flows.acting.contract import Driver, DriverError, Order, alive, count_by_kind
from slackwater.flows.acting.drivers import DRIVERS, Place, check_driver
from slackwater.flows.acting.drivers.command import CommandDriver, Options
from slackwater.flows.acting.drivers.simulated import JobWorld, SimulatedDriver
from slackwater.optimization.world.simulation import Readings, WorldMarkets
from slackwater.warehouse.errors import SettingsError

#: A launcher as a user would write it: instances are entries of a file.
SCRIPT = """
import json, pathlib, sys
from datetime import datetime, timezone
asked = json.load(sys.stdin)
file = pathlib.Path(sys.argv[1])
held = json.loads(file.read_text()) if file.exists() else {}
own = held.setdefault(asked["job"], [])
if asked["action"] == "bring":
    target = asked["target"]
    own[:] = [one for one in own if one["market"] == target["market"]]
    for kind in ("on_demand", "spot"):
        mine = [one for one in own if one["kind"] == kind]
        for one in mine[target[kind]:]:
            own.remove(one)
        for k in range(len(mine), target[kind]):
            number = sum(map(len, held.values())) + 1
            own.append({"id": f"{asked['job']}-{kind}-{asked['token']}-{k}", "kind": kind, "market": target["market"],
                        "key": asked["key"], "since": datetime.now(timezone.utc).isoformat()})
    file.write_text(json.dumps(held))
print(json.dumps({"held": own}))
"""


#: The calls of SkyPilot's command line that the driver makes, on clusters in a file.
SKY = """
import json, pathlib, sys
file, command, *words = pathlib.Path(sys.argv[1]), *sys.argv[2:]
rows = json.loads(file.read_text()) if file.exists() else {}
if command == "status":
    print(json.dumps(list(rows.values())))
elif command == "down":
    del rows[words[-1]]
elif command == "launch":
    name, nodes = words[words.index("-c") + 1], int(words[words.index("--num-nodes") + 1])
    assert ("--resize" in words) == (name in rows), "a cluster that is there is resized"
    mark = str(file.stat().st_mtime_ns if file.exists() else 0)[-9:]
    row = rows.setdefault(name, {"cluster_hash": mark})
    row |= {"name": name, "nodes": nodes, "status": "UP", "launched_at": 1772409600}
file.write_text(json.dumps(rows))
"""

OTHER = "aws/us-west-2/us-west-2a/p4d.24xlarge"


@dataclass
class Case:
    """A driver with a market of enough capacity, and a way to take its spot away."""

    driver: Driver
    lose_spot: Callable[[], datetime]


def simulated_case(tmp_path):
    world = make_world(START, hours=10, load=0.5, rng=np.random.default_rng(0))
    counts = np.full(72, 4)
    counts[6:] = 0
    readings = Readings(times=600.0 * np.arange(72), available=counts, price=np.full(72, 0.5))
    markets = WorldMarkets(terms=world.markets.terms * 2, move_usd=np.zeros((2, 2)), home=0)
    world = JobWorld(start=START, names=(MARKET, OTHER), markets=markets, readings=(readings, readings))
    driver = SimulatedDriver(tmp_path / "cloud", lambda job, now: world)
    return Case(driver, lambda: START + timedelta(hours=1))


def command_case(tmp_path):
    script, state = tmp_path / "launch.py", tmp_path / "state.json"
    script.write_text(SCRIPT)
    driver = CommandDriver("mine", Options(run=(sys.executable, str(script), str(state))))

    def lose():
        held = json.loads(state.read_text())
        left = {job: [one for one in own if one["kind"] != "spot"] for job, own in held.items()}
        state.write_text(json.dumps(left))
        return START + timedelta(hours=1)

    return Case(driver, lose)


def ec2_case(tmp_path, url):
    client, _ = moto_client(url), moto_client(url, "us-west-2")
    place = Place(name="cloud", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    options = {"template": "training", "endpoint_url": url, "settle_seconds": 0.0}

    def lose():
        for reservation in client.describe_instances()["Reservations"]:
            spot = [one for one in reservation["Instances"] if one.get("InstanceLifecycle") == "spot"]
            if spot:
                client.terminate_instances(InstanceIds=[one["InstanceId"] for one in spot])
        return START + timedelta(hours=1)

    return Case(DRIVERS["ec2"](options, place), lose)


def skypilot_case(tmp_path):
    script, state = tmp_path / "sky.py", tmp_path / "clusters.json"
    script.write_text(SKY)
    task = tmp_path / "train.yaml"
    task.write_text("run: python train.py --resume\n")
    sky = [sys.executable, str(script), str(state)]
    place = Place(name="sky", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    driver = DRIVERS["skypilot"]({"task": task, "sky": sky}, place)

    def lose():
        rows = json.loads(state.read_text())
        for row in rows.values():
            if "-spot-" in row["name"]:
                row |= {"status": "INIT", "init_kind": "unhealthy"}
        state.write_text(json.dumps(rows))
        return START + timedelta(hours=1)

    return Case(driver, lose)


def kubernetes_driver(tmp_path, url, options):
    """Return the Kubernetes driver with a real `kubectl` on a server."""
    kubectl = [
        "kubectl",
        "--server",
        url,
        "--kubeconfig",
        "/dev/null",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    place = Place(name="k8s", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    return DRIVERS["kubernetes"](options | {"kubectl": kubectl}, place)


def kubernetes_case(tmp_path, serve):
    (tmp_path / "train.yaml").write_text(TRAIN)
    cluster = Cluster()
    driver = kubernetes_driver(tmp_path, serve(cluster), {"manifest": tmp_path / "train.yaml"})

    def lose():
        cluster.lose("spot")
        return START + timedelta(hours=1)

    return Case(driver, lose)


def kueue_case(tmp_path, serve):
    flavors = {
        MARKET: {"spot": "spot-east", "on_demand": "od-east"},
        OTHER: {"spot": "spot-west", "on_demand": "od-west"},
    }
    cluster = KueueCluster(("job", "other"), [name for pair in flavors.values() for name in pair.values()])
    quota = {"cluster_queue": "{job}", "per_node": PER_NODE, "flavors": flavors}
    driver = kubernetes_driver(tmp_path, serve(cluster), {"quota": quota})

    def lose():
        cluster.lose("spot-east")
        return START + timedelta(hours=1)

    return Case(driver, lose)


CASES = {
    "ec2": ec2_case,
    "kubernetes": kubernetes_case,
    "kubernetes with quota": kueue_case,
    "skypilot": skypilot_case,
    "simulated": simulated_case,
    "command": command_case,
}


#: The server of moto takes seconds to start, and kubectl a fifth of a second a call.
SLOW = {"ec2", "kubernetes", "kubernetes with quota"}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(CASES)]
)
def case(request, tmp_path, monkeypatch):
    if request.param.startswith("kubernetes"):
        if shutil.which("kubectl") is None:
            pytest.skip("needs kubectl")
        return CASES[request.param](tmp_path, request.getfixturevalue("kubernetes_url"))
    if request.param != "ec2":
        return CASES[request.param](tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    return ec2_case(tmp_path, request.getfixturevalue("moto_url"))


@pytest.fixture
def kubernetes_url():
    with ExitStack() as stack:
        yield lambda cluster: stack.enter_context(served(cluster))


def order_for(driver, on_demand=0, spot=0, *, job="job", n=1, market=MARKET):
    on_demand, spot = driver.fitted(on_demand, spot)
    return Order(job=job, token=f"key-{n}", key="key", market=market, on_demand=on_demand, spot=spot)


def held(driver, job="job", now=START):
    return alive(driver.listed(job, [MARKET, OTHER], now))


def counts(driver, job="job", now=START):
    return count_by_kind(held(driver, job, now))


def fitted(case, on_demand, spot):
    return dict(zip(("on_demand", "spot"), case.driver.fitted(on_demand, spot), strict=True))


def test_every_driver_has_a_case():
    assert set(DRIVERS) == {name.partition(" ")[0] for name in CASES}


def test_an_order_is_brought_and_carries_job_and_key(case):
    assert held(case.driver) == []
    assert case.driver.bring(order_for(case.driver, 1, 2), START).refused == ""
    assert counts(case.driver) == fitted(case, 1, 2)
    for one in held(case.driver):
        assert (one.job, one.market) == ("job", MARKET)
        assert one.key in ("key", "")  # nodes of a cluster carry no tags


def test_the_same_order_again_launches_nothing(case):
    for _ in range(3):
        case.driver.bring(order_for(case.driver, 1, 2), START)
    assert counts(case.driver) == fitted(case, 1, 2)


def test_a_smaller_order_keeps_the_oldest_and_stops_the_others(case):
    case.driver.bring(order_for(case.driver, 1, 3), START)
    before = {one.id for one in held(case.driver)}
    case.driver.bring(order_for(case.driver, 1, 1, n=2), START)
    after = held(case.driver)
    assert count_by_kind(after) == fitted(case, 1, 1)
    assert {one.id for one in after} <= before


def test_a_larger_order_keeps_what_runs(case):
    case.driver.bring(order_for(case.driver, 0, 1), START)
    (before,) = held(case.driver)
    case.driver.bring(order_for(case.driver, 0, 3, n=2), START)
    after = held(case.driver)
    assert count_by_kind(after) == fitted(case, 0, 3)
    assert before.id in {one.id for one in after}


def test_an_order_of_nothing_stops_everything_and_may_be_repeated(case):
    case.driver.bring(order_for(case.driver, 1, 2), START)
    for _ in range(2):
        case.driver.bring(order_for(case.driver, n=2), START)
        assert held(case.driver) == []


def test_an_order_in_another_market_ends_the_instances_of_the_first(case):
    case.driver.bring(order_for(case.driver, 1, 1), START)
    order = order_for(case.driver, 1, 1, n=2, market=OTHER)
    case.driver.bring(order.model_copy(update={"elsewhere": (MARKET,)}), START)
    assert count_by_kind(held(case.driver), OTHER) == fitted(case, 1, 1)
    assert count_by_kind(held(case.driver), MARKET) == fitted(case, 0, 0)


def test_another_job_is_left_alone(case):
    case.driver.bring(order_for(case.driver, 1, 1, job="other"), START)
    case.driver.bring(order_for(case.driver, 1, 2), START)
    case.driver.bring(order_for(case.driver, n=2), START)
    assert counts(case.driver, "other") == fitted(case, 1, 1)


def test_lost_spot_is_not_held_any_more(case):
    case.driver.bring(order_for(case.driver, 1, 2), START)
    before = {one.id for one in held(case.driver) if one.kind == "spot"}
    later = case.lose_spot()
    assert counts(case.driver, now=later) == fitted(case, 1, 2) | {"spot": 0}
    ended = [one for one in case.driver.listed("job", [MARKET, OTHER], later) if one.id in before]
    assert all(one.since <= one.ended <= max(later, one.since) for one in ended)
    case.driver.bring(order_for(case.driver, 0, 2, n=2), later)
    assert before.isdisjoint(one.id for one in held(case.driver, now=later))


def test_a_decision_that_cannot_be_run_as_it_is_keeps_its_size_and_its_on_demand(case):
    for on_demand, spot in ((0, 0), (2, 0), (0, 3), (1, 2)):
        found = case.driver.fitted(on_demand, spot)
        assert sum(found) == on_demand + spot
        assert found[0] >= on_demand
        assert case.driver.fitted(*found) == found


def test_the_commands_of_a_dry_run_change_nothing(case):
    assert case.driver.commands(order_for(case.driver, 1, 2), [])
    assert held(case.driver) == []


@pytest.mark.parametrize(
    ("market", "place"),
    [
        ("aws/us-east-1/us-east-1a/p4d.24xlarge", "aws/us-east-1/us-east-1a"),
        ("gcp/us-central1/all/a3-highgpu-8g", "gcp/us-central1"),
        ("vast.ai/US/all/H100_SXM_80GB_x1", "vast/US"),
        ("vast.ai/all/all/H100_SXM_80GB_x1", "vast"),
    ],
)
def test_skypilot_is_given_the_place_that_a_market_covers(tmp_path, market, place):
    driver = skypilot_case(tmp_path).driver
    order = Order(job="j", token="a-1", key="a", market=market, on_demand=0, spot=1, valid_until=None)
    (told,) = driver.commands(order, [])
    assert f" --infra {place} " in told


def test_a_script_states_when_an_instance_was_lost(tmp_path):
    given = {"id": "i-1", "kind": "spot", "market": MARKET, "since": "2026-03-02T00:00:00Z"}
    lost = given | {"id": "i-2", "ended": "2026-03-02T00:20:00Z", "end": "lost"}
    (tmp_path / "list.py").write_text(f"print({json.dumps(json.dumps({'held': [given, lost]}))})")
    driver = CommandDriver("mine", Options(run=(sys.executable, str(tmp_path / "list.py"))))
    found = {one.id: (one.end, one.ended) for one in driver.listed("job", [MARKET], START)}
    assert found == {"i-1": (None, None), "i-2": ("lost", START + timedelta(minutes=20))}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("raise SystemExit('no quota')", "ended with exit code 1: no quota"),
        ("print('ok')", "JSON"),
        ("""print('{"held": [{"id": "i-1"}]}')""", "held.0.kind"),
        ("import time; time.sleep(9)", "no answer within 0.5 s"),
    ],
)
def test_a_script_that_fails_is_named_with_the_reason(tmp_path, script, told):
    (tmp_path / "bad.py").write_text(script)
    run = (sys.executable, str(tmp_path / "bad.py"))
    driver = CommandDriver("mine", Options(run=run, timeout_seconds=0.5 if "sleep" in script else 30))
    with pytest.raises(DriverError, match="(?s)" + told.replace("0.5", "0[.]5")):
        driver.listed("job", [MARKET], START)


def test_unknown_kinds_and_options_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="one of command, "):
        check_driver("nimbus")
    place = Place(name="mine", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    with pytest.raises(SettingsError, match=r"options\.run"):
        DRIVERS["command"]({}, place)


def test_times_of_instances_have_a_zone(case):
    case.driver.bring(order_for(case.driver, 1, 0), START)
    (one,) = held(case.driver)
    assert one.since.astimezone(UTC).tzinfo is UTC
