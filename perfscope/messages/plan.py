"""Sentences of `perfscope plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from perfscope.messages.lists import counted
from perfscope.units import format_bytes, format_rate, format_ratio

_SHOWN = 4
LOWER_BOUNDS = (
    "Not measured. Steps are lower bounds at the given rates, and the order is by these lower bounds: real "
    "steps took up to 3.3 times as long on a GPU and up to 13 times on busy CPUs, and the factor differs "
    "from way to way. --verify measures the first ones."
)
PREDICTIONS = (
    "Predicted from a short training of the model on this machine; the ways themselves were not run. Of "
    "eleven ways measured on two CPUs that other programs kept busy, the median error was 29 % of the "
    "measured step, the largest 135 %. --verify measures the first ones."
)
UNVERIFIED_MEMORY = (
    "?: not verified in general is the memory of meshes of several axes (in the twelve tried on 4 ranks real "
    "steps took 2 to 18 % more) and of interleaved and zero-bubble pipelines (9 to 15 and 19 to 36 % more)."
)


class _Held(Protocol):
    @property
    def peak(self) -> float: ...


class _Excluded(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def memory(self) -> _Held | None: ...


def excluded_by_memory(excluded: Sequence[_Excluded], limit: float) -> str:
    """One line: how many do not fit, and the one that misses the limit by least."""
    nearest = min(excluded, key=lambda option: option.memory.peak if option.memory else 0.0)
    peak = nearest.memory.peak if nearest.memory else 0.0
    return (
        f"{counted(len(excluded), 'way')} do not fit in {format_bytes(limit)} per rank; the nearest, "
        f"{nearest.name} with a batch of {nearest.batch}, holds {format_bytes(peak)}"
    )


def no_fit(excluded: Sequence[_Excluded], limit: float) -> str:
    """The error where nothing fits."""
    return (
        f"no way to train fits: {excluded_by_memory(excluded, limit)}; use a smaller --batch, more ranks, or "
        f"a larger --device-memory"
    )


def excluded_by_scheme(excluded: Sequence[_Excluded]) -> list[str]:
    """The most frequent reasons, one line each."""
    names: dict[str, list[str]] = {}
    for option in excluded:
        names.setdefault(option.reason, []).append(option.name)
    counts = Counter({reason: len(of_reason) for reason, of_reason in names.items()})
    lines = [
        f"cannot be: {names[reason][0]}{f' and {num - 1} more' if num > 1 else ''}: {reason}"
        for reason, num in counts.most_common(_SHOWN)
    ]
    remaining = len(counts) - len(lines)
    return (
        [*lines, f"cannot be: {counted(remaining, 'further reason')}, see --json"] if remaining > 0 else lines
    )


def verified_order(agreement: float, num: int) -> str:
    """How far the measured order is the computed one."""
    return f"order: {format_ratio(agreement, 0)} of the pairs among {num} as computed"


def calibrated(copies: Sequence[int], batches: Sequence[int], threads: int) -> str:
    """What was trained for a plan, and how."""
    return (
        f"work: a serial training of the model on this machine, timed block by block in "
        f"{' and '.join(map(str, copies))} {'copy' if list(copies) == [1] else 'copies'} at the same time, "
        f"one per rank of a host, at {', '.join(map(str, batches))} samples with "
        f"{counted(threads, 'thread')} each; meshes divide it as the rates below divide their operators"
    )


def not_calibrated(copies: int, reason: str) -> str:
    """Why steps are lower bounds though the rates are this machine's."""
    return (
        f"no calibration with {counted(copies, 'copy', 'copies')} of the model on this machine ({reason}); "
        "steps are lower bounds"
    )


NO_ROOM = "not in its memory and within a few seconds per step"


def too_many_copies(most: int) -> str:
    """Why a calibration is not tried."""
    return f"no more than {most} at a time are tried"


def links_from(latency_s: float, bytes_per_s: float | None, *, is_kept: bool) -> str:
    """Where the links inside a host are from."""
    rate = "" if bytes_per_s is None else f", {format_rate(bytes_per_s)}"
    source = "perfscope doctor --links" if is_kept else "the calibration's own all-reduces"
    return f"links inside a host: {latency_s * 1e6:.0f} µs per message{rate}, measured by {source}"
