"""The JAX probe: jitted functions are watched until one proves to be the training step.

Always on: a look at each top-level call of the step (jax_calls.py, jax_steps.py). In windows: JAX's profiler
(jax_trace.py), and a step's results are waited for before the next step begins. Outside windows nothing is
waited for, although a call returns when its work is queued. But it is asked, without waiting, whether the
step before is done: where the program runs ahead of its device, the steps until it has caught up share
their time.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, List, Optional

from ...rundir import layout
from ...vocabulary.figures import Figure
from ...vocabulary.notes import NoteKind
from ..frames import FILE, around, hidden
from ..process import Process, current
from ..recorder import Recorder
from ..step_probe import StepProbe
from ..steps import Step
from . import describe as jax_describe
from .calls import JitCalls, exclude_frames, top_level
from .results import Results
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
        self._calls = JitCalls(self._watch)
        self._results = Results(self._flatten, self._program_waited)
        super().__init__(process, NAME, self._jax_trace)
        process.on_identity(jax_describe.identity)

    def start_afresh(self) -> None:
        super().start_afresh()
        self._finder: Optional[StepFinder] = None
        self._argument: Optional[jax_describe.Argument] = None
        self._witness: Optional[jax_describe.Argument] = None
        self._mapped = False
        self._stacked = False  # the leading dimension of its batch counts updates
        self._stretch: List[Step] = []  # steps whose time is not known yet
        self._drained = True  # where the step under way began, the work before was done
        self._step_name = ""
        self._waited = False  # the program has waited for results since the step's call
        self._updated = True  # the step function was called since the step began
        self._cache_size = 0  # compiled versions of the step function
        self._compiled = False  # in the step under way
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
        for module in ("probe", "calls", "results"):
            exclude_frames(str(sys.modules["%s.%s" % (__package__, module)].__file__))
        for path in (FILE, str(hidden.__code__.co_filename)):
            exclude_frames(path)
        self._calls.install(jax)
        self._jax_trace.yield_to_training(self.step_aside)
        self._wrap_wait(jax)
        self.process.lend(self)
        self._results.watch_reads(self.guarded)

    def _wrap_wait(self, jax: Any) -> None:
        """The program's own wait for results tells when the last step is done."""
        original = jax.block_until_ready

        @around(original)
        def block_until_ready(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._results.pending:
                self.guarded("wait", self._results.ask)
            return result

        jax.block_until_ready = block_until_ready
        self._block_until_ready = original

    def _program_waited(self) -> None:
        if self.on_training_thread and self.started is not None:
            self._waited = True
            self.step_ended()
            if self._stretch:
                self._settle()

    def _start_finder(self) -> None:
        self._jax.tree_util.tree_flatten_with_path  # noqa: B018 - another JAX may lack it: reported in `install`
        self._finder = StepFinder(self._flatten, jax_describe.local_samples)

    def _flatten(self, tree: Any) -> Any:
        return self._jax.tree_util.tree_flatten_with_path(tree)[0]

    def forked(self) -> None:
        self._jax_trace.forget()
        self._calls.restart()
        self._results.forget()
        self._start_finder()

    # -- the contract of StepProbe --------------------------------------------------------------------

    def facts(self) -> Dict[str, Any]:
        return jax_describe.facts()

    def window_opened(self) -> None:
        self._calls.alert = True

    def window_closing(self) -> None:
        self._await_step()

    def window_closed(self) -> None:
        self._calls.alert = False

    def finish(self) -> Dict[str, Any]:
        finder = self._finder
        if finder is not None and finder.step is None and not self.off:
            chosen = finder.candidate()
            if chosen is not None:
                self.guarded("adopt", self._adopt, chosen)
        if self._stretch and not self._waited:
            self.process.note(
                "nothing waits for the results of the last %d steps: theirs may be times of dispatch"
                % (len(self._stretch) + 1)
            )
        self._drained = True
        facts = super().finish()
        if self._stretch:
            self._share(self._stretch[-1].start_ns + self._stretch[-1].dur_ns)
        if "memory" in facts:
            facts["memory"]["peak_device_bytes"] = jax_describe.device_memory()
        return facts

    # -- calls of jitted functions --------------------------------------------------------------------

    def _watch(self, function: Function, inner: Any, args: Any, kwargs: Any) -> Any:
        """Stands for a call of `inner`; what goes wrong here is kept from it."""
        if self.off or not self._top_level():
            return inner(*args, **kwargs)
        self.guarded("call", self._before, function, inner, args, kwargs)
        outputs = inner(*args, **kwargs)
        self.guarded("result", self._after, function, inner, outputs)
        return outputs

    def _before(self, function: Function, inner: Any, args: Any, kwargs: Any) -> None:
        now = _clock()
        if self.process.owner not in ("", NAME):
            self._stop()  # another framework, or perfscope.step(), cuts the steps
            return
        if not self.on_training_thread:
            return
        if function.role not in (STEP, OPENER) and self._is_adopted(function, inner, args, kwargs, now):
            return
        if function.role == STEP:
            self._step_called(args, kwargs)
        elif function.role == OPENER:
            self._opener_called(args, kwargs)

    def _is_adopted(self, function: Function, inner: Any, args: Any, kwargs: Any, now: int) -> bool:
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
        self.cost_ns += _clock() - now
        if chosen is not None:
            updates = self._updates_of(inner, args, kwargs, function) if chosen is function else 1
            self._adopt(chosen, updates)
        return chosen is not None and function is finder.opener

    def _updates_of(self, inner: Any, args: Any, kwargs: Any, function: Function) -> int:
        """Updates that one call of the step function makes: more than one where it scans its batch."""
        batch = jax_describe.Argument(function.batch).of(args, kwargs) if function.batch is not None else None
        if batch is None or function.mapped:
            return 1
        stacked = self.guarded("scan", jax_describe.is_stacked, inner, args, kwargs, batch, function.state)
        return int(batch.shape[0]) if stacked else 1

    def _after(self, function: Function, inner: Any, outputs: Any) -> None:
        if not self.on_training_thread:
            return
        finder = self._finder
        assert finder is not None
        if function.role == STEP:
            finder.turn += 1
            self._updated, self._waited = True, False
            self.step_ended()
            self._results.made(outputs)
            self._look_for_compiling(inner)
            if self.will_trace:
                self._outputs = outputs
        elif function.role == WATCHED:
            now = _clock()
            finder.returned(function, outputs, now)
            if function.fed and finder.step is None:
                self._open()  # what has been given its results back trains
            self.cost_ns += _clock() - now

    def _look_for_compiling(self, inner: Any) -> None:
        """Whether this call was the first with its shapes: it has waited for the compiler."""
        asked = getattr(inner, "_cache_size", None)
        size = asked() if asked is not None else 0
        self._compiled = self._compiled or size > self._cache_size > 0
        self._cache_size = size

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
        elif samples is None or self.samples is None:
            self.samples = None
        else:
            self.samples += samples  # another micro-batch

    def _samples_of(self, args: Any, kwargs: Any) -> Optional[int]:
        if self._argument is None:
            return None
        argument = self._argument.of(args, kwargs)
        recorder = self.process.recorder
        if argument is not None and recorder is not None and "root" not in recorder.meta:
            name, world_size = self._step_name, recorder.meta["world_size"]
            recorder.save_meta(root=jax_describe.root(name, argument, self._mapped, world_size))
        return (
            None
            if argument is None or not hasattr(argument, "shape")
            else jax_describe.local_samples(argument, self._mapped or self._stacked)
        )

    def _is_drained(self, args: Any, kwargs: Any) -> bool:
        witness = self._witness.of(args, kwargs) if self._witness is not None else None
        return witness is None or is_ready(witness)

    def _begin(self, samples: Optional[int], drained: bool) -> None:
        if self._outputs is not None:
            self._await_step()  # a window opens, goes on or closes: the step ends when its work does
            drained = True
        self._others = 0
        self._drained = drained
        self.boundary(samples)

    def write(self, step: Step, end: int) -> None:
        # A step whose call waited for the compiler is known by itself. So is the first.
        compiled, self._compiled = self._compiled or step.step == 0, False
        if compiled and self._stretch:
            self._share(step.start_ns)
        self._stretch.append(step)
        if compiled or self._drained or len(self._stretch) >= MAX_STRETCH:
            self._share(end)

    def _settle(self) -> None:
        """The work of the step under way is done: it shares the time up to now with those before it.

        What the program does until its next step, an evaluation perhaps, is then that step's alone.
        """
        first, num = self._stretch[0].start_ns, len(self._stretch)
        began = first + (self.ended - first) * num // (num + 1)
        self._share(began)
        self.started = began

    def _share(self, end: int) -> None:
        """The stretch is over: each of its steps took the same time, as far as is known."""
        stretch, self._stretch = self._stretch, []
        start, num = stretch[0].start_ns, len(stretch)
        if num > 1:
            edges = [start + (end - start) * at // num for at in range(num + 1)]
            stretch = [
                step._replace(start_ns=edges[at], dur_ns=edges[at + 1] - edges[at])
                for at, step in enumerate(stretch)
            ]
        recorder, windows = self.process.recorder, self.windows
        assert recorder is not None and windows is not None
        for step in stretch:
            recorder.add_step(step, end)
            # By the last one's number: windows are planned from the step that is under way.
            windows.step_done(stretch[-1].step, step.dur_ns, step.window, end)

    # -- for steps that the program marks itself ------------------------------------------------------

    def in_use(self) -> bool:
        return jax_describe.in_use()

    def may_trace(self) -> bool:
        return self._jax_trace.known()

    def wait(self) -> None:
        """Wait for all arrays there are: it is not known which of them the step made."""
        live = getattr(self._jax, "live_arrays", None)
        for array in live() if live is not None else ():
            if not array.is_deleted():
                array.block_until_ready()

    def describe(self, recorder: Recorder) -> None:
        self._tell_limits()
        if not self.may_trace():
            self._tell_lack()

    # -- windows --------------------------------------------------------------------------------------

    def _await_step(self) -> None:
        outputs, self._outputs = self._outputs, None
        if outputs is not None:
            leaves = self._jax.tree_util.tree_leaves(
                outputs
            )  # the program may have donated some to another function
            alive = [leaf for leaf in leaves if not getattr(leaf, "is_deleted", bool)()]
            self._block_until_ready(alive)

    # -- the step is found ----------------------------------------------------------------------------

    def _adopt(self, chosen: Function, updates: int = 1) -> None:
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
        self._stacked = updates > 1
        self._step_name = chosen.name
        self._results.forget()
        if updates > 1:
            past = [call._replace(samples=None) for call in past]  # they were counted as if it were a batch
            text = "each step is one call of %s, which makes %d updates (lax.scan)"
            self.process.note(text % (chosen.name, updates))
        self._replay(past)
        self._updated = not past or past[-1].end > 0
        if before is None:
            self._describe(recorder, chosen)
        elif before.name != chosen.name:
            self.process.note(
                "steps are calls of %s up to step %d, then of %s" % (before.name, self.index, chosen.name)
            )

    def _open(self) -> Optional[Recorder]:
        """Promote; without windows where this version of JAX has another profiler than we know."""
        process = self.process
        is_available = self._jax_trace.known()
        if not is_available and process.owner in ("", NAME):
            process.config = dict(process.config, trace=False)
        recorder = self.promote()
        if recorder is not None and not is_available:
            self._tell_lack()
        return recorder

    def _tell_lack(self) -> None:
        reason = "JAX %s has no profiler session that perfscope knows" % self._jax.__version__
        self.process.missing(Figure.WINDOWS, "step breakdown, layers and collectives", reason)
        self.process.note("no windows: " + reason, NoteKind.WINDOW)

    def _replay(self, past: List[Past]) -> None:
        """Write the steps that were over before it was known that they are steps."""
        for call in past:
            self._drained = call.drained
            if self.started is not None:
                self.end_step(call.start)
            self.started, self.samples = call.start, call.samples
            self.ended = call.end

    def _describe(self, recorder: Recorder, chosen: Function) -> None:
        rows = jax_describe.layers(chosen.state)
        if rows:
            recorder.write_json(layout.LAYERS_JSON, {"root": chosen.name, "layers": rows})
        self._tell_limits()

    def _tell_limits(self) -> None:
        reason = "JAX has no data loader of its own that could be timed"
        self.process.missing(Figure.INPUT_WAIT, "input wait", reason)
        self.process.missing(
            Figure.LAYERS_OF_OPERATORS,
            "layers of part of the operators",
            "XLA fuses operators of several layers or of none, and names none of its own copies",
        )

    def _stop(self) -> None:
        self.off = True
        self._calls.stop()
        self._results.forget()
