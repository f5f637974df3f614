"""What the name of a TensorFlow operator tells: `gradient_tape/sequential_1/conv_b_1/conv/X:Conv2D`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from perfscope.rundir.schema import PHASES

_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = (
    PHASES.index(name) for name in ("forward", "backward", "optimizer", "other")
)
_SUFFIX = re.compile(r"_\d+$")
# Scopes of functions and control flow, and of replicas: around everything, and of no layer.
_AROUND = re.compile(
    r"^(?:StatefulPartitionedCall|PartitionedCall|while|cond|case|body|then|else|true|false|loop_body|pfor"
    r"|replica|Const|AdjustContrast)(?:_\d+)?$"
)
_BACKWARD_SCOPES = frozenset({"gradient_tape", "gradients"})
_OPTIMIZERS = frozenset(
    {
        "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion", "muon",
        "nadam",
        "rmsprop", "sgd", "gradientdescent", "momentum", "lossscaleoptimizer",
        "loss_scale_optimizer",
    }
)  # fmt: skip
_LOSSES = frozenset({"compile_loss", "compile_metrics"})
# They start other operators, wait for them or pass values on: whatever time they take is not their own.
_WRAPPERS = frozenset(
    {
        "StatefulPartitionedCall", "PartitionedCall", "RemoteCall", "While", "StatelessWhile", "If",
        "StatelessIf", "Case", "StatelessCase", "For", "NoOp", "_Arg", "_Retval", "_Send", "_Recv",
        "_HostSend", "_HostRecv", "IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional",
        "EagerPyFunc", "PyFunc", "PyFuncStateless", "SymbolicGradient", "ControlTrigger",
    }
)  # fmt: skip
_UPDATE_SCOPE = re.compile(r"^update_\d+$")  # of an optimizer under tf.distribute, one for each replica
_UPDATES = re.compile(r"^Resource(?:Sparse)?Apply|^(?:Sparse)?Apply[A-Z]")


class Op(Struct, frozen=True):
    """One operator. `phase` is an index into schema.PHASES."""

    node: str
    type: str
    layer: str | None
    phase: int
    is_wrapper: bool


class Naming:
    """Tells operators by their names.

    Args:
        layers: dotted names of the model's layers (`encoder.conv1`); () = not known.
        root: the name among them that stands for the model itself.
        optimizers: names of the optimizers, which are their scopes.
    """

    OP = re.compile(r"^((?:[A-Za-z0-9_.\\\-<>]+/)*[A-Za-z0-9_.\\\-<>]*):([A-Z_][A-Za-z0-9_]*)$")

    def __init__(self, layers: Sequence[str], root: str | None, optimizers: Iterable[str]) -> None:
        self._layers = frozenset(layers) - {root}
        self._optimizers = _OPTIMIZERS | {name.lower() for name in optimizers}
        self._roots: set[str] = set()  # scopes of models: what stands before a layer
        self._known: dict[str, Op | None] = {}
        # Keras 3 enters a layer's scope twice: `conv2d` is `conv2d_1` and `conv2d_1` is `conv2d_1_2`, so the
        # number goes first. In a file that has a layer's bare name (tf_keras) names are what they say.
        self._parts = {part for layer in self._layers for part in layer.split(".")}
        self._prefixes = {layer[:at] for layer in self._layers for at, c in enumerate(layer) if c == "."}
        self._is_bare = False

    def learn(self, names: Iterable[str]) -> None:
        """Look at all names of a file first: what stands before a known layer is a model's scope."""
        names = set(names)
        self._is_bare = any(self._names_a_layer_barely(name) for name in names)
        for name in names:
            match = self.OP.match(name)
            if match is None:
                continue
            all_scopes = match[1].split("/")[:-1]
            scopes = _own(all_scopes)
            if len(scopes) < 2 or self._is_optimizer(scopes):
                continue
            if self._layers:
                if not self._path(scopes[:1]) and self._path(scopes[1:2]):
                    self._roots.add(_stem(scopes[0]))
            elif _BACKWARD_SCOPES & set(all_scopes) and scopes[0] not in _LOSSES:
                self._roots.add(_stem(scopes[0]))

    def _names_a_layer_barely(self, name: str) -> bool:
        match = self.OP.match(name)
        scopes = _own(match[1].split("/")[:-1]) if match else []
        # The first scope may be a function's own name; an optimizer's scopes are the variables' names.
        return not self._is_optimizer(scopes) and any(
            scope in self._parts and _stem(scope) == scope for scope in scopes[1:]
        )

    def op(self, name: str) -> Op | None:
        """The operator of this name; None when it is none."""
        if name not in self._known:
            self._known[name] = self._told(name)
        return self._known[name]

    def unscoped(self, kind: str) -> Op:
        """An operator of which nothing but its type is known."""
        phase = _OPTIMIZER if _UPDATES.match(kind) else _OTHER
        return Op("", kind, None, phase, kind in _WRAPPERS)

    def _told(self, name: str) -> Op | None:
        match = self.OP.match(name) if ":" in name else None
        if match is None:
            return None
        node, kind = match[1], match[2]
        all_scopes = node.split("/")[:-1]
        scopes = _own(all_scopes)
        is_update = bool(_UPDATES.match(kind)) or self._is_optimizer(scopes)
        layer = None if is_update else self._layer(scopes)
        backward = bool(_BACKWARD_SCOPES & set(all_scopes))
        if is_update:
            phase = _OPTIMIZER
        elif backward:
            phase = _BACKWARD
        else:
            phase = _FORWARD if layer or scopes else _OTHER
        return Op(node, kind, layer, phase, kind in _WRAPPERS)

    def _is_optimizer(self, scopes: Sequence[str]) -> bool:
        return any(
            _UPDATE_SCOPE.match(scope) is not None
            or scope.lower() in self._optimizers
            or _stem(scope).lower() in self._optimizers
            for scope in scopes
        )

    def _layer(self, scopes: Sequence[str]) -> str | None:
        path = self._path(scopes)
        if path:
            return path
        if len(scopes) > 1 and _stem(scopes[0]) in self._roots:
            return _stem(scopes[1])  # a layer without variables, which was not described
        return None

    def _path(self, scopes: Sequence[str]) -> str:
        """The innermost known layer that the scopes name, "" if none."""
        path = ""
        for scope in scopes:
            spellings = (scope, _stem(scope)) if self._is_bare else (_stem(scope), scope)
            for candidate in spellings:
                longer = f"{path}.{candidate}" if path else candidate
                if longer in self._layers or longer in self._prefixes:
                    path = longer
                    break
        return path if path in self._layers else ""


def _own(scopes: Sequence[str]) -> list[str]:
    """Scopes of the model: without those of gradients, functions and control flow."""
    return [scope for scope in scopes if scope not in _BACKWARD_SCOPES and not _AROUND.match(scope)]


def _stem(scope: str) -> str:
    """Without the number that TensorFlow appends to a scope that is entered again."""
    return _SUFFIX.sub("", scope)
