"""The policy pool as a parameter grid (M4.8), and canonical names."""

import pytest

from slackwater.optimization import EndRule
from slackwater.optimization.moving import MULTI_MARKET_POLICIES
from slackwater.optimization.policies import POLICIES
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.pool import expand, load_pool, policy_named
from slackwater.warehouse.errors import SettingsError


def test_the_default_pool_has_the_papers_size_and_the_baselines():
    names = [policy.name for policy in load_pool()]
    assert len(names) == len(set(names))
    assert sum(name.startswith("AHAP(") for name in names) == 105
    assert sum(name.startswith("AHANP(") for name in names) == 7
    assert {"OD-only", "MSU", "MSU-trim", "UP", "Stochastic(24)", "Reserve(60)", "Sizing"} <= set(names)
    assert len(names) == 121
    assert {"AHAP(5,1,0.9,expected)", "AHAP(5,3,0.3,last,expected)", "AHANP(0.7)"} <= set(names)


def test_every_row_of_the_tables_is_created():
    assert all(callable(create) for create in POLICIES.values())
    assert [policy.name for policy in MULTI_MARKET_POLICIES.values()] == list(MULTI_MARKET_POLICIES)


def test_every_name_reads_back():
    for policy in load_pool():
        assert policy_named(policy.name) == policy


@pytest.mark.parametrize(
    "name",
    [
        "",
        "AHAP",
        "AHAP(5,1)",
        "AHAP(5,1,0.9,first)",
        "AHAP(5,1,0.9,last,last)",
        "AHAP(5,1,0.9,target,expected)",
        "AHANP(0.3,last)",
        "AHAP(1,2,0.5)",
        "AHAP(a,1,0.5)",
        "AHANP(2)",
        "UP(1)",
        "nobody",
        "AHANP(0.3",
    ],
)
def test_unknown_names_are_refused(name):
    with pytest.raises(SettingsError):
        policy_named(name)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("AHAP(5, 3, 0.9, last)", "AHAP(5,3,0.9,last)"),
        ("AHAP(5,1,0.9,target)", "AHAP(5,1,0.9,target)"),
        ("AHAP(5,3,0.9,expected,last)", "AHAP(5,3,0.9,last,expected)"),
        ("AHAP(5,3,0.9,mean,on_demand)", "AHAP(5,3,0.9)"),
    ],
)
def test_words_say_how_plans_bind_and_end(name, canonical):
    assert policy_named(name).name == canonical
    assert policy_named(canonical) == policy_named(name)


def test_points_that_are_one_policy_are_one():
    grid = {"name": "AHAP", "omega": 2, "commitment": [1, 2], "sigma": 0.5, "commit": ["mean", "last"]}
    assert [policy.name for policy in expand(grid)] == [
        "AHAP(2,1,0.5)",
        "AHAP(2,2,0.5)",
        "AHAP(2,2,0.5,last)",
    ]


def test_a_grid_tells_its_end_rules_and_commits_apart():
    grid = {"name": "AHAP", "omega": 3, "commitment": 2, "sigma": 0.5,
            "end_rule": ["target", "on_demand_to_go", "expected_to_go"], "commit": ["mean", "last"]}  # fmt: skip
    names = [policy.name for policy in expand(grid)]
    assert len(set(names)) == 6
    assert [policy_named(name).name for name in names] == names
    assert len({policy_named(name) for name in names}) == 6


def test_a_grid_crosses_its_lists():
    grid = {"name": "AHAP", "omega": [1, 2], "commitment": [1, 2], "sigma": 0.5, "end_rule": "target"}
    policies = expand(grid)
    assert [policy.name for policy in policies] == [
        "AHAP(1,1,0.5,target)",
        "AHAP(2,1,0.5,target)",
        "AHAP(2,2,0.5,target)",
    ]
    assert all(isinstance(policy, Ahap) and policy.end_rule is EndRule.TARGET for policy in policies)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[family]\n", "valid TOML"),
        ("", "family"),
        ('[[family]]\nname = "WAIT"\n', "one of OD-only"),
        ('[[family]]\nname = "AHANP"\ntau = 0.5\n', "tau"),
        (
            '[[family]]\nname = "AHAP"\nomega = 2\ncommitment = 1\nsigma = 0.5\nend_rule = "never"\n',
            "on_demand_to_go",
        ),
        (
            '[[family]]\nname = "AHAP"\nomega = 2\ncommitment = 1\nsigma = 0.5\ncommit = "first"\n',
            "mean, last",
        ),
        ('[[family]]\nname = "UP"\n[[family]]\nname = "UP"\n', "twice"),
        ('other = 1\n[[family]]\nname = "UP"\n', "only"),
    ],
)
def test_a_wrong_pool_file_says_what_is_wrong(tmp_path, text, what):
    file = tmp_path / "pool.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=what):
        load_pool(file)
    with pytest.raises(SettingsError, match="readable"):
        load_pool(tmp_path / "missing.toml")
