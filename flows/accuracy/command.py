"""``accuracy``. What computes is loaded when the command is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from flows.command import Answer, Session, option


def accuracy(
    *,
    market: Annotated[
        str | None,
        option(
            "Markets to measure: a pattern on provider/region/zone/type, or with @source after it.",
            metavar="GLOB",
        ),
    ] = None,
    since: Annotated[str | None, option("Forecasts issued from then on only.", metavar="TIME")] = None,
    step: Annotated[
        str | None, option("Slot length: 10min, 30min (default), 1h.", metavar="DURATION")
    ] = None,
    variable: Annotated[str | None, option("count or price (default: both).")] = None,
    models: Annotated[
        list[str] | None,
        option("A forecaster; may be repeated (default: all in the settings).", name="--model"),
    ] = None,
    refit: Annotated[
        str | None,
        option("How often models are estimated again (default: as the settings say).", metavar="DURATION"),
    ] = None,
    horizon: Annotated[int, option("Slots ahead, 1 to 96.")] = 12,
    keep: Annotated[
        Path | None, option("Keep forecasts here; a run that was stopped goes on from them.", metavar="DIR")
    ] = None,
    workers: Annotated[int | None, option("Processes (default: one a core).", least=1, most=1024)] = None,
    backtest: Annotated[
        bool, option("Of a warehouse: forecast its series anew, instead of scoring what it holds.")
    ] = False,
    leave_out: Annotated[
        str | None,
        option("zone or source: choose each market's model on the others' earlier halves.", metavar="WHAT"),
    ] = None,
    session: Session = Session(),
) -> Answer:
    """How good forecasts are, by step ahead, beside last value.

    With --data every model forecasts the later half of every series of a folder, as turns would have. With --db the
    forecasts that the warehouse holds are scored as they were issued; --backtest forecasts its series anew, and keeps
    that beside it. With --leave-out every zone (or source) is left out in turn: its markets get the model that was best on
    the earlier halves of all others of their class, which are forecast too, and the later halves say what that is worth.
    """
    # Before NumPy is loaded: with two threads the small matrices of a filter only spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flows.accuracy.report import AccuracyOptions, measured_accuracy

    options = AccuracyOptions(
        market=market,
        since=since,
        step=step,
        variable=variable,
        models=tuple(models or ()),
        refit=refit,
        horizon=horizon,
        keep=keep,
        workers=workers,
        backtest=backtest,
        leave_out=leave_out,
    )
    value, blocks, page = measured_accuracy(options, session)
    return Answer(title="Forecast accuracy", value=value, blocks=blocks, page=page)
