"""Which collectives changed.

How often a step calls a collective and how many bytes it moves are counts without noise: where they
changed, the code or the scheme did. Its duration is noisy, and most of that noise is waiting for the last
rank; `transfer`, the shortest of the ranks' durations, leaves waiting out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.gate.explain.sides import Shift, Sides
from perfscope.gate.records import CollectiveUse, RunFigures
from perfscope.gate.results import Moved
from perfscope.messages.gate import explanation as words

LEAST = 0.02  # a count that moved by less is a window that cut a step


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveEvidence:
    """What the collectives say, in the time of untraced steps.

    Attributes:
        moves: collectives that moved, those whose calls or bytes changed first.
        changed: names of these.
        cost_ns: what the changes of calls, bytes and transfers cost, unless computation hides it;
            `deviation_ns` its standard deviation.
        waiting: nothing moves more, transfers are as they were: where communication takes longer, it waits.
        is_known: both sides have traces, with or without collectives.
    """

    moves: tuple[Moved, ...] = ()
    changed: tuple[str, ...] = ()
    cost_ns: float = 0.0
    deviation_ns: float = 0.0
    waiting: bool = False
    is_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    name: str
    duration: Shift
    transfer: Shift | None
    calls: tuple[float, float]
    bytes: tuple[float | None, float | None]
    changed: bool


def collective_evidence(sides: Sides, slowdown: float) -> CollectiveEvidence:
    """Collectives that are called more or less often, move more or fewer bytes, or take longer.

    Args:
        slowdown: how many times longer traced steps take; collectives' times are divided by it.
    """
    traced = Sides(
        base=tuple(run for run in sides.base if run.composition),
        head=tuple(run for run in sides.head if run.composition),
        paired=sides.paired and all(run.composition for run in sides.runs),
    )
    names = list(dict.fromkeys(use.name for run in traced.runs for use in run.collectives))
    kinds = [evidence for name in names if (evidence := _kind(traced, name, slowdown)) is not None]
    is_traced = min(len(traced.base), len(traced.head)) > 0
    if not kinds:
        return CollectiveEvidence(is_known=is_traced)
    costs = [_cost(kind) for kind in kinds]
    moved = [kind for kind in kinds if kind.changed or kind.duration.is_certain]
    moved.sort(key=lambda kind: (not kind.changed, -abs(_size(kind))))
    changed = tuple(kind.name for kind in moved if kind.changed)
    return CollectiveEvidence(
        moves=tuple(_moved(kind) for kind in moved),
        changed=changed,
        cost_ns=math.fsum(cost for cost, _ in costs),
        deviation_ns=math.sqrt(math.fsum(deviation**2 for _, deviation in costs)),
        waiting=not changed and all(kind.transfer is not None and kind.transfer.low <= 0 for kind in kinds),
        is_known=is_traced,
    )


def _kind(sides: Sides, name: str, slowdown: float) -> _Kind | None:
    duration = sides.shift(lambda run: _use(run, name).duration_ns)
    if duration is None:
        return None
    transfer = sides.shift(lambda run: _use(run, name).transfer_ns)
    calls = [[_use(run, name).calls for run in side] for side in (sides.base, sides.head)]
    sizes = [[_use(run, name).bytes for run in side] for side in (sides.base, sides.head)]
    return _Kind(
        name=name,
        duration=duration.scaled(1 / slowdown),
        transfer=transfer.scaled(1 / slowdown) if transfer else None,
        calls=(statistics.median(calls[0]), statistics.median(calls[1])),
        bytes=(_middle(sizes[0]), _middle(sizes[1])),
        changed=_apart(*calls)
        or _apart(*([size for size in of_side if size is not None] for of_side in sizes)),
    )


def _use(run: RunFigures, name: str) -> CollectiveUse:
    """Of a collective that a traced run does not call, it calls none."""
    use = next((collective_use for collective_use in run.collectives if collective_use.name == name), None)
    return use or CollectiveUse(name=name, calls=0.0, bytes=0.0, duration_ns=0.0, transfer_ns=0.0)


def _middle(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def _apart(base: Sequence[float], head: Sequence[float]) -> bool:
    """Every run of one side counts more than every run of the other, and not by a cut step only."""
    if not base or not head:
        return False
    before, after = statistics.median(base), statistics.median(head)
    apart = min(head) > max(base) or max(head) < min(base)
    return apart and abs(after - before) > LEAST * max(before, after)


def _cost(kind: _Kind) -> tuple[float, float]:
    """What a kind's change costs a step, ns, and its standard deviation.

    Of changed counts two estimates are averaged: what its transfers took longer, and the base's transfers in
    proportion to the bytes. They differ by what a call costs whatever its size, which the deviation allows
    for.
    """
    measured = kind.transfer or kind.duration
    if not kind.changed:
        return measured.change, measured.deviation
    before, after = kind.bytes if None not in kind.bytes and kind.bytes[0] else kind.calls
    if not before or after is None:
        return measured.change, measured.deviation + 0.3 * abs(measured.change)
    expected = measured.base * (after / before - 1)
    middle = (measured.change + expected) / 2
    apart = abs(measured.change - expected) / 2
    return middle, math.hypot(measured.deviation, apart, 0.3 * middle)


def _size(kind: _Kind) -> float:
    return _cost(kind)[0] if kind.changed else kind.duration.change


def _moved(kind: _Kind) -> Moved:
    facts = []
    if _apart((kind.calls[0],), (kind.calls[1],)):
        facts.append(words.calls_changed(*kind.calls))
    before, after = kind.bytes
    if before is not None and after is not None and _apart((before,), (after,)):
        facts.append(words.bytes_changed(before, after))
    if not kind.changed:
        facts.append(words.AS_BEFORE)
    return Moved(
        kind="collective",
        what=kind.name,
        title=kind.name,
        base_ns=kind.duration.base,
        head_ns=kind.duration.head,
        change_ns=kind.duration.change,
        low_ns=kind.duration.low,
        high_ns=kind.duration.high,
        note=", ".join(facts),
    )
