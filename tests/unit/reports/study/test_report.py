"""The report of several runs: the verdict first, missing never drawn as 0, one model for every renderer.

The golden texts are updated as those of test_report_golden.py.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

import pytest
from msgspec import Struct, structs

from perfscope.analysis.missing import missing_figure
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import WARN, LossCurve, Pair, Problem, StudyAnalysis
from perfscope.reports import curve_layout
from perfscope.reports.asset_files import asset
from perfscope.reports.build import build_report
from perfscope.reports.document import render_json
from perfscope.reports.drawing import lay_out
from perfscope.reports.drawing.print_picture import paper_svg
from perfscope.reports.html import render_html
from perfscope.reports.model import (
    Curve,
    CurveChart,
    IntervalBar,
    IntervalBars,
    Report,
    StackedBars,
    Table,
    Unit,
    format_value,
)
from perfscope.reports.palette import theme_blocks
from perfscope.reports.pdf import render_pdf
from perfscope.reports.study.build import build_study_report, first_sentence
from perfscope.reports.study.formatting import efficiency_tone, ratio_tone, times
from perfscope.reports.study.losses import grouped
from perfscope.reports.text import cells, render_text
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.comparison import ProblemKind
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.missing import Missing
from tests.support.pdf_sections import section_titles
from tests.support.study_entries import entry
from tests.support.synthetic_study import COUNTS, SPEEDUPS, diff_study, scaling_study, scheme_study
from tests.unit.reports.test_golden import check, scrub
from tests.unit.reports.test_html import HOSTILE, Page, contrast
from tests.unit.reports.test_pdf import typeset_headings
from tests.unit.reports.test_synthetic import synthetic_analysis

MAKERS: dict[str, Callable[[], StudyAnalysis]] = {
    "schemes": scheme_study,
    "scaling": scaling_study,
    "diff": diff_study,
}
STARTED = 1_780_000_000_000_000_000

# Of heat tables, best to worst.
HEAT_TONES = ("good3", "good2", "good1", "bad1", "bad2", "bad3")


def made(name: str) -> Report:
    study = MAKERS[name]()
    return build_study_report(study, {run.name: STARTED for run in study.runs})


@pytest.fixture(params=list(MAKERS))
def report(request: pytest.FixtureRequest) -> Report:
    return made(request.param)


def blocks(report: Report, kind: type) -> Iterator[object]:
    return (block for section in report.sections for block in section.blocks if isinstance(block, kind))


def table(report: Report, identity: str) -> Table:
    found = [one for one in blocks(report, Table) if isinstance(one, Table) and one.id == identity]
    assert len(found) == 1
    return found[0]


def chart(report: Report, identity: str) -> CurveChart:
    found = [c for c in blocks(report, CurveChart) if isinstance(c, CurveChart) and c.id == identity]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", list(MAKERS))
def test_text_is_as_kept(name: str, width: int) -> None:
    check(f"study-{name}-{width}.txt", scrub(render_text(made(name), width=width)))


@pytest.mark.parametrize("width", [80, 120])
def test_text_fits_its_width(report: Report, width: int) -> None:
    assert all(cells(line) <= width for line in render_text(report, width=width).splitlines())


def test_pdf_and_html_have_the_same_sections() -> None:
    report = build_study_report(everything())
    page = Page(render_html(report))
    assert section_titles(report) == page.sections
    assert typeset_headings(report) == [title for _, title in page.sections]


def test_charts_on_paper_are_vectors_that_do_not_change() -> None:
    report = build_study_report(everything())
    charts = {type(one): one for kind in (CurveChart, IntervalBars) for one in blocks(report, kind)}
    assert set(charts) == {CurveChart, IntervalBars}
    for one in charts.values():
        assert isinstance(one, (CurveChart, IntervalBars))
        svg = paper_svg(lay_out(one))
        assert "<image" not in svg
        assert svg == paper_svg(lay_out(one))


def test_pdf_is_made_of_every_kind_of_comparison_at_once() -> None:
    assert render_pdf(build_study_report(everything())).startswith(b"%PDF-")


def test_refusals_stand_before_every_figure() -> None:
    html, text = render_html(made("diff")), render_text(made("diff"))
    for page, figure in ((html, "kpi-step"), (text, "Typical step")):
        assert 0 < page.index("May not be compared") < page.index(figure)
    assert made("diff").notices[0].tone == "refuse"
    assert made("diff").verdict.tone == "caution"


def test_the_verdict_names_winner_lead_why_and_turn() -> None:
    report = made("schemes")
    assert report.verdict.headline.startswith("mp.fc_tp is fastest with 320 samples/s")
    assert "2.10 MiB between hosts" in " ".join(report.verdict.points)
    assert "3.4 times this bandwidth" in " ".join(report.verdict.points)
    figures = {figure.id: figure.value for figure in report.figures}
    assert (figures["winner"], figures["lead"], figures["runs"]) == ("mp.fc_tp", "1.28 ×", "12")


def test_what_bounds_the_largest_run_and_what_to_do_stand_with_the_verdict() -> None:
    report = made("scaling")
    assert report.verdict.action == "Send fewer bytes."
    assert "At 8 ranks perfscope's verdict: the link bounds the step." in " ".join(report.verdict.points)


def test_an_order_that_rests_on_traced_steps_is_doubted_beside_the_headline() -> None:
    study = scheme_study()
    labels = tuple(run.label for run in study.runs)
    problem = Problem(
        severity=WARN, id=ProblemKind.TRACED_SPEED, text="All 12 runs were too short.", runs=labels
    )
    report = build_study_report(structs.replace(study, problems=(problem,)))
    assert "Rely on this order with care: its samples/s count traced steps" in " ".join(report.verdict.points)
    assert report.notices[0].text == "All 12 runs were too short."  # its runs are not listed once more
    some = structs.replace(problem, runs=labels[:1], text=f"{labels[0]} was too short.")
    report = build_study_report(structs.replace(study, problems=(some,)))
    assert "some of its samples/s count traced steps" in " ".join(report.verdict.points)
    assert "Rely on" not in " ".join(build_study_report(study).verdict.points)


def test_exchanges_that_the_window_does_not_show_are_a_footnote_of_the_speeds() -> None:
    (schemes,) = scheme_study().schemes
    noted = structs.replace(schemes, unseen="dp.x: begun before the window.")
    report = build_study_report(structs.replace(scheme_study(), schemes=(noted,)))
    assert table(report, "study-schemes-table").caption.endswith("dp.x: begun before the window.")


def test_one_ranks_factors_are_not_both_shown_and_missing() -> None:
    study = scaling_study()
    gap = missing_figure(Figure.PARALLEL_EFFICIENCY, Cause.ONE_RANK, reason="one rank was traced")
    runs = tuple(structs.replace(run, missing=(gap,)) for run in study.runs)
    report = build_study_report(structs.replace(study, runs=runs))
    told = [str(row[1]) for row in table(report, "missing-table").rows]
    assert told == ["one rank was traced (n2, n4 and n8)"]
    caption = table(report, "study-pop-table").caption
    assert "One rank shares nothing and sends nothing" in caption
    assert "the efficiency above (55.0 %) is of the throughput" in caption


def test_what_changed_does_not_repeat_the_speeds_of_the_first_sentence() -> None:
    study = diff_study()
    assert study.diff is not None
    diff = structs.replace(study.diff, moved="Compute moved most: +1 ms in a traced step.")
    shown = [section for section in made("diff").sections if section.id == "study-diff"]
    assert shown[0].lead == ""
    told = structs.replace(study, diff=diff, headline="after wins.")
    lead = next(one.lead for one in build_study_report(told).sections if one.id == "study-diff")
    assert lead == "Compute moved most: +1 ms in a traced step."


def test_a_ratio_near_zero_keeps_figures_that_count() -> None:
    assert (times(3.65 / 1141), times(0.5), times(1234)) == ("0.0032 ×", "0.50 ×", "1,234.00 ×")


def test_only_the_first_sentence_is_the_title() -> None:
    assert first_sentence("dp.ddp wins (by 3.2 %). The rest follow.") == (
        "dp.ddp wins (by 3.2 %).",
        "The rest follow.",
    )
    assert first_sentence("dp.ddp wins by 3.2 %.") == ("dp.ddp wins by 3.2 %.", "")


def test_intervals_appear_only_where_runs_were_repeated() -> None:
    for count, words in ((3, "320 (310 to 330)"), (1, "320")):
        report = build_study_report(scheme_study(count))
        bars = next(iter(blocks(report, IntervalBars)))
        assert isinstance(bars, IntervalBars)
        first = curve_layout.bar_place(bars, bars.bars[0])
        assert first.text == words
        assert (first.low is None) == (count == 1)
        titles = [column.title for column in table(report, "study-schemes-table").columns]
        assert ("95 % interval" in titles) == (count == 3)


def test_ratios_are_read_from_pairs_in_either_order() -> None:
    study = scheme_study()
    turned = [
        Pair(
            a=pair.b,
            b=pair.a,
            ratio=1 / pair.ratio,
            interval=None,
            p_value=None,
            level=None,
            reason="",
        )
        for pair in study.schemes[0].pairs
    ]
    other = structs.replace(study, schemes=(structs.replace(study.schemes[0], pairs=tuple(turned)),))
    column = [c.key for c in table(build_study_report(study), "study-schemes-table").columns].index("ratio")
    expected = [1.0, 250 / 320, 244 / 320, 96 / 320]
    for one in (study, other):
        rows = table(build_study_report(one), "study-schemes-table").rows
        assert [row[column] for row in rows] == pytest.approx(expected)


def test_cells_that_repeats_cannot_tell_apart_carry_no_color() -> None:
    matrix = table(made("schemes"), "study-matrix")
    assert matrix.rows[1][3] == pytest.approx(250 / 244)
    assert matrix.heat[1][3] == ""
    assert matrix.heat[0][4] == "good3"
    assert matrix.heat[3][1] == "bad3"
    assert [matrix.rows[n][n + 1] for n in range(4)] == [None] * 4


def test_missing_efficiencies_are_dashes_without_color() -> None:
    pop = table(made("scaling"), "study-pop-table")
    row = next(n for n, cells_ in enumerate(pop.rows) if str(cells_[0]).strip() == "Serialization")
    assert pop.rows[row][1] is None
    assert (pop.cell(row, 1), pop.tone(row, 1)) == ("–", "")
    assert not any("inside" in str(cells_[0]) for cells_ in pop.rows), "a row of dashes alone says nothing"
    assert "Inside hosts: one host." in pop.caption
    assert "Serialization at 1: one host." in pop.caption
    assert ">0.0 %<" not in render_html(made("scaling"))


def test_acceptable_efficiencies_carry_the_mark_and_others_do_not() -> None:
    pop = table(made("scaling"), "study-pop-table")
    for number, row in enumerate(pop.rows):
        for at, value in enumerate(row[1:], 1):
            if isinstance(value, float):
                assert pop.cell(number, at).endswith("✓") == (value >= 0.8)
                assert pop.tone(number, at) in HEAT_TONES


def test_tones_turn_at_what_is_acceptable_and_at_one() -> None:
    assert [efficiency_tone(v) for v in (1.0, 0.8, 0.79, 0.1, None, math.nan)] == [
        "good3", "good1", "bad1", "bad3", "", "",
    ]  # fmt: skip
    assert [ratio_tone(v) for v in (2.0, 1.1, 1.0, 0.9, 0.4, None, 0.0)] == [
        "good3", "good1", "", "bad1", "bad3", "", "",
    ]  # fmt: skip
    assert ratio_tone(1.5, less_is_good=True) == "bad2"


@pytest.mark.parametrize("block", [0, 1, 2], ids=["light", "dark", "chosen dark"])
def test_numbers_can_be_read_on_every_heat(block: int) -> None:
    colors = theme_blocks(asset("report.css"))[block][1]
    for tone in HEAT_TONES:
        assert contrast(colors["heat-ink"], colors[f"heat-{tone}"]) >= 4.5
        assert contrast(colors["ink"], colors[f"heat-{tone}"]) >= 4.5 or block > 0, "paper has its own ink"


def test_the_ideal_is_one_for_one_and_fits_are_dashed_beyond_the_data() -> None:
    speedup = chart(made("scaling"), "study-speedup")
    measured, ideal, fit = speedup.curves
    assert measured.y == SPEEDUPS
    assert ideal.kind == "ideal"
    assert ideal.y == pytest.approx(ideal.x)
    assert ideal.x[-1] == fit.x[-1] == 32
    pieces = curve_layout.strokes(speedup, fit)
    edge = curve_layout.frame(speedup).x(float(COUNTS[-1]))
    assert [dashed for _, dashed in pieces] == [False, True]
    assert pieces[0][0][-1] == pieces[1][0][0], "the two meet where the data end"
    assert pieces[0][0][-1][0] == pytest.approx(edge)
    assert max(x for x, _ in pieces[0][0]) <= edge + 1e-9
    assert 'class="cv-line fit beyond c1"' in render_html(made("scaling"))


def test_the_band_starts_at_the_reference_and_holds_the_data() -> None:
    measured = chart(made("scaling"), "study-speedup").curves[0]
    assert (measured.low[0], measured.high[0]) == (1.0, 1.0)
    assert all(low <= y <= high for low, y, high in zip(measured.low, measured.y, measured.high, strict=True))


def test_an_interval_wider_than_all_figures_does_not_flatten_them() -> None:
    curve = Curve(label="x", x=(1.0, 2.0), y=(1.0, 0.5), low=(1.0, -40.0), high=(1.0, 60.0))
    wide = CurveChart(id="c", title="c", x_title="n", y_title="y", curves=(curve,))
    box = curve_layout.frame(wide)
    assert -1.5 < box.y_low < box.y_high < 1.5


def test_gaps_break_a_curve() -> None:
    curve = Curve(label="x", x=(1.0, 2.0, 3.0, 4.0), y=(1.0, math.nan, 3.0, 4.0))
    drawn = CurveChart(id="c", title="c", x_title="n", y_title="y", curves=(curve,))
    assert [len(points) for points, _ in curve_layout.strokes(drawn, curve)] == [1, 2]
    assert len(curve_layout.marks(drawn, curve)) == 3
    report = structs.replace(
        made("scaling"),
        sections=(structs.replace(made("scaling").sections[0], blocks=(drawn,)),),
    )
    drawing = re.sub("<script.*?</script>", "", render_html(report), flags=re.DOTALL)
    assert "nan" not in re.findall('class="cv-line data[^>]*', drawing)[1]


@pytest.mark.parametrize("y", [(), (0.0,), (5.0, 5.0), (-1.0, 2.0), (math.nan, math.nan)])
@pytest.mark.parametrize("log", [False, True])
def test_charts_of_few_or_odd_figures_are_drawn(y: tuple[float, ...], log: bool) -> None:
    curve = Curve(label="x", x=tuple(float(n + 1) for n in range(len(y))), y=y)
    one = CurveChart(id="c", title="c", x_title="n", y_title="y", curves=(curve,), x_log=log, y_log=log)
    assert paper_svg(lay_out(one)).startswith("<svg")
    bars = tuple(IntervalBar(label=str(n), value=value) for n, value in enumerate(y or (None,)))
    assert paper_svg(lay_out(IntervalBars(id="b", title="b", axis_title="a", unit=Unit.SAMPLES, bars=bars)))


def test_steps_of_very_different_length_are_drawn_as_shares() -> None:
    study = scheme_study()
    slow = structs.replace(study.runs[0].composition or pytest.fail(), step=1e12, compute=1e12)
    rows = (*study.schemes[0].rows[:3], structs.replace(study.schemes[0].rows[3], composition=slow))
    far = structs.replace(study, schemes=(structs.replace(study.schemes[0], rows=rows),))
    near_bars, far_bars = (next(iter(blocks(build_study_report(one), StackedBars))) for one in (study, far))
    assert isinstance(near_bars, StackedBars)
    assert isinstance(far_bars, StackedBars)
    assert (near_bars.unit, far_bars.unit) == (Unit.TIME, Unit.RATIO)
    assert all(bar.total == pytest.approx(1.0) for bar in far_bars.bars[:3])
    assert far_bars.bars[0].end == "100 ms"


def test_losses_that_agree_are_drawn_once_and_others_apart() -> None:
    base = LossCurve(steps=(1, 2), samples=(32, 64), seconds=(1.0, 2.0), losses=(2.0, 1.0))
    near = structs.replace(base, losses=(2.005, 1.0))
    far = structs.replace(base, losses=(2.0, 1.2))
    fewer = structs.replace(base, samples=(16, 32))
    found = grouped([("a", base), ("b", near), ("c", far), ("d", fewer)])
    assert [names for names, _ in found] == [["a", "b"], ["c"], ["d"]]
    seconds = chart(made("schemes"), "study-loss-seconds")
    assert [curve.label for curve in seconds.curves] == ["mp.fc_tp", "hy.auto", "hy.owt", "dp.ddp"]


def test_a_diff_keeps_the_largest_change_first_with_its_sign() -> None:
    parts = table(made("diff"), "study-diff-parts")
    assert [parts.cell(0, at) for at in range(5)] == [
        "exposed communication", "20.0 ms", "50.0 ms", "+30.0 ms", "2.50",
    ]  # fmt: skip
    assert parts.cell(1, 3) == "−8.00 ms"
    assert (parts.tone(0, 3), parts.tone(1, 3)) == ("bad3", "good1")
    mixed = table(made("diff"), "study-diff-scheme")
    assert (mixed.cell(1, 1), mixed.cell(1, 2), mixed.cell(1, 5)) == ("4.00 KiB", "–", "only before")


def test_json_holds_what_the_report_shows(report: Report) -> None:
    text = render_json(report.document)
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["schema_version"] == 1
    assert document["kind"] == "study"
    names = set(StudyAnalysis.__struct_fields__)
    assert names <= set(document)
    assert all(run["start_unix_ns"] == STARTED for run in document["runs"])
    assert report.verdict.headline.replace("\u00a0", " ") in document["headline"]


def test_json_says_null_for_missing_and_keeps_intervals() -> None:
    document = json.loads(render_json(made("scaling").document))
    series = document["scaling"]["series"][0]
    assert [point["efficiency"] for point in series["points"]] == [
        speedup / count for count, speedup in zip(COUNTS, SPEEDUPS, strict=True)
    ]
    assert series["points"][0]["karp_flatt"] is None
    assert series["points"][1]["speedup_interval"]["num_repeats"] == 3
    assert series["pop"]["rows"][3]["values"] == [None] * 4
    row = json.loads(render_json(made("schemes").document))["schemes"][0]["rows"][3]
    assert row["links"][0]["wire"] is None
    assert row["links"][0]["reason"] == "the counters were not read"


KEPT = {"severity", "mode", "unit", "by", "only", "affects", "factor", "part", "law", "id"}


def hostile(value: object, text: str, name: str = "") -> object:
    """`value` with `text` in place of every string that may come from outside."""
    if isinstance(value, str):
        return value if name in KEPT or isinstance(value, Enum) else text
    if isinstance(value, Missing):
        detail = tuple((key, hostile(item, text, key)) for key, item in value.detail)
        return dataclasses.replace(value, detail=detail)
    if isinstance(value, Struct):
        fields = {name: hostile(getattr(value, name), text, name) for name in value.__struct_fields__}
        return structs.replace(value, **fields)
    if isinstance(value, Mapping):
        return dict.fromkeys([text], hostile(next(iter(value.values()), ""), text))
    if isinstance(value, tuple):
        return tuple(hostile(item, text, name) for item in value)
    return value


def everything() -> StudyAnalysis:
    """Schemes, scaling and a diff in one study."""
    schemes, scaling, diff = scheme_study(), scaling_study(), diff_study()
    return structs.replace(
        schemes,
        runs=(*schemes.runs, *scaling.runs, *diff.runs),
        scaling=scaling.scaling,
        diff=diff.diff,
        problems=(*diff.problems, *schemes.problems),
    )


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_text_everywhere(text: str) -> None:
    study = hostile(everything(), text)
    assert isinstance(study, StudyAnalysis)
    report = build_study_report(study)
    page = Page(render_html(report))
    assert page.counts["script"] == 2
    assert page.counts["img"] == 0
    assert not [one for one in page.attributes if one[1].startswith("on")]
    plain = render_text(report, width=80)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2028\u2029]", plain)
    assert all(cells(line) <= 80 for line in plain.splitlines())
    json.loads(render_json(report.document))
    if "#eval" in text:
        assert typeset_headings(report) == [section.title for section in report.sections]


def test_page_admits_its_own_script_and_style_by_hash_and_names_no_address(report: Report) -> None:
    html = render_html(report)
    page = Page(html)
    for kind, body in (("script", page.scripts[-1]), ("style", page.styles[0])):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page.csp
    assert not re.findall(r"(?:src|href)=\"(?!#)", html)
    assert "startCurves" in page.scripts[-1]


def test_a_report_of_one_run_carries_nothing_of_comparisons() -> None:
    html = render_html(build_report(synthetic_analysis(), None))
    assert "function startCurves" not in html
    assert ".cv-line" not in html


def test_every_axis_carries_its_unit(report: Report) -> None:
    for one in blocks(report, CurveChart):
        assert isinstance(one, CurveChart)
        assert one.x_title
        assert one.y_title
        assert curve_layout.x_ticks(one)
        assert curve_layout.y_ticks(one)


def test_two_runs_that_may_not_be_compared_show_facts_and_no_ratio() -> None:
    study = analyze_study([entry("a", scheme="a"), entry("b", scheme="b", speed=8, batch=64)])
    report = build_study_report(study)
    assert report.verdict.headline == "a and b are not compared: their batches differ."
    notes = {one.id: one.note for one in report.figures}
    assert notes["rate"] == notes["step"] == "each by itself: not compared"
    text = render_text(report, width=120)
    for word in ("After / before", "Of the fastest", "as many", "faster", "slower than"):
        assert word not in text
    assert "samples per step" in text  # the facts


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (0.0, "0.00"),
        (0.00321, "0.0032"),
        (0.0118, "0.012"),
        (0.0949, "0.095"),
        (0.0996, "0.10"),
        (0.5, "0.50"),
        (1234.5, "1,234.50"),
        (2e-9, "2.0e-09"),
    ],
)
def test_small_factors_keep_two_digits_that_count(ratio: float, shown: str) -> None:
    assert format_value(Unit.FACTOR, ratio) == shown
