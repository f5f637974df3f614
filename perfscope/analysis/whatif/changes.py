"""What is changed in a replay for each question. A change is None where there is nothing of its kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.intervals import one_of
from perfscope.analysis.mainline import (
    LINE_COMPUTE,
    LINE_IDLE,
    LINE_INPUT,
    LINE_OPTIMIZER,
    NO_LAYER,
)
from perfscope.analysis.replay.program import Change, Float, Program, distinct, sums_of
from perfscope.analysis.whatif.latency import CallCost
from perfscope.rundir.schema import PHASES

Mask: TypeAlias = NDArray[np.bool_]

SMALL_BYTES = 256 * 1024  # a call below this pays mostly latency
BUCKET_BYTES = 25 * 1024 * 1024  # DistributedDataParallel's default bucket


def _on(program: Program, kinds: Collection[tuple[str, str]] | None) -> Mask:
    """Calls of these kinds, (collective, group), None = all; marks are no calls. Shape (calls,)."""
    of_kind = [kinds is None or name in kinds for name in program.names]
    return np.array([*of_kind, False])[program.kind]


def zero_transfer(program: Program, kinds: Collection[tuple[str, str]] | None = None) -> Change | None:
    """Instantaneous transfer: the ideal network of T_id; `kinds`: of these calls only."""
    transfer = np.where(_on(program, kinds)[program.events.call], 0.0, program.events.transfer)
    return Change(transfer=transfer) if (transfer != program.events.transfer).any() else None


def no_input_wait(program: Program) -> Change | None:
    """The data loader always has the next batch."""
    return _without(program, LINE_INPUT)


def no_idle(program: Program) -> Change | None:
    """Work always lies ready: no Python between operators, no launch that comes late."""
    return _without(program, LINE_IDLE)


def _without(program: Program, part: int) -> Change | None:
    cells = program.cells
    mask = (cells.part == part) & (cells.local > 0)
    return Change(local=np.where(mask, 0.0, cells.local)) if mask.any() else None


def equal_start(program: Program) -> Change | None:
    """All ranks begin the window together; None where the replay has them so anyway."""
    return Change(begin=np.zeros(len(program.ranks))) if program.begin.any() else None


def full_overlap(program: Program, kinds: Collection[tuple[str, str]] | None = None) -> Change | None:
    """No line waits for a call before the window's end: all communication runs beside the computation.

    `kinds`: (collective, group); lines still wait for other calls.
    """
    if kinds is None:
        return Change(waits=False) if (program.kind >= 0).any() else None
    awaited = program.stretches.awaited
    spared = (awaited >= 0) & _on(program, kinds)[program.events.call[awaited]]
    return Change(early=np.where(spared, np.inf, program.stretches.early)) if spared.any() else None


def perfect_balance(program: Program) -> Change | None:
    """Every rank's computation takes the mean over the ranks, step by step.

    And layer by layer where all ranks compute the layer: what a rank computes more is balanced where it is.
    """
    cells = program.cells
    if len(program.ranks) < 2:
        return None
    useful = np.flatnonzero(one_of(cells.part, (LINE_COMPUTE, LINE_OPTIMIZER)))
    rank, local = cells.rank[useful], cells.local[useful]
    keys, key_of = distinct(
        program.step_rows[useful], cells.layer[useful], cells.phase[useful], cells.part[useful]
    )
    steps, step_of = np.unique(keys[0], return_inverse=True)
    of_key = sums_of(rank, key_of, local, (len(program.ranks), keys.shape[1]))
    is_shared = np.all(of_key > 0, axis=0)
    unshared = sums_of(rank, step_of[key_of], local * ~is_shared[key_of], (len(program.ranks), len(steps)))
    # What only some ranks compute is balanced together; where one has nothing of it, all of the step is.
    is_even = np.all(unshared > 0, axis=0) | np.all(unshared == 0, axis=0)
    is_shared = is_shared & is_even[step_of]
    group = np.where(is_shared, np.arange(len(is_shared)), len(is_shared) + step_of)[key_of]
    del of_key, unshared, key_of  # of many ranks each is a good part of what the program takes
    factor = sums_of(rank, group, local, (len(program.ranks), len(is_shared) + len(steps)))
    mean, is_none = factor.mean(axis=0), factor <= 0
    np.divide(mean, factor, out=factor, where=~is_none)
    factor[is_none] = 1.0
    local *= factor[rank, group]
    balanced = cells.local.copy()
    balanced[useful] = local
    return Change(local=balanced)


def faster_links(
    program: Program,
    costs: Mapping[tuple[str, str], CallCost],
    factor: float,
    kinds: Collection[tuple[str, str]] | None = None,
) -> Change | None:
    """Links of `factor` times the bandwidth; what is latency stays.

    Args:
        program: a window.
        costs: (collective, group) -> what a call costs.
        factor: 2 = twice as fast.
        kinds: of calls, (collective, group); None = all.
    """
    chosen = _on(program, kinds)[program.events.call]
    if not program.events.transfer[chosen].any():
        return None
    fixed = latency_of(program, costs)
    transfer = program.events.transfer
    moved = np.where(chosen, np.maximum(transfer - fixed, 0), 0)
    return Change(transfer=transfer - moved * (1 - 1 / factor))


def latency_of(program: Program, costs: Mapping[tuple[str, str], CallCost]) -> Float:
    """Latency of each event's call, ns. Shape (events,)."""
    latencies = [costs[name].latency_ns if name in costs else 0.0 for name in program.names]
    result: Float = np.array([*latencies, 0.0])[program.kind[program.events.call]]
    return result


