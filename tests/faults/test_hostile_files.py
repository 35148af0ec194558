"""Hostile files: each is refused as a whole with a clear error, or read with every row accounted for."""

import gzip
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_hostile import CHANGES, TABLE_CHANGES, fuzz, fuzz_form, samples
from fault_samples import OPTIONS, sample_files, tidy_prices
from forms_kit import quick_first

from slackwater.warehouse.errors import InputError, SlackwaterError, SourceFileError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import ingest, ingest_file, rejected_rows
from slackwater.warehouse.sources import SOURCES
from slackwater.warehouse.sources.contract import SourceOptions
from slackwater.warehouse.store.connection import open_store

NONE = SourceOptions(values={})
ROOT = Path(__file__).resolve().parents[2]


def put(folder, text):
    path = folder / "prices.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def accounted(store, path, source="tabular"):
    """Ingest a file and check that no row of it is missing."""
    done = ingest_file(store, SOURCES[source], path, options=NONE)
    read = sum(batch.table.num_rows for batch in SOURCES[source].read(path, NONE))
    assert done.added + done.repeated + done.rejected == read > 0
    return done


def test_broken_files_of_every_source_are_refused_or_accounted_for(tmp_path):
    """A broken file of every form; the slow tests have 200 of each."""
    told = fuzz(tmp_path, files=len(samples()), seed=1)
    assert told.failures == []
    assert told.files == told.refused + told.kept == len(samples())
    assert told.rows.total() == told.read > 0


@pytest.mark.slow
@pytest.mark.parametrize("sample", samples(), ids=lambda one: one.form)
def test_mutated_files_of_every_form(tmp_path, sample):
    """Every row of the file, counted without its source, is stored, repeated or set aside; or the file is refused."""
    told = fuzz_form(tmp_path, sample, files=200, seed=1)
    assert told.failures == []
    assert told.files == told.refused + told.kept == 200
    assert told.kept > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_many_broken_files(tmp_path, seed):
    told = fuzz(tmp_path, files=300, seed=seed)
    assert told.failures == []
    assert set(told.changes) == {*CHANGES, *TABLE_CHANGES}


def test_a_sample_of_every_source_is_there():
    assert set(sample_files()) == set(OPTIONS) == set(SOURCES.all_names()) - {"simulated"}


#: A word in one row of each sample, by file, as it appears in place of a text.
WORDS = {
    "history.json": "p3.2xlarge", "prices.tsv": "p3.2xlarge", "v100x1-east1c.txt": "2021-12-10", "events.csv": "add",
    "h100.jsonl": '"b', "us-west-2a_v100_1.csv": "2023-02-15", "h100_1.json": '"us-east4-b', "us-west-2a_v100_1.json": "9, 10",
    "prices.csv": "us-east-1a", "availability.csv": "us-east1-c", "observations.csv": "US",
}  # fmt: skip
#: Bytes that are no text; the escape is of JSON.
NO_TEXT = {"byte": b"\xff", "surrogate": b"\xed\xa0\x80", "cut": b"\xc3", "escaped": b"\\ud83d"}
SAMPLES = [
    (source, name, text)
    for source, own in sample_files().items()
    for name, text in own.items()
    if name in WORDS
]


@pytest.fixture(scope="module")
def taken_in():
    """Return a function that ingests a file into an empty warehouse and returns its counts and the rows set aside."""

    @cache
    def found(source, name, content):
        options = SourceOptions(values={**OPTIONS[source], "source": "own"})
        for table in ("price", "availability", "rejected", "imports"):
            emptied.execute(f"DELETE FROM {table}")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            return ingest_file(emptied, SOURCES[source], path, options=options), rejected_rows(emptied)

    with open_store(":memory:") as emptied:
        yield found


