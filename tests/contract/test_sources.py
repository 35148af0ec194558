"""Contract of the sources: translate without loss, in bounded chunks, and refuse other formats."""

import json
from pathlib import Path
from shlex import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.warehouse.errors import InputError, SettingsError, SourceFileError
from slackwater.warehouse.sources import SOURCES, check_source
from slackwater.warehouse.sources.contract import (
    AVAILABILITY_COLUMNS,
    NOT_UTF8,
    PRICE_COLUMNS,
    REJECTED_COLUMNS,
    SourceOptions,
)

COLUMNS = {"price": PRICE_COLUMNS, "availability": AVAILABILITY_COLUMNS, "rejected": REJECTED_COLUMNS}
NONE = SourceOptions(values={})
RANGE = {"start": "2026-01-05", "end": "2026-01-06"}

#: (source, file name, smallest file of its format), from the examples of each source; files in other formats
#: under the same names must be refused.
GOOD = [(name, file, text) for name in SOURCES.all_names() for file, text in SOURCES[name].examples.items()]
FILES = [pytest.param(*entry, id=f"{entry[0]}-{entry[1]}") for entry in GOOD]

WRONG = {
    "empty": b"",
    "blank lines": b"\n\n\n",
    "prose": b"Call me Ishmael.\nSome years ago,\nnever mind how long.\n",
    "not UTF-8": b"date,availability\n\xff\xfe\x00caf\xe9,1\n",
    "binary": bytes(range(256)) * 8,
    "a number without end": b"[" + b"9" * 5000 + b"]",
    "brackets without end": b"[" * 200_000,
    "truncated JSON": b'{"SpotPriceHistory": [{"AvailabilityZone": "us-ea',
    "JSON of another form": b'{"a": {"b": [1, 2, 3]}}',
    "JSON that is a number": b"42\n",
    "JSON list": b"[1, 2, 3]",
    "other columns": b"a,b,c\n1,2,3\n4,5,6\n",
    "other tabs": b"a\tb\n1\t2\n",
    "only a header": b"date,availability\n",
}


def read_all(name, path, **values):
    return list(SOURCES[name].read(path, SourceOptions(values=values)))


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_registry_names_every_source_by_its_own_name():
    assert {name for name, _, _ in GOOD} == set(SOURCES.all_names()) - {"simulated"}
    for name in SOURCES.all_names():
        source = SOURCES[name]
        assert source.name == name
        assert source.options
        assert all(isinstance(text, str) and len(text) > 10 for text in source.options.values())
        assert "source" in source.options


@pytest.mark.parametrize(
    ("name", "file", "content"), [entry for entry in FILES if entry.values[0] in list(SOURCES)]
)
def test_a_file_without_its_source_is_refused_with_the_command_that_reads_it(tmp_path, name, file, content):
    path = put(tmp_path, file, content)
    for place in (path, tmp_path):
        with pytest.raises(InputError) as raised:
            check_source(str(place))
        assert f"`slackwater ingest {name} {quote(str(place))}`" in str(raised.value)


def test_a_file_that_no_source_reads_and_a_missing_file_are_unknown_sources(tmp_path):
    for place in (put(tmp_path, "a.bin", WRONG["binary"]), tmp_path / "missing.csv"):
        with pytest.raises(InputError, match="ingest --list"):
            check_source(str(place))


@pytest.mark.parametrize(("name", "file", "content"), FILES)
def test_the_smallest_file_is_found_and_read(tmp_path, name, file, content):
    path = put(tmp_path, file, content)
    source = SOURCES[name]
    assert source.files([path]) == source.files([tmp_path]) == [path]
    found = read_all(name, path)
    assert sum(b.table.num_rows for b in found if b.kind != "rejected") > 0
    for batch in found:
        assert tuple(batch.table.column_names) == COLUMNS[batch.kind]
        assert isinstance(batch.table, pa.Table)
        assert batch.table.num_rows <= 1_000_000
        assert set(batch.table["file"].to_pylist()) == {str(path)}
        assert all(line >= 1 for line in batch.table["line"].to_pylist())
    assert all(isinstance(text, str) for text in source.assumptions(path, NONE))


@pytest.mark.parametrize(("name", "file", "content"), FILES)
def test_reading_twice_gives_the_same_rows(tmp_path, name, file, content):
    path = put(tmp_path, file, content)
    one, two = ([b.table.to_pylist() for b in read_all(name, path)] for _ in range(2))
    assert one == two


@pytest.mark.parametrize(("name", "file", "content"), FILES)
def test_the_label_can_be_given(tmp_path, name, file, content):
    path = put(tmp_path, file, content)
    for batch in read_all(name, path, source="mine"):
        assert set(batch.table["source"].to_pylist()) == {"mine"}
    assert all(None not in b.table["source"].to_pylist() for b in read_all(name, path))


@pytest.mark.parametrize(("name", "file", "content"), FILES)
def test_a_file_of_another_format_is_refused_by_name_with_a_remedy(tmp_path, name, file, content):
    for wrong, other in WRONG.items():
        path = put(tmp_path, file, other)
        with pytest.raises(SourceFileError) as caught:
            read_all(name, path)
        error = caught.value
        assert error.file == str(path), wrong
        assert error.found, wrong
        assert error.expected, wrong
        assert error.remedy, wrong
        assert str(path) in str(error), wrong
        assert "\x00" not in str(error), wrong