def merged_calls(
    program: Program,
    costs: Mapping[tuple[str, str], CallCost],
    blocking: Collection[tuple[str, str]] = (),
) -> Change | None:
    """Small all_reduce calls merged into buckets, which alone pay latency, group by group and step by step.

    Args:
        program: a window.
        costs: (collective, group) -> what a call costs.
        blocking: kinds of calls that cannot be merged, because the next layer needs what they bring.
    """
    mergeable = [name[0] == "all_reduce" and name not in blocking for name in program.names]
    reduces = np.array([*mergeable, False])[program.kind]
    small = reduces & (program.size >= 0) & (program.size < SMALL_BYTES)
    if not small.any():
        return None
    events = program.events
    step = np.zeros(program.num_calls, dtype=np.int64)
    step[events.call] = program.cells.step[events.cell]
    spared = np.zeros(program.num_calls, dtype=bool)
    pairs = np.unique(np.stack((step[small], program.kind[small])), axis=1)
    for step_number, kind in pairs.T.tolist():
        calls = np.flatnonzero(small & (step == step_number) & (program.kind == kind))
        needed = max(1, int(-(-program.size[calls].sum() // BUCKET_BYTES)))
        spared[calls[:-needed]] = True  # the last one carries them all
    if not spared.any():
        return None
    # Of a merged call only what its bytes cost remains, as part of the call that carries them all: it is not
    # begun.
    per_byte = np.array([*(costs[name].ns_per_byte if name in costs else 0.0 for name in program.names), 0.0])
    moved = (per_byte[program.kind] * np.maximum(program.size, 0))[events.call]
    is_spared = spared[events.call]
    return Change(
        transfer=np.where(is_spared, np.minimum(moved, events.transfer), events.transfer),
        delay=np.where(is_spared, 0.0, events.delay),
    )


def layer_faster(program: Program, layer: int, factor: Mapping[str, float]) -> Change | None:
    """One layer's computation takes `factor` of its time, by phase.

    Args:
        program: a window.
        layer: its code.
        factor: phase -> new time over old.
    """
    cells = program.cells
    in_layer = (cells.layer == layer) & (cells.part == LINE_COMPUTE) & (layer != NO_LAYER)
    if not in_layer.any():
        return None
    table = np.array([*(factor.get(phase, 1.0) for phase in PHASES), 1.0])
    return Change(local=np.where(in_layer, cells.local * table[cells.phase], cells.local))
