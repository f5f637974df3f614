"""What a bench run is and what its ranks recorded, typed: `scheme` of run.json, and bench.json.

`runners.identity` writes the one and `runners.rank` the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from perfscope.rundir.typed import Count, Figure, Nanoseconds, Record, Size, WholeLists
from perfscope.vocabulary.caches import CacheLevel

_Bytes = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_HELD_OUT = 2048  # samples kept by default, as by versions that did not record it
_Loss = Annotated[float, msgspec.Meta(ge=-1e290, le=1e290)]


class PredictedCall(Record, frozen=True):
    """Equal calls of one rank.

    Attributes:
        axis: of the mesh.
        num_ranks: of the group.
        bytes: S of one call.
        every: the calls happen in one of so many steps.
        what: is sent, in words.
        by_library: made by DDP, FSDP or torch's pipelines, in no ledger.
        count: calls in a step in which they happen; a mean where steps differ.
        links: bytes of one call over each link class.
        calls: of the whole run; None where an earlier version did not record it.
        scales_with: see vocabulary.traffic; None likewise.
    """

    collective: str
    axis: str
    num_ranks: Count
    bytes: Count
    every: Size
    what: str
    by_library: bool
    count: Figure
    links: dict[str, _Bytes]
    calls: Count | None = None
    scales_with: str | None = None


class Predicted(WholeLists, frozen=True):
    """What the scheme's formulas say that a run sends; bytes are per step and by link class.

    Attributes:
        calls_of_rank: by rank, as text; of very large runs the first ranks only.
    """

    bytes_algorithmic_per_step: dict[str, _Bytes]
    bytes_wire_per_step: dict[str, _Bytes]
    calls_of_rank: dict[str, tuple[PredictedCall, ...]]


class LearningRate(Record, frozen=True):
    """`value` is what the rule gives for the batch."""

    rule: str | None = None
    value: int | float | None = None


class PlacementGroup(Record, frozen=True):
    """Ranks that belong together along an axis of the mesh ("server": a server, then its workers)."""

    axis: str = ""
    ranks: tuple[Count, ...] = ()


class RankPlace(Record, frozen=True):
    """Where a rank was."""

    rank: Count
    host: str


class SchemeRecord(WholeLists, frozen=True):
    """`scheme` of run.json.

    Attributes:
        full_name: with modifiers.
        mesh: ranks along each axis.
        batch: samples of a step over all ranks; `group_batch` of one of the groups that share the weights.
        effective_batch: samples behind one update.
        data, data_id: "synthetic" or "local", and a short digest of the place of local data.
        held_out, moving_rate, dropout: None where an earlier version did not record them.
        steps: that were asked for; a target may end the run before.
        price_per_hour: of all its machines together.
        equals_serial: the weights are those of serial training; else `criterion` says what they are.
        document: the entry as it was read.
    """

    name: str = ""
    full_name: str = ""
    summary: str = ""
    axes: dict[str, str] | None = None
    mesh: dict[str, Count] | None = None
    num_ranks: Count = 0
    model: str = ""
    num_params: Count | None = None
    input_shape: tuple[Count, ...] | None = None
    num_classes: Count | None = None
    dtype: str | None = None
    batch: Count = 0
    group_batch: Count | None = None
    effective_batch: Count = 0
    learning_rate: LearningRate | None = None
    period: Count | None = None
    steps: Count | None = None
    seed: Count | None = None
    optimizer: str | None = None
    schedule: str | None = None
    warmup: Count | None = None
    momentum: Figure | None = None
    weight_decay: Figure | None = None
    clip_norm: Figure | None = None
    label_noise: Figure | None = None
    data: str | None = None
    data_id: str | None = None
    held_out: Count | None = None
    evaluate_every: Count | None = None
    moving_rate: Figure | None = None
    dropout: Figure | None = None
    accumulate: Count | None = None
    activation_checkpointing: bool = False
    compile: str | None = None
    target: str | None = None
    price_per_hour: Figure | None = None
    equals_serial: bool = False
    criterion: str = ""
    backend: str | None = None
    bind: str | None = None
    threads: Count | None = None
    groups: tuple[PlacementGroup, ...] = ()
    places: tuple[RankPlace, ...] = ()
    predicted: Predicted | None = None
    document: dict[str, object] = msgspec.field(default_factory=dict)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Entries that the figures of a bench run need and that are not there."""
        needed = ("full_name", "model", "num_ranks", "batch", "effective_batch")
        absent = [name for name in needed if not getattr(self, name)]
        absent += [name for name in ("mesh", "predicted") if getattr(self, name) is None]
        return tuple(absent)

    @property
    def update(self) -> tuple[tuple[str, object], ...]:
        """What decides an update beside the rule of the scheme, as (name, value); defaults have none."""
        rate = self.learning_rate
        return (
            ("optimizer", self.optimizer if self.optimizer != "sgd" else None),
            ("schedule", self.schedule if self.schedule != "constant" else None),
            ("rate", rate.value if rate is not None else None),
            *((name, getattr(self, name)) for name in ("warmup", "momentum", "weight_decay")),
            *((name, getattr(self, name)) for name in ("clip_norm", "moving_rate", "dropout")),
            ("steps", self.steps if self.target or self.schedule not in (None, "constant") else None),
            *((name, getattr(self, name)) for name in ("target", "evaluate_every")),
            ("accumulate", self.accumulate if self.accumulate != 1 else None),
            ("activation_checkpointing", self.activation_checkpointing or None),
            ("compile", self.compile if self.compile != "none" else None),
            ("held_out", self.held_out if self.held_out != _HELD_OUT else None),
            *self.task,
        )

    @property
    def task(self) -> tuple[tuple[str, object], ...]:
        """What is learned beside the model's input, as (name, value); defaults have none."""
        return (
            ("classes", self.num_classes),
            ("data", self.data_id or (self.data if self.data != "synthetic" else None)),
            ("label_noise", self.label_noise),
        )

    @property
    def rate_law(self) -> str:
        """The rule of the learning rate and its factor: the same for batches whose rates follow one rule."""
        rate = self.learning_rate or LearningRate()
        scale = {"linear": self.effective_batch, "sqrt": self.effective_batch**0.5}.get(rate.rule or "", 1)
        return f"{rate.rule} {(rate.value or 0) / (scale or 1):.6g}"

    @property
    def parallelism(self) -> str:
        return (self.axes or {}).get("parallelism", "")

    @property
    def optimisation(self) -> str:
        return (self.axes or {}).get("optimisation", "")

    @property
    def is_asynchronous(self) -> bool:
        return (self.axes or {}).get("synchrony") == "asynchronous"

    @property
    def size_of_sample(self) -> str:
        """``3x32x32``; "" where it is not known."""
        return "x".join(map(str, self.input_shape or ()))

    @property
    def calls_of_rank(self) -> Mapping[str, tuple[PredictedCall, ...]]:
        return self.predicted.calls_of_rank if self.predicted is not None else {}


