"""The first hour of a person with a job and a price history, from an empty folder: the files, and the commands in their order."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pandas as pd
from command_kit import call

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-hour.md"
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
TYPE = "p4d.24xlarge"
DAYS = 30
NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
#: USD an instance-hour by zone: until 15 days before NOW, and since.
BEFORE = {"us-east-1a": 9.00, "us-east-1b": 9.50, "us-east-1c": 10.50}
SINCE = {"us-east-1a": 9.60, "us-east-1b": 8.00, "us-east-1c": 10.40}
TURNED = NOW - timedelta(days=15)


def spot_price(zone: str, at: datetime) -> float:
    """Return the synthetic price of a zone at a time, USD an instance-hour."""
    return (SINCE if at >= TURNED else BEFORE)[zone]


def price_history(start: datetime, end: datetime) -> str:
    """Return synthetic prices, every 6 hours from ``start`` to ``end``, as AWS prints them: newest first."""
    times = [start + timedelta(hours=6 * k) for k in range(int((end - start) / timedelta(hours=6)) + 1)]
    rows = [
        {
            "AvailabilityZone": zone,
            "InstanceType": TYPE,
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{spot_price(zone, at):.6f}",
            "Timestamp": at.isoformat(),
        }
        for at in reversed(times)
        for zone in ZONES
    ]
    return json.dumps({"SpotPriceHistory": rows}, indent=4)


JOB = """\
name = "llama-sft"
markets = ["aws/*/*/p4d.24xlarge"]
deadline = 2026-11-26T00:00:00Z
n_min = 1
n_max = 4

[workload]
amount = 320
unit = "gpu_hours"

[throughput]
form = "linear"

[checkpoint]
resumable = true
overhead_minutes = 6
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command at a minute of the first hour, a name by which its figures are checked, and the text of the page after it.

    The page shows the output before the line that begins with ``until`` ("": all of it).
    """

    name: str
    minute: int
    words: str
    text: str
    until: str | tuple[str, ...] = ""

    def shown(self, output: str) -> str:
        """Return the output as the page shows it."""
        lines = [line.rstrip() for line in output.strip().splitlines()]
        cut = [i for i, line in enumerate(lines) if self.until and line.startswith(self.until)]
        return "\n".join(lines[: cut[0]]).rstrip() + "\n..." if cut else "\n".join(lines)


#: Start of the notes of a turn, and of the second or third line of a turn's answer, whose rest `plan` shows too.
NOTES, REPEATED = "* On-demand price of", ("than on-demand only", "on-demand only, $")
INGEST = (
    "Three zones of one instance type, followed once a job names them. AWS lists prices only, so the availability "
    "of spot is unknown."
)
STEPS = (
    Step(name="ingest", minute=5, words="ingest aws prices.json", text=INGEST, until="* Not followed"),
    Step(name="markets", minute=5, words="markets --for job.toml", text="us-east-1b is the cheapest zone."),
    Step(
        name="plan",
        minute=5,
        words="plan job.toml",
        text="Nothing is stored yet. Availability of these zones was never measured, so cost and finish assume "
        "that of measured markets.",
    ),
    Step(
        name="add",
        minute=5,
        words="job add job.toml",
        text="Every turn now decides the job. `slackwater run` runs a turn, one pass of the loop: read data, "
        "forecast, decide.",
    ),
    Step(
        name="backtest",
        minute=5,
        words="backtest job.toml --every 72h --to 2026-11-25T00:00Z --policy MeanField --policy Greedy",
        text="This simulates the same job, started every 3 days of the last month. It costs less than planned, as "
        "spot is never lost in a history of prices only; so *Greedy*, the cheapest spot at full size, does "
        "nearly as well. `--every 6h` without `--policy` compares all policies, in some minutes.",
        until="* The interval takes",
    ),
    Step(
        name="run",
        minute=5,
        words="run",
        text="The turn issues the decision and stores it. Start the 4 instances.",
        until=REPEATED,
    ),
    Step(
        name="half",
        minute=35,
        words="run",
        text="In the next slot the job keeps its instances.",
        until=REPEATED,
    ),
    Step(
        name="later",
        minute=65,
        words="ingest aws later.json",
        text="The newest prices have not changed.",
        until="Markets read",
    ),
    Step(
        name="report",
        minute=65,
        words="job report llama-sft --at 2026-11-25T13:00Z --spot 3",
        text="One of the 4 instances was lost. The next plan starts from this report.",
    ),
    Step(
        name="lost",
        minute=65,
        words="plan llama-sft",
        text="The plan starts from 3 running instances and the work of the first hour.",
        until="cost  ",
    ),
    Step(
        name="early",
        minute=65,
        words="job change llama-sft --deadline 2026-11-25T22:00Z",
        text="Two hours earlier is too early for 4 instances. The warning names the remedies.",
        until="Notes",
    ),
    Step(
        name="moved",
        minute=65,
        words="job change llama-sft --deadline 2026-11-25T23:00Z",
        text="One hour earlier is possible.",
        until="Notes",
    ),
    Step(
        name="decided",
        minute=65,
        words="run",
        text="The turn uses the new deadline. After the loss in us-east-1b spot in us-east-1a is expected to last "
        "longer.",
        until=NOTES,
    ),
    Step(
        name="bill",
        minute=65,
        words="bill llama-sft",
        text="The slot from 13:00 is billed by the report, the two slots before by the decisions. *Saved* covers "
        "only these two: the work of the newest slot is not known yet.",
    ),
)
#: The steps before any decision; they take a few seconds.
FIRST_STEPS = STEPS[:4]


def write_files(folder: Path) -> None:
    """Write the job file and the two responses of AWS."""
    (folder / "job.toml").write_text(JOB)
    (folder / "prices.json").write_text(price_history(NOW - timedelta(days=DAYS), NOW))
    later = NOW + timedelta(hours=1)
    (folder / "later.json").write_text(price_history(later, later))


def walk(folder: Path, steps: tuple[Step, ...] = STEPS) -> dict[str, str]:
    """Call the commands in an empty folder, print their seconds, and return the output of each."""
    write_files(folder)
    found, back = {}, Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(os.environ, {"COLUMNS": "80"}):
            for step in steps:
                begun = time.perf_counter()
                now = pd.Timestamp(NOW + timedelta(minutes=step.minute))
                with patch("slackwater.flows.clock.now", lambda now=now: now):
                    called = call(*step.words.split())
                print(f"{time.perf_counter() - begun:6.1f} s  slackwater {step.words}", file=sys.stderr)
                if called.code:
                    raise RuntimeError(f"slackwater {step.words}: {called.err}")
                found[step.name] = called.out
    finally:
        os.chdir(back)
    return found


HEAD = """\
# The first hour

