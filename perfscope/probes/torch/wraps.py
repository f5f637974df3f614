"""The functions of torch that the probe wraps, and what it asks torch before each look."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Optional, Tuple

from ..frames import around
from . import besides
from .workers import wrap_worker_loop

_clock = time.monotonic_ns


def wrap_backward(probe: Any, torch: Any) -> None:
    """Both functions that compute gradients; Tensor.backward goes through `torch.autograd.backward`."""
    _wrap_pass(probe, torch, "backward", "tensors")
    _wrap_pass(probe, torch, "grad", "outputs")


def _wrap_pass(probe: Any, torch: Any, name: str, losses: str) -> None:
    """Wrap `torch.autograd.NAME`, whose first argument is called `losses`."""
    original = getattr(torch.autograd, name)

    @around(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if probe.unseen() or probe.off or probe.in_backward or probe.is_elsewhere():
            return original(*args, **kwargs)
        returned = _parameters_of(torch, args, kwargs) if name == "grad" else ()
        if returned is None:
            return original(*args, **kwargs)
        probe.in_backward = True
        probe.guarded("backward", probe.backward_begins, args[0] if args else kwargs.get(losses), returned)
        counters = probe.process.counters
        depth = counters.backward_begins()
        began = _clock()
        try:
            return original(*args, **kwargs)
        finally:
            probe.in_backward = False
            now = _clock()
            counters.leave(depth)
            probe.guarded("backward", probe.backward_ended, began, now)
            probe.arm_root()  # a forward without an update in between is another micro-batch

    setattr(torch.autograd, name, backward)


def _parameters_of(torch: Any, args: tuple, kwargs: dict) -> Optional[Tuple[Any, ...]]:
    """The parameters that a call of `torch.autograd.grad` returns the gradients of, for an update.

    Returns:
        None for what is part of a forward pass: gradients of inputs or activations, gradients that will be
        differentiated themselves, and the compiler's trial with tensors that hold no values.
    """
    inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
    if kwargs.get("create_graph", args[4] if len(args) > 4 else False):
        return None
    parameters = tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
    return (
        parameters
        if parameters and all(type(parameter) is torch.nn.Parameter for parameter in parameters)
        else None
    )


def _loaded(probe: Any, began: int, thread: int, loader: int) -> None:
    """A loader has given a batch to `thread`; `loader` is 0 if it has none left."""
    if probe.bound and thread != probe._thread.ident:
        return
    waited = _clock() - began
    probe.process.activities.loaded(began, waited)
    besides.add_input(probe, waited, loader)
    if probe.rearm:
        probe.arm_root()


def _asked(probe: Any, iterator: Any, ask: Any, began: int, thread: int) -> None:
    """A loader with workers has given a batch to `thread`."""
    if not probe.bound or thread == probe._thread.ident:
        probe.batches.loaders.asks.given(iterator, ask, began, _clock() - began, probe.process.recorder)


def wrap_loader(probe: Any) -> None:
    loader = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(loader, "_BaseDataLoaderIter", None)
    if kind is None:
        return
    original = kind.__next__

    @around(original)
    def __next__(iterator: Any) -> Any:
        began, thread = _clock(), threading.get_ident()
        outer = thread not in probe.loading
        ask = probe.guarded("batch", probe.batches.loaders.asks.asks, iterator) if outer else None
        probe.loading.add(thread)  # modules that the data set calls are transforms
        loader = 0
        try:
            data = original(iterator)
            # The sampler of batches is the loader's own, and the same in every epoch.
            loader = id(getattr(iterator, "_index_sampler", None))
        finally:
            if outer:
                probe.loading.discard(thread)
            probe.guarded("batch", _loaded, probe, began, thread, loader)
        if ask is not None:
            probe.guarded("batch", _asked, probe, iterator, ask, began, thread)
        probe.guarded("batch", probe.batches.loaders.gave, probe.torch, iterator, data)
        return data

    kind.__next__ = __next__
    wrap_worker_loop()
    _wrap_iterators(probe, sys.modules[kind.__module__].DataLoader)


def _wrap_iterators(probe: Any, kind: Any) -> None:
    """Making a loader's iterator starts its workers, and is waited for like a batch."""
    original = kind.__iter__

    @around(original)
    def __iter__(loader: Any) -> Any:
        began, thread = _clock(), threading.get_ident()
        try:
            return original(loader)
        finally:
            if thread not in probe.loading:
                probe.guarded("batch", _loaded, probe, began, thread, 0)

    kind.__iter__ = __iter__


def wrap_process_group(probe: Any, dist: Any) -> None:
    begin, end = dist.init_process_group, dist.destroy_process_group

    @around(begin)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = begin(*args, **kwargs)
        probe.guarded("promote", probe.open)
        return result

    @around(end)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        probe.guarded("flush", probe.flush)
        probe.meshes.forget()
        return end(*args, **kwargs)

    for module in (dist, dist.distributed_c10d):
        module.init_process_group = init_process_group
        module.destroy_process_group = destroy_process_group
    probe.meshes.install(sys.modules["torch.distributed.device_mesh"], probe.guarded)


def unseen_test(torch: Any) -> Callable[[], bool]:
    """True while Dynamo or torch.jit.trace follow the code: what a hook does would become part of it."""
    compiling = torch.compiler.is_compiling if hasattr(torch, "compiler") else (lambda: False)
    tracing = getattr(torch._C, "_get_tracing_state", lambda: None)

    def unseen() -> bool:
        return bool(compiling()) or tracing() is not None

    return unseen
