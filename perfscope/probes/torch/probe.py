"""The PyTorch probe: hooks in, steps and windows out.

Always on: global optimizer hooks, the first root forward after an update, backward, data loader, process
group (wraps.py). In windows only: torch's profiler and one mark per layer call.

Never used: full backward hooks (they break in-place activations, cost 18-44 % of a step). Every entry from
training into this file is `guarded`: after three faults the probe takes its hooks out and stays silent.

Where the program marks its steps itself (`perfscope.step()`), this probe finds the models, marks their layers
in the windows and lends its profiler; no step is cut here.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
import weakref
from typing import Any, Dict, Optional, Set

from ...rundir import layout
from ..activities import StepReadings
from ..framework_probe import FrameworkProbe
from ..own_steps import NAME as MARKED_BY_PROGRAM
from ..process import Process, current
from ..recorder import Recorder
from ..steps import Step, StepTracker
from . import besides, by_hand, ranges
from . import describe as torch_describe
from .batches import Batches, is_trial
from .call_marks import CallMarks
from .closures import with_marked_closure
from .compile import CompileWatch
from .layers import LayerHooks, LayerMarks, unwrap
from .meshes import Meshes
from .models import ForwardCall, ForwardCalls, Models, Modes
from .names import ModelNames
from .scalers import wrap_scaler
from .trace import TorchTrace
from .wraps import unseen_test, wrap_backward, wrap_loader, wrap_process_group

MAX_SKIPPED = 5_000  # module calls without gradients looked at while waiting for the root: some 3 ms
MAX_EVALUATIONS = 64  # of other models within one step, before a window is cut short
_HOOK = "perfscope"  # our key in torch's table of global forward pre-hooks
_NAME = "torch"
_clock = time.monotonic_ns


def arm(framework: str = _NAME) -> None:
    """torch has just been imported: put the hooks in. Nothing is written until the process trains."""
    TorchProbe(current()).install(sys.modules["torch"])


class TorchProbe(FrameworkProbe):
    """The probe of one process that has torch."""

    survivable = ("root forward", "layer", "compiled forward", "yield", "batch", "backward")

    def __init__(self, process: Process) -> None:
        self.torch = sys.modules["torch"]
        self.unseen = unseen_test(self.torch)
        self._profiler = TorchTrace(bool(process.config.get("allocations")))
        self._pre_hooks = self.torch.nn.modules.module._global_forward_pre_hooks
        self._compile = CompileWatch(self._compiled_entered, self._compiled_left)
        self._layer_hooks = LayerHooks(self._layer_pre, self._layer_post, self._layer_left)
        self.meshes = Meshes()
        self.batches = Batches(functools.partial(self.fault, "batch"), lambda: process.reported_samples)
        super().__init__(process, _NAME, self._profiler)
        process.lend(self)

    def start_afresh(self) -> None:
        self.tracker = StepTracker(self.step_done, StepReadings(self.process.activities))
        super().start_afresh()
        self.batches.reset()
        self._marks = LayerMarks(self.process.counters.marks(self._profiler.mark_type), layout.MARK_LAYER)
        self._names = ModelNames(self._marks)
        failed = functools.partial(self.fault, "call marks")
        self._call_marks = CallMarks(
            *(self._profiler.mark_type, self.unseen, failed, self._marks, self._profiler.sees)
        )
        self._armed = self._tracing = False  # the latter: a window is open
        self._blind = False  # forward passes are no longer looked at; steps still are
        self._evaluations = self._skipped = 0  # forward passes in evaluation mode, and without gradients
        self.rearm = False  # disarmed by a long evaluation; armed again with the next batch
        self._rootless = self.in_backward = False  # the former: no root forward is to be seen between updates
        self.models, self._modes, self._newcomers = Models(), Modes(), besides.Newcomers()
        self.calls = ForwardCalls()  # since the last update, of what may yet prove to be a model
        self._updated = 0  # when an update began last
        self._provisional = False  # a forward pass since the last backward was taken for the model's
        # None: an optimizer has stepped
        self.hand: Optional[by_hand.ByHand] = by_hand.ByHand(StepReadings(self.process.activities))
        self.loading: Set[int] = set()  # threads that are inside a data loader
        self.bound = False  # this probe cuts the steps

    def _reset(self) -> None:
        self._remove_layer_hooks()
        self._profiler.forget()
        super()._reset()

    @property
    def window(self) -> int:
        return self.tracker.window

    @window.setter
    def window(self, window: int) -> None:
        self.tracker.window = window

    # -- installing ---------------------------------------------------------------------------

    def install(self, torch: Any) -> None:
        optimizer = sys.modules["torch.optim.optimizer"]
        optimizer.register_optimizer_step_pre_hook(self._optimizer_pre)
        optimizer.register_optimizer_step_post_hook(self._optimizer_post)
        wrap_backward(self, torch)
        wrap_loader(self)
        besides.watch(self)
        ranges.watch(self.process.phases, torch)
        wrap_scaler(self)
        self.batches.install(torch)
        if torch.distributed.is_available():
            wrap_process_group(self, torch.distributed)
        if hasattr(torch, "compile"):
            self._compile.install(torch)
        atexit.register(self.guarded, "finish", by_hand.at_exit, self)
        self.arm_root()

    # -- life cycle -----------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Stop looking at forward passes: no hooks, no windows. Steps are still cut, at their updates."""
        self._blind = True
        self._disarm()
        self._remove_layer_hooks()
        self._tracing = False
        super()._abandon()

    def open(self) -> Optional[Recorder]:
        try:
            return super().open()
        finally:
            if self.process.broken:
                self.off = True
                self._disarm()

    def opened(self, recorder: Recorder) -> None:
        self._profiler.yield_to_training(self.step_aside)
        if self.process.owner in ("", _NAME):
            recorder.save_meta(**self.facts(), **torch_describe.groups(self.meshes.axes()))

    def bind(self) -> None:
        """The first update: this is the thread that trains, and this process a rank."""
        if self.cuts_steps():
            self.open()
            self.bound = True
        elif not self.lends:
            self.off = True  # another framework cuts the steps, and its update is not torch's
            self._abandon()

    def flush(self) -> None:
        recorder = self.process.recorder
        if self.windows is not None and recorder is not None:
            recorder.flush()
            recorder.save_meta(**torch_describe.groups(self.meshes.axes()))

    def facts(self) -> Dict[str, Any]:
        return torch_describe.framework()

    def memory(self) -> Dict[str, Any]:
        return torch_describe.memory(self.models.held)

    def last_step(self) -> bool:
        self._disarm()
        self._stop_marking()
        if self.models.changed:
            self.name_layers()
        self.tracker.finish()
        return True

    def finish(self) -> Dict[str, Any]:
        if self.process.owner not in ("", _NAME):
            return {}
        facts = super().finish()
        self._profiler.come_by()
        self.batches.finish(self.process.recorder)
        return dict(self.batches.facts(), **facts) if facts else {}

    # -- where the program marks its steps --------------------------------------------------------

    @property
    def lends(self) -> bool:
        """The program marks its steps itself."""
        return self.process.owner == MARKED_BY_PROGRAM

    def in_use(self) -> bool:
        return bool(self.models.roots or self.calls.outermost())

    def may_trace(self) -> bool:
        return not (self.off or self._blind)

    def describe(self, recorder: Recorder) -> None:
        self._find_models()
        self.name_layers()

    def _find_models(self) -> None:
        self.models.find(self.calls.outermost())

    def step_done(self, step: Step) -> None:
        now, recorder = _clock(), self.process.recorder
        if recorder is not None and self.windows is not None:
            recorder.add_step(step, now)
            self.windows.step_done(step.step, step.dur_ns, step.window, now)

    # -- always on ------------------------------------------------------------------------------

    def arm_root(self) -> None:
        self.rearm = False
        self._skipped = self._evaluations = 0
        if not self.off and not self._blind:
            self._armed = True
            if not self._layer_hooks.active:  # in a window the layer hook sees every call already
                self._pre_hooks[_HOOK] = self._root_pre

    def _disarm(self) -> None:
        self._armed = False
        self._pre_hooks.pop(_HOOK, None)

    def _root_pre(self, module: Any, args: tuple) -> None:
        if self.unseen() or not self._armed or self.is_elsewhere():
            return
        if threading.get_ident() in self.loading:
            return
        # Global pre-hooks are not given keyword arguments; the caller's frame has them.
        self.guarded("root forward", self._root_hooked, module, args, sys._getframe(1))

    def _root_hooked(self, module: Any, args: tuple, source: Any) -> None:
        self._root_called(module, args, source)
        if self._layer_hooks.active:
            self._marks.enter(module)  # the layer hooks came too late for the call that opened the window

    def _root_called(self, module: Any, args: tuple, source: Any) -> None:
        """A module is about to run, and the model's forward is awaited. Most often it is that."""
        now = _clock()
        if not self.torch.is_grad_enabled() or self._modes.is_evaluation(module):
            # A teacher, a target network, or an evaluation: the model is still to come.
            besides.inferred(self, now, module)
            return
        self.process.activities.trains(now)
        if is_trial():
            return
        is_model = self.models.has(module)
        if not (is_model and self.bound and self.models.roots):  # the update shows what it is
            self.calls.add(now, module)
        if not is_model or self._provisional or self.lends:
            self._newcomers.called(self, module, args, source)
            self.skip()
            return
        if self.bound:
            self._disarm()
            if self.hand is not None:
                self.models.find([ForwardCall(now, weakref.ref(module))])
        else:
            self._provisional = True
        self._model_called(now, module, args, source)

    def skip(self) -> None:
        """All calls of a long evaluation would cost too much: the rest is left to the next batch."""
        self._skipped += 1
        if self._skipped > MAX_SKIPPED:
            self._disarm()
            self.process.activities.overlooks()
            self.rearm = True

    def _model_called(self, now: int, module: Any, args: tuple, source: Any) -> None:
        self._rootless = self._rootless and self.tracker.updating
        tracker = self.tracker
        boundary, step = tracker.at_boundary, tracker.next_index
        kwargs = source if isinstance(source, dict) else source.f_locals.get("kwargs")
        number = tracker.index if tracker.updating else step
        if self.hand is not None and not self.bound:
            number = self.hand.number
        counts = self.batches.forward(module, args, kwargs, number, tracker.updating)
        for step_tracker in self.trackers():
            step_tracker.root_forward(now, *counts)
        self.cost_ns += _clock() - now
        if boundary and not tracker.updating and self.windows is not None and self._thread.is_this():
            self._begin_step(step)  # keeps its own account

    def trackers(self) -> tuple:
        """Where steps are cut: while it is open whether an optimizer will step, by both rules."""
        hand = self.hand  # once: another thread may take it away
        return (self.tracker,) if hand is None else tuple(dict.fromkeys((self.tracker, hand.tracker)))

    def backward_begins(self, losses: Any, returned: tuple) -> None:
        """A backward pass from `losses`; `returned`: its gradients of these parameters go to the caller."""
        self.process.activities.trains(_clock())
        if self.lends:
            return
        correction = self.batches.backward(losses)
        for tracker in self.trackers():
            tracker.correct(correction)
        if self.hand is not None:
            self.hand.backward_begins(losses, returned)

    def backward_ended(self, began: int, now: int) -> None:
        if self.lends:
            return
        self._provisional = False
        for tracker in self.trackers():
            tracker.add_backward(now - began, now)
        hand = self.hand
        if hand is None or self.tracker.updating:
            return
        hand.backward_ended(now)
        if not self.bound and hand.enough:
            by_hand.take_over(self)
        if self.bound and self.windows is not None and self._thread.is_this():
            if hand.accumulates:
                self.cut_window()  # nothing tells at a pass whether it is a step's last
            else:
                self._begin_step(self.tracker.next_index)
        self.cost_ns += _clock() - now

    def _begin_step(self, step: int) -> None:
        """A step that may be traced begins."""
        began = _clock()
        if self.models.changed:
            self.name_layers()
            self.cost_ns += _clock() - began
            self.tracker.resume(_clock())
        if self._turn_windows(step, began):
            self.tracker.resume(_clock())

    def _optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An optimizer's step begins.

        Returns:
            None, or the arguments it is to have: in a window its closure is marked.
        """
        if self.off or self.unseen():
            return None
        try:
            now = _clock()
            self.process.activities.trains(now)
            if not self.bound:
                self.bind()
            if self.lends:
                self._updated = now
                self.models.serial(optimizer)
                self._find_models()
                self.calls.updated()
                return self._mark_closure(args, kwargs)
            if self.off or not self._thread.update_begins():
                return None
            recorder = self.process.recorder
            if self.hand is not None and self.tracker is self.hand.tracker and recorder is not None:
                recorder.meta["step_source"] = by_hand.THEN_OPTIMIZERS
            self.hand = None
            self._provisional = False  # gradients may come from a function of the training's own
            serial = self.models.serial(optimizer)
            self._modes.updated()
            calls = [call for call in self.models.find(self.calls.outermost()) if call.time > self._updated]
            self.calls.updated()
            self._updated = now
            if self.models.changed and self.tracker.index:
                self.cut_window()  # the rest of it is another model's
            if calls:
                self.tracker.fallback = calls[0].time
            if was_cut := self.tracker.optimizer_begins(serial, now):
                self._rootless = not calls
            self._newcomers.updated(self, calls if was_cut else None)
            self.cost_ns += _clock() - now
            return self._mark_closure(args, kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on
            self.fault("optimizer", error)
        return None

    def _mark_closure(self, args: Any, kwargs: Any) -> Any:
        return with_marked_closure(args, kwargs, self._profiler.mark_type) if self._tracing else None

    def is_elsewhere(self) -> bool:
        """True in a thread that trains something else than what is recorded."""
        if not self.bound or self._thread.has_work_here():
            return False
        self._profiler.come_by()
        return True

    def _optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.off or self.unseen() or not self._thread.update_ends():
            return
        try:
            now, tracker = _clock(), self.tracker
            if self.lends:
                besides.add_to_marked_step(self.process.cutter, optimizer_ns=now - self._updated)
                return
            tracker.optimizer_ends(now)
            self.cost_ns += _clock() - now
            has_windows = self.windows is not None and self._thread.is_this()
            if self._rootless and tracker.at_boundary and has_windows:
                step = tracker.next_index
                tracker.update_is_boundary(now)
                self._begin_step(step)
            if not self.models.roots:
                self._find_models()  # the optimizer's closure called them
                self._updated = now
            if self.models.changed and not tracker.index:
                self.name_layers()  # there may be no second step, and no model at exit
            self.arm_root()
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on
            self.fault("optimizer", error)

    # -- windows --------------------------------------------------------------------------------

    def name_layers(self) -> None:
        recorder, roots = self.process.recorder, self.models.roots
        if recorder is None or not roots:
            return
        self.models.changed = False
        recorder.write_json(layout.LAYERS_JSON, self._names.name(roots))
        if "root" not in recorder.meta or not self.tracker.index:
            recorder.meta["root"] = torch_describe.root(roots[0], self.batches.pipeline)
        recorder.save_meta(**torch_describe.groups(self.meshes.axes()), **self.batches.facts())

    def window_opened(self) -> None:
        self._tracing = True
        if self.lends:
            self._find_models()
            self.name_layers()
        self._add_layer_hooks()

    def window_closed(self) -> None:
        self._tracing = False
        self._remove_layer_hooks()
        self._call_marks.report(self.process)
        if self._armed:
            self.arm_root()

    def cut_window(self, is_complete: Optional[bool] = None) -> None:
        if self.in_window:
            self._stop_marking()  # the marks are to end within the trace
            super().cut_window(is_complete)

    def _add_layer_hooks(self) -> None:
        if not self._layer_hooks.active:
            self._pre_hooks.pop(_HOOK, None)  # from here on the layer hook sees every call
            self._layer_hooks.add(self.torch.nn.modules.module)
            self._call_marks.install(self.models.roots)

    def _remove_layer_hooks(self) -> None:
        self._call_marks.remove()
        self._layer_hooks.remove()

    def _layer_pre(self, module: Any, args: tuple) -> None:
        if not self.unseen() and threading.get_ident() not in self.loading:
            self.guarded("layer", self._layer_called, module, args, sys._getframe(1))

    def _layer_called(self, module: Any, args: tuple, source: Any) -> None:
        if self._marks.idle and self._thread.has_work_here():
            if self._armed:
                self._root_called(module, args, source)
            if self._modes.skipped or not (self.torch.is_grad_enabled() or module.training):
                self._evaluated(module)
        if self._tracing:
            self.process.counters.takes(args)
            self._marks.enter(module)
            self._layer_hooks.called(module)

    def _evaluated(self, module: Any) -> None:
        """A forward pass in evaluation mode: of the model itself it ends the window, or an evaluation of any
        length would end up in the trace; another model (a teacher, a target network) belongs to the step.
        """
        roots = self.models.roots
        self._evaluations += 1
        is_own = not roots or any(unwrap(module) is unwrap(root) for root in roots)
        if is_own or self._evaluations > MAX_EVALUATIONS:
            self._stop_marking()
            (self.process.cutter or self).cut_window()

    def _stop_marking(self) -> None:
        self._remove_layer_hooks()
        self._marks.close()

    def _layer_post(self, module: Any, args: Any, output: Any) -> None:
        if not self.unseen():
            self.guarded("layer", self.process.counters.gives, output)
            self.guarded("layer", self._layer_hooks.done, module, self._marks.leave)

    def _layer_left(self, module: Any) -> None:
        if self._tracing and not self.unseen():
            self.guarded("layer", self._marks.leave, module)

    def _compiled_entered(self, module: Any, args: tuple, kwargs: dict) -> None:
        self.guarded("compiled forward", self._compiled_called, module, args, kwargs)

    def _compiled_called(self, module: Any, args: tuple, kwargs: dict) -> None:
        idle = self._marks.idle
        if self.is_elsewhere():
            return
        if self._armed and idle:
            self._root_called(module, args, kwargs)
        self._pre_hooks.pop(_HOOK, None)  # still armed after a forward without gradients
        if self._tracing:
            if idle and not (self.torch.is_grad_enabled() or getattr(module, "training", False)):
                self._evaluated(module)
                self._pre_hooks.pop(_HOOK, None)
                if not self._tracing:
                    return
            self._remove_layer_hooks()
            self._marks.enter(unwrap(module))

    def _compiled_left(self, module: Any) -> None:
        self.guarded("compiled forward", self._compiled_done, module)

    def _compiled_done(self, module: Any) -> None:
        if self._tracing:
            self._marks.leave(unwrap(module))
            self._add_layer_hooks()
        elif self._armed:
            self._pre_hooks[_HOOK] = self._root_pre
