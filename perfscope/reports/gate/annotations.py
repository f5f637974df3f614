"""Workflow commands of GitHub Actions: `::error title=…::…`, `::warning …`, `::notice …`, one a line.

Format: https://docs.github.com/actions/reference/workflow-commands-for-github-actions; escaping as in
@actions/core (packages/core/src/command.ts): `%`, CR and LF in messages as %25, %0D, %0A, in properties
also `:` as %3A and `,` as %2C. They are commands only on the log of the step, so they belong on stdout, not
in a file.

A regression, a failed measurement and a missing baseline are errors; inconclusive is a warning (nothing was
shown to be wrong, nothing to be right), and so is a pass with doubt; a pass is a notice. Metrics that only
warn are warnings beside it.
"""

from __future__ import annotations

from perfscope.gate.results import CheckResult, Outcome
from perfscope.reports.gate import wording

LEVEL = {
    Outcome.PASS: "notice",
    Outcome.REGRESSION: "error",
    Outcome.INCONCLUSIVE: "warning",
    Outcome.NO_BASELINE: "error",
    Outcome.FAILED: "error",
}


def render_annotations(result: CheckResult) -> str:
    """The verdict with its cause, then one warning a metric that warns; a newline after each."""
    name = wording.shown(result.name)
    level = "warning" if wording.is_doubtful(result) else LEVEL[result.outcome]
    lines = [command(level, f"{wording.WORD[result.outcome]}: {name}", "\n".join(_message(result)))]
    lines += [command("warning", f"Slower: {name}", text) for text in wording.warnings_of(result)]
    return "".join(f"{line}\n" for line in lines)


def _message(result: CheckResult) -> list[str]:
    lines = [wording.verdict_line(result), *wording.reasons_of(result)]
    explanation = wording.tells(result)
    if explanation is not None:
        lines += [
            wording.sentence(explanation.headline),
            *wording.weighty(result),
            wording.sentence(explanation.action),
        ]
    return [line for line in lines if line]


def command(level: str, title: str, message: str) -> str:
    """One workflow command."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
