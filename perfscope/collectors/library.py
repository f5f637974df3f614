"""Vendors' libraries as a Context gives them: those of this machine, or none for a captured tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LibraryAbsent(Exception):
    """A library cannot be used here.

    Attributes:
        reason: what was found, one line.
        remedy: what to do; "" = nothing.
        is_expected: nothing is wrong: the machine has no such hardware, or is a captured tree.
    """

    def __init__(self, reason: str, remedy: str = "", *, is_expected: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.is_expected = is_expected


# Called with a vendor's loader, which gives the module or raises LibraryAbsent. Any: bindings have no types.
Libraries = Callable[[Callable[[], Any]], Any]


def no_library(load: Callable[[], Any]) -> Any:
    """For captured trees: a library cannot be captured as files."""
    raise LibraryAbsent("a captured tree holds no driver library", is_expected=True)


def this_machines(load: Callable[[], Any]) -> Any:
    """What the vendor's own loader finds here. Raises LibraryAbsent."""
    return load()
