"""Along which axis of the device mesh the calls of each process group communicate.

In order of trust: what the program says of its calls; the groups that a bench scheme lists; the name or
description that DeviceMesh, Megatron-LM or the program gives a group; the calls that are made on it; the
pattern of its ranks. The last two are inferred. A call is of the axis that its kind has on the group, because
one group may serve two: DLRM reduces gradients and exchanges rows of embeddings over the same ranks, and the
first is data parallelism, the second is not.

- Sends and receives outside of layers are a pipeline, but data parallelism where parameters are sent. Inside
  attention they are ring attention.
- An all-to-all in a layer is expert parallelism, in attention sequence parallelism (Ulysses). One whose layer
  is not known, or is an embedding, may be anything.
- A group on which gradient buckets are reduced is data parallelism, with what else is called on it
  (statistics of SyncBatchNorm, buffers) but all-to-alls, sends and receives.
- FSDP2's gathers and reductions are fully sharded data parallelism.
- Gathers of the forward pass that only attention makes are context parallelism: of keys and values.
- Other collectives of the forward pass of layers are tensor parallelism.
- Consecutive ranks are tensor parallelism, ranks with a stride data parallelism.

A group that none of these names keeps its own name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.communication import DEFAULT_GROUP

_NO_DESCRIPTION = frozenset({"", "undefined", "default_pg"})
# torch.distributed.DeviceMesh: `mesh_<name of the dimension>`, `mesh_dim_<number>` where it has no name,
# `mesh_default` for a dimension over all ranks that cannot use the default group.
_MESH = re.compile(r"mesh_(?!dim_\d+$|default$)(.+)")
# Names of groups without case, `_group` and what follows it, and numbers: `TENSOR_MODEL_PARALLEL_GROUP` of
# Megatron-LM, `tp:0`, `data_parallel`.
_SUFFIX = re.compile(r"_?group.*|[\W_]*\d*$")
_NAMES = {
    **{axis.value: axis.value for axis in Axis},
    "tensor_parallel": Axis.TP.value,
    "tensor_model_parallel": Axis.TP.value,
    "pipeline_parallel": Axis.PP.value,
    "pipeline_model_parallel": Axis.PP.value,
    "data_parallel": Axis.DP.value,
    "context_parallel": Axis.CP.value,
    "sequence_parallel": Axis.SP.value,
    "expert_parallel": Axis.EP.value,
    "expert_model_parallel": Axis.EP.value,
}
_POINT_TO_POINT = frozenset({"send", "recv"})
EXCHANGES = _POINT_TO_POINT | {"all_to_all"}
_SHARDED = frozenset({"all_gather", "reduce_scatter"})
_ACTIVATIONS = _SHARDED | {"all_reduce"}
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_EMBEDDING = re.compile(r"emb", re.IGNORECASE)
WORLD = "world"
NAMELESS = "communication"  # a call of which the trace does not say what it is


AxisOfCalls: TypeAlias = Mapping[tuple[str, str], str]  # (collective, group) -> axis


class CommGroup(NamedTuple):
    """A process group, as far as one axis uses it if the program says which one (`axis`).

    `members` () and `size` 0: not known.
    """

    name: str
    members: tuple[int, ...]
    size: int
    axis: str = ""


class GroupAxis(NamedTuple):
    """What a group's calls are called; `inferred`: because nothing names the group."""

    name: str
    inferred: bool = False


