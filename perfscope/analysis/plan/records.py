"""What a plan is made of: candidates with the parts of their step, and how they rank."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Unfit(str, Enum):
    """Why a candidate is not ranked."""

    MEMORY = "memory"  # the rank that holds most exceeds the limit
    REFUSED = "refused"  # the scheme cannot train this model so


class Memory(Struct, frozen=True, kw_only=True):
    """Of the rank that holds most, where it holds most; bytes.

    Attributes:
        weights, gradients, state, activations, buffers: parts of peak.
        is_verified: whether real steps agree on meshes of this kind: those of one axis at most; others may
            take more.
    """

    weights: float
    gradients: float
    state: float
    activations: float
    buffers: float
    peak: float
    is_verified: bool


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
        stages: of its pipeline, in ranks; 1: none.
        schedule: of its pipeline, one of bench run's --pipeline; "": none.
        forward_s, backward_s, update_s: of the slowest rank's own work, per step.
        alone_s: its two passes if no more ranks than cores computed at the same time; None: as they are.
        transfer_s: of its communication, if nothing hides it.
        bucket_mb: of DDP, where not its default; None: its default, or no DDP.
        buckets: of DDP, in the order they are sent: share of the backward pass after which each is full, and
            seconds that it takes.
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
    schedule: str = ""
    forward_s: float
    backward_s: float
    update_s: float
    alone_s: float | None = None
    transfer_s: float
    overlaps: bool
    bucket_mb: float | None = None
    buckets: tuple[tuple[float, float], ...] = ()
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


class Basis(str, Enum):
    """What steps follow from."""

    CALIBRATED = "calibrated"  # a short training of the model here: a prediction
    RATES = "rates"  # FLOP/s and bytes/s: a lower bound


class Planned(Struct, frozen=True, kw_only=True):
    """A candidate with its computed figures; none of them is measured.

    Attributes:
        candidate: see Candidate.
        basis: what its times follow from; lower bounds where RATES.
        step_s: of a step.
        sample_s: step_s / batch.
        compute_ratio, communication_ratio, bubble_ratio: parts of step_s; they add up to 1.
        efficiency: the model's own FLOP/s over those of all its ranks, in a step of step_s.
        cost: of a million samples in such steps; None without a price.
        is_pareto: nothing else is better in time, memory or cost without being worse in another of them.
    """

    candidate: Candidate
    basis: Basis
    step_s: float
    sample_s: float
    compute_ratio: float
    communication_ratio: float
    bubble_ratio: float
    efficiency: float
    cost: float | None = None
    is_pareto: bool = False


class Trial(Struct, frozen=True, kw_only=True):
    """A candidate that was trained for a few steps.

    Attributes:
        plan: computed for the machine that it was trained on.
        measured_step_s: median step; None where it failed.
        measured_to_computed: measured over computed step.
        problem: a line about what went wrong or disturbed it, or "".
    """

    plan: Planned
    measured_step_s: float | None
    measured_to_computed: float | None
    problem: str = ""
