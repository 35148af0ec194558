"""The warehouse page and the comments in every file match the declarations, and plain SQL gives the program's answers."""

import re
from pathlib import Path

import described
import duckdb
import numpy as np
import pandas as pd
import pytest
import yaml
from make import make_turn
from past_jobs import past_jobs
from test_turn import AT, LIGHT

from slackwater.flows.backfill.run import Backfill, backfill, slots_between
from slackwater.flows.config import Settings
from slackwater.flows.ledger import fields
from slackwater.flows.ledger.decisions import decisions_of, stored_decisions
from slackwater.flows.ledger.errors import measured_errors
from slackwater.flows.ledger.fields import DECISION, DELIVERED, REPORTED, Field
from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.rounds import outcomes_of
from slackwater.flows.schemas import tables
from slackwater.flows.turn.report.leaderboard import policy_results, read_board_facts
from slackwater.flows.turn.stages import whole_turn
from slackwater.warehouse.asof import PRICE_MAX_AGE, load_history
from slackwater.warehouse.catalogue import UNKNOWN_RANK, rank_sql
from slackwater.warehouse.documents import read_sql
from slackwater.warehouse.exchange import compact, export_store, import_folder, publish_generation
from slackwater.warehouse.history import GAPS_UNTIL_STALE, Market
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.schema import INTERNAL

ROOT = Path(__file__).parents[3]
STEP = pd.Timedelta("30min")
LAST = AT + 3 * STEP
EARLIER = AT - pd.Timedelta(hours=20)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """Yield a read-only warehouse after a live turn that scored three jobs and three backfilled slots, and its settings."""
    folder = tmp_path_factory.mktemp("questions")
    (folder / "pool.toml").write_text(LIGHT)
    settings = Settings(
        models=("last_value", "smoothing"), planner="smoothing", measured_origins=5, horizon=3, planning_horizon=6,
        max_markets=2, simulated_days=4, history_days=3, risk_paths=10, pool=folder / "pool.toml",
    )  # fmt: skip
    db = folder / "w.duckdb"
    with open_store(db) as store:
        save_jobs(store, past_jobs(3, before=AT), origin="user", at=AT, step=STEP)
        whole_turn(make_turn(store, AT, settings), data=None, requests=[], report=None)
    slot_range = slots_between(AT + STEP, LAST, slot=STEP, step=None)
    backfill(Backfill(db=db, slot_range=slot_range, settings=settings, data=None, workers=1))
    with open_reader(db) as store:
        yield store, settings


def answer(store, question: str, **given) -> pd.DataFrame:
    (text,) = (sql for asked, sql in described.QUESTIONS.items() if asked.startswith(question))
    return store.arrow(text, given).to_pandas()


def history(store, market: str, source: str, **how):
    known = how.pop("known_at", LAST)
    return load_history(
        store, Market.parse(market), source=source, end=known, step=STEP, known_at=known, **how
    )


def jobs_decided(store) -> list[str]:
    return sorted({row["job"] for _, row in stored_decisions(store, {})})


def test_the_statements_and_the_sources_of_dbt_are_made_from_what_is_declared():
    described = ROOT / "warehouse" / "store" / "sql" / "described.sql"
    assert described.read_text(encoding="utf-8") == tables.sql(), (
        "run: python -m slackwater.flows.schemas.tables"
    )
    sources = ROOT / "examples" / "bi" / "sources.yml"
    assert sources.read_text(encoding="utf-8") == tables.dbt_sources(), (
        "run: python -m slackwater.flows.schemas.tables"
    )


def test_the_sources_of_dbt_are_the_views_with_their_keys(warehouse):
    store, _ = warehouse
    (source,) = yaml.safe_load(tables.dbt_sources())["sources"]
    assert [one["name"] for one in source["tables"]] == list(tables.VIEWS)
    for one in source["tables"]:
        columns = [row[0] for row in store.execute(f"DESCRIBE {one['name']}")]
        assert [column["name"] for column in one["columns"]] == columns
        tests = [(column["name"], test) for column in one["columns"] for test in column.get("data_tests", [])]
        wrong = {"not_null": 'count(*) - count("{0}")', "unique": 'count("{0}") - count(DISTINCT "{0}")'}
        counts = ", ".join(["0", *(wrong[test].format(column) for column, test in tests)])
        ((_, *found),) = store.execute(f"SELECT {counts} FROM {one['name']}")
        assert dict(zip(tests, found, strict=True)) == dict.fromkeys(tests, 0), one["name"]


