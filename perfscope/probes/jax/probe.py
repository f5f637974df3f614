"""The JAX probe: jitted functions are watched until one proves to be the training step.

Always on: a look at each top-level call of the step (jax_calls.py, jax_steps.py). In windows: JAX's profiler
(jax_trace.py), and a step's results are waited for before the next step begins. Outside windows nothing is
waited for, although a call returns when its work is queued. But it is asked, without waiting, whether the
step before is done: where the program runs ahead of its device, the steps until it has caught up share
their time.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any, Dict, List, Optional

from ...rundir import layout
from ..process import Process, current
from ..recorder import Recorder
from ..step_probe import StepProbe
from ..steps import Step
from . import describe as jax_describe
from .calls import Calls, hide_frames, top_level
from .steps import OPENER, STEP, WATCHED, Function, Past, StepFinder, is_ready
from .trace import JaxTrace

__all__ = ["JaxProbe", "JaxTrace", "arm"]

NAME = "jax"
MAX_STRETCH = 64  # steps that share their time; a queue is full long before
MAX_EVALUATIONS = 64  # calls of other functions within one step, before a window is cut short
_clock = time.monotonic_ns


def arm(framework: str = NAME) -> None:
    """jax has just been imported: watch what jax.jit makes. Nothing is written until the process trains."""
    JaxProbe(current()).install(sys.modules["jax"])


class JaxProbe(StepProbe):
    """The probe of one process that has JAX."""

    def __init__(self, process: Process) -> None:
        self._jax = sys.modules["jax"]
        self._jax_trace = JaxTrace()
        self._calls = Calls(self._watch)
        super().__init__(process, NAME, self._jax_trace)
        process.on_identity(jax_describe.identity)

    def _fresh(self) -> None:
        super()._fresh()
        self._finder: Optional[StepFinder] = None
        self._argument: Optional[jax_describe.Argument] = None
        self._witness: Optional[jax_describe.Argument] = None
        self._mapped = False
        self._stretch: List[Step] = []  # steps whose time is not known yet
        self._drained = True  # where the step under way began, the work before was done
        self._step_name = ""
        self._waited = False  # the program has waited for results since the step's call
        self._updated = True  # the step function was called since the step began
        self._outputs: Any = None  # held only where a window is about to wait for them
        self._others = 0

    def install(self, jax: Any) -> None:
        """Raises RuntimeError where this version of JAX lacks what is needed: nothing is changed then."""
        try:
            self._top_level = top_level(sys.modules["jax._src.core"])
            self._start_finder()
        except (AttributeError, KeyError) as error:
            raise RuntimeError(
                "JAX %s is none that perfscope knows (%s): its steps are not recorded; perfscope.step() can "
                "mark them" % (getattr(jax, "__version__", "?"), error)
            ) from error
        for module in ("probe", "calls"):
            hide_frames(str(sys.modules["%s.%s" % (__package__, module)].__file__))
        self._calls.install(jax)
        self._jax_trace.yield_to_training(self._yield)
        self._wrap_wait(jax)

    def _wrap_wait(self, jax: Any) -> None:
        """The program's own wait for results tells when the last step is done."""
        original = jax.block_until_ready

        @functools.wraps(original)
        def block_until_ready(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._start is not None and not self._waited:
                self.guarded("wait", self._program_waited)
            return result

        jax.block_until_ready = block_until_ready
        self._block_until_ready = original

    def _program_waited(self) -> None:
        if self.on_training_thread:
            self._waited = True
            self.step_ended()

    def _start_finder(self) -> None:
        flatten = self._jax.tree_util.tree_flatten_with_path
        self._finder = StepFinder(lambda tree: flatten(tree)[0], jax_describe.local_samples)

    def forked(self) -> None:
        self._jax_trace.forget()
        self._calls.restart()
        self._start_finder()

    # -- the contract of StepProbe --------------------------------------------------------------------

    def facts(self) -> Dict[str, Any]:
        return jax_describe.facts()

    def window_opened(self) -> None:
        self._calls.alert = True

    def window_closing(self) -> None:
        self._wait()

    def window_closed(self) -> None:
        self._calls.alert = False

    def _finish(self) -> Dict[str, Any]:
        finder = self._finder
        if finder is not None and finder.step is None and not self.off:
            chosen = finder.candidate()
            if chosen is not None:
                self.guarded("adopt", self._adopt, chosen)
        if self._stretch and not self._waited:
            self.process.note(
                "no jax.block_until_ready follows the last %d steps: theirs may be times of dispatch"
                % (len(self._stretch) + 1)
            )
        self._drained = True
        told = super()._finish()
        recorder = self.process.recorder
        if self._stretch and recorder is not None:
            self._share(recorder, self._stretch[-1].start_ns + self._stretch[-1].dur_ns)
        if "memory" in told:
            told["memory"]["peak_device_bytes"] = jax_describe.device_memory()
        return told

    # -- calls of jitted functions --------------------------------------------------------------------

    def _watch(self, function: Function, inner: Any, args: Any, kwargs: Any) -> Any:
        """Stands for a call of `inner`; what goes wrong here is kept from it."""
        if self.off or not self._top_level():
            return inner(*args, **kwargs)
        self.guarded("call", self._before, function, args, kwargs)
        outputs = inner(*args, **kwargs)
        self.guarded("result", self._after, function, outputs)
        return outputs

    def _before(self, function: Function, args: Any, kwargs: Any) -> None:
        now = _clock()
        if self.process.owner not in ("", NAME):
            self._stop()  # another framework, or perfscope.step(), cuts the steps
            return
        if not self.on_training_thread:
            return
        if function.role not in (STEP, OPENER) and self._is_adopted(function, args, kwargs, now):
            return
        if function.role == STEP:
            self._step_called(args, kwargs)
        elif function.role == OPENER:
            self._opener_called(args, kwargs)

    def _is_adopted(self, function: Function, args: Any, kwargs: Any, now: int) -> bool:
        """Look at a call of a function that is no step (yet); True when it is now among the steps adopted."""
        finder = self._finder
        assert finder is not None
        if self.in_window:
            self._others += 1
            if self._others > MAX_EVALUATIONS:
                self.cut_window()
        if function.role != WATCHED:
            return False
        chosen = finder.called(function, args, kwargs, now)
        self._cost_ns += _clock() - now
        if chosen is not None:
            self._adopt(chosen)
        return chosen is not None and function is finder.opener

    def _after(self, function: Function, outputs: Any) -> None:
        if not self.on_training_thread:
            return
        finder = self._finder
        assert finder is not None
        if function.role == STEP:
            finder.turn += 1
            self._updated, self._waited = True, False
            self.step_ended()
            if self._will_wait():
                self._outputs = outputs
        elif function.role == WATCHED:
            now = _clock()
            finder.returned(function, outputs, now)
            if function.fed and finder.step is None:
                self._open()  # what has been given its results back trains
            self._cost_ns += _clock() - now

    def _step_called(self, args: Any, kwargs: Any) -> None:
        if self._finder is not None and self._finder.opener is not None:
            if self._updated:  # no opener came: the update begins a step of its own
                self._begin(None, True)
            self._updated = False
            return
        self._begin(self._samples_of(args, kwargs), self._is_drained(args, kwargs))

    def _opener_called(self, args: Any, kwargs: Any) -> None:
        samples = self._samples_of(args, kwargs)
        if self._updated:
            self._updated = False
            self._begin(samples, self._is_drained(args, kwargs))
        elif samples is None or self._samples is None:
            self._samples = None
        else:
            self._samples += samples  # another micro-batch

    def _samples_of(self, args: Any, kwargs: Any) -> Optional[int]:
        if self._argument is None:
            return None
        found = self._argument.of(args, kwargs)
        recorder = self.process.recorder
        if found is not None and recorder is not None and "root" not in recorder.meta:
            name, world_size = self._step_name, recorder.meta["world_size"]
            recorder.save_meta(root=jax_describe.root(name, found, self._mapped, world_size))
        return (
            None
            if found is None or not hasattr(found, "shape")
            else jax_describe.local_samples(found, self._mapped)
        )

    def _is_drained(self, args: Any, kwargs: Any) -> bool:
        witness = self._witness.of(args, kwargs) if self._witness is not None else None
        return witness is None or is_ready(witness)

    def _begin(self, samples: Optional[int], drained: bool) -> None:
        if self._outputs is not None:
            self._wait()  # a window is about to open, to go on or to close: the step ends when its work does
            drained = True
        self._others = 0
        self._drained = drained
        self.boundary(samples)

    def _emit(self, recorder: Recorder, end: int) -> None:
        assert self._start is not None
        start = self._start
        step = Step(
            *(self._index, start, max(0, end - start), self._window, self._input_ns, None),
            *(self._optimizer_ns, 1, self._samples),
        )
        self._index += 1
        self._stretch.append(step)
        # The first step is known by itself: it was compiled, which its call waited for.
        if self._drained or step.step == 0 or len(self._stretch) >= MAX_STRETCH:
            self._share(recorder, end)

    def _share(self, recorder: Recorder, end: int) -> None:
        """The stretch is over: each of its steps took the same time, as far as anybody can tell."""
        stretch, self._stretch = self._stretch, []
        assert self._windows is not None
        start, num = stretch[0].start_ns, len(stretch)
        if num > 1:
            edges = [start + (end - start) * at // num for at in range(num + 1)]
            stretch = [
                step._replace(start_ns=edges[at], dur_ns=edges[at + 1] - edges[at])
                for at, step in enumerate(stretch)
            ]
        for step in stretch:
            recorder.add_step(step, end)
            # By the last one's number: windows are planned from the step that is under way.
            self._windows.step_done(stretch[-1].step, step.dur_ns, step.window, end)

    # -- windows --------------------------------------------------------------------------------------

    def _will_wait(self) -> bool:
        """The step under way lies in a window, or a window opens after it."""
        windows = self._windows
        return windows is not None and (windows.active >= 0 or windows.wants(self._index + 1))

    def _wait(self) -> None:
        outputs, self._outputs = self._outputs, None
        if outputs is not None:
            self._block_until_ready(outputs)

    def _yield(self) -> None:
        """The training is about to start a profiler of its own."""
        self.guarded("yield", self.cut_window)

    # -- the step is found ----------------------------------------------------------------------------

    def _adopt(self, chosen: Function) -> None:
        finder = self._finder
        assert finder is not None
        recorder = self._open()
        if recorder is None:
            self._stop()
            return
        self.cut_window()
        before = finder.step
        past = finder.adopt(chosen)
        source = finder.opener if finder.opener is not None else chosen
        self._argument = jax_describe.Argument(source.batch) if source.batch is not None else None
        self._witness = jax_describe.Argument(source.witness) if source.witness is not None else None
        self._mapped = source.mapped
        self._step_name = chosen.name
        self._replay(recorder, past)
        self._updated = not past or past[-1].end > 0
        if before is None:
            self._describe(recorder, chosen)
        elif before.name != chosen.name:
            self.process.note(
                "steps are calls of %s up to step %d, then of %s" % (before.name, self._index, chosen.name)
            )

    def _open(self) -> Optional[Recorder]:
        """Promote; without windows where this version of JAX has another profiler than we know."""
        process = self.process
        known = self._jax_trace.known()
        if not known and process.owner in ("", NAME):
            process.config = dict(process.config, trace=False)
        recorder = self.promote()
        if recorder is not None and not known:
            reason = "JAX %s has no profiler session that perfscope knows" % self._jax.__version__
            process.missing("step breakdown, layers and collectives", reason)
            process.note("no windows: " + reason)
        return recorder

    def _replay(self, recorder: Recorder, past: List[Past]) -> None:
        """Write the steps that were over before it was known that they are steps."""
        for one in past:
            self._drained = one.drained
            if self._start is not None:
                self._emit(recorder, one.start)
            self._start, self._samples = one.start, one.samples
            self._end = one.end

    def _describe(self, recorder: Recorder, chosen: Function) -> None:
        rows = jax_describe.layers(chosen.state)
        if rows:
            recorder.write_json(layout.LAYERS_JSON, {"root": chosen.name, "layers": rows})
        self.process.missing("input wait", "JAX has no data loader of its own that could be timed")
        self.process.missing(
            "layers of part of the operators",
            "XLA fuses operators of several layers or of none, and names none of its own copies",
        )

    def _stop(self) -> None:
        self.off = True
        self._calls.stop()
