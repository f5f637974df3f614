"""Counters in the section "Layers", and where the bytes of the section "Roofline" come from."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analysis.counter_results import Counters, LayerCounters, StepCounters
from perfscope.analysis.results import RunAnalysis
from perfscope.reports.model import Section, Table
from perfscope.reports.sections.layers import layers_section
from perfscope.reports.sections.roofline import roofline_section
from tests.support.synthetic_machine import vm_machine
from tests.unit.reports.test_synthetic import synthetic_analysis


def with_counters(counters: LayerCounters, *, user_only: bool = False) -> RunAnalysis:
    analysis = synthetic_analysis()
    first, *others = analysis.layers
    step = StepCounters(
        num_steps=2,
        ranks=(0,),
        step=Counters(),
        outside_layers=Counters(),
        software_sources=("perf_event_open",),
        user_only=user_only,
    )
    return replace(analysis, layers=(replace(first, counters=counters), *others), counters=step)


def table_of(section: Section | None, table_id: str) -> Table | None:
    assert section is not None
    return next((one for one in section.blocks if isinstance(one, Table) and one.id == table_id), None)


def test_only_counters_that_were_read_have_a_column() -> None:
    analysis = with_counters(
        LayerCounters(task_clock_ns=1e6, minor_faults=7.0, major_faults=0.5, context_switches=2.0)
    )
    table = table_of(layers_section(analysis), "layer-counters-table")
    assert table is not None
    assert [column.key for column in table.columns] == [
        *("layer", "cpu_time", "page_faults", "major_faults", "context_switches"),
    ]
    assert table.rows == ((analysis.layers[0].layer, 1e6, 7.5, 0.5, 2.0),)  # of layers that have any
    assert "intra-operator threads" in table.caption and "scaled" not in table.caption


def test_shared_and_user_space_counters_are_said_to_be() -> None:
    analysis = with_counters(LayerCounters(instructions=5.0, running_ratio=0.5), user_only=True)
    table = table_of(layers_section(analysis), "layer-counters-table")
    assert table is not None
    assert "scaled up" in table.caption and "leave out what the kernel does" in table.caption


def test_without_counters_there_is_no_table() -> None:
    assert table_of(layers_section(synthetic_analysis()), "layer-counters-table") is None


def test_the_roofline_says_which_bytes_were_measured() -> None:
    analysis = synthetic_analysis()
    machine = vm_machine(analysis.layers)
    modeled = table_of(roofline_section(replace(analysis, machine=machine)), "roofline-table-0")
    assert modeled is not None and "bytes_source" not in [column.key for column in modeled.columns]
    roofline = machine.rooflines[0]
    first, *others = roofline.points
    points = (replace(first, bytes_source="measured"), *others)
    measured = replace(machine, rooflines=(replace(roofline, points=points),))
    table = table_of(roofline_section(replace(analysis, machine=measured)), "roofline-table-0")
    assert table is not None
    place = [column.key for column in table.columns].index("bytes_source")
    sources = [row[place] for row in table.rows]
    assert sources.count("measured") == 1 and sources.count("modeled") == len(sources) - 1
    assert f"bytes for 1 of {len(points)} passes are measured" in table.caption
