"""Work in "gpu_hours" once counted instance-hours: stored work keeps its meaning when the schema is migrated."""

import json

import duckdb

from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.schema import MIGRATIONS, migrate

T = "2026-01-01 00:00:00+00"
P4D, A3 = "aws/us-east-1/us-east-1a/p4d.24xlarge", "gcp/us-east5/us-east5-a/a3-highgpu-1g"


def spec(market=P4D, *, markets=(), unit="gpu_hours", name="j"):
    placed = {"name": name, "market": market, "workload": {"amount": 320.0, "unit": unit}}
    return json.dumps(placed | ({"markets": list(markets)} if markets else {}), separators=(",", ":"))


SPECS = {
    "eight": (spec(), True),
    "one": (spec(A3), False),
    "one of an offer": (spec("primeintellect/any/all/H100_80GB_PCIe_x1"), False),
    "four of an offer": (spec("primeintellect/any/all/H100_80GB_PCIe_x4"), True),
    "a type nobody knows": (spec("lab/r/z/h100"), True),
    "moves on one": (spec(None, markets=["gcp/*/*/a3-highgpu-1g@lab"]), False),
    "moves on both": (spec(A3, markets=["gcp/*/*/a3-highgpu-1g", "aws/*/*/p5.48xlarge"]), True),
    "moves anywhere": (spec(None, markets=["*"]), True),
    "in tokens": (spec(unit="tokens"), False),
    "in slots": (spec(unit="slots"), False),
    "named so": (spec(unit="slots", name='"unit":"gpu_hours"'), False),
    "broken": ("{", False),
}


def old_warehouse(path):
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[: MIGRATIONS.index("0011_units")])
        for name, (text, _) in SPECS.items():
            old.execute(
                "INSERT INTO jobs VALUES (?, 'm', 's', ?, 'user', ?, ?, ?, 1800)", [name, text, T, T, T]
            )
        old.execute("INSERT INTO terms VALUES ('eight', ?, 0, ?, ?)", [T, spec(), T])
        for name, market in (("eight", P4D), ("one", A3)):
            details = json.dumps(
                {"market": market, "workload": 320.0, "workload_unit": "gpu_hours", "x": "gpu_hours"}
            )
            old.execute(
                "INSERT INTO decisions (job, slot, run, policy, on_demand, spot, reason, details) "
                "VALUES (?, ?, 'r', 'UP', 0, 1, 'gpu_hours', ?)",
                [name, T, details],
            )  # fmt: skip


def test_stored_jobs_keep_their_meaning_and_it_is_said(tmp_path):
    path, said = tmp_path / "w.duckdb", []
    old_warehouse(path)
    with open_store(path, say=said.append) as store:
        found = dict(store.execute("SELECT name, spec FROM jobs"))
        terms = store.execute("SELECT spec FROM terms")
        details = {job: json.loads(text) for job, text in store.execute("SELECT job, details FROM decisions")}
        units = dict(store.execute("SELECT job, workload_unit FROM job_decisions"))
    for name, (text, renamed) in SPECS.items():
        assert found[name] == (text.replace("gpu_hours", "instance_hours") if renamed else text), name
    assert terms == [(spec(unit="instance_hours"),)]
    assert details["eight"] == {
        "market": P4D, "workload": 320.0, "workload_unit": "instance_hours", "x": "gpu_hours",
    }  # fmt: skip
    assert units == {"eight": "instance_hours", "one": "gpu_hours"}
    told = [text for text in said if "gpu_hours" in text]
    assert len(told) == 1
    assert '5 stored jobs keep their meaning as "instance_hours" (a type nobody knows, eight' in told[0]
    with open_store(path, say=said.append) as store:
        assert dict(store.execute("SELECT name, spec FROM jobs")) == found
    assert len(said) == 2


def test_nothing_is_said_where_no_job_was_renamed(tmp_path):
    path, said = tmp_path / "w.duckdb", []
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[:10])
        old.execute(
            "INSERT INTO jobs VALUES ('one', 'm', 's', ?, 'user', ?, ?, ?, 1800)", [spec(A3), T, T, T]
        )
    with open_store(path, say=said.append):
        pass
    assert len(said) == 1
    assert "gpu_hours" not in said[0]
