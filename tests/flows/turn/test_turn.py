"""A complete turn without an engine: its results, its repeatability, and no use of later data."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from command_kit import call
from forms_kit import quick_first
from make import make_request, make_turn
from past_jobs import past_jobs
from published import keeps_to
from tidy_folder import DAYS, START, write_tidy

from slackwater.flows.config import Settings
from slackwater.flows.ledger.rounds import outcome_frame
from slackwater.flows.turn.context import run_id_of
from slackwater.flows.turn.pool import informed_learner, read_pool
from slackwater.flows.turn.stages import whole_turn
from slackwater.optimization.selection.contract import weigh
from slackwater.optimization.selection.learners import DEFAULT_LEARNER
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.listing import observed_sources
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.sources.simulated import generate
from slackwater.warehouse.store.connection import open_store

AT = pd.Timestamp("2026-03-10T06:00Z")
POOL = """
[[family]]
name = "OD-only"
[[family]]
name = "UP"
[[family]]
name = "AHANP"
sigma = [0.5, 0.9]
[[family]]
name = "Stochastic"
[[family]]
name = "AHAP"
omega = 3
commitment = [1, 2]
sigma = 0.9
"""
#: The smallest turn has no policy that learns from the record, as replaying it takes most of a turn's time.
LIGHT = """
[[family]]
name = "OD-only"
[[family]]
name = "UP"
[[family]]
name = "AHAP"
omega = 2
commitment = [1, 2]
sigma = 0.9
"""
SMALL = """
models = ["last_value", "markov"]
planner = "markov"
horizon = 3
planning_horizon = 6
max_markets = 2
simulated_days = 4
history_days = 3
risk_paths = 10
"""


@pytest.fixture(scope="session")
def settings(tmp_path_factory) -> Settings:
    pool = tmp_path_factory.mktemp("pool") / "pool.toml"
    pool.write_text(POOL)
    return Settings(
        models=("last_value", "markov"),
        planner="markov",
        measured_origins=4,
        horizon=4,
        planning_horizon=12,
        max_markets=3,
        simulated_days=6,
        history_days=4,
        risk_paths=20,
        pool=pool,
    )


def small_settings(folder: Path, *, measured_origins: int = 4) -> Path:
    """Write settings for the smallest complete turn; tests of decisions alone may set ``measured_origins`` to 0."""
    (folder / "pool.toml").write_text(LIGHT)
    file = folder / "slackwater.toml"
    file.write_text(f'{SMALL}measured_origins = {measured_origins}\npool = "{folder / "pool.toml"}"\n')
    return file


def panel_settings(folder: Path) -> Path:
    """Write the same settings with forecasters that learn from several markets."""
    file = small_settings(folder)
    models = 'models = ["last_value", "markov"]\nplanner = "markov"'
    text = file.read_text()
    assert models in text
    file.write_text(text.replace(models, 'models = ["smoothing", "markov"]\nplanner = "combined"'))
    return file


def tidy_tables(folder: Path, start: pd.Timestamp, end: pd.Timestamp) -> None:
    """Write the simulated market as the two tidy files read by `--data`."""
    names = {"observed_at": "timestamp", "price_usd": "spot_price_usd_per_hour", "capacity": "capacity_probed",
             "on_demand_usd": "on_demand_price_usd_per_hour"}  # fmt: skip
    tables = {"price": [], "availability": []}
    for batch in generate(start.to_pydatetime(), end.to_pydatetime(), seed=3):
        kept = batch.table.drop_columns(["file", "line", "known_at"])
        tables[batch.kind].append(kept.rename_columns([names.get(c, c) for c in kept.column_names]))
    for kind, file in (("price", "prices"), ("availability", "availability")):
        pa.parquet.write_table(
            pa.concat_tables(tables[kind], promote_options="permissive"), folder / f"{file}.parquet"
        )


def scramble_after(folder: Path, at: pd.Timestamp) -> None:
    """Scramble every row after ``at``: positive counts become 0 and zero counts 1, prices are tripled."""
    for file, column in (("prices", "spot_price_usd_per_hour"), ("availability", "available")):
        path = folder / f"{file}.parquet"
        table = pa.parquet.read_table(path)
        later = pc.greater(table["timestamp"], pa.scalar(at.to_pydatetime(), table["timestamp"].type))
        values = table[column]
        other = pc.multiply(values, 3.0) if file == "prices" else pc.if_else(pc.equal(values, 0), 1, 0)
        mixed = pc.if_else(later, other.cast(values.type), values)
        table = table.set_column(table.column_names.index(column), column, mixed)
        pa.parquet.write_table(table, path)


def one_turn(
    db: Path, settings: Settings, *, at=AT, data: Path | None = None, requests=(), page: Path | None = None
):
    """Run a turn; without ``page`` it draws no page, which takes half the time of a small turn."""
    with open_store(db) as store:
        turn = make_turn(store, at, settings)
        return whole_turn(turn, data=data, requests=list(requests), report=page)


def dump(db: Path) -> dict[str, list]:
    """Return every table as sorted rows, for comparison."""
    tables = (
        "imports",
        "price",
        "availability",
        "vintages",
        "forecasts",
        "accuracy",
        "jobs",
        "decisions",
        "outcomes",
        "weights",
        "runs",
        "fitted",
    )
    with open_store(db) as store:
        return {name: sorted(map(repr, read_rows(store, name).to_numpy().tolist())) for name in tables}


@pytest.fixture(scope="module")
def first(tmp_path_factory, settings):
    db = tmp_path_factory.mktemp("turn") / "w.duckdb"
    result = one_turn(db, settings, requests=past_jobs(4, before=AT), page=db.with_name("report.html"))
    shutil.copy(db, db.with_name("kept.duckdb"))
    return db, result


@pytest.fixture
def after_first(first, tmp_path) -> Path:
    """Return a private copy of the warehouse after the first turn."""
    return Path(shutil.copy(first[0].with_name("kept.duckdb"), tmp_path / "w.duckdb"))


def test_the_answer_has_the_promised_form(first):
    answer = first[1].answer()
    keeps_to("run", answer)
    assert answer["ingested"]["simulated"]["added"] > 0
    assert len(answer["decisions"]) >= 3
    assert answer["leaderboard"]
    assert {row["model"] for row in answer["accuracy"]} == {"last_value", "markov"}
    assert sum(row["weight"] for row in answer["leaderboard"]) == pytest.approx(1, abs=1e-4)
    json.dumps(answer, allow_nan=False)
    assert Path(answer["report"]).read_text().startswith("<!DOCTYPE html>")


def test_the_path_of_a_page_is_printed_once(first, settings, tmp_path):
    page = tmp_path / "one.html"
    file = tmp_path / "slackwater.toml"
    file.write_text(f'planner = "markov"\npool = "{settings.pool}"\n')
    said = call("report", "--db", first[0], "--settings", file, "--html", page).out
    assert said.count(str(page)) == 1
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow  # the quick form: the same turn again writes nothing new
def test_the_page_of_a_turn_again_is_the_whole_page_wherever_it_goes(first, settings, tmp_path, monkeypatch):
    file = tmp_path / "slackwater.toml"
    file.write_text(f'planner = "markov"\npool = "{settings.pool}"\n')
    words = ("report", "--db", first[0], "--settings", file)
    monkeypatch.chdir(tmp_path)
    one, other = tmp_path / "one.html", tmp_path / "deep" / "other.html"
    assert call(*words, "--html", one).out.splitlines() == [f"page: {one}"]
    assert not (tmp_path / "reports").exists()
    assert call(*words, "--html", one, "--out", other, "--json").value == {"report": str(other)}
    assert call(*words, "--json").value == {"report": f"reports/{run_id_of(AT)}.html"}
    pages = [path.read_text() for path in (one, other, tmp_path / "reports" / f"{run_id_of(AT)}.html")]
    assert "What to run" in pages[0]
    assert len(set(pages)) == 1


def test_the_same_turn_again_writes_nothing_new(first, settings):
    db, result = first
    before = dump(db)
    again = one_turn(db, settings)
    assert again.decisions == result.decisions
    assert again.leaderboard == result.leaderboard
    assert again.accuracy == result.accuracy
    assert dump(db) == before


def test_stored_weights_are_those_rebuilt_from_stored_utilities(first, settings):
    with open_store(first[0]) as store:
        turn = make_turn(store, AT, settings)
        rounds = read_pool(turn).rounds
        rows = read_rows(store, "weights", order_by=["round"])
    assert settings.learner == DEFAULT_LEARNER
    rebuilt = weigh(informed_learner(settings), rounds.names, rounds.utilities)[1:]
    assert len(rounds.jobs) == 4
    for number, weights in enumerate(rebuilt, start=1):
        stored = rows[rows["round"] == number].set_index("policy")["log_weight"]
        assert [stored[name] for name in rounds.names] == weights.log_weight.tolist()


def test_the_ledger_knows_what_wrong_forecasts_cost(first, settings):
    with open_store(first[0]) as store:
        names = read_pool(make_turn(store, AT, settings)).names
        lost = outcome_frame(store, names).pivot(
            index="job", columns="policy", values="lost_to_forecast_error"
        )
    assert lost.shape == (4, len(names))
    assert lost.notna().all().all()
    reads_none = [name for name in names if not name.startswith(("AHAP", "Stochastic"))]
    assert (lost[reads_none] == 0.0).all().all(), "they read no forecast"
    assert (lost[[name for name in names if name.startswith("AHAP(")]] != 0.0).any().any()
    assert any(note.startswith("Wrong forecasts cost") for note in first[1].notes)


def test_nothing_is_simulated_beside_what_was_measured_and_a_turn_that_measures_no_error_decides(
    tmp_path, settings
):
    """A user ingests tables, then runs a turn without naming them again, with settings without measured origins.

    A market whose record consists of gaps has no measured error either.
    """
    db = tmp_path / "w.duckdb"
    with open_store(db) as store:
        ingest(store, "tabular", write_tidy(tmp_path / "mine"))
    unmeasured = settings.model_copy(update={"measured_origins": 0})
    result = one_turn(db, unmeasured, at=START + pd.Timedelta(days=DAYS), page=tmp_path / "report.html")
    assert result.accuracy == []
    assert result.ingested == {}
    assert {row["market"] for row in result.decisions}
    assert not any(row["market"].startswith("simulated/") for row in result.decisions)
    page = result.page.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Simulated market." not in page
    with open_store(db) as store:
        assert not any(source.startswith("simulated:") for source in observed_sources(store))


def test_the_next_turn_goes_on_from_the_earlier_and_replays_a_policy_that_is_new_in_the_pool(
    first, after_first, tmp_path, settings
):
    """The other policies keep their rounds."""
    db, pool = after_first, tmp_path / "pool.toml"
    pool.write_text(POOL + '[[family]]\nname = "MSU"\n')
    with open_store(db) as store:
        before = read_rows(store, "weights", order_by=["round", "policy"])
        outcomes = len(read_rows(store, "outcomes"))
    later = AT + pd.Timedelta("30min")
    wide = settings.model_copy(update={"pool": pool, "measured_origins": 0})
    result = one_turn(db, wide, at=later)
    assert {row["job"] for row in result.decisions} <= {row["job"] for row in first[1].decisions}
    assert {pd.Timestamp(row["slot"]) for row in result.decisions} == {later}
    added, before_that = (one.ingested["simulated"]["added"] for one in (result, first[1]))
    assert 0 < added < before_that / 10
    with open_store(db) as store:
        after = read_rows(store, "weights", order_by=["round", "policy"])
        new = after[after["policy"] == "MSU"]
        assert after[after["policy"] != "MSU"].reset_index(drop=True).equals(before)
        assert new["round"].tolist() == [1, 2, 3, 4]
        assert set(new["scored_at"]) == {later}
        assert len(read_rows(store, "outcomes")) == outcomes + 4
    board = {row["policy"]: row for row in result.leaderboard}
    assert {row["jobs"] for row in board.values()} == {4}
    assert board["MSU"]["weight"] > 0
    kept = dump(db)["weights"]
    one_turn(db, wide, at=later)
    assert dump(db)["weights"] == kept, "replayed once"


@pytest.mark.parametrize(
    ("markets", "jobs"), quick_first([(2, 1), (3, 2)])
)  # the markets that are followed, and the jobs that have ended
def test_scrambling_the_future_changes_no_forecast_and_no_decision(tmp_path, settings, markets, jobs):
    settings, answers = settings.model_copy(update={"max_markets": markets}), []
    for name in ("true", "scrambled"):
        folder = tmp_path / name
        folder.mkdir()
        tidy_tables(folder, AT - pd.Timedelta(days=6), AT + pd.Timedelta(days=2))
        if name == "scrambled":
            scramble_after(folder, AT)
        db = folder / "w.duckdb"
        answer = one_turn(db, settings, data=folder, requests=past_jobs(jobs, before=AT)).answer()
        tables = dump(db)
        assert len(answer["decisions"]) >= markets
        answers.append(
            [answer["decisions"], answer["accuracy"], answer["leaderboard"]]
            + [tables[key] for key in ("vintages", "forecasts", "decisions", "outcomes", "weights")]
        )
    assert answers[0] == answers[1]


@pytest.mark.slow  # the quick forms: a scrambled future above, and of every policy in its contract
def test_the_stochastic_policy_decides_live_as_a_plan_would_and_is_blind_to_the_future(tmp_path, settings):
    """The decision is the same whether the record ends at the logical time or continues with scrambled rows."""
    blind = settings.model_copy(update={"first_policy": "Stochastic", "prior_jobs": 0, "measured_origins": 0})
    answers = []
    for name, days in (("ends", 0), ("goes on", 1)):
        folder = tmp_path / name
        folder.mkdir()
        tidy_tables(folder, AT - pd.Timedelta(days=6), AT + pd.Timedelta(days=days))
        scramble_after(folder, AT)
        answers.append(one_turn(folder / "w.duckdb", blind, data=folder).decisions)
    assert answers[0] == answers[1]
    assert {row["policy"] for row in answers[0]} == {"Stochastic(24)"}
    assert all(
        "spot in the next slot: " in row["reason"] or "finished" in row["reason"] for row in answers[0]
    )


def test_odd_jobs_and_markets_get_an_answer_and_stop_nothing(tmp_path, settings):
    """Jobs that cannot finish, cannot resume, or whose market is missing or has stopped reporting."""
    folder = tmp_path / "data"
    folder.mkdir()
    tidy_tables(folder, AT - pd.Timedelta(days=6), AT)
    table = pa.parquet.read_table(folder / "availability.parquet")
    zone, other = sorted(set(table["zone"].to_pylist()))[:2]
    silent = AT - pd.Timedelta(hours=5)
    late = pc.greater(table["timestamp"], pa.scalar(silent.to_pydatetime(), table["timestamp"].type))
    gone = pc.and_(pc.equal(table["zone"], zone), late)
    there, elsewhere = (
        "/".join(row[key] for key in ("provider", "region", "zone", "instance_type"))
        for row in (
            table.filter(pc.equal(table["zone"], one)).slice(0, 1).to_pylist()[0] for one in (zone, other)
        )
    )
    pa.parquet.write_table(table.filter(pc.invert(gone)), folder / "availability.parquet")
    terms = {"at": AT, "n_max": 4, "workload": {"amount": 8, "unit": "gpu_hours"}}
    hopeless = {"workload": {"amount": 500, "unit": "gpu_hours"}}
    requests = [
        make_request("hopeless", market=there, **(terms | hopeless)),
        make_request("blind", market=there, **terms),
        make_request("nowhere", market="no/such/market/here", **terms),
        make_request("fixed", market=elsewhere, checkpoint={"resumable": False}, **terms),
        make_request("resumed", market=elsewhere, **terms),
    ]
    result = one_turn(tmp_path / "w.duckdb", settings, data=folder, requests=requests)
    rows = {row["job"]: row for row in result.decisions}
    assert rows["hopeless"]["shortfall"].startswith("cannot be done by")
    assert "best effort" not in rows["hopeless"]["reason"]
    assert rows["hopeless"]["late_probability"] == 1
    # Counts stopped five hours ago while prices go on: availability is assumed, and the answer says so (M13).
    assert rows["blind"]["evidence"] == 3
    assert "availability not observed for 5 h" in rows["blind"]["availability_note"]
    assert (rows["fixed"]["spot"], rows["fixed"]["policy"]) == (0, "OD-only")
    assert "cannot resume" in rows["fixed"]["reason"]
    assert rows["resumed"]["spot"] > 0
    assert "nowhere" not in rows
    assert any("nowhere is left out" in note for note in result.notes)
