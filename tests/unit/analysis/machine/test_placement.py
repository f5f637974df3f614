"""Where ranks and their memory are, and the command line that mends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscope.analysis.machine.results import MachineAnalysis, RankPlacement
from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from tests.support.synthetic_samples import SampledRun, SampleFile, ticks, two_nodes

SLOW = ticks(0, 40, 2.0)
PYTHON = {"command": ["python", "train.py", "--lr", "0.1"], "launcher": "python"}


def analyze(
    path: Path,
    pages: dict[int, dict[int, int]],
    bindings: dict[int, dict[str, Any]],
    *,
    topology: dict[str, Any] | None = None,
    ranks: list[dict[str, Any]] | None = None,
    **manifest: Any,
) -> tuple[MachineAnalysis, dict[str, Finding]]:
    """`pages`: pid -> node -> pages during the steps; before them everything lies on node 0."""
    file = SampleFile()
    for pid, nodes in pages.items():
        for node, count in nodes.items():
            values = [count if 10 <= t <= 30 else 1000 * (node == 0) for t in SLOW]
            more = {"pid": str(pid), "node": str(node), "source": "move_pages(2) of up to 512 pages"}
            file.add("rank_pages", SLOW, values, kind="gauge", unit="pages", quality=None, **more)
    for pid, value in bindings.items():
        file.fact("binding", 1, {"pid": str(pid)}, value)
    metas = ranks or [{"pid": pid} for pid in pages]
    run = SampledRun(path, file, topology=topology or two_nodes(), ranks=metas, **{**PYTHON, **manifest})
    analysis = analyze_run(run.read())
    assert analysis.machine is not None
    return analysis.machine, {finding.id: finding for finding in analysis.findings}


def node(number: int, policy: str = "default") -> dict[str, Any]:
    cpus = ("0-3", "4-7")[number]
    return {"cpus": cpus, "cpu_nodes": [number], "mems_allowed": "0-1", "policy": policy}


def test_a_rank_with_its_memory_on_the_other_node_is_found_and_mended(tmp_path: Path) -> None:
    machine, findings = analyze(tmp_path, {100: {0: 100, 1: 900}}, {100: node(0, "bind:1")})
    (placed,) = machine.placements
    assert placed == RankPlacement(
        rank=0,
        host="node0",
        pid=100,
        cpus="0-3",
        cpu_nodes=(0,),
        memory_nodes={0: 0.1, 1: 0.9},
        local_ratio=0.1,
        policy="bind:1",
        source="move_pages, 21 readings",
        device_node=None,
    )
    finding = findings["numa_remote"]
    assert finding.text.title == (
        "Rank 0 runs on NUMA node 0, but 90 % of its memory is on other nodes (90 % on node 1)."
    )
    assert "`numactl --cpunodebind=0 --membind=0 python train.py --lr 0.1`" in finding.text.action
    assert "bind:1" in finding.text.detail and finding.rank == 0


def test_memory_beside_its_cpus_is_no_finding(tmp_path: Path) -> None:
    _, findings = analyze(tmp_path, {100: {0: 950, 1: 50}}, {100: node(0)})
    assert "numa_remote" not in findings


def test_a_rank_that_may_run_anywhere_is_not_remote(tmp_path: Path) -> None:
    free = {"cpus": "0-7", "cpu_nodes": [0, 1], "policy": "default"}
    machine, findings = analyze(tmp_path, {100: {0: 500, 1: 500}}, {100: free})
    assert machine.placements[0].local_ratio == 1.0 and "numa_remote" not in findings


def test_memory_that_was_interleaved_on_purpose_is_no_mistake(tmp_path: Path) -> None:
    _, findings = analyze(tmp_path, {100: {0: 500, 1: 500}}, {100: node(0, "interleave:0-1")})
    assert "numa_remote" not in findings


def knl() -> dict[str, Any]:
    return two_nodes(
        online_cpus="0-7",
        numa_nodes=[
            {"node": 0, "cpus": "0-7", "memory_bytes": 1 << 34, "kind": "cpu", "package": 0},
            {"node": 1, "cpus": "", "memory_bytes": 1 << 33, "kind": "mcdram", "package": 0},
        ],
    )


def test_memory_bound_to_fast_memory_without_cpus_is_meant(tmp_path: Path) -> None:
    here = {"cpus": "0-7", "cpu_nodes": [0]}
    machine, findings = analyze(
        tmp_path / "meant", {100: {0: 10, 1: 990}}, {100: {**here, "policy": "bind:1"}}, topology=knl()
    )
    assert "numa_remote" not in findings
    assert machine.placements[0].note == "its memory is bound to mcdram on purpose (bind:1)"
    _, findings = analyze(
        tmp_path / "spilled", {100: {0: 500, 1: 500}}, {100: {**here, "policy": "default"}}, topology=knl()
    )
    assert "50 % on node 1" in findings["numa_remote"].text.title


def test_torchrun_gets_a_line_that_binds_each_rank_to_its_own_node(tmp_path: Path) -> None:
    command = ["torchrun", "--standalone", "--nproc-per-node", "4", "train.py", "--name", "a b"]
    pages = {100 + k: {0: 900, 1: 100} for k in range(4)}
    bindings = {100 + k: node(k // 2) for k in range(4)}
    _, findings = analyze(tmp_path, pages, bindings, command=command, launcher="torchrun")
    finding = findings["numa_remote"]
    assert finding.rank == 2 and "so is 1 other rank" in finding.text.title
    assert (
        "`torchrun --standalone --nproc-per-node 4 --no-python bash -c 'n=(0 0 1 1); "
        "exec numactl --cpunodebind=${n[${LOCAL_RANK:?}]:?} --membind=${n[${LOCAL_RANK:?}]:?} "
        "python train.py --name '\"'\"'a b'\"'\"''`" in finding.text.action
    )


def test_mpirun_gets_advice_because_its_make_is_not_recorded(tmp_path: Path) -> None:
    command = ["mpirun", "-np", "2", "python", "train.py"]
    pages = {100: {0: 0, 1: 900}, 101: {0: 0, 1: 900}}
    _, findings = analyze(tmp_path, pages, {100: node(0), 101: node(1)}, command=command, launcher="mpirun")
    action = findings["numa_remote"].text.action
    assert action == (
        "Keep CPUs and memory together: start rank 0 under `numactl --cpunodebind=0 --membind=0`, "
        "rank 1 under `numactl --cpunodebind=1 --membind=1`."
    )


def gpus() -> dict[str, Any]:
    rows = [
        {"id": f"gpu:{k}", "index": k, "uuid": f"GPU-8c2{k}-4", "name": "NVIDIA H100", "numa_node": k}
        for k in range(2)
    ]
    return two_nodes(gpus=rows)


def test_a_rank_away_from_its_gpu_is_found(tmp_path: Path) -> None:
    ranks = [{"pid": 100, "device": "cuda:1 NVIDIA H100"}]
    machine, findings = analyze(tmp_path, {100: {0: 900}}, {100: node(0)}, topology=gpus(), ranks=ranks)
    assert machine.placements[0].device_node == 1
    assert findings["gpu_remote"].text.title == "Rank 0 runs on NUMA node 0, its GPU is attached to node 1."
    assert "--cpunodebind=1 --membind=1" in findings["gpu_remote"].text.action


def test_visible_devices_are_followed_to_the_gpu_that_is_meant(tmp_path: Path) -> None:
    ranks = [{"pid": 100, "device": "cuda:0 NVIDIA H100"}]
    for visible, expected in (("1,0", 1), ("0", 0), ("GPU-8c21", 1), ("GPU-8c2a", None), ("GPU-8c2", None)):
        machine, _ = analyze(
            tmp_path / visible,
            {100: {0: 900}},
            {100: node(0)},
            topology=gpus(),
            ranks=ranks,
            environment={"CUDA_VISIBLE_DEVICES": visible},
        )
        assert machine.placements[0].device_node == expected


def test_without_page_samples_one_rank_has_the_job_s_memory_and_two_have_none(tmp_path: Path) -> None:
    for num, expected in ((1, {0: 0.25, 1: 0.75}), (2, {})):
        file = SampleFile()
        for number, size in ((0, 1 << 20), (1, 3 << 20)):
            more = {"kind": "gauge", "unit": "bytes", "node": str(number)}
            file.add("job_memory_anon", SLOW, [size] * len(SLOW), **more)  # type: ignore[arg-type]
        ranks = [{"pid": 100 + k, "affinity": [0, 1]} for k in range(num)]
        run = SampledRun(tmp_path / str(num), file, topology=two_nodes(), ranks=ranks)
        machine = analyze_run(run.read()).machine
        assert machine is not None
        placed = machine.placements[0]
        assert placed.memory_nodes == expected
        assert (placed.cpus, placed.cpu_nodes) == ("0-1", (0,))
        assert placed.source == ("memory.numa_stat of the job" if num == 1 else "")
