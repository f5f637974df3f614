"""The formats that are read into memory as a whole: XPlane, MXNet's profiler, and calls timed by a probe."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.ingest.formats.format import Format
from perfscope.ingest.inflate import read_whole
from perfscope.rundir import layout
from perfscope.vocabulary.frameworks import FrameworkName

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.formats.trace import FrameworkTrace
    from perfscope.ingest.summary import IngestSummary

# Suffix of a window's file -> module of this package and its function.
_READERS = {
    layout.CALLS: ("calls", "read_calls"),
    layout.TENSORFLOW: ("tensorflow", "read_tensorflow"),
    layout.JAX: ("jax", "read_jax"),
    layout.MXNET: ("mxnet", "read_mxnet"),
}
_FRAMEWORK_OF = {
    layout.TENSORFLOW: FrameworkName.TENSORFLOW,
    layout.JAX: FrameworkName.JAX,
    layout.MXNET: FrameworkName.MXNET,
}
_TENSORFLOW_SIGNS = (b"ExecutorState", b"EagerExecute")  # of its runtime; JAX has none


def reader_of(suffix: str) -> Callable[[Path], FrameworkTrace]:
    """The function that reads files that end so; it raises TraceError for what cannot be used at all.

    Raises:
        KeyError: there is none.
    """
    module, function = _READERS[suffix]
    reader: Callable[[Path], FrameworkTrace] = getattr(
        import_module(f"perfscope.ingest.formats.{module}"), function
    )
    return reader


class _InMemory(Format):
    def framework_of(self, stored: Path) -> str | None:
        suffix = "." + stored.name.removesuffix(".gz").partition(".")[2]
        framework = _FRAMEWORK_OF.get(suffix)
        return framework.value if framework else None

    def read(self, file: WindowFile) -> IngestSummary:
        from perfscope.ingest.framework_window import ingest_framework_trace

        return ingest_framework_trace(file, reader_of(file.suffix)(file.source))


class Xplane(_InMemory):
    """Profiles of JAX and TensorFlow: `plugins/profile/<time>/<host>.xplane.pb`."""

    name = "xplane"
    title = "JAX and TensorFlow (XPlane)"
    endings = (layout.TENSORFLOW, layout.JAX, ".xplane.pb")
    suffixes = (layout.TENSORFLOW, layout.JAX)

    def sniff(self, path: Path, head: bytes) -> bool:
        return path.name.removesuffix(".gz").endswith(".xplane.pb")

    def suffix_of(self, path: Path) -> str:
        name = path.name.removesuffix(".gz")
        data = b"" if name.endswith(self.suffixes) else read_whole(path)
        if any(sign in data for sign in _TENSORFLOW_SIGNS):
            return self.suffixes[0]
        return super().suffix_of(path) if name.endswith(self.suffixes) else self.suffixes[1]


class Mxnet(_InMemory):
    """`profile.json` of MXNet's profiler: Chrome's JSON whose processes are devices."""

    name = "mxnet"
    title = "MXNet's profiler"
    endings = (layout.MXNET,)
    suffixes = (layout.MXNET,)
    # Processes are devices; or the list begins with a comma, as in the later files of one process.
    _SIGN = re.compile(rb'"args"\s*:\s*\{\s*"name"\s*:\s*"[cg]pu/\d|"traceEvents"\s*:\s*\[\s*,')

    def sniff(self, path: Path, head: bytes) -> bool:
        named = path.name.removesuffix(".gz").endswith(self.endings)
        return head.lstrip()[:1] == b"{" and (named or bool(self._SIGN.search(head)))


class ProbeCalls(_InMemory):
    """Calls that a probe of perfscope timed itself."""

    name = "calls"
    title = "calls recorded by perfscope"
    endings = (layout.CALLS,)
    suffixes = (layout.CALLS,)

    def sniff(self, path: Path, head: bytes) -> bool:
        return path.name.removesuffix(".gz").endswith(self.endings) and head.lstrip()[:1] == b"{"
