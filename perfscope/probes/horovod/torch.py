"""Horovod's calls in a torch process, while a window is open.

A call is one span on the lane "Horovod" and carries the bytes. The one who waits in `synchronize` gets a span
on its own thread, which counts as nothing: the call it waits for already stands for that time. What the
main thread cannot hide under operators is then the exposed communication, once.

Horovod's thread takes the calls one after the other, or fuses some, and gives no notice when it is done. The
oldest calls under way are asked at every new call and at every wait. Those found done since the last time
share the time in between by their bytes, none from before it was handed over: so that spans follow each
other, in the order in which all ranks hand over, and an end is at most as late as the next gradient.
"""

from __future__ import annotations

import inspect
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ...vocabulary.figures import Figure
from ..frames import around
from ..process import Process

LANE, LABEL = 1 << 40, "Horovod"  # no thread has such a number
_OPERATIONS = "horovod.torch.mpi_ops"
_TORCH_PROBE = __name__.rsplit(".", 2)[0] + ".torch.probe"  # the module whose hooks count steps
# All public calls end in one of these: function of mpi_ops -> collective.
_ENQUEUE = {
    "_allreduce_async": "all_reduce",
    "_grouped_allreduce_async": "all_reduce",
    "_allgather_async": "all_gather",
    "_grouped_allgather_async": "all_gather",
    "_broadcast_async": "broadcast",
    "_alltoall_async": "all_to_all",
    "_reducescatter_async": "reduce_scatter",
    "_grouped_reducescatter_async": "reduce_scatter",
}
_NEEDED = ("_allreduce_async", "_allgather_async", "_broadcast_async", "synchronize", "poll")
_clock = time.monotonic_ns


class _Call(NamedTuple):
    start: int
    collective: str
    name: str
    group: Dict[str, Any]
    in_bytes: int
    dtype: str