def test_an_export_with_views_has_a_folder_for_each_day(warehouse, tmp_path):
    store, _ = warehouse
    export_store(store, tmp_path / "all", views=tables.view_times())
    for name, time in tables.view_times().items():
        rows = store.execute(f"SELECT count(*) FROM {name}")[0][0]
        files = sorted((tmp_path / "all" / "views" / name).rglob("*.parquet"))
        if rows:
            glob = f"{tmp_path}/all/views/{name}/**/*.parquet"
            found = duckdb.sql(f"SELECT count(*) FROM read_parquet('{glob}', hive_partitioning = true)")
            assert found.fetchall() == [(rows,)], name
        if rows and time:
            days = store.execute(
                f"SELECT DISTINCT strftime({time} AT TIME ZONE 'UTC', '%Y-%m-%d') FROM {name}"
            )
            assert {path.parent.name for path in files} == {f"day={day}" for (day,) in days}, name
    since = AT + STEP
    export_store(store, tmp_path / "late", since=since, views={"turn_stages": "logical_at"})
    found = duckdb.sql(
        f"SELECT min(logical_at) FROM read_parquet('{tmp_path}/late/views/turn_stages/*/*.parquet')"
    )
    assert found.fetchall()[0][0] >= since
    with open_store(tmp_path / "again.duckdb") as again:
        assert import_folder(again, tmp_path / "all")["runs"].added  # an import reads the tables only


def test_every_table_and_column_of_a_file_has_its_words(warehouse):
    store, _ = warehouse
    found: dict[str, dict[str, str]] = {}
    for table, column, comment in store.execute(
        "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal ORDER BY table_name, column_index"
    ):
        found.setdefault(table, {})[column] = comment
    declared = tables.relations()
    for own in (*INTERNAL, "described"):
        del found[own]
    assert found == {name: dict(one.columns) for name, one in declared.items()}
    for name, one in declared.items():
        for column, words in (("", one.words), *one.columns.items()):
            assert words, f"{name} {column}: add COMMENT ON to warehouse/store/sql/described.sql"
            assert words[0].isupper() or words[0] in "`13p"
            assert words.rstrip("`").endswith((".", ";")), (name, words)


def test_a_field_more_of_a_decision_is_a_column_with_its_words(monkeypatch):
    field = Field(kind="number?", words="Energy of the slot.", heading="energy", unit="kWh")
    monkeypatch.setitem(fields.DECISION, "energy_kwh", field)
    made = tables.sql()
    assert "TRY_CAST(TRY_CAST(details AS JSON) ->> '$.energy_kwh' AS DOUBLE) AS energy_kwh" in made
    assert "COMMENT ON COLUMN job_decisions.energy_kwh IS 'Energy of the slot.';" in made


def test_a_column_more_of_a_view_lacks_its_words(monkeypatch):
    """As of a column of observations: a change of the SQL without a description is found by the test of all words."""
    read = tables.read_sql
    more = "SELECT round, job, policy, scored_at, 1 AS energy, utility"
    monkeypatch.setattr(
        tables,
        "read_sql",
        lambda package, name: read(package, name).replace(
            "SELECT round, job, policy, scored_at, utility", more
        ),
    )
    assert tables.relations()["policy_weights"].columns["energy"] == ""


def test_the_views_use_the_limits_and_the_ranks_of_the_program():
    text = " ".join(read_sql("slackwater.warehouse.store", "described").split())
    hours = re.findall(r"to_hours\((\d+)\)|observed again for (\d+) h", text)
    assert {int(one or other) for one, other in hours} == {PRICE_MAX_AGE / pd.Timedelta("1h")}
    assert f"CAST({GAPS_UNTIL_STALE}e6 * nominal AS BIGINT)" in text
    assert f"{rank_sql('product')} AS rank" in text
    assert f"HAVING min(rank) < {UNKNOWN_RANK} OR" in text


