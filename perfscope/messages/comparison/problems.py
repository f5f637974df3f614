"""Why runs may not be compared, or only with care."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.messages.efficiency import TITLES
from perfscope.messages.lists import counted
from perfscope.messages.sentences import capital
from perfscope.messages.study import crowd, named, ranks
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import ProblemKind
from perfscope.vocabulary.efficiency import PopFactor

# Problems that several runs may share; {names} and {were} are filled in by `shared`.
_SHARED = {
    ProblemKind.DISTURBED: "{names} {were} disturbed by something else on the machine: repeat, or read with "
    "care.",
    ProblemKind.NO_WINDOWS: "{names} {were} recorded without a traced step: step composition, efficiency "
    "factors and what grew are missing there.",
    ProblemKind.TRACED_SPEED: "{names} {were} too short: the steps their samples/s count were traced, which "
    "slows them; train more steps.",
    ProblemKind.UNEVEN_RANKS: "The ranks of {names} recorded unequal numbers of steps: what follows the "
    "shortest is not compared between ranks.",
    ProblemKind.DIVERGED: "{names} diverged: that speed trains nothing.",
}
# What differs between runs, as a sentence names it.
_FACTS = {
    ProblemKind.OTHER_MODEL: "models",
    ProblemKind.OTHER_DTYPE: "data types",
    ProblemKind.OTHER_MACHINE: "machines",
    ProblemKind.OTHER_BATCH: "batches",
    ProblemKind.OTHER_VERSION: "Versions of perfscope",
    ProblemKind.OTHER_PACKAGES: "Versions of libraries",
    ProblemKind.OTHER_THREADS: "Threads per rank",
    ProblemKind.OTHER_KERNEL: "Kernels",
    ProblemKind.STEP_COUNTS: "Steps",
}
_INCOMPLETE = {
    Cause.NOT_CLOSED: "it was not closed: still being written, or perfscope was killed",
    Cause.CUT_SHORT: "{how}",
    Cause.ENDED_BY_SIGNAL: "it was ended by signal {signal}",
    Cause.EXIT_CODE: "it ended with exit code {code}",
    Cause.RANKS_MISSING: "{count} of {total} ranks are missing",
    Cause.FILES_NOT_CLOSED: "rank {ranks} did not close its files",
}
Sets = Mapping[str, Sequence[str]]  # value -> labels of the runs that have it


def shared(kind: ProblemKind, labels: Sequence[str], num_runs: int) -> str:
    """`labels`: of the runs that have the problem, of `num_runs` in the study."""
    runs = crowd(labels, num_runs)
    text = _SHARED[kind].format(names=runs, were="was" if len(labels) == 1 else "were")
    # "all 12 runs" begins a sentence; a run's name keeps its first letter.
    return text if runs == named(labels) else capital(text)


def incomplete_reason(cause: Cause, **facts: object) -> str:
    """Why a run is only a part."""
    return _INCOMPLETE[cause].format(**facts)


def no_speed(label: str, why: str) -> str:
    because = f": {why}" if why else ""
    return f"{label} has no samples/s{because}; it is left out of every ratio of samples/s."


def same_run(label: str, kept: str) -> str:
    return f"{label} is in the study already, as {kept}: it counts once, not as a repeat."


def running(label: str) -> str:
    return (
        f"{label} was not closed: it is still being written, or perfscope was killed. What it has so far is "
        "listed, but no ratio uses it; compare again when it has ended."
    )


def missing_ranks(label: str, num_seen: int, size: int) -> str:
    return (
        f"{label} recorded {num_seen} of {ranks(size)}: its figures would be those of a part of the job, so "
        "that no ratio uses it."
    )


def imported_ranks(label: str, num_seen: int, size: int | None) -> str:
    return (
        f"{label} is imported from the traces of {num_seen} of {ranks(size)}: nothing is known of the others."
    )


def incomplete(label: str, reasons: Sequence[str]) -> str:
    return f"{label} is incomplete: {'; '.join(reasons)}. Its figures cover what was written."


def bad_factors(label: str, factors: Mapping[str, float]) -> str:
    figures = ", ".join(f"{TITLES[PopFactor(name)].lower()} {value:.3g}" for name, value in factors.items())
    return (
        f"{label}: {figures} cannot be a share of anything (0 to 1); the clocks or the traces of this run "
        "disagree. These are shown as missing."
    )


def libraries_of(group: str, sets: Sets) -> str:
    return f"{group or 'The others'} ran with several versions of libraries: {_listed(sets)}."


def doubtful(kind: ProblemKind, sets: Sets) -> str:
    """A difference that makes comparing doubtful."""
    return f"{_FACTS[kind]} differ: {_listed(sets)}. A difference in speed may come from there."


def step_counts(sets: Sets, few: Sequence[str], counts: tuple[int, int], most: int) -> str:
    """`few`: runs with far fewer steps than `most`; `counts`: the least and the most that they have."""
    text = f"The runs trained unequal numbers of steps: {_listed(sets)}; compare losses by samples."
    if few:
        span = f"{counts[0]:,}" + (f" to {counts[1]:,}" if counts[1] > counts[0] else "")
        text += f" The figures of {named(few)} rest on fewer steps, {span} against {most:,}."
    return text


def steps(num: int) -> str:
    return counted(num, "step")


def samples_per_step(num: int) -> str:
    return f"{counted(num, 'sample')} per step"


def threads_per_rank(num: int) -> str:
    return f"{counted(num, 'thread')} per rank"


def unknown_machine(labels: Sequence[str], num_runs: int) -> str:
    runs = crowd(labels, num_runs)
    return f"The machine of {runs} was not recorded: whether it is that of the others is not known."


def explained_difference(kind: ProblemKind, sets: Sets, by: str | None) -> str:
    """A difference that `--by` names."""
    return f"{_differ(kind, sets)}; --by {by} names it, so that they are compared all the same."


def refused_difference(kind: ProblemKind, sets: Sets, by: str | None) -> str:
    """`by`: what `--by` would have to name to allow it; None: nothing would."""
    allow = "" if by is None else f" To compare them all the same: --by {by}."
    return f"{_differ(kind, sets)}; no ratio is formed between them.{allow}"


def shown_difference(kind: ProblemKind, sets: Sets) -> str:
    """A difference that is shown and forbids nothing."""
    return f"{_differ(kind, sets)}; the figures stand side by side, but not like for like."


def _differ(kind: ProblemKind, sets: Sets) -> str:
    return f"The runs' {_FACTS[kind]} differ: {_listed(sets)}"


def _listed(sets: Sets) -> str:
    return "; ".join(f"{value} ({named(labels)})" for value, labels in sets.items())


def other_command(labels: Sequence[str]) -> str:
    return (
        f"{named(labels)} count as repeats of one setting, but their commands differ: if they are none, "
        "give each setting a label (perfscope run --label) and compare with --by label:NAME."
    )


def only_one(label: str) -> str:
    return f"A study compares runs; {label} is the only one: add others, or use `perfscope report`."


def unequal_sizes(
    group: str, sizes: Mapping[str, Sequence[int | None]], by: str, *, some_compared: bool
) -> str:
    """Numbers of ranks that differ.

    Args:
        group: what runs of one value are called ("scheme"); "" where each value has one number of ranks.
        sizes: value -> its numbers of ranks.
        by: what `--by` would have to name to allow it.
        some_compared: runs on equally many are.
    """
    listed = "; ".join(f"{name}: {', '.join(map(str, of))} ranks" for name, of in sorted(sizes.items()))
    end = "only runs on equally many are compared" if some_compared else "none of them can be compared"
    whose = f"The runs of one {group}" if group else "The runs"
    return (
        f"{whose} have unequal numbers of ranks ({listed}); {end}. To compare them all the same: --by {by}."
    )


def no_value(labels: Sequence[str], by: str, *, is_label: bool) -> str:
    """Runs without what they are compared by."""
    has = "has" if len(labels) == 1 else "have"
    what = f"no label {by}" if is_label else f"no {by}"
    return f"{named(labels)} {has} {what}: left out of the comparison by {by}."


def left_out(reasons: Mapping[str, Sequence[str]], most: int) -> str:
    """Runs that were named and are not in the study.

    Args:
        reasons: why -> their names; a reason that has a name in it is not given another.
        most: reasons that are listed.
    """
    given = [
        reason if any(name in reason for name in names) else f"{named(names)} ({reason})"
        for reason, names in list(reasons.items())[:most]
    ]
    num_runs = sum(map(len, reasons.values()))
    num_more = num_runs - sum(len(names) for names in list(reasons.values())[:most])
    more = f"; {num_more:,} more" if num_more else ""
    start = "1 run that was named is" if num_runs == 1 else f"{num_runs:,} runs that were named are"
    return f"{start} not in this study: {'; '.join(given)}{more}."


def model_parts(labels: Sequence[str], num_runs: int, params: tuple[int, int], model: str) -> str:
    """`params`: fewest and most parameters that their ranks hold."""
    sizes = " to ".join(f"{size:,}" for size in dict.fromkeys(params))
    return (
        f"The ranks of {crowd(labels, num_runs)} hold {sizes} parameters each of {model or 'their model'}, "
        "in other layers or other shares of them: whether all trained the same model is not known."
    )


def model_of(name: str, num_params: int, identity: str, *, on_rank: bool) -> str:
    """A model named by its parameters; `identity`: of its layers, where others have as many."""
    text = f"{name}, {num_params:,} parameters{' on a rank' if on_rank else ''}".strip(", ")
    return f"{text} in layers {identity}" if identity else text
