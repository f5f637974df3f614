"""The TensorFlow probe: steps of custom training loops, and windows by TensorFlow's own profiler.

A training step is the outermost call of a `tf.function` in which an optimizer's update was traced, or the run
of a `tf.compat.v1` session that reaches one. In a loop that runs eagerly it begins where the first gradient
tape after an update opens, and the update ends it. A `tf.function` that only records a tape counts as such a
forward pass. What neither updates nor records a tape (an evaluation) is no step. Several optimizers that
update in turn make one step: it is cut where one of them comes again.

`model.fit` is the Keras probe's: it comes first, and the one who comes first cuts the steps of a process.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Collection, Dict, List, Optional, Set, Tuple

from ...rundir import layout
from ...vocabulary.figures import Figure
from ..process import Process, current
from ..recorder import Recorder
from ..step_probe import StepProbe
from . import describe, hooks
from .graphs import GraphUpdates
from .trace import TensorFlowTrace

NAME = "tensorflow"
PROFILE = "PERFSCOPE_TF_PROFILE"  # 1: windows although several workers train together
MAX_EVALUATIONS = 64  # calls of other functions within one step, before a window is cut short
_EAGER = "the training runs outside tf.function: its operators carry no scopes"
_COMPILED = (
    "XLA compiled the train function (jit_compile): TensorFlow's profile has no scopes of its operators"
)
_NO_SCOPES = "layers, forward and backward"
_REPLICA_THREAD = "_MirroredReplicaThread"
_Forward = Tuple[int, Optional[int]]  # when it began, samples
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
    """The probe of one process that has TensorFlow.

    Attributes:
        calls: thread -> the outermost call of a tf.function that it is in.
        updating: inside an optimizer's update; waiting: inside an iterator.
        updates: operators of tf.compat.v1 graphs that update.
        variables: what optimizers have updated so far.
    """

    def __init__(self, process: Process) -> None:
        self._profiler = TensorFlowTrace(self.step_aside)
        super().__init__(process, NAME, self._profiler)
        self._unknown: List[str] = []
        process.on_identity(describe.identity)
        process.lend(self)

    def start_afresh(self) -> None:
        super().start_afresh()
        self.calls: Dict[int, hooks.FunctionCall] = {}
        self.updating = self.waiting = False
        self.updates = GraphUpdates()
        self.variables = describe.Variables()
        # Functions that update, and the optimizers they do it with; functions that record a tape.
        self._train: "weakref.WeakKeyDictionary[Any, Set[int]]" = weakref.WeakKeyDictionary()
        self._forward: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._first_forward: Optional[_Forward] = None  # before there was any step
        self._candidate: Optional[_Forward] = None  # it begins the next step if an optimizer comes again
        self._opener = 0  # id of the function whose forward pass began this step
        self._stepped: Set[int] = set()  # optimizers that updated in this step
        self._num_optimizers = 0  # that updated in the last step; 0: there was none
        self._updated = False  # since the last forward pass
        self._batch: Optional[int] = None  # samples of the batch that an iterator gave last
        self._others = 0  # calls of functions that do not train, in this step
        self._collectives: Dict[str, Dict[str, Any]] = {}
        self._model_saved = False
        self._limits: Dict[str, str] = {}  # what windows will not say of this training: why

    # -- installing ---------------------------------------------------------------------------

    def install(self, tf: Any) -> None:
        version = str(getattr(tf, "__version__", "?"))
        sees = [
            self._hook("tf.function calls", hooks.wrap_function),
            self._hook("eager training loops", hooks.wrap_tape),
        ]
        self._hook("calls of concrete functions", hooks.wrap_concrete_function)
        self._hook("updates of tf.compat.v1 optimizers", hooks.wrap_v1_optimizer)
        self._hook("sessions of tf.compat.v1", hooks.wrap_sessions)
        self._hook("waits for tf.data", hooks.wrap_iterators)
        self._hook("sizes of collectives", hooks.wrap_collectives)
        if not any(sees):
            raise RuntimeError(
                "tensorflow %s has none of the calls perfscope knows: its training is not recorded" % version
            )
        if self._unknown:
            lacking = ", ".join(self._unknown)
            self._unknown = ["tensorflow %s: %s cannot be seen and are not recorded" % (version, lacking)]

    def _hook(self, what: str, install: Callable[[Any], None]) -> bool:
        try:
            install(self)
            return True
        except (AttributeError, KeyError, TypeError, StopIteration):  # another version's API
            self._unknown.append(what)
            return False

    def watch_optimizer(self, kind: Any, name: str) -> None:
        """From now on `kind.<name>`, a method called apply or apply_gradients, is an update."""
        hooks.wrap_optimizer(self, kind, name)

    # -- what the hooks see -----------------------------------------------------------------------

    def looks(self) -> bool:
        """Whether a call on this thread counts: it is the training's, and within no other call."""
        return not (
            self.off or threading.get_ident() in self.calls or not self.on_training_thread or _is_replica()
        )

    def _call_here(self) -> Optional[hooks.FunctionCall]:
        """The call that this thread works for."""
        call = self.calls.get(threading.get_ident())
        if call is None and self.calls and _is_replica():
            call = next(iter(list(self.calls.values())), None)
        return call

    def function_called(self, call: hooks.FunctionCall) -> None:
        """The outermost call of a tf.function begins."""
        keys = self._train.get(call.function)
        if keys is not None:
            call.trains = True
            self._update_comes(keys, call.began, call.args)
        elif call.function in self._forward:
            self._forward_begins(describe.samples_of(call.args), call.function)
        elif self.in_window:
            self._others += 1
            if self._others > MAX_EVALUATIONS:
                self.cut_window()

    def function_traced(self, call: hooks.FunctionCall, concrete: Any) -> None:
        """A concrete function has been made; it may be called by itself."""
        if call.keys:
            self._train[concrete] = self._train[call.function] = call.keys
        elif call.function in self._train:
            self._train[concrete] = self._train[call.function]
        elif call.function in self._forward:
            self._forward.add(concrete)

    def tape_opened(self) -> None:
        call = self._call_here()
        if call is None:
            if self.on_training_thread and not _is_replica():
                samples, self._batch = self._batch, None
                self._forward_begins(samples, None)
        elif call.function not in self._train:
            self._forward.add(call.function)
            if self.started is None and self._first_forward is None and not call.traces_only:
                self._first_forward = (call.began, describe.samples_of(call.args))
                self._opener = id(call.function)

    def _forward_begins(self, samples: Optional[int], function: Any) -> None:
        """A forward pass: it begins a step, or is another micro-batch of one where `function` began it.

        function: None = a tape in a loop that runs eagerly, where only a new batch makes another micro-batch.
        """
        again = self._opener == id(function) and (function is not None or samples is not None)
        if self.started is None:
            if self._first_forward is None:
                self._first_forward, self._opener = (_clock(), samples), id(function)
            elif again:
                self._first_forward = (self._first_forward[0], _sum(self._first_forward[1], samples))
        elif self._updated:
            self._updated, self._opener = False, id(function)
            if 0 < self._num_optimizers <= len(self._stepped):
                self._cut(samples)
            else:  # whether another optimizer of this step is still to come, only its update will tell
                self._candidate = (_clock(), samples)
        elif again and self._candidate is not None:
            self._candidate = (self._candidate[0], _sum(self._candidate[1], samples))
        elif again:
            self.samples = _sum(self.samples, samples)

    def update_begins(self, optimizer: Any, variables: Any, now: int) -> Optional[bool]:
        """An optimizer's update is about to be traced, built or run.

        Returns:
            True: it runs eagerly, as a part of the loop itself; False: it is built into a graph of
            tf.compat.v1; None: neither.
        """
        self._learn(optimizer, variables)
        call = self._call_here()
        if call is not None:
            self._traced_update(call, id(optimizer))
            return None
        if not sys.modules["tensorflow"].executing_eagerly():
            return False
        if _is_replica() or not self.on_training_thread:
            return None
        self._limit(_NO_SCOPES, _EAGER)
        self._update_comes({id(optimizer)}, now, ())
        return True

    def update_ended(self, began: int) -> None:
        self.add_optimizer(_clock() - began)
        self._updated = True
        self.step_ended()

    def update_built(self, optimizer: Any, operator: Any) -> None:
        graph = getattr(operator, "graph", None)
        if graph is not None and not getattr(graph, "building_function", False):
            self.updates.add(operator, id(optimizer))

    def session_called(self, keys: Collection[int], feed: Any) -> None:
        values = list(feed.values()) if isinstance(feed, dict) else ()
        self._update_comes(keys, _clock(), (values, {}))

    def batch_taken(self, batch: Any) -> None:
        self._batch = describe.samples_of((batch,))

    def _traced_update(self, call: hooks.FunctionCall, key: int) -> None:
        """An update is being traced into a function: it trains, and this call is a step, or a part of one."""
        call.keys.add(key)
        if getattr(call.function, "_jit_compile", None):
            self.tell_compiled()
        if call.traces_only:
            return
        keys = self._train.setdefault(call.function, set())
        keys.add(key)
        self._forward.discard(call.function)
        if call.trains:
            self._stepped.add(key)
        elif call.thread == threading.get_ident():
            call.trains = True
            self._update_comes(keys, call.began, call.args)
        else:
            call.late = True

    def function_returned(self, call: hooks.FunctionCall) -> None:
        if not call.trains:
            call.trains = True
            self._update_comes(call.keys, call.began, call.args)
        self.step_ended()

    def update_failed(self) -> None:
        """It was no step: a train function that takes its own batches ends an epoch so (OutOfRangeError)."""
        self._stepped.clear()
        self._candidate = self._first_forward = None
        self._updated = False
        self.drop_step()

    def _update_comes(self, keys: Collection[int], began: int, args: Tuple[Any, ...]) -> None:
        """These optimizers update, in a call that began then with `args`."""
        repeats = not self._stepped.isdisjoint(keys)
        candidate, self._candidate = self._candidate, None
        if self.started is None and self._first_forward is not None:
            self._cut_at(*self._first_forward)
        elif candidate is not None and repeats:
            self._cut_at(*candidate)
        elif self.started is None or repeats:
            samples, self._batch = describe.samples_of(args) or self._batch, None
            self._cut_at(began, samples)
        self._stepped.update(keys)
        self._updated = True

    def _cut(self, samples: Optional[int]) -> None:
        self._num_optimizers = len(self._stepped)
        self._stepped.clear()
        self._updated = False
        self._others = 0
        self._first_forward = self._candidate = None
        self.boundary(samples)

    def _cut_at(self, moment: int, samples: Optional[int]) -> None:
        """A step began at `moment`, which is over. Where a window turns it begins now instead."""
        was_traced, opens, began = self.in_window, self.windows is None, _clock()
        if self.started is not None and not was_traced:
            self._input_ns += self._late_input_ns
            self._late_input_ns = 0
            self.end_step(max(self.started, moment))
        self._cut(samples)
        if self.started is not None and not was_traced and not self.in_window:
            # Opening the rank's files is no part of the first step.
            self.started = min(self.started, moment + (_clock() - began if opens else 0))

    def _learn(self, optimizer: Any, variables: Any) -> None:
        try:
            new = self.variables.add(optimizer, variables)
        except (TypeError, ValueError, AttributeError):  # variables of a kind without shape
            return
        if new:
            self._model_saved = False

    def collective_traced(self, kind: str, args: Any, kwargs: Any, result: Any) -> None:
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
        first = self.windows is None
        recorder = super().promote()
        if recorder is not None and first and self.windows is not None:
            self.tell_limits(self.process)
            for text in self._unknown:
                self.process.note(text)
        return recorder

    @staticmethod
    def may_trace() -> bool:
        cluster_ = describe.cluster()
        return cluster_ is None or len(cluster_.addresses) < 2 or os.environ.get(PROFILE) == "1"

    def tell_compiled(self) -> None:
        """The train function is compiled by XLA."""
        self._limit(_NO_SCOPES, _COMPILED)

    def _limit(self, what: str, reason: str) -> None:
        if what not in self._limits:
            self._limits[what] = reason
            self.process.missing(
                Figure.LAYERS_AND_PHASES, what, reason
            )  # later, by `tell_limits`, where there is no rank yet

    def tell_limits(self, process: Process) -> None:
        """What this process will not record, and why."""
        for what, reason in self._limits.items():
            process.missing(Figure.LAYERS_AND_PHASES, what, reason)
        if not self.may_trace():
            process.missing(
                Figure.WINDOWS,
                "windows (layers, phases, collectives in time)",
                "TensorFlow's profiler crashes now and then when several workers train together (TF_CONFIG); "
                "set %s=1 to trace all the same" % PROFILE,
            )

    def in_use(self) -> bool:
        context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
        return bool(getattr(context, "_initialized", False))

    def describe(self, recorder: Recorder) -> None:
        self.tell_limits(self.process)
        self.save_model(recorder)

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


def _sum(first: Optional[int], other: Optional[int]) -> Optional[int]:
    return None if first is None or other is None else first + other


def _is_replica() -> bool:
    """This thread works for one of several replicas of a strategy; another one waits for it."""
    return type(threading.current_thread()).__name__ == _REPLICA_THREAD
