"""One training step on tensors without values: what it allocates, when it frees it, and what it computes.

The step is `serial`'s own code on torch's fake tensors, so a model of any size is traced in seconds and in no
memory. Two batch sizes give each allocation as fixed + per sample.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from perfscope.runners.composed.pairs import tensor_pairs
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.models.shapes import EXPERTS, ModelShape, example_input
from perfscope.runners.planning import describe_model
from perfscope.runners.schemes.base import Batch
from perfscope.runners.schemes.recomputation import checkpoint_activations
from perfscope.runners.schemes.serial import Serial
from perfscope.runners.world import Alone, World

_FEW, _MORE = 2, 4  # samples; with one, torch takes other ways through some operators
_FOREVER = 1 << 60
_LOG_SOFTMAX_BACKWARD = "aten::_log_softmax_backward_data"
_CPU_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


class Owner(str, Enum):
    """What an allocation is."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    STATE = "state"  # of the optimizer
    ACTIVATION = "activation"  # made in the forward pass
    TEMPORARY = "temporary"  # made in the backward pass or the update, and no gradient


@dataclass(slots=True, kw_only=True)
class Allocation:
    """One storage.

    Attributes:
        owner: what it is.
        begin, end: operators before it is made, and before it is freed.
        block: index of the top-level child.
        param: name of the parameter that it belongs to; "": none.
        is_divided: lies between the two linear layers that tensor parallelism divides.
        enters_pair: what the first of them takes in, whole on each rank.
        gives_weights: gradient of a layer's outputs, of which that of its weights is computed.
        fixed, per_sample: bytes.
    """

    owner: Owner
    begin: int
    end: int
    block: int
    param: str
    is_divided: bool
    fixed: float
    per_sample: float = 0.0
    enters_pair: bool = False
    gives_weights: bool = False


@dataclass(slots=True, kw_only=True)
class Operator:
    """One operator that computes.

    Attributes:
        place: operators before it.
        block, param, is_divided: as of Allocation.
        flops, flops_per_sample, bytes, bytes_per_sample: arithmetic, and what it reads and writes.
        is_backward: belongs to the backward pass (what is computed again included).
    """

    place: int
    block: int
    param: str
    is_divided: bool
    is_backward: bool
    flops: float
    bytes: float
    flops_per_sample: float = 0.0
    bytes_per_sample: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """One step of the undivided model.

    Attributes:
        shape: of the model.
        allocations, operators: in order.
        forward_ends, backward_ends: places behind the two passes.
        forward_begins, backward_begins: block -> place where its pass begins.
    """

    shape: ModelShape
    allocations: tuple[Allocation, ...]
    operators: tuple[Operator, ...]
    forward_ends: int
    backward_ends: int
    forward_begins: dict[int, int]
    backward_begins: dict[int, int]


def record_tape(config: BenchConfig) -> Tape:
    """The tape of a model; that of equal models is kept.

    Args:
        config: model, input, classes, dropout, dtype, optimizer, momentum, activation checkpointing, and
            whether the device is a GPU.

    Raises:
        BenchError: the model cannot be traced; one line.
    """
    like = BenchConfig(
        scheme=Serial.name,
        model=config.model,
        input_shape=config.input_shape,
        num_classes=config.num_classes,
        dropout=config.dropout,
        optimizer=config.optimizer,
        momentum=config.momentum,
        # sizes are those of bfloat16, and the loss scale would have to read values
        dtype="bfloat16" if config.dtype == "float16" else config.dtype,
        activation_checkpointing=config.activation_checkpointing,
        device="cuda" if config.device == "cuda" else "cpu",
    )
    return _recorded(like)


@lru_cache(maxsize=16)
def _recorded(config: BenchConfig) -> Tape:
    few, more = (_Trace(replace(config, batch=num)) for num in (_FEW, _MORE))
    for trace in (few, more):
        trace.run()
    pairs = zip(few.allocations, more.allocations, strict=False)
    if [len(few.allocations), len(few.operators)] != [len(more.allocations), len(more.operators)]:
        raise BenchError(f"{config.model} computes otherwise for other batch sizes, and cannot be planned")
    for few_row, other in pairs:
        few_row.per_sample = (other.fixed - few_row.fixed) / (_MORE - _FEW)
        few_row.fixed -= few_row.per_sample * _FEW
    for op, more_op in zip(few.operators, more.operators, strict=True):
        op.flops_per_sample = (more_op.flops - op.flops) / (_MORE - _FEW)
        op.bytes_per_sample = (more_op.bytes - op.bytes) / (_MORE - _FEW)
        op.flops -= op.flops_per_sample * _FEW
        op.bytes -= op.bytes_per_sample * _FEW
    return few.tape()


