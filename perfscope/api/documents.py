"""Reports as documents: built from a run, drawn in a format, written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.errors import UsageError
from perfscope.rundir.files import write_aside, write_into_run
from perfscope.settings import nearest

if TYPE_CHECKING:
    from perfscope.analysis.results import RunAnalysis
    from perfscope.analysis.timeline_extract import TimelineExtract
    from perfscope.reports.model import Report
    from perfscope.rundir.reader import RunReader


def report_of(reader: RunReader, analysis: RunAnalysis) -> Report:
    """The report of a run, which every format is drawn from."""
    from perfscope.analysis.loading.timeline import with_loaders
    from perfscope.analysis.timeline_extract import extract_timeline
    from perfscope.analysis.timeline_ranks import named_ranks
    from perfscope.reports.build import build_report

    timeline = extract_timeline(
        reader,
        named=named_ranks(analysis),
        clocks=analysis.clocks,
        groups=analysis.process_groups,
        calls=analysis.labeled_calls,
        pipeline=analysis.pipeline,
    )
    timeline = with_loaders(timeline, reader, analysis.clocks, analysis.loading)
    return build_report(analysis, timeline)


def compared_timeline(reader: RunReader, analysis: RunAnalysis) -> TimelineExtract:
    """The timeline of a run as a comparison of two draws it: of a few ranks."""
    from perfscope.analysis.timeline_extract import extract_timeline
    from perfscope.analysis.timeline_pair import SPAN_BUDGET, representative_ranks

    return extract_timeline(
        reader.part(representative_ranks(analysis)),
        span_budget=SPAN_BUDGET,
        clocks=analysis.clocks,
        groups=analysis.process_groups,
        calls=analysis.labeled_calls,
    )


def write_document(
    report: Report, format: str, path: str | Path | None = None, *, in_run: bool = False
) -> bytes:
    """A report in a format, also as a file; a failure leaves no half file.

    Args:
        format: text, json, html or pdf.
        path: where to write it; None = nowhere.
        in_run: `path` is a name in a run directory: a link of that name is replaced, not followed.

    Raises:
        UsageError: there is no such format.
        OutputError: `path` cannot be written.
    """
    from perfscope.reports.registry import RENDERERS

    if format not in RENDERERS:
        raise UsageError(f"there is no report {format!r}{nearest(format, RENDERERS)}")
    content = RENDERERS[format](report)
    if path is not None:
        with (write_into_run if in_run else write_aside)(Path(path)) as file:
            file.write(content)
    return content
