"""The policies after other published ideas: plug-ins with names of their own, in no pool that ships (M4.8, M10)."""

import pytest

from slackwater.optimization.policies.pool import GROUP, load_pool, policy_named
from slackwater.studies.policies import PUBLISHED_IDEAS, published_policies
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.plugins import list_studies


def test_each_idea_is_an_entry_point_and_has_two_members():
    names = [policy.name for policy in published_policies()]
    assert set(list_studies(GROUP)) == {*PUBLISHED_IDEAS, "UP-single"}
    assert [name.split("(")[0] for name in names] == [family for family in PUBLISHED_IDEAS for _ in range(2)]
    assert not set(names) & {policy.name for policy in load_pool()}


def test_every_name_reads_back():
    for policy in published_policies():
        assert policy_named(policy.name) == policy


@pytest.mark.parametrize(
    "name",
    [
        "AdaSwitch(5)",
        "AdaSwitch(5,2)",
        "AdaSwitch(0,0.1)",
        "AdaSwitch(5,0.1,MSU)",
        "RHIG(0,0.9)",
        "RHIG(5,1.1)",
        "Window(0,0.9)",
        "Window(5,0)",
        "Trust(1.5)",
        "Trust",
        "ROSS(-1)",
        "ROSS(0.5)",
    ],
)
def test_wrong_parameters_are_refused(name):
    with pytest.raises(SettingsError):
        policy_named(name)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("AdaSwitch(5, 0.02, MSU-trim)", "AdaSwitch(5,0.02)"),
        ("AdaSwitch(3,0.1,UP)", "AdaSwitch(3,0.1,UP)"),
        ("Window(4,0.5,bind)", "Window(4,0.5,bind)"),
    ],
)
def test_words_set_parameters(name, canonical):
    assert policy_named(name).name == canonical
    assert policy_named(canonical) == policy_named(name)
