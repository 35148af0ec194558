"""The ``fit-configurations`` command; modules that compute are imported when it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from slackwater.flows.command import Answer, Output, option, progress, say


def fit_configurations(
    data: Annotated[
        Path, option("Folder with the measured fine-tuning runs (ft_throughput.csv).", metavar="DATA")
    ],
    /,
    *,
    out: Annotated[Path, option("File for the fitted model.", metavar="FILE")] = Path("configurations.zip"),
    seed: Annotated[int, option("Seed of every split and of the trees.", least=0, most=2**31 - 1)] = 7,
    fast: Annotated[bool, option("One split: a look in a minute, not a result.")] = False,
    output: Output = Output(),
) -> Answer:
    """Learn throughput and validity of fine-tuning configurations from measured runs, and measure the prediction errors.

    The model is stored in --out, which `slackwater fill` reads. Errors are those of held-out configurations.
    """
    # Set before NumPy is loaded: a second thread only wastes time on these small matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy as np

    from slackwater.flows.configurations.answer import configurations_report, measured_errors
    from slackwater.forecasting.configurations.model import fit_configurations as fit
    from slackwater.forecasting.configurations.scores import FAST, FOLDS, FULL

    say(f"fit on {data}")
    model, effort, done = fit(data, seed=seed), FAST if fast else FULL, 0
    model.save(out)
    say(f"kept in {out}; measuring it")
    with progress("measuring", effort.repeats * FOLDS) as tell:

        def one_more() -> None:
            nonlocal done
            done += 1
            tell(done)

        rng = np.random.default_rng(seed)
        value = measured_errors(model.throughput.runs, rng=rng, effort=effort, tell=one_more)
    value = {"data": str(data), "seed": seed, **value, "model": str(out)}
    if output.html is not None:
        value["report"] = str(output.html)
    return configurations_report(value)