class LedgerCall(Record, frozen=True):
    """Equal calls that a rank made during the run.

    Attributes:
        layers: that they serve, and the bytes by which these share them (of a single one they say nothing);
            empty: the scheme does not know them, or an earlier version did not record them.
    """

    collective: str
    axis: str
    num_ranks: Count
    bytes: Count
    count: Count
    layers: dict[str, Count] = msgspec.field(default_factory=dict)


class InterfaceBytes(Record, frozen=True):
    """Sent between a rank's first and last step, headers included."""

    tx_bytes: Count


class Pause(Record, frozen=True):
    """The training stood still behind a step (from 1), for an evaluation."""

    step: Count
    ns: Nanoseconds


class Evaluation(Record, frozen=True):
    """Of the model behind a step, on the held-out set; top1 and top5 are shares of its targets.

    `auc` is known of two classes.
    """

    step: Count
    num_samples: Count
    loss: _Loss | None = None
    top1: _Share | None = None
    top5: _Share | None = None
    auc: _Share | None = None


class NoiseNorms(Record, frozen=True):
    """Mean squared norm of small batches' gradients, and that of their mean; see runners.learning.noise."""

    step: Count
    small_batch: Size
    big_batch: Size
    small_sq: Figure
    big_sq: Figure


class BestKnown(Record, frozen=True):
    """What the synthetic samples allow at best."""

    accuracy: _Share
    loss: _Loss
    auc: _Share | None = None


class CacheUse(Record, frozen=True):
    """Samples that one rank took from a level of the caches of decoded samples.

    Attributes:
        bytes: of decoded samples; from storage, of the files.
        capacity_bytes: None: storage.
    """

    level: CacheLevel
    samples: Count
    bytes: Count
    capacity_bytes: Count | None = None


class BenchRecord(WholeLists, frozen=True):
    """bench.json of one rank.

    Attributes:
        losses: by step; None where it is no number, or the rank computes none.
        step_ends_ns: monotonic; one more than there are steps, the first is where the first step begins.
        calls: that the rank made itself.
        interfaces: of its host, by name.
        details: the scheme's own, by name.
        pauses: between steps, in order; their time is in `step_ends_ns`.
        evaluations, noise: what was measured meanwhile, on rank 0.
        target_step: behind which the target was reached, which ended the run.
        cache: by level; empty for data that is not decoded sample by sample.
    """

    losses: tuple[_Loss | None, ...] = ()
    step_ends_ns: tuple[Nanoseconds, ...] = ()
    calls: tuple[LedgerCall, ...] = ()
    interfaces: dict[str, InterfaceBytes] = msgspec.field(default_factory=dict)
    held_out_loss: _Loss | None = None
    peak_rss_bytes: Count | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    pauses: tuple[Pause, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    noise: tuple[NoiseNorms, ...] = ()
    target_step: Count | None = None
    cache: tuple[CacheUse, ...] = ()
    best: BestKnown | None = None

    @property
    def trained_ns(self) -> tuple[int, ...]:
        """Time since the first step's start at the start and behind each step, without pauses."""
        paused = {pause.step: pause.ns for pause in self.pauses}
        times, stood = [], 0
        for step, end in enumerate(self.step_ends_ns):
            stood += paused.get(step - 1, 0)
            times.append(end - self.step_ends_ns[0] - stood)
        return tuple(times)
