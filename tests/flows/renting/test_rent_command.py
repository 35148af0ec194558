"""The ``slackwater rent`` command: its answer, its page, the price of a market, and refused input."""

import json
from pathlib import Path

import pandas as pd
import pytest
from command_kit import call
from page_kit import charts_of
from published import keeps_to
from tidy_folder import write_tidy

from slackwater.flows.renting.rent import read_types
from slackwater.optimization.renting.speedup import TableSpeedup
from slackwater.warehouse.errors import JobError

EXAMPLE = Path(__file__).parents[3] / "examples" / "types.toml"
VECTORS = """
[[type]]
name = "amdahl"
rate_per_hour = 0.4
mean_hours = 1.0
speedup = { form = "amdahl", parallel = 0.8 }

[[type]]
name = "root"
rate_per_hour = 0.4
mean_hours = 1.0
speedup = { form = "power", exponent = 0.5 }
"""


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "types.toml"
    path.write_text(VECTORS, encoding="utf-8")
    return path


def answer(*words):
    found = call("rent", *words, "--json").value
    keeps_to("rent", found)
    return found


def refused(*words):
    called = call("rent", *words, "--json")
    assert called.code == 2, called.out
    return called.err


def test_published_vector_as_a_command(vectors, tmp_path):
    found = answer(vectors, "--budget", 1.5, "--html", tmp_path / "rent.html")
    assert found["response_hours"] == pytest.approx(0.4322, abs=5e-5)
    assert [row["widths"][0]["gpus"] for row in found["types"]] == pytest.approx([4.2143, 4.4401], abs=6e-5)
    optimal, equal, one, sharing, fifo = found["baselines"]
    assert abs(optimal["simulated_response_hours"] - 0.4322) < 4 * optimal["response_error"]
    assert optimal["response_hours"] <= equal["response_hours"] < one["response_hours"] == pytest.approx(1.0)
    assert one["gpus"] == pytest.approx(0.8)
    for cluster in (sharing, fifo):  # one GPU with a load of 0.8, exponential sizes: 1 / (1 - 0.8) hours
        assert abs(cluster["simulated_response_hours"] - 5.0) < 4 * cluster["response_error"]
    response = [row["response_hours"] for row in found["frontier"]]
    assert response == sorted(response, reverse=True)
    assert all(
        row["response_hours"] <= row["equal_widths_response_hours"] + 1e-12 for row in found["frontier"]
    )
    # At 0.8 jobs per hour, one hour of response time equals 0.8 jobs in the system (Little's distribution).
    more = answer(vectors, "--budget", 1.501)
    assert found["multiplier"] == pytest.approx(
        0.8 * (found["response_hours"] - more["response_hours"]) / 0.001, rel=0.01
    )
    page = (tmp_path / "rent.html").read_text(encoding="utf-8")
    assert len(charts_of(page)) == 1
    assert "Renting for 1.5 GPUs" in page