def test_keys_tell_the_rows_apart(warehouse):
    store, _ = warehouse
    for name, one in tables.relations().items():
        if key := ", ".join(one.key):
            rows, keys = store.execute(f"SELECT count(*), count(DISTINCT row({key})) FROM {name}")[0]
            assert rows == keys, name
            assert rows or name in (
                "machines",
                "revisions",
                "terms",
                "reports",
                "deliveries",
                "fetches",
                "alarms",
            ), name


# The queries of the page, each compared with the answer of the program.


def test_prices_now_are_those_of_the_histories(warehouse):
    store, _ = warehouse
    found = answer(store, "What does each market cost now")
    listed = list_markets(store)
    assert found["market"].tolist() == listed[listed["has_price"]]["market"].tolist()
    for row in found.itertuples():
        own = history(store, row.market, row.source)
        assert row.price_usd == own.price[~np.isnan(own.price)][-1]
        assert row.share == pytest.approx(row.price_usd / own.on_demand_usd)


def test_counts_are_those_of_the_listing_and_the_histories(warehouse):
    store, _ = warehouse
    found = answer(store, "How often were at least four").set_index("market")
    listed = list_markets(store).set_index("market")
    assert found["probes"].to_dict() == listed["count_rows"].to_dict()
    for market, row in found.iterrows():
        view = store.arrow(
            "SELECT observed_at, available FROM market_counts WHERE market = ? ORDER BY observed_at", [market]
        ).to_pandas()
        assert row["share"] == pytest.approx((view["available"] >= 4).mean())
        own = history(store, market, row["source"])
        at = view["observed_at"].searchsorted(own.slots, side="right") - 1
        assert np.array_equal(view["available"].to_numpy()[at], own.available)


def test_prices_at_an_earlier_time_are_what_was_known_then(warehouse):
    store, _ = warehouse
    found = answer(store, "What was a price known", known_at=EARLIER.to_pydatetime())
    assert len(found) == 7
    for row in found.itertuples():
        assert row.price_usd == history(store, row.market, row.source, known_at=EARLIER).price[-1]


def test_decisions_say_what_the_ledger_says(warehouse):
    store, _ = warehouse
    names = [name for name in DECISION if name not in DELIVERED]
    for job in jobs_decided(store):
        ledger = decisions_of(store, job)
        found = answer(store, "Which decisions were made for a job", job=job)
        assert len(found) == len(ledger) == 4
        assert found["slot"].tolist() == [pd.Timestamp(row["slot"]) for row in ledger]
        for name in ("on_demand", "spot", "policy", "expected_cost_usd", "late_probability", "reason"):
            assert found[name].tolist() == [row[name] for row in ledger]
        whole = store.arrow("SELECT * FROM job_decisions WHERE job = ? ORDER BY slot", [job]).to_pylist()
        for row, told in zip(whole, ledger, strict=True):
            for name in names:
                assert _as_words(row[name], told[name]) == told[name], name


def _as_words(value, told):
    if value is None or told is None:
        return value
    if isinstance(value, pd.Timestamp) or hasattr(value, "isoformat"):
        return pd.Timestamp(value).isoformat()
    if isinstance(told, list):
        return pd.io.json.ujson_loads(value)
    return value


def test_jobs_at_risk_are_those_of_the_newest_decisions(warehouse):
    store, _ = warehouse
    newest = [decisions_of(store, job)[-1] for job in jobs_decided(store)]
    late = {row["job"]: row["late_probability"] for row in newest if row["late_probability"] >= 0.1}
    found = answer(store, "Which jobs are expected to be late")
    assert dict(zip(found["job"], found["late_probability"], strict=True)) == late


