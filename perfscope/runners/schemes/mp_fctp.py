"""mp.fc_tp: only the linear layers are split."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from perfscope.runners.config import BenchError
from perfscope.runners.inputs import ALL_INPUTS, InputKind
from perfscope.runners.job import Job
from perfscope.runners.model_parallel.pairs import COLUMN, FUSED, ROW, PairSurgeon, roles
from perfscope.runners.model_parallel.pieces import Pieces
from perfscope.runners.model_parallel.structure import Structure, read_structure
from perfscope.runners.model_parallel.volumes import pair_volumes
from perfscope.runners.models.blocks import Block
from perfscope.runners.models.shapes import LayerShape
from perfscope.runners.schemes.base import Axes
from perfscope.runners.schemes.mp_base import SplitModel, require_divisible, traffic_of
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class FcTensorParallel(SplitModel):
    """Linear layers split in pairs over the model group, convolutions computed by all of it."""

    name = "mp.fc_tp"
    summary = "Linear layers split in column/row pairs (Megatron); convolutions are computed by every rank."
    rule = (
        "Of two linear layers one after the other, the first is cut along outputs, the second along "
        "inputs: the group sums the second's output (all_reduce) and, backward, the gradient of the "
        "first's input (all_reduce). A last layer without a partner is cut along inputs: all_reduce "
        "forward, all_gather backward. In a transformer block attention is such a pair, cut by heads, and "
        "the feed-forward layers another."
    )
    volume = (
        "per pair 2(M-1)/M * b(|x_first| + |y_second|) e; for a single last layer (M-1)/M * b(2|y| + |x|) e"
    )
    inputs = ALL_INPUTS - {InputKind.CLICKS, InputKind.VOLUME}
    source = "Shoeybi et al. 2019, arXiv 1909.08053, section 3"
    axes = Axes(
        (Parallelism.MODEL,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_REDUCE,
        StatePlacement.SHARDED,
        "all_reduce in the group",
    )

    def split(self, model: nn.Sequential, structure: Structure) -> tuple[nn.Sequential, Pieces]:
        """See SplitModel."""
        surgeon = PairSurgeon(self.model_group, structure, seed=self.dropout_seed, device=self.world.device)
        return surgeon.split(model), surgeon.pieces

    @classmethod
    def inside(cls, job: Job, rank: int) -> list[Traffic]:
        """See SplitModel."""
        return traffic_of(job, rank, pair_volumes(read_structure(job.config)))

    @classmethod
    def own_layers(cls, job: Job) -> list[tuple[str, int]]:
        """See SplitModel. Weights of linear layers are cut, and the biases of those cut along outputs."""
        parts = job.mesh.size(Axis.TP)
        cut = {
            layer.name: layer.num_params if role == COLUMN else layer.num_weights
            for layer, role in _linear_layers(job, _blocks(job))
        }
        return [
            (layer.name, layer.num_params - size + size // parts)
            for layer in job.shape.layers
            for size in (cut.get(layer.name, 0),)
        ]

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        blocks = _blocks(job)
        layers, heads = _linear_layers(job, blocks), _heads(blocks)
        if not layers and job.mesh.size(Axis.TP) > 1:
            raise BenchError(f"{cls.name}: {job.config.model} has no linear layer to split")
        widths = []
        for layer, role in layers:
            if layer.name in heads:
                widths.append((layer.name, heads[layer.name], "heads"))
            elif role == COLUMN:
                widths.append((layer.name, layer.weight_shape[0], "outputs"))
            elif role != ROW:
                widths.append((layer.name, layer.weight_shape[1], "inputs"))
        require_divisible(cls.name, job.mesh.size(Axis.TP), widths)


def _linear_layers(job: Job, blocks: Sequence[tuple[str, Block]]) -> list[tuple[LayerShape, str]]:
    layers = {layer.name: layer for layer in job.shape.layers if layer.kind == "linear"}
    role_of = roles([name for name in layers if "." not in name])
    for name, block in blocks:
        for part, columns, row in block.pairs:
            role_of |= {f"{name}.{part}.{column}": COLUMN for column in columns}
            role_of[f"{name}.{part}.{row}"] = ROW
    return [(layers[name], role) for name, role in role_of.items()]


def _blocks(job: Job) -> list[tuple[str, Block]]:
    children = read_structure(job.config).model.named_children()
    return [(name, module) for name, module in children if isinstance(module, Block)]


def _heads(blocks: Sequence[tuple[str, Block]]) -> dict[str, int]:
    """Layers that are cut between heads, and how many they have."""
    heads = {}
    for name, block in blocks:
        for child, columns, _ in block.pairs:
            attention = getattr(block, child)
            for column in columns if hasattr(attention, "head_width") else ():
                width = attention.head_width * (3 if column == FUSED else 1)
                heads[f"{name}.{child}.{column}"] = getattr(attention, column).out_features // width
    return heads
