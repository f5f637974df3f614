"""One scale: what the report says of a step is of the median untraced one, however slow tracing was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analysis.experts.results import ExpertLayer, ExpertRank, Experts
from perfscope.analysis.pipeline.results import Pipeline, PipelineBubble, PipelineStage
from perfscope.analysis.results import Breakdown, HostIdle, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.usual_step import on_usual_step
from perfscope.reports.build import build_report
from perfscope.reports.model import Report, StackedBars
from perfscope.reports.text import render_text
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.pipelines import Schedule
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
USUAL, SLOWDOWN = 200, 1.78
TRACED = round(USUAL * SLOWDOWN)  # 356 ms
EXPOSED = 0.29


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> RunAnalysis:
    """Two ranks; traced steps take 1.78 times the others, 29 % of them in an exposed all_reduce."""
    run = SyntheticRun(tmp_path_factory.mktemp("run"), world_size=2)
    step, busy = TRACED * MS, round(TRACED * MS * (1 - EXPOSED))
    for rank in (0, 1):
        run.rank(rank)
        every = [USUAL * MS] * 5 + [step] * 6 + [USUAL * MS] * 30
        run.steps(rank, every, window=[0 if 5 <= k < 11 else -1 for k in range(len(every))])
        spans = [
            row
            for k in range(6)
            for row in (
                span(k * step, busy, "compute", layer="fc", phase="forward"),
                comm(k * step + busy, step - busy, k, in_bytes=10**7),
            )
        ]
        run.window(rank, spans, [(5 + k, k * step, (k + 1) * step) for k in range(6)])
    return analyze_run(run.read())


@pytest.fixture(scope="module")
def report(analysis: RunAnalysis) -> Report:
    return build_report(analysis, None)


def test_parts_of_a_rescaled_step_add_up_to_the_median_step(analysis: RunAnalysis) -> None:
    assert analysis.traced_ratio == pytest.approx(SLOWDOWN)
    for rank in on_usual_step(analysis).ranks:
        breakdown = rank.breakdown_ns
        assert breakdown is not None and breakdown.step == pytest.approx(USUAL * MS, abs=1)
        assert sum(getattr(breakdown, part) for part in Breakdown.PARTS) == breakdown.step
        assert breakdown.exposed_comm == pytest.approx(EXPOSED * USUAL * MS, rel=1e-6)


def test_the_step_has_one_length_in_the_whole_report(report: Report) -> None:
    """But for the sentence that says how long traced steps took, and for the path of single steps."""
    text = " ".join(render_text(report).split())
    lengths = re.findall(
        r"(?:step of|of the \w+ step \([\d.]+ [mµn]?s of|Median step time) ([\d.]+ m?s)", text
    )
    assert len(lengths) >= 3
    assert set(lengths) == {f"{USUAL} ms"}
    said = [sentence for sentence in re.split(r"(?<=[.:])\s", text) if f"{TRACED} ms" in sentence]
    assert any("Traced steps took" in sentence for sentence in said)
    assert all(
        "Traced steps took" in sentence or "path" in sentence or "step " in sentence for sentence in said
    )


def test_exposed_communication_has_one_length_in_the_whole_report(report: Report) -> None:
    exposed = f"{USUAL * EXPOSED:.1f} ms"
    text = " ".join(render_text(report).split())
    stated = [
        *re.findall(r"([\d.]+ ms) not overlapped with compute", text),
        *re.findall(r"([\d.]+ ms) of the median step \([^)]*\) is exposed communication", text),
        *re.findall(r"% of the median step \(([\d.]+ ms) of", text),
        *re.findall(r"Average over ranks: ([\d.]+ ms) per step in collectives", text),
    ]
    assert len(stated) >= 4 and set(stated) == {exposed}
    charts = [block for section in report.sections for block in section.blocks]
    bars = next(block for block in charts if isinstance(block, StackedBars) and block.id == "breakdown-chart")
    column = [part.key for part in bars.parts].index("exposed_comm")
    assert {bar.values[column] for bar in bars.bars} == {round(USUAL * MS * EXPOSED)}
    assert report.overview is not None
    assert report.overview.bars[0].values[column] == pytest.approx(USUAL * MS * EXPOSED, abs=1)


def test_savings_are_of_the_same_step(analysis: RunAnalysis) -> None:
    for finding in analysis.findings:
        if finding.gain_ns is not None and finding.gain_ratio is not None:
            assert finding.gain_ns == pytest.approx(finding.gain_ratio * USUAL * MS, rel=0.01, abs=2)
            assert 0 <= finding.gain_ns <= USUAL * MS


def test_imported_traces_are_as_traced(analysis: RunAnalysis, tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, origin="import")
    run.rank(0)
    run.window(0, [span(0, 4 * MS, "compute")], [(0, 0, 10 * MS)])
    imported = analyze_run(run.read())
    assert imported.traced_ratio is None
    assert on_usual_step(imported) is imported


def test_idle_time_by_activity_is_that_of_the_breakdown(analysis: RunAnalysis) -> None:
    idle = (HostIdle(kind=HostActivity.UNTRACED, ns=178), HostIdle(kind=HostActivity.PREEMPTED, ns=89))
    rank = replace(analysis.ranks[0], host_idle=idle)
    (usual, *_) = on_usual_step(replace(analysis, ranks=(rank,))).ranks
    assert usual.host_idle is not None
    assert [entry.ns for entry in usual.host_idle] == [100, 50]


def test_bubble_of_a_pipeline_adds_up_on_the_median_step(analysis: RunAnalysis) -> None:
    bubble = PipelineBubble(
        measured_ns=178_003,
        measured_ratio=0.5,
        ideal_ratio=0.2,
        fill_ns=35_601,
        drain_ns=35_600,
        imbalance_ns=35_601,
        late_sends_ns=35_600,
        other_ns=35_601,
    )
    stage = PipelineStage(
        stage=0, ranks=(0, 1), compute_ns=178_000, wait_ns=17_800, bubble_ns=178_003, relative=1.0
    )
    pipeline = Pipeline(
        schedule=Schedule.ONE_F_ONE_B,
        stages=(stage,),
        num_ranks=2,
        pipelines=((0, 1),),
        microbatches=4,
        virtual_stages=1,
        num_steps=6,
        active_ns=356_000,
        balanced_ns=222_500,
        equal_stages_ns=320_400,
        bubble=bubble,
        shown_step=5,
        spans=(),
    )
    usual = on_usual_step(replace(analysis, pipeline=pipeline)).pipeline
    assert usual is not None
    parts = usual.bubble
    whole = parts.fill_ns + parts.drain_ns + parts.imbalance_ns + parts.late_sends_ns + parts.other_ns
    assert whole == parts.measured_ns == pytest.approx(100_002, abs=1)
    assert parts.measured_ratio == bubble.measured_ratio
    assert (usual.stages[0].compute_ns, usual.stages[0].wait_ns) == (100_000, 10_000)
    assert (usual.active_ns, usual.equal_stages_ns) == (200_000, 180_000)


def test_figures_that_what_ifs_rest_on_are_of_the_median_step(analysis: RunAnalysis) -> None:
    transfers = next(what_if for what_if in analysis.what_ifs if what_if.id == "zero_transfer")
    assert f"transfers take {USUAL * EXPOSED:.1f} ms per step" in transfers.evidence


def test_experts_are_of_the_median_step(analysis: RunAnalysis) -> None:
    ranks = (ExpertRank(rank=0, tokens=4.0, bytes=64, compute_ns=17_800),)
    layer = ExpertLayer(layer="moe", ranks=ranks, imbalance=1.0, wait_ns=8_900, saved_ns=1_780)
    experts = on_usual_step(replace(analysis, experts=Experts(layers=(layer,), num_steps=1))).experts
    assert experts is not None and (experts.saved_ns, experts.layers[0].wait_ns) == (1_000, 5_000)
    assert experts.layers[0].ranks[0].compute_ns == 10_000
