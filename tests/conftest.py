"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Under nohup, or in the background of a script, these are ignored, and so they would be in every program that
# the tests start: tests of Ctrl-C and of a hang-up would then wait for something that cannot come.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("PERFSCOPE_VERDICT", "0")  # hundreds of runs are made, and few tests look at it


# Other work on the machine makes examples slow to generate; what a test looks at is never its own speed.
hypothesis.settings.register_profile(
    "perfscope", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("perfscope")

_HERE = Path(__file__).parent
_LISTED = [
    (marker, *line.split(" ", 1))
    for marker in ("slow", "sweep")
    for line in (_HERE / f"{marker}.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases of slow.txt and sweep.txt.

    Raises:
        UsageError: a line names no test of a file that was collected whole.
    """
    of_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        of_file.setdefault(item.path.relative_to(_HERE).as_posix(), []).append(item)
    partly = config.getoption("lf", False) or any("::" in argument for argument in config.args)
    for marker, file, name in _LISTED:
        named = [item for item in of_file.get(file, []) if name in item.name]
        if file in of_file and not (named or partly):
            raise pytest.UsageError(f"tests/{marker}.txt: no test of {file} has {name!r} in its name")
        for item in named:
            item.add_marker(marker)


def pytest_collection_finish() -> None:
    """What was collected stays: Python's cycle collector need not look at it during each test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup` (`make test-slow`), tests that share a start run in one worker."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.support.sharing import SharedStarts

    return SharedStarts(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The fault matrix as a table: how many cases were the same as without perfscope."""
    equal: Counter[tuple[str, str]] = Counter()
    cases: Counter[tuple[str, str]] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if name == "fault matrix":
                    fault, moment, same = value
                    cases[fault, moment] += 1
                    equal[fault, moment] += same
    if not cases:
        return
    terminalreporter.section("fault matrix: fault, moment, equal of cases")
    for (fault, moment), count in sorted(cases.items()):
        terminalreporter.line(f"{fault:10} {moment:7} {equal[fault, moment]:3} of {count}")
    total, same = cases.total(), equal.total()
    terminalreporter.line(f"{total} cases: {same} equal, {total - same} not equal")
