"""Layers against ceilings whose values are known, and what is said where either is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.machine.results import MachineAnalysis, Roofline
from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from tests.support.synthetic_run import span
from tests.support.synthetic_samples import SampledRun, SampleFile, two_nodes

MS = 1_000_000
TRIAD, GEMM = "stream_triad", "gemm"


def entry(kind: str, value: float, **more: Any) -> dict[str, Any]:
    unit = "flops_per_s" if kind.endswith("gemm") else "bytes_per_s"
    return {"kind": kind, "device": "cpu", "node": None, "threads": 8, "value": value, "unit": unit, **more}


CEILINGS = {
    "entries": [
        entry(TRIAD, 90e9),
        entry(TRIAD, 100e9),
        entry(TRIAD, 50e9, node=0),
        entry(GEMM, 2e12, dtype="float32"),
        entry(GEMM, 1e12, dtype="float64"),
    ]
}


def op(
    layer: str, start: float, dur: float, flops: int, moved: int, phase: str = "forward"
) -> dict[str, Any]:
    """One operator; times in ms."""
    more = {
        "layer": layer,
        "phase": phase,
        "flops": flops,
        "bytes_read": moved // 2,
        "bytes_written": moved // 2,
    }
    return span(round(start * MS), round(dur * MS), "compute", **more)


def analyze(
    path: Path, ops: list[dict[str, Any]], ceilings: dict[str, Any] | None, num: int = 1, **more: Any
) -> tuple[MachineAnalysis, dict[str, Finding]]:
    topology = more.pop("topology", two_nodes())
    manifest = more.pop("manifest", {})
    ranks = [{"pid": k, **more} for k in range(num)]
    run = SampledRun(path, None, step_s=0.01, topology=topology, ceilings=ceilings, ranks=ranks, **manifest)
    for rank in range(num):
        run.run.window(rank, ops, [(0, 0, 10 * MS)])
    analysis = analyze_run(run.read())
    assert analysis.machine is not None
    return analysis.machine, {finding.id: finding for finding in analysis.findings}


OPS = [
    op("conv", 0, 2, 3_200_000_000, 4_000_000),  # 1.6 TFLOP/s of 2: compute
    op("conv", 4, 4, 3_200_000_000, 4_000_000, "backward"),  # 0.8 TFLOP/s of 2: neither
    op("norm", 2, 1, 30_000_000, 80_000_000),  # 80 GB/s of 100, 0.375 FLOP/byte: memory
    op("tiny", 3, 1, 1_000, 2_000),
]


def roof(path: Path, num: int = 1) -> Roofline:
    (found,) = analyze(path, OPS, CEILINGS, num)[0].rooflines
    return found


def test_layers_are_compared_with_the_nearer_roof_by_phase(tmp_path: Path) -> None:
    found = roof(tmp_path)
    assert (found.device, found.dtype, found.peak_flops_per_s) == ("cpu", "float32", 2e12)
    assert (found.bandwidth_bytes_per_s, found.ranks_sharing) == (100e9, 1)
    points = {(one.layer, one.phase): one for one in found.points}
    assert [(one.layer, one.phase) for one in found.points[:2]] == [("conv", "backward"), ("conv", "forward")]
    conv, norm = points["conv", "forward"], points["norm", "forward"]
    assert conv.fraction == pytest.approx(0.8) and (conv.bound, conv.intensity) == ("compute", 800.0)
    assert norm.fraction == pytest.approx(0.8) and norm.bound == "memory"
    assert norm.attainable_flops_per_s == pytest.approx(0.375 * 100e9)
    assert points["conv", "backward"].bound == "neither"
    assert points["tiny", "forward"].bound == "neither" and points["tiny", "forward"].fraction < 1e-3


def test_utilization_is_flops_per_second_of_the_step_over_the_peak(tmp_path: Path) -> None:
    run = SampledRun(tmp_path, None, step_s=0.01, topology=two_nodes(), ceilings=CEILINGS, ranks=[{"pid": 0}])
    run.run.window(0, OPS, [(0, 0, 10 * MS)])
    entry = analyze_run(run.read()).flops_utilization
    assert entry is not None and (entry.dtype, entry.device, entry.recomputes) == ("float32", "cpu", False)
    assert entry.flops_per_step == 2 * 3_200_000_000 + 30_000_000 + 1_000
    assert entry.ratio == pytest.approx(entry.flops_per_step / 0.01 / 2e12, rel=0.01)


def test_ranks_of_one_host_share_its_ceilings(tmp_path: Path) -> None:
    found = roof(tmp_path, num=2)
    assert (found.peak_flops_per_s, found.bandwidth_bytes_per_s, found.ranks_sharing) == (1e12, 50e9, 2)
    conv = next(one for one in found.points if (one.layer, one.phase) == ("conv", "backward"))
    assert conv.fraction == pytest.approx(0.8) and conv.bound == "compute"


def threaded(path: Path, num: int, threads: int, cpus: str) -> Roofline:
    """Ceilings of a machine of 8 CPUs, measured with 8 threads and with 1."""
    entries = [
        *CEILINGS["entries"],
        entry(TRIAD, 40e9, node=0, threads=1),
        entry(GEMM, 0.6e12, dtype="float32", threads=1),
        entry(GEMM, 0.3e12, dtype="float64", threads=1),
    ]
    machine, _ = analyze(
        path,
        OPS,
        {"entries": entries},
        num,
        num_threads=threads,
        topology={**two_nodes(), "online_cpus": cpus},
    )
    return machine.rooflines[0]


def test_a_rank_s_roof_is_what_its_threads_reach_where_each_has_a_cpu(tmp_path: Path) -> None:
    """Two of them might take 80 of 100 GB/s; each alone reaches no more than 40, and may reach that."""
    found = threaded(tmp_path, 2, 1, "0-7")
    assert (found.peak_flops_per_s, found.bandwidth_bytes_per_s) == (0.6e12, 40e9)
    assert (found.ranks_sharing, found.ceilings_source) == (1, "measured, 1 thread")
    conv = next(one for one in found.points if (one.layer, one.phase) == ("conv", "forward"))
    assert conv.fraction > 1 and conv.bound == "compute"


def test_ranks_with_more_threads_than_cpus_divide_what_all_threads_reach(tmp_path: Path) -> None:
    found = threaded(tmp_path, 4, 1, "0-1")
    assert (found.bandwidth_bytes_per_s, found.ranks_sharing) == (25e9, 4)
    assert found.ceilings_source == "measured, all 8 threads shared by 4 ranks"


def test_a_number_of_threads_that_was_not_measured_is_no_more_than_so_many_single_ones(
    tmp_path: Path,
) -> None:
    found = threaded(tmp_path, 1, 2, "0-7")
    assert (found.peak_flops_per_s, found.bandwidth_bytes_per_s) == (1.2e12, 80e9)
    assert found.ceilings_source == "measured, 2 times 1 thread"


def test_layers_at_the_memory_roof_are_a_finding(tmp_path: Path) -> None:
    _, findings = analyze(tmp_path, OPS, CEILINGS)
    assert findings["memory_bound"].layer == "norm"
    assert "moves 80.0 GB/s of 100 GB/s" in findings["memory_bound"].text.title


def test_a_gpu_has_ceilings_of_its_own_and_its_type_is_told_by_what_is_reached(tmp_path: Path) -> None:
    entries = [
        {**entry("device_copy", 3e12), "device": "cuda:0"},
        {**entry("device_gemm", 50e12, dtype="float32"), "device": "cuda:0"},
        {**entry("device_gemm", 800e12, dtype="bfloat16"), "device": "cuda:0"},
    ]
    topology = two_nodes(gpus=[{"id": "gpu:0", "index": 0, "name": "NVIDIA H100"}])
    for flops, dtype in ((30e12, "float32"), (400e12, "bfloat16")):
        kernel = {**op("fc", 0, 1, round(flops / 1000), 10_000_000), "device": 0, "lane": 7, "launch_step": 0}
        machine, _ = analyze(
            tmp_path / dtype, [kernel], {"entries": entries}, topology=topology, device="cuda:0 NVIDIA H100"
        )
        (found,) = machine.rooflines
        assert (found.device, found.dtype, found.ranks_sharing) == ("NVIDIA H100", dtype, 1)
        assert found.bandwidth_bytes_per_s == 3e12


def test_what_fits_the_cache_is_said_because_it_may_pass_the_memory_roof(tmp_path: Path) -> None:
    for size, cached in ((32 << 20, False), (64 << 20, False), (512 << 20, True)):
        ops = [op("norm", 0, 1, 30_000_000, 200_000_000)]
        topology = two_nodes(caches=[{"level": 3, "type": "Unified", "size_bytes": size}])
        (found,) = analyze(tmp_path / str(size), ops, CEILINGS, topology=topology)[0].rooflines
        assert found.cached is cached


def test_a_missing_roof_has_its_reason(tmp_path: Path) -> None:
    machine, _ = analyze(tmp_path / "off", OPS, None)
    (reason,) = [cause_text(one) for one in machine.missing if figure_text(one) == "roofline of node0"]
    assert "--ceilings off" in reason and machine.rooflines == ()
    for run, expected in (
        ({"options": {"ceilings": "off"}, "host": "node7"}, "switched off by `--ceilings off`"),
        ({"options": {"ceilings": "auto"}, "host": "node7"}, "no `perfscope run` started on that host"),
    ):
        machine, _ = analyze(tmp_path / expected[:3], OPS, None, manifest=run)
        assert expected in [cause_text(one) for one in machine.missing]
    said = {"entries": [entry(TRIAD, 1e9)], "missing": [{"what": "GEMM", "reason": "numpy has no BLAS here"}]}
    machine, _ = analyze(tmp_path / "no gemm", OPS, said)
    assert "numpy has no BLAS here" in [cause_text(one) for one in machine.missing]
    machine, _ = analyze(
        tmp_path / "no shapes", [span(0, MS, "compute", layer="a", phase="forward")], CEILINGS
    )
    assert any("no shapes" in cause_text(one) for one in machine.missing)


def test_ceilings_carry_their_doubts_and_data_sheets_their_source(tmp_path: Path) -> None:
    document = {
        "entries": [{**entry(TRIAD, 5e10, node=1), "spread_ratio": 0.4}, entry(GEMM, 1e12, dtype="float32")],
        "theoretical": [
            {
                "what": "DRAM",
                "where": "socket 0",
                "value": 128e9,
                "unit": "bytes_per_s",
                "source": "6 x DDR4-2666",
            }
        ],
        "pressure": {"cpu_some_ratio": 0.5},
    }
    machine, _ = analyze(tmp_path, OPS, document)
    triad, gemm, sheet = machine.ceilings
    assert (triad.what, triad.where, triad.source) == ("STREAM triad", "node 1", "measured")
    assert "differ by 40 %" in triad.note and "CPU pressure was 50 %" in triad.note
    assert (gemm.what, gemm.where, gemm.unit) == ("GEMM float32", "all nodes", "flops_per_s")
    assert (sheet.what, sheet.source) == ("DRAM", "theoretical: 6 x DDR4-2666")


def test_phases_of_a_layer_add_up_to_its_work(tmp_path: Path) -> None:
    run = SampledRun(tmp_path, SampleFile())
    run.run.window(0, OPS, [(0, 0, 10 * MS)])
    conv = next(one for one in analyze_run(run.read()).layers if one.layer == "conv")
    assert (conv.forward_flops, conv.backward_flops, conv.flops) == (
        3_200_000_000,
        3_200_000_000,
        6_400_000_000,
    )
    assert (conv.forward_bytes, conv.backward_bytes, conv.bytes) == (4_000_000, 4_000_000, 8_000_000)


COUNTED = {
    "num_steps": 1,
    "columns": ["llc_misses", "hardware_enabled_ns", "hardware_running_ns"],
    "rows": [
        ["forward", "conv", [1_000_000, 5, 5]],
        ["backward", "conv", [0, 5, 5]],  # without a miss there is no intensity
        ["forward", "norm", [2_000_000, 6, 3]],  # counted half of the time
    ],
    "software_source": "perf_event_open",
}


@pytest.mark.parametrize(("threads", "source"), [(1, "measured"), (2, "modeled"), (None, "modeled")])
def test_bytes_are_measured_where_the_training_thread_does_all_the_work(
    tmp_path: Path, threads: int | None, source: str
) -> None:
    run = SampledRun(
        tmp_path, None, topology=two_nodes(), ceilings=CEILINGS, ranks=[{"pid": 0, "num_threads": threads}]
    )
    run.run.window(0, OPS, [(0, 0, 10 * MS)], counters=COUNTED)
    machine = analyze_run(run.read()).machine
    assert machine is not None
    points = {(point.layer, point.phase): point for point in machine.rooflines[0].points}
    conv, norm = points["conv", "forward"], points["norm", "forward"]
    assert conv.bytes_source == norm.bytes_source == source
    assert points["conv", "backward"].bytes_source == points["tiny", "forward"].bytes_source == "modeled"
    if source == "measured":
        assert (conv.bytes, norm.bytes) == (64_000_000, 256_000_000)
        assert conv.intensity == 3_200_000_000 / 64_000_000
    else:
        assert (conv.bytes, norm.bytes) == (4_000_000, 80_000_000)
