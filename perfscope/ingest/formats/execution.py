"""Execution traces of PyTorch (ExecutionTraceObserver): operators, their tensors and process groups."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.ingest.formats.format import Format
from perfscope.rundir import layout

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.summary import IngestSummary

_BEGINNING = re.compile(rb'\s*\{\s*"schema"\s*:\s*"')


class Execution(Format):
    """One JSON file per rank: alone, or beside the Kineto trace of the same steps (ingest/companions.py)."""

    name = "execution"
    title = "execution traces of PyTorch, best with the Kineto trace of the same steps"
    endings = (layout.EXECUTION, ".json")
    suffixes = (layout.EXECUTION,)

    def sniff(self, path: Path, head: bytes) -> bool:
        return bool(_BEGINNING.match(head)) and b'"traceEvents"' not in head

    def read(self, file: WindowFile) -> IngestSummary:
        from perfscope.ingest.formats.execution_join import ingest_alone

        return ingest_alone(file)
