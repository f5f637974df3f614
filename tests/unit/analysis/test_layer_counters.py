"""Counters of layers: means over steps and ranks, shared PMUs, sums, and what is missing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analysis.counter_results import Counters
from perfscope.analysis.layer_counters import counted_run
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.spans import WindowFacts, window_facts
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.document import build_document
from perfscope.rundir.window_records import CountedLayers, WindowSummary
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from tests.support.synthetic_run import SyntheticRun, span

SOFTWARE = ("task_clock_ns", "minor_faults", "major_faults", "context_switches", "run_queue_wait_ns")
HARDWARE = ("instructions", "cycles", "llc_misses", "hardware_enabled_ns", "hardware_running_ns")
NO_PMU = {name: ["no_pmu", "No such file or directory"] for name in HARDWARE[:3]}


def counters(rows: list[list[Any]], columns: tuple[str, ...] = SOFTWARE, **more: Any) -> dict[str, Any]:
    """As in a summary; two steps."""
    return {
        **{
            "num_steps": 2,
            "columns": columns,
            "rows": [[phase, name, values] for phase, name, *values in rows],
        },
        **{"software_source": "perf_event_open"},
        **{"user_only": False, "refused": {}, "ended": None, "problem": "", **more},
    }


OPS = [
    span(0, 40, "compute", layer="a", phase="forward", flops=100, bytes_read=8, bytes_written=8),
    span(50, 40, "compute", layer="b", phase="forward"),
    span(100, 40, "compute", layer="b", phase="backward"),
]


def analyze(path: Path, *of_ranks: dict[str, Any] | None) -> RunAnalysis:
    run = SyntheticRun(path)
    for rank, counted in enumerate(of_ranks):
        run.rank(rank)
        run.steps(rank, [200, 200])
        run.window(rank, OPS, [(0, 0, 200), (1, 200, 400)], counters=counted)
    return analyze_run(run.read())


def layer(analysis: RunAnalysis, name: str) -> Any:
    found = next(layer for layer in analysis.layers if layer.layer == name).counters
    assert found is not None
    return found


def missing(analysis: RunAnalysis) -> list[tuple[str, str]]:
    return [
        (figure_text(entry), cause_text(entry))
        for entry in analysis.missing
        if entry.figure is Figure.LAYER_COUNTERS
    ]


def test_a_layer_has_the_mean_of_steps_and_ranks(tmp_path: Path) -> None:
    first = counters(
        [
            ["forward", "a", 10, 4, 0, 2, 8],
            ["forward", "b", 20, 0, 0, 0, 0],
            ["backward", "b", 40, 2, 2, 0, 0],
            ["other", "", 100, 6, 0, 0, 0],
        ]
    )
    second = counters([["forward", "a", 30, 0, 0, 0, 0]])
    analysis = analyze(tmp_path, first, second)
    assert layer(analysis, "a").task_clock_ns == (10 + 30) / 2 / 2
    assert layer(analysis, "a").minor_faults == 4 / 2 / 2  # none on the other rank, which counted them too
    assert layer(analysis, "b").task_clock_ns == 60 / 2 / 2
    assert layer(analysis, "b").major_faults == 2 / 2 / 2
    assert layer(analysis, "a").run_queue_wait_ns == 8 / 2 / 2
    assert layer(analysis, "a").cpu_migrations is None  # no rank has the counter
    step = analysis.counters
    assert step is not None and step.num_steps == 4 and step.ranks == (0, 1)
    assert step.step.task_clock_ns == 200 / 2 / 2
    assert step.outside_layers.task_clock_ns == 100 / 2 / 2
    assert missing(analysis) == []


def test_a_rank_without_a_counter_does_not_lower_the_mean(tmp_path: Path) -> None:
    with_pmu = counters([["forward", "a", 50, 25, 4, 1000, 1000]], HARDWARE)
    without = counters([["forward", "a", 10, 0, 0, 0, 0]], SOFTWARE, refused=NO_PMU)
    analysis = analyze(tmp_path, with_pmu, without)
    assert layer(analysis, "a").instructions == 25 and layer(analysis, "a").task_clock_ns == 5
    assert layer(analysis, "a").ipc == 2.0
    assert missing(analysis) == [
        (
            "instructions, cycles, llc misses of layers on rank 1",
            "the kernel offers no such event here (No such file or directory), as is usual in virtual "
            "machines",
        )
    ]


def test_hardware_counters_of_a_shared_pmu_are_scaled_layer_by_layer(tmp_path: Path) -> None:
    rows = [
        ["forward", "a", 100, 50, 6, 400, 100],  # counted a quarter of the time
        ["forward", "b", 100, 50, 2, 400, 400],
        ["backward", "b", 10, 5, 1, 400, 200],
    ]
    analysis = analyze(tmp_path, counters(rows, HARDWARE))
    a, b = layer(analysis, "a"), layer(analysis, "b")
    assert (a.instructions, a.cycles, a.llc_miss_bytes) == (200, 100, 6 * 4 / 2 * 64)
    assert a.running_ratio == 0.25 and b.running_ratio == 0.5
    assert b.instructions == (100 + 20) / 2
    assert (b.forward_llc_miss_bytes, b.backward_llc_miss_bytes) == (64.0, 64.0)
    assert a.backward_llc_miss_bytes == 0.0  # counted, and there were none


def test_a_layer_during_which_the_pmu_never_counted_has_no_figure(tmp_path: Path) -> None:
    rows = [
        ["forward", "a", 0, 0, 0, 400, 0],
        ["forward", "b", 100, 50, 2, 400, 400],
    ]
    analysis = analyze(tmp_path, counters(rows, HARDWARE))
    assert layer(analysis, "a").instructions is None and layer(analysis, "b").instructions == 50
    assert analysis.counters is not None
    assert analysis.counters.step.instructions is None  # a part of it is not known
    assert layer(analysis, "b").backward_llc_miss_bytes is None
    assert missing(analysis) == [
        (
            "instructions, cycles, llc misses of layers on rank 0",
            "the processor counted other events all the while in a",
        )
    ]


COUNTS = st.integers(0, 1 << 40)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["forward", "backward", "other"]),
        st.sampled_from(["a", "b", "c", ""]),
        st.tuples(*[COUNTS] * 4, st.integers(1, 1 << 40)).map(
            lambda row: (*row[:3], row[3] + row[4], row[4])  # enabled >= running > 0
        ),
    ),
    max_size=12,
)


@given(st.lists(ROWS, min_size=1, max_size=4), st.sets(st.sampled_from(["a", "b", "c"])))
def test_layers_are_at_most_the_step_and_with_the_rest_the_step(ranks: list[Any], shown: set[str]) -> None:
    windows = {}
    for rank, rows in enumerate(ranks):
        unique = {(phase, name): values for phase, name, values in rows}
        counted = CountedLayers(
            num_steps=3,
            columns=HARDWARE,
            rows=tuple((phase, name, values) for (phase, name), values in unique.items()),
            software_source="perf_event_open",
            user_only=False,
        )
        windows[rank] = [facts(rank, counted)]
    found = counted_run(windows)
    step = found.step(shown)
    assert step is not None
    for name in ("instructions", "cycles", "llc_miss_bytes"):
        layers = sum(getattr(each, name) or 0.0 for layer, each in found.layers.items() if layer in shown)
        total, outside = getattr(step.step, name) or 0.0, getattr(step.outside_layers, name) or 0.0
        assert layers <= total * (1 + 1e-12)
        assert math.isclose(layers + outside, total, rel_tol=1e-9)


def facts(rank: int, counted: CountedLayers) -> WindowFacts:
    return window_facts(WindowSummary(rank=rank, window=0, counters=counted))


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (Cause.TOO_COSTLY, "readings at every layer would have slowed down the traced steps"),
        (Cause.DESCRIPTORS_CLOSED, "the training closed the counters' file descriptors"),
    ],
)
def test_readings_that_ended_say_why(tmp_path: Path, cause: Cause, text: str) -> None:
    analysis = analyze(tmp_path, counters([], num_steps=0, ended=[cause.value, ""]))
    assert analysis.counters is None and all(each.counters is None for each in analysis.layers)
    ((what, why),) = missing(analysis)
    assert what == "counters of layers on rank 0" and why.startswith(text)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, {"problem": "not what was written"})
    assert analysis.counters is None
    assert missing(analysis) == [("counters of layers on rank 0", "not what was written")]
    assert [set(entry.affects) for entry in analysis.missing if entry.affects] == [{"layers", "counters"}]


def test_a_run_without_counters_says_nothing(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, None)
    assert analysis.counters is None and missing(analysis) == []
    assert build_document(analysis)["counters"] is None


def test_counters_are_in_the_document(tmp_path: Path) -> None:
    document: Any = build_document(analyze(tmp_path, counters([["forward", "a", 10, 4, 0, 2, 8]])))
    assert document["layers"][0]["counters"]["minor_faults"] == 2.0
    assert document["layers"][0]["counters"]["ipc"] is None
    assert document["counters"]["step"]["task_clock_ns"] == 5.0
    assert set(Counters.__struct_fields__) == set(document["counters"]["step"])
