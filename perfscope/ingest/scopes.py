"""Which phase, layer and collective a moment on a host thread belongs to.

Scopes nest: a layer mark in a step mark, a backward node in an autograd wrapper. Per thread a stack
is kept, over the whole file, and every change of the innermost context becomes a point in time;
operators and launches then find their context by bisection instead of each walking a stack.

Backward nodes carry the sequence number of the forward operator that created them. That operator
is the last one that started with this number: operators before it have read the same counter
without using it up. Its layer is the node's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.ingest.classify import MODULE_PREFIX, HostClass, unit_of
from perfscope.ingest.collectives import Collective
from perfscope.ingest.spill import Rows

FORWARD, BACKWARD, OPTIMIZER, OTHER = range(4)  # as schema.PHASES
NO_LAYER = -1
_MAX_SEQUENCES = 1 << 16
_NEVER = np.iinfo(np.int64).max

# Modules that only wrap another one: they are no part of the names of what is inside.
_WRAPPERS = (
    "DistributedDataParallel_",
    "DataParallel_",
    "FullyShardedDataParallel_",
    "OptimizedModule_",
    "CheckpointWrapper_",
)

# Not the nodes: only those that `complete_wrappers` finds in no wrapper saying the same are walked.
SCOPES = frozenset(
    {
        HostClass.WRAPPER,
        HostClass.LAYER,
        HostClass.MODULE,
        HostClass.STEP,
        HostClass.PROFILER_STEP,
        HostClass.OPTIMIZER,
    }
    | {
        HostClass.ZERO_GRAD,
        HostClass.INPUT,
        HostClass.COMM,
        HostClass.COLLECTIVE_OP,
        HostClass.LAUNCH_NOTE,
        HostClass.COMM_PARAMETERS,
    }
    | {HostClass.GROUP, HostClass.CLOSURE, HostClass.UNIT}
)


# What encloses a moment: phase, layer, number of the collective (-1: none). A layer below -1 stands
# for the layer of a sequence number that has not been looked up yet.
Context = tuple[int, int, int]
_OUTSIDE: Context = (OTHER, NO_LAYER, -1)


def complete_wrappers(rows: Rows, codes: npt.NDArray[np.int64]) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Give wrappers that lack a sequence number that of the node inside.

    Where a node has pre-hooks (`Tensor.register_hook`, FSDP2), torch records the wrapper without it. The
    wrapper needs it all the same: the pre-hooks and the sum of a bias' gradient are beside the node.

    Args:
        rows, codes: of one thread, in order of start.

    Returns:
        The rows (a copy if any changed), and which are backward nodes that are in no wrapper with their
        number: wrappers are missing in the file, or began before these rows do.
    """
    is_wrapper = codes == HostClass.WRAPPER
    numbered = (rows["sequence"] >= 0) & (rows["forward_thread"] > 0)
    bare = ((codes == HostClass.NODE) | numbered) & ~is_wrapper  # Python Functions have nodes of any name
    nodes, wrappers = np.flatnonzero(bare), np.flatnonzero(is_wrapper)
    if not len(nodes) or not len(wrappers):
        return rows, bare
    index = np.searchsorted(wrappers, nodes) - 1
    around = wrappers[index]
    inside = (index >= 0) & (rows["start"][nodes] < rows["start"][around] + rows["dur"][around])
    lacking = inside & numbered[nodes] & ~numbered[around]
    if lacking.any():
        rows = rows.copy()
        for column in ("sequence", "forward_thread"):
            # Reversed, so that of several nodes in a wrapper the first counts.
            rows[column][around[lacking][::-1]] = rows[column][nodes[lacking]][::-1]
    bare[nodes[inside & (rows["sequence"][nodes] == rows["sequence"][around])]] = False
    return rows, bare


class _Thread(Struct):
    ends: list[int] = []
    contexts: list[Context] = field(default_factory=lambda: [_OUTSIDE])  # one more than ends: the base
    paths: list[str] = field(default_factory=lambda: [""])  # of nn.Module frames without wrappers, likewise


