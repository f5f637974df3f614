"""The verdict: one cause per made-up run, and no claim the run does not carry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from perfscope.analysis.findings.communication import are_small_inside_host
from perfscope.analysis.findings.loading import input_wait
from perfscope.analysis.results import CollectiveCall, Finding, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.messages.findings.facts import PartOfStep
from perfscope.messages.findings.loading import InputBound
from perfscope.messages.missing import cause_text, figure_text
from tests.support.synthetic_run import EPOCH, SyntheticRun, comm, span

if TYPE_CHECKING:
    from perfscope.analysis.findings.evidence import Evidence

MS = 1_000_000
STEP = [(k, 10 * k * MS, 10 * (k + 1) * MS) for k in range(6)]


def analyze(path: Path, ranks: dict[int, list[dict[str, Any]]], **manifest: Any) -> RunAnalysis:
    """`ranks` gives the spans of one step of 10 ms; they are repeated in each of six steps."""
    run = SyntheticRun(path, world_size=len(ranks), **manifest)
    for rank, spans in ranks.items():
        run.rank(rank)
        repeated = [
            {**one, "start_ns": one["start_ns"] + start, "seq": number if "seq" in one else None}
            for number, start, _ in STEP
            for one in spans
        ]
        run.window(rank, repeated, STEP)
    return analyze_run(run.read())


def by_id(analysis: RunAnalysis) -> dict[str, Finding]:
    return {finding.id: finding for finding in analysis.findings}


def test_compute_bound_names_the_largest_layer(tmp_path: Path) -> None:
    spans = [
        span(0, 4 * MS, "compute", layer="a", phase="forward"),
        span(4 * MS, 5 * MS, "compute", layer="b", phase="backward"),
    ]
    verdict = analyze(tmp_path, {0: spans}).findings[0]
    assert (verdict.id, verdict.layer, verdict.gain_ns) == ("compute_bound", "b", None)
    assert "90.0 % of the mean step (9.00 ms of 10.0 ms)" in verdict.text.title
    assert "layer b (5.00 ms)" in verdict.text.title


def test_a_layer_that_is_small_is_not_the_one_to_look_at(tmp_path: Path) -> None:
    """Most of the computation is in no layer: an attention function, say, beside a small head."""
    spans = [
        span(0, 9 * MS, "compute"),
        span(9 * MS, 200_000, "compute", layer="head", phase="forward"),
    ]
    verdict = analyze(tmp_path, {0: spans}).findings[0]
    assert (verdict.id, verdict.layer) == ("compute_bound", None)
    assert "head" not in verdict.text.title
    assert (
        "the largest, head, has 2.2 % of the computation (200 µs), all of them 2.2 %" in verdict.text.detail
    )
    assert "largest layers" not in verdict.text.action


def test_waiting_for_a_late_rank_is_told_and_laid_at_the_rank(tmp_path: Path) -> None:
    quick = [span(0, 2 * MS, "compute"), comm(2 * MS, 7 * MS, 0)]
    slow = [span(0, 8 * MS, "compute"), comm(8 * MS, 1 * MS, 0)]
    analysis = analyze(tmp_path, {0: quick, 1: quick, 2: quick, 3: slow})
    verdict = analysis.findings[0]
    assert (verdict.id, verdict.rank) == ("straggler", 3)
    assert "the others wait 60.0 % of the mean step (6.00 ms of 10.0 ms) for it" in verdict.text.title
    assert "enters last in 6 of 6 collectives" in verdict.text.title
    assert verdict.text.detail.startswith(
        "Rank 3 takes 6.00 ms more per step than its peers for the same work"
    )
    assert "the step would take 4.00 ms" in verdict.text.detail
    assert verdict.text.detail.endswith("Mean of 6 traced steps on 4 ranks.")
    assert verdict.gain_ns == 6 * MS
    assert "rank 3" in verdict.text.action
    assert "comm_bound" not in by_id(analysis)  # the same time under another name


def test_a_late_rank_that_sleeps_is_named_with_what_it_does(tmp_path: Path) -> None:
    quick = [span(0, 4 * MS, "compute"), comm(4 * MS, 5 * MS, 0)]
    slow = [span(0, 4 * MS, "compute"), comm(8 * MS, 1 * MS, 0)]
    verdict = analyze(tmp_path, {0: quick, 1: slow}).findings[0]
    assert (verdict.id, verdict.rank) == ("straggler", 1)
    assert verdict.gain_ns == pytest.approx(4 * MS, rel=0.05)  # the last step's end has nobody to wait for
    assert "4.00 ms more per step than its peers" in verdict.text.detail
    assert "4.00 ms of it in no operator" in verdict.text.detail


@pytest.mark.parametrize("is_everywhere", [True, False])
def test_a_rank_with_more_arithmetic_in_every_layer_has_larger_inputs_and_is_not_slow(
    tmp_path: Path, is_everywhere: bool
) -> None:
    def passes(times: int) -> list[dict[str, Any]]:
        took = times * 14 * MS // 10
        flops = {layer: 1000 * (times if is_everywhere or layer == "b" else 1) for layer in "abc"}
        spans = [
            span(at * took, took, "compute", layer=layer, phase="forward", flops=flops[layer])
            for at, layer in enumerate("abc")
        ]
        return [*spans, comm(3 * took, 9 * MS - 3 * took, 0)]

    verdict = analyze(tmp_path, {0: passes(1), 1: passes(1), 2: passes(2)}).findings[0]
    if is_everywhere:
        assert verdict.id == "imbalance" and "rank 2" in verdict.text.title
        assert "2 times the arithmetic of the others" in verdict.text.detail
        assert "group samples by length" in verdict.text.action
    else:
        assert (verdict.id, verdict.rank) == ("straggler", 2)


def test_a_large_removable_part_comes_before_the_computation_that_must_remain(tmp_path: Path) -> None:
    spans = [span(0, 5 * MS, "compute"), span(5 * MS, 4 * MS, "input")]
    assert analyze(tmp_path, {0: spans}).findings[0].id == "input_bound"
    spans = [span(0, 8 * MS, "compute"), span(8 * MS, 1 * MS, "input")]
    assert analyze(tmp_path, {0: spans}).findings[0].id == "compute_bound"


def test_a_slow_transfer_is_not_laid_at_a_rank(tmp_path: Path) -> None:
    spans = [span(0, 2 * MS, "compute"), comm(2 * MS, 7 * MS, 0, in_bytes=10**6)]
    analysis = analyze(tmp_path, {0: spans, 1: spans})
    verdict = analysis.findings[0]
    assert verdict.id == "slow_link"
    assert "Send fewer bytes" in verdict.text.action  # one call per step, and nothing hides it
    assert "0.0 % of the communication overlaps with compute." in verdict.text.detail
    assert "straggler" not in by_id(analysis)


def test_slow_transfers_of_little_are_laid_at_latency(tmp_path: Path) -> None:
    spans = [span(0, 2 * MS, "compute"), comm(2 * MS, 7 * MS, 0, in_bytes=1000)]
    assert "latency rules" in analyze(tmp_path, {0: spans, 1: spans}).findings[0].text.action


@pytest.mark.parametrize(
    ("hosts", "is_one"), [(("a", "a"), True), (("a", "b"), False), (("", ""), False)], ids=str
)
def test_small_calls_are_inside_a_host_only_where_it_is_known(hosts: tuple[str, str], is_one: bool) -> None:
    evidence = cast("Evidence", SimpleNamespace(ranks=[SimpleNamespace(host=host) for host in hosts]))
    calls = [cast("CollectiveCall", SimpleNamespace(bytes=1000))]
    assert are_small_inside_host(evidence, calls) is is_one


def test_small_calls_inside_a_host_are_not_limited_by_bandwidth(tmp_path: Path) -> None:
    """Though the larger of two sizes takes longer: threads wait for CPUs, and two sizes are no law."""
    calls = [comm(2 * MS, MS, 0, in_bytes=20_000), comm(3 * MS, 5 * MS, 1, in_bytes=100_000)]
    run = SyntheticRun(tmp_path, world_size=2)
    for rank in (0, 1):
        run.rank(rank)
        run.window(rank, [span(0, 2 * MS, "compute"), *calls], STEP[:1])
    verdict = analyze_run(run.read()).findings[0]
    assert verdict.id == "comm_bound"
    assert "latency rules" in verdict.text.action


def test_many_slow_transfers_are_laid_at_the_link(tmp_path: Path) -> None:
    calls = [comm(2 * MS + k * MS, MS, k, in_bytes=10**6) for k in range(7)]
    run = SyntheticRun(tmp_path, world_size=2)
    for rank in (0, 1):
        run.rank(rank)
        run.window(rank, [span(0, 3 * MS, "compute"), *calls], STEP[:1])
    verdict = analyze_run(run.read()).findings[0]
    assert verdict.id == "slow_link"
    assert "intra-host bandwidth" in verdict.text.title
    assert "fewer processes with more threads" in verdict.text.action
    assert "14.3 % of the communication overlaps with compute." in verdict.text.detail


def test_one_traced_rank_of_many_claims_no_waiting(tmp_path: Path) -> None:
    spans = [span(0, 2 * MS, "compute"), comm(2 * MS, 7 * MS, 0, group_size=8)]
    verdict = analyze(tmp_path, {0: spans}).findings[0]
    assert verdict.id == "comm_bound" and verdict.rank is None
    assert "last" not in verdict.text.title
    assert "cannot be distinguished" in verdict.text.detail


def test_input_bound_names_the_rank_that_waits_longest(tmp_path: Path) -> None:
    verdict = analyze(
        tmp_path,
        {0: [span(0, 6 * MS, "input")], 1: [span(0, 8 * MS, "input"), span(8 * MS, 1 * MS, "compute")]},
    ).findings[0]
    assert (verdict.id, verdict.rank, verdict.gain_ns) == ("input_bound", 1, 6 * MS)


@pytest.mark.parametrize(("gain_ratio", "waited"), [(0.45, 450.0), (0.012, 10.0)])
def test_a_wait_is_no_shorter_than_what_removing_it_saves(gain_ratio: float, waited: float) -> None:
    """One pause fills the traced step, in which the wait is 1 %; the steps beside it say how long it is."""
    evidence = SimpleNamespace(
        mean_input=None,
        loading=(),
        metas={},
        framework="torch",
        step=1000.0,
        mean=lambda part: 10.0,
        gain=lambda what_if, cost: (9, gain_ratio),
        traced=[(SimpleNamespace(rank=0), SimpleNamespace(input_wait=10))],
        of_step=lambda part_ns: PartOfStep(part_ns=part_ns, step_ns=1000.0, has_step_marks=True),
    )
    facts = input_wait(cast("Evidence", evidence)).facts
    assert isinstance(facts, InputBound)
    assert facts.input_wait.part_ns == facts.worst_ns == waited


@pytest.mark.parametrize(
    ("launched", "host_kind", "verdict"),
    [
        (-1000, "runtime", "launch_bound"),  # before each kernel: nothing is queued while the device idles
        (-1000, "host", "launch_bound"),
        (-1000, "python", "idle_bound"),  # the host does something else
        (None, "runtime", "idle_bound"),  # all at the beginning: the queue is full
    ],
)
def test_launch_bound_needs_an_empty_queue_and_a_host_that_launches(
    tmp_path: Path, launched: int | None, host_kind: str, verdict: str
) -> None:
    def kernel(index: int) -> dict[str, Any]:
        start = index * MS
        launch = EPOCH + (-1000 if launched is None else start + launched)
        return span(start, MS // 4, "compute", device=0, lane=7, launch_ns=launch, launch_step=0)

    name = {"runtime": "cudaLaunchKernel", "host": "aten::add", "python": "train.py(3): log"}[host_kind]
    calls = [span(k * MS + MS // 4, MS // 2, host_kind, name=name) for k in range(10)]
    run = SyntheticRun(tmp_path)
    run.rank(0)
    run.window(0, [*(kernel(k) for k in range(10)), *calls], STEP[:1])
    analysis = analyze_run(run.read())
    assert analysis.findings[0].id == verdict
    idle = analysis.ranks[0].device_idle
    assert idle is not None
    assert (sum(entry.queue_empty_ns or 0 for entry in idle) > 0) == (launched is not None)


def test_idle_on_a_cpu_is_not_blamed_on_launches(tmp_path: Path) -> None:
    assert analyze(tmp_path, {0: [span(0, MS, "compute")]}).findings[0].id == "host_bound"


def test_many_small_collectives_are_noticed(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, world_size=2)
    for rank in (0, 1):
        run.rank(rank)
        calls = [comm(5 * MS + k * MS // 20, MS // 25, k, in_bytes=400) for k in range(100)]
        run.window(rank, [span(0, 5 * MS, "compute"), *calls], STEP[:1])
    verdict = analyze_run(run.read()).findings[0]
    assert verdict.id == "small_collectives"
    assert "100 all_reduce calls per step carry only 400 B each" in verdict.text.title
    assert verdict.gain_ns == 99 * MS // 25


def test_small_collectives_that_computation_hides_cost_nothing(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, world_size=2)
    for rank in (0, 1):
        run.rank(rank)
        calls = [comm(k * MS // 10, MS // 20, k, in_bytes=400) for k in range(100)]
        run.window(rank, [span(0, 10 * MS, "compute"), *calls], STEP[:1])
    assert "small_collectives" not in by_id(analyze_run(run.read()))


def test_ranks_that_are_not_there_are_said_in_the_words_of_the_run(tmp_path: Path) -> None:
    spans = [span(0, 9 * MS, "compute")]
    ran = analyze(tmp_path / "run", {0: spans}, expected_ranks=4, attach_notes=["env -i hides the probe."])
    assert by_id(ran)["ranks_missing"].text.title == "1 of 4 ranks were attached."
    assert by_id(ran)["ranks_missing"].text.detail == "env -i hides the probe."
    imported = analyze(tmp_path / "import", {0: spans}, expected_ranks=8, origin="import")
    assert by_id(imported)["ranks_missing"].text.title == "The traces of 1 of 8 ranks were imported."


def test_overhead_over_the_budget_is_a_finding(tmp_path: Path) -> None:
    # 200 ms of steps; 1.004 % reads as 1.00 %, which is not over 1.00 %.
    for name, cost, expected in (
        ("over", 3_000_000, True),
        ("little", 2_008_000, False),
        ("within", 1_000_000, False),
    ):
        run = SyntheticRun(tmp_path / name, options={"overhead": 0.01})
        run.rank(0, overhead={"windows_ns": cost, "always_on_ns": 0})
        run.steps(0, [50 * MS] * 4)
        analysis = analyze_run(run.read())
        assert ("overhead" in by_id(analysis)) is expected


def test_input_is_the_verdict_without_a_trace_only_when_it_weighs(tmp_path: Path) -> None:
    for name, wait, expected in (("much", 30, "input_bound"), ("little", 3, "not_traced")):
        run = SyntheticRun(tmp_path / name)
        run.rank(0)
        run.steps(0, [100] * 10, input_ns=[wait] * 10)
        assert analyze_run(run.read()).findings[0].id == expected


@pytest.mark.parametrize("kind", ["compute", "comm", "copy", "input", "optimizer", "host"])
def test_every_finding_is_a_sentence_with_an_action(tmp_path: Path, kind: str) -> None:
    columns = {"lane": 200, "collective": "all_reduce", "group": "0", "seq": 0} if kind == "comm" else {}
    for finding in analyze(tmp_path, {0: [span(0, 9 * MS, kind, **columns)]}).findings:
        assert (
            finding.text.title.endswith(".")
            and finding.text.detail.endswith(".")
            and finding.text.action.endswith(".")
        )
        assert (finding.gain_ns is None) == (finding.gain_ratio is None)


def test_advice_for_small_calls_depends_on_what_a_bench_run_sends(tmp_path: Path) -> None:
    spans = [span(0, 2 * MS, "compute"), comm(2 * MS, 7 * MS, 0)]
    data = {"axes": {"parallelism": "data", "optimisation": "decentralised"}}
    model = {"axes": {"parallelism": "model", "optimisation": "decentralised"}}
    by_scheme = {
        name: analyze(tmp_path / name, {0: spans, 1: spans}, scheme=scheme).findings[0].text.action
        for name, scheme in (("none", None), ("data", data), ("model", model))
    }
    assert "no_sync" in by_scheme["none"] and by_scheme["data"] == by_scheme["none"]
    assert "fewer ranks in the group" in by_scheme["model"]


def test_a_server_that_waits_for_its_workers_is_no_imbalance(tmp_path: Path) -> None:
    serving = [span(0, 1 * MS, "compute"), comm(1 * MS, 8 * MS, 0, in_bytes=10**6)]
    working = [span(0, 6 * MS, "compute"), comm(6 * MS, 3 * MS, 0, in_bytes=10**6)]
    ranks = {0: serving, 1: working, 2: working}
    groups = [{"axis": "server", "ranks": [0, worker]} for worker in (1, 2)]
    alike = analyze(tmp_path / "a", ranks, scheme={"groups": groups})
    assert "balanced work" not in " ".join(finding.text.title for finding in alike.findings)
    unequal = analyze(tmp_path / "b", ranks)
    assert "balanced work" in " ".join(finding.text.title for finding in unequal.findings)


SERVED = {"groups": [{"axis": "server", "ranks": [0, worker]} for worker in (1, 2)]}


def test_a_busy_server_is_named_before_the_idle_time_that_its_work_and_its_workers_have(
    tmp_path: Path,
) -> None:
    """More of the mean step is idle than the workers wait: what the server does runs no operator."""
    serving = [comm(9 * MS, 1 * MS, 0, in_bytes=10**6)]
    working = [span(0, 1 * MS, "compute"), comm(1 * MS, 4 * MS, 0, in_bytes=10**6)]
    ranks = {0: serving, 1: working, 2: working}
    found = analyze(tmp_path / "a", ranks, scheme=SERVED).findings
    assert found[0].id == "server_bound"
    assert "rank 0 is busy 90 % of the time, and its 2 workers wait for it 40 %" in found[0].text.title
    assert found[0].rank == 0
    assert found[0].gain_ratio == pytest.approx(0.4)
    assert analyze(tmp_path / "b", ranks).findings[0].id != "server_bound"  # no rank of it is known to serve


def test_a_server_is_not_named_that_idles_or_that_hardly_keeps_its_workers_waiting(tmp_path: Path) -> None:
    idling = [span(0, 1 * MS, "compute"), comm(1 * MS, 9 * MS, 0, in_bytes=10**6)]
    busy = [span(0, 9 * MS, "compute"), comm(9 * MS, 1 * MS, 0, in_bytes=10**6)]
    waiting = [span(0, 6 * MS, "compute"), comm(6 * MS, 4 * MS, 0, in_bytes=10**6)]
    quick = [span(0, 9 * MS, "compute"), comm(9 * MS, 1 * MS, 0, in_bytes=10**6)]
    for name, server, worker in (("idle", idling, waiting), ("quick", busy, quick)):
        analysis = analyze(tmp_path / name, {0: server, 1: worker, 2: worker}, scheme=SERVED)
        assert "server_bound" not in by_id(analysis)


def test_a_verdict_on_two_traced_steps_says_that_confidence_is_low(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.rank(0)
    run.window(0, [span(0, 5 * MS, "compute"), span(10 * MS, 5 * MS, "compute")], STEP[:2])
    verdict = analyze_run(run.read()).findings[0]
    assert "Mean of 2 traced steps on one rank." in verdict.text.detail
    assert verdict.confidence is not None and verdict.confidence.sentence == "Confidence low: only 2 steps."
    six = analyze(tmp_path / "six", {0: [span(0, 5 * MS, "compute")]}).findings[0].text.detail
    assert "Mean of 6 traced steps on one rank." in six


def test_ranks_with_other_numbers_of_steps_are_said(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, world_size=3)
    for rank, count in ((0, 60), (1, 60), (2, 40)):
        run.rank(rank)
        run.steps(rank, [100] * count)
    missing = {figure_text(one): cause_text(one) for one in analyze_run(run.read()).missing}
    assert missing["the later steps of rank 2"].startswith("it recorded 40 steps at least, others 60")
