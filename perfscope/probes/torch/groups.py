"""Marks which process group each call of torch.distributed is on. In traced windows only.

A CPU backend's spans and the `c10d::` operators do not name their group. So while a window is open the
methods of `torch.distributed.ProcessGroup` that Python calls run inside a mark, `perfscope.group:<name>`.
What C++ calls by itself (DDP's reducer, functional collectives) passes no Python and stays unmarked; the
groups of DDP's reducers are written into the trace instead.

Afterwards the class is what it was, entry by entry; a method that other code has replaced meanwhile is
left alone, and ours inside it then only passes calls on.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ...rundir import layout
from ..frames import around
from .layers import parts

METHODS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier"),
    *("monitored_barrier", "allgather", "_allgather_base", "all_gather_single", "allgather_coalesced"),
    *("allgather_into_tensor_coalesced", "all_gather_single_coalesced", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
    *("send", "recv", "recv_anysource", "_end_coalescing"),
)
_EXCHANGES = ("alltoall_base", "all_to_all_single")  # (output, input, ...)
_WITH_PEER = ("send", "recv")  # (tensors, rank within the group, tag)
_SOURCE = "_source_rank"  # of a Work: who sent what was received from any source


class GroupMarks:
    """Wraps the methods, and takes the wraps off.

    Args:
        new_mark: name -> context manager that puts a span into the trace.
        unseen: True while a compiler follows the code: nothing of ours may become part of it.
        failed: called with the first fault; after it no mark is made any more.
    """

    def __init__(
        self,
        new_mark: Callable[[str], Any],
        unseen: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self._new_mark = new_mark
        self._unseen = unseen
        self._failed = failed
        self._broken = False
        self._dist: Any = None
        self._wrapped: Dict[Tuple[Any, str], Tuple[Any, Any]] = {}  # (class, name) -> (original, ours)
        self._ranks: Dict[str, Any] = {}  # group name -> global ranks, None = not known

    def install(self, roots: Sequence[Any] = ()) -> None:
        """From now on mark calls. Does nothing where no process group is in use, or when it is done.

        Args:
            roots: the models, if known: the groups of the reducers in them are noted.
        """
        if self._broken or self._wrapped:
            return
        try:
            self._install(roots)
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on without marks
            self._fail(error)

    def _install(self, roots: Sequence[Any]) -> None:
        dist = sys.modules["torch"].distributed
        if not (dist.is_available() and dist.is_initialized()):
            return
        self._dist = dist
        self._ranks.clear()  # a group may have been destroyed and its name given to another
        for name in METHODS:
            self._wrap(dist.ProcessGroup, name, self._marked)
        self._wrap(dist.Work, _SOURCE, self._sourced)
        if roots:
            _note_reducers(reducer_groups(roots))

    def _wrap(self, kind: Any, name: str, wrap: Callable[[str, Any], Any]) -> None:
        original = vars(kind).get(name)
        if original is not None:
            ours = wrap(name, getattr(kind, name))
            self._wrapped[kind, name] = (original, ours)
            setattr(kind, name, ours)

    def remove(self) -> None:
        """The class as it was before."""
        wrapped, self._wrapped = self._wrapped, {}
        try:
            for (kind, name), (original, ours) in wrapped.items():
                if vars(kind).get(name) is ours:
                    setattr(kind, name, original)
        except Exception as error:  # noqa: BLE001 - the boundary: what stays wrapped only passes calls on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            self.remove()
            self._failed(error)
            try:
                _note_reducers([])  # from here on also calls that passed Python have no mark
            except Exception as second:  # noqa: BLE001 - the boundary
                self._failed(second)

    def _marked(self, name: str, original: Any) -> Any:
        with_peer, sends_rows = name in _WITH_PEER, name in _EXCHANGES

        @around(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            mark = self._enter(group, args if with_peer else ()) if self._wrapped else None
            if mark is None:
                return original(group, *args, **kwargs)
            try:
                if sends_rows:
                    self._note_rows(args)
                return original(group, *args, **kwargs)
            finally:
                mark.__exit__(None, None, None)

        return call

    def _note_rows(self, args: tuple) -> None:
        """Writes down how many rows (tokens, of experts) an all-to-all sends."""
        try:
            if len(args) > 1 and args[1].dim():
                with self._new_mark(f"{layout.MARK_ROWS}{args[1].shape[0]}"):
                    pass
        except Exception as error:  # noqa: BLE001 - the boundary: the call goes on without the note
            self._fail(error)

    def _enter(self, group: Any, args: tuple) -> Optional[Any]:
        if self._unseen():
            return None
        try:
            text = layout.MARK_GROUP + group.group_name
            if len(args) > 1:
                text += self._peer(group, args[1])
            mark = self._new_mark(text)
            mark.__enter__()
            return mark
        except Exception as error:  # noqa: BLE001 - the boundary: the call goes on without its mark
            self._fail(error)
            return None

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

    def _sourced(self, name: str, original: Any) -> Any:
        @around(original)
        def call(work: Any, *args: Any, **kwargs: Any) -> Any:
            source = original(work, *args, **kwargs)
            if self._wrapped and not self._unseen():
                try:
                    with self._new_mark(layout.MARK_SOURCE + str(int(source))):
                        pass
                except Exception as error:  # noqa: BLE001 - the boundary: the training gets its answer
                    self._fail(error)
            return source

        return call


def _note_reducers(names: List[str]) -> None:
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
