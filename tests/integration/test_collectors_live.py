"""Collectors on the kernel that runs the tests: what they read follows what really happens.

The machine may be busy with other things, so figures are compared with each other and with what the load
itself counted, never with the clock on the wall alone.
"""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from perfscope.collectors.context import Context, live_context
from perfscope.collectors.memory.bandwidth import MemoryBandwidth
from perfscope.collectors.memory.uncore import PMUS, UncoreEvent, UncoreMap, encode, read_formats
from perfscope.collectors.syscalls import real_syscalls
from tests.integration.collector_support import Readings, ip, opened, stopped

# On every line it gets: burns that many ns of CPU time, half on a second thread, and tells what it used.
WORK = """
import sys, threading, time
def burn(ns):
    end = time.thread_time_ns() + ns
    while time.thread_time_ns() < end: pass
for line in sys.stdin:
    begin = time.process_time_ns()
    second = threading.Thread(target=burn, args=(int(line) // 2,))
    second.start(); burn(int(line) // 2); second.join()
    print(time.process_time_ns() - begin, flush=True)
"""


class Worker:
    """A process that uses as much CPU time as it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def begin(self, cpu_ns: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{cpu_ns}\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Waits until it is done; ns of CPU time that it has counted itself."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def burn(self, cpu_ns: int) -> int:
        self.begin(cpu_ns)
        return self.end()


@contextmanager
def workers(count: int, cpu: int | None = None) -> Iterator[list[Worker]]:
    """`count` workers that have started up, all on one CPU where it is given."""
    pin = [] if cpu is None else ["taskset", "-c", str(cpu)]
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            process = subprocess.Popen(
                [*pin, sys.executable, "-I", "-S", "-c", WORK],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(Worker(process))
        for worker in started:
            worker.burn(1_000_000)
        yield started


def test_cpu_time_of_a_rank_is_what_the_rank_itself_counts_on_all_threads() -> None:
    with workers(2) as (busy, idle), opened("cpu", [busy.pid, idle.pid]) as cpu:
        before = Readings(cpu)
        used = busy.burn(400_000_000)
        after = Readings(cpu, like=before)
    assert after.grown(before, "rank_cpu", pid=str(busy.pid)) == pytest.approx(used, rel=0.05)
    assert after.grown(before, "rank_cpu", pid=str(idle.pid)) < 0.05 * used


def test_cpu_time_of_the_machine_includes_that_of_the_rank() -> None:
    with workers(1) as (busy,), opened("cpu", [busy.pid]) as cpu:
        before = Readings(cpu)
        used = busy.burn(500_000_000)
        after = Readings(cpu, like=before)
    assert after.grown(before, "cpu_busy", cpu="all") >= 0.9 * used


def test_cpu_pressure_rises_while_more_threads_run_than_cpus() -> None:
    if not Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel keeps no pressure figures (boot with psi=1)")
    crowd = 2 * (os.cpu_count() or 1)
    with workers(crowd) as many, opened("cpu.pressure", [worker.pid for worker in many]) as pressure:
        before = Readings(pressure)
        for worker in many:
            worker.begin(300_000_000)
        for worker in many:
            worker.end()
        after = Readings(pressure, like=before)
    waited = after.grown(before, "pressure_some", resource="cpu", scope="system")
    assert waited > 0.2 * after.elapsed_ns(before, "pressure_some", resource="cpu", scope="system")


def test_ranks_that_share_a_cpu_wait_for_each_other() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel has no schedstat")
    cpu = min(os.sched_getaffinity(0))
    with workers(2, cpu) as pair, opened("cpu.tasks", [worker.pid for worker in pair]) as tasks:
        before = Readings(tasks)
        for worker in pair:
            worker.begin(300_000_000)
        used = [worker.end() for worker in pair]
        after = Readings(tasks, like=before)
    for worker, cpu_ns in zip(pair, used, strict=True):
        assert after.grown(before, "rank_runqueue_wait", pid=str(worker.pid)) > 0.3 * cpu_ns


def test_a_rank_that_ends_ends_its_own_series_only() -> None:
    with workers(2) as (first, second), opened("cpu", [first.pid, second.pid]) as cpu:
        before = Readings(cpu)
        first.process.kill()
        first.process.wait()
        used = second.burn(200_000_000)
        time.sleep(0.2)
        after = Readings(cpu)
        deadline = time.monotonic() + 5
        while not after.keys("rank_cpu", pid=str(second.pid)) and time.monotonic() < deadline:
            after = Readings(cpu)
    assert not after.keys("rank_cpu", pid=str(first.pid))
    assert after.grown(before, "rank_cpu", pid=str(second.pid)) == pytest.approx(used, rel=0.05)


def test_characters_that_a_rank_reads_are_counted(tmp_path: Path) -> None:
    size = 8 << 20
    (tmp_path / "data").write_bytes(bytes(size))
    code = f"import sys; sys.stdin.readline(); open({str(tmp_path / 'data')!r}, 'rb').read()"
    code += "; print(1, flush=True); sys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        worker = Worker(process)
        time.sleep(0.5)  # it has read its own modules by then
        with opened("io", [process.pid]) as io:
            before = Readings(io)
            worker.burn(0)
            after = Readings(io, like=before)
        worker.begin(0)
    assert size <= after.grown(before, "rank_read_chars", pid=str(process.pid)) < size + (2 << 20)


def read_counter(descriptor: int) -> tuple[int, int, int]:
    """Value, time enabled, time running."""
    value, enabled, running = struct.unpack("QQQ", os.read(descriptor, 24))
    return value, enabled, running


def test_the_software_clock_of_perf_agrees_with_its_own_times() -> None:
    try:
        # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK: ns
        descriptor = real_syscalls().perf_event_open(1, 0, 0)
    except OSError as error:
        pytest.skip(f"no perf counters of whole CPUs: {error} (root or kernel.perf_event_paranoid <= 0)")
    try:
        first = read_counter(descriptor)
        time.sleep(0.2)
        second = read_counter(descriptor)
    finally:
        os.close(descriptor)
    counted, enabled, running = (b - a for a, b in zip(first, second, strict=True))
    assert counted == pytest.approx(enabled, rel=0.02)
    assert running == enabled  # software counters are never multiplexed


def time_stamp_counter(ctx: Context) -> UncoreMap:
    """The one counter with a dynamic PMU that virtual machines have, as if it counted memory traffic."""
    terms = ctx.read(f"{PMUS}/msr/events/tsc").strip()
    config, config1, config2 = encode(terms, read_formats(ctx, "msr"))
    event = UncoreEvent(
        metric="dram_read_bytes",
        pmu="msr",
        channel="0",
        kind=int(ctx.read(f"{PMUS}/msr/type")),
        config=config,
        config1=config1,
        config2=config2,
        bytes_per_count=64.0,
        cpus=(0,),
        how=terms,
    )
    return UncoreMap(events=(event,), sockets={0: "0"})


def test_memory_bandwidth_reads_a_dynamic_pmu_of_this_kernel() -> None:
    ctx = live_context()
    if not ctx.exists(f"{PMUS}/msr/events/tsc"):
        pytest.skip("no msr PMU in this kernel")
    membw = MemoryBandwidth(time_stamp_counter)
    capability = membw.probe(ctx)
    if not capability.available:
        pytest.skip(f"{capability.reason} ({capability.remedy})")
    membw.open(ctx)
    try:
        seen = [Readings(membw)]
        for _ in range(2):
            time.sleep(0.2)
            seen.append(Readings(membw))
    finally:
        membw.close()
    rates = [
        after.grown(before, "dram_read_bytes") / after.elapsed_ns(before, "dram_read_bytes")
        for before, after in itertools.pairwise(seen)
    ]
    assert rates[0] == pytest.approx(rates[1], rel=0.05)  # it ticks evenly, whatever runs
    assert 0.3 < rates[0] / 64 < 10  # GHz


# On every line it gets: a hundred datagrams of 1000 bytes to everybody on the second wire.
SEND = """
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(100): out.sendto(bytes(1000), ("10.9.8.255", 9))
    print("sent", flush=True)
