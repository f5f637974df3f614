"""The communication of one rank's windows, divided among layers and process groups.

Where several calls are under way at once, each gets an equal part of the time, but of messages of one thread
only the one that ends first: the thread waits for it. So the parts of all calls add up to the communication
of the step breakdown, and their exposed parts to its exposed communication.

A call belongs to the layers that the program says (`served_layers`), which share it by bytes. Where it says
nothing, a call belongs to the layer in which it was made (the reader finds it: the layer's mark around the
call, the forward operator of a node in backward, the range of FSDP2). A call made in none is taken for a
gradient bucket if the all-reduces of its step and group cut the parameters into consecutive pieces
(`buckets`): its time is divided among the layers by their elements. Broadcasts as large as the buffers of
normalization layers, and gathers and broadcasts that are together all parameters, are divided likewise.
Barriers, single numbers, and what DistributedDataParallel sends beside its buckets, carry no layer's tensors.
Sends and receives outside of layers keep their other end: whether they are between stages of a pipeline is
known once the axes of the groups are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct, field

from perfscope.analysis.buckets import Bucket, LayerParams, match_buckets
from perfscope.analysis.group_axes import EXCHANGES, CommGroup, GroupUse
from perfscope.analysis.intervals import Int64, distinct, distinct_pairs, one_of
from perfscope.analysis.served_layers import Boundary
from perfscope.analysis.spans import FORWARD
from perfscope.analysis.window_calls import POINT_TO_POINT, WindowCalls, WindowComm
from perfscope.vocabulary.communication import Unattributed

COMMUNICATION_COLUMNS = (
    *("start_ns", "dur_ns", "device", "lane", "kind", "phase", "step", "launch_step", "launch_ns", "layer"),
    *("name", "collective", "group", "group_size", "in_bytes", "out_bytes", "dtype", "peer"),
    "bytes_written",
)
_OF_OBJECTS = ("all_gather", "gather", "broadcast", "scatter")
_REDUCTIONS = ("all_reduce", "reduce_scatter")


class CommCell(NamedTuple):
    """Calls that are summed up together.

    Attributes:
        layer: None = of no layer, for `reason`.
        peer: the other end of a send or receive outside of layers, a global rank; -1 = not known, or none.
        sends: such a call is a send.
        boundary: that a message crosses, where a mark says it.
    """

    group: CommGroup
    collective: str
    layer: str | None
    reason: Unattributed | None = None
    peer: int = -1
    sends: bool = False
    boundary: Boundary | None = None


class CommSums(Struct):
    """Over a rank's windows; ns, bytes of METRICS §2 (of those `num_sized` calls whose size is known)."""

    exposed: float = 0.0
    hidden: float = 0.0
    num_calls: float = 0.0
    num_sized: float = 0.0
    num_bytes: float = 0.0


class ModelParams(Struct, frozen=True, kw_only=True):
    """The parameters by which calls outside of layers are recognized.

    Attributes:
        orders: of layers and their parameters, in which gradients may become ready.
        norm: layers that keep running statistics, and their features.
        matched: what was found for the sizes of a step's calls: most steps have the same.
    """

    orders: Sequence[Sequence[LayerParams]]
    norm: Mapping[str, int]
    matched: dict[tuple[int, ...], list[Bucket | None] | None] = {}


class LabeledCall(NamedTuple):
    """What one call, a row of its window, belongs to; several entries where it serves several layers."""

    row: int
    cell: CommCell
    share: float


# Weights of layers; and of each its cell, the sums of that, and its share.
_Shares: TypeAlias = tuple[Mapping[str, int], list[tuple[CommCell, list[float], float]]]
LabeledCalls: TypeAlias = Mapping[tuple[int, int], Sequence[LabeledCall]]  # (rank, window) -> its calls


def _no_sums() -> list[float]:
    return [0.0] * len(CommSums.__struct_fields__)


