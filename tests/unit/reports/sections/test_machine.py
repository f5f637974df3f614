"""What the report says of the machine: verdict first, sections, tables, counters; nothing invented."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from perfscope.analysis.machine.results import CounterTrack, Disturbance, MachineAnalysis
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.machine import ceiling_note
from perfscope.reports import chart_layout
from perfscope.reports.build import build_report
from perfscope.reports.document import render_json
from perfscope.reports.drawing.counters import counters_payload, line_runs
from perfscope.reports.html import render_html
from perfscope.reports.model import (
    CounterChart,
    CounterLine,
    Counters,
    Report,
    RooflineChart,
    StackedBars,
    Table,
    Timeline,
    Unit,
)
from perfscope.reports.pdf import pdf_data, render_pdf
from perfscope.reports.text import cells, render_text
from perfscope.vocabulary.disturbances import DisturbanceKind
from tests.support.pdf_sections import section_titles
from tests.support.synthetic_gpu_machine import gpu_machine, gpu_tracks
from tests.support.synthetic_machine import (
    SECOND,
    START,
    knl_machine,
    vm_machine,
    wave,
)
from tests.support.synthetic_topology import topology_record
from tests.unit.reports.test_golden import check, scrub
from tests.unit.reports.test_html import Page
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

MACHINES = {"vm": vm_machine, "gpu": gpu_machine, "knl": lambda _layers: knl_machine()}


def with_machine(machine: MachineAnalysis | None) -> RunAnalysis:
    return structs.replace(synthetic_analysis(), machine=machine)


def report_of(name: str) -> Report:
    machine = MACHINES[name](synthetic_analysis().layers)
    return build_report(with_machine(machine), synthetic_timeline())


def table(report: Report, section: str, table_id: str) -> Table:
    blocks = report.section(section).blocks
    return next(block for block in blocks if isinstance(block, Table) and block.id == table_id)


def column(block: Table, key: str) -> list[object]:
    index = [one.key for one in block.columns].index(key)
    return [row[index] for row in block.rows]


def counters_of(report: Report) -> Counters:
    (block,) = report.section("counters").blocks
    assert isinstance(block, Counters)
    return block


def test_a_run_without_a_machine_has_no_machine_sections() -> None:
    report = build_report(with_machine(None), None)
    ids = [section.id for section in report.sections]
    assert not set(ids) & {"machine", "counters", "roofline", "traffic", "stacks"}
    assert "machine" not in [figure.id for figure in report.figures]


def test_sections_of_the_machine_stand_together_after_the_training() -> None:
    ids = [section.id for section in report_of("gpu").sections]
    assert ids[ids.index("layers") + 1] == "roofline"
    at = ids.index("machine")
    assert ids[at : at + 4] == ["machine", "counters", "traffic", "stacks"]
    assert at > ids.index("steps")


def test_a_disturbed_run_is_said_before_any_figure() -> None:
    report = report_of("vm")
    said = "stress-ng 1.9 CPUs"
    text = render_text(report)
    assert text.index(said) < text.index("Median step time")
    page = " ".join(Page(render_html(report)).text)
    assert page.index(said) < page.index("Median step time")
    assert "1.9 CPUs for 3.00 s" in pdf_data(report)["notices"][0]["text"]  # type: ignore[index]
    tile = next(figure for figure in report.figures if figure.id == "machine")
    told = "other processes: 95 % for 3.00 s, stress-ng"  # more is in the notice above
    assert (tile.value, tile.note) == ("disturbed", told)


def test_an_undisturbed_run_is_told_so_without_a_warning() -> None:
    report = report_of("gpu")
    assert report.notices == ()
    assert next(figure.value for figure in report.figures if figure.id == "machine") == "undisturbed"
    note = report.section("machine").blocks[0]
    assert note.tone == "good"  # type: ignore[union-attr]
    assert note.text.startswith("Undisturbed run.")  # type: ignore[union-attr]


def test_what_cannot_be_told_is_neither_clean_nor_disturbed() -> None:
    report = report_of("knl")
    tile = next(figure for figure in report.figures if figure.id == "machine")
    assert tile.value == "–"
    assert report.notices == ()
    assert "hidepid=2" in report.section("machine").blocks[0].text  # type: ignore[union-attr]


def test_a_disturbance_outside_the_steps_comes_last_and_is_not_the_tiles() -> None:
    machine = vm_machine()
    early = structs.replace(machine.disturbances[0], within_steps=False)
    machine = structs.replace(machine, disturbances=(early, machine.disturbances[1]))
    report = build_report(with_machine(machine), None)
    block = table(report, "machine", "disturbance-table")
    assert [str(what)[:14] for what in column(block, "what")] == ["The hypervisor", "Processes that"]
    tile = next(figure for figure in report.figures if figure.id == "machine")
    assert tile.note == "hypervisor: 12 % for 700 ms, steal time in /proc/stat: 168 ms"


def test_ceilings_keep_bandwidth_and_arithmetic_apart_and_name_their_source() -> None:
    block = table(report_of("gpu"), "machine", "ceilings-table")
    assert column(block, "bandwidth") == [212e9, 209e9, 2.9e12, None, None]
    assert column(block, "rate") == [None, None, None, 742e12, 67e12]
    assert column(block, "source")[3:] == ["measured", "theoretical: H100 SXM, dense"]


def test_what_every_ceiling_was_measured_under_is_said_once() -> None:
    machine = vm_machine()
    told = ceiling_note(None, 0.15)
    ceilings = tuple(structs.replace(ceiling, note=told, pressure_ratio=0.15) for ceiling in machine.ceilings)
    report = build_report(with_machine(structs.replace(machine, ceilings=ceilings)), None)
    block = table(report, "machine", "ceilings-table")
    assert " ".join(render_text(report).split()).count(f"For every peak: {told}.") == 1
    assert "note" not in [one.key for one in block.columns]
    own = structs.replace(ceilings[0], note=ceiling_note(0.15, 0.15), spread_ratio=0.15)
    report = build_report(with_machine(structs.replace(machine, ceilings=(own, *ceilings[1:]))), None)
    notes = column(table(report, "machine", "ceilings-table"), "note")
    assert [note for note in notes if note] == ["repetitions differ by 15 %"]
    assert " ".join(render_text(report).split()).count(f"For every peak: {told}.") == 1


def test_what_the_machine_could_not_tell_stands_with_what_was_not_collected() -> None:
    report = report_of("vm")
    gaps = dict(
        zip(
            *(column(table(report, "missing", "missing-table"), key) for key in ("what", "reason")),
            strict=True,
        )
    )
    assert gaps["energy"] == "no RAPL domain under /sys/class/powercap"
    assert gaps["GPU timelines"]


def test_locality_bars_are_shares_and_their_end_says_what_is_local() -> None:
    chart = report_of("gpu").section("traffic").blocks[0]
    assert isinstance(chart, StackedBars)
    assert chart.unit is Unit.RATIO
    assert [bar.end for bar in chart.bars[2:5]] == ["97 % local", "8 % local", "97 % local"]
    for bar in chart.bars:
        assert bar.total == pytest.approx(1)


def test_one_node_with_all_memory_local_needs_no_chart() -> None:
    blocks = report_of("vm").section("traffic").blocks
    assert not [block for block in blocks if isinstance(block, StackedBars)]


def test_wire_bytes_stand_beside_the_formulas_and_a_missing_reading_is_not_zero() -> None:
    block = table(report_of("vm"), "traffic", "wire-table")
    assert column(block, "ratio") == [pytest.approx(63_981_000 / 21_233_664), None]
    assert column(block, "wire") == [63_981_000, None]
    assert column(block, "reason") == [None, "no reading fell into the window"]


def test_wire_bytes_over_the_whole_run_are_named_so() -> None:
    machine = vm_machine()
    whole = structs.replace(machine.wire[0], window=-1)
    report = build_report(with_machine(structs.replace(machine, wire=(whole, *machine.wire))), None)
    assert column(table(report, "traffic", "wire-table"), "window") == ["all steps", "window 0", "window 1"]


def test_traffic_is_set_against_its_peak() -> None:
    block = table(report_of("gpu"), "traffic", "traffic-table")
    assert column(block, "share")[4] == pytest.approx(31 / 50)
    assert column(block, "notes")[5] == "counter at its top; peak: link speed"
    vm = table(report_of("vm"), "traffic", "traffic-table")
    assert "share" not in [one.key for one in vm.columns if not one.primary]
    assert column(vm, "peak") == [None, None]


def test_counters_share_one_axis_with_windows_disturbances_and_steps() -> None:
    block = counters_of(report_of("vm"))
    assert block.span_ns == int(11.5 * SECOND)
    assert [(mark.start_ns, mark.end_ns) for mark in block.windows] == [
        (SECOND // 2, SECOND // 2 + 82_000_000),
        (11 * SECOND // 2, 11 * SECOND // 2 + 82_000_000),
    ]
    assert [mark.start_ns / SECOND for mark in block.disturbances] == [4.5, pytest.approx(8.9)]
    assert block.steps is not None
    assert block.steps.start_ns == SECOND // 2 - SECOND // 5
    assert "1 counter stayed at 0" in block.caption


def test_counter_charts_come_by_interest_with_a_unit_each() -> None:
    charts = counters_of(report_of("gpu")).charts
    assert [(chart.title, chart.unit) for chart in charts[:3]] == [
        ("CPUs", Unit.RATIO),
        ("GPUs, utilization", Unit.RATIO),
        ("Memory bandwidth", Unit.RATE),
    ]
    assert len({chart.id for chart in charts}) == len(charts)


def test_a_chart_takes_the_largest_eight_lines_and_counts_the_rest() -> None:
    machine = structs.replace(gpu_machine(), tracks=gpu_tracks("gpu01", num_gpus=16))
    block = counters_of(build_report(with_machine(machine), None))
    power = next(chart for chart in block.charts if chart.title == "Power")
    assert len(power.lines) == 8
    assert power.num_left_out == 8
    assert {line.label for line in power.lines} == {f"GPU {gpu} power" for gpu in range(8, 16)}


def test_many_lines_of_several_kinds_get_a_chart_per_kind() -> None:
    busy = tuple(wave("h", "gpu", f"GPU {g} busy", "ratio", 0.9, 0.1, g) for g in range(8))
    tensor = tuple(wave("h", "gpu", f"GPU {g} tensor cores active", "ratio", 0.4, 0.1, g) for g in range(8))
    odd = (wave("h", "gpu", "GPU 0 throttled: power", "ratio", 0.1, 0.1, 1),)
    machine = structs.replace(gpu_machine(), tracks=(*busy, *tensor, *odd))
    charts = counters_of(build_report(with_machine(machine), None)).charts
    assert [chart.title for chart in charts] == [
        "GPU busy",
        "GPU tensor cores active",
        "GPUs, utilization, others",
    ]
    assert [len(chart.lines) for chart in charts] == [8, 8, 1]


def line(mean: tuple[float, ...], **given: object) -> CounterLine:
    values: dict[str, object] = {
        "label": "x",
        "t_ns": tuple(range(len(mean))),
        "mean": mean,
        "low": mean,
        "high": mean,
    }
    return CounterLine(**values | given)  # type: ignore[arg-type]


def chart(*lines: CounterLine, unit: Unit = Unit.RATE) -> CounterChart:
    return CounterChart(id="x", title="x", unit=unit, lines=lines)


def test_a_gap_breaks_the_line_and_is_null_in_the_page() -> None:
    gapped = line((1.0, 2.0, math.nan, 3.0, 4.0))
    frame = chart_layout.counter_frame(chart(gapped))
    assert [len(run) for run in line_runs(frame, gapped, 4)] == [2, 2]
    block = Counters(id="x", title="x", span_ns=4, charts=(chart(gapped),))
    assert counters_payload(block)["charts"][0]["lines"][0]["mean"] == [1, 2, None, 3, 4]  # type: ignore[index]


def test_a_near_peak_is_drawn_and_a_far_one_is_told_once() -> None:
    near = chart(line((10e9, 12e9), peak=15e9, peak_source="link speed"))
    frame = chart_layout.counter_frame(near)
    assert frame.peaks == (15e9,)
    assert frame.high > 15e9
    far = chart(*(line((1e9, 2e9), peak=50e9, peak_source="link speed") for _ in range(3)))
    frame = chart_layout.counter_frame(far)
    assert frame.peaks == ()
    assert chart_layout.chart_note(far, frame) == "at most 50.0 GB/s (link speed)"
    assert chart_layout.line_note(far, far.lines[0], frame) == "mean 1.50 GB/s"


@given(
    st.sampled_from(
        [Unit.RATIO, Unit.RATE, Unit.BYTES, Unit.POWER, Unit.FREQUENCY, Unit.TEMPERATURE, Unit.EVENTS]
    ),
    st.floats(1e-4, 1e15),
)
def test_value_ticks_lie_on_the_axis_and_name_one_unit(unit: Unit, high: float) -> None:
    ticks = chart_layout.value_ticks(unit, 0, high, 4)
    assert 2 <= len(ticks) <= 8
    assert all(-1e-6 <= tick.position <= 100 + 1e-6 for tick in ticks)
    words = {tick.text.split(" ", 1)[1] for tick in ticks if tick.text != "0"}
    assert len(words) == 1
    assert len({tick.text for tick in ticks}) == len(ticks)


def roofline_of(name: str) -> RooflineChart:
    block = report_of(name).section("roofline").blocks[0]
    assert isinstance(block, RooflineChart)
    return block


@pytest.mark.parametrize("name", ["vm", "gpu"])
def test_the_roofline_holds_every_point_and_its_roof_bends_at_the_ridge(name: str) -> None:
    chart = roofline_of(name)
    frame = chart_layout.roof_frame(chart)
    for point in chart.points:
        assert 0 < frame.x(point.intensity) < 100
        assert 0 < frame.y(point.flops_per_s) < 100
    start, ridge, end = chart_layout.roof_line(chart, frame)
    assert ridge[1] == end[1] == pytest.approx(frame.y(chart.peak_flops_per_s))
    assert ridge[0] == pytest.approx(frame.x(chart.peak_flops_per_s / chart.bandwidth_bytes_per_s))
    assert start[0] < ridge[0] < end[0]


@pytest.mark.parametrize(("width", "height"), [(780, 360), (270, 300), (740, 340)])
@pytest.mark.parametrize("name", ["vm", "gpu"])
def test_names_on_the_roofline_do_not_touch(name: str, width: int, height: int) -> None:
    labels = chart_layout.roof_labels(roofline_of(name), width, height, most=9)
    boxes = []
    for label in labels:
        size = len(label.text) * 6.6
        left = (
            label.x * width / 100 + label.right - {"start": 0, "middle": size / 2, "end": size}[label.anchor]
        )
        bottom = label.y * height / 100 + label.up
        boxes.append((left, bottom, left + size, bottom + 9))
        assert left >= 0
        assert left + size <= width
    for n, one in enumerate(boxes):
        for other in boxes[n + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.parametrize("peak", [5.74e10, 1e12])
@pytest.mark.parametrize("least", [1e3, 2e5, 4e9])
def test_there_is_room_for_the_roofs_name_above_it(peak: float, least: float) -> None:
    block = roofline_of("vm")
    point = structs.replace(block.points[0], flops_per_s=least)
    block = structs.replace(block, peak_flops_per_s=peak, points=(point,))
    assert chart_layout.roof_frame(block).y(peak) <= chart_layout.ROOF_AIR


def test_pressure_of_ranks_says_why_it_may_exceed_all_of_the_time() -> None:
    base = wave("h", "pressure", "CPU pressure, rank 0", "ratio", 1.3, 0.1, 0)
    for peak, summed in ((None, True), (1.0, False)):
        machine = structs.replace(gpu_machine(), tracks=(structs.replace(base, peak=peak),))
        (drawn,) = counters_of(build_report(with_machine(machine), None)).charts
        assert ("rank values are summed over threads" in drawn.title) is summed


def test_roofline_figures_are_marked_as_modeled() -> None:
    block = table(report_of("vm"), "roofline", "roofline-table-0")
    modeled = {one.key for one in block.columns if one.modeled}
    assert modeled == {"intensity", "flop_rate", "byte_rate"}
    assert column(block, "time") == sorted(column(block, "time"), reverse=True)  # type: ignore[type-var]


def test_a_roofline_without_a_ceiling_is_not_drawn() -> None:
    machine = vm_machine(synthetic_analysis().layers)
    broken = structs.replace(machine.rooflines[0], peak_flops_per_s=0.0)
    report = build_report(with_machine(structs.replace(machine, rooflines=(broken,))), None)
    assert "roofline" not in [section.id for section in report.sections]


def test_the_timeline_carries_counters_and_disturbances_of_its_windows() -> None:
    block = report_of("vm").section("timeline").blocks[0]
    assert isinstance(block, Timeline)
    assert [lane.label for lane in block.lanes if lane.window == 1][:2] == ["CPU busy", "CPU of this run"]
    for lane in block.lanes:
        assert lane.t_ns[0] <= 0
        assert list(lane.t_ns) == sorted(lane.t_ns)
    ((window, mark),) = block.disturbances
    duration = block.extract.windows[1].dur_ns
    assert (window, mark.start_ns, mark.end_ns) == (1, 0, duration)


def test_the_timeline_shows_counters_of_its_own_hosts_only() -> None:
    block = report_of("gpu").section("timeline").blocks[0]
    assert isinstance(block, Timeline)
    assert block.lanes == ()


@pytest.mark.parametrize("name", list(MACHINES))
def test_every_renderer_has_every_section_of_the_machine(name: str) -> None:
    report = report_of(name)
    on_screen = Page(render_html(report)).sections
    assert section_titles(report) == on_screen
    text = render_text(report, width=80)
    assert max(cells(row) for row in text.splitlines()) <= 80
    for section in ("Machine", "Counters over the run", "Memory, links and energy"):
        assert section in [title for _, title in on_screen]
        assert f"\n{section}\n" in text
    assert render_pdf(report).startswith(b"%PDF-")


def test_text_report_of_a_disturbed_guest_is_as_kept() -> None:
    check("machine.txt", scrub(render_text(report_of("vm"), width=100)))


def test_json_holds_everything_analysis_found_of_the_machine() -> None:
    machine = gpu_machine(synthetic_analysis().layers)
    document = json.loads(
        render_json(build_report(with_machine(machine), None).document), parse_constant=pytest.fail
    )["machine"]
    assert set(document) == set(MachineAnalysis.__struct_fields__)
    assert document["windows"][1] == {
        "window": 1,
        "start_ns": START + 5 * SECOND,
        "end_ns": START + 5 * SECOND + 82_000_000,
    }
    assert set(document["tracks"][0]) == set(CounterTrack.__struct_fields__)
    assert document["placements"][3]["memory_nodes"] == {"0": 0.08, "1": 0.92}
    assert document["topologies"]["gpu01"]["gpus"][0]["numa_node"] == 0
    assert None in next(t["mean"] for t in document["tracks"] if t["title"] == "GPU 0 power")


def test_json_of_a_run_without_a_machine_says_null() -> None:
    assert build_report(with_machine(None), None).document["machine"] is None


def test_the_headline_counts_the_cpus_of_hosts_with_ranks() -> None:
    """Also where the launcher's host was described, such as that of an emulated cluster."""
    analysis = with_machine(None)
    hosts = {rank.host for rank in analysis.ranks if rank.host}

    def cpus(*names: str) -> list[str]:
        records = {name: topology_record({"host": name, "logical_cpus": 2}) for name in names}
        machine = MachineAnalysis(hosts=names, topologies=records, clean=None, clean_reason="none")
        found = structs.replace(analysis, machine=machine)
        return [part for part in build_report(found, None).context if part.endswith("CPUs")]

    expected = [f"{2 * len(hosts)} CPUs"]
    assert cpus(*hosts) == expected
    assert cpus(*hosts, "launcher") == expected
    assert cpus("launcher") == []  # how many the ranks have is not known


def test_a_machine_of_which_nothing_but_its_name_is_known_still_reports() -> None:
    bare = MachineAnalysis(hosts=("h",), topologies={}, clean=None, clean_reason="nothing was sampled")
    report = build_report(with_machine(bare), synthetic_timeline())
    assert "nothing was sampled" in render_text(report)
    assert render_html(report)
    assert render_pdf(report).startswith(b"%PDF-")


def test_hundreds_of_disturbances_do_not_number_on_one_another() -> None:
    machine = vm_machine()
    many = tuple(
        Disturbance(
            host="node01",
            kind=DisturbanceKind.STEAL,
            start_ns=START + n * 40_000_000,
            end_ns=START + n * 40_000_000 + 20_000_000,
            severity=0.1,
            title=f"steal {n}",
            evidence=(),
        )
        for n in range(250)
    )
    report = build_report(with_machine(structs.replace(machine, disturbances=many)), None)
    html = render_html(report)
    assert html.count('class="ct-number"') <= 41
