"""Nsight Systems: `nsys export --type sqlite`. A database may hold several processes; each becomes a rank.

A run gets one small database per rank (nsys_copy.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.errors import TraceError
from perfscope.ingest.formats.format import GZIP_MAGIC, Format, TraceRank
from perfscope.rundir import layout

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.summary import IngestSummary

_MAGIC = b"SQLite format 3\0"
_REPORTS = (".nsys-rep", ".qdrep")  # nsys's own files


class Nsys(Format):
    """One SQLite database per `nsys profile`."""

    name = "nsys"
    title = "Nsight Systems (nsys export --type sqlite)"
    endings = (layout.NSYS, ".sqlite")
    suffixes = (layout.NSYS,)
    compressible = False

    def sniff(self, path: Path, head: bytes) -> bool:
        if path.name.endswith(_REPORTS):
            raise TraceError(
                f"a report of Nsight Systems: export it first (nsys export --type sqlite {path})"
            )
        if not head.startswith(_MAGIC):
            return False
        with path.open("rb") as file:
            if file.read(2) == GZIP_MAGIC:
                raise TraceError("a compressed database: unpack it first (gunzip)")
        return True

    def ranks(self, path: Path) -> list[TraceRank]:
        from perfscope.ingest.formats import nsys_copy
        from perfscope.ingest.formats import nsys_schema as schema

        with schema.opened(path) as connection:
            processes = nsys_copy.processes(connection)
            if not processes:
                raise TraceError(
                    f"{path}: holds no CUDA or NVTX events; record them with nsys profile --trace=cuda,nvtx"
                )
            mpi = nsys_copy.mpi_ranks(connection)
        if len(processes) == 1 and processes[0] not in mpi:
            by_name = self.rank_by_name(path)
            return [TraceRank(rank=by_name.rank, source=by_name.source, process=processes[0])]
        return [
            TraceRank(rank=mpi[process], source=schema.MPI, process=process)
            if process in mpi
            else TraceRank(process=process)
            for process in processes
        ]

    def store(self, path: Path, rank: TraceRank, folder: Path, window: int, *, for_now: bool = False) -> Path:
        from perfscope.ingest.formats.nsys_copy import copy_process

        target = folder / f"{window}{self.suffixes[0]}"
        copy_process(path, rank.process, target)
        return target

    def read(self, file: WindowFile) -> IngestSummary:
        from perfscope.ingest.formats import nsys_schema as schema
        from perfscope.ingest.formats.nsys_events import NsysEvents
        from perfscope.ingest.window import ingest_events

        with schema.opened(file.source) as connection:
            return ingest_events(file, NsysEvents(connection))