@pytest.mark.parametrize(("name", "file", "content"), FILES)
def test_a_file_of_another_source_is_refused(tmp_path, name, file, content):
    for other, _, theirs in GOOD:
        if other != name:
            path = put(tmp_path, file, theirs)
            with pytest.raises(SourceFileError):
                read_all(name, path)


@pytest.mark.parametrize(
    ("name", "file", "content"), [one for one in FILES if not one.values[1].endswith(".json")]
)
def test_bytes_that_are_not_utf8_in_the_middle_cost_their_own_row(tmp_path, name, file, content):
    good = content.encode().rstrip(b"\n")
    last = good.rpartition(b"\n")[2]
    path = put(tmp_path, file, good + b"\n" + last[:-1] + b"\xff\n" + last + b"\n")
    batches = read_all(name, path)
    rows = [row for batch in batches if batch.kind == "rejected" for row in batch.table.to_pylist()]
    (lost,) = [row for row in rows if row["reason"] == NOT_UTF8]
    assert lost["line"] == good.count(b"\n") + 2
    assert "\\xff" in lost["raw"]
    kept = sum(batch.table.num_rows for batch in batches if batch.kind != "rejected")
    path.write_bytes(good + b"\n" + last + b"\n")
    assert kept == sum(batch.table.num_rows for batch in read_all(name, path) if batch.kind != "rejected")


@pytest.mark.parametrize("name", [n for n in SOURCES.all_names() if n != "simulated"])
def test_a_folder_without_files_and_a_path_that_is_not_there_are_refused(tmp_path, name):
    put(tmp_path, "notes.md", "# nothing\n")
    for paths in ([tmp_path], [tmp_path / "gone.csv"], []):
        with pytest.raises(SourceFileError) as caught:
            SOURCES[name].files(paths)
        assert caught.value.expected
        assert caught.value.remedy
    with pytest.raises(SourceFileError):
        read_all(name, tmp_path / "gone.csv")
    with pytest.raises(SourceFileError):
        read_all(name, tmp_path)


@pytest.mark.parametrize("name", SOURCES.all_names())
def test_unknown_options_are_refused(tmp_path, name):
    with pytest.raises(SettingsError, match=f"option 'colour' of the source '{name}'"):
        read_all(name, tmp_path / "x.csv", colour="blue")
    assert issubclass(SettingsError, InputError)


def test_parquet_of_other_columns_broken_or_empty_is_refused(tmp_path):
    other = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1], "b": [2]}), other)
    broken = put(tmp_path, "b.parquet", b"PAR1 and then nothing")
    cut = put(tmp_path, "c.parquet", other.read_bytes()[:-20])
    names = ("provider", "region", "zone", "instance_type", "timestamp", "available")
    empty = tmp_path / "d.parquet"
    pq.write_table(pa.table({n: pa.array([], pa.string()) for n in names}), empty)
    for path, found in ((other, "columns a, b"), (broken, "Parquet"), (cut, "Parquet"), (empty, "no record")):
        with pytest.raises(SourceFileError, match=found) as caught:
            read_all("tabular", path)
        assert caught.value.file == str(path)
        assert caught.value.expected
        assert caught.value.remedy


def test_broken_compression_is_refused(tmp_path):
    for name, file in (("tabular", "prices.csv.gz"), ("aws", "prices.tsv.zst")):
        path = put(tmp_path, file, b"this is not compressed")
        with pytest.raises(SourceFileError) as caught:
            read_all(name, path)
        assert caught.value.file == str(path)


def test_the_simulated_source_fits_the_same_columns():
    found = read_all("simulated", Path("simulated:"), **RANGE)
    assert {b.kind for b in found} == {"price", "availability"}
    for batch in found:
        assert tuple(batch.table.column_names) == COLUMNS[batch.kind]


ODD = [
    None,
    True,
    -1,
    2.5,
    1e300,
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
    "9" * 40,
    [],
    [1],
    {},
    {"a": 1},
]


def changed(value, odd):
    """Yield copies of a JSON value with one leaf, or one whole branch, replaced by an odd value."""
    yield odd
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from (value | {key: other} for other in changed(inner, odd))
    elif isinstance(value, list):
        yield from ([other] for inner in value for other in changed(inner, odd))


JSON_FILES = [
    pytest.param(name, file, json.loads(text), id=f"{name}-{file}")
    for name, file, text in GOOD
    if text.startswith("{")
]


@pytest.mark.parametrize(("name", "file", "good"), JSON_FILES)
def test_odd_values_give_rows_for_the_store_to_judge_or_a_clear_refusal(tmp_path, name, file, good):
    read, refused = 0, 0
    for odd in ODD:
        for content in changed(good, odd):
            lines = [content, good] if file.endswith(".jsonl") else [content]
            path = put(tmp_path, file, "".join(json.dumps(line) + "\n" for line in lines))
            try:
                rows = sum(b.table.num_rows for b in read_all(name, path))
                SOURCES[name].assumptions(path, NONE)
            except SourceFileError:
                refused += 1
            else:
                read += 1
                assert rows > 0
    assert read > 0
    assert refused > 0 or file.endswith(".jsonl")