class TorchCalls:
    """Looks at Horovod's calls.

    Args:
        process: whose calls they are.
        group_of: a process set (None = all ranks) as {"name", "ranks", "backend"}.
        facts: for rank.json, saved with the first call seen.
    """

    def __init__(
        self,
        process: Process,
        group_of: Callable[[Any], Dict[str, Any]],
        facts: Callable[[], Dict[str, Any]],
    ) -> None:
        self._process = process
        self._group_of = group_of
        self._facts = facts
        self.reset()

    def reset(self) -> None:
        self.forget()
        self._last_end = 0
        self._off = False
        self._told = False

    def forget(self) -> None:
        """Calls under way: their ends are not waited for any more."""
        self._under_way: Dict[int, _Call] = {}  # by handle, in the order in which they were handed over
        self._finished: Dict[int, Any] = {}  # of these: results that were fetched while an older one was out

    def install(self, horovod: Any) -> None:
        operations = sys.modules.get(_OPERATIONS)
        lacking = [name for name in _NEEDED if not hasattr(operations, name)]
        if operations is None or lacking:
            self._lacking = lacking or [_OPERATIONS]
            self._process.on_finish(self._say_what_is_lacking)
            return
        self._poll = operations.poll
        for name, collective in _ENQUEUE.items():
            if hasattr(operations, name):
                setattr(operations, name, self._enqueuing(getattr(operations, name), collective))
        replace_everywhere("horovod.torch", operations.synchronize, self._waiting(operations.synchronize))
        functions = sys.modules.get("horovod.torch.functions")
        original = getattr(functions, "broadcast_optimizer_state", None)
        if original is not None:
            replace_everywhere("horovod.torch", original, _no_step(original))

    def _say_what_is_lacking(self) -> Dict[str, Any]:
        reason = "this Horovod is not one perfscope knows (no %s)" % ", ".join(self._lacking)
        self._process.missing(Figure.COLLECTIVES, "Horovod's collectives", reason)
        return {}

    # -- hooks ----------------------------------------------------------------------------------------

    def _enqueuing(self, original: Any, collective: str) -> Any:
        names = list(inspect.signature(original).parameters)
        calls = self

        @around(original)
        def enqueue(*args: Any, **kwargs: Any) -> Any:
            if calls._off or not calls._process.calls.active:
                if calls._under_way:
                    calls.forget()  # of a window that is closed
                return original(*args, **kwargs)
            began = _clock()
            handle = original(*args, **kwargs)
            values = dict(zip(names, args), **kwargs)  # noqa: B905 - Python 3.8 has no `strict`
            calls._guarded(calls._enqueued, handle, began, collective, values)
            return handle

        return enqueue

    def _waiting(self, original: Any) -> Any:
        calls = self

        @around(original)
        def synchronize(handle: Any) -> Any:
            if calls._off or handle not in calls._under_way:
                return original(handle)
            began = _clock()
            calls._guarded(calls._ask)
            try:
                result = original(handle)
            except BaseException:
                calls.forget()
                raise
            calls._guarded(calls._waited, handle, began, result)
            return result

        return synchronize

    def _guarded(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on whatever happened here
            self._off = self._process.guard.fault("horovod " + call.__name__, error)

    # -- what they do ---------------------------------------------------------------------------------

    def _enqueued(self, handle: int, began: int, collective: str, values: Dict[str, Any]) -> None:
        self._ask()
        self._tell()
        tensors = values.get("tensor", values.get("tensors"))
        in_bytes, dtype = _size(tensors)
        group = self._group_of(values.get("process_set"))
        name = values.get("name")
        self._under_way[handle] = _Call(
            began, collective, "%s %s" % (collective, name) if name else collective, group, in_bytes, dtype
        )

    def _tell(self) -> None:
        if not self._told and self._process.recorder is not None:
            self._told = True
            self._process.recorder.save_meta(**self._facts())

    def _ask(self, ended: Optional[int] = None) -> None:
        """Write down the calls that are done by now (or were at `ended`), the oldest first."""
        done: List[Tuple[_Call, Any]] = []
        for handle in list(self._under_way):
            if handle not in self._finished and not self._is_done(handle):
                break
            done.append((self._under_way.pop(handle), self._finished.pop(handle, None)))
        ended = _clock() if ended is None else ended
        left = sum(call.in_bytes for call, _ in done)
        for number, (call, result) in enumerate(done):
            start = max(call.start, self._last_end)
            share = call.in_bytes / left if left else 1 / (len(done) - number)
            end = start + int((ended - start) * share)
            left -= call.in_bytes
            self._last_end = max(end, self._last_end)
            self._write(call, start, end, result)

    def _is_done(self, handle: int) -> bool:
        try:
            return bool(self._poll(handle))
        except (RuntimeError, ValueError):  # fetched on a way that is not looked at
            return True

    def _waited(self, handle: int, began: int, result: Any) -> None:
        ended = _clock()
        call = self._under_way.get(handle)
        if call is not None:
            self._finished[handle] = result
            self._process.calls.add(began, ended, "host", "synchronize " + call.name)
        self._ask(ended)

    def _write(self, call: _Call, start: int, end: int, result: Any) -> None:
        log = self._process.calls
        if not log.active:
            return
        log.name_lane(LANE, LABEL)
        log.tell_groups(self._groups_with(call.group))
        size = len(call.group["ranks"])
        log.add(
            start,
            end,
            "comm",
            call.name,
            collective=call.collective,
            group=call.group["name"],
            group_size=size,
            in_bytes=call.in_bytes,
            out_bytes=self._out_bytes(call, size, result),
            dtype=call.dtype,
            lane=LANE,
        )

    def _groups_with(self, group: Dict[str, Any]) -> List[Dict[str, Any]]:
        everybody = self._group_of(None)
        return [everybody] if group["name"] == everybody["name"] else [everybody, group]

    @staticmethod
    def _out_bytes(call: _Call, size: int, result: Any) -> Optional[int]:
        if call.collective in ("all_reduce", "broadcast"):
            return call.in_bytes
        if result is not None:
            # An all_to_all also gives how much came from whom.
            return _size(result[0] if call.collective == "all_to_all" else result)[0]
        # Seen to be done before the result was fetched: as if all ranks had given as much.
        shares = {"all_gather": call.in_bytes * size, "reduce_scatter": call.in_bytes // max(1, size)}
        return shares.get(call.collective, call.in_bytes)


def _size(tensors: Any) -> Tuple[int, str]:
    """(bytes, dtype) of a tensor or a list of them."""
    total, dtype = 0, ""
    for item in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
        if hasattr(item, "element_size"):
            total += int(item.numel()) * int(item.element_size())
            dtype = dtype or str(item.dtype).replace("torch.", "")
    return total, dtype


def _no_step(original: Any) -> Any:
    """`broadcast_optimizer_state` updates with zeros, to have a state that it can send: no training step."""

    @around(original)
    def broadcast_optimizer_state(*args: Any, **kwargs: Any) -> Any:
        optimizer = sys.modules["torch.optim.optimizer"]
        tables = [
            getattr(optimizer, name, {})
            for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
        ]
        kept = [list(table.items()) for table in tables]
        for table, hooks in zip(tables, kept):  # noqa: B905 - Python 3.8 has no `strict`
            for key, hook in hooks:
                if type(getattr(hook, "__self__", None)).__module__ == _TORCH_PROBE:
                    del table[key]
        try:
            return original(*args, **kwargs)
        finally:
            for table, hooks in zip(tables, kept):  # noqa: B905
                table.clear()  # all of them anew: their order counts
                table.update(hooks)

    return broadcast_optimizer_state


def replace_everywhere(package: str, original: Any, instead: Any) -> None:
    """Put `instead` wherever a module of `package` holds `original`: they import names from each other."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, instead)
