"""Parameters cut over ranks by torch's fully_shard: how a model is cut, and what is sent for it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from torch import nn

from perfscope.runners.traffic import Traffic

Shape = tuple[int, ...]


def padded_elements(shape: Shape, parts: int) -> int:
    """Elements of a parameter whose dim 0 FSDP has padded to a multiple of the number of shards."""
    return -(-shape[0] // parts) * parts * prod(shape[1:])


def shard_elements(shape: Shape, parts: int, index: int) -> int:
    """Elements of the `index`-th shard without its padding; the last shards may be smaller, or empty."""
    rows = -(-shape[0] // parts)
    return max(0, min(rows, shape[0] - index * rows)) * prod(shape[1:])


def shard_blocks(model: nn.Sequential, mesh: Any, root: str | None, *, keep: bool = False) -> Any:
    """Cuts a model in place: every child with parameters is gathered and dropped by itself.

    Args:
        model: top-level children are the units.
        mesh: torch's, of one dim (shards) or two (replicas, shards).
        root: child whose weights stay from the forward to the backward pass; None: none.
        keep: whether all of them stay until their gradients are reduced, as pipelines need.

    Returns:
        The model, as torch's FSDPModule.
    """
    from torch.distributed.fsdp import fully_shard

    # A linear layer on sequences returns a view; nothing here changes one in place.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(\w+\) returned a view tensor")
    settings: dict[str, Any] = {"mesh": mesh, **({"reshard_after_forward": False} if keep else {})}
    for name, child in model.named_children():
        if name != root and next(child.parameters(), None) is not None:
            fully_shard(child, **settings)
    return fully_shard(model, **settings)


@contextmanager
def kept_whole(model: Any) -> Iterator[None]:
    """Passes of an FSDPModule whose gradients are not reduced yet, and that leave its weights gathered."""
    for setting in (model.set_requires_gradient_sync, model.set_reshard_after_backward):
        setting(False)
    try:
        yield
    finally:
        for setting in (model.set_requires_gradient_sync, model.set_reshard_after_backward):
            setting(True)


def shard_calls(
    params: Iterable[tuple[str, Shape]],
    element_size: int,
    shards: tuple[str, tuple[int, ...]],
    replicas: tuple[str, tuple[int, ...]],
    kept: Collection[str | None] = (),
) -> list[Traffic]:
    """What fully_shard sends in a step.

    Args:
        params: names, which begin with their block's, and shapes before they are cut.
        element_size: bytes.
        shards, replicas: (axis, global ranks); of one rank: nothing is sent.
        kept: blocks that are gathered once per step; the others again for the backward pass.
    """
    (axis, members), (outer, copies) = shards, replicas
    sizes: Counter[str] = Counter()
    for name, shape in params:
        sizes[name.split(".")[0]] += element_size * padded_elements(shape, len(members))
    calls = []
    for block, size in sizes.items():
        if len(members) > 1:
            gathers = 1 if block in kept else 2
            calls += [
                _call("all_gather", axis, members, size, f"weights of {block}", gathers),
                _call("reduce_scatter", axis, members, size, f"gradients of {block}", 1),
            ]
        if len(copies) > 1:
            part = size // len(members)
            calls.append(_call("all_reduce", outer, copies, part, f"gradients of {block}", 1))
    return calls


def _call(collective: str, axis: str, members: tuple[int, ...], size: int, what: str, count: int) -> Traffic:
    return Traffic(
        collective=collective, axis=axis, members=members, bytes=size, count=count, what=what, by_library=True
    )
