"""Many readers on shared storage: whole generations behind one pointer."""

import json
import shutil

import pytest
from storekit import HOUR, T0, count_row, counts, price_row, prices

from slackwater.warehouse.asof import load_history
from slackwater.warehouse.errors import DamagedStoreError, StoreError, StoreLockedError
from slackwater.warehouse.exchange import publish_generation, publishing
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.files import POINTER
from slackwater.warehouse.store.folders import current_generation, generations
from slackwater.warehouse.store.schema import TABLES

MARKET = Market(provider="aws", region="us-west-2", zone="us-west-2a", instance_type="p3.2xlarge")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a warehouse and its published copy, to be copied by tests."""
    folder = tmp_path_factory.mktemp("made")
    add(folder / "w.duckdb", 0)
    publish(folder / "w.duckdb", folder / "shared")
    return folder


@pytest.fixture
def path(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("shared"))
    return tmp_path / "w.duckdb"


@pytest.fixture
def shared(made, tmp_path):
    return shutil.copytree(made / "shared", tmp_path / "shared")


def add(path, number):
    with open_store(path) as store:
        append(
            store,
            prices(*(price_row(T0 + (10 * number + k) * HOUR, 1.0 + k, k) for k in range(10))),
            source="t",
        )
        append(
            store, counts(*(count_row(T0 + (10 * number + k) * HOUR, k, k) for k in range(10))), source="t"
        )


def publish(path, folder, **options):
    with open_reader(path) as store:
        return publish_generation(store, folder, **options)


def all_rows(store):
    return {name: store.execute(f"SELECT * FROM {name}") for name in TABLES}


def test_readers_name_the_folder_as_their_warehouse(path, tmp_path):
    folder = tmp_path / "shared"
    assert publish(path, folder).new
    with open_reader(path) as own, open_reader(folder) as shared:
        assert all_rows(shared) == all_rows(own)
        assert list_markets(shared).equals(list_markets(own))
        asked = {"start": T0, "end": T0 + 9 * HOUR, "step": HOUR, "known_at": T0 + 9 * HOUR}
        found, expected = (load_history(store, MARKET, **asked) for store in (shared, own))
        assert found.frame.equals(expected.frame)
        assert read_rows(shared, "imports").equals(read_rows(own, "imports"))
        with pytest.raises(StoreError):
            shared.execute("INSERT INTO markets VALUES (1, 'a', 'b', 'c', 'd')")


def test_generations_are_whole_kept_and_swept(path, tmp_path):
    folder = tmp_path / "shared"
    for number in range(1, 4):
        done = publish(path, folder, keep=2)
        assert (done.number, done.new) == (number, True)
        again = publish(path, folder, keep=2)
        assert (again.number, again.new) == (number, False)
        add(path, number)
    assert generations(folder) == [2, 3]
    assert current_generation(folder).number == 3
    with open_reader(folder) as shared:
        assert len(read_rows(shared, "price")) == 30
    assert sorted(p.name for p in folder.iterdir()) == [".publishing", POINTER, "generations"]


def test_a_reader_goes_on_while_the_next_generation_comes(path, tmp_path):
    folder = tmp_path / "shared"
    publish(path, folder)
    with open_reader(folder) as early:
        add(path, 1)
        publish(path, folder)
        assert len(read_rows(early, "price")) == 10
        with open_reader(folder) as late:
            assert len(read_rows(late, "price")) == 20


def test_a_publication_that_fails_leaves_the_one_before(path, tmp_path, monkeypatch):
    folder = tmp_path / "shared"
    publish(path, folder)
    add(path, 1)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slackwater.warehouse.store.files.sync_file", full)
    with pytest.raises(StoreError, match="No space left"):
        publish(path, folder)
    monkeypatch.undo()
    assert generations(folder) == [1]
    assert publish(path, folder).number == 2


def test_killed_between_generation_and_pointer(path, tmp_path, monkeypatch):
    folder = tmp_path / "shared"
    publish(path, folder)
    add(path, 1)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("slackwater.warehouse.exchange.point_to", killed)
    with pytest.raises(KeyboardInterrupt):
        publish(path, folder)
    monkeypatch.undo()
    assert current_generation(folder).number == 1
    assert publish(path, folder).number == 3
    with open_reader(folder) as shared:
        assert len(read_rows(shared, "price")) == 20


def test_one_publisher_at_a_time(path, tmp_path):
    folder = tmp_path / "shared"
    publish(path, folder)
    with publishing(folder), pytest.raises(StoreLockedError, match="another process publishes"):
        publish(path, folder)


@pytest.mark.parametrize("text", ["", "{}", '{"format": "x", "version": 1, "generation": 1}', "[1]"])
def test_a_pointer_of_nonsense(shared, text):
    (shared / POINTER).write_text(text)
    with pytest.raises(DamagedStoreError, match=POINTER):
        open_reader(shared)


def test_a_pointer_to_nothing(shared):
    (shared / POINTER).write_text(json.dumps({"format": "slackwater-shared", "version": 1, "generation": 7}))
    with pytest.raises(StoreError, match="no generation 7"):
        open_reader(shared)
    with pytest.raises(StoreError, match="is a folder"):
        open_reader(shared.parent)
