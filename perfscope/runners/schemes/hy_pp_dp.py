"""Pipelines side by side on parts of the batch, their stages' gradients averaged."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.schemes.base import Axes
from perfscope.runners.schemes.data_average import OVERLAP, average_traffic, open_average
from perfscope.runners.schemes.dp_gradients import CODECS
from perfscope.runners.schemes.pp_schedules import OneForwardOneBackward
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class PipelineDataParallel(OneForwardOneBackward):
    """D pipelines of S stages."""

    name = "hy.pp_dp"
    summary = (
        "D pipelines of S stages (1F1B), each on its part of the batch; equal stages average their gradients."
    )
    rule = (
        "Each pipeline trains on b = B/D samples in m microbatches; after its backward passes a stage's "
        "gradients are packed into one buffer and averaged over the D ranks that have the same stage; with "
        "+overlap each layer's as soon as the last microbatch's backward pass has completed it. "
        "BatchNorm uses each microbatch's statistics."
    )
    volume = (
        "per cut b*|y_cut|*e forward and as much backward, in m messages each way (by torch's pipeline), "
        "plus 2(D-1)/D * |w_stage|*e"
    )
    source = "Huang et al. 2019 (arXiv 1811.06965), Narayanan et al. 2021 (arXiv 2104.04473)"
    axes = Axes(
        (
            Parallelism.DATA,
            Parallelism.PIPELINE,
        ),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.POINT_TO_POINT,
        StatePlacement.SHARDED,
        "chain of stages; ring all-reduce between equal stages",
    )
    splits = (Axis.DP, Axis.PP)
    modifiers = CODECS | {OVERLAP}

    @classmethod
    def default_mesh(cls, num_ranks: int) -> Mesh:
        """See Scheme: two data parts where at least two stages remain."""
        if num_ranks >= 4 and num_ranks % 2 == 0:
            return Mesh({Axis.DP: 2, Axis.PP: num_ranks // 2})
        return Mesh({Axis.PP: num_ranks})

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        members = job.mesh.group(Axis.DP, rank)
        (index,) = cls.stages_of(job, rank)
        blocks = cls.stages(job)[index].blocks
        layers = [
            (layer.name, layer.num_params)
            for layer in job.shape.layers
            if job.shape.blocks[layer.block] in blocks
        ]
        return [*super().traffic(job, rank), *average_traffic(job, members, "stage", layers)]

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        overlaps = self.config.modifier(OVERLAP) is not None
        self.scales_gradients = not overlaps  # torch does it behind the last pass, when they are on their way
        super().build(model)
        (part,) = self.parts
        m = self.num_microbatches(self.job)
        self._average = open_average(
            self,
            part,
            list(part.named_parameters()),
            self.world.groups(Axis.DP, self.job.mesh.groups(Axis.DP)),
            key="stage",
            divisor=m if overlaps else 1,
            num_passes=m,
        )

    def clear_gradients(self) -> None:
        """See Pipeline."""
        self._average.clear()

    def exchange_gradients(self) -> None:
        """Averages the stage's gradients over the data group."""
        self._average.finish()
