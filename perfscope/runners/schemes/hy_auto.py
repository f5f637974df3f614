"""Per layer the cheaper of data and model parallelism, over the same ranks."""

from __future__ import annotations

from typing import Any

from perfscope.runners.hybrid.chain import DATA_MODE, MODEL_MODE, trained_blocks
from perfscope.runners.job import Job
from perfscope.runners.models.shapes import LayerShape
from perfscope.runners.schemes.hy_owt import HybridChain


class Auto(HybridChain):
    """The rule of Das et al."""

    name = "hy.auto"
    summary = (
        "Per layer the smaller of b|x| and |w| moves: model parallel where b|x| < |w|, else data parallel."
    )
    rule = (
        "For each convolution and fully connected layer: model parallel (all ranks' samples, 1/P of the "
        "outputs) if b|x| < |w|, where b = B as all P ranks form the model group; else data parallel. With "
        "--mesh dp=D,tp=M groups of M ranks, with b = B/D samples, take the place of the P ranks. Layers "
        "whose outputs the group does not divide, norms and blocks with branches or shortcuts are data "
        "parallel. Moves, and +overlap, as in hy.owt."
    )
    volume = (
        "2(P-1)/P * (SUM_data |w| + SUM_model B*|x| + SUM B*|y|/P where a data layer or the loss follows a "
        "model layer) * e; a model-parallel first layer gathers nothing, as each rank reads all samples"
    )
    source = "Das et al. 2016 (arXiv 1602.06709), section on hybrid parallelism"

    @classmethod
    def modes(cls, job: Job) -> dict[str, str]:
        """See HybridChain."""
        return {block: mode for block, (mode, _) in _decide(job).items()}

    @classmethod
    def layout(cls, job: Job) -> dict[str, Any]:
        """The decision for each layer with the numbers behind it; JSON values."""
        layers = {layer.name: layer for layer in job.shape.layers}
        by_block = {}
        for block, (mode, why) in _decide(job).items():
            entry: dict[str, Any] = {"mode": mode, "why": why}
            if block in layers:
                entry["activations"] = cls.model_batch(job) * layers[block].in_size
                entry["weights"] = layers[block].num_weights
            by_block[block] = entry
        return {"modes": cls.modes(job), "layers": by_block}


def _decide(job: Job) -> dict[str, tuple[str, str]]:
    """Block -> (mode, reason)."""
    single = {layer.name: layer for layer in job.shape.layers if layer.kind != "norm"}
    return {
        block: _decide_layer(single[block], Auto.model_batch(job), len(Auto.model_groups(job)[0]))
        if block in single
        else (DATA_MODE, "a norm, or a block of several layers")
        for block in trained_blocks(job.shape)
    }


def _decide_layer(layer: LayerShape, batch: int, num_ranks: int) -> tuple[str, str]:
    if batch * layer.in_size >= layer.num_weights:
        return DATA_MODE, "b|x| >= |w|"
    if num_ranks == 1 or layer.weight_shape[0] % num_ranks:
        return (
            DATA_MODE,
            f"b|x| < |w|, but {layer.weight_shape[0]} outputs are not cut over {num_ranks} ranks",
        )
    return MODEL_MODE, "b|x| < |w|"
