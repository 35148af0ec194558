"""The front page as plain values: is all well, what must be held in the next slot, which job is in danger."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from flows.ledger.runs import LIVE
from flows.show.formats import duration, plural, utc
from flows.ui.complete import alarm_rows
from flows.ui.jobs import open_rows
from flows.ui.reading import Reading
from flows.ui.runs import run_rows

#: Runs that the front page shows; how many slots late a turn may be before that is said.
SHOWN_RUNS: Final = 12
LATE_SLOTS: Final = 2
#: A turn that old is a record that somebody looks at, not a pipeline that has stopped.
RECORD_AGE: Final = pd.Timedelta(days=30)


def glance_data(reading: Reading) -> dict[str, Any]:
    """The verdict ("well", "look" or "act") with its findings, the instances to hold, open jobs, alarms and the newest runs."""
    jobs = open_rows(reading)
    runs = run_rows(reading, most=SHOWN_RUNS)
    alarms = alarm_rows(reading)
    findings = [*_turn_findings(reading, runs), *_alarm_findings(alarms), *_job_findings(jobs)]
    findings.sort(key=lambda finding: finding["level"] != "act")
    levels = {finding["level"] for finding in findings}
    current = [job for job in jobs if job["hold"] and job["hold"]["current"]]
    return {
        "at": reading.at,
        "run": reading.run,
        "next_slot": reading.at,
        "slot_minutes": reading.settings.step_minutes,
        "verdict": "act" if "act" in levels else "look" if "look" in levels else "well",
        "findings": findings,
        "hold": {
            "on_demand": sum(int(job["hold"]["on_demand"]) for job in current),
            "spot": sum(int(job["hold"]["spot"]) for job in current),
            "jobs": len(current),
        },
        "jobs": jobs,
        "alarms": alarms,
        "runs": runs,
    }


def _finding(level: str, text: str, link: str, remedy: str = "") -> dict[str, str]:
    return {"level": level, "text": text[:1].upper() + text[1:], "link": link, "remedy": remedy}


def _turn_findings(reading: Reading, runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What is wrong with the newest turn: none yet, late, failed, or unfinished."""
    if reading.at is None:
        return [_finding("look", "No turn has been made yet.", "/runs", "`slackwater run` makes one.")]
    found = []
    age = reading.now - reading.at
    if age >= LATE_SLOTS * reading.step:
        level = "look" if age > RECORD_AGE else "act"
        found.append(
            _finding(
                level,
                f"The newest turn is {duration(age.floor('min'))} old; a slot is {duration(reading.step)}, "
                "so its decisions are out of date.",
                "/runs",
                "`slackwater run` makes the turn of the present slot; `slackwater serve` keeps making them.",
            )
        )
    live = [run for run in runs if LIVE in run["made"]] or runs
    newest = live[0] if live else None
    if newest and newest["status"] == "failed":
        found.append(_finding("act", f"Run {newest['run']} failed: {'; '.join(newest['reasons'])}", "/runs"))
    elif newest and newest["status"] == "part":
        found.append(
            _finding(
                "look",
                f"Run {newest['run']} has no {' and no '.join(newest['missing'])} stage yet.",
                "/runs",
                "It is at work, or was stopped: the same run again does what is missing.",
            )
        )
    if newest:
        found += [_finding("look", text, "/runs") for text in newest["left_out"]]
    return found


def _alarm_findings(alarms: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        _finding(
            "act" if one["severity"] == "serious" else "look",
            f"{one['kind']}, {one['subject']}: {one['text']} (since {utc(one['since'])})",
            "/completeness",
        )
        for one in alarms
    ]


def _job_findings(jobs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Jobs that may be late, and jobs that could not be decided."""
    found = []
    for job in jobs:
        link = f"job:{job['job']}"
        hold = job["hold"]
        if hold and hold["risk"]:
            chance = 100 * hold["late_probability"]
            level = "act" if hold["risk"] == "likely late" else "look"
            found.append(
                _finding(level, f"Job {job['job']} is {hold['risk']}: P(late) = {chance:.0f} %.", link)
            )
        if job["problem"]:
            found.append(_finding("look", f"Job {job['job']} cannot be followed: {job['problem']}", link))
        elif job["state"] == "running" and (hold is None or not hold["current"]):
            found.append(
                _finding("look", f"Nothing was decided for job {job['job']} in the newest turn.", link)
            )
    undecided = [one for one in found if one["text"].startswith("Nothing was decided")]
    if len(undecided) > 3:
        rest = [one for one in found if one not in undecided]
        text = f"Nothing was decided for {plural(len(undecided), 'running job')} in the newest turn."
        return [*rest, _finding("look", text, "/jobs?state=running")]
    return found