class Changes(Struct):
    """Contexts of one thread over a slice: `contexts[i]` from `times[i]` on."""

    times: list[int]
    contexts: list[Context]

    def at(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """(phase, layer, collective) at each start, shape (n, 3)."""
        flat = np.fromiter(chain.from_iterable(self.contexts), np.int32, 3 * len(self.contexts))
        index = np.searchsorted(np.array(self.times, np.int64), starts, side="right") - 1
        layers: npt.NDArray[np.int32] = flat.reshape(-1, 3)[index]
        return layers


class Scopes:
    """Contexts of all threads of a file, fed slice by slice.

    Args:
        texts, codes: of the host words.
        collectives: grows as inner and outer accounts of one collective are merged.
        use_modules: take layers from nn.Module frames (there are no layer marks in the file).
        renamed: names that layers were given after they were marked.

    Attributes:
        layers: layer number -> name.
    """

    def __init__(
        self,
        texts: Sequence[str],
        codes: Sequence[int],
        collectives: list[Collective],
        *,
        use_modules: bool,
        renamed: Mapping[str, str],
    ) -> None:
        self.layers: list[str] = []
        self._renamed = renamed
        self._layer_numbers: dict[str, int] = {}
        self._texts = texts
        self._codes = codes
        self._collectives = collectives
        self._merged: dict[tuple[int, int], int] = {}
        self._use_modules = use_modules
        self._module_paths: dict[str, str] = {}
        self._threads: dict[int, _Thread] = {}
        self._layer_of: dict[
            tuple[int, int], int
        ] = {}  # (thread or -1 for forward threads, sequence) -> layer
        self._asked: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self._main_forward = 1 << 30
        self._root_unit = NO_LAYER  # in which FSDP2 gathers the parameters that no nested unit has

    def layer_number(self, name: str) -> int:
        name = self._renamed.get(name, name)
        number = self._layer_numbers.setdefault(name, len(self.layers))
        if number == len(self.layers):
            self.layers.append(name)
        return number

    def walk(self, lane: int, rows: Rows, until: int) -> tuple[Changes, npt.NDArray[np.int32]]:
        """Enter the scope rows of one thread, in order of start.

        Returns:
            The changes over the slice, and for each row the context inside it, shape (n, 3).
        """
        thread = self._threads.setdefault(lane, _Thread())
        ends, contexts, paths = thread.ends, thread.contexts, thread.paths
        changes = Changes([-_NEVER], [contexts[-1]])
        inside: list[int] = []
        columns = ("start", "dur", "sequence", "name", "forward_thread", "detail")
        for start, dur, sequence, name, forward, detail in zip(
            *(rows[column].tolist() for column in columns), strict=True
        ):
            while ends and ends[-1] <= start:
                self._pop(thread, changes)
            code = self._codes[name]
            path = outer_path = paths[-1]
            if code == HostClass.MODULE:
                path = self._module_path(self._texts[name][len(MODULE_PREFIX) :], outer_path)
            context = self._inner(code, contexts[-1], name, path, (lane, sequence, forward), detail)
            if code == HostClass.MODULE and path.rpartition(".")[2].startswith(_WRAPPERS):
                path = outer_path
            ends.append(start + dur)
            contexts.append(context)
            paths.append(path)
            inside += context
            changes.times.append(start)
            changes.contexts.append(context)
        while ends and ends[-1] <= until:
            self._pop(thread, changes)
        return changes, np.array(inside, np.int32).reshape(-1, 3)

    @staticmethod
    def _pop(thread: _Thread, changes: Changes) -> None:
        # A scope may outlast the one around it by a rounding error: time never runs backwards.
        changes.times.append(max(thread.ends.pop(), changes.times[-1]))
        thread.contexts.pop()
        thread.paths.pop()
        changes.contexts.append(thread.contexts[-1])

    def _inner(
        self, code: int, outer: Context, name: int, path: str, node: tuple[int, int, int], detail: int
    ) -> Context:
        phase, layer, collective = outer
        numbered = node[1] >= 0 and node[2] > 0
        if numbered or code in (HostClass.WRAPPER, HostClass.NODE):
            phase = BACKWARD
            layer = self._ask(node, outer) if numbered else layer
        elif code in (HostClass.LAYER, HostClass.MODULE, HostClass.UNIT, HostClass.CLOSURE):
            phase, layer = self._in_model(code, outer, name, path)
        elif code in (HostClass.STEP, HostClass.PROFILER_STEP):
            phase = FORWARD if phase == OTHER else phase
        elif code in (HostClass.OPTIMIZER, HostClass.ZERO_GRAD):
            phase = OPTIMIZER
        elif code == HostClass.INPUT:
            phase = OTHER
        elif code == HostClass.GROUP:
            # A send that is still under way may seem to be around the next call: the mark knows better.
            collective = detail
        else:
            collective = self.merge(detail, collective)
        return phase, layer, collective

    def _in_model(self, code: int, outer: Context, name: int, path: str) -> tuple[int, int]:
        """Phase and layer inside a mark, a module's frame, a range of FSDP2, or an optimizer's closure."""
        phase, layer, _ = outer
        if code == HostClass.MODULE:
            if not self._use_modules:
                return phase, layer
            layer = self.layer_number(path)
        elif code == HostClass.LAYER:
            layer = self.layer_number(self._texts[name].partition(":")[2])
        elif code == HostClass.UNIT:
            what, layer = self._in_unit(name, layer)
            if "backward" in what:
                return BACKWARD, layer
            if "forward" not in what:
                return phase, layer
        elif code == HostClass.CLOSURE:
            return FORWARD, layer
        return phase if phase == BACKWARD else FORWARD, layer  # also inside an optimizer: it called a closure

    def _in_unit(self, name: int, outer: int) -> tuple[str, int]:
        """What FSDP2 does in a range, and for which layer; it does not name the root of the model."""
        module, what = unit_of(self._texts[name])
        if module is not None:
            return what, self.layer_number(module)
        if what == "pre_forward":
            self._root_unit = outer
        return what, outer if self._root_unit == NO_LAYER else self._root_unit

    def merge(self, inner: int, outer: int) -> int:
        """The account of a collective that knows what either span around it knows."""
        if inner < 0 or outer < 0:
            return max(inner, outer)
        merged = self._merged.get((inner, outer))
        if merged is None:
            both = self._collectives[inner].filled_from(self._collectives[outer])
            merged = self._merged[inner, outer] = len(self._collectives)
            self._collectives.append(both)
        return merged

    # nn.Module frames

    def _module_path(self, name: str, outer: str) -> str:
        """Qualified name of a module frame: the frames around it joined by dots.

        `Conv2d_7` numbers instances, so the path learned in the forward pass also names the frame when
        activation checkpointing runs it again on a thread where the frames around it are missing.
        """
        module_path = self._module_paths.get(name, "")
        path = f"{outer}.{name}" if outer else name
        if path.count(".") < module_path.count("."):
            return module_path
        self._module_paths[name] = path
        return path

    # Sequence numbers

    def _ask(self, node: tuple[int, int, int], outer: Context) -> int:
        """A stand-in for the layer of a backward node, resolved by `resolve`."""
        lane, sequence, forward = node
        self._main_forward = min(self._main_forward, forward)
        first, second = (-1, sequence), (lane, sequence)
        keys = (first, second) if forward == self._main_forward else (second, first)
        if outer[1] < NO_LAYER and self._asked[-2 - outer[1]] == keys:
            return outer[1]  # the node inside its own wrapper
        self._asked.append(keys)
        return -1 - len(self._asked)

    def remember(
        self,
        lane: int,
        phases: npt.NDArray[Any],
        sequences: npt.NDArray[np.int64],
        layers: npt.NDArray[Any],
    ) -> None:
        """Note the layer of each forward operator of a thread, in order of start."""
        in_backward = phases == BACKWARD
        for key_lane, chosen in ((-1, ~in_backward), (lane, in_backward)):
            pairs = zip(sequences[chosen].tolist(), layers[chosen].tolist(), strict=True)
            self._layer_of.update({(key_lane, sequence): layer for sequence, layer in pairs})
        if len(self._layer_of) > _MAX_SEQUENCES:
            surplus = len(self._layer_of) - _MAX_SEQUENCES // 2
            self._layer_of = dict(islice(self._layer_of.items(), surplus, None))

    def resolve(self, layers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """`layers` with every stand-in replaced by the layer it stands for."""
        if not self._asked:
            return layers
        answers = np.array([self._answer(keys) for keys in self._asked], np.int32)
        waiting = layers < NO_LAYER
        resolved = layers.copy()
        resolved[waiting] = answers[-2 - layers[waiting]]
        return resolved

    def _answer(self, keys: tuple[tuple[int, int], tuple[int, int]]) -> int:
        layer = self._layer_of.get(keys[0])
        return layer if layer is not None else self._layer_of.get(keys[1], NO_LAYER)

    def end_slice(self) -> None:
        """The slice is done: contexts that stay open get their layer for good."""
        for thread in self._threads.values():
            thread.contexts = [
                (phase, self._answer(self._asked[-2 - layer]) if layer < NO_LAYER else layer, collective)
                for phase, layer, collective in thread.contexts
            ]
        self._asked.clear()