class RankComm(Struct):
    """Communication of one rank, window by window.

    Attributes:
        labels: of every single call, where asked for.
        cells: with the fields of CommSums.
        uses: what is called on each group.
        shares: of calls that several layers share, by group, collective and which weights: these, and the
            cells, their sums and their shares.
    """

    labels: list[LabeledCall] | None = None
    cells: dict[CommCell, list[float]] = field(default_factory=lambda: defaultdict(_no_sums))
    uses: dict[CommGroup, GroupUse] = field(default_factory=lambda: defaultdict(GroupUse))
    shares: dict[tuple[CommGroup, str, int], _Shares] = {}

    @property
    def layers(self) -> set[str]:
        """That communicate."""
        return {cell.layer for cell in self.cells if cell.layer is not None}

    def add_window(self, comm: WindowComm, model: ModelParams) -> None:
        """Divides the communication of one window.

        Args:
            comm: the window's.
            model: of the rank.
        """
        calls, groups, layers, served = comm.calls, comm.groups, comm.layers, comm.served
        self._note_uses(calls, groups, layers, has_units=comm.has_units)
        for row in np.flatnonzero(calls.served >= 0).tolist():
            mark = int(calls.served[row])
            boundary = served.boundaries[mark]
            kind = groups[int(calls.group[row])], str(calls.collective[row])
            if boundary is None:
                self.uses[kind[0]].sends_parameters |= kind[1] == "send" and bool(calls.layer[row] < 0)
                self._add_shared(calls, row, groups, served.shares[mark])
            else:
                self._take(CommCell(*kind, None, boundary=boundary), _values(calls, row), int(calls.row[row]))
        calls = calls.where(calls.served < 0)
        self._add_layers(calls.where(calls.layer >= 0), groups, layers)
        outside = calls.where(calls.layer < 0)
        is_message = one_of(outside.collective, POINT_TO_POINT)
        early = ~is_message & (outside.step < 0)
        for row in np.flatnonzero(is_message).tolist():
            self._add_message(outside, row, groups)
        for row in np.flatnonzero(early).tolist():
            self._add_row(outside, row, groups, Unattributed.OUTSIDE_STEPS)
        in_steps = ~is_message & ~early
        for step, group in distinct_pairs(outside.step[in_steps], outside.group[in_steps])[0].tolist():
            chosen = ~is_message & (outside.step == step) & (outside.group == group)
            at = np.flatnonzero(chosen)
            # Not by start: two threads of a backend may begin the calls of a group in another order.
            in_order = outside.at(at[np.argsort(outside.asked[at], kind="stable")])
            self._add_step(in_order, groups, model, comm)

    def _note_uses(
        self, calls: WindowCalls, groups: Sequence[CommGroup], layers: Sequence[str], *, has_units: bool
    ) -> None:
        in_layers, are_served = bool((calls.layer >= 0).any()), bool((calls.served >= 0).any())
        for index in distinct(calls.group).tolist():
            of_group = calls.group == index
            use = self.uses[groups[index]]
            use.collectives.update(set(calls.collective[of_group].tolist()))
            use.has_units |= has_units
            if not in_layers and not are_served:
                continue
            forward = of_group & (calls.phase == FORWARD) & (calls.layer >= 0)
            use.forward.update(distinct(calls.collective[forward]).tolist())
            use.forward_layers.update(layers[layer] for layer in distinct(calls.layer[forward]).tolist())
            exchanges = of_group & (calls.layer >= 0) & one_of(calls.collective, EXCHANGES)
            use.layers.update(layers[layer] for layer in distinct(calls.layer[exchanges]).tolist())
            # Said to carry tensors of layers while none runs: gradients.
            reduces = of_group & (calls.served >= 0) & (calls.layer < 0)
            if not use.is_sharded:
                use.has_buckets |= bool((reduces & one_of(calls.collective, _REDUCTIONS)).any())

    def _add_layers(self, calls: WindowCalls, groups: Sequence[CommGroup], layers: Sequence[str]) -> None:
        """Calls whose layer is known."""
        if not len(calls.start):
            return
        names, code = np.unique(calls.collective, return_inverse=True)
        kinds, kind_of = distinct_pairs(calls.group, code.ravel())
        pairs, cell_of = distinct_pairs(kind_of, calls.layer)
        cells = np.column_stack((kinds[pairs[:, 0]], pairs[:, 1]))
        begun = calls.step >= 0
        sized = begun & (calls.size >= 0)
        sums = [
            np.bincount(cell_of, weights, len(cells)).tolist()
            for weights in (calls.exposed, calls.hidden, begun, sized, np.where(sized, calls.size, 0))
        ]
        for (group, name, layer), *values in zip(cells.tolist(), *sums, strict=True):
            self._take(CommCell(groups[group], str(names[name]), layers[layer]), values)
        if self.labels is not None:
            for row, (group, name, layer) in zip(calls.row.tolist(), cells[cell_of].tolist(), strict=True):
                cell = CommCell(groups[group], str(names[name]), layers[layer])
                self.labels.append(LabeledCall(row, cell, 1.0))

    def _add_step(
        self, calls: WindowCalls, groups: Sequence[CommGroup], model: ModelParams, comm: WindowComm
    ) -> None:
        """Calls of one step and group that were made in no layer, in the order in which they were queued."""
        reduces = np.flatnonzero((calls.collective == "all_reduce") & ~calls.early)
        num_ranks = groups[int(calls.group[0])].size
        buckets, no_buckets = _buckets(calls.elements[reduces], model, num_ranks)
        if no_buckets is not None and (calls.reduction[reduces] >= 0).any():
            buckets, no_buckets = _recorded(calls.at(reduces), comm)
        bucket_of: dict[int, Mapping[str, int] | None] = dict(zip(reduces.tolist(), buckets, strict=False))
        bucket_of |= _handed_around(calls, model, num_ranks)
        carries_gradients = (calls.reduction[reduces] >= 0) & (calls.elements[reduces] > 1)
        is_ddp = any(buckets) or (bool(buckets) and bool(carries_gradients.any()))
        self.uses[groups[int(calls.group[0])]].has_buckets |= is_ddp
        for row in range(len(calls.start)):
            bucket = bucket_of.get(row)
            if bucket is None and is_ddp and _carries_buffers(calls, row, model):
                bucket = model.norm
            if bucket:
                self._add_shared(calls, row, groups, bucket)
            else:
                reason = _reason(calls, row, model, is_ddp=is_ddp, no_buckets=no_buckets)
                if not comm.has_layers and reason is Unattributed.OUTSIDE_LAYERS:
                    reason = Unattributed.NO_LAYERS
                self._add_row(calls, row, groups, reason)

    def _add_message(self, calls: WindowCalls, row: int, groups: Sequence[CommGroup]) -> None:
        """A send or receive outside of layers."""
        collective = str(calls.collective[row])
        cell = CommCell(
            groups[int(calls.group[row])],
            collective,
            None,
            Unattributed.NO_STAGES,
            int(calls.peer[row]),
            collective == "send",
        )
        self._take(cell, _values(calls, row), int(calls.row[row]))

    def _add_shared(
        self, calls: WindowCalls, row: int, groups: Sequence[CommGroup], weights: Mapping[str, int]
    ) -> None:
        """A call that several layers share."""
        kind = groups[int(calls.group[row])], str(calls.collective[row])
        _, shared = self.shares.get((*kind, id(weights))) or self._shares_of(kind, weights)
        exposed, hidden, num_calls, num_sized, num_bytes = _values(calls, row)
        if self.labels is not None:
            number = int(calls.row[row])
            self.labels += [LabeledCall(number, cell, share) for cell, _, share in shared]
        for _, sums, share in shared:  # of each bucket of each step of each rank
            sums[0] += share * exposed
            sums[1] += share * hidden
            sums[2] += share * num_calls
            sums[3] += share * num_sized
            sums[4] += share * num_bytes

    def _shares_of(self, kind: tuple[CommGroup, str], weights: Mapping[str, int]) -> _Shares:
        total, cells = sum(weights.values()), [(CommCell(*kind, layer), weights[layer]) for layer in weights]
        shared = [(cell, self.cells[cell], weight / total) for cell, weight in cells]
        self.shares[(*kind, id(weights))] = weights, shared  # kept, so that no others get this number
        return weights, shared

    def _add_row(
        self,
        calls: WindowCalls,
        row: int,
        groups: Sequence[CommGroup],
        reason: Unattributed,
    ) -> None:
        cell = CommCell(groups[int(calls.group[row])], str(calls.collective[row]), None, reason)
        self._take(cell, _values(calls, row), int(calls.row[row]))

    def _take(self, cell: CommCell, values: Sequence[float], row: int = -1, share: float = 1.0) -> None:
        if self.labels is not None and row >= 0:
            self.labels.append(LabeledCall(row, cell, share))
        sums = self.cells[cell]
        for index, value in enumerate(values):
            sums[index] += value


