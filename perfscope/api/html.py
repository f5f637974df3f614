"""What a notebook shows of a run: the verdict, where the step goes, and what would help."""

from __future__ import annotations

from html import escape

import pyarrow as pa

from perfscope import units
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.build import build_verdict
from perfscope.reports.display import visible
from perfscope.reports.model import Verdict
from perfscope.reports.palette import light_palette
from perfscope.reports.sections.steps import overview_bar

MOST_WHAT_IFS = 3
_LONGEST = 600  # characters of a sentence with names in it
_STUDY_COLUMNS = ("label", "world_size", "scheme", "batch", "samples_per_s", "step_median_ns", "disturbed")


def run_html(analysis: RunAnalysis) -> str:
    """A fragment without scripts, style sheets or requests; every name in it is escaped."""
    verdict = build_verdict(analysis)
    return "".join(
        (
            '<div style="font-family:sans-serif;max-width:60em">',
            f"<p><b>{_text(analysis.run.name or 'unnamed run')}</b></p>",
            _verdict(verdict),
            _bar(analysis),
            _what_ifs(analysis),
            f"<p>{len(analysis.missing)} figures are missing: see <code>run.missing</code>.</p>"
            if analysis.missing
            else "",
            "</div>",
        )
    )


def study_html(headline: str, action: str, runs: pa.Table) -> str:
    """The same of a comparison, with the main columns of its runs."""
    columns = [name for name in _STUDY_COLUMNS if runs[name].null_count < runs.num_rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_cell(row[name])}</td>' for name in columns)}</tr>"
        for row in runs.select(columns).to_pylist()
    )
    lines = (f"<b>{_text(headline)}</b>", _text(action))
    texts = "".join(f"<p>{line}</p>" for line in lines if line)
    table = f"<table><tr>{head}</tr>{rows}</table>"
    return f'<div style="font-family:sans-serif;max-width:60em">{texts}{table}</div>'


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else _text(str(value))


def _text(text: str) -> str:
    return escape(visible(text, _LONGEST))


def _verdict(verdict: Verdict) -> str:
    lines = (f"<b>{_text(verdict.headline)}</b>", _text(verdict.detail), _text(verdict.action))
    return "".join(f"<p>{line}</p>" for line in lines if line)


def _bar(analysis: RunAnalysis) -> str:
    chart = overview_bar(analysis)
    if chart is None or not (total := chart.bars[0].total):
        return ""
    palette = light_palette()
    pieces, legend = [], []
    for part, value in zip(chart.parts, chart.bars[0].values, strict=True):
        share = value / total
        if not share:
            continue
        fill = palette.get(f"part-{part.key}", palette["part-host"])
        label = f"{escape(part.title)} {units.format_ns(value)} ({units.format_ratio(share, 1)})"
        pieces.append(f'<div title="{label}" style="width:{share:.2%};background:{fill};height:1.2em"></div>')
        swatch = f'<span style="background:{fill};display:inline-block;width:.8em;height:.8em"></span>'
        legend.append(f'<span style="margin-right:1em">{swatch} {label}</span>')
    title = f"<p>{escape(chart.title)}</p>"
    return f'{title}<div style="display:flex">{"".join(pieces)}</div><p>{"".join(legend)}</p>'


def _what_ifs(analysis: RunAnalysis) -> str:
    rows = [
        f"<tr><td>{_text(change.title)}</td><td>{units.format_ns(change.step_ns)}</td>"
        f"<td>−{units.format_ratio(change.gain_ratio, 1)}</td></tr>"
        for change in analysis.what_ifs[:MOST_WHAT_IFS]
        if change.gain_ns
    ]
    if not rows:
        return ""
    head = "<tr><th>What would help</th><th>Predicted step</th><th>Change</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
