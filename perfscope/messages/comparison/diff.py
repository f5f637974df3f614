"""Two runs side by side: which is faster, what moved, why they may not be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from perfscope.messages.comparison.exposed import signed
from perfscope.messages.comparison.schemes import ONE_RUN_EACH
from perfscope.messages.efficiency import TITLES
from perfscope.messages.study import PART_TITLES, faster_than, named, percent, ranks, slower_than
from perfscope.units import format_ns, three_digits
from perfscope.vocabulary.comparison import ProblemKind
from perfscope.vocabulary.efficiency import PopFactor

REPEAT = "Repeat each three times (`perfscope compare` groups repeats) before trusting the difference."
NEITHER_HAS_ANY = "neither run has any"
SECTIONS = {
    "step": "Step and result",
    "parts": "Parts of the traced step",
    "exposed": "Exposed communication by layer, per step",
    "layers": "Layers, per step",
    "collectives": "Collectives, per step",
    "machine": "Machine",
    "packages": "Packages",
    "environment": "Environment",
    "options": "Options of perfscope",
    "command": "Command",
    "scheme": "Scheme and labels",
}
# Rows, by the figure that is compared.
STEP_ROWS = {
    "samples_per_s": "samples/s",
    "slowest_rank": "step of the slowest rank",
    "median_step": "median step, all ranks",
    "fast_step": "fast step (10th percentile)",
    "slow_step": "slow step (90th percentile)",
    "num_steps": "steps",
    "num_ranks": "ranks",
    "num_hosts": "hosts",
    "batch": "samples per step",
    "effective_batch": "samples per update",
    "exposed_comm": "exposed communication of the traced step",
    "overhead": "overhead of perfscope",
    "peak_memory": "largest memory of a rank",
    "first_loss": "first loss",
    "last_loss": "last loss",
    "held_out_loss": "held-out loss",
}
COLLECTIVE_ROWS = {
    "calls": "calls",
    "bytes": "bytes",
    "duration": "time in calls",
    "transfer": "transfer",
    "wait": "waiting for the last rank",
}
MACHINE_ROWS = {
    "cpu": "CPU",
    "num_cpus": "CPUs",
    "num_nodes": "NUMA nodes",
    "memory": "memory",
    "gpus": "GPUs",
    "kernel": "kernel",
    "hosts": "hosts",
    "cluster": "emulated cluster",
    "device": "device",
    "threads": "threads per rank",
    "disturbed": "disturbed",
}
_DIFFER = {
    ProblemKind.OTHER_MODEL: "models",
    ProblemKind.OTHER_DTYPE: "data types",
    ProblemKind.OTHER_BATCH: "batches",
    ProblemKind.OTHER_MACHINE: "machines",
    ProblemKind.UNEQUAL_WORLD_SIZES: "numbers of ranks",
}
_OF_RUN = {
    ProblemKind.RUNNING: "not closed: still written, or killed",
    ProblemKind.MISSING_RANKS: "without the records of all ranks",
    ProblemKind.NO_SPEED: "without a known speed",
    ProblemKind.NO_LABEL: "without what runs are grouped by",
}
_OF_BOTH = {
    ProblemKind.SAME_RUN: "they are one and the same run",
    ProblemKind.NO_MODE: "they differ in ranks, and what scaling was meant is not known",
    ProblemKind.MIXED_SETTINGS: "they are of several settings",
    ProblemKind.NO_SCALING: "no scaling can be formed of them",
}


def speed(before: str, after: str, speeds: tuple[float, float], *, is_equal: bool) -> str:
    """Samples/s of both, as a clause."""
    ratio = speeds[1] / speeds[0]
    text = f"{after} trains {faster_than(ratio) if ratio >= 1 else slower_than(ratio)} {before}"
    if is_equal:
        text = f"{before} and {after} train equally fast"
    return f"{text} ({three_digits(speeds[0])} → {three_digits(speeds[1])} samples/s)"


def step_time(before: str, after: str, steps_ns: tuple[float, float]) -> str:
    """Median steps of both, as a clause."""
    share = steps_ns[1] / steps_ns[0] - 1
    than = "longer" if share >= 0 else "shorter"
    return (
        f"a step of {after} takes {percent(abs(share))} {than} than one of {before} "
        f"({format_ns(steps_ns[0])} → {format_ns(steps_ns[1])})"
    )


def headline(clause: str, moved: str) -> str:
    """`clause`: of `speed` or `step_time`; `moved`: of `moved_most`, or ""."""
    return f"{clause}; {moved}; {ONE_RUN_EACH}." if moved else f"{clause}; {ONE_RUN_EACH}."


def speed_not_known(labels: Sequence[str]) -> str:
    return f"The speed of {named(labels)} is not known: it cannot be compared."


def moved_the_other_way(steps_ns: tuple[float, float]) -> str:
    """Traced steps that moved against the typical ones."""
    steps = f"{format_ns(steps_ns[0])} → {format_ns(steps_ns[1])}"
    return f"the traced steps do not show the difference, theirs moved the other way ({steps})"


def moved_most(part: str, change_ns: float, *, explains: float | None, is_scaling: bool) -> str:
    """The part of the step that moved most.

    Args:
        part: of PARTS.
        change_ns: of the part.
        explains: change of the step whose direction the part was chosen by, or None for the largest change.
        is_scaling: the runs have other numbers of ranks: against the ideal another part may have grown most.
    """
    how_much = "moved most" if explains is None else "grew most" if explains > 0 else "shrank most"
    how = ", counted in time," if is_scaling else ""
    return f"{PART_TITLES[part]}{how} {how_much}: {signed(change_ns)} in a traced step"


def not_traced(labels: Sequence[str]) -> str:
    return f"no step of {named(labels)} was traced"


def factor_row(factor: PopFactor) -> str:
    return f"POP: {TITLES[factor].lower()}"


def sent_row(link_class: str) -> str:
    return f"sent over {link_class}, per step"


def disturbance_row(number: int) -> str:
    return f"disturbance {number}"


def ceiling_row(host: str, what: str, where: str, threads: int | None, source: str) -> str:
    """A measured ceiling of a host."""
    on = f", {threads} threads" if threads else ""
    return f"{host}: {what}, {where}{on} ({source})"


def collective_name(collective: str, group_size: int | None) -> str:
    return f"{collective} over {ranks(group_size)}"


def collective_row(name: str, figure: str) -> str:
    """`figure`: of COLLECTIVE_ROWS."""
    return f"{name}: {COLLECTIVE_ROWS[figure]}"


def refused(labels: Sequence[str], why: str) -> str:
    return f"{named(labels)} are not compared: {why}. Their facts stand side by side."


def refusal(kinds: Collection[ProblemKind], labels: Mapping[ProblemKind, Sequence[str]]) -> str:
    """Why two runs are not compared: `kinds` in their order, and the labels of the runs that have each."""
    differ = [_DIFFER[problem_kind] for problem_kind in kinds if problem_kind in _DIFFER]
    reasons = [f"their {named(differ)} differ"] if differ else []
    for kind, text in _OF_RUN.items():
        if labels.get(kind):
            reasons.append(f"{named(labels[kind])} {'is' if len(labels[kind]) == 1 else 'are'} {text}")
    reasons += [_OF_BOTH[kind] for kind in kinds if kind in _OF_BOTH]
    return "; ".join(reasons) or "for the reason given below"
