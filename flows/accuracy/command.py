"""The command ``accuracy``; the code behind it is imported when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from slackwater.flows.command import Answer, Session, option, shared

TITLE = "Forecast accuracy"


@shared
class AccuracyOptions:
    """Options of the command as given; None means the default."""

    market: Annotated[
        str | None,
        option(
            "Markets to measure: a pattern on provider/region/zone/type, or with @source after it.",
            metavar="GLOB",
        ),
    ] = None
    since: Annotated[str | None, option("Forecasts issued from then on only.", metavar="TIME")] = None
    step: Annotated[str | None, option("Slot length: 10min, 30min (default), 1h.", metavar="DURATION")] = None
    variable: Annotated[str | None, option("count or price (default: both).")] = None
    models: Annotated[
        tuple[str, ...],
        option("A forecaster; may be repeated (default: all in the settings).", name="--model"),
    ] = ()
    refit: Annotated[
        str | None,
        option("How often models are estimated again (default: as the settings say).", metavar="DURATION"),
    ] = None
    horizon: Annotated[int, option("Slots ahead, 1 to 96.")] = 12
    keep: Annotated[
        Path | None,
        option("Folder for stored forecasts; a run that was stopped continues from them.", metavar="DIR"),
    ] = None
    workers: Annotated[int | None, option("Processes (default: one a core).", least=1, most=1024)] = None
    backtest: Annotated[
        bool, option("Of a warehouse: forecast its series again, instead of scoring the stored forecasts.")
    ] = False


ALL_FORECASTS = AccuracyOptions()


def accuracy(*, options: AccuracyOptions = ALL_FORECASTS, session: Session = Session()) -> Answer:
    """Measure forecast accuracy by lead time, compared with last value.

    With --data every model forecasts the later half of every series of a folder, as turns would
    have. With --db the stored forecasts of the warehouse are scored as issued; --backtest forecasts
    its series anew and stores the forecasts next to the warehouse.
    """
    # Set before NumPy is imported: further threads do not speed up the small matrices of a filter.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from slackwater.flows.accuracy.report import measured_accuracy

    value, blocks = measured_accuracy(options, session)
    return Answer(title=TITLE, value=value, blocks=blocks)
