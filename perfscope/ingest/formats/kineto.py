"""Kineto, the format of torch.profiler, and other traces in Chrome's JSON: streamed with bounded memory."""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.ingest.formats.format import GZIP_MAGIC, Format, TraceRank
from perfscope.ingest.inflate import most_bytes
from perfscope.rundir import layout

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.formats.kineto_reader import EventReader
    from perfscope.ingest.summary import IngestSummary

_PEEK_BYTES = 1 << 20
_OVERLAP_BYTES = 4096  # distributedInfo may straddle two pieces
# As tensorboard_trace_handler names them: the host and the process, or a name that the training gives.
_OF_HANDLER = re.compile(r"(.+)\.\d{13,}\.pt\.trace\.json")
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,7})\b')


class Kineto(Format):
    """One JSON file per rank and window, plain or gzipped."""

    name = "kineto"
    title = "torch.profiler (Kineto) and Chrome JSON"
    endings = (".pt.trace.json", ".trace.json", ".pt.json", ".json")
    suffixes = (layout.KINETO,)

    def sniff(self, path: Path, head: bytes) -> bool:
        # Nothing but blanks, or gzip data that cannot be unpacked: the reader says what is wrong with it.
        return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[", b"")

    def ranks(self, path: Path) -> list[TraceRank]:
        rank = _recorded_rank(path)
        trace_rank = (
            self.rank_by_name(path) if rank is None else TraceRank(rank=rank, source="distributedInfo")
        )
        handled = _OF_HANDLER.match(path.name)
        return [
            trace_rank if handled is None else trace_rank._replace(writer=os.fspath(path.parent / handled[1]))
        ]

    def read(self, file: WindowFile) -> IngestSummary:
        from perfscope.ingest.formats.kineto_reader import EventReader
        from perfscope.ingest.formats.kineto_source import TraceSource
        from perfscope.ingest.window import ingest_events

        with TraceSource(file.source) as source:
            if file.execution is None:
                return ingest_events(file, EventReader(source))
            return _with_execution(file, EventReader(source))


def _with_execution(file: WindowFile, reader: EventReader) -> IngestSummary:
    """With what the execution trace beside it knows; without, where that cannot be read."""
    from msgspec.structs import replace

    from perfscope.errors import TraceError
    from perfscope.ingest.formats.execution_join import ExecutionBeside
    from perfscope.ingest.formats.execution_nodes import ExecutionFile
    from perfscope.ingest.window import ingest_events

    assert file.execution is not None
    try:
        beside = ExecutionBeside(reader, ExecutionFile(file.execution))
    except TraceError as error:
        summary = ingest_events(file, reader)
        reason = str(error).removeprefix(f"{file.execution}: ")
        return replace(summary, notes=(*summary.notes, f"its execution trace: {reason}"))
    return beside.joined(ingest_events(file, beside))


def _recorded_rank(path: Path) -> int | None:
    """`distributedInfo.rank`: before the events as a rule, else behind them."""
    with path.open("rb") as file:
        head = file.read(_PEEK_BYTES)
        if not head.startswith(GZIP_MAGIC):
            file.seek(max(0, path.stat().st_size - _PEEK_BYTES))
            return _rank_in(head) if _rank_in(head) is not None else _rank_in(file.read())
        inflater = zlib.decompressobj(31)
        most = most_bytes(path.stat().st_size) // _PEEK_BYTES  # pieces
        with suppress(zlib.error):
            text = inflater.decompress(head, _PEEK_BYTES)
            rank = _rank_in(text)
            while rank is None and not inflater.eof and (most := most - 1) >= 0:
                more = inflater.decompress(inflater.unconsumed_tail or file.read(_PEEK_BYTES), _PEEK_BYTES)
                if not more:
                    break
                text = text[-_OVERLAP_BYTES:] + more
                rank = _rank_in(text)
            return rank
    return None


def _rank_in(text: bytes) -> int | None:
    match = _RANK.search(text)
    return int(match[1]) if match else None
