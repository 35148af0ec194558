"""The examples that convert decisions for other programs produce documents of the documented form. Nothing is launched."""

import importlib.util
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import botocore.session
import pytest
import yaml
from advice_kit import decided_row, new_store
from botocore.validate import ParamValidator
from command_kit import options_of

from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.config import read_settings
from slackwater.flows.delivery import as_text, document, signature
from slackwater.flows.schemas.forms import schema

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
#: Keys of a task and of its resources in SkyPilot's YAML reference, with their types.
TASK = {"name": str, "num_nodes": int, "resources": dict, "envs": dict, "run": str}
RESOURCES = {"infra": str, "cloud": str, "region": str, "zone": str, "instance_type": str, "accelerators": str,
             "use_spot": bool}  # fmt: skip


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sky, fleet = example("decision_to_skypilot"), example("decision_to_ec2_fleet")


@pytest.fixture(scope="module")
def decision(tmp_path_factory):
    with new_store(tmp_path_factory.mktemp("market")) as store:
        return document(decided_row(store, 3, decided={}))


def on(decision, provider="aws", zone="us-east-1a", on_demand=2, spot=3, instance_type="p4d.24xlarge"):
    """Return the decision for another market, with other counts."""
    region = zone.rstrip("abc") if provider == "aws" else zone.rpartition("-")[0]
    parts = {"provider": provider, "region": region, "zone": zone, "instance_type": instance_type}
    return decision | {"market_parts": parts, "on_demand": on_demand, "spot": spot}


@cache
def ec2_model():
    """Return botocore's model of the EC2 API, cached because it is large."""
    model = botocore.session.get_session().get_service_model("ec2")
    assert model.api_version == "2016-11-15"
    return model


def checked(request, operation):
    """Return the request after checking it against botocore's model of the EC2 API."""
    shape = ec2_model().operation_model(operation).input_shape
    found = ParamValidator().validate(request, shape)
    assert not found.has_errors(), found.generate_report()
    _check_enums(request, shape)
    return request


def _check_enums(value, shape):
    """Check the enumeration values, which botocore's validator does not check."""
    if shape.type_name == "structure":
        for key, part in value.items():
            _check_enums(part, shape.members[key])
    elif shape.type_name == "list":
        for part in value:
            _check_enums(part, shape.member)
    elif getattr(shape, "enum", None):
        assert value in shape.enum


@pytest.mark.parametrize("kind", ["maintain", "instant"])
@pytest.mark.parametrize("counts", [(2, 3), (0, 4), (5, 0)])
def test_a_fleet_is_what_the_api_takes(decision, kind, counts):
    asked = on(decision, on_demand=counts[0], spot=counts[1])
    request = checked(fleet.create_fleet(asked, template="training", kind=kind), "CreateFleet")
    capacity = request["TargetCapacitySpecification"]
    assert (capacity["OnDemandTargetCapacity"], capacity["SpotTargetCapacity"]) == counts
    assert capacity["TotalTargetCapacity"] == sum(counts)
    (template,) = request["LaunchTemplateConfigs"]
    assert template["Overrides"] == [{"InstanceType": "p4d.24xlarge", "AvailabilityZone": "us-east-1a"}]
    assert request["Type"] == kind
    assert request["ClientToken"] == asked["key"]
    assert ("ExcessCapacityTerminationPolicy" in request) == (kind == "maintain")  # instant fleets refuse it


def test_a_fleet_is_brought_to_size(decision):
    nothing = on(decision, on_demand=0, spot=0)
    request = checked(fleet.modify_fleet(nothing, fleet="fleet-1"), "ModifyFleet")
    assert request["TargetCapacitySpecification"]["TotalTargetCapacity"] == 0
    with pytest.raises(fleet.UnusableDecisionError, match="hold nothing"):
        fleet.create_fleet(nothing, template="training")


def test_the_check_refuses_what_the_api_would(decision):
    request = fleet.create_fleet(on(decision), template="training")
    with pytest.raises(AssertionError):
        checked(request | {"Type": "forever"}, "CreateFleet")
    with pytest.raises(AssertionError):
        checked(request | {"Typ": "maintain"}, "CreateFleet")
    with pytest.raises(AssertionError):
        checked({key: request[key] for key in request if key != "LaunchTemplateConfigs"}, "CreateFleet")


def check_task(task):
    assert set(task) <= set(TASK)
    assert all(isinstance(value, TASK[key]) for key, value in task.items())
    assert set(task["resources"]) <= set(RESOURCES)
    assert all(isinstance(value, RESOURCES[key]) for key, value in task["resources"].items())
    assert all(isinstance(value, str) for value in task["envs"].values())


