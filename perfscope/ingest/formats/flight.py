"""Dumps of PyTorch's flight recorder: which collectives each rank called last, in each process group."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.ingest.formats.format import Format
from perfscope.rundir import layout

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.summary import IngestSummary

_KEYS = (b"collective_seq_id", b"pg_status", b"nccl_comm_state")
_PROTOCOL = 0x80  # first byte of Python's object stream
# PyTorch's own names end with the rank alone: nccl_trace_rank_3, comm_lib_trace_rank_3.
_NAMED = re.compile(r"(?:^|[-_.])(?:trace|rank|dump|fr|flight)[-_.a-z]*\d+$", re.IGNORECASE)


class FlightRecorder(Format):
    """One file per rank, as PyTorch writes it (Python's object stream) or as JSON."""

    name = "flight"
    title = "PyTorch's flight recorder (dumps of NCCL and Gloo)"
    endings = (*layout.FLIGHTS, ".pickle", ".pkl")
    suffixes = layout.FLIGHTS
    compressible = False

    def takes_name(self, name: str) -> bool:
        return bool(_NAMED.search(name)) or super().takes_name(name)

    def sniff(self, path: Path, head: bytes) -> bool:
        is_stream = head[:1] == bytes([_PROTOCOL])
        if is_stream or head.lstrip()[:1] == b"{":
            # The members of many groups may fill all of `head`; Kineto's JSON has that key, too.
            keys = (*_KEYS, b"pg_config") if is_stream else _KEYS
            return any(key in head for key in keys) and b'"traceEvents"' not in head
        return False

    def suffix_of(self, path: Path) -> str:
        with path.open("rb") as file:
            is_stream = file.read(1) == bytes([_PROTOCOL])
        return layout.FLIGHTS[0 if is_stream else 1]

    def read(self, file: WindowFile) -> IngestSummary:
        from perfscope.ingest.formats.flight_dump import ingest_dump

        return ingest_dump(file)
