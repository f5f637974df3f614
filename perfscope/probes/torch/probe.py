"""The PyTorch probe: hooks in, steps and windows out.

Always on: global optimizer hooks, the first root forward after an update, backward, data loader, process
group (wraps.py). In windows only: torch's profiler and one mark per layer call.

Never used: full backward hooks (they break in-place activations and cost 18-44 % of a step).
Every entry from training into this file goes through `_guarded` or its own try: after three faults
the probe takes its hooks out and stays silent.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Optional, Set

from ...rundir import layout
from ..process import Process, current
from ..recorder import Recorder
from ..steps import Step, StepTracker
from ..training_thread import TrainingThread
from ..windows import Windows
from . import by_hand
from . import describe as torch_describe
from .batches import Batches, is_trial
from .closures import with_marked_closure
from .compile import CompileWatch
from .groups import GroupMarks
from .layers import LayerMarks, unwrap
from .models import ForwardCall, ForwardCalls, Models, Modes
from .names import ModelNames
from .trace import TorchTrace
from .wraps import unseen_test, wrap_backward, wrap_loader, wrap_process_group

MAX_SKIPPED = 5_000  # module calls without gradients looked at while waiting for the root: some 3 ms
MAX_EVALUATIONS = 64  # of other models within one step, before a window is cut short
_FORWARD_HOOKS = ("root forward", "layer", "compiled forward", "yield", "batch", "backward")
_HOOK = "perfscope"  # our key in torch's table of global forward pre-hooks
_NAME = "torch"
_clock = time.monotonic_ns


def arm(framework: str = _NAME) -> None:
    """torch has just been imported: put the hooks in. Nothing is written until the process trains."""
    process = current()
    probe = TorchProbe(process)
    probe.install(sys.modules["torch"])
    process.on_reset(probe.reset)


class TorchProbe:
    """The probe of one process that has torch."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._trace: Optional[TorchTrace] = None
        self._group_marks: Optional[GroupMarks] = None
        self._compile = CompileWatch(self._compiled_entered, self._compiled_left)
        self._forward_hooks: list = []
        self._batches = Batches(functools.partial(self._fault, "batch"))
        self.reset()

    def reset(self) -> None:
        """Start afresh, unpromoted: at arming, and in every forked child (a data loader worker, say)."""
        self._remove_layer_hooks()
        if self._trace is not None:
            self._trace.forget()
        self._guard = self._process.guard
        self._tracker = StepTracker(self._step_done)
        self._batches.reset()
        self._recorder: Optional[Recorder] = None
        self._windows: Optional[Windows] = None
        self._marks: Optional[LayerMarks] = None
        self._off = False
        self._promoting = False
        self._armed = False
        self._blind = False  # forward passes are no longer looked at; steps still are
        self._evaluations = self._skipped = (
            0  # forward passes in evaluation mode, and without gradients, since
        )
        self._rearm = False  # disarmed by a long evaluation; armed again with the next batch
        self._rootless = False  # no root forward is to be seen between updates
        self._in_backward = False
        self._models, self._modes = Models(), Modes()
        self._names: Optional[ModelNames] = None
        self._calls = ForwardCalls()  # since the last update, of what may yet prove to be a model
        self._updated = 0  # when an update began last
        self._provisional = False  # a forward pass since the last backward was taken for the model's
        self._hand: Optional[by_hand.ByHand] = by_hand.ByHand()  # None: an optimizer has stepped
        self._loading: Set[int] = set()  # threads that are inside a data loader
        self._thread = TrainingThread(self._training_moved)
        self._bound = False
        self._cost_ns = 0

    # -- installing ---------------------------------------------------------------------------

    def install(self, torch: Any) -> None:
        self._torch = torch
        self._pre_hooks = torch.nn.modules.module._global_forward_pre_hooks
        self._unseen = unseen_test(torch)
        optimizer = sys.modules["torch.optim.optimizer"]
        optimizer.register_optimizer_step_pre_hook(self._optimizer_pre)
        optimizer.register_optimizer_step_post_hook(self._optimizer_post)
        wrap_backward(self, torch)
        wrap_loader(self)
        self._batches.install(torch)
        if torch.distributed.is_available():
            wrap_process_group(self, torch.distributed)
        if hasattr(torch, "compile"):
            self._compile.install(torch)
        atexit.register(self._guarded, "finish", by_hand.at_exit, self)
        self._arm_root()

    # -- life cycle -----------------------------------------------------------------------------

    def _guarded(self, where: str, call: Callable[..., None], *args: Any) -> None:
        if self._off:
            return
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on whatever happened here
            self._fault(where, error)

    def _fault(self, where: str, error: Exception) -> None:
        broken = self._process.broken
        if not (self._guard.fault(where, error) or broken):
            return
        self._go_blind()
        if where not in _FORWARD_HOOKS or broken:
            self._off = True

    def _go_blind(self) -> None:
        """Stop looking at forward passes: no hooks, no windows. Steps are still cut, at their updates."""
        self._blind = True
        self._disarm()
        self._remove_layer_hooks()
        if self._windows is not None:
            self._windows.abandon()
        if self._trace is not None:
            try:
                self._trace.abandon()
            except Exception as error:  # noqa: BLE001 - the boundary: training goes on
                self._guard.counts["abandon " + type(error).__name__] = 1

    def _promote(self) -> None:
        """This process trains: find its rank and open its files. Until now nothing was written."""
        if self._recorder is not None or self._promoting:
            return
        self._promoting = True
        try:
            recorder = self._process.open()
        finally:
            if self._process.broken:
                self._off = True
                self._disarm()
        if recorder is None:
            return
        self._recorder = recorder
        self._trace = trace = TorchTrace()
        trace.yield_to_training(functools.partial(self._guarded, "yield", self._cut_window))
        self._windows = Windows(
            recorder,
            self._process.config,
            trace.start,
            trace.stop,
            trace.new_mark,
            calls=self._process.calls,
            abandon=trace.abandon,
        )
        self._marks = LayerMarks(trace.new_mark, layout.MARK_LAYER)
        self._names = ModelNames(self._marks)
        self._group_marks = GroupMarks(
            trace.new_mark, self._unseen, functools.partial(self._fault, "group marks")
        )
        if self._process.owner in ("", _NAME):
            recorder.save_meta(**torch_describe.framework(), **torch_describe.groups())
        self._process.on_finish(self._finish)

    def _flush(self) -> None:
        if self._recorder is not None:
            self._recorder.flush()
            self._recorder.save_meta(**torch_describe.groups())

    def _finish(self) -> Dict[str, Any]:
        recorder, windows = self._recorder, self._windows
        if recorder is None or windows is None or self._process.owner not in ("", _NAME):
            return {}
        self._disarm()
        self._remove_layer_hooks()
        if self._marks is not None:
            self._marks.close()
        if self._models.changed:
            self._name_layers()
        self._tracker.finish()
        self._thread.report(self._process)
        recorder.flush()  # before the window: should closing it fail, the steps are safe
        windows.finish()
        if self._trace is not None:
            self._trace.come_by()
        overhead = dict(windows.cost(), always_on_ns=self._cost_ns)
        self._batches.settled()
        recorder.meta.update(self._batches.facts())
        return dict(torch_describe.framework(), **torch_describe.memory(), overhead=overhead)

    def _step_done(self, step: Step) -> None:
        now = _clock()
        if self._recorder is not None and self._windows is not None:
            self._recorder.add_step(step, now)
            self._windows.step_done(step.step, step.dur_ns, step.window, now)

    # -- always on ------------------------------------------------------------------------------

    def _arm_root(self) -> None:
        self._rearm = False
        self._skipped = self._evaluations = 0
        if not self._off and not self._blind:
            self._armed = True
            if not self._forward_hooks:  # in a window the layer hook sees every call already
                self._pre_hooks[_HOOK] = self._root_pre

    def _disarm(self) -> None:
        self._armed = False
        self._pre_hooks.pop(_HOOK, None)

    def _root_pre(self, module: Any, args: tuple) -> None:
        if self._unseen() or not self._armed or self._is_elsewhere():
            return
        if threading.get_ident() in self._loading:
            return
        # Global pre-hooks are not given keyword arguments; the caller's frame has them.
        self._guarded("root forward", self._root_hooked, module, args, sys._getframe(1))

    def _root_hooked(self, module: Any, args: tuple, source: Any) -> None:
        self._root_called(module, args, source)
        if self._forward_hooks and self._marks is not None:
            self._marks.enter(module)  # the layer hooks came too late for the call that opened the window

    def _root_called(self, module: Any, args: tuple, source: Any) -> None:
        """A module is about to run, and the model's forward is awaited. Most often it is that."""
        now = _clock()
        if not self._torch.is_grad_enabled() or self._modes.is_evaluation(module):
            # A teacher, a target network, or an evaluation: the model is still to come.
            self._skip()
            self._batches.loaders.evaluated()
            return
        if is_trial():
            return
        is_model = self._models.has(module)
        if not (is_model and self._bound and self._models.roots):  # the update shows what it is
            self._calls.add(now, module)
        if not is_model or self._provisional:
            self._skip()
            return
        if self._bound:
            self._disarm()
            if self._hand is not None:
                self._models.find([ForwardCall(now, weakref.ref(module))])
        else:
            self._provisional = True
        self._model_called(now, module, args, source)

    def _skip(self) -> None:
        """All calls of a long evaluation would cost too much: the rest is left to the next batch."""
        self._skipped += 1
        if self._skipped > MAX_SKIPPED:
            self._disarm()
            self._rearm = True

    def _model_called(self, now: int, module: Any, args: tuple, source: Any) -> None:
        self._rootless = self._rootless and self._tracker.updating
        tracker = self._tracker
        boundary, step = tracker.at_boundary, tracker.next_index
        kwargs = source if isinstance(source, dict) else source.f_locals.get("kwargs")
        number = tracker.index if tracker.updating else step
        if self._hand is not None and not self._bound:
            number = self._hand.number
        counts = self._batches.forward(module, args, kwargs, number, tracker.updating)
        for step_tracker in self._trackers():
            step_tracker.root_forward(now, *counts)
        self._cost_ns += _clock() - now
        if boundary and not tracker.updating and self._windows is not None and self._thread.is_this():
            self._turn_windows(step)  # keeps its own account

    def _trackers(self) -> tuple:
        """Where steps are cut: while it is open whether an optimizer will step, by both rules."""
        hand = self._hand  # once: another thread may take it away
        return (self._tracker,) if hand is None else tuple(dict.fromkeys((self._tracker, hand.tracker)))

    def _backward_begins(self, args: tuple, kwargs: dict) -> None:
        losses = args[0] if args else kwargs.get("tensors")
        correction = self._batches.backward(losses)
        for tracker in self._trackers():
            tracker.correct(correction)
        if self._hand is not None:
            self._hand.backward_begins(losses)

    def _backward_ended(self, began: int, now: int) -> None:
        self._provisional = False
        for tracker in self._trackers():
            tracker.add_backward(now - began, now)
        hand = self._hand
        if hand is None or self._tracker.updating:
            return
        hand.backward_ended(now)
        if not self._bound and hand.enough:
            by_hand.take_over(self)
        if self._bound and self._windows is not None and self._thread.is_this():
            if hand.accumulates:
                self._cut_window()  # nothing tells at a pass whether it is a step's last
            else:
                self._turn_windows(self._tracker.next_index)
        self._cost_ns += _clock() - now

    def _turn_windows(self, step: int) -> None:
        windows, tracker, began = self._windows, self._tracker, _clock()
        assert windows is not None and self._recorder is not None
        if self._models.changed:
            self._name_layers()
            self._cost_ns += _clock() - began
            tracker.resume(_clock())
        if windows.active >= 0:
            if windows.boundary(step):
                self._remove_layer_hooks()
                tracker.window = -1
                tracker.resume(_clock())
        elif windows.wants(step):
            if windows.open(step, began):
                tracker.window = windows.active
                self._add_layer_hooks()
            tracker.resume(_clock())

    def _optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An optimizer's step begins.

        Returns:
            None, or the arguments it is to have: in a window its closure is marked.
        """
        if self._off or self._unseen():
            return None
        try:
            now = _clock()
            if not self._bound:
                self._bind()
            if self._off or not self._thread.update_begins():
                return None
            if self._hand is not None and self._tracker is self._hand.tracker and self._recorder is not None:
                self._recorder.meta["step_source"] = by_hand.THEN_OPTIMIZERS
            self._hand = None
            self._provisional = False  # gradients may come from autograd.grad, without a backward pass
            serial = self._models.serial(optimizer)
            self._modes.updated()
            calls = [call for call in self._models.find(self._calls.outermost()) if call.time > self._updated]
            self._calls.updated()
            self._updated = now
            if self._models.changed and self._tracker.index:
                self._cut_window()  # what it has traced since the last model's step is another model's
            if calls:
                self._tracker.fallback = calls[0].time
            if self._tracker.optimizer_begins(serial, now):
                self._rootless = not calls
            self._cost_ns += _clock() - now
            if self._windows is not None and self._windows.active >= 0 and self._trace is not None:
                return with_marked_closure(args, kwargs, self._trace.new_mark)
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on
            self._fault("optimizer", error)
        return None

    def _is_elsewhere(self) -> bool:
        """True in a thread that trains something else than what is recorded."""
        if not self._bound or self._thread.has_work_here():
            return False
        if self._trace is not None:
            self._trace.come_by()
        return True

    def _training_moved(self) -> None:
        """Another thread goes on with the training; a window's profiler was started in the one before."""
        self._cut_window()
        if self._recorder is not None:
            self._recorder.meta["main_tid"] = threading.get_native_id()

    def _bind(self) -> None:
        """The first update: this is the thread that trains, and this process a rank."""
        if not self._process.own_steps(_NAME):
            self._off = True  # another framework cuts the steps, and its update is not torch's
            self._go_blind()
            return
        self._promote()
        self._bound = True
        self._thread.settle()
        if self._recorder is not None:
            self._recorder.meta["main_tid"] = threading.get_native_id()

    def _optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._off or self._unseen() or not self._thread.update_ends():
            return
        try:
            now, tracker = _clock(), self._tracker
            tracker.optimizer_ends(now)
            self._cost_ns += _clock() - now
            has_windows = self._windows is not None and self._thread.is_this()
            if self._rootless and tracker.at_boundary and has_windows:
                step = tracker.next_index
                tracker.update_is_boundary(now)
                self._turn_windows(step)
            if not self._models.roots:
                self._models.find(self._calls.outermost())  # the optimizer's closure called them
                self._updated = now
            if self._models.changed and not tracker.index:
                self._name_layers()  # there may be no second step, and no model at exit
            self._arm_root()
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on
            self._fault("optimizer", error)

    # -- windows --------------------------------------------------------------------------------

    def _name_layers(self) -> None:
        recorder, names, roots = self._recorder, self._names, self._models.roots
        if recorder is None or names is None or not roots:
            return
        self._models.changed = False
        recorder.write_json(layout.LAYERS_JSON, names.name(roots))
        if "root" not in recorder.meta or not self._tracker.index:
            recorder.meta["root"] = torch_describe.root(roots[0], self._batches.pipeline)
        recorder.save_meta(**self._batches.facts())

    def _add_layer_hooks(self) -> None:
        if self._forward_hooks:
            return
        self._pre_hooks.pop(_HOOK, None)  # from here on the layer hook sees every call
        hooks = self._torch.nn.modules.module
        self._forward_hooks = [
            hooks.register_module_forward_pre_hook(self._layer_pre),
            hooks.register_module_forward_hook(self._layer_post, always_call=True),
        ]
        if self._group_marks is not None:
            self._group_marks.install(self._models.roots)

    def _remove_layer_hooks(self) -> None:
        if self._group_marks is not None:
            self._group_marks.remove()
        hooks, self._forward_hooks = self._forward_hooks, []
        for hook in hooks:
            hook.remove()

    def _layer_pre(self, module: Any, args: tuple) -> None:
        if not self._unseen() and threading.get_ident() not in self._loading:
            self._guarded("layer", self._layer_called, module, args, sys._getframe(1))

    def _layer_called(self, module: Any, args: tuple, source: Any) -> None:
        marks, windows = self._marks, self._windows
        assert marks is not None and windows is not None
        if marks.idle and self._thread.has_work_here():
            if self._armed:
                self._root_called(module, args, source)
            if self._modes.skipped or not (self._torch.is_grad_enabled() or module.training):
                self._evaluated(module)
        if windows.active >= 0:
            marks.enter(module)

    def _evaluated(self, module: Any) -> None:
        """A forward pass in evaluation mode: of the model itself it ends the window, or an evaluation of any
        length would end up in the trace; another model (a teacher, a target network) belongs to the step.
        """
        roots = self._models.roots
        self._evaluations += 1
        is_own = not roots or any(unwrap(module) is unwrap(root) for root in roots)
        if is_own or self._evaluations > MAX_EVALUATIONS:
            self._cut_window()

    def _cut_window(self) -> None:
        windows = self._windows
        if windows is not None and windows.active >= 0:
            self._remove_layer_hooks()
            if self._marks is not None:
                self._marks.close()
            windows.close()
            self._tracker.window = -1
            if self._armed:
                self._arm_root()

    def _layer_post(self, module: Any, args: Any, output: Any) -> None:
        if self._marks is not None and not self._unseen():
            self._guarded("layer", self._marks.leave, module)

    def _compiled_entered(self, module: Any, args: tuple, kwargs: dict) -> None:
        self._guarded("compiled forward", self._compiled_called, module, args, kwargs)

    def _compiled_called(self, module: Any, args: tuple, kwargs: dict) -> None:
        idle = self._marks is None or self._marks.idle
        if self._is_elsewhere():
            return
        if self._armed and idle:
            self._root_called(module, args, kwargs)
        self._pre_hooks.pop(_HOOK, None)  # still armed after a forward without gradients
        if self._windows is not None and self._windows.active >= 0 and self._marks is not None:
            if idle and not (self._torch.is_grad_enabled() or getattr(module, "training", False)):
                self._evaluated(module)
                self._pre_hooks.pop(_HOOK, None)
                if self._windows.active < 0:
                    return
            self._remove_layer_hooks()
            self._marks.enter(unwrap(module))

    def _compiled_left(self, module: Any) -> None:
        self._guarded("compiled forward", self._compiled_done, module)

    def _compiled_done(self, module: Any) -> None:
        if self._windows is not None and self._windows.active >= 0 and self._marks is not None:
            self._marks.leave(unwrap(module))
            self._add_layer_hooks()
        elif self._armed:
            self._pre_hooks[_HOOK] = self._root_pre
