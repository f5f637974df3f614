"""Names of layers, and the marks that put them into the framework's trace.

A layer is called by the path its owner would write: `features.3.conv`. What wrappers insert
(`module.` of DDP, `_fsdp_wrapped_module.`, `_orig_mod.`) is taken out. The outermost module is
called by its class. A module used in two places keeps its first name.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

_WRAPPER_PARTS = frozenset(
    ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "_forward_module")
)
_MODULE_WRAPPERS = frozenset(("DistributedDataParallel", "DataParallel", "DeepSpeedEngine"))


def field(module: Any, name: str) -> Dict[str, Any]:
    """A module's own dictionary `_modules` or `_parameters`, past any `__getattribute__` of the user's.

    Empty where there is none, and for scripted modules, whose parts live in C++.
    """
    table = object.__getattribute__(module, "__dict__").get(name)
    return table if isinstance(table, dict) else {}


NOT_TRAINED = " (not trained)"  # after the class of a model that no optimizer holds: a teacher


def parts(module: Any) -> Iterator[Any]:
    """`module` and every module inside it, each once."""
    seen, waiting = set(), [module]
    while waiting:
        module_ = waiting.pop()
        if module_ is not None and id(module_) not in seen:
            seen.add(id(module_))
            yield module_
            waiting.extend(field(module_, "_modules").values())


def unwrap(module: Any) -> Any:
    """The user's own module inside DDP, FSDP, torch.compile or checkpoint wrappers."""
    for _ in range(8):
        inside = field(module, "_modules")
        inner = next((inside[name] for name in _WRAPPER_PARTS if inside.get(name) is not None), None)
        if inner is None and type(module).__name__ in _MODULE_WRAPPERS:
            inner = inside.get("module")
        if inner is None:
            return module
        module = inner
    return module


def wraps(module: Any, name: str) -> bool:
    """Whether a module's attribute of this name is what it is a wrapper of."""
    return name in _WRAPPER_PARTS or (name == "module" and type(module).__name__ in _MODULE_WRAPPERS)


def class_name(module: Any) -> str:
    """Class of a module as its author knows it (FSDP2 renames `Net` to `FSDPNet`); a function's own name."""
    kind = module if type(module).__name__ == "function" else type(module)
    if (
        kind is not module
        and kind.__name__.startswith("FSDP")
        and len(kind.__mro__) > 2
        and kind.__mro__[1].__name__ == "FSDPModule"
    ):
        kind = kind.__mro__[2]
    name: str = kind.__name__
    return name


def qualified_names(root: Any) -> List[Tuple[str, Any]]:
    """(user-level name, module) for every module under `root`, wrappers left out, first name wins."""
    inner = unwrap(root)
    named: List[Tuple[str, Any]] = []
    seen = set()

    def visit(module: Any, path: str) -> None:
        module_inner = unwrap(module)
        if id(module_inner) in seen:
            return
        seen.add(id(module_inner))
        named.append((path or class_name(module_inner), module_inner))
        for name, child in field(module_inner, "_modules").items():
            if child is not None:
                visit(child, path + "." + name if path else name)

    visit(inner, "")
    return named


def _whole_shape(parameter: Any) -> List[int]:
    """Of a parameter over all ranks: DeepSpeed (ZeRO 3) leaves an empty tensor between the uses of one."""
    divided = object.__getattribute__(parameter, "__dict__").get("ds_shape")
    return list(map(int, parameter.shape if divided is None else divided))


def describe(names: List[Tuple[str, Any]]) -> List[Dict[str, Any]]:
    """Rows of layers.json: each layer's own parameters (shared ones counted where first seen)."""
    rows, seen = [], set()
    for name, module in names:
        shapes, count, size = [], 0, 0
        for parameter in field(module, "_parameters").values():
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            shape = _whole_shape(parameter)
            num = math.prod(shape)
            shapes.append(shape)
            count += num
            size += num * parameter.element_size()
        rows.append(
            {
                "layer": name,
                "type": class_name(module),
                "params": count,
                "param_bytes": size,
                "param_shapes": shapes,
            }
        )
    return rows


