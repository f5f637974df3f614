"""Records of NCCL Inspector, a profiler plugin of NCCL: every collective of a process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.errors import TraceError
from perfscope.ingest.formats.format import Format, TraceRank
from perfscope.rundir import layout

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.summary import IngestSummary

_NAMED = re.compile(r"-pid\d+\.log(?:\.gz)?$")  # the plugin's own names: HOST-pidN.log


class Inspector(Format):
    """One file per process, one JSON object per line."""

    name = "inspector"
    title = "NCCL Inspector (JSON)"
    endings = (layout.INSPECTOR, ".jsonl")
    suffixes = (layout.INSPECTOR,)

    def takes_name(self, name: str) -> bool:
        return bool(_NAMED.search(name)) or super().takes_name(name)

    def sniff(self, path: Path, head: bytes) -> bool:
        return b'"header"' in head and (b'"coll_perf"' in head or b'"p2p_perf"' in head)

    def ranks(self, path: Path) -> list[TraceRank]:
        """By the largest communicator, which is that of all ranks in most jobs."""
        from perfscope.ingest.formats.inspector_records import largest_communicator

        communicator = largest_communicator(path)
        if communicator is None:
            raise TraceError(f"{path}: holds no record of NCCL Inspector that can be read")
        several = len(communicator.ranks) > 1
        source = f"communicator {communicator.name}"
        return [TraceRank(rank, source, process=rank if several else None) for rank in communicator.ranks]

    def store(self, path: Path, rank: TraceRank, folder: Path, window: int, *, for_now: bool = False) -> Path:
        if rank.process is None:
            return super().store(path, rank, folder, window, for_now=for_now)
        from perfscope.ingest.formats.inspector_records import copy_rank

        target = folder / f"{window}{layout.INSPECTOR}"
        copy_rank(path, rank.process, target)
        return target

    def read(self, file: WindowFile) -> IngestSummary:
        from perfscope.ingest.formats.inspector_calls import ingest_records

        return ingest_records(file)