You have a fine-tuning job of 320 GPU-hours, a deadline tonight, and a price history of `p4d.24xlarge`, which has 8 GPUs.
It is 2026-11-25 12:05 UTC; all times are UTC.
The prices are synthetic: us-east-1b costs $8.00 an instance-hour in the last 15 days and $9.50 earlier,
us-east-1a $9.60 and $9.00, us-east-1c $10.40 and $10.50. Real prices come from AWS, through a file or a pipe:

    aws ec2 describe-spot-price-history --instance-types p4d.24xlarge --start-time 2026-10-26 > prices.json
    aws ec2 describe-spot-price-history --instance-types p4d.24xlarge | slackwater ingest aws -

`job.toml`:

```toml
"""


def page(found: Mapping[str, str]) -> str:
    """Return the page of the docs: each command, its output, and its explanation."""
    parts = [f"{HEAD}{JOB}```\n"]
    for step in STEPS:
        output = step.shown(found[step.name])
        parts.append(
            f"## {NOW + timedelta(minutes=step.minute):%H:%M} `slackwater {step.words}`\n\n```\n{output}\n```\n\n{step.text}\n"
        )
    parts.append(
        "`python tests/kits/renters_path.py` writes this page. A test computes its figures independently.\n"
    )
    return "\n".join(parts)


def outputs_on_page() -> Iterator[tuple[str, str]]:
    """Yield the name and the printed output of each step of the page; raises `ValueError` if a command
    differs from the step's.
    """
    blocks = re.findall(
        r"^## \d\d:\d\d `slackwater ([^`]+)`\n\n```\n(.*?)\n```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    for step, (words, output) in zip(STEPS, blocks, strict=True):
        if words != step.words:
            raise ValueError(f"{PAGE.name}: {words}; expected {step.words}")
        yield step.name, output


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(page(walk(Path(name))))
