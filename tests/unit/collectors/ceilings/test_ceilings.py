"""Measured ceilings: the real thing once, with bounds that a slow machine keeps; else known answers."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.ceilings import cache as ceilings_cache
from perfscope.collectors.ceilings import measure as ceilings
from perfscope.collectors.ceilings.child import run_child
from perfscope.collectors.ceilings.host import (
    LocalHost,
    LocalNode,
    cgroup_limits,
    last_level_bytes,
    read_host,
)
from perfscope.collectors.ceilings.kernels_numpy import TRIAD_BYTES, aggregate, triad
from perfscope.collectors.ceilings.measure import (
    Document,
    is_cached,
    measure,
    merge,
    read_or_measure,
    torch_python,
    what,
)
from perfscope.collectors.context import Context, captured_context, live_context
from tests.support import hardware

BUDGET_S = 2.0
ENTRY_KEYS = {
    "measured_unix_ns",
    "kind",
    "device",
    "node",
    "cpus",
    "threads",
    "dtype",
    "value",
    "unit",
    "runs",
    "spread_ratio",
    "size",
}

MEASURE_HERE = """
import json, sys, time
from pathlib import Path
from perfscope.collectors.ceilings.measure import read_or_measure
from perfscope.collectors.context import live_context
began = time.monotonic()
document = read_or_measure(live_context(), "here", cache_dir=Path(sys.argv[1]))
print(json.dumps({"document": document, "wall": time.monotonic() - began,
                  "numpy": "numpy" in sys.modules, "torch": "torch" in sys.modules}))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh process measures here; its cache is at "cache"."""
    cache = tmp_path_factory.mktemp("ceilings")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_HERE, str(cache)], stdout=subprocess.PIPE, check=True, timeout=60
    )
    return {**json.loads(done.stdout), "cache": cache}


def entry(value: float = 1e9, **more: Any) -> Document:
    base: Document = {
        "kind": "gemm",
        "device": "cpu",
        "node": None,
        "cpus": "0",
        "threads": 1,
        "dtype": "float32",
    }
    return {
        **base,
        "value": value,
        "unit": "flops_per_s",
        "runs": 3,
        "spread_ratio": 0.0,
        "size": 512,
        **more,
    }


def document(*entries: Document, **more: Any) -> Document:
    base: Document = {
        "schema_version": 1,
        "host": "h",
        "measured_unix_ns": 1,
        "took_ns": 2,
        "how": "numpy",
        "cached": False,
        "pressure": {"cpu_some_ratio": 0.0, "memory_some_ratio": 0.0},
        "entries": list(entries),
        "theoretical": [],
        "missing": [],
        "tries": 1,
    }
    return {**base, **more}


class Measurements:
    """Stands in for `measure`: gives what it is told, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *documents: Document) -> None:
        self.documents = list(documents)
        self.plans: list[list[str]] = []
        monkeypatch.setattr(ceilings, "measure", self)
        monkeypatch.setattr(ceilings, "_plan", lambda ctx, machine: PLAN)

    def __call__(
        self, ctx: Context, host: str, machine: LocalHost, plan: Sequence[Document], budget_s: float
    ) -> Document:
        self.plans.append([what(task["label"]) for task in plan])
        return self.documents.pop(0)


PLAN: list[Document] = [
    {
        "kind": "gemm",
        "label": {k: v for k, v in entry().items() if k in ENTRY_KEYS - {"dtype", "value"}},
        "dtypes": ["float32"],
    },
]


def test_a_host_is_measured_within_its_budget(measured: dict[str, Any]) -> None:
    # The rest of the wall time is what a loaded machine needs to get going at all.
    assert measured["document"]["took_ns"] <= 1.5 * BUDGET_S * 1e9
    assert measured["wall"] <= 3 * BUDGET_S


def test_whoever_asks_loads_neither_numpy_nor_torch(measured: dict[str, Any]) -> None:
    assert not measured["numpy"] and not measured["torch"]