def test_spot_and_on_demand_are_two_tasks_with_the_nodes_decided(decision):
    found = sky.tasks(on(decision), run="python train.py")
    for task in found.values():
        check_task(yaml.safe_load(yaml.safe_dump(task)))
    assert {name: (task["num_nodes"], task["resources"]["use_spot"]) for name, task in found.items()} == {
        "demo-spot": (3, True),
        "demo-on-demand": (2, False),
    }
    assert {task["resources"]["infra"] for task in found.values()} == {"aws/us-east-1/us-east-1a"}
    assert {task["resources"]["instance_type"] for task in found.values()} == {"p4d.24xlarge"}


def test_one_kind_is_one_task_and_nothing_is_none(decision):
    assert list(sky.tasks(on(decision, on_demand=0))) == ["demo-spot"]
    assert list(sky.tasks(on(decision, spot=0))) == ["demo-on-demand"]
    assert sky.tasks(on(decision, on_demand=0, spot=0)) == {}


def test_accelerators_old_keys_and_a_region_without_zones(decision):
    (task,) = sky.tasks(
        on(decision, "gcp", "us-central1-c", spot=0), accelerators="H100:8", old=True
    ).values()
    check_task(task)
    assert task["resources"] == {
        "cloud": "gcp", "region": "us-central1", "zone": "us-central1-c", "use_spot": False, "accelerators": "H100:8",
    }  # fmt: skip
    parts = {"provider": "azure", "region": "eastus", "zone": "eastus", "instance_type": "Standard_ND96"}
    assert sky.place(parts) == {"infra": "azure/eastus"}


def test_what_is_not_theirs_is_refused(decision):
    for module, call in ((sky, sky.tasks), (fleet, lambda one: fleet.modify_fleet(one, fleet="f"))):
        with pytest.raises(module.UnusableDecisionError, match="schema"):
            call(decision | {"schema": "slackwater.decision/1"})
        with pytest.raises(module.UnusableDecisionError, match="lab"):
            call(decision | {"spot": 1})
    assert sky.task_name("../My Job\0!") == "my-job"
    assert sky.is_over(decision, datetime.now(UTC))


def ran(name, *words, text):
    return subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "-", *map(str, words)],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_scripts_write_documents_and_refuse_a_slot_that_is_over(decision, tmp_path):
    text = as_text(on(decision))
    over = ran("decision_to_skypilot", "--out", tmp_path, text=text)
    assert over.returncode == 2
    assert "the slot ended" in over.stderr
    assert list(tmp_path.iterdir()) == []
    done = ran("decision_to_skypilot", "--out", tmp_path, "--anyway", text=text)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == [
        str(tmp_path / f"demo-{kind}.yaml") for kind in ("on-demand", "spot")
    ]
    check_task(yaml.safe_load((tmp_path / "demo-spot.yaml").read_text()))
    assert ran("decision_to_ec2_fleet", "--template", "training", text=text).returncode == 2
    made = ran("decision_to_ec2_fleet", "--template", "training", "--anyway", text=text)
    checked(json.loads(made.stdout), "CreateFleet")


DOC = (EXAMPLES.parent / "docs" / "acting-on-decisions.md").read_text()


def block(kind):
    return "\n".join(part.split("```")[0] for part in DOC.split(f"```{kind}\n")[1:])


def test_the_settings_on_the_page_are_settings(tmp_path):
    file = tmp_path / "slackwater.toml"
    file.write_text(block("toml"))
    settings = read_settings(file)
    assert [(sink.name, sink.kind) for sink in settings.sinks] == [
        ("drop", "file"),
        ("launcher", "webhook"),
    ]
    assert {driver.kind for driver in settings.drivers} == set(DRIVERS)
    for driver in settings.drivers:
        place = Place(name=driver.name, db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
        assert DRIVERS[driver.kind](driver.options, place).name


def test_the_check_of_the_signature_on_the_page_works():
    names = {}
    exec(block("python"), names)
    assert names["is_ours"](b"body", signature("secret", b"body"), "secret")
    assert not names["is_ours"](b"bodY", signature("secret", b"body"), "secret")


def test_every_key_and_option_on_the_page_is_there():
    table = DOC.split("| key | meaning |")[1].split("\n\n")[0]
    keys = {key for line in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert keys <= set(schema("decision")["required"])
    assert len(keys) > 10
    given = options_of("job", "report")
    for option in re.findall(r"slackwater job report.*", DOC):
        assert all(word in given for word in re.findall(r"(?<=\s)--[a-z][a-z-]+", option))