def test_tables_for_people(vectors, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    called = call("rent", vectors, "--budget", "1.5", "--whole")
    assert called.code == 0
    for words in ("GPUs a job", "root mixes two widths", "4 (36 %) or 5 (64 %)", "One more GPU would save"):
        assert words in called.out


def test_list_price_is_gpus_in_money(vectors):
    gpus, money = answer(vectors, "--budget", 1.5), answer(vectors, "--budget", 6, "--price", 4)
    assert money["response_hours"] == pytest.approx(gpus["response_hours"])
    assert money["gpus"] == pytest.approx(1.5)
    assert money["unit"] == "USD per hour"
    assert money["hours_saved_by_one_more_gpu"] == pytest.approx(gpus["hours_saved_by_one_more_gpu"])


def test_the_share_on_spot_says_where_availability_is_assumed(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(
        "provider,region,zone,instance_type,timestamp,spot_price,on_demand_price\n"
        + "".join(f"own,r,z,box,2026-03-05T{hour:02d}:00Z,2.0,5.0\n" for hour in range(12)),
        encoding="utf-8",
    )
    said = call(
        "rent", EXAMPLE, "--budget", 100, "--market", "own/r/z/box", "--gpus-per-instance", 1, "--data", tmp_path,
        "--at", "2026-03-05T12:00Z", "--model", "last_value", "--db", tmp_path / "w.duckdb",
    ).said  # fmt: skip
    assert "0 % more time for restarts; availability assumed." in said


@pytest.mark.slow
def test_the_example_is_priced_in_a_market(tmp_path):
    """Forecast spot prices make GPUs cheaper than the list price, and restarts make jobs longer (M8.6)."""
    write_tidy(tmp_path / "tidy")
    found = answer(
        EXAMPLE, "--budget", 70, "--market", "lab/r1/z1/a3-highgpu-1g", "--data", tmp_path / "tidy",
        "--at", "2025-03-08T00:00Z", "--model", "last_value", "--html", tmp_path / "rent.html",
        "--gpus-per-instance", 1,
    )  # fmt: skip
    market = found["market"]
    assert 0 < market["spot_share"] <= 1
    assert market["list_usd_per_gpu_hour"] == 4.0
    assert (
        market["spot_usd_per_gpu_hour"] < market["usd_per_gpu_hour"] <= 4.0 * (1 + market["lost_to_restarts"])
    )
    assert found["gpus"] == pytest.approx(market["fleet_gpus"], rel=1e-6)
    assert found["gpus"] > market["at_list_price"]["gpus"]
    assert found["spend"] == pytest.approx(70)
    assert "on demand" in (tmp_path / "rent.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_market_of_instances_with_eight_gpus_counts_and_prices_gpus(tmp_path):
    """An instance with 8 GPUs counts as 8 GPUs at an eighth of its price (M8.6); an unknown GPU count is required as an option."""
    folder = write_tidy(tmp_path / "tidy")
    words = (
        EXAMPLE, "--budget", 70, "--market", "lab/r1/z1/a3-highgpu-1g", "--data", folder,
        "--at", "2025-03-08T00:00Z", "--model", "last_value",
    )  # fmt: skip
    assert "give it with --gpus-per-instance N" in refused(*words)
    market = answer(*words, "--gpus-per-instance", 8)["market"]
    assert (market["gpus_per_instance"], market["list_usd_per_gpu_hour"]) == (8, 0.5)
    assert market["fleet_gpus"] > 70 / 0.5


def test_nothing_after_the_time_is_read(tmp_path):
    """Changing the rows after --at does not change the answer (M1.2)."""
    folder = write_tidy(tmp_path / "tidy")
    words = (
        EXAMPLE, "--budget", 70, "--market", "lab/r1/z1/a3-highgpu-1g", "--data", folder,
        "--at", "2025-03-08T00:00Z", "--model", "last_value", "--gpus-per-instance", 1,
    )  # fmt: skip
    before = answer(*words)
    stale = [
        [note for note in found["notes"] if note.startswith("STALE DATA")]
        for found in (before, answer(*words[:7], *words[9:]))  # without --at: at the end of the record
    ]
    assert [len(notes) for notes in stale] == [0, 1]
    for name, column in (("availability", "available"), ("prices", "spot_price_usd_per_hour")):
        table = pd.read_parquet(folder / f"{name}.parquet")
        late = table["timestamp"] > pd.Timestamp("2025-03-08T00:00Z")
        assert late.any()
        table.loc[late, column] = 3
        table.to_parquet(folder / f"{name}.parquet")
    assert answer(*words) == before


def measured_file(tmp_path, **changed):
    part = {
        "model_name": "m",
        "method": "lora",
        "gpu_model": "g",
        "tokens_per_sample": 512,
        "batch_size": 8,
    } | changed
    lines = [f"{key} = {json.dumps(value)}" for key, value in part.items()]
    path = tmp_path / "measured.toml"
    head = '[[type]]\nname = "t"\nrate_per_hour = 1\nmean_hours = 1\n[type.speedup]\nform = "measured"\n'
    path.write_text(head + "\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def runs():
    return pd.DataFrame(
        {
            "model_name": "m", "method": "lora", "gpu_model": "g", "tokens_per_sample": 512, "batch_size": 8,
            "torch_dtype": "bfloat16", "number_gpus": [2, 4, 8, 2], "tokens_per_second": [90.0, 150.0, 140.0, 110.0],
        }
    )  # fmt: skip


def test_measured_speedups(tmp_path, runs):
    """Medians by number of GPUs; 8 are left out as no faster than 4; sizes refer to the smallest measured number."""
    (kind,), notes = read_types(measured_file(tmp_path), runs)
    assert kind.speedup == TableSpeedup(gpus=(2, 4), speedups=(2.0, 3.0))
    assert "8 GPUs left out" in notes[0]
    assert "on 2 GPUs, the fewest" in notes[0]
    with pytest.raises(JobError, match="no measured run with model_name 'other'; expected one of m"):
        read_types(measured_file(tmp_path, model_name="other"), runs)
    with pytest.raises(JobError, match="float16"):
        read_types(measured_file(tmp_path, torch_dtype="float16"), runs)
    with pytest.raises(JobError, match="--runs DIR"):
        read_types(measured_file(tmp_path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("exponent = 0.5", "exponent = 1.0"), "`most`"),
        (("exponent = 0.5", "exponent = 1.5"), "as a table"),
        (('form = "power"', 'form = "cubic"'), "type.1.speedup"),
        (("rate_per_hour = 0.4", "rate_per_hour = -1"), "type.0.rate_per_hour"),
        (("rate_per_hour = 0.4", "rate_per_hour = inf"), "type.0.rate_per_hour"),
        (('name = "root"', 'name = "amdahl"'), "a name for each"),
        (("mean_hours = 1.0", "mean_hours = 1.0\ncolour = 3"), "type.0.colour"),
        (("mean_hours = 1.0", "mean_hours = 1.0\ndelay = { value_usd = 3 }"), "gives value_usd"),
        (("mean_hours = 1.0", "mean_hours = 1.0\ndelay = { usd_per_hour = 3 }"), "do not add up"),
        (('{ form = "power", exponent = 0.5 }', '{ form = "table", gpus = [1, 2], speedup = [1.0, 0.9] }'), "leave 2 GPUs out"),
        (('{ form = "power", exponent = 0.5 }', '{ form = "table", gpus = [1, 2], speedup = [1.5, 1.9] }'), "s(1) = 1"),
        (("[[type]]", "[[kind]]"), "type"),
        (("[[type]]", "[[type"), "valid TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_key(vectors, change, says):
    vectors.write_text(VECTORS.replace(*change, 1), encoding="utf-8")
    message = refused(vectors, "--budget", 1.5)
    assert says in message
    assert "\n" not in message.strip() or "TOML" in message


def test_wrong_options_are_refused(vectors, tmp_path):
    assert "unstable by 0.3" in refused(vectors, "--budget", 0.5)
    assert "one of them" in refused(vectors, "--budget", 9, "--price", 2, "--market", "a/b/c/d")
    assert "Must be >= 1e-06" in refused(vectors, "--budget", 9, "--price", -2)
    assert "'nan' is not a number" in refused(vectors, "--budget", "nan")
    assert "readable TOML" in refused(tmp_path / "absent.toml", "--budget", 9)
