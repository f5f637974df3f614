"""What schemes that split a model over a group share: step, average over data parts, undivided state."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from math import gcd
from typing import ClassVar

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.config import BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.job import Job
from perfscope.runners.model_parallel.pieces import Pieces, assemble
from perfscope.runners.model_parallel.structure import Structure, read_structure
from perfscope.runners.model_parallel.volumes import Exchanged
from perfscope.runners.schemes.base import DIVIDED_MODEL, NO_WHOLE_GRADIENT, Batch, Scheme
from perfscope.runners.schemes.data_average import average_traffic, open_average
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.traffic import ScalesWith


class SplitModel(Scheme):
    """A model whose layers are split over a model group; data parts, if any, average their gradients.

    A group sees the same b samples. Every rank updates what it holds.
    """

    splits: ClassVar[tuple[Axis, ...]] = (Axis.TP,)
    refused_updates = NO_WHOLE_GRADIENT
    refused_passes = DIVIDED_MODEL
    whole_layers = False
    cuts_layers = True
    inputs: ClassVar[frozenset[InputKind]] = frozenset((InputKind.IMAGE, InputKind.TABLE))

    @abstractmethod
    def split(self, model: nn.Sequential, structure: Structure) -> tuple[nn.Sequential, Pieces]:
        """This rank's model, and what it holds of the whole."""

    @classmethod
    @abstractmethod
    def inside(cls, job: Job, rank: int) -> list[Traffic]:
        """What `rank` sends inside its group of at least two in a step."""

    @classmethod
    @abstractmethod
    def own_layers(cls, job: Job) -> list[tuple[str, int]]:
        """(layer, parameters of it that each rank holds)."""

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        mesh = self.job.mesh
        self.model_group = self.world.groups(Axis.TP, mesh.groups(Axis.TP))
        self.data_group = self.world.groups(Axis.DP, mesh.groups(Axis.DP))
        self.shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        self.model, self.pieces = self.split(model, read_structure(self.config))
        self.params = list(self.model.parameters())
        self.optimizer = make_optimizer(self, self.params)
        names = {id(piece.value): name for name, piece in reversed(self.pieces.held.items())}
        self.average = open_average(
            self,
            self.model,
            [(names[id(value)], value) for value in self.params],
            self.data_group,
            key="gradients",
        )
        comm.name_groups(self.model)

    @property
    def dropout_seed(self) -> int:
        """Differs between data parts, not inside a group."""
        return self.config.seed * self.job.num_ranks + self.data_part[0]

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self.average.clear()
        loss = loss_of(self.model, batch)
        loss.backward()
        self.finish_gradients()
        self.average.finish()
        self.optimizer.step()
        return loss.detach()

    def finish_gradients(self) -> None:
        """What the group still owes before gradients are right."""

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme. From the ranks of data part 0."""
        first = self.data_part[0] == 0
        held = self.world.peers.gather(self.pieces.values() if first else None)
        if held is None:
            return None
        return assemble(self.shapes, held[: self.job.mesh.size(Axis.TP)])

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        inside = cls.inside(job, rank) if job.mesh.size(Axis.TP) > 1 else []
        members = job.mesh.group(Axis.DP, rank)
        return [*inside, *average_traffic(job, members, "gradients", cls.own_layers(job))]


def traffic_of(job: Job, rank: int, exchanged: Iterable[Exchanged]) -> list[Traffic]:
    """Calls of one group whose sizes follow from its b samples."""
    return [
        Traffic(
            collective=exchange.collective,
            axis=Axis.TP,
            members=job.mesh.group(Axis.TP, rank),
            bytes=exchange.per_sample * job.group_batch * job.element_size,
            count=count,
            what=exchange.what,
            scales_with=ScalesWith.SAMPLES,
        )
        for exchange, count in Counter(exchanged).items()
    ]


def require_divisible(
    scheme: str, num_parts: int, widths: Iterable[tuple[str, int, str]], axis: Axis = Axis.TP
) -> None:
    """Raises BenchError naming the first of (layer, width, of what) that num_parts does not divide.

    The line says which size of the axis would do.
    """
    layer_widths = list(widths)
    for layer, width, unit in layer_widths:
        if width % num_parts:
            common = gcd(*(width for _, width, _ in layer_widths))
            fits = [m for m in range(2, common + 1) if common % m == 0 and m < num_parts]
            hint = f"{axis}={' or '.join(map(str, fits))} would do" if fits else f"no {axis} above 1 would do"
            raise BenchError(
                f"{scheme}: {layer} has {width} {unit}, which {num_parts} ranks cannot share; {hint}"
            )


def require_ungrouped(scheme: str, job: Job) -> None:
    """Raises BenchError for a grouped convolution: its maps do not see all input maps."""
    for layer in job.shape.layers:
        if layer.kind == "conv" and layer.weight_shape[1] != layer.in_shape[0]:
            raise BenchError(f"{scheme}: {layer.name} is a grouped convolution, which cannot be split")