def test_the_document_is_whole(measured: dict[str, Any]) -> None:
    found = measured["document"]
    assert found["schema_version"] == 1 and found["host"] == "here" and found["cached"] is False
    assert set(found) == {
        "schema_version", "host", "measured_unix_ns", "took_ns", "how", "cached", "pressure", "entries",
        "theoretical", "missing",
    }  # fmt: skip
    assert found["how"].startswith("numpy ")
    assert set(found["pressure"]) == {"cpu_some_ratio", "memory_some_ratio"}
    for one in found["entries"]:
        assert set(one) == ENTRY_KEYS
        assert one["value"] > 0 and one["runs"] >= 1
        assert (one["spread_ratio"] is None) == (one["runs"] == 1)
        assert 0 <= (one["spread_ratio"] or 0) < 1
        assert one["unit"] == ("bytes_per_s" if one["kind"] == "stream_triad" else "flops_per_s")
    for one in found["missing"]:
        assert set(one) - {"kind"} == {"what", "reason"} and one["reason"]
    if (found["pressure"]["cpu_some_ratio"] or 0) < 0.3:  # else there may not have been time for anything
        assert found["entries"], found["missing"]
    expected = {"STREAM triad", "GEMM float32", "GEMM float64"}
    told = [what(one) for one in found["entries"]] + [one["what"] for one in found["missing"]]
    assert {words.split(",")[0] for words in told} == expected


