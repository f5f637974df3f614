"""Icicles of a run: modules down to operators and kernels, and the Python stacks of its processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope import units
from perfscope.analysis.kernels.results import Kernels, PlaceTime
from perfscope.analysis.machine.results import StackNode
from perfscope.messages.kernels import short_name
from perfscope.reports.display import beginning, visible
from perfscope.reports.icicle import Icicle, Step, icicle_boxes
from perfscope.vocabulary.kernels import KernelType

LONGEST = 84
MODULE = "outline"  # color of what only holds others
_PARTS = {
    KernelType.COMMUNICATION: "exposed_comm",
    KernelType.COPY: "copy",
    KernelType.OPTIMIZER: "optimizer",
}
_LEGEND = (
    (MODULE, "Module"),
    ("forward", "Forward"),
    ("backward", "Backward"),
    ("optimizer", "Optimizer"),
    ("exposed_comm", "Communication"),
    ("copy", "Copy"),
    ("compute", "Other"),
)


def module_icicle(kernels: Kernels) -> tuple[Icicle, ...]:
    """Modules, their operators and, with a device, kernels by time; () without layers."""
    if not any(entry.layer for entry in kernels.by_place):
        return ()
    everything = "all kernels, copies and sets" if kernels.of_device else "all operators and communication"
    boxes = icicle_boxes(
        Step(everything, everything, MODULE),
        ((tuple(_steps(entry)), float(entry.total_ns)) for entry in kernels.by_place),
    )
    used = {box.part for box in boxes}
    below = "operators that launched, kernels" if kernels.of_device else "operators"
    return (
        Icicle(
            id="module-icicle",
            title=f"Modules and {'kernels' if kernels.of_device else 'operators'}",
            boxes=boxes,
            text=units.format_ns,
            legend=tuple((part, title) for part, title in _LEGEND if part in used),
            caption=f"From top to bottom: modules, {below}; a box is as wide as its time. Sum over "
            f"the traced windows and all ranks.{_OF_COMMUNICATION if 'exposed_comm' in used else ''}",
        ),
    )


_OF_COMMUNICATION = (
    " Communication is where it was called; “Communication by axis” divides it among the layers it serves."
)


def _steps(entry: PlaceTime) -> Iterator[Step]:
    names = visible(entry.layer).split(".") if entry.layer else ["(no layer)"]
    for depth, name in enumerate(names, 1):
        yield Step(name, ".".join(names[:depth]), MODULE)
    part = _PARTS.get(entry.type) if entry.type is not None else None
    part = part or entry.phase or "compute"
    if entry.operator:
        operator = visible(entry.operator, LONGEST)
        yield Step(operator, operator, part)
    name = "(others)" if entry.name is None else visible(beginning(short_name(entry.name), LONGEST))
    yield Step(name or "(no name)", name or "(no name)", part)


def stack_icicle(nodes: Sequence[StackNode]) -> tuple[Icicle, ...]:
    """Python stacks of all sampled processes; () where none were sampled."""
    if not nodes:
        return ()
    everything = "all samples"
    boxes = icicle_boxes(Step(everything, everything, MODULE), _own_shares(nodes))
    return (
        Icicle(
            id="stack-icicle",
            title="Python stacks",
            boxes=boxes,
            text=units.format_ratio,
            caption="From top to bottom: callers, then what they call; a box is as wide as its share of the "
            "samples of all ranks.",
        ),
    )


def _own_shares(nodes: Sequence[StackNode]) -> Iterator[tuple[tuple[Step, ...], float]]:
    """The path of each node with what its children leave of it."""
    path: list[Step] = []
    for index, node in enumerate(nodes):
        del path[node.depth :]
        path.append(_frame(node))
        rest_ratio = node.ratio
        for below in nodes[index + 1 :]:
            if below.depth <= node.depth:
                break
            rest_ratio -= below.ratio if below.depth == node.depth + 1 else 0.0
        yield tuple(path), max(rest_ratio, 0.0)


def _frame(node: StackNode) -> Step:
    name = visible(node.name, LONGEST)
    return Step(name, f"{name} ({visible(node.file, LONGEST)})" if node.file else name, "compute")
