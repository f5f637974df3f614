"""What a trace format is to `perfscope import` and `perfscope report`, and what most formats share.

Modules that define a format load neither numpy nor pyarrow: `perfscope import --help` lists them. Readers are
imported when a trace is read.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.summary import IngestSummary


GZIP_MAGIC = b"\x1f\x8b"
_NAMED_RANK = re.compile(r"(?:rank|worker)[-_.= ]?(\d{1,7})", re.IGNORECASE)
# `trace_3`; not the pid and the time of `host_2552.1790857026000`.
_BARE_RANK = re.compile(r"(?:^|[^0-9])(\d{1,3})$")


class TraceRank(NamedTuple):
    """One process of a trace file: a rank of the run.

    Attributes:
        rank: None means that the file does not say: the order of the files decides.
        source: where the rank comes from, e.g. "distributedInfo" or "file name".
        process: id of the process, where a file may hold several.
        writer: what wrote the file, where it writes a file for each window; "": it writes one.
    """

    rank: int | None = None
    source: str = "order"
    process: int | None = None
    writer: str = ""


class Format(Protocol):
    """One format of trace files. Subclass it, override what differs, and list the class in `registry`.

    Attributes:
        name: in JSON documents and messages.
        title: one line for `perfscope import --help`.
        endings: of file names that a directory given to `perfscope import` is searched for, longest first.
        suffixes: how a window's file is called in a run directory, after its number; in layout.TRACE_FORMATS.
        compressible: whether files may be gzipped, and their names end in .gz.
    """

    name: str
    title: str
    endings: tuple[str, ...]
    suffixes: tuple[str, ...]
    compressible: bool = True

    def takes_name(self, name: str) -> bool:
        """Whether a file of a directory is taken for one of this format. Default: by its ending."""
        return name.endswith(self.endings) or (
            self.compressible and name.removesuffix(".gz").endswith(self.endings)
        )

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether this is a file of this format.

        Args:
            head: its first bytes, unpacked where the file is gzipped.

        Raises:
            TraceError: the file is of this format's tool, but cannot be read; the message says what to do.
        """
        ...

    def ranks(self, path: Path) -> list[TraceRank]:
        """The ranks whose traces the file holds, in order. Default: one, by the file's name.

        Raises:
            TraceError: the file cannot be read.
        """
        return [self.rank_by_name(path)]

    def store(self, path: Path, rank: TraceRank, folder: Path, window: int, *, for_now: bool = False) -> Path:
        """Put the trace of one rank into its `folder` of windows under the window's number; return where.

        Args:
            for_now: the folder is removed once it has been read: a file stored whole may be a link.

        Raises:
            OSError: it cannot be written.
            TraceError: the file cannot be read.
        """
        with path.open("rb") as file:
            packed = ".gz" if file.read(2) == GZIP_MAGIC else ""
        target = folder / f"{window}{self.suffix_of(path)}{packed}"
        if for_now:
            with suppress(OSError):  # on another file system, or of another user
                target.hardlink_to(path.resolve())
                return target
        shutil.copyfile(path, target)
        return target

    def read(self, file: WindowFile) -> IngestSummary:
        """Write the timeline of a window (`file.table`) and return its summary.

        Raises:
            TraceError: the trace cannot be used at all.
            OSError: the timeline cannot be written.
        """
        ...

    def framework_of(self, stored: Path) -> str | None:
        """The framework that wrote the trace, by the name of the stored file; None where any may have."""
        return None

    def suffix_of(self, path: Path) -> str:
        """Which of `suffixes` a file gets in a run directory.

        Raises:
            TraceError: the file cannot be read.
        """
        return next(
            (suffix_ for suffix_ in self.suffixes if path.name.removesuffix(".gz").endswith(suffix_)),
            self.suffixes[0],
        )

    def rank_by_name(self, path: Path) -> TraceRank:
        """The rank in a file's name: `rank3`, `worker3`, or a short number before the ending."""
        name = path.name.removesuffix(".gz")
        ending = next((ending_ for ending_ in self.endings if name.endswith(ending_)), "")
        named = _NAMED_RANK.search(name) or _BARE_RANK.search(name.removesuffix(ending))
        return TraceRank(rank=int(named[1]), source="file name") if named else TraceRank()
