"""Per layer: time forward and backward, calls, modeled work, and exposed communication.

Leaf attribution: an operator belongs to the innermost layer whose forward it runs in (or whose backward it
is), so a container such as `features` has only the operators it runs itself, and the layers' times add up
instead of counting children twice. Time is the union of a layer's operators (device: of its kernels) in one
phase, per mean analyzed step, averaged over the ranks that were traced. A device's work belongs to the step
that launched it, even if the device gets to it after the step's end.

A layer's exposed communication is that of `communication`. Where some of it belongs to no known layer, a
layer without any has no figure rather than 0.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.analysis.buckets import LayerParams
from perfscope.analysis.communication import COMMUNICATION_COLUMNS, ModelParams, RankComm
from perfscope.analysis.communication_record import RunComm
from perfscope.analysis.communication_results import missing_of
from perfscope.analysis.counter_results import LayerCounters
from perfscope.analysis.intervals import Float64
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.results import Communication, LayerResult, LayerTimes
from perfscope.rundir.records import LayersRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.communication import Unattributed
from perfscope.vocabulary.figures import Figure

LAYER_COLUMNS = (*COMMUNICATION_COLUMNS, "flops", "bytes_read")
_NUM_MEANS = 7
_CALLS = 2  # place of the calls in the means of `LayerRecord`


class ModelFacts(Struct, frozen=True, kw_only=True):
    """layers.json of one rank, typed; empty for imports."""

    record: LayersRecord | None
    root: str | None
    types: Mapping[str, str]
    params: Mapping[str, int]
    shapes: tuple[LayerParams, ...]  # in order of registration

    @classmethod
    def of(cls, record: LayersRecord | None) -> ModelFacts:
        rows = record.layers if record is not None else ()
        return cls(
            record=record,
            root=record.root if record is not None else None,
            types={row.layer: str(row.type) for row in rows},
            params={row.layer: row.params or 0 for row in rows},
            shapes=tuple((row.layer, _counts(row.param_shapes or ())) for row in rows),
        )

    def norm_features(self) -> dict[str, int]:
        """Features of each layer that keeps running statistics: those of an affine BatchNorm."""
        return {
            layer: counts[0]
            for layer, counts in self.shapes
            if "BatchNorm" in self.types.get(layer, "") and len(counts) == 2 and counts[0] > 0
        }


class _LayerSums(Struct, kw_only=True):
    """Totals of one layer on one rank."""

    forward: int = 0
    backward: int = 0
    calls: int = 0
    forward_flops: int = 0
    backward_flops: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0
    knows_flops: bool = False
    knows_bytes: bool = False


def _no_means() -> array[float]:
    return array("d")


class _Held(Struct):
    """Parameters of one layer on each rank that has it."""

    ranks: array[int] = field(default_factory=lambda: array("q"))
    params: array[int] = field(default_factory=lambda: array("q"))


class LayerRecord(Struct):
    """Layers of every rank so far: per rank sums turned into means once the rank is complete."""

    means: dict[str, array[float]] = field(default_factory=lambda: defaultdict(_no_means))  # _NUM_MEANS each
    ranks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # in the order of `means`
    first_seen: dict[str, tuple[int, int]] = {}
    types: dict[str, str] = {}
    params: dict[str, int] = {}
    num_ranks: int = 0
    knows: dict[str, tuple[bool, bool]] = {}
    comm: RunComm = field(default_factory=RunComm)
    held: dict[str, _Held] = field(default_factory=lambda: defaultdict(_Held))

    def times(self, layers: Sequence[LayerResult]) -> dict[str, LayerTimes]:
        """The times on each rank, by layer, of these."""
        return {
            entry.layer: LayerTimes(ranks=self.ranks[entry.layer], means=self.means_of(entry.layer))
            for entry in layers
        }

    def means_of(self, layer: str) -> Float64:
        """Of each of its ranks, shape (ranks, _NUM_MEANS)."""
        return np.frombuffer(self.means[layer], np.float64).reshape(-1, _NUM_MEANS)

    def merge(self, later: LayerRecord) -> None:
        """Takes in the layers of later ranks."""
        for layer, means in later.means.items():
            self.means[layer] += means
            self.ranks[layer] += later.ranks[layer]
            flops, moved = later.knows[layer]
            previous = self.knows.get(layer, (False, False))
            self.knows[layer] = (previous[0] or flops, previous[1] or moved)
            rank, position = later.first_seen[layer]
            self.first_seen.setdefault(layer, (self.num_ranks + rank, position))
        for layer, held in later.held.items():
            self.held[layer].ranks += held.ranks
            self.held[layer].params += held.params
        self.num_ranks += later.num_ranks
        self.types.update(later.types)
        self.params.update(later.params)
        self.comm.merge(later.comm)


def _counts(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Elements of each parameter. One whose elements other ranks hold, or none does, is in no call here."""
    return tuple(count for count in map(math.prod, shapes) if count)


