"""What a plan is made of: candidates with the parts of their step, and how they rank."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Unfit(str, Enum):
    """Why a candidate is not ranked."""

    MEMORY = "memory"  # the rank that holds most exceeds the limit
    REFUSED = "refused"  # the scheme cannot train this model so


class Memory(Struct, frozen=True, kw_only=True):
    """Of the rank that holds most, where it holds most; bytes."""

    weights: float
    gradients: float
    state: float
    activations: float
    buffers: float
    peak: float


class Candidate(Struct, frozen=True, kw_only=True):
    """One way to train, with the parts of its step.

    Attributes:
        scheme: of `perfscope bench`.
        mesh: axis=parts,...
        num_ranks: of it.
        batch: samples per step, over all ranks.
        microbatches: that a rank's samples are divided into (of a pipeline, or accumulated).
        dtype: float32, bfloat16 ...
        checkpointing: whether activations are computed again.
        stages: of its pipeline; 1: none.
        forward_s, backward_s, update_s: of the slowest rank's own work, per step.
        transfer_s: of its communication, if nothing hides it.
        overlaps: whether its library communicates during the backward pass.
        flops: of the model itself, per step: three times the forward pass.
        memory: see Memory.
    """

    scheme: str
    mesh: str
    num_ranks: int
    batch: int
    microbatches: int
    dtype: str
    checkpointing: bool
    stages: int
    forward_s: float
    backward_s: float
    update_s: float
    transfer_s: float
    overlaps: bool
    flops: float
    memory: Memory


class Excluded(Struct, frozen=True, kw_only=True):
    """A candidate that is not ranked.

    Attributes:
        name: scheme and mesh.
        num_ranks, batch: of it.
        why: see Unfit.
        memory: where MEMORY: what it would hold.
        reason: where REFUSED: the planner's line.
    """

    name: str
    num_ranks: int
    batch: int
    why: Unfit
    memory: Memory | None = None
    reason: str = ""


class Planned(Struct, frozen=True, kw_only=True):
    """A candidate with its predicted figures.

    Attributes:
        candidate: see Candidate.
        step_s: predicted step.
        sample_s: step_s / batch.
        compute_ratio, communication_ratio, bubble_ratio: parts of the step; they add up to 1.
        efficiency: the model's own FLOP/s over those of all its ranks.
        cost: of a million samples; None without a price.
        is_pareto: nothing else is better in time, memory or cost without being worse in another of them.
    """

    candidate: Candidate
    step_s: float
    sample_s: float
    compute_ratio: float
    communication_ratio: float
    bubble_ratio: float
    efficiency: float
    cost: float | None = None
    is_pareto: bool = False
