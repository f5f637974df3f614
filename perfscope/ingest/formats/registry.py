"""Which reader takes which file of a window. Readers are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.rundir import layout

if TYPE_CHECKING:
    from perfscope.ingest.formats.trace import FrameworkTrace

# How the file's name ends (without .gz) -> module of this room and its function: path -> FrameworkTrace; it
# raises TraceError for what cannot be used at all.
_READERS = {
    layout.CALLS: ("calls", "read_calls"),
    ".tensorflow.xplane.pb": ("tensorflow", "read_tensorflow"),
    ".jax.xplane.pb": ("jax", "read_jax"),
    ".mxnet.json": ("mxnet", "read_mxnet"),
}


def reader_of(suffix: str) -> Callable[[Path], FrameworkTrace]:
    """The reader of files that end so.

    Raises:
        KeyError: there is none (Kineto's traces are read by ingest.window).
    """
    module, function = _READERS[suffix]
    reader: Callable[[Path], FrameworkTrace] = getattr(
        import_module(f"perfscope.ingest.formats.{module}"), function
    )
    return reader
