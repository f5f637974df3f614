"""Memory traffic where the counters may not be opened: perf stat, resctrl."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from perfscope.collectors.base import Reading
from perfscope.collectors.context import captured_context, live_context
from perfscope.collectors.memory import perf_stat
from perfscope.collectors.memory.bandwidth import MemoryBandwidth
from perfscope.collectors.memory.perf_stat import PerfStat
from perfscope.collectors.memory.resctrl import Resctrl
from perfscope.collectors.syscalls import no_syscalls
from tests.support import hardware
from tests.support.uncore_stand_in import cpu, msr_counters, put, rates, software_counters

# perf stat


def test_perf_counts_where_we_may_not() -> None:
    ctx = dataclasses.replace(live_context(), syscalls=no_syscalls())
    collector = PerfStat(msr_counters)
    capability = collector.probe(ctx)
    if not capability.available:
        pytest.skip(f"no usable perf here: {capability.reason}")
    collector.open(ctx)
    child = collector._child
    assert child is not None
    readings: list[Reading] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(readings) < 6:
        time.sleep(0.1)
        readings += collector.sample()
    collector.close()
    collector.close()
    assert child.returncode is not None  # it ended with its input
    assert collector.facts() == []
    one = [r for r in readings if r.series is readings[0].series]
    assert len(one) >= 2
    assert all(a.t_begin_ns <= b.t_begin_ns for a, b in pairwise(one))
    assert all(int(a.value or 0) < int(b.value or 0) for a, b in pairwise(one))
    assert 0.5 < rates(one[:1], one[-1:])[0] < 10  # GHz again


def test_perf_ends_with_us_even_when_we_are_killed() -> None:
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    code = (
        "import dataclasses, sys, time\n"
        "from perfscope.collectors.context import live_context\n"
        "from perfscope.collectors.memory.perf_stat import PerfStat\n"
        "from perfscope.collectors.memory.uncore import UncoreEvent, UncoreMap\n"
        "e = UncoreEvent(metric='x', pmu='msr', channel='0', kind=0, config=0, bytes_per_count=1.0,"
        " cpus=(0,), how='event=0x00')\n"
        "c = PerfStat(lambda ctx: UncoreMap(events=(e,), sockets={0: '0'}))\n"
        "c.open(live_context())\n"
        "print(c._child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":  # ended; whoever inherited it has not looked yet
            break
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_perf_is_not_needed_where_counters_may_be_opened() -> None:
    ctx = live_context()
    if not MemoryBandwidth(software_counters).probe(ctx).available:
        pytest.skip("counters may not be opened here")
    capability = PerfStat(software_counters).probe(ctx)
    assert (capability.available, capability.reason) == (False, "not needed: the counters are read directly")


def test_perf_that_is_not_there_or_may_not_count_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = dataclasses.replace(live_context(), syscalls=no_syscalls())
    monkeypatch.setenv("PATH", str(tmp_path))
    capability = PerfStat(software_counters).probe(ctx)
    assert (capability.available, capability.reason) == (False, "perf is not installed")
    stub = tmp_path / "perf"
    stub.write_text("#!/bin/sh\necho 'No permission to enable software event.' >&2\nexit 255\n")
    stub.chmod(0o755)
    capability = PerfStat(software_counters).probe(ctx)
    assert "No permission to enable software event" in capability.reason


def test_lines_of_perf(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = PerfStat(software_counters)
    ctx = captured_context(hardware.tree("skx-2s-hdr-before"), clock=lambda: 10_000_000_000)
    monkeypatch.setattr(PerfStat, "_start", lambda _self, _events: None)
    collector.open(ctx)
    cpu_name = f"CPU{min(os.sched_getaffinity(0))}".encode()
    name = perf_stat._name(0).encode()
    lines = [
        b"# started on Thu",
        b"     0.200;%b;1000;;%b;200978051;100.00;;" % (cpu_name, name),
        b"     0.200;CPU999;5;;%b;200978051;100.00;;" % name,
        b"     0.400;%b;500;;%b;100489025;50.00;;" % (cpu_name, name),
        b"     0.600;%b;<not counted>;;%b;0;0.00;;" % (cpu_name, name),
        b"     0.800;%b;10;;%b;200978051;100.00;;" % (cpu_name, name),
        b"     1.000;%b;7;;perfsco" % cpu_name,
    ]
    monkeypatch.setattr(PerfStat, "_drain", lambda _self: b"\n".join(lines))
    readings = list(collector.sample())
    assert [(r.value, r.quality) for r in readings] == [
        (1000, None),
        (1500, "scaled"),
        (None, None),
        (1510, None),
    ]
    assert [b.t_begin_ns - a.t_begin_ns for a, b in pairwise(readings)][-1] >= 0
    assert collector._rest.endswith(b"perfsco")


def test_a_child_that_ends_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = tmp_path / "perf"
    stub.write_text("#!/bin/sh\nexit 3\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    collector = PerfStat(software_counters)
    collector.open(live_context())
    assert collector._child is not None
    collector._child.wait(10)
    for _ in range(3):
        assert list(collector.sample()) == []
    (fact,) = collector.facts()
    assert fact.value["reason"] == "perf has ended with code 3"
    collector.close()


# resctrl

ROOT = "sys/fs/resctrl"


def mbm(collector: Resctrl) -> dict[tuple[str, str, str], int | float | None]:
    return {
        (r.series.metric.name, r.series.labels["domain"], r.series.labels["group"]): r.value
        for r in collector.sample()
    }


def test_memory_bandwidth_monitoring(tmp_path: Path) -> None:
    expected = hardware.expected("skx-2s-hdr-expected.json")
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    after = hardware.tree("skx-2s-hdr-after")
    collector = Resctrl()
    ctx = captured_context(root)
    assert collector.probe(ctx).detail == "2 L3 domains"
    collector.open(ctx)
    first = mbm(collector)
    for path in (root / ROOT / "mon_data").rglob("*bytes"):
        path.write_bytes((after / path.relative_to(root)).read_bytes())
    second = mbm(collector)
    for kind, key in (("total", "total_B_per_s"), ("local", "local_B_per_s")):
        name = (f"mbm_{kind}_bytes", "0", "default")
        counted = int(second[name] or 0) - int(first[name] or 0)
        assert counted / expected["interval_s"] == expected["mbm"]["0"][key]
    assert expected["mbm"]["1"] is None
    assert second["mbm_total_bytes", "1", "default"] is None  # "Unavailable"
    assert collector.facts() == []  # it may come back
    collector.close()
    collector.close()


@pytest.mark.parametrize("text", ["Unassigned", "Error", "what"])
def test_values_that_will_not_come_back_end_their_series(tmp_path: Path, text: str) -> None:
    root = hardware.copy("skx-2s-hdr-before", tmp_path / "tree")
    (root / ROOT / "mon_data/mon_L3_00/mbm_local_bytes").write_text(text + "\n")
    collector = Resctrl()
    collector.open(captured_context(root))
    for _ in range(3):
        assert len(mbm(collector)) == 3
    (fact,) = collector.facts()
    assert fact.labels == {"domain": "0", "group": "default"}
    collector.close()


def test_the_jobs_own_group_and_sub_numa_parts(tmp_path: Path) -> None:
    group = f"{ROOT}/jobs/mon_groups/job7"
    put(
        tmp_path,
        {
            f"{ROOT}/mon_data/mon_L3_00/mbm_total_bytes": "1\n",
            f"{group}/tasks": "71\n72\n",
            f"{group}/mon_data/mon_L3_01/mbm_total_bytes": "70\n",
            f"{group}/mon_data/mon_L3_01/mon_sub_L3_02/mbm_total_bytes": "30\n",
            f"{group}/mon_data/mon_L3_01/mon_sub_L3_03/mbm_total_bytes": "40\n",
            f"{ROOT}/mon_groups/other/tasks": "99\n",
            f"{ROOT}/mon_groups/other/mon_data/mon_L3_00/mbm_total_bytes": "5\n",
        },
    )
    pids: list[int] = []
    collector = Resctrl()
    collector.open(captured_context(tmp_path, pids=lambda: list(pids)))
    assert mbm(collector) == {("mbm_total_bytes", "0", "default"): 1}
    pids.append(72)
    for _ in range(2):
        assert mbm(collector) == {
            ("mbm_total_bytes", "0", "default"): 1,
            ("mbm_total_bytes", "1/2", "jobs/mon_groups/job7"): 30,
            ("mbm_total_bytes", "1/3", "jobs/mon_groups/job7"): 40,
        }
    collector.close()


@pytest.mark.parametrize(
    ("flags", "files", "reason", "remedy"),
    [
        ("fpu sse2", {}, "the processor does not monitor memory bandwidth", ""),
        ("fpu cqm_mbm_total", {}, "is not mounted", "mount -t resctrl resctrl /sys/fs/resctrl"),
        ("fpu cqm_mbm_total", {f"{ROOT}/schemata": "L3:0=7ff\n"}, "has no memory bandwidth monitoring", ""),
    ],
)
def test_why_there_is_no_monitoring(
    tmp_path: Path, flags: str, files: dict[str, str], reason: str, remedy: str
) -> None:
    cpu(tmp_path, "GenuineIntel", 6, 85, flags)
    put(tmp_path, files)
    capability = Resctrl().probe(captured_context(tmp_path))
    assert not capability.available
    assert reason in capability.reason
    assert remedy in capability.remedy
