"""The PDF: the HTML's sections, vector pictures, embedded fonts, names that stay text."""

from __future__ import annotations

import json
import re
import zlib
from importlib.resources import files

import pytest
import typst
from msgspec import structs

from perfscope.reports.build import build_report
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.metrics import FONT
from perfscope.reports.drawing.print_picture import paper_svg
from perfscope.reports.drawing.still import lay_out_still
from perfscope.reports.html import render_html
from perfscope.reports.model import Column, LineChart, Note, Report, Section, StackedBars, Table, Timeline
from perfscope.reports.pdf import BREAK, MANY_COLUMNS, MOST_PAGES, num_pages, pdf_data, render_pdf, soft
from tests.support.pdf_sections import section_titles
from tests.unit.reports.test_html import HOSTILE, Page, hostile_analysis
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline


def typeset_headings(report: Report) -> list[str]:
    """Level 1 headings of the typeset document, asked of typst itself."""
    template = files("perfscope.reports").joinpath("assets", "report.typ").read_bytes()
    found = typst.query(
        template,
        "heading.where(level: 1)",
        field="body",
        sys_inputs={"data": json.dumps(pdf_data(report))},
    )
    return [body["text"] for body in json.loads(found)]


@pytest.fixture(scope="module")
def report() -> Report:
    return build_report(synthetic_analysis(), synthetic_timeline())


def test_pdf_and_html_have_the_same_sections(report: Report) -> None:
    on_screen = Page(render_html(report)).sections
    assert section_titles(report) == on_screen
    assert typeset_headings(report) == [title for _, title in on_screen]


def test_pdf_has_pages_embedded_fonts_and_no_bitmaps(report: Report) -> None:
    pdf = render_pdf(report)
    assert pdf.startswith(b"%PDF-")
    assert b"/FontFile2" in pdf or b"/FontFile3" in pdf or b"FontFile" in inflated(pdf)
    assert b"/Subtype/Image" not in pdf.replace(b" ", b"")


def inflated(pdf: bytes) -> bytes:
    """Every stream that inflates, one after the other."""
    found = []
    for match in re.finditer(rb"stream\r?\n", pdf):
        unpack = zlib.decompressobj()
        try:
            found.append(unpack.decompress(pdf[match.end() :]))
        except zlib.error:
            continue
    return b"".join(found)


def test_charts_are_vectors_with_live_text(report: Report) -> None:
    blocks = [block for section in report.sections for block in section.blocks]
    charts = [block for block in blocks if isinstance(block, (StackedBars, LineChart, Timeline))]
    assert {type(chart) for chart in charts} == {StackedBars, LineChart, Timeline}
    for chart in charts:
        picture = lay_out_still(chart) if isinstance(chart, Timeline) else lay_out(chart)
        first, second = paper_svg(picture), paper_svg(picture)
        assert "<image" not in first
        assert f'font-family="{FONT}"' in first
        assert first == second, "the same chart must give the same bytes"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_not_break_or_enter_the_markup(text: str) -> None:
    timeline = synthetic_timeline(num_windows=1, steps=1)
    timeline = structs.replace(timeline, strings=tuple(text for _ in timeline.strings))
    hostile = build_report(hostile_analysis(text), timeline)
    assert typeset_headings(hostile) == [section.title for section in hostile.sections]
    assert render_pdf(hostile).startswith(b"%PDF-")


def test_dollar_signs_in_a_layer_are_not_mathematics() -> None:
    analysis = synthetic_analysis()
    layers = (structs.replace(analysis.layers[0], layer=r"$\frac{1$ 50% #x"), analysis.layers[1])
    chart = build_report(structs.replace(analysis, layers=layers), None).section("layers").blocks[0]
    assert isinstance(chart, StackedBars)
    assert r"$\frac{1$ 50% #x" in paper_svg(lay_out(chart))


def test_long_words_may_break_and_stay_the_same_without_the_breaks() -> None:
    name = "features.0.block/conv_1x1" + "y" * 90
    assert soft(name).replace(BREAK, "") == name
    assert max(len(piece) for piece in re.split(f"[{BREAK} ]", soft(name))) <= 20


def test_a_run_without_any_figure_still_typesets() -> None:
    analysis = synthetic_analysis()
    empty = structs.replace(
        analysis, ranks=(), layers=(), collectives=(), calls=(), step_ns=None, findings=(), missing=(),
        provenance=(), step_series={}, throughput_samples_per_s=None, overhead_ratio=None,
    )  # fmt: skip
    assert render_pdf(build_report(empty, None)).startswith(b"%PDF-")


def test_titles_of_many_figures_take_lines_so_that_words_have_room() -> None:
    report = build_report(synthetic_analysis(), None)
    [section] = [s for s in pdf_data(report)["sections"] if s["title"] == "Where the step goes"]  # type: ignore[attr-defined]
    heads = [[head["title"] for head in b["head"]] for b in section["blocks"] if b["kind"] == "table"]
    many = next(titles for titles in heads if len(titles) >= MANY_COLUMNS)
    assert "Exposed\ncommunication" in many and "Traced\nsteps" in many


def test_long_tables_are_shortened_to_a_report_of_twelve_pages(report: Report) -> None:
    rows = tuple((f"layer{number}",) for number in range(60))
    table = Table(id="t", title="T", columns=(Column(key="layer", title="Layer"),), rows=rows)
    sections = tuple(
        Section(id=f"s{number}", title=f"S{number}", blocks=(structs.replace(table, id=f"t{number}"),))
        for number in range(16)
    )
    pdf = render_pdf(structs.replace(report, sections=sections))
    assert 2 < num_pages(pdf) <= MOST_PAGES


def test_many_charts_and_tables_leave_twelve_pages(report: Report) -> None:
    rows = tuple((f"layer{number}",) for number in range(60))
    table = Table(id="t", title="T", columns=(Column(key="layer", title="Layer"),), rows=rows)
    sections = tuple(
        Section(
            id=f"s{number}",
            title=f"S{number}",
            blocks=(
                Note(text="note"),
                *(structs.replace(table, id=f"t{number}-{k}") for k in range(20)),
            ),
        )
        for number in range(30)
    )
    many = structs.replace(report, sections=sections)
    assert 2 < num_pages(render_pdf(many)) <= MOST_PAGES
    last = pdf_data(many, 5, 1)["sections"][-1]["blocks"]  # type: ignore[index]
    assert [block["kind"] for block in last] == ["note", "table", "note"]
    assert last[-1]["text"].startswith("19 more charts and tables")
