"""The end of a check: its result is shown and kept, and becomes an exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.cli.check.output import add_to_history, emit, say, write_text
from perfscope.cli.check.runs import CHECK_JSON
from perfscope.errors import PerfscopeError
from perfscope.gate.results import CheckResult, Outcome
from perfscope.rundir.shell import quote

if TYPE_CHECKING:
    from perfscope.cli.check.options import CheckOptions

EXIT_FAILED = Outcome.FAILED.value
_KEEPS_NOTHING = (Outcome.FAILED, Outcome.NO_BASELINE)


def prepare_history(asked: CheckOptions) -> None:
    """Opens the history before anything is trained for it. Raises PerfscopeError: it cannot be written."""
    if asked.history is None:
        return
    from perfscope.gate.store import BaselineError, open_store

    try:
        open_store(asked.history, create=True)
    except BaselineError as error:
        if _is_baseline(asked.history, asked):
            raise
        raise PerfscopeError(str(error)) from error


def finish(result: CheckResult, asked: CheckOptions, folder: Path | None) -> int:
    """Explains, shows and keeps the result; the exit code.

    The verdict stands whatever cannot be written: a regression stays exit code 1. Of any other outcome the
    code says that something is missing, or CI would take it for complete.

    Args:
        folder: of the check's runs; None = they were there before.
    """
    from perfscope.gate.explain.explain import explain

    if result.outcome not in _KEEPS_NOTHING and result.base.runs and result.head.runs:
        explanation = explain(result.base.runs, result.head.runs, result.metrics)
        result = replace(result, explanation=explanation)
    problems: list[tuple[str, int]] = []
    if folder is not None:
        try:
            keep_result(result, folder)
        except PerfscopeError as error:
            problems.append((str(error), EXIT_FAILED))
    output_problems = emit(result, as_json=asked.as_json, formats=asked.formats)
    problems += [(problem, EXIT_FAILED) for problem in output_problems]
    problems += _add_to_history(result, asked)
    if folder is not None:
        say(f"runs and {CHECK_JSON} are in {folder}")
        if result.outcome is Outcome.REGRESSION and result.pairs:
            last = quote(str(folder / result.head.runs[-1].name))
            say(f"to look closer: perfscope report {last}")
    if not problems:
        return result.outcome.value
    say("; ".join(problem for problem, _ in problems))
    return result.outcome.value if result.outcome is Outcome.REGRESSION else problems[-1][1]


def keep_result(result: CheckResult, folder: Path) -> None:
    """Writes check.json, from which `perfscope check FOLDER` knows the runs. Raises PerfscopeError."""
    from perfscope.reports.gate.registry import FORMATS

    write_text(folder / CHECK_JSON, FORMATS["json"](result))


def keep_so_far(result: CheckResult, folder: Path) -> None:
    """The same while the check goes on, for one that is killed. It is no verdict: nothing was planned to be
    judged here.

    Raises:
        PerfscopeError: it cannot be written.
    """
    keep_result(
        replace(
            result,
            outcome=Outcome.INCONCLUSIVE,
            headline=f"Inconclusive: the check did not come to its end; `perfscope check {folder}` judges "
            "what there is.",
            stopped="the check was ended from outside",
        ),
        folder,
    )


def _add_to_history(result: CheckResult, asked: CheckOptions) -> list[tuple[str, int]]:
    """What went wrong, and the exit code that says so."""
    if asked.history is None or result.outcome in _KEEPS_NOTHING or not result.head.runs:
        return []
    is_baseline = _is_baseline(asked.history, asked)
    if is_baseline and result.outcome is not Outcome.PASS:
        say(
            f"runs are not added to {asked.history}: it is the baseline, too, and would take a check that is "
            f"no pass ({result.outcome.word}) for normal from now on"
        )
        return []
    try:
        add_to_history(result, asked.history)
    except PerfscopeError as error:
        return [
            (f"runs are not added to the history: {error}", error.exit_code if is_baseline else EXIT_FAILED)
        ]
    except OSError as error:
        return [(f"runs are not added to the history {asked.history}: {error.strerror}", EXIT_FAILED)]
    return []


def _is_baseline(history: Path, asked: CheckOptions) -> bool:
    """Also where another base was named: the settings' baseline is what the next check is compared with."""
    return any(
        baseline is not None and _same(history, baseline)
        for baseline in (asked.baseline, asked.settings.baseline)
    )


def _same(first: Path, other: Path) -> bool:
    try:
        return first.samefile(other)
    except OSError:  # one of them is not there yet
        return first.resolve() == other.resolve()
