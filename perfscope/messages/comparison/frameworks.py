"""The same model in several frameworks: do they learn the same, how fast is each, what more ranks bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.messages.lists import counted, plural
from perfscope.messages.study import named, percent, ranks, times
from perfscope.vocabulary.comparison import LossMismatch, ProblemKind

NOT_COMPARED = "no two frameworks can be compared."
RETIRED = "retired upstream since {since}"
SAME_MODEL = "the same model"
# What runs of one model must share to be compared, by the problem where they do not.
SHARED = {
    ProblemKind.OTHER_DTYPE: "data types",
    ProblemKind.OTHER_MACHINE: "machines",
    ProblemKind.OTHER_BATCH: "batches",
    ProblemKind.OTHER_THREADS: "threads",
    ProblemKind.OTHER_MODEL: "sizes of a sample",
}
# Settings that decide losses, by their names in options.framework_run.
SETTINGS = {
    "learning_rate": "learning rate",
    "momentum": "momentum",
    "seed": "seed",
    "data": "data",
    "num_classes": "number of classes",
    "input_shape": "size of a sample",
}
_MISMATCHES = {
    LossMismatch.NO_NUMBER_REFERENCE: "a loss of the reference is no number at step {step}",
    LossMismatch.NO_NUMBER_RUN: "a loss of the run is no number at step {step}",
    LossMismatch.FIRST: "the first losses differ by {difference:.1e}, before any update: weights, samples or "
    "the network are not the same",
    LossMismatch.EARLY: "losses differ by {difference:.1e} at step {step}: the updates are not the same",
    LossMismatch.LATER: "losses differ by {difference:.1e} at step {step}, more than rounding makes of it",
}


def facet_differs(kind: ProblemKind, model: str, sets: Mapping[str, Sequence[str]]) -> str:
    """Runs of one model that are compared apart; `sets`: value -> labels, "" = not known."""
    listed = "; ".join(f"{value} ({named(labels)})" for value, labels in sorted(_known(sets).items()))
    whose = f"The {SHARED[kind]} of {model}'s runs" if model else f"The runs' {SHARED[kind]}"
    return f"{whose} differ: {listed}. Frameworks are compared within each, not across."


def _known(sets: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    return {value or "not known": labels for value, labels in sets.items()}


def samples_per_step(num: int) -> str:
    return f"{counted(num, 'sample')} per step"


def samples_per_rank(num: float) -> str:
    return f"{num:g} {plural('sample', num)} per rank"


def threads_per_rank(num: int) -> str:
    return f"{counted(num, 'thread')} per rank"


def samples_trained(num: float, shape: str, *, per_rank: bool) -> str:
    """ "32 samples of 3x32x32 a step over all ranks"."""
    of = f" of {shape}" if shape else ""
    noun = plural("sample", num)
    return f"{num:g} {noun}{of} a step per rank" if per_rank else f"{num:,} {noun}{of} a step over all ranks"


def trained_with(setting: str, value: str, reference: str) -> str:
    """ "learning rate 0.1 for 0.05"; `setting`: of SETTINGS."""
    return f"{SETTINGS[setting]} {value} for {reference}"


def trained_unlike(settings: Sequence[str]) -> str:
    """In front of why losses differ: `settings` of `trained_with`."""
    return f"trained with {named(settings)}"


def too_few_steps(num: int, needed: int) -> str:
    return f"only {counted(num, 'step')} can be compared, {needed} are needed"


def mismatch(kind: LossMismatch, step: int, difference: float) -> str:
    """Where two loss curves differ; `step` counts from 1, the difference is relative."""
    return _MISMATCHES[kind].format(step=step, difference=difference)


def level(
    names: Sequence[str], size: int, *, within: float | None, is_single: bool, behind: Sequence[str]
) -> str:
    """Frameworks of equal speed; `within`: of each other, else their repeats overlap, or some have none."""
    how = "are too near to rank by single runs" if is_single else "are level, for their repeats overlap"
    if within:
        how = f"are within {percent(within)} of each other"
    ahead = f", ahead of {named(behind)}" if behind else ""
    return f"on {ranks(size)} {named(names)} {how}{ahead}"


def fastest(best: str, size: int, slower: Sequence[str], ratios: tuple[float, float]) -> str:
    """`ratios` of the best's speed to that of the first and the last of the others."""
    span = times(ratios[0])
    if len(slower) > 1:
        span = f"{ratios[0]:.2f} to {times(ratios[1])}"
    whom = f"as {slower[0]}" if len(slower) == 1 else "as the others"
    return f"on {ranks(size)} {best} trains {span} as many samples/s {whom}"


