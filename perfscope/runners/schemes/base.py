"""What a scheme is: a layout of groups, a way to build the model on it, a step, and what the step sends.

A scheme knows nothing about launching, data files, recording or reports. To add one, write a class (in its
own file or its family's) and put it in the tuple of registry.py; list, docs and sweeps follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from perfscope.runners.config import LAYERWISE, BenchConfig, BenchError, evaluation_interval
from perfscope.runners.inputs import ALL_INPUTS, InputKind
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.schemes.passes import Passes
from perfscope.runners.traffic import Traffic
from perfscope.runners.world import World
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import (
    HYBRID,
    CompressionKind,
    Optimization,
    Parallelism,
    StatePlacement,
    Synchrony,
    Topology,
)

# Settings of the update that not every scheme can apply, and the value that leaves each out.
UPDATE_SETTINGS: Mapping[str, object] = {
    "optimizer": "sgd",
    "schedule": "constant",
    "warmup": 0,
    "weight_decay": 0.0,
    "clip_norm": None,
}
OWN_RULE = dict.fromkeys(("optimizer", "weight_decay", "clip_norm"), "its rule is an update of its own")
CONSTANT_RULE = {**OWN_RULE, **dict.fromkeys(("schedule", "warmup"), "its workers share no count of steps")}
DIVIDED_MODEL = {
    "accumulate": "what its ranks exchange inside a step is planned for whole batches; leave it out",
    "activation_checkpointing": "what is computed again would be exchanged again; leave it out",
    "mixed": "its ranks exchange activations, which are of the weights' type; use float32 or float64",
    "compile": "its ranks exchange inside of what would be compiled; use serial, dp.* or --mesh",
}
NO_SKIP = {
    "float16": "all ranks must skip a step whose gradient is not finite, and none can tell before "
    "the update; use bfloat16"
}
OWN_LOOP = {
    "compile": "its workers exchange what they train on in a loop of their own; use serial, dp.* or --mesh"
}
OF_TORCH = ("gloo", "nccl")  # backends of schemes in which torch itself makes calls
NO_WHOLE_GRADIENT = {"clip_norm": "no rank has the whole gradient"}


class Axes(NamedTuple):
    """What kind of scheme it is; see vocabulary.taxonomy."""

    parallelism: tuple[Parallelism, ...]
    optimisation: Optimization
    synchrony: Synchrony
    topology: Topology
    state: StatePlacement
    pattern: str  # of the exchange, in words: ring all-reduce, parameter server (1 of n) ...

    def record(self, compression: Iterable[CompressionKind] = ()) -> dict[str, str]:
        """The columns as text, for run.json and lists.

        Args:
            compression: what gradients pass through, or could.
        """
        kinds = dict.fromkeys(compression) or (CompressionKind.NONE,)
        return {
            "parallelism": HYBRID.join(kind.value for kind in self.parallelism),
            "optimisation": self.optimisation.value,
            "synchrony": self.synchrony.value,
            "topology": self.topology.value,
            "compression": HYBRID.join(kind.value for kind in kinds),
            "state": self.state.value,
            "pattern": self.pattern,
        }


def hybrid_axes(topology: Topology, pattern: str, divides: Parallelism = Parallelism.MODEL) -> Axes:
    """Of schemes that are data parallel, and also divide the model: by default layers, inside of groups."""
    return Axes(
        (Parallelism.DATA, divides),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        topology,
        StatePlacement.SHARDED,
        pattern,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's samples of one step: the b of its data part (a worker's own batch without a mesh).

    Attributes:
        inputs: images (b, C, H, W), tables (b, F), or tokens (b, T) as int64.
        targets: int64; classes (b,), or the next tokens (b, T).
    """

    inputs: torch.Tensor
    targets: torch.Tensor


class Feed(ABC):
    """Where a rank's batches come from; every rank can make any data part's batch of any step."""

    @abstractmethod
    def batch(self, step: int, part: int, num_parts: int) -> Batch:
        """Samples part*b .. (part+1)*b-1 of the step's global batch, b = B / num_parts."""

    def cache_record(self) -> list[dict[str, Any]]:
        """Where its samples came from so far, for bench.json; empty: from no cache."""
        return []


