"""What Keras runs on: its profiler, its facts, and how to wait for its work."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from ...rundir import layout
from ...vocabulary.figures import Figure
from ..frames import around
from ..framework_probe import Trace
from ..process import Process
from ..tensorflow import describe as tensorflow_describe
from ..torch import describe as torch_describe

Aside = Callable[[], None]  # ends the open window: the training wants the profiler itself
NamedLayers = List[Tuple[str, Any]]


class Backend:
    """A backend that perfscope knows nothing of: steps only."""

    name = ""

    def __init__(self, name: str, step_aside: Aside) -> None:
        self.name = name
        self.trace: Optional[Trace] = None

    @property
    def version(self) -> str:
        return str(getattr(sys.modules.get(self.name), "__version__", ""))

    def facts(self) -> Dict[str, Any]:
        """`device`, `num_threads`, `backend`, `groups` of rank.json."""
        return {}

    def may_trace(self) -> bool:
        return True

    def tell_limits(self, process: Process) -> None:
        """What this backend's windows will not hold, and why."""
        process.missing(
            Figure.WINDOWS,
            "windows (layers, phases)",
            "perfscope knows no profiler of the backend %s" % self.name,
        )

    def name_layers(self, layers: NamedLayers) -> None:
        """The model's layers, in case the backend's trace has to be given them."""

    def tell_compiled(self) -> None:
        """The model is compiled with jit_compile=True."""

    def width(self, keras: Any, model: Any) -> Optional[int]:
        """Over how many processes a batch is split; None: not known."""
        return 1

    def wait(self, model: Optional[Callable[[], Any]]) -> bool:
        """Wait for work that was only started; True when there may have been some."""
        return False

    def window_opened(self, keras: Any, model: Any) -> None:
        """The trace has been started."""

    def window_closed(self) -> None:
        """The trace is written, or given up."""

    def optimizer_mark(self, optimizer: Any) -> Any:
        """A context manager for an update that runs eagerly; None: the trace shows it already."""
        return None

    def forget(self) -> None:
        """In a forked child."""


class TensorFlowBackend(Backend):
    """Ops carry the layers' scopes in their names."""

    def __init__(self, name: str, step_aside: Aside) -> None:
        super().__init__(name, step_aside)
        from ..tensorflow.probe import the_probe
        from ..tensorflow.trace import TensorFlowTrace

        self._trace = TensorFlowTrace(step_aside)
        self.trace = self._trace
        self._probe = the_probe()

    def facts(self) -> Dict[str, Any]:
        return dict(tensorflow_describe.facts(), **self._probe.graph_facts())

    def may_trace(self) -> bool:
        return self._probe.may_trace()

    def tell_limits(self, process: Process) -> None:
        self._probe.tell_limits(process)
        process.missing(
            Figure.INPUT_WAIT,
            "input wait of untraced steps",
            "Keras takes its batches inside the compiled train function; traced steps show it",
        )

    def tell_compiled(self) -> None:
        self._probe.tell_compiled()

    def width(self, keras: Any, model: Any) -> Optional[int]:
        return tensorflow_describe.width()

    def wait(self, model: Optional[Callable[[], Any]]) -> bool:
        return self._probe.wait()

    def forget(self) -> None:
        self._trace.forget()


class _Kineto(Trace):
    """torch's profiler as a Trace."""

    suffix = layout.KINETO

    def __init__(self, step_aside: Aside) -> None:
        from ..torch.trace import TorchTrace

        self.torch = TorchTrace()
        self.torch.yield_to_training(step_aside)

    def start(self) -> bool:
        return self.torch.start()

    def stop(self, path: str) -> bool:
        return self.torch.stop(path)

    def abandon(self) -> None:
        self.torch.abandon()

    def new_mark(self, name: str) -> Any:
        return self.torch.new_mark(name)


class TorchBackend(Backend):
    """Runs eagerly: layers are marked as they are called."""

    def __init__(self, name: str, step_aside: Aside) -> None:
        super().__init__(name, step_aside)
        self._kineto = _Kineto(step_aside)
        self.trace = self._kineto
        self._layers: Dict[int, str] = {}
        self._undo: Optional[Callable[[], None]] = None

    def facts(self) -> Dict[str, Any]:
        facts = dict(torch_describe.framework(), **torch_describe.groups({}))
        del facts["framework"]
        return facts

    def tell_limits(self, process: Process) -> None:
        return

    def width(self, keras: Any, model: Any) -> Optional[int]:
        dist = sys.modules["torch"].distributed
        world = int(dist.get_world_size()) if dist.is_available() and dist.is_initialized() else 1
        # Up to Keras 3.15 `fit` trains each process by itself; later ones wrap the model.
        return world if world == 1 or getattr(model, "ddp_model", None) is not None else None

    def name_layers(self, layers: NamedLayers) -> None:
        # By id: the model holds them, and it is asked for again when another one trains.
        self._layers = {id(layer): name for name, layer in layers}

    def window_opened(self, keras: Any, model: Any) -> None:
        if getattr(model, "jit_compile", False):
            return  # what is compiled would be compiled anew
        kind = keras.layers.Layer
        original = kind.__call__
        names, new_mark = self._layers, self._kineto.new_mark

        @around(original)
        def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
            name = names.get(id(layer))
            if name is None:
                return original(layer, *args, **kwargs)
            with new_mark(layout.MARK_LAYER + name):
                return original(layer, *args, **kwargs)

        kind.__call__ = __call__
        self._undo = functools.partial(setattr, kind, "__call__", original)

    def window_closed(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def optimizer_mark(self, optimizer: Any) -> Any:
        return self._kineto.new_mark("Optimizer.step#%s.step" % type(optimizer).__name__)

    def forget(self) -> None:
        self._kineto.torch.forget()
        self.window_closed()


class JaxBackend(Backend):
    """Calls return before their work is done; the trace is the JAX probe's."""

    def __init__(self, name: str, step_aside: Aside) -> None:
        super().__init__(name, step_aside)
        from ..jax.trace import JaxTrace

        self._trace = JaxTrace()
        self._trace.yield_to_training(step_aside)
        is_known = getattr(self._trace, "known", None)
        self.trace = self._trace if is_known is None or is_known() else None

    def facts(self) -> Dict[str, Any]:
        from ..jax import describe as jax_describe

        facts = jax_describe.facts()
        del facts["framework"]
        return facts

    def tell_limits(self, process: Process) -> None:
        if self.trace is None:
            super().tell_limits(process)

    def width(self, keras: Any, model: Any) -> Optional[int]:
        if sys.modules["jax"].process_count() == 1:
            return 1
        distribution = keras.distribution.distribution()
        return (
            int(sys.modules["jax"].process_count()) if type(distribution).__name__ == "DataParallel" else None
        )

    def wait(self, model: Optional[Callable[[], Any]]) -> bool:
        trained = model() if model is not None else None
        state = getattr(trained, "_jax_state", None)
        if not state:
            return False
        try:
            # Keras keeps it in a dict of a class of its own, which is no tree to JAX.
            sys.modules["jax"].block_until_ready([list(values) for values in state.values()])
        except RuntimeError:  # buffers given away to a later step: that one will be waited for
            return False
        return True

    def forget(self) -> None:
        self._trace.forget()


_KINDS = {"tensorflow": TensorFlowBackend, "torch": TorchBackend, "jax": JaxBackend}


def backend_of(name: str, step_aside: Aside) -> Backend:
    """The backend of this name, as far as perfscope knows it."""
    return _KINDS.get(name, Backend)(name, step_aside)
