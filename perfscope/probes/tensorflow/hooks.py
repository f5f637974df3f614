"""Where TensorFlow is looked at: what stands around its functions, tapes, optimizers, iterators and sessions.

Each function here puts one hook in and raises AttributeError, KeyError, TypeError or StopIteration where this
version of TensorFlow lacks what it looks for. What the hooks see they tell the probe.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Dict, Set, Tuple

from ..frames import around

_FUNCTION = (
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "tensorflow.python.eager.def_function",  # before 2.11
)
_CONCRETE = (
    "tensorflow.python.eager.polymorphic_function.concrete_function",
    "tensorflow.python.eager.polymorphic_function.monomorphic_function",  # before 2.13
    "tensorflow.python.eager.function",
)
_COLLECTIVES = (
    "collective_reduce_v2", "collective_reduce", "collective_gather_v2", "collective_gather",
    "collective_reduce_scatter_v2", "collective_all_to_all_v2",
    "collective_bcast_send_v2", "collective_bcast_recv_v2",
)  # fmt: skip
_clock = time.monotonic_ns


class FunctionCall:
    """An outermost call of a tf.function.

    Attributes:
        args: (positional, by name).
        keys: optimizers whose updates were traced during this call.
        trains: it is a part of a step, as is known by now.
        late: it was found out to train by another thread, a replica's; the training's own waits for it.
        traces_only: nothing is run: `get_concrete_function`.
    """

    __slots__ = ("args", "began", "function", "keys", "late", "thread", "traces_only", "trains")

    def __init__(self, function: Any, args: Tuple[Any, ...], traces_only: bool = False) -> None:
        self.function = function
        self.args = args
        self.began = _clock()
        self.thread = threading.get_ident()
        self.keys: Set[int] = set()
        self.trains = self.late = False
        self.traces_only = traces_only


def wrap_function(probe: Any) -> None:
    kind = next(sys.modules[name] for name in _FUNCTION if name in sys.modules).Function
    kind.__call__ = _called(probe, kind.__call__)
    original = kind.get_concrete_function

    @around(original)
    def get_concrete_function(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not probe.looks():
            return original(function, *args, **kwargs)
        call = FunctionCall(function, (args, kwargs), traces_only=True)
        probe.calls[call.thread] = call
        try:
            concrete = original(function, *args, **kwargs)
        finally:
            probe.calls.pop(call.thread, None)
        probe.guarded("step", probe.function_traced, call, concrete)
        return concrete

    kind.get_concrete_function = get_concrete_function


def wrap_concrete_function(probe: Any) -> None:
    kind = next(sys.modules[name] for name in _CONCRETE if name in sys.modules).ConcreteFunction
    kind.__call__ = _called(probe, kind.__call__)


def _called(probe: Any, original: Any) -> Any:
    @around(original)
    def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not probe.looks():
            return original(function, *args, **kwargs)
        call = FunctionCall(function, (args, kwargs))
        probe.calls[call.thread] = call
        try:
            probe.guarded("step", probe.function_called, call)
            result = original(function, *args, **kwargs)
        except BaseException:
            if call.trains:
                probe.guarded("step", probe.update_failed)
            raise
        else:
            if call.trains or call.late:
                probe.guarded("step", probe.function_returned, call)
            return result
        finally:
            probe.calls.pop(call.thread, None)

    return __call__


def wrap_tape(probe: Any) -> None:
    kind = sys.modules["tensorflow"].GradientTape
    original = kind.__enter__

    @around(original)
    def __enter__(tape: Any) -> Any:
        probe.guarded("tape", probe.tape_opened)
        return original(tape)

    kind.__enter__ = __enter__


def wrap_v1_optimizer(probe: Any) -> None:
    wrap_optimizer(probe, sys.modules["tensorflow.python.training.optimizer"].Optimizer, "apply_gradients")


def wrap_optimizer(probe: Any, kind: Any, name: str) -> None:
    """From now on `kind.<name>`, a method called apply or apply_gradients, is an update."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    original = vars(owner)[name]
    if getattr(original, "_perfscope", False):
        return

    @around(original)
    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if probe.off or probe.updating:
            return original(optimizer, *args, **kwargs)
        variables, args, kwargs = _updated_variables(optimizer, name, args, kwargs)
        began = _clock()
        eager = probe.guarded("update", probe.update_begins, optimizer, variables, began)
        try:
            probe.updating = True
            result = original(optimizer, *args, **kwargs)
        finally:
            probe.updating = False
            if eager:
                probe.guarded("update", probe.update_ended, began)
        if eager is False:
            probe.guarded("update", probe.update_built, optimizer, result)
        return result

    update._perfscope = True
    setattr(owner, name, update)


