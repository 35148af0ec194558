"""The commands ``act`` and ``progress``. Heavy modules are imported only when a command runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import Answer, QueryAt, option, parsed_duration, say
from slackwater.flows.show.blocks import Block, Column, Notes, Table
from slackwater.flows.show.formats import plural, usd

if TYPE_CHECKING:
    from slackwater.flows.acting.contract import Driver
    from slackwater.flows.acting.loop import ActLoop, JobPass
    from slackwater.flows.acting.stopping import StopSignals

COLUMNS: dict[str, Column | str] = {
    "job": "job",
    "runs": "runs",
    "target": "target",
    "paid_usd": Column(
        heading="paid", unit="$", format=lambda paid: "unknown" if paid is None else usd(paid)
    ),
    "lost": Column(heading="lost", words="Spot instances lost so far."),
    "why": "why",
    "driver": "driver",
}


#: Notes of an interrupted call, with instances and without.
RUN_ON = "Interrupted: these instances keep running. `slackwater act` continues with them, `slackwater act --down` stops them."
NOTHING_RUNS = "Interrupted: no instance runs. `slackwater act` continues."
#: Minutes after which evidence that waits for the warehouse is shown.
PATIENCE = 10
#: Why evidence is not stored yet.
WAITS = "the bill waits for the warehouse, which another process writes"
#: Seconds between two looks while everything is stopped.
STOPPING_PAUSE = 5.0


def act(
    *jobs: Annotated[str, option("Jobs to act on (default: every open job).", metavar="JOB...")],
    driver: Annotated[
        str | None,
        option("Driver of the settings, or a kind of driver (default: the settings).", metavar="NAME"),
    ] = None,
    every: Annotated[
        str, option("Longest time between two looks at the instances.", metavar="DURATION")
    ] = "30s",
    idle_slots: Annotated[
        int, option("Slots without a decision after which a job is stopped.", metavar="N", least=1)
    ] = 3,
    once: Annotated[bool, option("Act once and end; with --at as of that time.")] = False,
    dry_run: Annotated[bool, option("Print the calls of the drivers without making them.")] = False,
    adopt: Annotated[bool, option("Take over tagged instances that are not in the ledger, and end.")] = False,
    down: Annotated[bool, option("Stop all instances of the jobs, and end.")] = False,
    session: QueryAt = QueryAt(),
) -> Answer:
    """Launch, keep and stop the instances that the newest decisions state, until interrupted.

    After a loss of spot the rest of the slot is decided again at once; where no decision is possible,
    the standby plan runs. All instances of a job stop when it is over, at its deadline, when its budget
    is spent, and --idle-slots slots after the slot of its newest decision. Killed at any time, the
    command continues when it is started again.
    On SIGINT (Ctrl-C) or SIGTERM it finishes the present look, prints the running instances and their
    cost, and ends with exit code 130 or 143; a second signal ends it at once. Instances keep running;
    --down stops them.
    """
    from slackwater.flows.acting.ledger import LaunchLedger, ledger_file
    from slackwater.flows.acting.loop import ActLoop
    from slackwater.flows.acting.stopping import StopSignals
    from slackwater.flows.acting.targets import Limits
    from slackwater.flows.clock import now
    from slackwater.warehouse.errors import InputError

    pause = parsed_duration(every, "--every").to_pytimedelta()
    drivers = _Drivers(session, driver)
    world = drivers.world
    at = session.time
    clock: Callable[[], datetime] = (
        (lambda: at.to_pydatetime()) if at is not None else (lambda: now().to_pydatetime())
    )
    if down and adopt:
        raise InputError("--down with --adopt", expected="one of them", remedy="adopt first, then stop")
    with LaunchLedger(ledger_file(session.db), read_only=dry_run) as ledger, StopSignals() as signals:
        _check_names(session, [name for name in jobs if name not in ledger.jobs])
        acting = ActLoop(
            world=world,
            ledger=ledger,
            driver_of=drivers.of,
            limits=Limits(idle_slots=idle_slots, every=pause),
            only=frozenset(jobs),
            clock=clock,
        )
        if down:
            passes = _stop(acting, list(jobs) or list(ledger.jobs), clock, dry_run, signals)
        elif adopt:
            passes = acting.adopt(clock())
        elif once or dry_run or at is not None:
            passes = acting.run_pass(clock(), dry=dry_run)
        else:
            passes = _keep_acting(acting, clock, pause, jobs, signals)
    answer = _answer(passes, clock(), dry_run, drivers.without)
    if signals.exit_code is None:
        return answer
    note = RUN_ON if any(job_pass.held for job_pass in passes) else NOTHING_RUNS
    return replace(answer, exit_code=signals.exit_code, notes=[note, *answer.notes])


def _check_names(session: QueryAt, jobs: Sequence[str]) -> None:
    """Raise `JobError` for a name that is no job: `--down` with a misspelled name would stop nothing."""
    from slackwater.flows.ledger.jobs import find_job

    if jobs:
        with session.reading() as store:
            for name in jobs:
                find_job(store, name)


class _Drivers:
    """The drivers of a call, each created at first use; ``without`` are the jobs that have none."""

    def __init__(self, session: QueryAt, named: str | None) -> None:
        from slackwater.flows.acting.drivers import check_driver
        from slackwater.flows.acting.warehouse import ActingWarehouse
        from slackwater.flows.config import DriverSettings
        from slackwater.warehouse.errors import SettingsError

        known = session.config.drivers
        self._rules = [configured for configured in known if named in (None, configured.name)]
        if named is not None and self._rules:
            self._rules = [rule.model_copy(update={"jobs": ("*",)}) for rule in self._rules]
        elif named is not None:
            self._rules = [DriverSettings(name="given", kind=named, jobs=("*",))]
        if not self._rules:
            raise SettingsError(
                "no driver to launch instances with",
                expected="[[drivers]] in slackwater.toml, or --driver KIND",
                remedy="docs/acting-on-decisions.md has an example of each kind",
            )
        for rule in self._rules:
            check_driver(rule.kind)
        self._db = session.db
        only_simulated = {rule.kind for rule in self._rules} == {"simulated"}
        self.world = ActingWarehouse(session.db, session.config, examples=only_simulated)
        self._made: dict[str, Driver] = {}
        self.without: set[str] = set()

    def of(self, job: str) -> Driver | None:
        """Return the first driver whose patterns fit a job, None if no driver does."""
        from slackwater.flows.acting.drivers import DRIVERS, Place

        rule = next((rule for rule in self._rules if any(fnmatchcase(job, p) for p in rule.jobs)), None)
        if rule is None:
            self.without.add(job)
            return None
        if rule.name not in self._made:
            place = Place(name=rule.name, db=self._db, world_of=self.world.world_of)
            self._made[rule.name] = DRIVERS[rule.kind](rule.options, place)
        return self._made[rule.name]


def _keep_acting(
    acting: ActLoop,
    clock: Callable[[], datetime],
    pause: timedelta,
    jobs: Sequence[str],
    signals: StopSignals,
) -> list[JobPass]:
    """Make passes until all named jobs are over, or until a signal; return the last."""
    shown: dict[str, str] = {}
    passes: list[JobPass] = []
    say(
        f"acting on {', '.join(jobs) if jobs else 'every open job'}, a look every {pause.total_seconds():g} s at the latest; "
        "Ctrl-C leaves instances running, `slackwater act --down` stops them"
    )
    while True:
        start = clock()
        passes = _look(acting, start, passes, shown)
        if jobs and {job_pass.job for job_pass in passes if not job_pass.is_over}.isdisjoint(jobs):
            return passes
        if signals.wait(pause.total_seconds()):
            return passes


def _look(acting: ActLoop, start: datetime, before: list[JobPass], shown: dict[str, str]) -> list[JobPass]:
    """Make a pass and print its changes; if the warehouse cannot be read, print why and try again at the next look."""
    from slackwater.warehouse.errors import StoreError

    try:
        passes = acting.run_pass(start)
        lines = {job_pass.job: f"{job_pass.job}: {_state(job_pass, start)}" for job_pass in passes}
    except StoreError as error:
        if not shown:
            raise
        passes, lines = before, {"": f"nothing was changed: {error}"}
    for name, line in lines.items():
        if line != shown.get(name):
            say(f"{start:%H:%M:%S} {line}")
    shown |= {"": ""} | lines
    return passes


def _stop(
    acting: ActLoop, jobs: Sequence[str], clock: Callable[[], datetime], dry: bool, signals: StopSignals
) -> list[JobPass]:
    """Stop jobs; repeat until no instance of an interrupted launch can appear and the warehouse has the evidence."""
    shown = ""
    while True:
        at = clock()
        passes = acting.stop(jobs, at, "stopped by --down", dry=dry)
        if dry or all(job_pass.is_over or job_pass.error for job_pass in passes):
            return passes
        waits = [job_pass.job for job_pass in passes if job_pass.waits_since is not None]
        if waits and (text := f"{', '.join(waits)}: {WAITS}") != shown:
            say(text)
            shown = text
        if signals.wait(STOPPING_PAUSE):
            return passes


def _state(job_pass: JobPass, at: datetime) -> str:
    from slackwater.flows.acting.contract import count_by_kind, count_words

    return f"runs {count_words(count_by_kind(job_pass.held))}, target {count_words(_target(job_pass))}: {_why(job_pass, at)}"


def _target(job_pass: JobPass) -> Mapping[Any, int]:
    return {"on_demand": job_pass.target.on_demand, "spot": job_pass.target.spot}


def _answer(passes: Sequence[JobPass], at: datetime, dry: bool, without: set[str]) -> Answer:
    from slackwater.flows.acting.contract import count_by_kind, count_words

    rows: list[dict[str, Any]] = [
        {
            "job": job_pass.job,
            "driver": job_pass.driver,
            **{str(kind): n for kind, n in count_by_kind(job_pass.held).items()},
            "target": {"market": job_pass.target.market, **_target(job_pass)},
            "paid_usd": None if job_pass.paid_usd is None else round(job_pass.paid_usd, 6),
            "lost": job_pass.lost,
            "why": job_pass.target.why,
            "refused": job_pass.refused,
            "error": job_pass.error,
            "evidence_waits_since": job_pass.waits_since,
            "left_out": list(job_pass.left_out),
            "commands": list(job_pass.commands),
        }
        for job_pass in passes
    ]
    shown = [
        row
        | {
            "runs": count_words(count_by_kind(job_pass.held)),
            "target": count_words(_target(job_pass)),
            "why": _why(job_pass, at),
        }
        for row, job_pass in zip(rows, passes, strict=True)
    ]
    blocks: list[Block] = [Table("Jobs", shown, COLUMNS)] if rows and not dry else []
    blocks += [Notes([_calls(job_pass, at) for job_pass in passes])] if rows and dry else []
    notes = [f"no driver for job {name}" for name in sorted(without)]
    if waits := [] if dry else [job_pass.job for job_pass in passes if job_pass.waits_since is not None]:
        notes.append(f"{', '.join(waits)}: {WAITS}. The next `slackwater act` stores it.")
    failed = [row for row in rows if row["error"]]
    return Answer(
        title="Act",
        value={"at": at, "dry_run": dry, "jobs": rows, "without_driver": sorted(without)},
        about=_about(rows, dry),
        blocks=blocks,
        notes=notes,
        exit_code=1 if failed else 0,
    )


def _calls(job_pass: JobPass, at: datetime) -> str:
    """Return the calls of a dry run for a job in a line."""
    return f"{job_pass.job}: {'; '.join(job_pass.commands) or f'nothing to call, {_why(job_pass, at)}'}"


def _why(job_pass: JobPass, at: datetime) -> str:
    """Return the reason of a target, and all that went wrong."""
    since = job_pass.waits_since
    waits = "" if since is None or at - since < timedelta(minutes=PATIENCE) else WAITS
    left_out = [f"not in the bill: {why}" for why in job_pass.left_out]
    texts = (job_pass.target.why, job_pass.refused, job_pass.note, job_pass.error, waits, *left_out)
    return "; ".join(text for text in texts if text)


def _about(rows: Sequence[dict[str, Any]], dry: bool) -> str:
    from slackwater.flows.acting.targets import UNDECIDED

    if not rows:
        return "No job to act on: nothing runs and nothing is launched."
    spot, on_demand = (sum(row[kind] for row in rows) for kind in ("spot", "on_demand"))
    known = [row["paid_usd"] for row in rows if row["paid_usd"] is not None]
    unknown = f", unknown for {plural(len(rows) - len(known), 'job')}" if len(known) < len(rows) else ""
    text = (
        f"{spot} spot and {on_demand} on-demand instances run for {plural(len(rows), 'job')}; "
        f"${usd(sum(known))} paid so far{unknown}."
    )
    if all(UNDECIDED in row["why"] for row in rows):
        text += " No turn has decided yet: `slackwater run` runs one, `slackwater serve` one in every slot."
    calls = sum(len(row["commands"]) for row in rows)
    return f"{text} Dry run: {plural(calls, 'call')} would be made." if dry else text


def progress(
    job: Annotated[str, option("Name of the job.", metavar="JOB")],
    /,
    *,
    watch: Annotated[
        Path, option("Folder of the trainer: its checkpoints and trainer_state.json.", metavar="FOLDER")
    ],
    every: Annotated[str, option("Time between two looks.", metavar="DURATION")] = "60s",
    once: Annotated[bool, option("Look once and end; with --at as of that time.")] = False,
    session: QueryAt = QueryAt(),
) -> Answer:
    """Report the progress of a job from the folder of its trainer, until it has finished.

    A report states the work that the newest checkpoint saved. With the callback of
    slackwater.flows.acting.trainer, measured boot and restart minutes replace the assumed minutes,
    and the work that a loss now would cost is shown. An error of a later look, such as a busy warehouse,
    is printed, and the next look tries again.
    """
    from slackwater.flows.acting.progress import read_progress
    from slackwater.flows.acting.reporting import report_progress
    from slackwater.flows.acting.stopping import StopSignals
    from slackwater.flows.clock import now
    from slackwater.flows.ledger.jobs import find_job
    from slackwater.warehouse.errors import InputError, SlackwaterError

    if not watch.is_dir():
        raise InputError(f"no folder {watch}", expected="the output folder of the trainer")
    with session.reading() as store:
        find_job(store, job)  # a wrong name is known now, not at the first checkpoint
    pause, at, shown = parsed_duration(every, "--every").to_pytimedelta(), session.time, ""
    with StopSignals() as signals:
        while True:
            clock = (now() if at is None else at).to_pydatetime()
            try:
                found = read_progress(watch)
                row = None if found is None else report_progress(session.db, job, found, clock)
                text = f"{job}: no step or checkpoint in {watch} yet" if row is None else row["told"]
            except SlackwaterError as error:
                if once or at is not None or not shown:
                    raise
                found, row, text = None, None, f"{job}: {error}; looking again in {every}"
            ends = once or at is not None or (found is not None and found.is_finished)
            if not ends and text != shown:
                say(text)
                shown = text
            if ends or signals.wait(pause.total_seconds()):
                value = row or {"job": job, "told": text}
                code = signals.exit_code or 0
                return Answer(title=f"Progress of {job}", value=value, about=text, exit_code=code)
