"""mp.filter: every rank computes some of each layer's output maps."""

from __future__ import annotations

from torch import nn

from perfscope.runners.job import Job
from perfscope.runners.model_parallel.channels import ChannelSurgeon
from perfscope.runners.model_parallel.pieces import Pieces
from perfscope.runners.model_parallel.structure import Structure, read_structure
from perfscope.runners.model_parallel.volumes import filter_volumes
from perfscope.runners.schemes.base import Axes
from perfscope.runners.schemes.mp_base import SplitModel, require_divisible, require_ungrouped, traffic_of
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class Filter(SplitModel):
    """Output feature maps split over the model group."""

    name = "mp.filter"
    summary = "Each rank computes K/M output maps of every layer (filter parallelism, Intel Caffe)."
    rule = (
        "Weights are cut along output maps. Before each layer that does not see the samples, the group "
        "gathers the layer's input (all_gather) and, backward, sums and scatters its gradient "
        "(reduce_scatter); branches of one block share the gather. ReLU, pools, BatchNorm work on own "
        "maps. The output is gathered, and every rank of the group computes the loss."
    )
    volume = (
        "sum over layers l >= 2 of 2(M-1)/M * b|x_l| e, and (M-1)/M * b|y| e for the output; "
        "gloo moves twice the reduce_scatter half"
    )
    source = "Intel Caffe (apply_mn_param.cpp, mn_activation_layer.cpp); Kahira et al. 2021, arXiv 2104.09075"
    axes = Axes(
        (Parallelism.MODEL,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_GATHER,
        StatePlacement.SHARDED,
        "all_gather and reduce_scatter in the group",
    )

    def split(self, model: nn.Sequential, structure: Structure) -> tuple[nn.Sequential, Pieces]:
        """See SplitModel."""
        surgeon = ChannelSurgeon(
            self.model_group, structure, by_filter=True, seed=self.dropout_seed, device=self.world.device
        )
        return surgeon.split(model), surgeon.pieces

    @classmethod
    def inside(cls, job: Job, rank: int) -> list[Traffic]:
        """See SplitModel."""
        return traffic_of(job, rank, filter_volumes(read_structure(job.config)))

    @classmethod
    def own_layers(cls, job: Job) -> list[tuple[str, int]]:
        """See SplitModel. Everything is cut evenly."""
        parts = job.mesh.size(Axis.TP)
        return [(layer.name, layer.num_params // parts) for layer in job.shape.layers]

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        require_ungrouped(cls.name, job)
        unit = {"conv": "output maps", "linear": "outputs", "norm": "maps"}
        widths = [(layer.name, layer.weight_shape[0], unit[layer.kind]) for layer in job.shape.layers]
        require_divisible(cls.name, job.mesh.size(Axis.TP), widths)
