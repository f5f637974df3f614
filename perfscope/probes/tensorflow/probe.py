"""The TensorFlow probe: steps of custom training loops, and windows by TensorFlow's own profiler.

A training step is the outermost call of a `tf.function` in which an optimizer's update was traced. In a loop
that runs eagerly it begins where the first gradient tape after an update opens, and the update ends it. A
`tf.function` that only records a tape counts as such a forward pass. What neither updates nor records a tape
(an evaluation) is no step. Several train functions (or optimizers) called in turn are one step: it is cut
where one of them comes again.

`model.fit` is the Keras probe's: it comes first, and whoever comes first cuts the steps of a process.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ...rundir import layout
from ..process import Process, current
from ..recorder import Recorder
from ..step_probe import StepProbe
from . import describe
from .trace import TensorFlowTrace

NAME = "tensorflow"
PROFILE = "PERFSCOPE_TF_PROFILE"  # 1: windows although several workers train together
MAX_EVALUATIONS = 64  # calls of other functions within one step, before a window is cut short
_REPLICA_THREAD = "_MirroredReplicaThread"
_FUNCTION = (
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "tensorflow.python.eager.def_function",  # before 2.11
)
_COLLECTIVES = (
    "collective_reduce_v2", "collective_reduce", "collective_gather_v2", "collective_gather",
    "collective_reduce_scatter_v2", "collective_all_to_all_v2",
    "collective_bcast_send_v2", "collective_bcast_recv_v2",
)  # fmt: skip
_clock = time.monotonic_ns


@functools.lru_cache(maxsize=None)
def the_probe() -> "TensorFlowProbe":
    return TensorFlowProbe(current())


def arm(framework: str = NAME) -> None:
    """TensorFlow has just been imported: put the hooks in. Nothing is written until the process trains.

    Raises:
        RuntimeError: this TensorFlow has nothing of what is looked for; nothing of it will be recorded.
    """
    the_probe().install(sys.modules["tensorflow"])


class TensorFlowProbe(StepProbe):
    """The probe of one process that has TensorFlow."""

    def __init__(self, process: Process) -> None:
        self._profiler = TensorFlowTrace(self._step_aside)
        super().__init__(process, NAME, self._profiler)
        self._unknown: List[str] = []
        self._start_watching()
        process.on_identity(describe.identity)

    def _start_watching(self) -> None:
        self._outer: Optional[Any] = None  # the tf.function under way, outermost, and its thread
        self._outer_thread = 0
        self._outer_began = 0
        self._late_key: Optional[Any] = None  # of a train function that was found out by another thread
        self._outer_args: Tuple[Any, ...] = ()
        self._train: "weakref.WeakSet[Any]" = weakref.WeakSet()  # functions that update
        self._forward: "weakref.WeakSet[Any]" = weakref.WeakSet()  # functions that record a tape
        self._first_forward: Optional[Tuple[int, Optional[int]]] = None  # its time and samples, before a step
        self._opener = 0  # id of the function whose forward pass began this step
        self._stepped: Set[Any] = set()  # what updated in this step
        self._updated = False  # since the last boundary
        self._updating = False  # inside an eager update
        self._waiting = False  # inside an iterator
        self._others = 0  # calls of functions that do not train, in this step
        self.variables = describe.Variables()
        self._collectives: Dict[str, Dict[str, Any]] = {}
        self._model_saved = False

    # -- installing ---------------------------------------------------------------------------

    def install(self, tf: Any) -> None:
        version = str(getattr(tf, "__version__", "?"))
        sees = [
            self._hook("tf.function calls", self._wrap_function),
            self._hook("eager training loops", self._wrap_tape, tf),
        ]
        self._hook("updates of tf.compat.v1 optimizers", self._wrap_v1_optimizer)
        self._hook("waits for tf.data", self._wrap_iterators)
        self._hook("sizes of collectives", self._wrap_collectives)
        if not any(sees):
            raise RuntimeError(
                "tensorflow %s has none of the calls perfscope knows: its training is not recorded" % version
            )
        self._unknown = ["tensorflow %s: %s" % (version, text) for text in self._unknown]

    def _hook(self, what: str, install: Callable[..., None], *args: Any) -> bool:
        try:
            install(*args)
            return True
        except (AttributeError, KeyError, TypeError, StopIteration):  # another version's API
            self._unknown.append("%s cannot be seen and are not recorded" % what)
            return False

    def _wrap_function(self) -> None:
        module = next(sys.modules[name] for name in _FUNCTION if name in sys.modules)
        kind = module.Function
        original = kind.__call__
        probe = self

        @functools.wraps(original)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            if probe._outer is not None or probe.off or not probe.on_training_thread:
                return original(function, *args, **kwargs)
            probe._outer_thread, probe._outer_began = threading.get_ident(), _clock()
            probe._outer, probe._outer_args = function, (args, kwargs)
            try:
                probe.guarded("step", probe._function_called, function)
                result = original(function, *args, **kwargs)
            except BaseException:
                if function in probe._train:
                    probe.guarded("step", probe._function_failed)
                raise
            else:
                if function in probe._train:
                    probe.guarded("step", probe._function_returned)
                return result
            finally:
                probe._outer, probe._outer_args = None, ()

        kind.__call__ = __call__

    def _wrap_tape(self, tf: Any) -> None:
        kind = tf.GradientTape
        original = kind.__enter__
        probe = self

        @functools.wraps(original)
        def __enter__(tape: Any) -> Any:
            probe.guarded("tape", probe._tape_opened)
            return original(tape)

        kind.__enter__ = __enter__

    def _wrap_v1_optimizer(self) -> None:
        self.watch_optimizer(sys.modules["tensorflow.python.training.optimizer"].Optimizer, "apply_gradients")

    def watch_optimizer(self, kind: Any, name: str) -> None:
        """From now on `kind.<name>`, a method called apply or apply_gradients, is an update."""
        owner = next(base for base in kind.__mro__ if name in vars(base))
        original = vars(owner)[name]
        if getattr(original, "_perfscope", False):
            return
        probe = self

        @functools.wraps(original)
        def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if probe.off or probe._updating:
                return original(optimizer, *args, **kwargs)
            variables, args, kwargs = _updated_variables(optimizer, name, args, kwargs)
            began = _clock()
            eager = probe.guarded("update", probe._update_begins, optimizer, variables, began)
            try:
                probe._updating = True
                return original(optimizer, *args, **kwargs)
            finally:
                probe._updating = False
                if eager:
                    probe.guarded("update", probe._update_ended, optimizer, began)

        update._perfscope = True  # type: ignore[attr-defined]
        setattr(owner, name, update)

    def _wrap_iterators(self) -> None:
        local = sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator
        self._wrap_wait(local, "__next__")
        module = sys.modules.get("tensorflow.python.distribute.input_lib")
        for kind in (
            getattr(module, "DistributedIteratorBase", None),
            getattr(module, "DistributedIterator", None),
        ):
            if kind is not None and "__next__" in vars(kind):
                self._wrap_wait(kind, "__next__")

    def _wrap_wait(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)
        probe = self

        @functools.wraps(original)
        def wait(iterator: Any) -> Any:
            if probe.off or probe._waiting or probe._outer is not None or not probe.on_training_thread:
                return original(iterator)
            began = _clock()
            probe._waiting = True
            try:
                return original(iterator)
            finally:
                probe._waiting = False
                probe.add_input(_clock() - began)

        setattr(kind, name, wait)

    def _wrap_collectives(self) -> None:
        module = sys.modules["tensorflow.python.ops.gen_collective_ops"]
        for name in _COLLECTIVES:
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, self._sized(original, name))

    def _sized(self, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.guarded("collective", self._collective_traced, kind, args, kwargs, result)
            return result

        return collective

    # -- what the hooks see -----------------------------------------------------------------------

    def _function_called(self, function: Any) -> None:
        """The outermost call of a tf.function begins."""
        if function in self._train:
            key = getattr(function, "_name", None) or id(function)
            if self._start is None or key in self._stepped:
                self._cut(describe.samples_of(self._outer_args))
            self._stepped.add(key)
            self._updated = True
        elif function in self._forward:
            self._forward_begins(describe.samples_of(self._outer_args), function)
        elif self.in_window:
            self._others += 1
            if self._others > MAX_EVALUATIONS:
                self.cut_window()

    def _tape_opened(self) -> None:
        if self._outer is not None:
            if self._outer not in self._train:
                self._forward.add(self._outer)
                if self._start is None and self._first_forward is None:
                    self._first_forward = (self._outer_began, describe.samples_of(self._outer_args))
                    self._opener = id(self._outer)
        elif self.on_training_thread and threading.current_thread().__class__.__name__ != _REPLICA_THREAD:
            self._forward_begins(None, None)

    def _forward_begins(self, samples: Optional[int], function: Any) -> None:
        """A forward pass: it begins a step, or is another micro-batch of one where `function` began it."""
        again = function is not None and self._opener == id(function)
        if self._start is not None and self._updated:
            self._cut(samples)
        elif self._start is None and self._first_forward is None:
            self._first_forward = (_clock(), samples)
        elif again and self._start is None and self._first_forward is not None:
            began, before = self._first_forward
            self._first_forward = (began, _sum(before, samples))
            return
        elif again and self._start is not None:
            self._samples = _sum(self._samples, samples)
            return
        else:
            return
        self._opener = id(function)

    def _update_begins(self, optimizer: Any, variables: Any, now: int) -> bool:
        """An optimizer's update is about to be traced, or to run.

        Returns:
            True when it runs eagerly, as a part of the loop itself.
        """
        self._learn(optimizer, variables)
        if self._outer is not None:
            self._traced_update(self._outer)
            return False
        tf = sys.modules["tensorflow"]
        if not tf.executing_eagerly() or type(threading.current_thread()).__name__ == _REPLICA_THREAD:
            return False
        if not self.on_training_thread:
            return False
        key = id(optimizer)
        if self._start is None:
            first, samples = self._first_forward or (now, None)
            self._cut(samples)
            self._began_at(first)
        elif self._updated and key in self._stepped:
            self._cut(None)  # no tape was seen since: cut at the update itself
        self._stepped.add(key)
        return True

    def _update_ended(self, optimizer: Any, began: int) -> None:
        self.add_optimizer(_clock() - began)
        self._updated = True
        self.step_ended()

    def _traced_update(self, function: Any) -> None:
        """An update is being traced into `function`: it is a train function, and this call a step of it."""
        if function in self._train:
            return
        self._train.add(function)
        self._forward.discard(function)
        key = getattr(function, "_name", None) or id(function)
        if self._outer_thread == threading.get_ident():
            self._first_call(key)
        else:  # a replica's thread traces; the training's own thread waits for it, and cuts the step
            self._late_key = key

    def _function_returned(self) -> None:
        key, self._late_key = self._late_key, None
        if key is not None:
            self._first_call(key)
        self.step_ended()

    def _function_failed(self) -> None:
        """It was no step: a train function that takes its own batches ends an epoch so (OutOfRangeError)."""
        self._late_key = None
        self.cut_window()
        self._start = None
        self._stepped.clear()

    def _first_call(self, key: Any) -> None:
        if self._start is None or key in self._stepped:
            began = self._outer_began
            self._cut(describe.samples_of(self._outer_args))
            self._began_at(began)
        self._stepped.add(key)
        self._updated = True

    def _cut(self, samples: Optional[int]) -> None:
        self._stepped.clear()
        self._updated = False
        self._others = 0
        self._first_forward = None
        self.boundary(samples)

    def _began_at(self, moment: int) -> None:
        """The step just begun was found out late: it began at `moment`."""
        if self._start is not None and self._index == 0:
            self._start = min(self._start, moment)

    def _learn(self, optimizer: Any, variables: Any) -> None:
        try:
            new = self.variables.add(optimizer, variables)
        except (TypeError, ValueError, AttributeError):  # variables of a kind without shape
            return
        if new:
            self._model_saved = False

    def _collective_traced(self, kind: str, args: Any, kwargs: Any, result: Any) -> None:
        """A collective has been put into a graph: its name there, and what it carries."""
        value = kwargs.get("input", args[0] if args else None)
        tf = sys.modules["tensorflow"]
        if tf.executing_eagerly() or not hasattr(result, "op"):
            return
        shape = getattr(value, "shape", None)
        count = shape.num_elements() if shape is not None else None
        dtype = getattr(result, "dtype", None)
        self._collectives[str(result.op.name)] = {
            "kind": kind,
            "bytes": None if count is None or dtype is None else int(count) * describe.item_size(dtype),
            "dtype": getattr(dtype, "name", None),
        }
        self._model_saved = False

    # -- as a StepProbe -----------------------------------------------------------------------------

    def boundary(self, samples: Optional[int] = None) -> None:
        super().boundary(samples)
        if not self._model_saved and self.process.owner == self.name and self.process.recorder is not None:
            self._model_saved = True
            self.save_model(self.process.recorder)

    def promote(self) -> Optional[Recorder]:
        if self.process.recorder is None and not self.may_trace():
            self.process.config = dict(self.process.config, trace=False)
        first = self._windows is None
        recorder = super().promote()
        if recorder is not None and first and self._windows is not None:
            self.tell_limits(self.process)
            for text in self._unknown:
                self.process.note(text)
        return recorder

    @staticmethod
    def may_trace() -> bool:
        found = describe.cluster()
        return found is None or len(found.addresses) < 2 or os.environ.get(PROFILE) == "1"

    def tell_limits(self, process: Process) -> None:
        """What this process will not record, and why."""
        if not self.may_trace():
            process.missing(
                "windows (layers, phases, collectives in time)",
                "TensorFlow's profiler crashes now and then when several workers train together (TF_CONFIG); "
                "set %s=1 to trace all the same" % PROFILE,
            )

    def save_model(self, recorder: Recorder) -> None:
        """layers.json and what the reader of the trace needs to know of the graph."""
        root, rows = self.variables.rows()
        if rows:
            recorder.write_json(layout.LAYERS_JSON, {"root": root, "layers": rows})
        width = describe.width()
        recorder.save_meta(
            **self.graph_facts(),
            gradient_bytes=self.variables.total_bytes,
            root={"name": root, "type": root, "data_parallel": width is not None, "dp_size": width},
        )

    def graph_facts(self) -> Dict[str, Any]:
        """For rank.json: scopes of optimizers, and collectives of the traced graphs by their names."""
        return {"optimizers": list(self.variables.optimizers), "collective_ops": dict(self._collectives)}

    def facts(self) -> Dict[str, Any]:
        return describe.facts()

    def forked(self) -> None:
        self._profiler.forget()
        self._start_watching()

    def wait(self) -> bool:
        """On a GPU calls return before their work is done, on the CPU not; True when it was waited for."""
        tf = sys.modules["tensorflow"]
        sync = getattr(tf.test.experimental, "sync_devices", None)
        if sync is None or not describe.has_gpu(tf):
            return False
        sync()
        return True

    def window_closing(self) -> None:
        self.wait()

    def _step_aside(self) -> None:
        self.guarded("yield", self.cut_window)


def _sum(one: Optional[int], other: Optional[int]) -> Optional[int]:
    return None if one is None or other is None else one + other


def _updated_variables(
    optimizer: Any, name: str, args: tuple, kwargs: Dict[str, Any]
) -> Tuple[Any, tuple, Dict]:
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
