"""The public names of the layers, and their page: its names exist, and every block of the page runs."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from fill_kit import write_measurements

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "library.md"
FACES = {
    "warehouse": {
        "Appended", "History", "HistoryAssumptions", "InputError", "Market", "MarketError", "SettingsError",
        "SlackwaterError", "SourceFileError", "Store", "StoreError",
        "ingest", "list_markets", "load_history", "open_reader", "open_store",
    },
    "forecasting": {"Forecast", "Predictor", "Series", "backtest", "forecast", "score"},
    "optimization": {
        "Allocation", "Amdahl", "Bracket", "Decision", "Effort", "EndRule", "ExpectedToGo", "Filled", "HorizonProblem",
        "Job", "JobRequest", "Linear", "LiveJob", "MarketNow", "MarketWindow", "Outcome", "Plan", "PlanStatus",
        "PointForecast", "Policy", "Power", "Progress", "RateTable", "Throughput", "TuningRequest", "View", "Weights",
        "decide", "fill", "hindsight", "learn", "live_job", "load_pool", "market_window", "plan", "point_forecast",
        "policy_named", "replay", "slot_job",
    },
}  # fmt: skip


def run(program, **options):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks():
    """Return the Python blocks of the page, in order."""
    return [part.split("```", 1)[0] for part in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]


@pytest.mark.parametrize("layer", FACES)
def test_the_face_of_a_layer_is_what_it_says(layer):
    face = import_module(f"slackwater.{layer}")
    assert set(face.__all__) == FACES[layer]
    for name in face.__all__:
        assert getattr(face, name) is not None
    with pytest.raises((AttributeError, ImportError)):
        face.no_such_name  # noqa: B018


def test_errors_alone_cost_no_import_of_pandas():
    program = "import sys, slackwater.warehouse.errors; assert not {'pandas', 'numpy', 'duckdb', 'pyarrow'} & set(sys.modules)"
    run(program, cwd=ROOT)


def test_every_block_of_the_page_runs_without_flows_and_is_short(tmp_path):
    """The module of a verb's name is imported first: the verb stays the verb."""
    shown = blocks()
    write_measurements(tmp_path / "measured")
    assert len(shown) == 6
    assert all(len(block.strip().splitlines()) <= 15 for block in shown)
    solved = "plan(job, window, seconds=1)"
    page = "\n".join(shown)
    assert solved in page
    page = page.replace(solved, "plan(job, window, seconds=0.2)")  # HiGHS uses all the time that it is given
    end = "\nimport sys\nassert 'prefect' not in sys.modules\nassert 'slackwater.flows' not in sys.modules\n"
    first = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport slackwater.optimization.replay.score\n"
        "from slackwater.optimization import replay\nassert callable(replay), replay\n"
    )
    program = first + page + end
    said = run(program, cwd=tmp_path)
    assert "hindsight" in said