def test_what_markets_showed_beside_decisions_is_the_history(warehouse):
    store, _ = warehouse
    found = answer(store, "What was observed in the markets")
    assert len(found) == len(stored_decisions(store, {})) == 8
    markets = {row["job"]: (row["market"], row["source"]) for _, row in stored_decisions(store, {})}
    for row in found.itertuples():
        own = history(store, *markets[row.job])
        at = own.slots.get_loc(row.slot)
        assert (row.available, row.price_usd) == (own.available[at], own.price[at])


def test_forecasts_against_actuals_are_the_errors_that_the_turn_measured(warehouse):
    store, settings = warehouse
    start = LAST - settings.measured_origins * STEP
    found = answer(store, "How large were the errors", start=start.to_pydatetime(), stop=LAST.to_pydatetime())
    measured = measured_errors(store, LAST).rename(columns={"step": "step_ahead"})
    models = list(settings.models)
    keys = ["market", "source", "model", "variable", "step_ahead"]
    both = measured[measured["model"].isin(models)].merge(found, on=keys, suffixes=("", "_sql"))
    assert len(both) == (measured["model"].isin(models)).sum() == 2 * 2 * 2 * 3
    assert both["n"].tolist() == both["n_sql"].tolist()
    for name in ("mae", "rmse", "pinball"):
        np.testing.assert_allclose(both[f"{name}_sql"], both[name], rtol=1e-9, atol=1e-12)


def test_no_error_is_told_of_a_slot_that_has_not_come(warehouse):
    store, _ = warehouse
    ((newest, values, errors),) = store.execute(
        "SELECT (SELECT max(slot) FROM forecast_errors), (SELECT count(*) FROM forecast_values WHERE slot > $at), "
        "(SELECT count(*) FROM forecast_errors WHERE slot > $at)",
        {"at": LAST.to_pydatetime()},
    )
    assert newest == LAST
    assert values > 0
    assert errors == 0


def test_the_best_model_is_that_of_the_measured_errors(warehouse):
    store, _ = warehouse
    found = answer(store, "Which model was best")
    measured = measured_errors(store, LAST)
    keys = ["market", "source", "variable", "step"]
    least = measured.groupby(keys)["pinball"].min().reset_index()
    assert found[[*keys, "pinball"]].to_dict("list") == least.to_dict("list")
    accuracy = store.arrow("SELECT * FROM forecast_accuracy WHERE newest").to_pandas()
    assert sorted(accuracy["scale"]) == sorted(measured["scale"])


def test_the_ranking_is_the_leaderboard(warehouse):
    store, settings = warehouse
    turn = make_turn(store, LAST, settings)
    board = {row["policy"]: row for row in policy_results(turn, read_board_facts(turn)).leaderboard}
    found = answer(store, "Which policies cost least")
    assert sorted(found["policy"]) == sorted(board)
    assert found["mean_utility"].is_monotonic_decreasing
    for row in store.arrow("SELECT * FROM policy_ranking").to_pylist():
        for name, value in board[row["policy"]].items():
            if name in REPORTED:
                continue
            assert row[name] == (pytest.approx(value, abs=6e-5) if isinstance(value, float) else value), name


def test_weights_are_shares_of_each_round(warehouse):
    store, _ = warehouse
    found = answer(store, "How did the weights")
    rows = read_rows(store, "weights")
    assert len(found) == len(rows) == 3 * 4
    for number, own in found.groupby("round"):
        stored = rows[rows["round"] == number].set_index("policy")["log_weight"]
        raised = np.exp(stored - stored.max())
        assert own.set_index("policy")["weight"].to_dict() == pytest.approx((raised / raised.sum()).to_dict())


@pytest.mark.parametrize("job", ["past-1", "past-2"])
def test_outcomes_are_those_of_the_ledger(warehouse, job):
    """The second job has no value, so its utility is null."""
    store, _ = warehouse
    ledger = {row["policy"]: row for row in outcomes_of(store, find_job(store, job))}
    found = answer(store, "What would each policy", job=job)
    assert sorted(found["policy"]) == sorted(ledger)
    for row in found.to_dict("records"):
        told = ledger[row["policy"]]
        assert row["finish"] == told["finish"]
        for name in ("cost_usd", "saved_usd", "on_time", "hindsight_usd"):
            assert row[name] == pytest.approx(told[name])
        assert (None if pd.isna(row["utility_usd"]) else row["utility_usd"]) == told["utility_usd"]
    assert any(row["utility_usd"] is None for row in ledger.values()) == (job == "past-2")


