"""Records of a run from documents that a test writes."""

from __future__ import annotations

from perfscope.rundir.documents import Document
from perfscope.rundir.records import RunRecord, decode_run


def run_record(document: Document) -> RunRecord:
    """run.json, where a wrong type is of no account to the test."""
    return decode_run(document)[0]