"""


@pytest.fixture
def rank_with_two_wires() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A rank in a network namespace of its own with the interfaces going0 and staying0; the namespace."""
    namespace = f"perfscope-v-{os.getpid()}"
    try:
        try:
            ip("netns", "add", namespace)
            for name in ("going", "staying"):
                ip(*f"-n {namespace} link add {name}0 type veth peer name {name}1".split())
                for end in (0, 1):
                    ip(*f"-n {namespace} link set {name}{end} up".split())
            ip(*f"-n {namespace} addr add 10.9.8.1/24 broadcast 10.9.8.255 dev staying0".split())
        except OSError as error:
            pytest.skip(f"network namespaces need root and iproute2: {error}")
        command = ["ip", "netns", "exec", namespace, sys.executable, "-I", "-S", "-c", SEND]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                yield process, namespace
            finally:
                process.kill()
    finally:
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def test_an_interface_that_vanishes_ends_its_series_and_no_other(
    rank_with_two_wires: tuple[subprocess.Popen[str], str],
) -> None:
    rank, namespace = rank_with_two_wires
    assert rank.stdin is not None and rank.stdout is not None
    with opened("ethernet", [rank.pid]) as ethernet:
        before = Readings(ethernet)
        ethernet.facts()
        ip("-n", namespace, "link", "del", "going0")
        rank.stdin.write("\n")
        rank.stdin.flush()
        assert rank.stdout.readline() == "sent\n"
        after = Readings(ethernet)
        ended = stopped(ethernet)
        again = Readings(ethernet)
        ended += stopped(ethernet)
    assert before.keys("net_tx_bytes", interface="going0")
    assert not after.keys("net_tx_bytes", interface="going0") + again.keys("net_tx_bytes", interface="going0")
    assert after.grown(before, "net_tx_bytes", interface="staying0") >= 100 * 1000
    told = [fact.labels.get("interface") for fact in ended]
    assert sorted(map(str, told)) == ["going0", "going1"]  # each once; a veth's other end goes with it
    assert all(fact.value["reason"] for fact in ended)


def test_a_collector_outlives_all_of_its_ranks() -> None:
    for name in ("cpu", "cpu.tasks", "io", "numa.placement", "ethernet"):
        with workers(1) as (worker,), opened(name, [worker.pid]) as collector:
            collector.sample()
            worker.process.kill()
            worker.process.wait()
            for _ in range(3):
                collector.sample()
