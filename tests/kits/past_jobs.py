"""Jobs that ended before the first turn, as added by a user with earlier jobs: turns learn from them."""

from pathlib import Path

import pandas as pd

from slackwater.optimization.job.request import JobRequest, read_request

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama-8b-lora.toml"
#: The markets that turns follow first.
MARKETS = ("simulated/east/east-a/h100", "simulated/east/east-a/v100")


def past_jobs(count: int, *, before: pd.Timestamp) -> list[JobRequest]:
    """Return ``count`` placed requests of twelve hours in simulated markets, the newest over an hour ``before`` a time.

    Every second job has a hard deadline and no value.
    """
    job = read_request(EXAMPLE)
    return [
        job.model_copy(update={"name": f"past-{i + 1}"} | ({"value_usd": None} if i % 2 else {})).with_place(
            at=before - pd.Timedelta(hours=13 + 11 * i), market=MARKETS[i % 2], source=None
        )
        for i in range(count)
    ]
