"""Pipelines side by side on parts of the batch, their stages' gradients averaged."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from perfscope.runners import comm
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.schemes.base import Axes
from perfscope.runners.schemes.dp_gradients import CODECS, exchange_traffic
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
        "gradients are packed into one buffer and averaged over the D ranks that have the same stage. "
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
    modifiers = CODECS

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
        params = cls.stages(job)[index].params
        return [*super().traffic(job, rank), *exchange_traffic(job, members, [("stage", params)])]

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        super().build(model)
        self._data = self.world.groups(Axis.DP, self.job.mesh.groups(Axis.DP))
        self._exchange = make_exchange(self.config)
        (part,) = self.parts
        self._flat = self.world.ledger.flat(part)

    def exchange_gradients(self) -> None:
        """Averages the stage's packed gradients over the data group."""
        if self._data.size == 1:
            return
        gradients = [value.grad for value in self._params]
        mean = self._exchange.start("stage", comm.flatten(gradients, self._flat), self._data).wait()
        comm.unflatten(mean, gradients)