def _values(calls: WindowCalls, row: int) -> list[float]:
    """As the fields of CommSums."""
    begun, size = bool(calls.step[row] >= 0), int(calls.size[row])
    sized = begun and size >= 0
    return [float(calls.exposed[row]), float(calls.hidden[row]), begun, sized, size if sized else 0]


def _buckets(
    sizes: Int64, model: ModelParams, num_ranks: int
) -> tuple[Sequence[Bucket | None], Unattributed | None]:
    """What the all-reduces of a step carry, and why it is not known; nothing where there are none."""
    if not len(sizes):
        return (), None
    if (sizes < 0).any():
        return (), Unattributed.NO_SIZES
    if not model.orders[0]:
        return (), Unattributed.NO_PARAMETERS
    key = (num_ranks, *sizes.tolist())
    if key not in model.matched:
        model.matched[key] = match_buckets(model.orders, key[1:], num_ranks)
    buckets = model.matched[key]
    return (buckets, None) if buckets is not None else ((), Unattributed.NO_BUCKETS)


def _recorded(reduces: WindowCalls, comm: WindowComm) -> tuple[Sequence[Bucket | None], Unattributed | None]:
    """What the all-reduces of a step carry by the gradients before them, and why some do not say."""
    pairs = zip(reduces.reduction.tolist(), reduces.in_bytes.tolist(), strict=True)
    buckets = [comm.recorded.bucket(number, size) if number >= 0 else None for number, size in pairs]
    if not comm.has_layers:
        return buckets, Unattributed.NO_LAYERS
    return buckets, Unattributed.NO_BUCKETS


