"""The sentence over a whole comparison, what its runs are compared by, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted
from perfscope.vocabulary.comparison import ProblemKind

STATED = "stated with --by"
BY_FRAMEWORK = "the runs differ in their framework"
BY_SIZE_AND_SCHEME = "the runs differ in number of ranks and in scheme: both are compared"
BY_SIZE = "the runs differ in their number of ranks"
BY_SCHEME = "the runs differ in their scheme"
BY_NOTHING = "nothing that runs are grouped by differs: number of ranks, scheme or labels"
SEE_PROBLEMS = "see the problems"
# What to do about refusals after which nothing is left to compare.
REMEDIES = {
    ProblemKind.OTHER_MODEL: "Name runs of one model.",
    ProblemKind.OTHER_MACHINE: "Name runs of one machine.",
    ProblemKind.OTHER_DTYPE: "Name runs of one data type.",
    ProblemKind.OTHER_BATCH: "Name runs with equal samples per step, of several numbers of ranks, or use "
    "--by batch.",
    ProblemKind.UNEQUAL_WORLD_SIZES: "Name runs on equally many ranks.",
    ProblemKind.SAME_RUN: "Name two different runs.",
    ProblemKind.NO_LABEL: "Group by what two runs or more have.",
    ProblemKind.RUNNING: "Compare again when the runs have ended.",
    ProblemKind.MISSING_RANKS: "Record the runs again with all their ranks.",
    ProblemKind.NO_SPEED: "Record again with --samples-per-step, so that a speed is known.",
    ProblemKind.NO_MODE: "State what scaling was meant with --mode.",
}


def by_label(name: str) -> str:
    return f"the runs differ in their label {name}"


def by_labels(names: Sequence[str]) -> str:
    return f"the runs differ in several labels ({', '.join(names)}): choose one with --by label:NAME"


def more_steps(action: str) -> str:
    """The action where speeds are of traced steps."""
    return f"Train more steps, so that untraced ones are counted; as it stands: {action}"


def of_series(name: str, sentence: str) -> str:
    """One of several series."""
    return f"{name}: {sentence}"


def refused(num_runs: int, num_reasons: int) -> str:
    reasons = "a reason" if num_reasons == 1 else f"{num_reasons} reasons"
    return f"{counted(num_runs, 'run')}, not compared, for {reasons} given below."


def not_compared_by(num_runs: int, by: str, why: str) -> str:
    return f"{num_runs} runs, not compared by {by}: {why}."


def choose(num_runs: int) -> str:
    return f"{num_runs} runs; choose what to compare them by with --by."
