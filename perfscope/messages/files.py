"""Figures that come from a file of a run, and what of a run was cut short."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted, ranks_of
from perfscope.units import format_ns

TRAINING = "every figure of the training"
EVERYTHING = "every figure"
MACHINE = "what the machine is, its load and placement"
PEAKS = "measured peaks and rooflines"
COUNTERS = "hardware counters and disturbances"
HANGS = "hangs that were noticed"
PHASES = "phases by name"
LOADING = "data loaders and their workers"
FILE_IO = "file I/O by logs of Darshan"
COMMUNICATORS = "calls by files of NCCL Inspector"
STACKS = "sampled stacks"
HOST = "the host's figures"
NO_TRACED_STEP = "no traced step can be used"
STEPS = "step times and throughput"
LAYERS = "types and parameters of layers"
WINDOWS = "step breakdown, layers and collectives"
ERRORS = "what the probe met"
BENCH = "losses, calls and throughput of the bench run"
ON_DEVICE = (
    "the host runs ahead of the device: a step lasts from when the device has done the step before until it "
    "has done this one"
)
HANDED_OVER = (
    "The program hands its steps over and runs ahead of their work: single steps are times of handing over, "
    "so each stretch of untraced steps is shown as equal steps of the same sum. How they differ is not known."
)


def traces_end_early(ranks: Sequence[int], steps_cut: int) -> str:
    """That files are cut off, and what is made of what is left."""
    several = len(ranks) > 1
    subject, them = ("trace files", "them") if several else ("trace file", "it")
    cut = counted(steps_cut, "step")
    left_out = f"{cut} not whole in {them} {'are' if steps_cut > 1 else 'is'} left out. " if steps_cut else ""
    return (
        f"The {subject} of {ranks_of(ranks)} {'end' if several else 'ends'} early. {left_out}All figures are "
        "of what is left, and what was lost is not known."
    )


def of_what_is_left(headline: str) -> str:
    """A verdict on a trace of which the end is lost."""
    return f"The trace ends early. What is left of it: {headline}"


def affects(figures: str) -> str:
    """`words`: of the above; "" = nothing."""
    return f" (affects {figures})" if figures else ""


def ended_by_signal(number: int | str | None) -> str:
    """A run inside a Slurm job that a signal ended, of which the number may not be known."""
    how = f"signal {number}" if number is not None else "a signal"
    return f"{how} ended it inside its Slurm job: scancel, the time limit, a requeue or a failed task"


def no_event(notes: str) -> str:
    """A trace that gave nothing; `notes`: of its reader."""
    return f"its trace has no usable event{': ' if notes else ''}{notes}"


def part_of_trace(notes: str, num_dropped: int) -> str:
    """A trace of which a part could not be read; `notes`: of its reader."""
    events = f"{num_dropped:,} event{'' if num_dropped == 1 else 's'} of its trace cannot be read"
    return f"{events if num_dropped else 'its trace is damaged'}{': ' if notes else ''}{notes}"


def window_of(window: object, rank: object) -> str:
    return f"window {window} of rank {rank}"


def same_elsewhere(note: str, where: str, num_others: int) -> str:
    """A note on a window that differs from others' in figures only."""
    return f"{note} ({where}; much the same in {num_others} more)"


def clocks_apart(rank: int, reference: int, offset_ns: int, residual_ns: int) -> str:
    """Ranks of hosts that no trace names have several clocks; the largest offset, and the largest doubt."""
    way = "ahead of" if offset_ns > 0 else "behind"
    return (
        "the traces name no hosts, and ranks leave collectives before others enter them, so their clocks "
        f"differ (that of rank {rank} is {format_ns(abs(offset_ns))} {way} that of rank {reference}): times "
        f"are aligned by when collectives end, to {format_ns(residual_ns)}"
    )
