"""A diff of two runs that may not be held against each other: their facts stay, what relates them goes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.study.results import REFUSE, Problem, RunDiff, StudyRun
from perfscope.messages.study import named

# Refusals that leave the diff standing: about factors that are taken out of it beforehand.
_BESIDE = ("negative_efficiency",)
_DIFFER = {
    "other_model": "models",
    "other_dtype": "data types",
    "other_batch": "batches",
    "other_machine": "machines",
    "unequal_world_sizes": "numbers of ranks",
}
_OF_RUN = {
    "running": "not closed: still written, or killed",
    "missing_ranks": "without the records of all ranks",
    "no_speed": "without a known speed",
    "no_label": "without what runs are grouped by",
}
_OF_BOTH = {
    "same_run": "they are one and the same run",
    "no_mode": "they differ in ranks, and what scaling was meant is not known",
    "mixed_settings": "they are of several settings",
    "no_scaling": "no scaling can be formed of them",
}


def forbidding(problems: Sequence[Problem], runs: Sequence[StudyRun]) -> list[Problem]:
    """Of `problems` those for which two runs' diff must form no ratio.

    Where neither has samples/s, their steps are compared instead: that alone forbids nothing.
    """
    steps_only = all(run.samples_per_s is None and run.step_ns is not None for run in runs)
    beside = (*_BESIDE, "no_speed") if steps_only else _BESIDE
    return [one for one in problems if one.severity == REFUSE and one.id not in beside]


def refused_diff(diff: RunDiff, problems: Sequence[Problem]) -> RunDiff:
    """`diff` without anything that holds one run against the other but plain differences of facts.

    Args:
        diff: as run_diff has it.
        problems: what forbids it, at least one.
    """
    why = "; ".join(_reasons(problems))
    sections = tuple(
        replace(section, rows=tuple(replace(row, ratio=None) for row in section.rows))
        for section in diff.sections
    )
    headline = f"{named([diff.before, diff.after])} are not compared: {why}. Their facts stand side by side."
    return replace(diff, headline=headline, sections=sections, moved="", action="", refused=why)


def _reasons(problems: Sequence[Problem]) -> list[str]:
    ids = dict.fromkeys(one.id for one in problems)
    differ = [_DIFFER[one] for one in ids if one in _DIFFER]
    said = [f"their {named(differ)} differ"] if differ else []
    for id_, words in _OF_RUN.items():
        labels = dict.fromkeys(label for one in problems if one.id == id_ for label in one.runs)
        if labels:
            said.append(f"{named(list(labels))} {'is' if len(labels) == 1 else 'are'} {words}")
    said += [_OF_BOTH[one] for one in ids if one in _OF_BOTH]
    return said or ["for the reason given below"]