class RankLayers(Struct):
    """Layers of one rank, to which `layer_windows` adds its windows."""

    model: ModelFacts
    sums: dict[str, _LayerSums] = field(default_factory=lambda: defaultdict(_LayerSums))
    first_seen: dict[str, int] = {}
    num_steps: int = 0
    num_shaped_steps: int = 0  # of windows that were recorded with the shapes of operators' inputs
    comm: RankComm = field(default_factory=RankComm)

    def params(self) -> ModelParams:
        """Gradients become ready in registration backwards at first, then in execution backwards."""
        registered = list(reversed(self.model.shapes))
        last = len(self.first_seen)
        executed = sorted(
            self.model.shapes, key=lambda item: self.first_seen.get(item[0], last), reverse=True
        )
        return ModelParams(orders=(registered, executed), norm=self.model.norm_features())

    def finish(self, record: LayerRecord, rank: int) -> None:
        """Adds this rank's means per step to the record of all ranks."""
        if self.num_steps == 0:
            return
        record.num_ranks += 1
        record.comm.add(rank, self.comm, self.num_steps)
        for layer in self.comm.layers:
            self.sums[layer]  # a layer that runs no operator of its own has its communication all the same
        num, num_shaped = self.num_steps, self.num_shaped_steps or self.num_steps
        for layer, sums in self.sums.items():
            means = (
                *(sums.forward / num, sums.backward / num, sums.calls / num),
                *(sums.forward_flops / num_shaped, sums.backward_flops / num_shaped),
                *(sums.forward_bytes / num_shaped, sums.backward_bytes / num_shaped),
            )
            record.means[layer].extend(means)
            record.ranks[layer].append(rank)
            if layer not in record.knows:
                record.knows[layer] = (False, False)
                last = len(self.first_seen)
                record.first_seen[layer] = (record.num_ranks, self.first_seen.get(layer, last))
            if sums.knows_flops or sums.knows_bytes:
                flops, moved = record.knows[layer]
                record.knows[layer] = (flops or sums.knows_flops, moved or sums.knows_bytes)
        for layer, params in self.model.params.items():
            held = record.held[layer]
            held.ranks.append(rank)
            held.params.append(params)
        record.types.update(self.model.types)
        record.params.update(self.model.params)


class UnevenLayer(Struct, frozen=True, kw_only=True):
    """A layer of which two ranks hold unequal shares; `most` and `least` are parameters."""

    layer: str
    most: int
    most_rank: int
    least: int
    least_rank: int


