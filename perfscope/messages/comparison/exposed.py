"""Exposed communication of two runs or settings by axis and by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.messages.collectives import UNATTRIBUTED
from perfscope.units import format_ns, with_sign
from perfscope.vocabulary.communication import Unattributed

ROOT_LAYER = "(the model itself)"
_LISTED = 3  # the largest changes


def signed(change_ns: float) -> str:
    return with_sign(format_ns(change_ns), change_ns)


def along(what: str, axis: str) -> str:
    return f"{what} along {axis}"


def no_layer(reason: Unattributed) -> str:
    return f"(no layer: {UNATTRIBUTED[reason]})"


def exposed_row(layer: str | None, reason: Unattributed | None, axis: str | None) -> str:
    """Exposed communication of a layer, or of none for `reason`; `axis`: where there are several."""
    name = no_layer(reason) if reason is not None else layer or ROOT_LAYER
    return along(name, axis) if axis is not None else name


def exposed_of(layer: str) -> str:
    return f"{layer}, exposed communication"


def of_axes(changes_ns: Mapping[str, int]) -> str:
    """What the axes' exposed communication changed by, the largest change first; "" where none did."""
    order = sorted((axis for axis in changes_ns if changes_ns[axis]), key=lambda axis: -abs(changes_ns[axis]))
    parts = [f"{axis} {signed(changes_ns[axis])}" for axis in order[:3]]
    return f"exposed communication by axis: {', '.join(parts)}" if parts else ""


def in_parentheses(changes_ns: Mapping[str, int]) -> str:
    """As `of_axes`, at the end of a clause."""
    axes = of_axes(changes_ns)
    return f" ({axes})" if axes else ""


def exposed_where(
    other: str, winner: str, axes_ns: Mapping[str, int], layers: Sequence[tuple[str, int]]
) -> str:
    """By how much the exposed communication of two settings' steps differs.

    Args:
        other, winner: titles; changes are those from the winner to the other.
        axes_ns: axis -> change.
        layers: (name, change), the largest first.
    """
    by_layer = ", ".join(f"{name} {signed(change)}" for name, change in layers[:_LISTED])
    axes = of_axes(axes_ns) if len(axes_ns) > 1 else ""
    what = f"{axes}; by layer most" if axes else "exposed communication by layer most"
    return f"{other} against {winner}, {what}: {by_layer}."