class GroupUse(Struct):
    """The calls that ranks made on a group.

    Attributes:
        collectives: that were called.
        forward: that were called in the forward pass of a layer.
        forward_layers: of these calls.
        layers: in which EXCHANGES were called.
        links: between which ranks (that called, other end) messages outside of layers went.
        has_buckets: gradient buckets were reduced.
        has_units: FSDP2 was at work in the same window.
        sends_parameters: or gradients, while no layer runs.
    """

    collectives: set[str] = set()
    forward: set[str] = set()
    forward_layers: set[str] = set()
    layers: set[str] = set()
    links: set[tuple[int, int]] = set()
    has_buckets: bool = False
    has_units: bool = False
    sends_parameters: bool = False

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP gathers and reduces parameters in it."""
        return self.has_units and bool(self.collectives & _SHARDED)

    def add(self, other: GroupUse) -> None:
        """The calls of another rank."""
        self.collectives |= other.collectives
        self.forward |= other.forward
        self.forward_layers |= other.forward_layers
        self.layers |= other.layers
        self.links |= other.links
        self.has_buckets |= other.has_buckets
        self.has_units |= other.has_units
        self.sends_parameters |= other.sends_parameters


class GroupAxes:
    """The axis of each group of a run.

    Args:
        scheme: of a bench run; None for others.
        descriptions: group name -> description.
        uses: of the groups.
        world_size: number of ranks; None = not known.
    """

    def __init__(
        self,
        scheme: SchemeRecord | None,
        descriptions: Mapping[str, str],
        uses: Mapping[CommGroup, GroupUse],
        world_size: int | None,
    ) -> None:
        self._scheme = scheme
        self._descriptions = descriptions
        self._uses = uses
        self._world_size = world_size
        self._axes: dict[tuple[CommGroup, str], GroupAxis] = {}

    def of(self, group: CommGroup, collective: str) -> GroupAxis:
        """What the calls of a kind on a group are called."""
        key = group, collective
        if key not in self._axes:
            self._axes[key] = self._find(group, collective)
        return self._axes[key]

    def _find(self, group: CommGroup, collective: str) -> GroupAxis:
        if group.axis:
            return GroupAxis(group.axis)
        use = self._uses.get(group, GroupUse())
        description = self._descriptions.get(group.name, "")
        named = self._of_scheme(group, use, collective) or _named(description) or _named(group.name)
        if named:
            return GroupAxis(named)
        inferred = _inferred(use, collective) or self._by_ranks(group, collective)
        if inferred == Axis.PP and (self._scheme is not None or not _is_chain(group, use)):
            inferred = ""  # a parameter server's messages; a scheme names its pipelines
        size = group.size or (self._world_size if group.name == DEFAULT_GROUP else None)
        is_world = bool(size) and size == self._world_size
        # Parameters that no axis divides are averaged over all ranks, those of experts over an axis "dp".
        if inferred and not (is_world and self._is_another(inferred)):
            return GroupAxis(inferred, inferred=True)
        if description not in _NO_DESCRIPTION:
            return GroupAxis(description)
        return GroupAxis(WORLD if is_world else group.name)

    def _is_another(self, axis: str) -> bool:
        """Whether groups of some ranks have the name of an axis."""
        groups = (group for group in self._uses if group.size != self._world_size)
        return any(
            axis in (_named(self._descriptions.get(group.name, "")), _named(group.name)) for group in groups
        )

    def _of_scheme(self, group: CommGroup, use: GroupUse, collective: str) -> str:
        """The axis that the scheme gives these ranks; of several the one whose calls it predicts."""
        if self._scheme is None or not group.members:
            return ""
        members = frozenset(group.members)
        axes = {entry.axis for entry in self._scheme.groups if frozenset(entry.ranks) == members}
        for collectives in ({collective}, use.collectives):
            if len(axes) > 1:
                axes = self._predicted(axes, collectives) or axes
        return next(iter(axes)) if len(axes) == 1 else ""

    def _predicted(self, axes: set[str], collectives: Iterable[str]) -> set[str]:
        assert self._scheme is not None
        predicted = (call for calls in self._scheme.calls_of_rank.values() for call in calls)
        return {call.axis for call in predicted if call.axis in axes and call.collective in collectives}

    def _by_ranks(self, group: CommGroup, collective: str) -> str:
        """By the pattern of the ranks, of a collective that both axes use."""
        ranks = sorted(group.members)
        if collective not in _ACTIVATIONS or len(ranks) < 2 or len(ranks) == self._world_size:
            return ""
        strides = {after - before for before, after in pairwise(ranks)}
        if len(strides) != 1:
            return ""
        return Axis.TP.value if strides == {1} else Axis.DP.value


def _named(text: str) -> str:
    """The axis that a group's name or description tells; "" if none."""
    mesh = _MESH.fullmatch(text)
    return mesh[1] if mesh else _NAMES.get(_SUFFIX.sub("", text.lower()), "")


def _inferred(use: GroupUse, collective: str) -> str:
    if collective == NAMELESS:  # is of the group's only axis, if it has but one
        axes = {_inferred(use, kind) for kind in use.collectives - {NAMELESS, "barrier"}}
        return axes.pop() if len(axes) == 1 else ""
    if collective in EXCHANGES:
        return _of_exchange(use, collective)
    if use.has_buckets:
        return Axis.DP.value
    if use.is_sharded:
        return Axis.FSDP.value
    if use.collectives & EXCHANGES:  # sizes of what is exchanged, losses of a pipeline
        axes = {_of_exchange(use, kind) for kind in use.collectives & EXCHANGES}
        return axes.pop() if len(axes) == 1 else ""
    if not use.forward & _ACTIVATIONS:
        return ""
    gathers_keys = use.forward == {"all_gather"} and _is_attention(use.forward_layers)
    return Axis.CP.value if gathers_keys else Axis.TP.value


def _is_attention(layers: Collection[str]) -> bool:
    return bool(layers) and all(map(_ATTENTION.search, layers))


def _is_chain(group: CommGroup, use: GroupUse) -> bool:
    """Whether messages go between neighbors only, or from the last rank to the first (interleaved stages).

    True where nothing is known of the ranks that send and receive.
    """
    position = {rank: index for index, rank in enumerate(group.members)}
    pairs = {
        (min(ends), max(ends))
        for link in use.links
        if len(ends := {position[rank] for rank in link if rank in position}) == 2
    }
    steps = [pair for pair in pairs if pair[1] - pair[0] == 1]
    wraps = {(0, len(position) - 1)} if len(steps) == len(position) - 1 else set()
    return len(steps) + len(pairs & wraps - set(steps)) == len(pairs)


def _of_exchange(use: GroupUse, collective: str) -> str:
    """The axis of all-to-alls, sends and receives by the layers that make them."""
    in_attention = _is_attention(use.layers)
    if collective == "all_to_all":
        if not use.layers or any(map(_EMBEDDING.search, use.layers)):
            return ""
        return Axis.SP.value if in_attention else Axis.EP.value
    if use.layers:
        return Axis.CP.value if in_attention else ""
    return Axis.DP.value if use.sends_parameters else Axis.PP.value
