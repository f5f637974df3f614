"""A check against runs that `perfscope baseline` kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfscope.cli.check.output import say
from perfscope.gate.records import HEAD, RunFigures
from perfscope.gate.results import CheckResult, Outcome, Side
from perfscope.messages.gate.verdict import fingerprint_words
from perfscope.messages.lists import counted

if TYPE_CHECKING:
    from perfscope.gate.store import Store

_MOST_KEPT = 5  # named where none of them fits


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRuns:
    """The baseline's runs that fit, and the head's in the same form."""

    base: Side
    head: tuple[RunFigures, ...]


def has_baseline(store: Store, name: str) -> bool:
    """Whether anything is kept of the benchmark, of whatever machine."""
    return any(entry.name == name for entry in store.entries())


def against_baseline(
    store: Store, name: str, head: Sequence[RunFigures], allowed: Collection[str]
) -> BaselineRuns | None:
    """The kept runs of the head's fingerprint (allowed fields may differ); None = there are none.

    Kept runs are without the paths of the user who kept them. So are the head's, or commands would differ.
    """
    from perfscope.gate.store.entries import identity
    from perfscope.gate.store.shareable import shareable

    shareable_runs = tuple(shareable(replace(run, pair=None)) for run in head)
    label = f"baseline {store.path.name}"
    if not shareable_runs:
        return BaselineRuns(base=Side(label=label), head=())
    wanted = shareable_runs[0].fingerprint
    fitting = [
        entry
        for entry in store.entries()
        if entry.name == name and not wanted.differences(entry.fingerprint, allowed)
    ]
    if not fitting:
        return None
    exact = [entry for entry in fitting if entry.fingerprint == wanted]
    runs = store.runs(name, (exact or fitting)[-1].fingerprint.key)
    both = {identity(run) for run in shareable_runs} & {identity(run) for run in runs}
    if both:
        say(f"{counted(len(both), 'run')} in {store.path} as well: judged, not compared with themselves")
    kept = tuple(replace(run, pair=None) for run in runs if identity(run) not in both)
    return BaselineRuns(base=Side(label=label, runs=kept), head=shareable_runs)


def no_baseline(name: str, store: Store, head: Sequence[RunFigures]) -> CheckResult:
    """Says which baselines there are, and how to make the missing one."""
    there = [entry for entry in store.entries() if entry.name == name]
    reasons = []
    if there:
        headline = f"No baseline of {name} for this machine and setting in {store.path}."
        if head:
            reasons.append(f"Wanted: {fingerprint_words(head[0].fingerprint)}.")
        reasons += [f"Kept: {fingerprint_words(entry.fingerprint)}." for entry in there[:_MOST_KEPT]]
    else:
        names = ", ".join(sorted({entry.name for entry in store.entries()})) or "nothing"
        headline = f"No baseline of {name} in {store.path} (kept there: {names})."
    reasons.append(f"Make one with `perfscope baseline update {store.path} RUN...` from at least 5 runs.")
    return CheckResult(
        name=name,
        outcome=Outcome.NO_BASELINE,
        headline=headline,
        reasons=tuple(reasons),
        head=Side(label=HEAD, runs=tuple(head)),
    )


def without_pairs(runs: Sequence[RunFigures]) -> tuple[RunFigures, ...]:
    """Runs of different checks: their pair numbers have nothing to do with each other."""
    return tuple(replace(run, pair=None) for run in runs)
