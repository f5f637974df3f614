"""A diff of two runs that may not be compared: their facts stay, what relates them is removed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.study.results import REFUSE, Problem, RunDiff, StudyRun
from perfscope.messages.comparison.diff import refusal, refused
from perfscope.vocabulary.comparison import ProblemKind

# Refusals that leave the diff standing: about factors that are taken out of it beforehand.
_BESIDE = (ProblemKind.NEGATIVE_EFFICIENCY,)


def forbidding(problems: Sequence[Problem], runs: Sequence[StudyRun]) -> list[Problem]:
    """Of `problems` those for which two runs' diff must form no ratio.

    Where neither has samples/s, their steps are compared instead: that alone forbids nothing.
    """
    steps_only = all(run.samples_per_s is None and run.step_ns is not None for run in runs)
    beside = (*_BESIDE, ProblemKind.NO_SPEED) if steps_only else _BESIDE
    return [problem for problem in problems if problem.severity == REFUSE and problem.id not in beside]


def refused_diff(diff: RunDiff, problems: Sequence[Problem]) -> RunDiff:
    """`diff` without anything that compares one run with the other but plain differences of facts.

    Args:
        diff: as run_diff has it.
        problems: what forbids it, at least one.
    """
    labels = {
        kind: list(
            dict.fromkeys(label for problem in problems if problem.id == kind for label in problem.runs)
        )
        for kind in dict.fromkeys(problem.id for problem in problems)
    }
    why = refusal(list(labels), labels)
    sections = tuple(
        replace(section, rows=tuple(replace(row, ratio=None) for row in section.rows))
        for section in diff.sections
    )
    headline = refused([diff.before, diff.after], why)
    return replace(diff, headline=headline, sections=sections, moved="", action="", refused=why)