def wrap_iterators(probe: Any) -> None:
    kinds = [sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator]
    module = sys.modules.get("tensorflow.python.distribute.input_lib")
    kinds += [getattr(module, name, None) for name in ("DistributedIteratorBase", "DistributedIterator")]
    for kind in kinds:
        for name in ("__next__", "get_next"):
            if kind is not None and name in vars(kind):
                setattr(kind, name, _waited_for(probe, vars(kind)[name]))


def _waited_for(probe: Any, original: Any) -> Any:
    @around(original)
    def following(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if probe.waiting or not probe.looks():
            return original(iterator, *args, **kwargs)
        began = _clock()
        probe.waiting = True
        try:
            batch = original(iterator, *args, **kwargs)
        finally:
            probe.waiting = False
            probe.add_input(_clock() - began)
        probe.guarded("batch", probe.batch_taken, batch)
        return batch

    return following


def wrap_collectives(probe: Any) -> None:
    module = sys.modules["tensorflow.python.ops.gen_collective_ops"]
    for name in _COLLECTIVES:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _sized(probe, original, name))


def _sized(probe: Any, original: Callable[..., Any], kind: str) -> Any:
    @around(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        probe.guarded("collective", probe.collective_traced, kind, args, kwargs, result)
        return result

    return collective


def wrap_sessions(probe: Any) -> None:
    """tf.compat.v1: a step is a run that reaches an update."""
    kind = sys.modules["tensorflow.python.client.session"].BaseSession
    original = kind.run

    @around(original)
    def run(session: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        keys = None
        if probe.updates.known and probe.looks():
            keys = probe.guarded("session", probe.updates.reached_by, session, fetches)
        if not keys:
            return original(session, fetches, *args, **kwargs)
        probe.guarded("step", probe.session_called, keys, args[0] if args else kwargs.get("feed_dict"))
        try:
            result = original(session, fetches, *args, **kwargs)
        except BaseException:
            probe.guarded("step", probe.update_failed)
            raise
        probe.guarded("step", probe.step_ended)
        return result

    kind.run = run


def _updated_variables(
    optimizer: Any, name: str, args: tuple, kwargs: Dict[str, Any]
) -> Tuple[Any, tuple, Dict[str, Any]]:
    """(variables of an update, its arguments: an iterator among them, read once, is now a list)."""
    if name == "apply":  # (grads, trainable_variables=None)
        variables = args[1] if len(args) > 1 else kwargs.get("trainable_variables")
        if variables is None:
            variables = getattr(optimizer, "_trainable_variables", None)
        return variables if isinstance(variables, (list, tuple)) else (), args, kwargs
    pairs = args[0] if args else kwargs.get("grads_and_vars")
    if not isinstance(pairs, (list, tuple)):
        if not hasattr(pairs, "__next__"):
            return (), args, kwargs
        pairs = list(pairs or ())
        if args:
            args = (pairs, *args[1:])
        else:
            kwargs = dict(kwargs, grads_and_vars=pairs)
    return [pair[1] for pair in pairs if isinstance(pair, (list, tuple)) and len(pair) > 1], args, kwargs
