"""JAX's names of operators, `jit(step)/transpose(jvp(Net))/Conv_0/dot_general`: which layer, which phase.

The last part is the primitive. What stands before it is either the user's (named_scope, a module of Flax,
Haiku or Equinox) or JAX's: `jit(f)` and its like name functions, `jvp(x)` and `transpose(x)` say what was
done to the scope x, `while/body`, `cond/branch_0_fun` and the like are control flow.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_WRAPPED = re.compile(r"^([A-Za-z_][\w.-]*)\((.*)\)$")
_FUNCTIONS = frozenset(("jit", "pjit", "xla_call", "pmap", "xla_pmap", "named_call", "remat_call", "xmap"))
_OURS = frozenset(
    (
        *("while", "body", "cond", "scan", "branch", "main", "pvary", "shard_map", "pmap", "jit", "pjit"),
        *("closed_call", "core_call", "core_closed_call", "xla_call", "checkpoint", "remat", "remat2"),
        *("rematted_computation", "custom_jvp_call", "custom_vjp_call", "custom_jvp_call_jaxpr"),
        *("custom_vjp_call_jaxpr", "custom_lin", "custom_partitioning"),
    )
)
_BRANCH = re.compile(r"^(branch|cond|while)_\d+(_fun)?$|^branch_\d+$")
_OPTIMIZERS = re.compile(
    r"^(optimi[sz]er|optax|adam\w*|sgd\w*|lamb|lion|adafactor|rmsprop|adagrad|momentum"
    r"|apply_(gradients|updates)|update_(params|state|weights)|weight_update)(_\d+)?$",
    re.IGNORECASE,
)


class OperatorName(NamedTuple):
    """Where an operator belongs. `layer`: scopes joined by "/", None outside every scope."""

    layer: str | None
    phase: str
    primitive: str


@lru_cache(maxsize=65536)
def place_of(op_name: str) -> OperatorName:
    """Layer and phase that an op_name tells.

    Backward is what `transpose` was applied to, forward what `jvp` alone was; the optimizer is known by the
    scope or function that encloses it. What no gradient is taken through is "other".
    """
    parts = _split(op_name.partition(";")[0])  # of several that XLA merged the first
    if not parts:
        return OperatorName(None, "other", "")
    scopes: list[str] = []
    phase = "other"
    functions: list[str] = []
    for part in parts[:-1]:
        wrappers, inner = _unwrapped(part)
        if "transpose" in wrappers:
            phase = "backward"
        elif "jvp" in wrappers and phase == "other":
            phase = "forward"
        if _FUNCTIONS.intersection(wrappers):
            functions.append(inner)
        elif inner and inner not in _OURS and not _BRANCH.match(inner):
            scopes.append(inner)
    if phase == "other" and any(map(_OPTIMIZERS.match, (*scopes, *functions))):
        phase = "optimizer"
    return OperatorName("/".join(scopes) or None, phase, _unwrapped(parts[-1])[1])


def _split(name: str) -> list[str]:
    """Parts between the slashes that stand outside parentheses."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(name):
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        elif letter == "/" and depth <= 0:
            parts.append(name[start:at])
            start = at + 1
    parts.append(name[start:])
    return [part for part in parts if part]


def _unwrapped(part: str) -> tuple[set[str], str]:
    """`transpose(jvp(head))` as ({"transpose", "jvp"}, "head")."""
    wrappers = set()
    while (match := _WRAPPED.match(part)) is not None:
        wrappers.add(match[1])
        part = match[2]
    return wrappers, part
