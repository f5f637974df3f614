"""mp.channel: every rank takes in some of each layer's input maps."""

from __future__ import annotations

from torch import nn

from perfscope.runners.job import Job
from perfscope.runners.model_parallel.channels import ChannelSurgeon
from perfscope.runners.model_parallel.pieces import Pieces
from perfscope.runners.model_parallel.structure import Structure, read_structure
from perfscope.runners.model_parallel.volumes import channel_volumes
from perfscope.runners.models.shapes import LayerShape
from perfscope.runners.schemes.base import Axes
from perfscope.runners.schemes.mp_base import SplitModel, require_divisible, require_ungrouped, traffic_of
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class Channel(SplitModel):
    """Input feature maps split over the model group."""

    name = "mp.channel"
    summary = (
        "Each rank takes C/M input maps of every layer and the group adds up (channel parallelism, MLSL)."
    )
    rule = (
        "Weights are cut along input maps; each rank computes a partial sum of all K maps, which the group "
        "sums and scatters (reduce_scatter; all_gather of the gradient backward). Layers that see the "
        "samples compute K/M maps from all channels without exchange; the last layer's partial sums are "
        "summed on every rank (all_reduce), which computes the loss."
    )
    volume = (
        "sum over layers between the first and the last of 2(M-1)/M * b|y_l| e, and 2(M-1)/M * b|y| e for "
        "the last; gloo moves twice the reduce_scatter half"
    )
    source = "intel/MLSL, mlsl_impl.cpp, InitPeerConnection, cases 1 and 2"
    axes = Axes(
        (Parallelism.MODEL,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_GATHER,
        StatePlacement.SHARDED,
        "reduce_scatter and all_gather in the group",
    )

    def split(self, model: nn.Sequential, structure: Structure) -> tuple[nn.Sequential, Pieces]:
        """See SplitModel."""
        surgeon = ChannelSurgeon(
            self.model_group, structure, by_filter=False, seed=self.dropout_seed, device=self.world.device
        )
        return surgeon.split(model), surgeon.pieces

    @classmethod
    def inside(cls, job: Job, rank: int) -> list[Traffic]:
        """See SplitModel."""
        return traffic_of(job, rank, channel_volumes(read_structure(job.config)))

    @classmethod
    def own_layers(cls, job: Job) -> list[tuple[str, int]]:
        """See SplitModel. Everything is cut evenly but the last layer's bias, which every rank holds."""
        parts, last = job.mesh.size(Axis.TP), _summed_layer(job)
        return [
            (layer.name, layer.num_weights // parts + layer.num_params - layer.num_weights)
            if layer is last
            else (layer.name, layer.num_params // parts)
            for layer in job.shape.layers
        ]

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme. The maps that go in are the maps that came out of the layer before."""
        require_ungrouped(cls.name, job)
        unit = {"conv": "output maps", "linear": "outputs", "norm": "maps"}
        last = _summed_layer(job)
        widths = [
            (layer.name, layer.weight_shape[0], unit[layer.kind])
            for layer in job.shape.layers
            if layer is not last
        ]
        require_divisible(cls.name, job.mesh.size(Axis.TP), widths)


def _summed_layer(job: Job) -> LayerShape | None:
    """The last layer, if its partial sums go to every rank: not the first, and in no container."""
    layers = [layer for layer in job.shape.layers if layer.kind != "norm"]
    return layers[-1] if len(layers) > 1 and "." not in layers[-1].name else None