class _Trace(TorchDispatchMode):
    """One step of one batch size, the second of a training: the optimizer has its state then."""

    def __init__(self, config: BenchConfig) -> None:
        super().__init__()
        self.config = config
        self.shape = describe_model(config)
        self.allocations: list[Allocation] = []
        self.operators: list[Operator] = []
        self.forward_begins: dict[int, int] = {}
        self.backward_begins: dict[int, int] = {}
        self._rows: dict[int, Allocation] = {}  # id of a living storage -> its row
        self._clock = 0
        self._block = 0
        self._forward_ends = self._backward_ends = 0
        self._divides_storages = self._divides_operators = False
        self._is_backward = self._is_update = False
        self._watches = False
        # autocast of GPUs: the gradient of log-softmax is of 16 bits at once, on CPUs of 32 before
        self._gives_halves = config.device == "cuda" and config.is_mixed

    def run(self) -> None:
        """Traces; results are in the attributes."""
        config = self.config
        has_experts = any(layer.kind == EXPERTS for layer in self.shape.layers)
        with torch.device("cpu" if has_experts else "meta"):
            model = build_model(config)
        # values only where routers decide by them what is computed
        with nullcontext() if has_experts else FakeTensorMode():
            if not has_experts:
                _without_values(model)
            job = Job(config=config, mesh=Mesh(), shape=self.shape)
            if config.activation_checkpointing:
                checkpoint_activations(model)
            scheme = Serial(job, World(Alone(), 0, torch.device("cpu")))
            scheme.build(model)
            batch = _batch(model, config)
            scheme.step(batch)
            scheme.optimizer.zero_grad(set_to_none=True)
            self._keep(model, scheme.optimizer)
            for value in (batch.inputs, batch.targets):
                self._hold(value, Owner.ACTIVATION, "")
            self._hook(model, scheme.optimizer)
            self._watches = True
            with self:
                scheme.step(batch)
            self._watches = False
            self._name_gradients(model)
            self._rows.clear()

    def tape(self) -> Tape:
        """Of what was traced."""
        return Tape(
            shape=self.shape,
            allocations=tuple(self.allocations),
            operators=tuple(self.operators),
            forward_ends=self._forward_ends,
            backward_ends=self._backward_ends,
            forward_begins=self.forward_begins,
            backward_begins=self.backward_begins,
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes what an operator makes and moves."""
        out = func(*args, **(kwargs or {}))
        given, made = _tensors((args, kwargs or {})), _tensors(out)
        param = self._param_of(given) if self._is_update else ""
        is_new = [self._note(value, param) for value in made]
        if any(is_new) or func._schema.is_mutable:
            self.operators.append(
                Operator(
                    place=self._clock,
                    block=self._block,
                    param=param,
                    is_divided=self._divides_operators,
                    is_backward=self._is_backward,
                    flops=_flops(func, args, kwargs or {}, out),
                    bytes=sum(value.numel() * value.element_size() for value in (*given, *made)),
                )
            )
            if self._gives_halves and func._schema.name == _LOG_SOFTMAX_BACKWARD:
                self.allocations[-1].fixed /= 2
        self._clock += 1
        return out

    def _note(self, value: torch.Tensor, param: str) -> bool:
        storage = value.untyped_storage()
        if id(storage) in self._rows:
            return False
        temporary = self._is_backward or self._is_update
        row = Allocation(
            owner=Owner.TEMPORARY if temporary else Owner.ACTIVATION,
            begin=self._clock,
            end=_FOREVER,
            block=self._block,
            param=param,
            is_divided=self._divides_storages,
            fixed=float(storage.nbytes()),
        )
        self.allocations.append(row)
        self._follow(storage, row)
        return True

    def _follow(self, storage: Any, row: Allocation) -> None:
        key = id(storage)
        self._rows[key] = row
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        row = self._rows.pop(key, None)
        if row is not None and self._watches:
            row.end = self._clock

    def _keep(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """What lives before the step and after it."""
        names = {id(value): name for name, value in model.named_parameters()}
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            self._hold(value, Owner.WEIGHT, name)
        for value, state in optimizer.state.items():
            for kept in state.values():
                if isinstance(kept, torch.Tensor):
                    self._hold(kept, Owner.STATE, names[id(value)])

    def _hold(self, value: torch.Tensor, owner: Owner, name: str) -> None:
        storage = value.untyped_storage()
        if id(storage) in self._rows:
            return
        row = Allocation(
            owner=owner,
            begin=-1,
            end=_FOREVER,
            block=self.shape.blocks.index(name.split(".")[0]) if name else 0,
            param=name,
            is_divided=False,
            fixed=float(storage.nbytes()),
        )
        self.allocations.append(row)
        self._follow(storage, row)

    def _name_gradients(self, model: nn.Module) -> None:
        for name, value in model.named_parameters():
            row = None if value.grad is None else self._rows.get(id(value.grad.untyped_storage()))
            if row is not None:
                row.owner, row.param, row.is_divided = Owner.GRADIENT, name, False
                row.block = self.shape.blocks.index(name.split(".")[0])

    def _param_of(self, tensors: Sequence[torch.Tensor]) -> str:
        rows = (self._rows.get(id(value.untyped_storage())) for value in tensors)
        return next((row.param for row in rows if row is not None and row.param), "")

    def _hook(self, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        for index, child in enumerate(model.children()):
            child.register_forward_pre_hook(partial(self._enter, index))
            child.register_forward_hook(partial(self._leave, index))
        for layer in model.modules():
            if next(layer.parameters(recurse=False), None) is not None:
                layer.register_forward_hook(self._leave_layer)
        model.register_forward_hook(self._end_forward)
        optimizer.register_step_pre_hook(self._begin_update)
        for pair in tensor_pairs(self.shape):
            path = f"{pair.block}.{pair.child}"
            for name in pair.columns:
                column = model.get_submodule(f"{path}.{name}")
                column.register_forward_pre_hook(self._enter_pair)
                column.register_forward_hook(lambda _m, _x, y: self._on_grad(y, self._leave_storages))
            row = model.get_submodule(f"{path}.{pair.row}")
            row.register_forward_pre_hook(lambda *_: self._set(storages=False, operators=True))
            row.register_forward_hook(self._leave_pair)

    def _enter(self, index: int, *_: Any) -> None:
        self._block = index
        if not self._is_backward:
            self.forward_begins.setdefault(index, self._clock)

    def _leave(self, index: int, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        self._on_grad(output, partial(self._enter_backward, index))

    def _enter_backward(self, index: int) -> None:
        self._block = index
        self._is_backward = True
        self.backward_begins.setdefault(index, self._clock)

    def _leave_layer(self, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self._note_output_gradient)

    def _note_output_gradient(self, gradient: torch.Tensor) -> None:
        row = self._rows.get(id(gradient.untyped_storage()))
        if row is not None:
            row.gives_weights = True

    def _end_forward(self, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        self._forward_ends = self._clock
        self._on_grad(output, lambda: setattr(self, "_is_backward", True))

    def _begin_update(self, *_: Any) -> None:
        self._is_backward, self._is_update = False, True
        self._backward_ends = self._clock

    def _set(self, *, storages: bool, operators: bool) -> None:
        self._divides_storages, self._divides_operators = storages, operators

    def _enter_pair(self, _module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        row = self._rows.get(id(inputs[0].untyped_storage()))
        if row is not None:
            row.enters_pair = True
        self._on_grad(inputs[0], lambda: self._set(storages=False, operators=False))
        self._set(storages=True, operators=True)

    def _leave_storages(self) -> None:
        self._divides_storages = False

    def _leave_pair(self, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        self._set(storages=False, operators=False)
        self._on_grad(output, lambda: self._set(storages=True, operators=True))

    @staticmethod
    def _on_grad(value: torch.Tensor, act: Callable[[], None]) -> None:
        if value.requires_grad:
            value.register_hook(lambda _gradient: act())


def _without_values(model: nn.Module) -> None:
    """Parameters and buffers on the device `meta` become the surrounding mode's tensors on CPUs."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for kept in (module._parameters, module._buffers):
            for name, value in kept.items():
                if value is not None and id(value) not in made:
                    empty = torch.empty(value.shape, dtype=value.dtype)
                    is_weight = isinstance(value, nn.Parameter)
                    made[id(value)] = nn.Parameter(empty, value.requires_grad) if is_weight else empty
                if value is not None:
                    kept[name] = made[id(value)]


def _batch(model: nn.Module, config: BenchConfig) -> Batch:
    inputs = example_input(model, config.input_shape, config.batch)
    with torch.no_grad():
        outputs = model(inputs)
    return Batch(inputs, torch.zeros(outputs.shape[:-1], dtype=torch.int64))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    if func._schema.name == _CPU_ATTENTION:
        query, key = args[0].shape, args[1].shape
        return 4.0 * float(query.numel()) * int(key[-2])
    if func._schema.name == f"{_CPU_ATTENTION}_backward":
        query, key = args[1].shape, args[2].shape
        return (
            10.0 * float(query.numel()) * int(key[-2])
        )  # five products of T x T, one of them computed again
    count = flop_registry.get(func._overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))
