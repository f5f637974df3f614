"""The Keras probe: steps of `model.fit` and `train_on_batch`, on every backend.

`fit` tells its callbacks when a batch begins and ends. The probe listens where `fit` speaks, at the list of
callbacks itself, and not as one callback more: a callback that wants the end of batches makes Keras wait for
each batch's metrics, and tf_keras warns on stderr of a callback that takes long.

With `steps_per_execution=k` Keras speaks of every k-th batch only: a step of perfscope is then k updates.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from typing import Any, Callable, Dict, List, Optional

from ...rundir import layout
from ..frames import around
from ..process import Process, current
from ..recorder import Recorder
from ..step_probe import StepProbe
from ..tensorflow.describe import samples_of
from . import describe
from .backend import Backend, backend_of

NAME = "keras"
_clock = time.monotonic_ns


@functools.lru_cache(maxsize=None)
def the_probe() -> "KerasProbe":
    return KerasProbe(current())


def arm(framework: str = NAME) -> None:
    """Keras (or tf_keras) has just been imported: listen. Nothing is written until the process trains.

    Raises:
        RuntimeError: this Keras has nothing of what is looked for; nothing of it will be recorded.
    """
    the_probe().install(sys.modules[framework])


class KerasProbe(StepProbe):
    """The probe of one process that has Keras."""

    def __init__(self, process: Process) -> None:
        super().__init__(process, NAME)
        self._backend: Optional[Backend] = None
        self._keras: Any = None
        self._unknown: List[str] = []  # lines that say what is not recorded
        self._lacking: List[str] = []  # of the Keras that hooks are being put into
        self._start_watching()

    def _start_watching(self) -> None:
        self._depth = 0  # of fit and train_on_batch
        self._source: Optional[Callable[[], Any]] = None  # weakly, where the batches of this fit come from
        self._sizes: Optional[describe.EpochBatches] = None
        self._counted: Optional[int] = (
            None  # samples of the batches just taken, where they pass through Python
        )
        self._model: Optional[Callable[[], Any]] = None
        self._taken = False  # a batch of this step has been seen inside the train function
        self._open = False  # a batch of fit has begun and not ended
        self._rows: Dict[str, Dict[str, Any]] = {}  # layers of all models that were trained, by name
        self._unbuilt = False
        self._applying = False  # inside an update of the torch backend

    # -- installing ---------------------------------------------------------------------------

    def install(self, keras: Any) -> None:
        version = str(getattr(keras, "__version__", "?"))
        sees = [
            self._hook("model.fit", self._wrap_fit, keras),
            self._hook("model.train_on_batch", self._wrap_train_on_batch, keras),
        ]
        self._hook("waits for data and sizes of batches", self._wrap_batches, keras)
        self._hook("custom training loops", self._wrap_optimizers, keras)
        if not any(sees):
            raise RuntimeError(
                "%s %s has none of the calls perfscope knows: its training is not recorded"
                % (keras.__name__, version)
            )
        if self._lacking:
            lacking, self._lacking = ", ".join(self._lacking), []
            self._unknown.append(
                "%s %s: %s cannot be seen and are not recorded" % (keras.__name__, version, lacking)
            )

    def _hook(self, what: str, install: Callable[[Any], None], keras: Any) -> bool:
        try:
            install(keras)
            return True
        except (AttributeError, KeyError, TypeError, StopIteration):  # another version's API
            self._lacking.append(what)
            return False

    def _wrap_fit(self, keras: Any) -> None:
        callbacks = keras.callbacks.CallbackList
        self._listen(callbacks, "on_train_begin", self._training_begins)
        self._listen(callbacks, "on_train_batch_begin", self._batch_begins)
        self._listen(callbacks, "on_train_batch_end", self._batch_ended)
        self._listen(callbacks, "on_epoch_end", self._epoch_ended)
        self._listen(callbacks, "on_test_begin", self._evaluation_begins)
        self._listen(callbacks, "on_predict_begin", self._evaluation_begins)
        self._listen(callbacks, "on_train_end", self._training_ended)
        self._surround(keras.Model, "fit", functools.partial(self._fit_begins, keras), self._fit_ended)

    def _wrap_train_on_batch(self, keras: Any) -> None:
        begins = functools.partial(self._single_batch_begins, keras)
        self._surround(keras.Model, "train_on_batch", begins, self._single_batch_ended)

    def _listen(self, kind: Any, name: str, hear: Callable[..., None]) -> None:
        original = getattr(kind, name)
        probe = self

        @around(original)
        def notified(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            probe.guarded(name, hear, callbacks, *args)
            return original(callbacks, *args, **kwargs)

        setattr(kind, name, notified)

    def _surround(self, kind: Any, name: str, begins: Callable[..., None], ended: Callable[[], None]) -> None:
        owner = next(base for base in kind.__mro__ if name in vars(base))
        original = vars(owner)[name]
        probe = self

        @around(original)
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if probe.off or probe._depth:
                return original(model, *args, **kwargs)
            probe._depth += 1
            probe.guarded(name, begins, model, args, kwargs)
            try:
                return original(model, *args, **kwargs)
            finally:
                probe.guarded(name, ended)
                probe._depth = 0

        setattr(owner, name, call)

    def _wrap_batches(self, keras: Any) -> None:
        probe = self
        for kind in describe.batch_sources(keras):
            self._wrap_source(kind)
        for kind in describe.batch_iterators(keras):
            original = vars(kind)["__next__"]

            def following(iterator: Any, original: Callable[[Any], Any] = original) -> Any:
                if probe.off or not probe._is_source(iterator):
                    return original(iterator)
                began = _clock()
                result = original(iterator)
                seen = probe.guarded("batch", probe._batch_taken, result, _clock() - began)
                return result if seen is None else seen

            kind.__next__ = around(original)(following)

    def _wrap_source(self, kind: Any) -> None:
        original = kind.__init__
        probe = self

        @around(original)
        def __init__(source: Any, *args: Any, **kwargs: Any) -> None:
            original(source, *args, **kwargs)
            if probe._depth and probe._source is None and not probe.off:
                probe._source = weakref.ref(source)  # the first that fit makes; those of evaluations follow

        kind.__init__ = __init__

    def _wrap_optimizers(self, keras: Any) -> None:
        backend = describe.backend_name(keras)
        if backend == "tensorflow":
            from ..tensorflow.probe import the_probe as tensorflow_probe

            watch = tensorflow_probe().watch_optimizer
            for kind, name in describe.optimizers(keras):
                watch(kind, name)
        elif backend == "torch":
            self._surround_apply(keras.optimizers.Optimizer)

    def _surround_apply(self, kind: Any) -> None:
        """Of the torch backend, which runs eagerly: each call is an update."""
        owner = next(base for base in kind.__mro__ if "apply" in vars(base))
        original = owner.apply
        torch = sys.modules["torch"]
        probe = self

        @around(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or probe.off or probe._applying or not probe.on_training_thread:
                return original(optimizer, *args, **kwargs)
            began = _clock()
            probe._applying = True
            probe.guarded("update", probe._update_begins)
            mark = probe.guarded("update", probe._optimizer_mark, optimizer)
            try:
                if mark is None:
                    return original(optimizer, *args, **kwargs)
                with mark:
                    return original(optimizer, *args, **kwargs)
            finally:
                probe._applying = False
                probe.guarded("update", probe._update_ended, began)

        owner.apply = apply

    # -- what the hooks see -----------------------------------------------------------------------

    def _fit_begins(self, keras: Any, model: Any, args: tuple, kwargs: Dict[str, Any]) -> None:
        self.process.own_steps(self.name)  # before a backend's own probe sees its calls
        self._keras = keras
        self._source = self._sizes = self._counted = None

    def _fit_ended(self) -> None:
        self._source = self._sizes = None

    def _single_batch_begins(self, keras: Any, model: Any, args: tuple, kwargs: Dict[str, Any]) -> None:
        self._keras = keras
        self._begin(model, samples_of((args, kwargs)))

    def _single_batch_ended(self) -> None:
        self.step_ended()

    def _is_source(self, iterator: Any) -> bool:
        return self._source is not None and self._source() is iterator

    def _batch_taken(self, result: Any, duration: int) -> Any:
        """`fit` is given what its next call of the train function will use.

        Returns:
            What to give it instead, or None.
        """
        batches = result[-1] if isinstance(result, tuple) else None
        if isinstance(batches, list):
            self._counted = describe.total_samples(batches)
            self.add_input(duration)
        elif describe.backend_name(self._keras) == "jax" and hasattr(batches, "__next__"):
            watched = describe.Watched(batches, functools.partial(self.guarded, "batch", self._batch_inside))
            return (*result[:-1], watched)
        return None  # an iterator of tf.data: its batches are taken inside a compiled function

    def _batch_inside(self, batch: Any, duration: int) -> None:
        """The train function, which Python runs, has taken a batch."""
        self.add_input(duration)
        if self._sizes is None or not self._sizes.known:
            samples = describe.local_samples(batch)
            before = self.samples if self._taken else 0
            self.samples = None if samples is None or before is None else before + samples
            self._taken = True

    def _training_begins(self, callbacks: Any, *args: Any) -> None:
        self._counted = None  # of a batch that only served to build the model

    def _batch_begins(self, callbacks: Any, batch: Any = 0, *args: Any) -> None:
        if not self._depth:
            return  # the program drives a list of callbacks by hand
        self._revoke()
        model = describe.model_of(callbacks)
        samples, self._counted = self._counted, None
        if samples is None:
            if self._sizes is None:
                source = self._source() if self._source is not None else None
                self._sizes = describe.EpochBatches(source, describe.steps_per_execution(model))
            samples = self._sizes.of(int(batch))
        self._begin(model, samples)
        self._open = True

    def _begin(self, model: Any, samples: Optional[int]) -> None:
        if model is not None and (self._unbuilt or self._model is None or self._model() is not model):
            self._model = weakref.ref(model)
            self._unbuilt = not getattr(model, "built", True)  # its first batch will build it
            if self.process.recorder is not None and self.process.owner == self.name:
                self._describe_model(self.process.recorder)
        self._taken = False
        if self.will_trace and self._backend is not None:
            self._backend.wait(self._model)  # a traced step ends when its work does, and holds no other's
        self.boundary(samples)

    def _batch_ended(self, callbacks: Any, *args: Any) -> None:
        if self._depth:
            self._open = False
            self.step_ended()

    def _epoch_ended(self, callbacks: Any, *args: Any) -> None:
        self._revoke()
        self._last_of_epoch()

    def _revoke(self) -> None:
        """A batch that was begun and never ended was none: the data had run out."""
        if self._open:
            self._open = False
            self.drop_step()

    def _last_of_epoch(self) -> None:
        if (
            self._depth
            and self.started is not None
            and self._sizes is not None
            and not self._sizes.exact
            and not self._taken
        ):
            self.samples = None  # the last batch of an epoch may be smaller, and nothing says by how much

    def _evaluation_begins(self, callbacks: Any, *args: Any) -> None:
        """No step, and in no window."""
        self._revoke()
        self._last_of_epoch()
        self._close_step()

    def _training_ended(self, callbacks: Any, *args: Any) -> None:
        self._last_of_epoch()
        self._close_step()

    def _close_step(self) -> None:
        """The step under way, if its work is done, ends where its work did: what follows is none."""
        recorder = self.process.recorder
        if recorder is None or self.started is None or self.ended < self.started or self.windows is None:
            return
        if self._backend is not None and self._backend.wait(self._model):
            self.step_ended()  # the calls had returned before their work was done
        self.end_step(self.ended)
        self.cut_window()

    def _update_begins(self) -> None:
        if not self._depth and self.started is None:
            self.boundary(None)

    def _update_ended(self, began: int) -> None:
        self.add_optimizer(_clock() - began)
        if not self._depth:
            self.step_ended()
            self.boundary(None)  # a loop of the user's own: nothing but its updates can be seen

    def _optimizer_mark(self, optimizer: Any) -> Any:
        if not self.in_window or self._backend is None:
            return None
        return self._backend.optimizer_mark(optimizer)

    # -- as a StepProbe -----------------------------------------------------------------------------

    def promote(self) -> Optional[Recorder]:
        if self.windows is not None or self.off or not self.process.own_steps(self.name):
            return super().promote()
        keras = self._keras or sys.modules.get("keras") or sys.modules["tf_keras"]
        self._keras = keras
        self._backend = backend_of(
            describe.backend_name(keras), functools.partial(self.guarded, "yield", self.cut_window)
        )
        self.trace = self._backend.trace
        if self.trace is None or not self._backend.may_trace():
            self.process.config = dict(self.process.config, trace=False)
        recorder = super().promote()
        if recorder is not None and self.windows is not None:
            self._backend.tell_limits(self.process)
            for text in self._unknown:
                self.process.note(text)
            self._describe_model(recorder)
        return recorder

    def _describe_model(self, recorder: Recorder) -> None:
        model = self._model() if self._model is not None else None
        if model is None or self._backend is None:
            return
        root, rows, layers = describe.layers_of(model)
        for row in rows:
            if not self._rows.get(row["layer"], {}).get("params"):  # unknown, or not built when it was seen
                self._rows[row["layer"]] = row
        recorder.write_json(layout.LAYERS_JSON, {"root": root, "layers": list(self._rows.values())})
        recorder.save_meta(
            root=describe.root(root, self._backend.width(self._keras, model)),
            gradient_bytes=sum(int(row["param_bytes"]) for row in rows),
        )
        self._backend.name_layers(layers)
        if getattr(model, "jit_compile", False) is True:
            self._backend.tell_compiled()
        per_execution = describe.steps_per_execution(model)
        if per_execution > 1:
            self.process.note(
                "steps_per_execution=%d: Keras runs %d updates at a time, each step here is that many"
                % (per_execution, per_execution)
            )

    def facts(self) -> Dict[str, Any]:
        if self._backend is None:
            return {}
        framework = {
            "name": NAME,
            "version": str(getattr(self._keras, "__version__", "")),
            "backend": self._backend.name,
            "backend_version": self._backend.version,
        }
        if self._keras.__name__ != NAME:
            framework["package"] = self._keras.__name__
        return dict(self._backend.facts(), framework=framework)

    def forked(self) -> None:
        if self._backend is not None:
            self._backend.forget()
        self._start_watching()

    def window_opened(self) -> None:
        if self._backend is not None:
            model = self._model() if self._model is not None else None
            self._backend.window_opened(self._keras, model)

    def window_closing(self) -> None:
        if self._backend is not None:
            self._backend.wait(self._model)

    def window_closed(self) -> None:
        if self._backend is not None:
            self._backend.window_closed()
