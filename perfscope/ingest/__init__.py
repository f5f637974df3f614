"""Traces of any format into the tables of a run. Formats: `formats/registry.py`.

Importing this package loads neither numpy nor pyarrow; its functions do.
"""

from __future__ import annotations

from perfscope.ingest.importing import ImportedTrace, ImportResult, RunFacts, import_traces
from perfscope.ingest.run import ingest_run, lean_process
from perfscope.ingest.summary import INGEST_VERSION, IngestSummary

__all__ = [
    "INGEST_VERSION",
    "ImportResult",
    "ImportedTrace",
    "IngestSummary",
    "RunFacts",
    "import_traces",
    "ingest_run",
    "lean_process",
]
