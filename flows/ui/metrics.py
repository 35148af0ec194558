"""``/metrics``: OpenMetrics for dashboards and alerts, with the same values as the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from slackwater.flows.ledger.stages import STAGES, read_seconds
from slackwater.flows.turn.report.recent_errors import RECENT, recent_scores
from slackwater.flows.ui.jobs import open_rows
from slackwater.flows.ui.reading import Reading
from slackwater.flows.ui.record import accuracy_table
from slackwater.flows.ui.runs import alarm_rows, run_rows
from slackwater.forecasting.accuracy.intervals import LEAST_BLOCKS, TOO_FEW
from slackwater.forecasting.predictors import FLOOR
from slackwater.warehouse.listing import list_markets

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: Media type of the OpenMetrics version that `prometheus_client` writes.
MEDIA_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SECOND: Final = pd.Timedelta(seconds=1)


def metrics_text(reading: Reading) -> str:
    """Return all metrics of the warehouse as text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.registry import Collector

    class WarehouseMetrics(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from (
                *_turn(reading),
                *_jobs(reading),
                *_markets(reading),
                *_skill(reading),
                *_alarms(reading),
            )

    registry = CollectorRegistry()
    registry.register(WarehouseMetrics())
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()


def _gauge(
    name: str, words: str, labels: list[str], rows: list[tuple[list[str], Any]], unit: str = ""
) -> Metric:
    """Return a gauge with a value per row of labels; unknown values are omitted."""
    from prometheus_client.core import GaugeMetricFamily

    result = GaugeMetricFamily(f"slackwater_{name}", words, labels=labels, unit=unit)
    for values, value in rows:
        if value is not None and not pd.isna(value):
            result.add_metric(values, float(value))
    return result


def _turn(reading: Reading) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    (count,) = reading.store.execute("SELECT count(*) FROM decisions")[0]
    issued = CounterMetricFamily("slackwater_decisions", "Decisions issued, of every job and slot.")
    issued.add_metric([], float(count))
    yield issued
    if reading.at is None:
        return
    at = reading.at.timestamp()
    yield _gauge("turn_timestamp_seconds", "Logical time of the newest turn.", [], [([], at)], "seconds")
    newest = run_rows(reading, most=1)[0]["stages"]
    done = [([stage], stage in newest and newest[stage]["status"] == "done") for stage in STAGES]
    yield _gauge("stage_done", "Whether a stage of the newest turn is done.", ["stage"], done)
    seconds = read_seconds(reading.db)
    if seconds is not None:
        yield _gauge(
            "turn_seconds", "Duration of the newest turn of a flow.", [], [([], seconds.whole)], "seconds"
        )
        rows = [([stage], value) for stage, value in seconds.stages.items()]
        yield _gauge("stage_seconds", "Duration of each of its stages.", ["stage"], rows, "seconds")


def _jobs(reading: Reading) -> Iterator[Metric]:
    jobs = open_rows(reading)
    held = [(job["job"], job["hold"]) for job in jobs if job["hold"]]
    rows = [
        ([name, hold["market"], kind], hold[kind]) for name, hold in held for kind in ("spot", "on_demand")
    ]
    yield _gauge("hold_instances", "Instances of the newest decision.", ["job", "market", "kind"], rows)
    for name, field, words in (
        ("job_late_probability", "late_probability", "Risk of missing the deadline."),
        ("job_expected_cost_usd", "expected_cost_usd", "Expected total cost of the job."),
        ("job_on_demand_only_usd", "on_demand_only_usd", "Total cost of the job on on-demand only."),
    ):
        yield _gauge(name, words, ["job"], [([job], hold.get(field)) for job, hold in held])
    spent = [([job["job"]], job["cost_usd"]) for job in jobs]
    yield _gauge("job_spent_usd", "Cost of the job so far.", ["job"], spent)


def _markets(reading: Reading) -> Iterator[Metric]:
    known = list_markets(reading.store)
    rows = [
        ([market, source], max(0.0, (reading.now - last) / _SECOND))
        for market, source, last in zip(known["market"], known["source"], known["last_observed"], strict=True)
    ]
    words = "Age of the newest price or count of a market."
    yield _gauge("data_age_seconds", words, ["market", "source"], rows, "seconds")


def _skill(reading: Reading) -> Iterator[Metric]:
    scores = recent_scores(accuracy_table(reading, None), reading.settings.planner)
    rows: list[tuple[list[str], Any]] = [
        (
            [score.variable, model, str(int(row["step"]))],
            0.0 if model == FLOOR else row["skill_pinball"] if row["verdict"] != TOO_FEW else None,
        )
        for score in scores
        for model in score.models
        for row in score.of(model)
    ]
    words = (
        f"Pinball skill over last value by slots ahead, pooled over markets and the last {RECENT.days} days: 0 is last value, 1 "
        f"perfect; none with errors on fewer than {LEAST_BLOCKS} days."
    )
    yield _gauge("forecast_skill", words, ["variable", "model", "step"], rows)


def _alarms(reading: Reading) -> Iterator[Metric]:
    count = Counter((row["kind"], row["severity"]) for row in alarm_rows(reading))
    rows = [([kind, severity], number) for (kind, severity), number in sorted(count.items())]
    yield _gauge("alarms", "Active alarms at the newest turn.", ["kind", "severity"], rows)
