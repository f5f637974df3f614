"""What runs are grouped by, one recorded fact or several, and which of their differences that explains."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from perfscope.analysis.study.machines import machine_key
from perfscope.analysis.study.results import StudyRun
from perfscope.messages.study import ranks
from perfscope.vocabulary.taxonomy import COLUMNS

WORLD_SIZE, SCHEME, FRAMEWORK, LABEL = "world_size", "scheme", "framework", "label:"
_OPTION, _VARIABLE = "option:", "env:"
BATCH, DTYPE, MODEL, MACHINE, TASK = "batch", "dtype", "model", "machine", "task"


def _column(run: StudyRun, column: str) -> str:
    """One of the taxonomy's columns, `synchrony asynchronous`; "" of runs that are none of a scheme's."""
    value = run.axes.get(column, "")
    return f"{column} {value}" if value else ""


_FACTS: dict[str, Callable[[StudyRun], str]] = {
    WORLD_SIZE: lambda run: ranks(run.world_size) if run.world_size else "",
    SCHEME: lambda run: run.scheme,
    FRAMEWORK: lambda run: run.framework,
    BATCH: lambda run: "" if run.batch is None else f"batch {run.batch:,}",
    DTYPE: lambda run: run.dtype,
    MODEL: lambda run: run.model,
    MACHINE: machine_key,
    "device": lambda run: run.machine.device,
    "backend": lambda run: run.backend,
    "mesh": lambda run: run.mesh,
    "threads": lambda run: "" if run.threads is None else f"{run.threads} threads per rank",
    **{column: partial(_column, column=column) for column in COLUMNS},
}
# What forbids a ratio where runs differ in it and it is not named.
_FORBIDDING = (BATCH, DTYPE, MODEL, MACHINE, WORLD_SIZE)
KNOWN = (
    f"{', '.join(_FACTS)}, label:K (a label's name), option:K (an option of the run or of its bench) or "
    "env:K (a recorded variable), several with commas"
)
_NAME = re.compile(rf"(?:{'|'.join(_FACTS)}|label:.+|option:\w+|env:\w+)\Z", re.DOTALL)


def names_of(by: str) -> tuple[str, ...]:
    """The names in `--by`: "batch,label:loader" -> ("batch", "label:loader").

    Raises:
        ValueError: one of them is not known, or `framework` is beside another.
    """
    # A label's name may have a comma: what follows is a name of its own only where it reads like one.
    names: list[str] = []
    for word in by.split(","):
        if names and not _NAME.match(word) and names[-1].startswith(LABEL):
            names[-1] += f",{word}"
        else:
            names.append(word)
    for name in names:
        if not _NAME.match(name):
            raise ValueError(f"{name!r} is not known; use {KNOWN}")
    if FRAMEWORK in names and len(names) > 1:
        raise ValueError("'framework' is compared alone: losses come before speed there")
    return tuple(dict.fromkeys(names))


def value_of(run: StudyRun, name: str) -> str:
    """What a run has of one name; "" = not recorded."""
    if name.startswith(LABEL):
        return run.labels.get(name.removeprefix(LABEL), "")
    if name.startswith(_VARIABLE):
        return run.environment.get(name.removeprefix(_VARIABLE), "")
    if name.startswith(_OPTION):
        return run.settings.get(name.removeprefix(_OPTION), "")
    return _FACTS[name](run)


def group_of(run: StudyRun, by: str) -> str:
    """What a run is called among the groups; "" where it lacks one of the names."""
    names = names_of(by) if by else ()
    values = [value_of(run, name) for name in names]
    if not values or not all(values):
        return ""
    if len(values) == 1:
        return values[0]
    return ", ".join(
        f"{name.partition(':')[2]} {value}" if ":" in name else value
        for name, value in zip(names, values, strict=True)
    )


def settings_beside(by: str) -> bool:
    """Whether `by` names what the key of repeats does not hold."""
    return any(
        not name.startswith(LABEL) and name not in (WORLD_SIZE, SCHEME, BATCH) for name in names_of(by)
    )


def explained(runs: Sequence[StudyRun], by: str) -> frozenset[str]:
    """Which of the facts that forbid a ratio `by` names, or has a value for each value of.

    `--by label:batch` explains the batch where runs of one label have one batch, and no two labels the same.
    A label says nothing of models, machines and numbers of ranks: these are named themselves.
    """
    names = names_of(by)
    grouped = [run for run in runs if group_of(run, by)]
    goes_with = [(name, fact) for name in names if ":" in name for fact in (BATCH, DTYPE, TASK)]
    goes_with += [("device", MACHINE)] * ("device" in names)
    return frozenset(fact for fact in _FORBIDDING if fact in names) | frozenset(
        fact
        for name, fact in goes_with
        if _one_to_one((value_of(run, name), _fact(run, fact)) for run in grouped)
    )


def _fact(run: StudyRun, fact: str) -> str:
    return run.task if fact == TASK else _FACTS[fact](run)


def with_name(by: str, name: str) -> str:
    """`by` with one name more, for a message that says what to write."""
    return ",".join(dict.fromkeys([*(names_of(by) if by and by != FRAMEWORK else ()), name]))


def _one_to_one(pairs: Iterable[tuple[str, str]]) -> bool:
    forth, back = defaultdict(set), defaultdict(set)
    for first, other in pairs:
        if not other:
            return False
        forth[first].add(other)
        back[other].add(first)
    return len(back) > 1 and all(len(of) == 1 for of in (*forth.values(), *back.values()))