def test_a_quiet_complete_host_is_not_measured_again(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = measured["cache"].glob("*.json")
    kept = json.loads(path.read_text())
    kept["tries"] = 2 * ceilings.MAX_TRIES  # however the first measurement went, on a loaded machine
    kept["entries"] = kept["entries"] or [entry()]
    path.write_text(json.dumps(kept))
    monkeypatch.setattr(ceilings, "measure", lambda *_: pytest.fail("measured again"))
    ctx = live_context()
    assert is_cached(ctx, "here", measured["cache"])
    again = read_or_measure(ctx, "here", cache_dir=measured["cache"])
    assert again["cached"] is True
    assert {what(one) for one in again["entries"]} >= {what(one) for one in kept["entries"]}
    assert not is_cached(ctx, "elsewhere", measured["cache"])


def test_refreshing_starts_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Measurements(
        monkeypatch, document(entry(5e9)), document(entry(7e9)), document(entry(6e9), measured_unix_ns=9)
    )
    ctx = live_context()
    values = [
        read_or_measure(ctx, "h", cache_dir=tmp_path, refresh=refresh)["entries"][0]["value"]
        for refresh in (False, True, True)
    ]
    assert values == [5e9, 7e9, 6e9]
    final = read_or_measure(ctx, "h", cache_dir=tmp_path)
    assert final["cached"] and final["entries"][0]["value"] == 6e9 and final["entries"][0]["runs"] == 3
    assert final["measured_unix_ns"] == final["entries"][0]["measured_unix_ns"] == 9
    assert len(calls.plans) == 3


def test_what_did_not_fit_is_measured_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triad = entry(kind="stream_triad", dtype=None, unit="bytes_per_s")
    late = {**triad, "what": "STREAM triad, 1 thread", "reason": "no time was left"}
    calls = Measurements(monkeypatch, document(entry(), missing=[late]), document(triad))
    task = {"kind": "stream_triad", "label": {key: triad[key] for key in PLAN[0]["label"]}}
    monkeypatch.setattr(ceilings, "_plan", lambda ctx, machine: [*PLAN, task])
    first = read_or_measure(live_context(), "h", cache_dir=tmp_path)
    gap = {"kind": "stream_triad", "what": "STREAM triad, 1 thread", "reason": "no time was left"}
    assert first["missing"] == [gap]
    second = read_or_measure(live_context(), "h", cache_dir=tmp_path)
    assert second["missing"] == [] and {one["kind"] for one in second["entries"]} == {"gemm", "stream_triad"}
    assert read_or_measure(live_context(), "h", cache_dir=tmp_path)["cached"]
    assert calls.plans == [["GEMM, 1 thread", "STREAM triad, 1 thread"], ["STREAM triad, 1 thread"]]


def test_figures_taken_under_pressure_get_more_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = {"cpu_some_ratio": 0.9, "memory_some_ratio": 0.0}
    calls = Measurements(monkeypatch, *(document(entry(n * 1e9), pressure=pressed) for n in (3, 2, 4, 5)))
    for _ in range(6):
        last = read_or_measure(live_context(), "h", cache_dir=tmp_path)
    assert len(calls.plans) == ceilings.MAX_TRIES
    assert last["entries"][0]["value"] == 4e9
    calm = merge(document(entry(2e9), pressure=pressed), document(entry(), measured_unix_ns=9))
    assert (calm["entries"][0]["measured_unix_ns"], calm["measured_unix_ns"]) == (1, 9)
    assert calm["pressure"]["cpu_some_ratio"] == 0.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[]",
        b"\xff\xfe\x00",
        b'{"entries": 5}',
        b'{"entries": [{"value": "fast", "runs": 1}], "missing": []}',
        b'{"fingerprint": "KEPT", "entries": [5], "missing": []}',
        b'{"fingerprint": "KEPT", "entries": [{"runs": 1}], "missing": []}',
        b'{"fingerprint": "KEPT", "entries": null, "missing": []}',
    ],
)
def test_a_damaged_cache_is_measured_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    calls = Measurements(monkeypatch, document(entry()), document(entry()))
    read_or_measure(live_context(), "h", cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(content.replace(b"KEPT", json.loads(path.read_text())["fingerprint"].encode()))
    assert not is_cached(live_context(), "h", tmp_path)
    assert read_or_measure(live_context(), "h", cache_dir=tmp_path)["entries"]
    assert len(calls.plans) == 2


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    calls = Measurements(monkeypatch, *(document(entry()) for _ in range(2)))
    for folder in (tmp_path / "file" / "below", Path("/proc/nowhere")):
        found = read_or_measure(live_context(), "h", cache_dir=folder)
        assert found["entries"] and not found["cached"]
    assert len(calls.plans) == 2


def test_where_somebody_else_measures_one_waits_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Measurements(monkeypatch, document(entry()))
    monkeypatch.setattr(ceilings_cache, "WAIT_S", 0.2)
    cache = ceilings._cache(live_context(), "h", read_host(live_context()), tmp_path)
    tmp_path.mkdir(exist_ok=True)
    with cache.path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read_or_measure(live_context(), "h", cache_dir=tmp_path)
        assert found["entries"] == [] and "another perfscope" in found["missing"][0]["reason"]
        cache.store(document(entry(8e9)))
        found = read_or_measure(live_context(), "h", cache_dir=tmp_path, refresh=True)
        assert found["entries"][0]["value"] == 8e9 and found["cached"]
    assert calls.plans == []


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert ceilings_cache.default_folder() == Path("/x/cache/perfscope/ceilings")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/u")
    assert ceilings_cache.default_folder() == Path("/home/u/.cache/perfscope/ceilings")


def test_other_hardware_is_another_cache(tmp_path: Path) -> None:
    machine = read_host(live_context())
    base = ceilings_cache.fingerprint(machine, [])
    assert ceilings_cache.fingerprint(machine, ["NVIDIA H100"]) != base
    cache = ceilings_cache.Cache(tmp_path, "a/../b c", machine, [])
    assert cache.path.parent == tmp_path and "/" not in cache.path.name


def test_a_captured_tree_is_not_measured() -> None:
    found = read_or_measure(Context(root=Path("/nowhere")), "h")
    assert found["entries"] == [] and "captured" in found["missing"][0]["reason"]
    assert not is_cached(Context(root=Path("/nowhere")), "h")


def test_too_little_time_leaves_reasons() -> None:
    ctx = live_context()
    machine = read_host(ctx)
    began = time.monotonic()
    found = measure(ctx, "h", machine, ceilings._plan(ctx, machine), 0.2)
    assert time.monotonic() - began < 5
    assert found["missing"] and all(one["reason"] and one["what"] for one in found["missing"])


HANGING = """
import json, os, sys, time
plan = json.loads(sys.argv[1])
print(json.dumps({"first": 1}), flush=True)
print("no json", flush=True)
child = os.fork()
print(json.dumps({"pids": [os.getpid(), child]}) if child else "", flush=True)
time.sleep(600)
"""


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_what_overruns_is_killed_with_its_children_and_its_lines_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text(HANGING)
    began = time.monotonic()
    answer = run_child(sys.executable, script, {}, {}, began + 1.5)
    assert time.monotonic() - began < 10
    assert answer.failure == "no time was left"
    assert answer.lines[0] == {"first": 1} and len(answer.lines) == 2
    for _ in range(100):  # the grandchild is reaped by whoever adopts it
        if not any(_lives(pid) for pid in answer.lines[1]["pids"]):
            break
        time.sleep(0.02)
    else:
        pytest.fail("a process was left behind")


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text("print('{\"a\": 1}')\nimport no_such_module_here\n")
    answer = run_child(sys.executable, script, {}, {}, time.monotonic() + 20)
    assert answer.lines == [{"a": 1}]
    assert answer.failure == "ModuleNotFoundError: No module named 'no_such_module_here'"
    answer = run_child(str(tmp_path / "python"), script, {}, {}, time.monotonic() + 20)
    assert "cannot be started: No such file" in answer.failure


def test_rates_of_workers_are_added_over_the_time_they_share() -> None:
    # Two workers at 100 bytes a second; the second starts half a second later.
    first = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
    second = [(0.5, 1.5), (1.5, 2.5), (2.5, 3.5)]
    assert aggregate([first, second], 100) == pytest.approx([200.0, 200.0, 200.0])
    assert aggregate([first], 100) == pytest.approx([100.0] * 4)
    assert aggregate([[(0.0, 1.0)], [(2.0, 3.0)]], 100) == []  # never together
    assert aggregate([], 100) == []
    # One that waits between its passes counts for less.
    assert sum(aggregate([[(0.0, 1.0), (2.0, 3.0)]], 100)) / 3 == pytest.approx(200 / 3)


def test_a_triad_computes_what_it_says_and_moves_what_it_counts() -> None:
    """One worker on one CPU: rates are bytes of whole passes over their time."""
    cpu = min(os.sched_getaffinity(0))
    found = triad([(cpu, None)], 8 << 20, 0.05, 20.0)
    assert found["unit"] == "bytes_per_s" and found["size"] == 3 * (8 << 20)
    assert found["runs"] >= 1
    # A byte of a triad costs more than nothing and less than a microsecond.
    assert 1e6 < found["value"] < 1e13
    assert TRIAD_BYTES == 24


def test_bound_to_one_cpu_nothing_else_is_used() -> None:
    code = (
        "import os, json; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from perfscope.collectors.ceilings import measure as ceilings\n"
        "from perfscope.collectors.context import live_context\n"
        "from perfscope.collectors.ceilings.host import read_host\n"
        "ctx = live_context(); machine = read_host(ctx)\n"
        "print(json.dumps([machine.threads, [t['label'] for t in ceilings._plan(ctx, machine)]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    threads, labels = json.loads(done.stdout)
    cpu = str(min(os.sched_getaffinity(0)))
    assert threads == 1
    assert {label["threads"] for label in labels} == {1} and {label["cpus"] for label in labels} == {cpu}


def _write(root: Path, files: dict[str, str]) -> Context:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Context(root=root)


def test_the_quota_of_a_cgroup_bounds_threads_and_memory(tmp_path: Path) -> None:
    ctx = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/7\n",
            "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n",
            "sys/fs/cgroup/jobs/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/jobs/7/cpu.max": "max 100000\n",
            "sys/fs/cgroup/jobs/7/memory.max": "100000000\n",
            "sys/fs/cgroup/jobs/7/memory.current": "40000000\n",
            "sys/fs/cgroup/cpu.max": "what?\n",
        },
    )
    assert cgroup_limits(ctx) == (1.5, 60_000_000)
    machine = read_host(ctx)
    assert machine.threads == 1 and machine.cpu_limit == 1.5 and machine.free_bytes == 60_000_000
    tasks = ceilings._plan(ctx, machine)
    assert {task["label"]["threads"] for task in tasks} == {1}
    assert all(task["bytes"] <= 10_000_000 for task in tasks if task["kind"] == "stream_triad")