class LayerMarks:
    """Marks each forward call with its layer while a window is open.

    Args:
        new_mark: name -> context manager that puts a span into the trace.
        prefix: put before every layer name.
    """

    def __init__(self, new_mark: Callable[[str], Any], prefix: str) -> None:
        self._new_mark = new_mark
        self._prefix = prefix
        # By id, with a weak reference to tell a reused id: naming a model must not keep it alive.
        self._names: Dict[int, Tuple[Any, str]] = {}
        self._thread = threading.local()

    def give(self, module: Callable[[], Any], name: str) -> None:
        """The module that this weak reference is of is called so from now on."""
        module_ = module()
        if module_ is not None:
            self._names[id(module_)] = (module, name)

    def _name_tree(self, root: Any, outer: str) -> None:
        """Name what belongs to no model (a loss, a teacher), after its class."""
        for i, (name, module) in enumerate(qualified_names(root)):
            if self.name_of(module) is None:
                self.give(weakref.ref(module), outer + "." + name if i else outer)

    def name_of(self, module: Any) -> Optional[str]:
        """The layer that a module is called; None if it has no name."""
        entry = self._names.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def _stack(self) -> List[Tuple[int, Any]]:
        stack: Optional[List[Tuple[int, Any]]] = getattr(self._thread, "stack", None)
        if stack is None:
            stack = self._thread.stack = []
        return stack

    @property
    def idle(self) -> bool:
        """True when no layer of this thread is under way."""
        return not self._stack()

    def enter(self, module: Any) -> None:
        """A forward call begins."""
        name = self.name_of(module)
        if name is None:
            if unwrap(module) is not module:
                return  # a wrapper: its inner module carries the name
            has_parameters = any(field(part, "_parameters") for part in parts(module))
            self._name_tree(module, class_name(module) + (NOT_TRAINED if has_parameters else ""))
            name = self.name_of(module)
        mark = self._new_mark(self._prefix + str(name))
        mark.__enter__()
        self._stack().append((id(module), mark))

    def leave(self, module: Any) -> None:
        """A forward call ended, perhaps by an exception that skipped inner ends (as checkpointing does)."""
        stack = self._stack()
        wanted = id(module)
        if not any(entry == wanted for entry, _ in stack):
            return
        while stack:
            entry, mark = stack.pop()
            mark.__exit__(None, None, None)
            if entry == wanted:
                return

    def close(self) -> None:
        """Close every open mark of this thread."""
        stack = self._stack()
        while stack:
            stack.pop()[1].__exit__(None, None, None)


_TENSOR_PARALLEL = ("torch.distributed.tensor", "torch.distributed._tensor")


class TailHooks:
    """Forward hooks after those of tensor parallelism, which communicate after the global hooks have run.

    Once in a window for each module that has such hooks; no other module is touched.

    Args:
        leave: called with the module.
    """

    def __init__(self, leave: Callable[[Any], None]) -> None:
        # A plain function: copy.deepcopy leaves it alone, and in a copied module it does nothing.
        self._hook = lambda module, args, output: leave(module)
        self._handles: Dict[int, Any] = {}
        self._modules: List[Any] = []  # keeps the ids in use

    def add(self, module: Any) -> None:
        """Before the first forward call of `module` in a window."""
        hooks = field(module, "_forward_hooks")
        if not hooks or id(module) in self._handles:
            return
        if any(str(getattr(hook, "__module__", "")).startswith(_TENSOR_PARALLEL) for hook in hooks.values()):
            self._handles[id(module)] = module.register_forward_hook(self._hook, always_call=True)
            self._modules.append(module)

    def has(self, module: Any) -> bool:
        """Whether `leave` is still to come for a forward call whose global hooks run."""
        return id(module) in self._handles

    def remove(self) -> None:
        """At the end of a window."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._modules.clear()


class LayerHooks:
    """Hooks around the forward call of every module, while a window is open.

    Args:
        before, after: torch's global hooks.
        left: called with a module whose own hooks communicate, once these have run.
    """

    def __init__(
        self, before: Callable[..., None], after: Callable[..., None], left: Callable[[Any], None]
    ) -> None:
        self._before, self._after = before, after
        self._tails = TailHooks(left)
        self._handles: List[Any] = []

    @property
    def active(self) -> bool:
        return bool(self._handles)

    def add(self, hooks: Any) -> None:
        """Puts the global hooks in; `hooks`: torch.nn.modules.module."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after, always_call=True),
        ]

    def called(self, module: Any) -> None:
        """A forward call of the module begins."""
        self._tails.add(module)

    def done(self, module: Any, leave: Callable[[Any], None]) -> None:
        """After a forward call: the layer ends here, unless hooks of the module still communicate."""
        if not self._tails.has(module):
            leave(module)

    def remove(self) -> None:
        """Takes all of them out."""
        self._tails.remove()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
