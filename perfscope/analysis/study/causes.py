"""What the runs' own reports say bounds them, as far as a comparison wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfscope.analysis.results import Finding
from perfscope.analysis.study.results import StudyRun
from perfscope.messages.comparison.schemes import report_verdict
from perfscope.vocabulary.findings import ABOUT_THE_RECORDING

KEPT = 3  # findings of a run that a study carries


def cause_of(run: StudyRun) -> Finding | None:
    """The run's verdict; where that is about the recording alone, the first finding that is not, if any."""
    return next(
        (
            finding
            for finding in run.findings
            if finding.id not in ABOUT_THE_RECORDING and finding.symptom_of is None
        ),
        next(iter(run.findings), None),
    )


def common_cause(runs: Sequence[StudyRun]) -> tuple[StudyRun, Finding] | None:
    """The cause that most repeats have (of several the first run's), with a run that has it."""
    causes = [(run, cause) for run in runs if (cause := cause_of(run)) is not None]
    if not causes:
        return None
    count = Counter(cause.id for _, cause in causes)
    return max(causes, key=lambda pair: count[pair[1].id])  # max keeps the first of equals


def verdict_of_report(where: str, run: StudyRun, cause: Finding) -> str:
    """ "At 4 ranks perfscope's verdict: 4 threads want 2 CPUs." """
    return report_verdict(where, cause.text.title, is_first=run.findings[0] is cause)