def test_the_quota_of_version_1_counts_too(tmp_path: Path) -> None:
    ctx = _write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a\n1:cpu,cpuacct:/a\n0::/\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1\n",
        },
    )
    assert cgroup_limits(ctx) == (2.0, None)
    assert cgroup_limits(Context(root=tmp_path / "nothing")) == (None, None)


def _plan_of(name: str, cpus: range, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalHost, list[Document]]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus))
    ctx = captured_context(hardware.tree(name))
    machine = read_host(ctx)
    return machine, ceilings._plan(ctx, machine)


def test_every_node_of_a_machine_is_measured_alone_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, tasks = _plan_of("two-socket-before", range(4), monkeypatch)
    assert [(node.number, node.cores) for node in machine.nodes] == [(0, (0, 1)), (1, (2, 3)), (2, ())]
    triads = [task for task in tasks if task["kind"] == "stream_triad"]
    workers = {(task["label"]["node"], task["label"]["threads"]): task["workers"] for task in triads}
    assert workers == {
        (None, 4): [(0, 0), (2, 1), (1, 0), (3, 1)],
        (0, 2): [(0, 0), (1, 0)],
        (1, 2): [(2, 1), (3, 1)],
        (2, 4): [(0, 2), (2, 2), (1, 2), (3, 2)],  # memory without CPUs, read by all there are
        (0, 1): [(0, 0)],
        (1, 1): [(2, 1)],
        (2, 1): [(0, 2)],
    }
    assert all(task["bytes"] * 3 <= machine.free_bytes / 2 for task in triads)
    assert tasks[0]["label"]["node"] is None  # what matters most comes first