@pytest.mark.parametrize(
    ("source", "name", "text", "bad"),
    [
        # The quick form has a form of every sample.
        pytest.param(
            *sample,
            bad,
            id=f"{sample[0]}-{sample[1]}-{form}",
            marks=() if place % len(forms) == number else pytest.mark.slow,
        )
        for place, sample in enumerate(SAMPLES)
        for forms in [[form for form in NO_TEXT if form != "escaped" or ".json" in sample[1]]]
        for number, (form, bad) in enumerate((form, NO_TEXT[form]) for form in forms)
    ],
)
def test_bytes_that_are_no_text_cost_their_own_rows_only(taken_in, source, name, text, bad):
    """A byte that is not UTF-8, half a character as bytes or (in JSON) as an escape: its rows are set aside,
    counted and shown.
    """
    word = WORDS[name].encode()
    if name == "us-west-2a_v100_1.json":
        bad = b'"' + bad + b'", 10'  # counts: a text in place of a number
        spoiled = text.encode().replace(word, bad, 1)
    else:
        first, second, third = text.encode().partition(word)
        spoiled = first + second + third.replace(word, word + bad, 1)
    assert spoiled != text.encode()
    clean, _ = taken_in(source, name, text.encode())
    own, shown = taken_in(source, name, spoiled)
    lost = clean.added + clean.repeated - own.added - own.repeated
    most = (
        30 if name == "events.csv" else 9
    )  # a count a minute changes with every event; a snapshot is one line
    assert 1 <= own.rejected - clean.rejected <= 2 * most
    assert 0 <= lost <= most
    reasons = set(own.reasons) - set(clean.reasons)
    if name not in ("us-west-2a_v100_1.json", "h100_1.json"):
        assert any(word in reason for reason in reasons for word in ("not UTF-8", "half a character"))
    assert any("\\x" in row["raw"] or "\\ud" in row["raw"] for row in shown.rows)


def test_text_of_parquet_that_is_none_costs_its_own_row_only(tmp_path, store):
    ends = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 4, 8, 12)))
    zones = pa.StringArray.from_buffers(3, ends, pa.py_buffer(b"us-aus-\xffus-c"))
    place = {name: [name] * 3 for name in ("provider", "region", "instance_type")}
    path = tmp_path / "availability.parquet"
    for column in (zones, zones.dictionary_encode()):
        times = [f"2021-03-0{day}" for day in (1, 2, 3)]
        pq.write_table(pa.table({**place, "zone": column, "timestamp": times, "available": [1, 2, 3]}), path)
        with open_store(":memory:") as fresh:
            done = ingest_file(fresh, SOURCES["tabular"], path, options=NONE)
            assert (done.added, done.rejected, done.reasons) == (2, 1, {"bytes that are not UTF-8": 1})
            [row] = rejected_rows(fresh).rows
            assert (row["line"], row["raw"]) == (2, "provider,region,instance_type,us-\\xff,2021-03-02,2")


def test_a_column_of_parquet_whose_name_is_no_text_refuses_the_file(tmp_path, store):
    path = tmp_path / "availability.parquet"
    pq.write_table(pa.table({"timestamp": ["2021-03-01"], "available": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"timestamp", b"timest\xaamp"))
    with pytest.raises(SourceFileError, match="not readable as Parquet"):
        ingest_file(store, SOURCES["tabular"], path, options=NONE)
    assert not SOURCES["tabular"].recognised(path.rename(tmp_path / "other.parquet"))


def test_a_text_that_all_rows_of_a_file_share_refuses_it_in_one_line(tmp_path, store):
    path = tmp_path / "h100_1.json"
    path.write_bytes(sample_files()["skynomad"]["h100_1.json"].encode().replace(b"2025-10-03T11:10", b"\xff"))
    with pytest.raises(SourceFileError, match="not UTF-8, and no other line can be used"):
        ingest_file(store, SOURCES["skynomad"], path, options=NONE)


def test_a_header_of_bytes_that_are_no_text_refuses_the_file(tmp_path, store):
    path = tmp_path / "prices.csv"
    path.write_bytes(b"\xff" + tidy_prices(5).encode())
    with pytest.raises(SourceFileError, match="line 1: bytes that are not UTF-8"):
        ingest_file(store, SOURCES["tabular"], path, options=NONE)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "absent", "link to nothing", "link to itself"])
def test_what_is_no_file_is_refused_without_waiting_for_its_end(tmp_path, store, kind):
    path = tmp_path / "prices.csv"
    make = {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "absent": lambda: None,
        "link to nothing": lambda: path.symlink_to(tmp_path / "nowhere"),
        "link to itself": lambda: path.symlink_to(path),
    }
    make[kind]()
    with pytest.raises(SourceFileError, match="prices"):
        ingest_file(store, SOURCES["tabular"], path, options=NONE)


def test_a_folder_with_traps_gives_its_files_only(tmp_path, store):
    put(tmp_path, tidy_prices(5))
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "secret.csv").symlink_to("/etc/passwd")
    counts = ingest(store, "tabular", tmp_path, imported_at=None)
    assert counts.added == 5
    assert "root:" not in " ".join(read_rows(store, "rejected")["raw"])