def _reason(
    calls: WindowCalls, row: int, model: ModelParams, *, is_ddp: bool, no_buckets: Unattributed | None
) -> Unattributed:
    """Why a call that was made in no layer, and is no bucket, has none."""
    collective = calls.collective[row]
    # The mean of a loss, the norm of each gradient; which parameters were used; new buckets.
    num_tensors = sum(len(counts) for _, counts in model.orders[0])
    is_scalar = collective == "all_reduce" and 0 < calls.elements[row] <= max(num_tensors, 1)
    # Numbers of bytes, then the bytes, are objects (`all_gather_object`).
    of_kind = (calls.collective == collective) & calls.integer
    is_object = collective in _OF_OBJECTS and (calls.integer[row] or (calls.bytewise[row] and of_kind.any()))
    beside_buckets = is_ddp and collective == "all_reduce" and calls.integer[row]
    if collective == "barrier" or is_scalar or is_object or beside_buckets:
        return Unattributed.NO_LAYER_TENSORS
    is_gradient = collective == "all_reduce" and not calls.early[row]
    if is_gradient and no_buckets is not None and (calls.reduction[row] >= 0 or not is_ddp):
        return no_buckets
    return Unattributed.OUTSIDE_LAYERS if calls.queued[row] else Unattributed.NOT_QUEUED_IN_TRACE


def _handed_around(
    calls: WindowCalls, model: ModelParams, num_ranks: int
) -> dict[int, Mapping[str, int] | None]:
    """Gathers, broadcasts and scattered reductions of one step, of a kind each, that together are all
    parameters, in some order: row -> layers.

    Optimizers that update a part of the parameters on each rank begin and end with them.
    """
    bucket_of_row: dict[int, Mapping[str, int] | None] = {}
    width = calls.in_bytes // np.maximum(calls.elements, 1)
    full_sizes = np.where((calls.elements > 0) & (calls.size >= 0), calls.size // np.maximum(width, 1), -1)
    for collective in ("all_gather", "broadcast", "reduce_scatter"):
        rows = np.flatnonzero((calls.collective == collective) & ~calls.early)
        if len(rows) and model.orders[0]:
            orders = [*model.orders, *(order[::-1] for order in model.orders)]
            buckets = match_buckets(orders, full_sizes[rows].tolist(), num_ranks)
            bucket_of_row |= zip(rows.tolist(), buckets or (), strict=False)
    return bucket_of_row


def _carries_buffers(calls: WindowCalls, row: int, model: ModelParams) -> bool:
    """A broadcast of all running means and variances at once, or of all counts of batches."""
    sizes = (2 * sum(model.norm.values()), len(model.norm)) if model.norm else ()
    return bool(calls.collective[row] == "broadcast" and calls.elements[row] in sizes)
