"""Chakra execution traces (MLCommons): operators, collectives and their dependencies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.ingest.formats.format import Format
from perfscope.rundir import layout

if TYPE_CHECKING:
    from perfscope.ingest.files import WindowFile
    from perfscope.ingest.summary import IngestSummary

# Length of the first message, which begins with its field 1: the version of the schema.
_BEGINNING = re.compile(
    rb"[\x01-\x7f]\x0a[\x03-\x20]\d+\.\d+\.\d+|[\x80-\xff][\x00-\x7f]\x0a[\x03-\x20]\d+\.\d+\.\d+"
)


class Chakra(Format):
    """One protobuf file per rank."""

    name = "chakra"
    title = "Chakra execution traces (protobuf)"
    endings = (layout.CHAKRA, ".et")
    suffixes = (layout.CHAKRA,)

    def sniff(self, path: Path, head: bytes) -> bool:
        return bool(_BEGINNING.match(head)) or path.name.removesuffix(".gz").endswith(self.endings)

    def read(self, file: WindowFile) -> IngestSummary:
        from perfscope.ingest.formats.chakra_trace import ingest_chakra

        return ingest_chakra(file)