def uneven_layer(record: LayerRecord, least_ratio: float) -> UnevenLayer | None:
    """The layer of which ranks' parameters differ most, if by more than `least_ratio` of the least.

    More FLOPs alone are no uneven split: a rank of data parallelism may do extra work in a layer.

    Args:
        record: of all ranks.
        least_ratio: what does not count as unequal.
    """
    layers = []
    for layer, held in record.held.items():
        most, least = max(held.params), min(held.params)
        if least > 0 and most > (1 + least_ratio) * least:
            most_rank, least_rank = (held.ranks[held.params.index(params)] for params in (most, least))
            layers.append(
                UnevenLayer(layer=layer, most=most, most_rank=most_rank, least=least, least_rank=least_rank)
            )
    return max(layers, key=lambda candidate: candidate.most - candidate.least, default=None)


def arithmetic_ratio(record: LayerRecord, rank: int) -> float | None:
    """FLOPs of a rank over the mean of the others: of the median layer that all compute; None: not known.

    Larger inputs mean more of them in every layer; one that does something besides has more in few.
    """
    ratios = []
    for layer, ranks in record.ranks.items():
        means = record.means_of(layer)
        flops = dict(zip(ranks, (means[:, 3] + means[:, 4]).tolist(), strict=True))
        own_flops = flops.pop(rank, 0.0)
        if own_flops > 0 and len(flops) == record.num_ranks - 1 and flops and min(flops.values()) > 0:
            ratios.append(own_flops * len(flops) / sum(flops.values()))
    return float(np.median(ratios)) if ratios else None


def layer_results(
    record: LayerRecord,
    communication: Communication | None,
    counters: Mapping[str, LayerCounters],
    no_layers: str,
) -> tuple[tuple[LayerResult, ...], tuple[Missing, ...]]:
    """All layers in order of first execution, and what is missing of them.

    Args:
        record: of all ranks.
        communication: of the mean rank.
        counters: by layer.
        no_layers: why a trace of this framework may name none; "" = that has been said.
    """
    if not record.num_ranks:
        return (), ()
    marks_calls = any(record.means_of(layer)[:, _CALLS].any() for layer in record.means)
    exposed_of = _exposed_of_layers(communication)
    results = []
    order = sorted(record.means, key=lambda layer: (*record.first_seen[layer], layer))
    for position, layer in enumerate(order):
        columns = record.means_of(layer).sum(axis=0) / record.num_ranks
        forward, backward, calls, *work = columns.tolist()
        exposed = exposed_of.get(layer, exposed_of[""])
        knows_flops, knows_bytes = record.knows[layer]
        if not (forward or backward or exposed or knows_flops):
            continue  # a container that runs no operator of its own
        flops = [round(amount) if knows_flops else None for amount in work[:2]]
        moved = [round(amount) if knows_bytes else None for amount in work[2:]]
        results.append(
            LayerResult(
                layer=layer,
                module_type=record.types.get(layer),
                calls=calls if marks_calls else None,
                forward_ns=round(forward),
                backward_ns=round(backward),
                exposed_comm_ns=exposed,
                flops=round(work[0] + work[1]) if knows_flops else None,
                bytes=round(work[2] + work[3]) if knows_bytes else None,
                order=position,
                num_params=record.params.get(layer),
                forward_flops=flops[0],
                backward_flops=flops[1],
                forward_bytes=moved[0],
                backward_bytes=moved[1],
                counters=counters.get(layer),
            )
        )
    if not results:
        entry = missing_figure(Figure.LAYERS, Cause.NOT_IN_TRACE_FORMAT, reason=no_layers)
        return (), (entry,) if no_layers else ()
    return tuple(results), missing_of(communication)


def _exposed_of_layers(communication: Communication | None) -> dict[str, int | None]:
    """Exposed communication by layer, ns; "" is any other layer: 0 where all of it is attributed."""
    if communication is None or not (communication.exposed_ns or communication.hidden_ns):
        return {"": None}
    is_open = any(
        entry.exposed_ns and entry.reason is not Unattributed.NO_LAYER_TENSORS
        for entry in communication.unattributed
    )
    times: dict[str, int | None] = {entry.layer: entry.exposed_ns for entry in communication.by_layer}
    return {**times, "": None if is_open else 0}