def test_memory_without_cpus_is_measured_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, tasks = _plan_of("knl-flat-quadrant-before", range(512), monkeypatch)
    bare = [node for node in machine.nodes if not node.cores]
    assert bare, "MCDRAM in flat mode is a node of its own"
    mine = [task for task in tasks if task["label"]["node"] == bare[0].number]
    assert mine and all({node for _, node in task["workers"]} == {bare[0].number} for task in mine)
    assert all({cpu for cpu, _ in task["workers"]} <= set(machine.cpus) for task in mine)


def test_nodes_whose_cpus_are_forbidden_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, tasks = _plan_of("two-socket-before", range(2, 4), monkeypatch)
    assert [node.number for node in machine.nodes] == [1, 2]
    assert {task["label"]["node"] for task in tasks} == {None, 1, 2}


@pytest.mark.parametrize("name", hardware.names())
def test_caches_of_captured_machines_are_added_once_each(name: str) -> None:
    ctx = captured_context(hardware.tree(name))
    assert last_level_bytes(ctx, (0,)) <= last_level_bytes(ctx, (0, 1)) <= 2 * last_level_bytes(ctx, (0,))


def test_caches_are_added_once_each(tmp_path: Path) -> None:
    files = {}
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache"
        files[f"{folder}/index0/level"], files[f"{folder}/index0/size"] = "1\n", "32K\n"
        files[f"{folder}/index3/level"], files[f"{folder}/index3/size"] = "3\n", "32768K\n"
        files[f"{folder}/index3/shared_cpu_list"] = f"{shared}\n"
    ctx = _write(tmp_path, files)
    assert last_level_bytes(ctx, (0, 1)) == 32 << 20
    assert last_level_bytes(ctx, (0, 2, 3)) == 64 << 20
    assert last_level_bytes(Context(root=tmp_path / "nothing"), (0,)) == 0


