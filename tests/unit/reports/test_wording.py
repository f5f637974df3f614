"""What the report says is true of the run at hand: causes, spans and reasons, never a sentence too much."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.results import RunAnalysis
from perfscope.reports import chart_layout
from perfscope.reports.build import build_report
from perfscope.reports.display import beginning
from perfscope.reports.html import render_html
from perfscope.reports.model import Counters, Note, RooflineChart, Table, Timeline, Unit, format_value
from perfscope.reports.pdf import pdf_data
from perfscope.reports.text import cells, render_text
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.links import LinkClass
from tests.support.stated_finding import stated
from tests.support.synthetic_machine import START, vm_machine, wave
from tests.unit.reports.sections.test_machine import column, table, with_machine
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline


def vm(**changes: object) -> MachineAnalysis:
    return structs.replace(vm_machine(synthetic_analysis().layers), **changes)


def text_of(analysis: RunAnalysis) -> str:
    return " ".join(render_text(build_report(analysis, None)).split())


def notes(analysis: RunAnalysis, section: str) -> list[str]:
    return [b.text for b in build_report(analysis, None).section(section).blocks if isinstance(b, Note)]


@pytest.mark.parametrize(
    ("hit", "said"),
    [
        (True, "The traced steps were disturbed: the values below include it."),
        (False, "The traced steps were not hit; step times and throughput were."),
    ],
)
def test_the_notice_says_whether_the_traced_steps_were_hit(hit: bool, said: str) -> None:
    (notice,) = build_report(with_machine(vm(traced_disturbed=hit)), None).notices
    assert said in notice.text


def test_the_notice_says_nothing_of_traced_steps_when_it_cannot_be_told() -> None:
    (notice,) = build_report(with_machine(vm(traced_disturbed=None)), None).notices
    assert "raced steps" not in notice.text


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (None, "profiling overhead or interference"),
        (vm(traced_disturbed=True), "interference and profiling overhead"),
        (vm(traced_disturbed=False), "profiling overhead; no interference detected"),
        (vm(clean=True, traced_disturbed=None), "profiling overhead; no interference detected"),
    ],
)
def test_slow_traced_steps_are_blamed_on_what_is_known(machine: MachineAnalysis | None, why: str) -> None:
    analysis = with_machine(machine)
    assert analysis.step_ns is not None
    quick = structs.replace(analysis.step_ns, median=analysis.step_ns.median // 2)
    report = build_report(structs.replace(analysis, step_ns=quick, traced_ratio=2.0), None)
    assert f"traced steps, which took 100 % longer ({why})." in report.verdict.detail


def test_a_disturbance_stands_beside_what_it_did_to_the_steps() -> None:
    report = build_report(with_machine(vm()), None)
    block = table(report, "machine", "disturbance-table")
    assert column(block, "during") == [41_000_000, None]
    assert column(block, "otherwise") == [24_000_000, None]
    assert column(block, "windows") == ["window 1", "none"]
    assert "stress-ng (pid 4242, user bob)" in str(column(block, "what")[0])
    text = " ".join(render_text(report).split())
    assert (
        "95.0 % taken; step during it 41.0 ms, otherwise 24.0 ms; traced windows affected: window 1" in text
    )
    assert 'data-title="Step time during"' in render_html(report)


def test_the_machine_tile_is_short_and_whole_in_the_text() -> None:
    long = structs.replace(vm().disturbances[0], names=("some process with a name " * 20,))
    report = build_report(with_machine(vm(disturbances=(long,))), None)
    tile = next(figure for figure in report.figures if figure.id == "machine")
    assert tile.note.startswith("other processes: 95 % for 3.00 s, some process with")
    assert tile.note.endswith("…") and len(tile.note) <= 90
    text = render_text(report, width=80)
    assert tile.note in " ".join(text.split())
    assert all(cells(line) <= 80 for line in text.splitlines())


def test_a_beginning_is_never_longer_than_asked_for() -> None:
    assert beginning("short", 5) == "short"
    assert beginning("a longer one", 9) == "a longer…"


def test_more_than_attainable_is_explained_once_and_only_where_it_is() -> None:
    roof = vm().rooflines[0]
    above = (
        structs.replace(roof.points[0], fraction=1.3),
        structs.replace(roof.points[1], fraction=0.4),
    )
    told = notes(with_machine(vm(rooflines=(structs.replace(roof, points=above),))), "roofline")
    assert len(told) == 1
    assert told[0].startswith("1 of 2 passes reaches more than 100 % of attainable.")
    assert "share of the host" in told[0]
    below = tuple(structs.replace(point, fraction=0.9) for point in roof.points)
    assert notes(with_machine(vm(rooflines=(structs.replace(roof, points=below),))), "roofline") == []


def test_rates_of_layers_stand_in_one_table_only() -> None:
    with_roof = table(build_report(with_machine(vm()), None), "layers", "layers-table")
    without = table(build_report(with_machine(None), None), "layers", "layers-table")
    assert {"flop_rate", "byte_rate"} & {one.key for one in with_roof.columns} == set()
    assert {"flop_rate", "byte_rate"} <= {one.key for one in without.columns}
    assert [one.key for one in with_roof.columns] == [one.key for one in without.columns][:-2]


def test_collectives_say_over_which_steps_their_sums_go() -> None:
    section = build_report(synthetic_analysis(), None).section("collectives")
    steps = max(rank.num_traced_steps for rank in synthetic_analysis().ranks)
    assert f"over {steps} traced steps" in section.lead
    block = next(b for b in section.blocks if isinstance(b, Table) and b.id == "collectives-table")
    assert block.title == f"Collectives, sums over {steps} traced steps per rank"
    assert block.caption.startswith("Overlapping calls are counted once")
    assert f" {block.title} " in text_of(synthetic_analysis())


def test_text_names_exposed_communication_of_layers_where_it_is_known() -> None:
    analysis = synthetic_analysis()
    assert "Exposed comm." in text_of(analysis)
    untied = tuple(structs.replace(layer, exposed_comm_ns=None) for layer in analysis.layers)
    loose = structs.replace(analysis, layers=untied)
    assert "Exposed comm." not in text_of(loose)
    assert any("cannot be attributed to layers" in told for told in notes(loose, "layers"))


def test_a_run_without_communication_is_not_told_about_it() -> None:
    analysis = synthetic_analysis()
    alone = structs.replace(
        analysis,
        collectives=(),
        layers=tuple(structs.replace(layer, exposed_comm_ns=None) for layer in analysis.layers),
        ranks=tuple(structs.replace(rank, comm_ns=0) for rank in analysis.ranks[:1]),
    )
    assert notes(alone, "layers") == []
    assert notes(alone, "collectives") == ["No collective was recorded in the traced windows."]


def test_a_run_without_a_window_says_so_and_does_not_repeat_its_verdict() -> None:
    analysis = synthetic_analysis()
    first = stated(FindingKind.STRAGGLER, analysis.findings[0].text.title, action="Look at it.")
    ranks = tuple(structs.replace(r, num_traced_steps=0, breakdown_ns=None) for r in analysis.ranks)
    untraced = structs.replace(
        analysis, collectives=(), calls=(), layers=(), provenance=(), ranks=ranks, findings=(first,)
    )
    assert notes(untraced, "collectives") == ["No window was traced."]
    text = text_of(untraced)
    assert first.text.title in text
    assert "See above" not in text


def test_text_gives_the_reason_under_a_row_without_a_figure() -> None:
    lines = render_text(build_report(with_machine(vm()), None)).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("  window 1 "))
    assert lines[at + 1].strip() == "no reading fell into the window"


def test_factors_keep_their_decimals_and_loopback_has_no_peak() -> None:
    assert format_value(Unit.FACTOR, 1.0) == "1.00"
    assert format_value(Unit.FACTOR, None) == "–"
    machine = vm()
    loopback = structs.replace(
        machine.traffic[0], link_class=LinkClass.LOOPBACK, name="lo", peak_bytes_per_s=None, peak_source=""
    )
    block = table(build_report(with_machine(vm(traffic=(loopback,))), None), "traffic", "traffic-table")
    assert column(block, "peak") == ["none"]
    assert "Sums and means over the training steps" in block.caption


def test_a_share_is_drawn_against_100_percent_and_a_short_run_is_not_stretched() -> None:
    quiet = wave("node01", "cpu", "quiet share", "ratio", 0.006, 0.002, 11)
    short = structs.replace(quiet, **{k: getattr(quiet, k)[:4] for k in ("t_ns", "mean", "low", "high")})
    for track, columns in ((quiet, 36), (short, 4)):
        machine = vm(tracks=(track,), end_ns=track.t_ns[-1], start_ns=track.t_ns[0])
        text = render_text(build_report(with_machine(machine), None))
        line = next(row for row in text.splitlines() if "quiet share" in row)
        drawn = line.partition("quiet share")[2].partition("mean")[0]
        assert set(drawn) == {"▁", " "}
        assert len(drawn.strip()) == columns


def test_lanes_of_all_ranks_stand_together_under_the_timeline() -> None:
    tracks = (
        wave("node01", "cpu", "CPU busy", "ratio", 0.9, 0.05, 1),
        wave("node01", "cpu", "rank 1 CPU use", "ratio", 0.5, 0.05, 2),
        wave("node01", "cpu", "rank 0 CPU use", "ratio", 0.3, 0.05, 3),
        wave("node01", "cpu", "third kind", "ratio", 0.1, 0.05, 4),
    )
    report = build_report(with_machine(vm(tracks=tracks)), synthetic_timeline())
    block = report.section("timeline").blocks[0]
    assert isinstance(block, Timeline)
    shown = [lane.label for lane in block.lanes if lane.window == 1]
    assert shown == ["CPU busy", "rank 0 CPU use", "rank 1 CPU use"]


def test_disturbances_are_a_list_on_paper() -> None:
    sections = pdf_data(build_report(with_machine(vm()), None))["sections"]
    assert isinstance(sections, list)
    counters = next(section for section in sections if section["id"] == "counters")
    (listed,) = [block for block in counters["blocks"] if block["kind"] == "list"]
    assert len(listed["items"]) == 2
    assert "(pid 4242, user bob)" in listed["items"][0]


@pytest.mark.parametrize("letter", [chart_layout.LETTER, chart_layout.SMALL_LETTER])
def test_names_of_roofs_lie_inside_the_plot(letter: float) -> None:
    for bandwidth in (5e9, 58e9, 900e9):
        roof = structs.replace(vm().rooflines[0], bandwidth_bytes_per_s=bandwidth)
        report = build_report(with_machine(vm(rooflines=(roof,))), None)
        chart = next(b for b in report.section("roofline").blocks if isinstance(b, RooflineChart))
        words = chart_layout.roof_words(chart, letter)
        assert words.peak[0] - letter * len(chart.peak_text) >= 0
        start = words.memory[0] if words.below else words.memory[0] - letter * len(chart.bandwidth_text)
        assert start >= 0
        assert not words.below or start + letter * len(chart.bandwidth_text) <= 100
        assert math.isfinite(words.memory[1])


def test_the_counters_axis_starts_where_its_readings_do() -> None:
    report = build_report(with_machine(vm()), None)
    (block,) = report.section("counters").blocks
    assert isinstance(block, Counters)
    assert START - vm().tracks[0].t_ns[0] == block.windows[0].start_ns