def test_stages_made_afterwards_are_those_of_the_backfill(warehouse):
    store, _ = warehouse
    found = answer(store, "Which stages failed")
    assert found["made"].tolist() == ["backfill"] * 12
    assert sorted(set(found["logical_at"])) == [AT + k * STEP for k in (1, 2, 3)]


def test_the_page_asks_what_is_tested_here():
    asked = set(re.findall(r'answer\(\s*store, "([^"]+)"', Path(__file__).read_text()))
    assert len(asked) == len(described.QUESTIONS) == 12
    assert all(any(question.startswith(one) for one in asked) for question in described.QUESTIONS)


# Views and comments persist in the file.


def description(store):
    return (
        store.execute("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY 1"),
        store.execute(
            "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal ORDER BY table_name, column_index"
        ),
    )


def described_columns(store):
    """Return every column of the warehouse with its comment."""
    return store.execute(
        "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal AND comment IS NOT NULL "
        "ORDER BY table_name, column_index"
    )


def contents(store):
    """Return the rows of every view without file-specific identifiers; floats rounded, as sums depend on the row order."""
    own = "EXCLUDE (sid, mid)", "EXCLUDE (sid)", "EXCLUDE (vid)", ""
    kinds = {
        "market_series": 0,
        "market_prices": 1,
        "market_counts": 1,
        "forecast_values": 2,
        "forecast_errors": 2,
    }
    return {
        name: sorted(
            repr([round(value, 9) if isinstance(value, float) else value for value in row])
            for row in store.execute(f"SELECT * {own[kinds.get(name, 3)]} FROM {name}")
        )
        for name in tables.VIEWS
    }


@pytest.mark.slow
def test_compacting_and_moving_keep_views_and_comments(warehouse, tmp_path):
    store, _ = warehouse
    before, rows = description(store), contents(store)
    export_store(store, tmp_path / "out")
    with open_store(tmp_path / "moved.duckdb") as moved:
        import_folder(moved, tmp_path / "out")
        assert description(moved) == before
        assert contents(moved) == rows
        compact(moved)
    with open_reader(tmp_path / "moved.duckdb") as compacted:
        assert description(compacted) == before
        assert contents(compacted) == rows


def test_a_published_folder_is_read_with_views_and_comments(warehouse, tmp_path):
    store, _ = warehouse
    words, rows = described_columns(store), contents(store)
    place = publish_generation(store, tmp_path / "shared").folder
    with open_reader(tmp_path / "shared") as reader:
        assert contents(reader) == rows
        assert described_columns(reader) == words
    with duckdb.connect() as elsewhere:  # like an analyst without this program
        elsewhere.execute("SET TimeZone = 'UTC'; SET file_search_path = ?", [str(place)])
        elsewhere.execute((place / "views.sql").read_text())
        answers = {
            name: elsewhere.execute(text.replace("$job", "'nobody'")).fetchall()
            for name, text in described.QUESTIONS.items()
            if "$known_at" not in text and "$start" not in text
        }
    assert sum(map(bool, answers.values())) >= 6


def test_a_folder_of_some_tables_has_the_views_that_they_allow(warehouse, tmp_path):
    store, _ = warehouse
    export_store(store, tmp_path / "out", tables=["price"])
    with duckdb.connect() as elsewhere:
        elsewhere.execute("SET file_search_path = ?", [str(tmp_path / "out")])
        elsewhere.execute((tmp_path / "out" / "views.sql").read_text())
        there = {
            row[0]
            for row in elsewhere.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        }
        assert {"price", "market_series", "market_prices"} <= there
        assert not there & {"market_counts", "forecast_errors", "job_decisions"}
        rows = "SELECT count(*) FROM market_prices"
        assert elsewhere.execute(rows).fetchall() == store.execute(rows)
