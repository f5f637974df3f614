"""darshan.json: what the processes of a run read from and wrote to files, by Darshan's logs of them."""

from __future__ import annotations

from perfscope.rundir.typed import Count, Nanoseconds, PartialRow, WholeLists


class FileSums(PartialRow, frozen=True):
    """Sums over calls of one module.

    Attributes:
        rank: of the run; None: files that ranks share, which Darshan sums over them.
        worker: of the rank's data loader; None: the rank itself.
        module: POSIX, STDIO, or MPI-IO, whose calls are counted once more beneath it.
        num_files: that were opened; num_reads, num_writes: calls.
        read_ns, write_ns, meta_ns: time in reads, in writes, and in opening, closing, seeking and stat.
    """

    rank: Count | None = None
    worker: Count | None = None
    module: str = ""
    num_files: Count = 0
    num_reads: Count = 0
    num_writes: Count = 0
    read_bytes: Count = 0
    written_bytes: Count = 0
    read_ns: Nanoseconds = 0
    write_ns: Nanoseconds = 0
    meta_ns: Nanoseconds = 0

    @property
    def is_beneath_too(self) -> bool:
        """Whether its calls are counted once more in the module beneath it."""
        return self.module == "MPI-IO"


class SlowFile(PartialRow, frozen=True):
    """A file with much time in its calls, of POSIX and STDIO; as in FileSums."""

    name: str = ""
    rank: Count | None = None
    worker: Count | None = None
    read_bytes: Count = 0
    written_bytes: Count = 0
    read_ns: Nanoseconds = 0
    write_ns: Nanoseconds = 0
    meta_ns: Nanoseconds = 0


class DarshanRecord(WholeLists, frozen=True):
    """The document.

    `logs`: names of the files that were imported. `slowest`: most time first.
    """

    logs: tuple[str, ...] = ()
    rows: tuple[FileSums, ...] = ()
    slowest: tuple[SlowFile, ...] = ()
