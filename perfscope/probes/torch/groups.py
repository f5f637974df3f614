"""Marks which process group each call of torch.distributed is on. In traced windows only.

A CPU backend's spans and the `c10d::` operators do not name their group. So while a window is open the
methods of `torch.distributed.ProcessGroup` that Python calls run inside a mark, `perfscope.group:<name>`, and
so do the operators behind functional collectives (DTensor's, say), which reach the group in C++. What C++
calls by itself (DDP's reducer, backward passes of functional collectives) passes no Python and stays
unmarked; the groups of DDP's reducers are written into the trace instead.

A CPU backend's span of a message lasts until the message has been waited for, so `Work.wait` runs inside
`perfscope.wait`.

A call of a thread that the trace does not record is counted instead of marked.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Sequence
from typing import Counter as Counts

from ...rundir import layout
from ..frames import around
from .layers import parts
from .wrapped_calls import TextOf, WrappedCalls

METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier"),
    *("monitored_barrier", "allgather", "_allgather_base", "all_gather_single", "allgather_coalesced"),
    *("allgather_into_tensor_coalesced", "all_gather_single_coalesced", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
    *("send", "recv", "recv_anysource", "_end_coalescing"),
)
_EXCHANGES = ("alltoall_base", "all_to_all_single")  # (output, input, ...)
# Operators behind functional collectives: (input, ..., group), of two libraries.
FUNCTIONAL = (
    *("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_"),
    *("broadcast", "broadcast_", "all_to_all_single"),
    *("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"),
)
_LIBRARIES = ("_c10d_functional", "_c10d_functional_autograd")
_CALLED = "_op"  # what an operator of either form calls
_WITH_PEER = ("send", "recv")  # (tensors, rank within the group, tag)
_SOURCE = "_source_rank"  # of a Work: who sent what was received from any source


class GroupMarks:
    """Wraps the methods, and takes the wraps off.

    Args:
        calls: of its own.
        sees: type of device, "" where a call has no tensor -> whether the trace records what the calling
            thread has done there.

    Attributes:
        num_unseen: method -> its calls that no trace records, over all windows. Those of C++ pass uncounted.
    """

    def __init__(self, calls: WrappedCalls, sees: Callable[[str], bool]) -> None:
        self._calls = calls
        self._sees = sees
        self.num_unseen: Counts[str] = Counter()
        self._dist: Any = None
        self._ranks: Dict[str, Any] = {}  # group name -> global ranks, None = not known

    def install(self, roots: Sequence[Any] = ()) -> None:
        """From now on mark calls. Does nothing where no process group is in use, or when it is done.

        Args:
            roots: the models, if known: the groups of the reducers in them are noted.
        """
        if self._calls.broken or self._calls.active:
            return
        try:
            self._install(roots)
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on without marks
            self._calls.fail(error)

    def _install(self, roots: Sequence[Any]) -> None:
        dist = sys.modules["torch"].distributed
        if not (dist.is_available() and dist.is_initialized()):
            return
        self._dist = dist
        self._ranks.clear()  # a group may have been destroyed and its name given to another
        for name in METHODS:
            text_of = self._with_peer if name in _WITH_PEER else self._text
            inside = self._note_sent if name in _EXCHANGES else None
            self._calls.wrap(dist.ProcessGroup, name, functools.partial(self._seen, name, text_of), inside)
        self._calls.replace(dist.Work, _SOURCE, self._sourced)
        self._calls.wrap(dist.Work, "wait", self._waiting)
        self._wrap_functional()
        if roots:
            note_reducers(reducer_groups(roots))

    def _wrap_functional(self) -> None:
        """Operators as Python calls them, and their only overload, as compiled code does."""
        for library in _LIBRARIES:
            operators = getattr(sys.modules["torch"].ops, library, None)
            for name in FUNCTIONAL:
                packet = getattr(operators, name, None)  # not every version and library has all
                inside = self._note_rows if name == "all_to_all_single" else None
                for operator in (packet, getattr(packet, "default", None)):
                    if _CALLED in getattr(operator, "__dict__", ()):
                        text_of = functools.partial(self._of_functional, name)
                        self._calls.wrap(operator, _CALLED, text_of, inside)

    def _of_functional(self, name: str, args: tuple, kwargs: dict) -> Optional[str]:
        group = kwargs.get("group_name", args[-1] if args else None)
        if not self._sees(_device((*args, *kwargs.values()))):
            self.num_unseen[name] += 1
            return None
        return layout.MARK_GROUP + str(getattr(group, "group_name", group))

    def remove(self) -> None:
        """The class as it was before."""
        self._calls.remove()

    def _seen(self, name: str, text_of: TextOf, args: tuple, kwargs: dict) -> Optional[str]:
        if self._sees(_device((*args[1:], *kwargs.values()))):
            return text_of(args, kwargs)
        self.num_unseen[name] += 1
        return None

    def _text(self, args: tuple, kwargs: dict) -> str:
        return layout.MARK_GROUP + str(args[0].group_name)

    def _with_peer(self, args: tuple, kwargs: dict) -> str:
        text = self._text(args, kwargs)
        return text + self._peer(args[0], args[2]) if len(args) > 2 else text

    def _note_sent(self, args: tuple) -> None:
        self._note_rows(args[2:])

    def _note_rows(self, args: tuple) -> None:
        """Writes down how many rows (tokens, of experts) an all-to-all sends; its input comes first."""
        try:
            if args and args[0].dim():
                with self._calls.new_mark(f"{layout.MARK_ROWS}{args[0].shape[0]}"):
                    pass
        except Exception as error:  # noqa: BLE001 - the boundary: the call goes on without the note
            self._calls.fail(error)

    def _waiting(self, args: tuple, kwargs: dict) -> Optional[str]:
        return layout.MARK_WAIT if self._sees("cpu") else None

    def _peer(self, group: Any, index: Any) -> str:
        name = group.group_name
        if name not in self._ranks:
            try:
                self._ranks[name] = self._dist.get_process_group_ranks(group)
            except (
                KeyError,
                ValueError,
                RuntimeError,
                AttributeError,
            ):  # made past torch.distributed's books
                self._ranks[name] = None
        ranks = self._ranks[name]
        is_listed = ranks is not None and isinstance(index, int) and 0 <= index < len(ranks)
        return layout.MARK_PEER + str(ranks[index]) if is_listed else ""

    def _sourced(self, original: Any) -> Any:
        @around(original)
        def call(work: Any, *args: Any, **kwargs: Any) -> Any:
            source = original(work, *args, **kwargs)
            if self._calls.active and not self._calls.unseen():
                try:
                    with self._calls.new_mark(layout.MARK_SOURCE + str(int(source))):
                        pass
                except Exception as error:  # noqa: BLE001 - the boundary: the training gets its answer
                    self._calls.fail(error)
            return source

        return call


def _device(values: Sequence[Any]) -> str:
    """The type of device of the first tensor among the arguments and the lists in them; "" without any."""
    for value in values:
        inner = value
        while isinstance(inner, (list, tuple)) and inner:
            inner = inner[0]
        kind = getattr(getattr(inner, "device", None), "type", None)
        if isinstance(kind, str):
            return kind
    return ""


def failed_without_groups(failed: Callable[[Exception], None]) -> Callable[[Exception], None]:
    """For the first fault: takes back what the trace says of reducers, too, as no call has a mark now."""

    def fail(error: Exception) -> None:
        failed(error)
        try:
            note_reducers([])
        except Exception as second:  # noqa: BLE001 - the boundary
            failed(second)

    return fail


def note_reducers(names: List[str]) -> None:
    add = getattr(sys.modules["torch"].autograd, "_add_metadata_json", None)
    if add is not None:
        add(layout.TRACE_REDUCERS, json.dumps(names))


def reducer_groups(roots: Sequence[Any]) -> List[str]:
    """Names of the groups over which modules within `roots` (these included) average gradients by C++."""
    names: List[str] = []
    for module in (part for root in roots for part in parts(root)):
        if any(kind.__name__ == "DistributedDataParallel" for kind in type(module).__mro__):
            group = object.__getattribute__(module, "__dict__").get("process_group")
            if group is not None and group.group_name not in names:
                names.append(group.group_name)
    return names