def in_disturbed_runs(clause: str) -> str:
    """A clause of `level` or `fastest` that other load may have decided."""
    return f"{clause}, in runs that were disturbed"


def speeds(clauses: Sequence[str]) -> str:
    """Of each number of ranks the clause of `level` or `fastest`."""
    return f"{'; '.join(clauses)}." if clauses else NOT_COMPARED


def losses_of(name: str, size: int, *, is_reference: bool) -> str:
    """ "those of jax on 2 ranks"."""
    return (
        f"those of {name}'s repeats on {ranks(size)}" if is_reference else f"those of {name} on {ranks(size)}"
    )


def losses_differ(frameworks: Sequence[str], reason: str) -> str:
    """`who`: of `losses_of`."""
    return f"Losses differ, {named(frameworks)}: {reason}."


def losses_agree(
    names: Sequence[str],
    reference: str,
    *,
    are_all: bool,
    early: tuple[float, int, float],
    over_all: tuple[float, int, float] | None,
) -> str:
    """`early`, `whole`: largest difference, over how many steps, what is allowed; `whole` where longer."""
    whose = named(names) if len(names) <= 2 or not are_all else f"the other {len(names)} frameworks"
    text = (
        f"The losses of {whose} agree with those of {reference}: at most {early[0]:.1e} apart over the "
        f"first {early[1]} steps ({early[2]:.0e} allowed)"
    )
    if over_all is not None:
        text += f", {over_all[0]:.1e} over the first {over_all[1]} ({over_all[2]:g} allowed)"
    return f"{text}."


def gains(name: str, sizes: tuple[int, int], speedup: float, efficiency: float, slower: Sequence[str]) -> str:
    """Which framework gains most from more ranks; `slower`: those that lose."""
    text = (
        f"From {sizes[0]} to {ranks(sizes[1])} {name} gains most, {times(speedup)} the samples/s "
        f"({percent(efficiency)} efficiency)"
    )
    train = "trains" if len(slower) == 1 else "train"
    return f"{text}; {named(slower)} {train} fewer." if slower else f"{text}."


def all_lose(name: str, sizes: tuple[int, int], speedup: float) -> str:
    """Every framework is slower on more ranks; `name` loses least."""
    worse = f"On {ranks(sizes[1])} every framework is slower than on {sizes[0]}"
    return f"{worse}; {name} loses least, {times(speedup)} the samples/s."


def find_out_why(names: Sequence[str]) -> str:
    """What to do about losses that differ."""
    verb = "does" if len(names) == 1 else "do"
    return f"Find out why {named(names)} {verb} not learn as the reference does, before speeds are compared."


def learn_otherwise(names: Sequence[str]) -> str:
    return f"{named(names)} {'does' if len(names) == 1 else 'do'} not learn what the reference learns"


def only_one(names: Sequence[str]) -> str:
    return f"Only {named(names)} was run"


def learning_not_known(names: Sequence[str]) -> str:
    return f"Whether {named(names)} learn the same is not known"


def learn_the_same(num: int) -> str:
    return f"{'Both' if num == 2 else f'All {num}'} frameworks learn the same"


def study_verdict(learned: str, winners: Sequence[str]) -> str:
    """`learned`: what the losses say; `winners`: of each model."""
    return f"{learned}: {'; '.join(winners)}." if winners else f"{learned}: {NOT_COMPARED}"


def winner(names: Sequence[str], title: str, size: int) -> str:
    """Who is fastest on a model; several names are level."""
    if len(names) > 1:
        return f"{named(names)} are fastest on {title} ({ranks(size)}), level with each other"
    return f"{named(names)} is fastest on {title} ({ranks(size)})"


def winner_not_known(title: str, size: int) -> str:
    """In place of `winner`."""
    return (
        f"which is fastest on {title} ({ranks(size)}) cannot be determined, because the runs were disturbed"
    )
