"""One name, one market: spelling in capitals, and machines of another size or memory (M1.1, M1.2)."""

import pytest
from source_files import write

from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store

HEAD = "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour"
LINE = "acme,eu,a,{kind},2026-03-0{day}T00:00:00Z,{usd}"


def put(store, folder, name, head, *lines):
    return ingest(store, "tabular", write(folder / name, "\n".join([head, *lines, ""])))


def places(store):
    return sorted(store.execute("SELECT provider, region, zone, instance_type FROM markets"))


@pytest.mark.parametrize(("column", "first", "other"), [
    ("gpu_count", "8", "4"), ("gpus", "8.0", "1"), ("gpu_memory_gb", "80", "40"), ("vram", "81920", "40 GB"),
])  # fmt: skip
def test_another_machine_of_the_name_in_another_file_is_not_of_its_market(tmp_path, column, first, other):
    lines = [LINE.format(kind="h100-node", day=day, usd=usd) for day, usd in ((1, 16), (2, 8), (3, 16))]
    with open_store(":memory:") as store:
        head = f"{HEAD},{column}"
        assert put(store, tmp_path, "a.csv", head, f"{lines[0]},{first}").added == 1
        refused = put(store, tmp_path, "b.csv", head, f"{lines[1]},{other}")
        assert (refused.added, refused.rejected) == (0, 1)
        assert "of earlier rows of this type" in next(iter(refused.reasons))
        assert put(store, tmp_path, "c.csv", head, f"{lines[2]},{first}").added == 1
        assert put(store, tmp_path, "d.csv", head, f"{lines[1]},").added == 1  # nothing stated
        assert store.execute("SELECT count(*) FROM machines") == [(1,)]


def test_a_machine_is_completed_by_later_rows(tmp_path):
    first, second, third = (LINE.format(kind="box", day=day, usd=1) for day in (1, 2, 3))
    with open_store(":memory:") as store:
        put(store, tmp_path, "a.csv", f"{HEAD},gpus", f"{first},2")
        put(store, tmp_path, "b.csv", f"{HEAD},vram", f"{second},24")
        assert store.execute("SELECT * FROM machines") == [("acme", "box", 2.0, 24.0)]
        assert put(store, tmp_path, "c.csv", f"{HEAD},vram", f"{third},48").rejected == 1


def test_counts_of_another_machine_are_set_aside_too(tmp_path):
    head = "provider,region,zone,instance_type,timestamp,available,gpu_count"
    with open_store(":memory:") as store:
        assert put(store, tmp_path, "a.csv", head, "m,r,z,box,2026-03-01,3,8").added == 1
        assert put(store, tmp_path, "b.csv", head, "m,r,z,box,2026-03-02,3,4").rejected == 1


@pytest.mark.parametrize(
    ("kinds", "numbers", "stored"),
    [(("h100-node", "H100-Node"), (1, 8), {"h100-node_x1": 2.5, "H100-Node_x8": 20.0}),
     (("h100", "H100"), (1, 8), {"h100_x1": 2.5, "H100_x8": 20.0}),
     (("P4D.24XLARGE", "p4d.24xlarge"), (1, 8), {"p4d.24xlarge": 20.0}),
     (("gpu_8x_h100", "GPU_8x_H100"), (8, 1), {"gpu_8x_h100": 2.5})],
)  # fmt: skip
def test_spellings_of_a_name_with_other_numbers_of_gpus_are_apart(tmp_path, kinds, numbers, stored):
    lines = [
        f"{LINE.format(kind=kind, day=day, usd=usd)},{gpus}"
        for kind, gpus, day, usd in zip(kinds, numbers, (1, 2), (2.5, 20), strict=True)
    ]
    with open_store(":memory:") as store:
        put(store, tmp_path, "a.csv", f"{HEAD},gpu_count", *lines)
        found = store.execute(
            "SELECT instance_type, price_usd FROM price JOIN series USING (sid) JOIN markets USING (mid)"
        )
        assert dict(found) == stored


def test_names_that_differ_in_capitals_are_one_market(tmp_path):
    first = ["AWS,US-EAST-1,US-EAST-1A,P4D.24XLARGE,2026-03-01,9", "aws,us-east-1,us-east-1a,p4d.24xlarge,2026-03-02,9",
             "Acme,EU,A,BOX,2026-03-01,1", "acme,eu,a,Box,2026-03-02,1"]  # fmt: skip
    with open_store(":memory:") as store:
        assert put(store, tmp_path, "a.csv", HEAD, *first).added == 4
        assert put(store, tmp_path, "b.csv", HEAD, "ACME,Eu,a,bOX,2026-03-03,1").added == 1
        assert places(store) == [
            ("acme", "eu", "a", "Box"),
            ("aws", "us-east-1", "us-east-1a", "p4d.24xlarge"),
        ]
        again = put(store, tmp_path, "c.csv", HEAD, *first)
        assert (again.added, again.repeated) == (0, 4)


def test_stored_spellings_stay_and_regions_of_two_providers_are_apart(tmp_path):
    with open_store(":memory:") as store:
        put(store, tmp_path, "a.csv", HEAD, "one,EU,a,box,2026-03-01,1", "two,eu,a,box,2026-03-01,1")
        put(store, tmp_path, "b.csv", HEAD, "one,eu,a,box,2026-03-02,1", "two,EU,a,box,2026-03-02,1")
        assert places(store) == [("one", "EU", "a", "box"), ("two", "eu", "a", "box")]
        store.execute("INSERT INTO markets VALUES (9, 'one', 'eu', 'a', 'box')")  # of an earlier version
        put(store, tmp_path, "c.csv", HEAD, "one,eu,a,box,2026-03-03,1", "one,EU,a,box,2026-03-03,1")
        assert len(places(store)) == 3