def test_names_with_paths_in_them_stay_names(tmp_path, store):
    """A market name with a slash is refused; a file's name is stored unchanged and opens no other file."""
    folder = tmp_path / "..." / "%2e%2e%2f"
    folder.mkdir(parents=True)
    path = put(folder, tidy_prices(5).replace("us-east-1a", "../../../../etc/passwd"))
    done = accounted(store, path)
    assert done.added == 0
    assert "contains / or @" in read_rows(store, "rejected")["reason"].str.cat()
    with pytest.raises(SourceFileError, match="does not exist"):
        SOURCES["tabular"].files([tmp_path / "prices.csv\0/../../etc/passwd"])


def test_sql_in_names_is_a_name(tmp_path, store):
    names = ["'); DROP TABLE price; --", "$known_at", "a' OR 'a'='a", "%s", "{0}", '"quoted"']
    head, row, *_ = tidy_prices(1).splitlines()
    rows = [row.replace("us-east-1a", '"' + name.replace('"', '""') + '"') for name in names]
    assert accounted(store, put(tmp_path, "\n".join([head, *rows]))).added == len(names)
    assert set(list_markets(store)["zone"]) == set(names)
    assert len(read_rows(store, "price")) == len(names)


@pytest.mark.parametrize("name", ["g3.8xlarge", "here", "Linux/UNIX"])
def test_a_field_of_a_megabyte_is_kept_or_refused_but_never_lost(tmp_path, store, name):
    accounted(store, put(tmp_path, tidy_prices(5).replace(name, "x" * 1_000_000, 1)))


@pytest.mark.slow
def test_a_million_columns(tmp_path, store):
    head, row, *_ = tidy_prices(1).splitlines()
    extra = "," * 1_000_000
    with pytest.raises(SourceFileError, match="columns; expected at most 1,000 columns"):
        ingest_file(store, SOURCES["tabular"], put(tmp_path, f"{head}{extra}\n{row}{extra}\n"), options=NONE)
    wide = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"c{i}": [1] for i in range(5_000)}), wide)
    with pytest.raises(SourceFileError):
        ingest_file(store, SOURCES["tabular"], wide, options=NONE)


@pytest.mark.parametrize("share", quick_first([0.3, 0.99, 0.01, 0.6, 0.9], 2))
def test_parquet_cut_or_flipped_anywhere(tmp_path, store, share):
    head, *rows = [line.split(",") for line in tidy_prices(400).splitlines()]
    whole = [row for row in rows if len(row) == len(head)]
    good = tmp_path / "good.parquet"
    pq.write_table(pa.table({name: [row[i] for row in whole] for i, name in enumerate(head)}), good)
    raw = good.read_bytes()
    at = int(share * len(raw))
    for number, content in enumerate((raw[:at], raw[at:], raw[:at] + bytes(64) + raw[at + 64 :])):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(content)
        try:
            accounted(store, path)
        except SlackwaterError as error:
            assert str(path) in str(error)
    assert accounted(store, good).added + accounted(store, good).repeated > 0


BOMB = """
import sys, resource
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from pathlib import Path
from slackwater.warehouse.errors import SlackwaterError
from slackwater.warehouse.sources.contract import SourceOptions
from slackwater.warehouse.sources import SOURCES
from slackwater.warehouse.observations import ingest_file
from slackwater.warehouse.store.connection import open_store
with open_store(":memory:") as store:
    try:
        ingest_file(store, SOURCES[sys.argv[1]], Path(sys.argv[2]), options=SourceOptions(values={}))
    except SlackwaterError as error:
        print("refused", str(error)[:300])
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "name"),
    [("tabular", "prices.csv.gz"), ("aws", "history.json.gz"), ("primeintellect", "h100.jsonl.gz")],
)
def test_a_file_that_unpacks_to_gigabytes_is_refused_in_bounded_memory(tmp_path, source, name):
    path = tmp_path / name
    piece = gzip.compress(b" " * (64 << 20) if source == "aws" else b"z" * (64 << 20))
    path.write_bytes(piece * 48)  # 3 GiB from 3 MB
    process = subprocess.run(
        [sys.executable, "-c", BOMB, source, str(path)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-500:]
    words, megabytes = process.stdout.strip().splitlines()
    assert words.startswith("refused")
    assert int(megabytes) < 2500


def test_one_hostile_file_of_a_folder_stops_none_of_the_others(tmp_path, store):
    put(tmp_path, tidy_prices(40))
    (tmp_path / "availability.csv").write_bytes(os.urandom(4000))
    with pytest.raises(InputError, match="1 of 2 files refused"):
        ingest(store, "tabular", tmp_path, imported_at=None)
    assert len(read_rows(store, "price")) == 40