def test_one_node_stands_for_all_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = LocalNode(number=0, cores=(0, 1), free_bytes=None)
    machine = LocalHost(
        nodes=(one,), threads=2, cpus=(0, 1), cpu_limit=None, free_bytes=1 << 33, cpu_model="", memory_bytes=1
    )
    monkeypatch.setattr(ceilings, "read_host", lambda ctx: machine)
    whole = entry(kind="stream_triad", node=None, threads=2, dtype=None, unit="bytes_per_s")
    alone = entry(kind="stream_triad", node=0, threads=1, dtype=None, unit="bytes_per_s")
    Measurements(monkeypatch, document(whole, alone, entry()))
    found = read_or_measure(live_context(), "h", cache_dir=tmp_path)
    triads = {(e["node"], e["threads"]) for e in found["entries"] if e["kind"] == "stream_triad"}
    assert triads == {(None, 2), (0, 2), (None, 1), (0, 1)}


def test_gpus_that_were_not_measured_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Measurements(monkeypatch, document(entry()))
    monkeypatch.setattr(ceilings, "_gpu_names", lambda ctx: ["NVIDIA H100 80GB HBM3"])
    found = read_or_measure(live_context(), "h", cache_dir=tmp_path, torch_python=sys.executable)
    reasons = {one["what"]: one["reason"] for one in found["missing"]}
    assert set(reasons) == {"device copy", "device GEMM"}
    assert "doctor --ceilings" in reasons["device copy"]


def test_gpus_are_named_as_the_driver_lists_them(tmp_path: Path) -> None:
    ctx = _write(
        tmp_path,
        {"proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ: 5\n"},
    )
    assert ceilings._gpu_names(ctx) == ["NVIDIA A100-SXM4-80GB"]


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_adds_its_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Measurements(monkeypatch, document(entry()))
    found = read_or_measure(
        live_context(), "h", cache_dir=tmp_path, torch_python=sys.executable, torch_budget_s=60
    )
    gemms = {e["dtype"]: e for e in found["entries"] if e["kind"] == "gemm" and e["device"] == "cpu"}
    told = set(gemms) | {one["what"].split(",")[0].removeprefix("GEMM ") for one in found["missing"]}
    assert told >= {"float32", "bfloat16", "float16"}
    assert gemms["float32"]["value"] > 1e6 and "torch" in found["how"]


def test_a_python_without_torch_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Measurements(monkeypatch, document(entry()))
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    found = read_or_measure(
        live_context(), "h", cache_dir=tmp_path / "c", torch_python=str(bare), torch_budget_s=30
    )
    assert found["entries"][0]["value"] == 1e9
    (missing,) = found["missing"]
    assert missing["what"] == "what torch can measure" and missing["reason"] == f"{bare} has no torch"
    (path,) = (tmp_path / "c").glob("*.json")
    assert json.loads(path.read_text())["missing"] == []
    path.write_text(json.dumps({**json.loads(path.read_text()), "missing": [missing]}))  # as it once was kept
    again = read_or_measure(live_context(), "h", cache_dir=tmp_path / "c")
    assert again["cached"] and again["missing"] == []


def test_our_own_python_measures_with_torch_where_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or None)
    assert torch_python() == sys.executable
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_python() == str(python)
    python.unlink()
    assert torch_python() is None
