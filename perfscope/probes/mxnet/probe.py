"""The MXNet probe: steps at `autograd.record()`, updates by Trainer or Module, windows by its profiler.

A step begins at the first `autograd.record()` (or training forward of a Module) after an update and lasts
to the next, as with torch. MXNet's engine is asynchronous: Python only hands operators over, so that a
step's work may still run when the next one has begun, and a step's time is the time between hand-overs. It
is right in the mean, and exact where the training waits in each step (for the loss, say). In windows
perfscope waits for the update before the first traced step and at the end of each, so that operators stand
in the step they belong to.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import types
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

from ...rundir import layout
from ...vocabulary.figures import Figure
from ..frames import around, hide_frames
from ..process import Process, current
from ..recorder import Recorder
from ..step_probe import StepProbe
from .store import StoreWatch
from .trace import MARK_COMM, MxnetTrace, profiler_of

NAME = "mxnet"
RETIRED = "MXNet is retired: it went to the Apache Attic in September 2023 and gets no fixes any more"
_NO_LAYERS = "MXNet's profiler records operator types without the layer they belong to"
_ROLES_THAT_DO_NOT_TRAIN = ("server", "scheduler")
_clock = time.monotonic_ns


def arm(framework: str = NAME) -> None:
    """mxnet has just been imported: put the hooks in. Nothing is written until the process trains."""
    if os.environ.get("DMLC_ROLE") not in _ROLES_THAT_DO_NOT_TRAIN:
        the_probe().install(sys.modules["mxnet"])


@functools.lru_cache(maxsize=None)
def the_probe() -> "MxnetProbe":
    return MxnetProbe(current())


class MxnetProbe(StepProbe):
    """Cuts the steps of a process that trains with MXNet."""

    def __init__(self, process: Process) -> None:
        self._clear()
        self._profiler = MxnetTrace(process, self._cut)
        self.store = StoreWatch(self.guarded, self._is_traced, self._pushed)
        super().__init__(process, NAME, self._profiler)
        process.on_identity(self.store.identity)
        process.lend(self)

    def _clear(self) -> None:
        self._awaiting = True  # no forward pass since the last update
        self._held: Optional[int] = None  # start of the first step, until its update
        self._principal: Optional[int] = None  # whose updates make the steps, of several trainers
        self._others: set = set()
        self._batch: Optional[int] = None  # samples of the batch that was loaded last
        self._fed = 0  # samples of the batches that forward passes took
        self._loading = False
        self._depth = 0  # of modules that are made of modules
        self._error: Optional[BaseException] = None
        self._told = False
        self._trainer: Optional[Callable[[], Any]] = None

    def forked(self) -> None:
        self._clear()
        self.store.reset()
        self._profiler.forget()

    # -- installing -----------------------------------------------------------------------------------

    def install(self, mxnet: Any) -> None:
        self._mxnet = mxnet
        lacking: List[str] = []
        profiler = profiler_of(mxnet)
        if profiler is None:
            lacking.append("profiler")
            self.trace = None
        else:
            self._profiler.install(profiler)
        self._lacking = lacking
        self._hook("autograd", self._wrap_record)
        self._hook("gluon.Trainer", self._wrap_trainer)
        self._hook("module", self._wrap_modules)
        self._hook("gluon.data.DataLoader", self._wrap_loader)
        self._hook("io.DataIter", self._wrap_next)
        self._hook("nd", self._wrap_waits)
        self._hook("kvstore", lambda store: lacking.extend(self.store.install(store)))

    def _hook(self, path: str, wrap: Callable[[Any], None]) -> None:
        """`wrap` what lies at `path` of mxnet; what another version lacks is noted with the rank."""
        target = self._mxnet
        try:
            for name in path.split("."):
                target = getattr(target, name)
            wrap(target)
        except AttributeError:
            self._lacking.append(path)

    def _wrap_record(self, autograd: Any) -> None:
        scope = autograd._RecordingStateScope
        original = scope.__enter__
        probe = self

        @around(original)
        def __enter__(self: Any) -> Any:
            if self._enter_is_record:
                probe.forward_begins(None)
            return original(self)

        scope.__enter__ = __enter__

    def _wrap_trainer(self, trainer: Any) -> None:
        for name in ("step", "update"):
            self._wrap_update(trainer, name)
        if hasattr(trainer, "allreduce_grads"):
            self._wrap_exchange(trainer)

    def _wrap_exchange(self, trainer: Any) -> None:
        """`allreduce_grads`: called before `update`, to look at the gradients in between; no update."""
        original = trainer.allreduce_grads
        probe = self

        @around(original)
        def allreduce_grads(self: Any) -> Any:
            probe._depth += 1
            try:
                return original(self)
            finally:
                probe._depth -= 1

        trainer.allreduce_grads = allreduce_grads

    def _wrap_update(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)
        probe = self

        @around(original)
        def update(self: Any, *args: Any, **kwargs: Any) -> Any:
            probe._depth += 1
            try:
                result = original(self, *args, **kwargs)
            finally:
                probe._depth -= 1
            if not probe._depth:
                samples = args[0] if args else kwargs.get("batch_size")
                probe.updated(self, samples if isinstance(samples, int) else None)
            return result

        setattr(owner, name, update)

    def _wrap_modules(self, module: Any) -> None:
        for name in ("Module", "BucketingModule", "SequentialModule"):
            kind = getattr(module, name)
            self._wrap_update(kind, "update")
            self._wrap_forward(kind)

    def _wrap_forward(self, kind: Any) -> None:
        original = kind.forward
        probe = self

        @around(original)
        def forward(self: Any, data_batch: Any, is_train: Any = None) -> Any:
            if not probe._depth and (is_train or (is_train is None and self.for_training)):
                probe.forward_begins(data_batch)
            probe._depth += 1
            try:
                return original(self, data_batch, is_train)
            finally:
                probe._depth -= 1

        kind.forward = forward

    def _wrap_loader(self, loader: Any) -> None:
        original = loader.__iter__
        probe = self

        def timed(batches: Any) -> Any:
            while True:
                try:
                    batch = probe.load(batches.__next__)
                except StopIteration:
                    return
                except BaseException as error:
                    hide_frames(error)
                    raise
                yield batch

        @around(original)
        def __iter__(self: Any) -> Any:
            batches = original(self)
            # With worker processes it is an iterator of MXNet's own, hooked below.
            return timed(batches) if isinstance(batches, types.GeneratorType) else batches

        loader.__iter__ = __iter__
        workers = getattr(sys.modules.get(loader.__module__), "_MultiWorkerIter", None)
        if workers is not None:
            self._wrap_next(workers)

    def _wrap_next(self, kind: Any) -> None:
        original = kind.__next__
        probe = self

        @around(original)
        def __next__(self: Any) -> Any:
            return probe.load(functools.partial(original, self))

        kind.__next__ = __next__

    def _wrap_waits(self, nd: Any) -> None:
        """Where the main thread waits for the engine, to be seen in windows."""
        for owner, name in ((nd.NDArray, "asnumpy"), (nd.NDArray, "wait_to_read"), (nd, "waitall")):
            setattr(owner, name, self._timed(getattr(owner, name), name))

    def _timed(self, original: Any, name: str) -> Any:
        log = self.process

        @around(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            if not log.calls.active:
                return original(*args, **kwargs)
            began = _clock()
            try:
                return original(*args, **kwargs)
            finally:
                log.calls.add(began, _clock(), "host", name)

        return wait

    # -- called from hooks ----------------------------------------------------------------------------

    def load(self, following: Callable[[], Any]) -> Any:
        """The next batch of a loader; how long the training waited for it."""
        if self._loading or self.off or not self.on_training_thread:
            return following()
        self._loading = True
        began = _clock()
        mark = self.guarded("input", self._input_mark) if self._is_traced() else None
        try:
            batch = following()
        finally:
            self._loading = False
            self.guarded("input", self._loaded, began, mark)
        self._batch = self.guarded("batch", samples_of, batch)
        return batch

    def _input_mark(self) -> Any:
        """In the trace, not among the calls: its reader knows what the engine computes meanwhile."""
        if not self._profiler.running:
            return None
        mark = self._profiler.new_mark(layout.MARK_INPUT)
        mark.__enter__()
        return mark

    def _loaded(self, began: int, mark: Any) -> None:
        self.add_input(_clock() - began)
        if mark is not None:
            mark.__exit__(None, None, None)

    def forward_begins(self, data_batch: Any) -> None:
        """The first of them after an update begins a step."""
        if self.off or not self.on_training_thread:
            return
        batch = self._batch if data_batch is None else self.guarded("batch", samples_of, data_batch)
        self._batch = None
        if self._awaiting:
            self._awaiting = False
            if self.started is None:
                # Only an update proves that this is a training; and in the first one gluon makes the store,
                # which tells what worker this is.
                self._held = _clock()
            else:
                self.guarded("step", self._begin)
                self._rethrow()
        self._fed += batch or 0

    def _begin(self) -> None:
        self._fed = 0
        following = self.index + (self.started is not None)
        if self.windows is not None and self.windows.wants(following):
            self._wait()  # what earlier steps left to the engine is theirs: not the window's, nor its cost
        self.boundary()

    def updated(self, trainer: Any, batch_size: Optional[int]) -> None:
        """An update has been handed over to the engine."""
        if not self.off and self.on_training_thread:
            self.guarded("update", self._updated, trainer, batch_size)
            self._rethrow()

    def _pushed(self, store: Any) -> bool:
        """A store was given values; True when by the training itself, which then is an update.

        Within a call of a Trainer or Module that call is the update.
        """
        if self._depth or self.off or not self.on_training_thread:
            return False
        if not self._awaiting:
            self._updated(store, None)
        elif self._principal == id(store):
            self.step_ended()  # one parameter after the other
        return self._principal == id(store)

    def _updated(self, trainer: Any, batch_size: Optional[int]) -> None:
        if not self._is_principal(id(trainer)):
            return
        self._trainer = weakref.ref(trainer)
        held, self._held = self._held, None
        if held is not None:
            self._begin_at(held)
        forward_seen = not self._awaiting
        self.samples = self._fed or batch_size
        self.step_ended()
        self._awaiting = True
        if not forward_seen:  # a training whose forward passes cannot be seen: cut where updates end
            self._awaiting = False
            self._begin()
            self._awaiting = True

    def _begin_at(self, began: int) -> None:
        fed = self._fed
        self._begin()
        self._fed = fed
        if self.started is not None:
            self.started = began

    def _is_principal(self, trainer: int) -> bool:
        """Of several trainers (a GAN's) one makes the steps: the first, as long as it goes on updating."""
        if self._principal is None or trainer in self._others:
            self._principal = trainer
        if trainer == self._principal:
            self._others.clear()
            return True
        self._others.add(trainer)
        return False

    # -- steps and windows ----------------------------------------------------------------------------

    def promote(self) -> Optional[Recorder]:
        recorder = super().promote()
        if recorder is not None:
            self._tell_limits()
        return recorder

    def _tell_limits(self) -> None:
        if self._told:
            return
        self._told = True
        self.process.note(RETIRED)
        self.process.missing(Figure.LAYERS, "layers", _NO_LAYERS)
        if self._lacking:
            text = "this MXNet has no %s: what hangs on it is not recorded" % ", ".join(self._lacking)
            self.process.note(text)

    def facts(self) -> Dict[str, Any]:
        mxnet = self._mxnet
        context = getattr(getattr(mxnet, "context", None), "current_context", None)
        threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
        return dict(
            self.store.facts(),
            framework={"name": NAME, "version": str(getattr(mxnet, "__version__", ""))},
            device=str(context()).replace("(0)", "") if context is not None else "cpu",
            num_threads=int(threads) if threads.isdigit() else None,
        )

    def window_opened(self) -> None:
        self.store.take()
        if self.trace is None:
            self.process.calls.tell(outside="training")

    def window_closing(self) -> None:
        self.wait()

    def wait(self) -> None:
        self._wait()
        if not self._profiler.running:
            return
        for (collective, group, size, dtype), (given, taken, calls) in self.store.take().items():
            values = (collective, group, size, given, taken, dtype, calls)
            self._profiler.tell(MARK_COMM + ":".join(str(value) for value in values))

    # -- for steps that the program marks itself ------------------------------------------------------

    def in_use(self) -> bool:
        return self._trainer is not None or not self._awaiting

    def describe(self, recorder: Recorder) -> None:
        self._tell_limits()
        recorder.save_meta(**self.store.facts())

    def _is_traced(self) -> bool:
        return self._profiler.running or self.in_window

    def _wait(self) -> None:
        """Until the last update is done. Not `waitall`: that would raise, and so use up, errors of operators
        whose result the training never looks at. An error in the weights is the end of the training anyway.
        """
        trainer = self._trainer() if self._trainer is not None else None
        try:
            for array in (*weights_of(trainer), *arrays_of(self.store.pulled.values())):
                array.wait_to_read()
        except Exception as error:  # noqa: BLE001 - raised again in the training, by `_rethrow`
            self._error = error

    def _rethrow(self) -> None:
        """The caller that waits for the engine gets its errors, once: they are passed on to the training."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _cut(self) -> None:
        self.guarded("cut window", self.cut_window)


def samples_of(batch: Any) -> Optional[int]:
    """Leading dimension of the first array of a batch; without the samples that only fill it up."""
    data = getattr(batch, "data", None)
    if isinstance(data, list) and data:  # io.DataBatch
        return int(data[0].shape[0]) - int(getattr(batch, "pad", None) or 0)
    while isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape else None


def arrays_of(values: Iterable[Any]) -> Iterator[Any]:
    """Arrays, or lists of arrays, one by one."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from arrays_of(value)
        elif value is not None:
            yield value


def weights_of(trainer: Any) -> Iterator[Any]:
    """The arrays that a gluon.Trainer or a Module updates."""
    for parameter in getattr(trainer, "_params", None) or ():
        if getattr(parameter, "_data", None) is not None:  # not before the shapes are known
            yield from parameter.list_data()
    for copies in getattr(getattr(trainer, "_exec_group", None), "param_arrays", None) or ():
        yield from copies
