"""Capacity probes by users: a command or function in a child process without a shell, bounded in time and output."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from slackwater.warehouse.amounts import LARGEST_COUNT
from slackwater.warehouse.errors import FetchError, MarketError
from slackwater.warehouse.history import Market
from slackwater.warehouse.sources.contract import Kind, Options, Row, Texts, label_option, pack
from slackwater.warehouse.sources.live.contract import (
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    PartFailed,
)
from slackwater.warehouse.sources.live.transport import Transport
from slackwater.warehouse.times import steady_seconds

#: Maximum output in bytes, ample for a count and its attributes.
LARGEST_OUTPUT = 1024 * 1024
_ENTRY = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_RUNNER = Path(__file__).with_name("run_probe.py")
_FIELDS = ("available", "capacity", "price_usd", "on_demand_usd", "truncated")


class ProbeOptions(Options):
    """Command or function to run, and its markets."""

    command: tuple[str, ...] = Field(
        (), description="program and arguments, a list; the market is added as the last argument"
    )
    entry: str = Field(
        "",
        validate_default=True,
        description="module:function instead of a command; it runs in a process of its own",
    )
    markets: Texts = Field(
        (), validate_default=True, description="markets to ask for, provider/region/zone/instance_type"
    )
    capacity: int = Field(
        0, ge=0, le=LARGEST_COUNT, description="largest count the probe can see, if it does not say itself"
    )
    kind: Literal["probe", "held"] = Field(
        "probe", description="probe: what could be launched (default), or held: what is held"
    )
    timeout_seconds: float = Field(
        60.0, ge=0.1, le=3600, description="how long one answer may take (default: 60)"
    )
    source: str = label_option("probe")

    @field_validator("command", mode="before")
    @classmethod
    def _list(cls, command: object) -> object:
        if not isinstance(command, list | tuple) or not all(isinstance(word, str) for word in command):
            raise ValueError("a list: the program, then its arguments")
        return tuple(command)

    @field_validator("entry")
    @classmethod
    def _either(cls, entry: str, info: ValidationInfo) -> str:
        if "command" in info.data and bool(info.data["command"]) == bool(entry):
            raise ValueError("a command or an entry, one of them")
        if entry and not _ENTRY.match(entry):
            raise ValueError("module:function")
        return entry

    @field_validator("markets")
    @classmethod
    def _check_markets(cls, markets: tuple[str, ...]) -> tuple[str, ...]:
        if not markets:
            raise ValueError("at least one market")
        for text in markets:
            try:
                Market.parse(text)
            except MarketError as error:
                raise ValueError(f"provider/region/zone/instance_type ({error})") from error
        return markets


class Probe(LiveSource[ProbeOptions]):
    """A snapshot per market, in sequence; parts are markets.

    The command runs without a shell, with the market as last argument and the request as JSON on
    standard input; it prints a whole number, or an object with ``available`` and optionally
    ``capacity``, ``truncated``, ``price_usd`` and ``on_demand_usd``. A function gets the request as
    keyword arguments and returns the same. Any other outcome is a failed probe, of which nothing is
    stored: a missing answer does not mean 0 instances.
    """

    name = "probe"
    form = ProbeOptions
    example = Example(options={"command": ["python3", "-c", "print(3)"], "markets": ["own/r1/z1/h100"]})

    def pages(
        self, options: ProbeOptions, request: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield the answer of each market; a failing probe yields `PartFailed`, and the other markets continue."""
        for market in map(Market.parse, options.markets):
            if request.is_done(market.key):
                continue
            transport.requests += 1
            try:
                row = _answer(options, market, request)
            except FetchError as error:
                yield PartFailed(part=market.key, reason=str(transport.printable(error)))
            else:
                batches = pack(_rows(row), _constants(options, market, request))
                yield FetchedPage(part=market.key, batches=tuple(batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """Result of a command: exit code (negative: killed by that signal), standard output and standard error."""

    code: int
    out: str
    err: str


def run_command(command: Sequence[str], *, given: str, seconds: float) -> CommandOutput:
    """Run a command with ``given`` on its standard input.

    Raises `FetchError` if it cannot be started, takes longer than ``seconds`` or writes more than
    `LARGEST_OUTPUT` bytes. All its child processes are killed at the end.
    """
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise FetchError(
            f"probe {command[0]!r} cannot be started: {error.strerror if isinstance(error, OSError) else error}",
            remedy="name a program that can be run",
        ) from error
    with child:
        try:
            end = steady_seconds() + seconds
            streams = _talk(child, given.encode(), end, seconds)
            code = child.wait(timeout=max(0.1, end - steady_seconds()))
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"probe {command[0]!r} did not end in {seconds:g} s") from error
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
    out, err = (stream.decode("utf-8", "replace") for stream in streams)
    return CommandOutput(code=code, out=out, err=err)


def _talk(child: subprocess.Popen[bytes], given: bytes, end: float, seconds: float) -> tuple[bytes, bytes]:
    """Write the request and read both streams to their ends; raises `subprocess.TimeoutExpired` at the stopwatch time ``end``."""
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise FetchError("probe without streams")
    with suppress(BrokenPipeError):  # a command that reads no input may have ended
        child.stdin.write(given)
        child.stdin.close()
    read = {child.stdout: bytearray(), child.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream in read:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            left = end - steady_seconds()
            ready = waiting.select(left) if left > 0 else []
            if not ready:
                raise subprocess.TimeoutExpired(child.args, seconds)
            for key, _ in ready:
                stream = child.stdout if key.fileobj is child.stdout else child.stderr
                part = os.read(key.fd, 65_536)
                if not part:
                    waiting.unregister(stream)
                read[stream] += part
            if sum(map(len, read.values())) > LARGEST_OUTPUT:
                raise FetchError(f"probe wrote more than {LARGEST_OUTPUT:,} bytes", expected="a count")
    return bytes(read[child.stdout]), bytes(read[child.stderr])


def _answer(options: ProbeOptions, market: Market, request: FetchRequest) -> dict[str, Any]:
    """Return the probe's answer for a market; raises `FetchError` for a failure or an invalid answer."""
    question = json.dumps({"market": market.key, "at": request.at.isoformat()})
    command = (
        (*options.command, market.key)
        if options.command
        else (sys.executable, "-P", str(_RUNNER), options.entry)
    )
    done = run_command(command, given=question, seconds=options.timeout_seconds)
    if done.code != 0:
        raise FetchError(f"probe {command[0]!r} ended with {_ending(done)}", expected="exit code 0")
    return _read_answer(done.out)


def _ending(done: CommandOutput) -> str:
    lines = [line.strip() for line in done.err.splitlines() if line.strip()]
    words = f"signal {-done.code}" if done.code < 0 else f"exit code {done.code}"
    return f"{words}: {lines[-1][:200]}" if lines else words


def _read_answer(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise FetchError(
            f"probe printed {text.strip()[:80]!r}", expected='a whole number, or {"available": ...}'
        ) from error
    if not isinstance(found, dict):
        found = {"available": found}
    count = found.get("available")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**31:
        raise FetchError(f"probe said {str(count)[:80]!r} instances", expected="a whole number of at least 0")
    if unknown := sorted(set(found) - set(_FIELDS)):
        raise FetchError(f"probe said {unknown[0][:40]!r}", expected=f"only {', '.join(_FIELDS)}")
    return found


def _constants(options: ProbeOptions, market: Market, request: FetchRequest) -> dict[str, Any]:
    return {
        "source": options.source,
        "provider": market.provider,
        "region": market.region,
        "zone": market.zone,
        "instance_type": market.instance_type,
        "product": "Linux/UNIX",
        "observed_at": request.at,
        "capacity": options.capacity or None,
        "gap_seconds": int(request.every.total_seconds()),
        "kind": options.kind,
        "truncated": False,
        "file": f"{options.source}:{market.key}",
        "line": 1,
    }


def _rows(answer: Mapping[str, Any]) -> Iterator[tuple[Kind, Row]]:
    counted = {name: answer[name] for name in ("available", "capacity", "truncated") if name in answer}
    yield "availability", counted
    priced = {name: answer[name] for name in ("price_usd", "on_demand_usd") if name in answer}
    if "price_usd" in priced:
        yield "price", priced
