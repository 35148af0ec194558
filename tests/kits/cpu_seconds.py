"""CPU seconds by test file: `pytest --cpu 40` prints the 40 files that take most, those of all workers together.

Unlike durations they hardly depend on what else runs. Processes that a test starts count once it has waited for them.
"""

import os
from collections import Counter

import pytest

BEGUN = pytest.StashKey[float]()
SPENT: Counter[str] = Counter()


def spent() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def pytest_addoption(parser):
    parser.addoption(
        "--cpu", type=int, default=0, metavar="N", help="print the N files that take most CPU time"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[BEGUN] = spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "teardown":
        item.user_properties.append(("cpu_seconds", spent() - item.stash.get(BEGUN, spent())))
    return (yield)


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        SPENT[report.nodeid.partition("::")[0]] += dict(report.user_properties).get("cpu_seconds", 0.0)


def pytest_terminal_summary(terminalreporter, config):
    if most := config.getoption("--cpu"):
        terminalreporter.section(f"{sum(SPENT.values()):.1f} CPU seconds in tests")
        for file, seconds in SPENT.most_common(most):
            terminalreporter.write_line(f"{seconds:7.1f} {file}")
