"""Which modules are the models: those whose call reaches parameters that an optimizer holds.

That is only known at an optimizer's update. Until then every module call is a candidate. What reaches no such
parameter is a transform, a loss or a frozen network: no model, and no step begins with it.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple

from .held import HeldMemory
from .layers import field, parts

MAX_CALLS = 5_000  # candidates kept between two updates
MAX_MODELS = 64  # described in layers.json; a search over architectures may train thousands
_SCRIPTED = ("RecursiveScriptModule", "ScriptModule", "TopLevelTracedModule")


def _parameters(module: Any) -> Iterator[Any]:
    for part in parts(module):
        if type(part).__name__ in _SCRIPTED:  # its parts live in C++
            yield from part.parameters()
        for parameter in field(part, "_parameters").values():
            if parameter is not None:
                yield parameter


class ForwardCall(NamedTuple):
    """A forward call: when it began (ns, CLOCK_MONOTONIC), and of what (a weak reference)."""

    time: int
    module: Callable[[], Any]


class ForwardCalls:
    """Forward calls since the last update but one, the first of each module since an update.

    A generator may run for the discriminator's update alone, its own comes after that.
    """

    def __init__(self) -> None:
        self._by_id: Dict[int, ForwardCall] = {}
        self._before: Dict[int, ForwardCall] = {}

    def updated(self) -> None:
        """An optimizer has begun its update."""
        self._before, self._by_id = self._by_id, {}

    def add(self, now: int, module: Any) -> None:
        cached = self._by_id.get(id(module))
        if cached is not None and cached.module() is not module:
            del self._by_id[id(module)]  # an earlier module of this address is gone
        elif cached is not None or len(self._by_id) >= MAX_CALLS:
            return
        self._by_id[id(module)] = ForwardCall(now, weakref.ref(module))

    def outermost(self) -> List[ForwardCall]:
        """In order of time, without modules inside others that were called as well."""
        calls = {**self._before, **self._by_id}
        alive = [(call, call.module()) for call in sorted(calls.values(), key=lambda call: call.time)]
        inside: set = set()
        for _, module in alive:
            if module is not None and id(module) not in inside:
                inside.update(id(part) for part in parts(module) if part is not module)
        return [call for call, module in alive if module is not None and id(module) not in inside]


class _Held(NamedTuple):
    optimizer: Callable[[], Any]
    serial: int
    size: int
    ids: FrozenSet[int]


class Models:
    """The models of a process, found by what its optimizers hold.

    Attributes:
        changed: models were found since this was last set to False.
        held: bytes that the training's tensors take.
    """

    def __init__(self) -> None:
        self._optimizers: Dict[int, _Held] = {}
        self._ids: FrozenSet[int] = frozenset()
        self._answers: Dict[int, tuple] = {}  # id -> (weak reference, whether it is a model)
        self._roots: List[Callable[[], Any]] = []
        self._serial = 0
        self.changed = False
        self.held = HeldMemory()

    @property
    def roots(self) -> List[Any]:
        """The models that are alive, in the order they were found."""
        return [module for module in (root() for root in self._roots) if module is not None]

    @property
    def first(self) -> Any:
        """The model found first, of those alive; None: there is none."""
        return next(iter(self.roots), None)

    def serial(self, optimizer: Any) -> int:
        """A number of this optimizer's own, from 1 (addresses are used again). Its update begins."""
        serial = self._learned(optimizer)
        alive = [entry.optimizer() for entry in self._optimizers.values()]
        self.held.update_begins(serial, [one for one in alive if one is not None], self.roots)
        return serial

    def _learned(self, optimizer: Any) -> int:
        """Its number; what it holds is known now."""
        groups = optimizer.param_groups
        count = sum(len(group["params"]) for group in groups)
        cached = self._optimizers.get(id(optimizer))
        if cached is not None and cached.optimizer() is not optimizer:
            cached = None
        if cached is not None and cached.size == count:
            return cached.serial
        if cached is None:
            self._serial += 1
        serial = self._serial if cached is None else cached.serial
        ids = frozenset(id(parameter) for group in groups for parameter in group["params"])
        self._optimizers[id(optimizer)] = _Held(weakref.ref(optimizer), serial, count, ids)
        self._optimizers = {
            key: entry for key, entry in self._optimizers.items() if entry.optimizer() is not None
        }
        self._ids = frozenset().union(*(entry.ids for entry in self._optimizers.values()))
        self._answers.clear()
        return serial

    def has(self, module: Any) -> bool:
        """Whether `module` is a model, or a part of one that has parameters to train."""
        cached = self._answers.get(id(module))
        if cached is not None and cached[0]() is module:
            return bool(cached[1])
        answer = any(root() is module for root in self._roots) or self._reaches(module)
        self._answers[id(module)] = (weakref.ref(module), answer)
        return answer

    def _reaches(self, module: Any) -> bool:
        if self._ids:
            return any(id(parameter) in self._ids for parameter in _parameters(module))
        if type(module).__name__ == "function":  # compiled code, which shows no parameters
            return not self._roots
        return is_trained(module)  # no optimizer holds anything: updates are written by hand

    def find(self, calls: List[ForwardCall]) -> List[ForwardCall]:
        """Those of `calls` (outermost ones) that are of models; models not known before are taken in.

        Where the first optimizer holds copies of the parameters (master weights of another precision, a flat
        buffer), all that has parameters to train is a model; so is compiled code, which shows none.
        """
        alive = [
            (call, module)
            for call, module in ((candidate, candidate.module()) for candidate in calls)
            if module is not None
        ]
        mine = [(call, module) for call, module in alive if self.has(module)]
        if not mine and not self._roots:
            mine = [pair for pair in alive if is_trained(pair[1]) or type(pair[1]).__name__ == "function"]
        for _, module in mine:
            self._take(module)
        return [call for call, _ in mine]

    def _take(self, module: Any) -> None:
        roots = self.roots
        if any(module is part for root in roots for part in parts(root)):
            return
        mine = {id(part) for part in parts(module)}
        self._roots = [weakref.ref(root) for root in roots if id(root) not in mine]
        self._roots.append(weakref.ref(module))
        self._answers.clear()
        self.changed = True


def is_trained(module: Any) -> bool:
    """Whether it has parameters that take gradients."""
    return any(parameter.requires_grad for parameter in _parameters(module))


class Modes:
    """Tells evaluations that run with gradients from training: of a model in evaluation mode that has been
    trained in training mode. Some are trained in evaluation mode; an update without any other forward pass
    shows that.

    Attributes:
        skipped: calls since the last update that were taken for evaluations.
    """

    def __init__(self) -> None:
        self._training: Dict[
            int, Callable[[], Any]
        ] = {}  # models called in training mode since the last update
        self._trained: Dict[int, Callable[[], Any]] = {}
        self._either = False  # updates follow on calls in evaluation mode, too
        self.skipped = 0

    def is_evaluation(self, module: Any) -> bool:
        """`module` is about to run with gradients."""
        if getattr(module, "training", True):
            if len(self._training) < MAX_MODELS:
                self._training[id(module)] = weakref.ref(module)
            return False
        trained = self._trained.get(id(module))
        if self._either or trained is None or trained() is not module:
            return False
        self.skipped += 1
        return True

    def updated(self) -> None:
        """An optimizer has begun its update."""
        self._either = self._either or (self.skipped > 0 and not self._training)
        if len(self._trained) < MAX_MODELS:
            self._trained.update(self._training)
        self._training.clear()
        self.skipped = 0