def passes_options(config: BenchConfig) -> dict[str, str]:
    """Keys of `Scheme.refused_passes` that a run asks for -> the option that does."""
    asked = {
        "accumulate": (config.accumulate > 1, f"--accumulate {config.accumulate}"),
        "activation_checkpointing": (config.activation_checkpointing, "--activation-checkpointing"),
        "compile": (config.compile != "none", f"--compile {config.compile}"),
        "mixed": (config.is_mixed, f"--dtype {config.dtype}"),
        "float16": (config.dtype == "float16", "--dtype float16"),
    }
    return {name: option for name, (is_asked, option) in asked.items() if is_asked}


class Scheme(ABC):
    """One parallel scheme on one rank.

    Class attributes:
        name: canonical.
        summary: one sentence for lists.
        rule: the update and the exchange, a few sentences or formulas, for docs/schemes.md.
        volume: bytes that one rank sends per step, a formula in words, for docs/schemes.md.
        source: where the rule comes from.
        axes: see Axes.
        splits: axes of the mesh that may exceed 1.
        inputs: kinds of samples that it can divide; see runners.inputs.
        modifiers: names that may follow with `+`.
        equals_serial: True if the weights equal serial training's up to rounding (without compression).
        criterion: what holds instead, where they do not.
        deterministic: the same weights in every run.
        one_host: ranks must share one host's memory.
        divides_servers: several ranks may serve parts of the weights.
        whole_layers: a rank knows the norms of whole layers.
        cuts_layers: layers are divided, for which the scheme must know each kind of layer.
        backends: what its exchange can run on.
        refused_passes: "accumulate", "activation_checkpointing", "compile", "mixed" (precision), "float16" ->
            why not.
        refused_updates: settings of the update that the scheme cannot apply (UPDATE_SETTINGS) -> the reason.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    rule: ClassVar[str]
    volume: ClassVar[str]
    source: ClassVar[str] = ""
    axes: ClassVar[Axes]
    splits: ClassVar[tuple[Axis, ...]] = (Axis.DP,)
    inputs: ClassVar[frozenset[InputKind]] = ALL_INPUTS
    modifiers: ClassVar[frozenset[str]] = frozenset()
    equals_serial: ClassVar[bool] = True
    criterion: ClassVar[str] = ""
    deterministic: ClassVar[bool] = True
    one_host: ClassVar[bool] = False
    divides_servers: ClassVar[bool] = False
    whole_layers: ClassVar[bool] = True
    cuts_layers: ClassVar[bool] = False
    refused_updates: ClassVar[Mapping[str, str]] = {}
    refused_passes: ClassVar[Mapping[str, str]] = {}
    backends: ClassVar[tuple[str, ...]] = ("gloo", "nccl", "mpi")

    # --- before anything runs ---------------------------------------------------------------------------

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """The mesh when the user names none: all along the one axis; two data parts if there are two axes."""
        splits = cls.splits or (Axis.DP,)
        if len(splits) == 1 or num_ranks % 2:
            return Mesh({splits[-1]: num_ranks})
        return Mesh({splits[0]: 2, splits[-1]: num_ranks // 2})

    @classmethod
    def check_mesh(cls, mesh: Mesh) -> None:
        """Raises BenchError if the scheme cannot use an axis that the mesh splits."""
        for axis in mesh.axes:
            if axis not in cls.splits:
                allowed = " and ".join(cls.splits) or "nothing"
                raise BenchError(f"{cls.name} splits {allowed}; {axis} must be 1 in mesh {mesh}")

    @classmethod
    def check_input(cls, model: str, kind: InputKind) -> None:
        """Raises BenchError if the scheme cannot divide a model with samples of this kind."""
        if kind not in cls.inputs:
            takes = " and ".join(input_kind for input_kind in InputKind if input_kind in cls.inputs)
            raise BenchError(f"{cls.name} cannot train {model}: it takes {takes} inputs, not {kind}")

    @classmethod
    def check_modifiers(cls, config: BenchConfig) -> None:
        """Raises BenchError for a modifier that the scheme cannot take, or whose number is wrong."""
        from perfscope.runners.compression.registry import check_modifiers

        check_modifiers(config.modifiers)
        for modifier in config.modifiers:
            if modifier.name not in cls.modifiers:
                accepted = ", ".join(f"+{modifier_name}" for modifier_name in sorted(cls.modifiers)) or "none"
                raise BenchError(f"{cls.name} cannot take +{modifier.name} (it takes: {accepted})")

    @classmethod
    def check_update(cls, config: BenchConfig) -> None:
        """Raises BenchError for an optimizer, a schedule or a limit that the rule has no place for."""
        for setting, reason in cls.refused_updates.items():
            value = getattr(config, setting)
            if value != UPDATE_SETTINGS[setting]:
                raise BenchError(
                    f"{cls.name} cannot take --{setting.replace('_', '-')} {value}: {reason}; leave it out"
                )
        if config.optimizer in LAYERWISE and not cls.whole_layers:
            raise BenchError(
                f"{cls.name} cannot take --optimizer {config.optimizer}: ranks hold parts of some layers, "
                f"whose norms none knows; use sgd, nesterov or adamw"
            )

    @classmethod
    def check_passes(cls, config: BenchConfig) -> None:
        """Raises BenchError for micro-batches, recomputation or a precision that the scheme cannot use."""
        options = passes_options(config)
        for name, reason in cls.refused_passes.items():
            if name in options:
                raise BenchError(f"{cls.name} cannot take {options[name]}: {reason}")

    @classmethod
    def check(cls, job: Job) -> None:
        """Raises BenchError for what only this scheme forbids: a layer that does not divide, say."""
        del job

    @classmethod
    def evaluation_interval(cls, config: BenchConfig) -> int | None:
        """Steps from one evaluation to the next, at which there is one model; None: there is none."""
        return evaluation_interval(config)

    @classmethod
    @abstractmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """Everything that `rank` sends in a step (for asynchronous workers: per update of their own)."""

    @classmethod
    def effective_batch(cls, job: Job) -> int:
        """Samples behind one update of the (central) weights."""
        return job.config.batch

    @classmethod
    def num_parts(cls, mesh: Mesh, servers: int = 1) -> int:
        """Into how many parts the batch is cut: dp * fsdp, unless other ranks have samples of their own.

        `servers` have none, in schemes with servers.
        """
        del servers
        return mesh.num_data_parts

    @classmethod
    def num_microbatches(cls, job: Job) -> int:
        """Into how many pieces a part goes through the model one after the other."""
        return job.config.accumulate

    @classmethod
    def placement_groups(cls, job: Job) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """Groups of ranks by axis, for run.json; those of size one are left out."""
        return {str(axis): job.mesh.groups(axis) for axis in job.mesh.axes}

    @classmethod
    def layout(cls, job: Job) -> Mapping[str, Any]:
        """What the scheme decides about this model: stages, the mode of each layer. JSON values."""
        del job
        return {}

    model: nn.Module  # of this rank, where it is one module

    # --- on a rank --------------------------------------------------------------------------------------

    def __init__(self, job: Job, world: World) -> None:
        self.job = job
        self.world = world
        self.config = job.config
        self.passes = Passes(job.config, world.device)

    @property
    def data_part(self) -> tuple[int, int]:
        """(which, of how many) data parts this rank trains on."""
        return self.job.mesh.data_index(self.world.rank), self.num_parts(self.job.mesh, self.config.servers)

    @abstractmethod
    def build(self, model: nn.Sequential) -> None:
        """Takes the whole model (same values on every rank, on the rank's device) and lays it out."""

    @abstractmethod
    def step(self, batch: Batch) -> torch.Tensor | None:
        """One update. Returns the mean loss of the batch (a detached scalar), None where it is not known."""

    def rehearse(self, batch: Batch) -> None:
        """A forward and a backward pass without an update: for what happens in the first ones only."""
        self.passes.rehearse(self.model, batch)

    def run(self, feed: Feed, steps: int, note: LoopReporter) -> None:
        """The loop. Schemes whose ranks have roles (a server) or share no step override it."""
        part, num_parts = self.data_part
        for number in range(steps):
            if note.step(number, self.step(feed.batch(number, part, num_parts))):
                break
        self.finish()

    def finish(self) -> None:  # noqa: B027 - most schemes have nothing in flight
        """After the last step, and before the model is looked at: complete what is in flight, apply it."""

    @abstractmethod
    def full_state(self) -> dict[str, torch.Tensor] | None:
        """The trained model, named and shaped as undivided, on rank 0; None elsewhere. Called by all."""

    def details(self) -> Mapping[str, Any]:
        """What the run should record besides losses and calls: staleness, compression ratio. JSON values."""
        return {}


class LoopReporter(ABC):
    """What the loop reports to."""

    @abstractmethod
    def step(self, number: int, loss: torch.Tensor | None) -> bool:
        """Step `number` (from 0) has ended. True: it was the last one, on all ranks."""
