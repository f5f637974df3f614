"""MXNet's distributed store: who this worker is, and how many bytes its steps send and fetch.

With DMLC_* variables there are workers, servers and one scheduler, all of the same program. Only workers
train: `import mxnet` never returns in the others, so that they never get as far as this file.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..frames import around
from ..ranks import Identity

GROUP = "kvstore"
SOURCE = "mxnet kvstore"
Traffic = Dict[Tuple[str, str, int, str], List[int]]  # (collective, group, size, dtype) -> in, out, calls


class StoreWatch:
    """Knows the distributed store once the training has made it.

    Args:
        guarded: calls a function and keeps its faults from the training.
        active: whether a window is open: traffic is only summed up then.
        pushed: called with a store that has just been given values; True: in no call of a Trainer or Module.

    Attributes:
        kind: "dist_sync", "dist_device_sync", "dist_async"...; "" until there is one.
        traffic: bytes since the last `take`.
        pulled: by key, what a store gave last that the training uses by itself: arrays.
    """

    def __init__(
        self, guarded: Callable[..., Any], active: Callable[[], bool], pushed: Callable[[Any], bool]
    ) -> None:
        self._guarded = guarded
        self._active = active
        self._pushed = pushed
        self.reset()

    def reset(self) -> None:
        self.kind = ""
        self.rank = 0
        self.num_workers = 1
        self.traffic: Traffic = {}
        self.pulled: Dict[str, Any] = {}
        self._is_used_bare = False

    def install(self, kvstore: Any) -> List[str]:
        """Put hooks into the class of stores.

        Returns:
            What could not be hooked.
        """
        store = getattr(kvstore, "KVStore", None)
        if store is None:
            return ["kvstore"]
        self._wrap_init(store)
        lacking = []
        for name, sends, fetches in (("push", True, False), ("pull", False, True), ("pushpull", True, True)):
            if hasattr(store, name):
                self._wrap_traffic(store, name, sends, fetches)
            else:
                lacking.append("kvstore." + name)
        return lacking

    def identity(self) -> Optional[Identity]:
        if not self.kind:
            return None
        return Identity(self.rank, None, self.num_workers, SOURCE)

    def facts(self) -> Dict[str, Any]:
        if not self.kind:
            return {}
        ranks = list(range(self.num_workers))
        group = {"name": GROUP, "desc": self.kind, "backend": "ps-lite", "ranks": ranks}
        return {"backend": "kvstore " + self.kind, "groups": [group], "root": data_parallel(self.num_workers)}

    def count(self, collective: str, group: str, size: int, dtype: str, given: int, taken: int) -> None:
        """Add one call of the step under way; bytes."""
        entry = self.traffic.setdefault((collective, group, size, dtype), [0, 0, 0])
        entry[0] += given
        entry[1] += taken
        entry[2] += 1

    def take(self) -> Traffic:
        """The traffic since the last call."""
        taken, self.traffic = self.traffic, {}
        return taken

    def _wrap_init(self, store: Any) -> None:
        original = store.__init__
        watch = self

        @around(original)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            watch._guarded("kvstore", watch._made, made)

        store.__init__ = __init__

    def _made(self, store: Any) -> None:
        kind = str(store.type)
        if "dist" in kind:
            self.rank, self.num_workers = int(store.rank), int(store.num_workers)
            self.kind = kind

    def _wrap_traffic(self, store: Any, name: str, sends: bool, fetches: bool) -> None:
        original = getattr(store, name)
        watch = self

        @around(original)
        def call(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            if watch.kind and watch._active():
                watch._guarded("kvstore traffic", watch._called, key, args, kwargs, sends, fetches)
            result = original(self, key, *args, **kwargs)
            if sends:
                watch._is_used_bare = bool(watch._guarded("kvstore", watch._pushed, self))
            if fetches and watch._is_used_bare:
                watch.pulled[str(key)] = _fetched(args, kwargs, sends)
            return result

        setattr(store, name, call)

    def _called(self, key: Any, args: tuple, kwargs: Dict[str, Any], sends: bool, fetches: bool) -> None:
        given = (args[0] if args else kwargs.get("value")) if sends else None
        taken = _fetched(args, kwargs, sends) if fetches else None
        sent, dtype = _size(key, given)
        fetched, dtype_out = _size(key, taken)
        dtype = dtype or dtype_out
        if "async" in self.kind:  # no rank waits for another: messages to servers, which are no ranks
            if sent:
                self.count("send", GROUP, self.num_workers, dtype, sent, 0)
            if fetched:
                self.count("recv", GROUP, self.num_workers, dtype, 0, fetched)
        else:
            self.count("all_reduce", GROUP, self.num_workers, dtype, sent, fetched)


def _fetched(args: tuple, kwargs: Dict[str, Any], sends: bool) -> Any:
    """Where a pull (or push and pull) puts what it gets; `args` begin behind the key."""
    if not sends:
        return args[0] if args else kwargs.get("out")
    out = args[1] if len(args) > 1 else kwargs.get("out")
    return out if out is not None else args[0] if args else kwargs.get("value")


def data_parallel(width: int) -> Dict[str, Any]:
    """`root` of rank.json: every worker takes a batch of its own; the model's name is not known."""
    return {"name": "", "type": "", "data_parallel": True, "dp_size": width}


def _size(key: Any, value: Any) -> Tuple[int, str]:
    """(bytes, dtype) of what goes over the network: of copies on several devices, one."""
    if value is None:
        return 0, ""
    values = list(value) if isinstance(key, (list, tuple)) else [value]
    total, dtype = 0, ""
    for array in values:
        first = array
        while isinstance(first, (list, tuple)):
            first = first[0]
        size, dtype = bytes_of(first)
        total += size
    return total, dtype


def bytes_of(array: Any) -> Tuple[int, str]:
    """(bytes, dtype) of an NDArray."""
    dtype = sys.modules["numpy"].dtype(array.dtype)
    return int(array.size) * int(dtype.itemsize), str(dtype.name)
