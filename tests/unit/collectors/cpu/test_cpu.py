"""CPU time, pressure, threads, frequency and throttling: captured machines, invented ones, and this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfscope.collectors.base import BaseCollector
from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.cpu.clock import CpuClock
from perfscope.collectors.cpu.counters import CpuCounters, process_ticks
from perfscope.collectors.cpu.pressure import Pressure
from perfscope.collectors.cpu.tasks import MAIN_PER_SAMPLE, TASKS_PER_SAMPLE, MainThreads, TaskTimes
from perfscope.rundir.metrics import DERIVED
from perfscope.vocabulary.host_activity import ASLEEP, HostActivity
from tests.support.hardware import by_series, copy, faulty, machine, names, tree, write

TICK_NS = 10_000_000
SECOND_NS = 1_000_000_000
STAT_END = "intr 5 0 0\nctxt 4321\nbtime 1\n"


def once(collector: BaseCollector, ctx: Context) -> dict[str, float | int | None]:
    collector.open(ctx)  # type: ignore[attr-defined]
    readings = by_series(collector.sample())  # type: ignore[attr-defined]
    collector.close()
    return readings


# /proc/stat


def test_busy_time_of_machine_and_nodes() -> None:
    """two-socket-remote: node 0 has CPUs 0-1, node 1 has 2-3, node 2 none."""
    readings = once(CpuCounters(), machine("two-socket-remote"))
    assert readings["cpu_busy{cpu=all}"] == (1060 + 2297 + 284) * TICK_NS
    assert readings["cpu_busy{node=0}"] == (107 + 620 + 63 + 180 + 705 + 55) * TICK_NS
    assert readings["cpu_busy{node=1}"] == (658 + 611 + 110 + 114 + 360 + 55) * TICK_NS
    assert "cpu_busy{node=2}" not in readings
    assert readings["context_switches{}"] == 17590


def test_guest_time_is_inside_user_and_steal_is_not_busy(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"proc/stat": f"cpu  100 10 20 999 7 3 2 55 100 10\ncpu0 100 10 20 999 7 3 2 55 100 10\n{STAT_END}"},
    )
    readings = once(CpuCounters(), captured_context(tmp_path))
    assert readings["cpu_busy{cpu=all}"] == (100 + 10 + 20 + 3 + 2) * TICK_NS
    assert readings["cpu_steal{cpu=all}"] == 55 * TICK_NS
    assert readings["cpu_iowait{cpu=all}"] == 7 * TICK_NS


def test_iowait_may_go_backwards_in_the_file_but_not_in_the_readings(tmp_path: Path) -> None:
    line = "cpu  1 0 0 9 {0} 0 0 0 0 0\ncpu0 1 0 0 9 {0} 0 0 0 0 0\n" + STAT_END
    write(tmp_path, {"proc/stat": line.format(50)})
    collector = CpuCounters()
    collector.open(captured_context(tmp_path))
    values = []
    for iowait in (50, 49, 51):
        write(tmp_path, {"proc/stat": line.format(iowait)})
        values.append(by_series(collector.sample())["cpu_iowait{cpu=all}"])
    assert values == [50 * TICK_NS, 50 * TICK_NS, 51 * TICK_NS]
    collector.close()


def many_cpus(root: Path, count: int, offline: tuple[int, ...] = ()) -> Context:
    """`count` CPUs on 4 nodes; hyperthreads numbered after the cores. CPU n has n ticks of user time."""
    quarter = count // 8
    lines = "".join(f"cpu{cpu} {cpu} 0 0 5 0 0 0 0 0 0\n" for cpu in range(count) if cpu not in offline)
    nodes = {
        f"sys/devices/system/node/node{node}/cpulist": f"{node * quarter}-{(node + 1) * quarter - 1},"
        f"{count // 2 + node * quarter}-{count // 2 + (node + 1) * quarter - 1}\n"
        for node in range(4)
    }
    total = sum(cpu for cpu in range(count) if cpu not in offline)
    interrupts = "intr 1" + " 0" * 3000
    write(root, {"proc/stat": f"cpu  {total} 0 0 5 0 0 0 0 0 0\n{lines}{interrupts}\nctxt 9\n", **nodes})
    return captured_context(root)


@pytest.mark.parametrize("offline", [(), (0,), (7, 30, 199)])
def test_nodes_of_200_cpus_are_summed_from_one_read(tmp_path: Path, offline: tuple[int, ...]) -> None:
    ctx = faulty(many_cpus(tmp_path, 200, offline))
    collector = CpuCounters()
    collector.open(ctx)
    ctx.reads.clear()
    readings = by_series(collector.sample())
    assert ctx.reads == ["/proc/stat"]
    for node in range(4):
        cpus = [*range(node * 25, node * 25 + 25), *range(100 + node * 25, 125 + node * 25)]
        ticks = sum(cpu for cpu in cpus if cpu not in offline)
        assert readings[f"cpu_busy{{node={node}}}"] == ticks * TICK_NS
    collector.close()


def test_a_cpu_that_goes_offline_while_running_leaves_the_other_sums_right(tmp_path: Path) -> None:
    collector = CpuCounters()
    collector.open(many_cpus(tmp_path, 40))
    collector.sample()
    many_cpus(tmp_path, 40, offline=(3,))
    readings = by_series(collector.sample())
    assert readings["cpu_busy{node=1}"] == sum([*range(5, 10), *range(25, 30)]) * TICK_NS
    assert readings["cpu_busy{node=0}"] == sum([0, 1, 2, 4, *range(20, 25)]) * TICK_NS
    collector.close()


def test_stat_that_fails_ends_machine_figures_and_ranks_go_on() -> None:
    ctx = faulty(machine("two-socket-remote"))
    collector = CpuCounters()
    collector.open(ctx)
    ctx.fail("/proc/stat", "EIO")
    for _ in range(2):
        assert set(by_series(collector.sample())) == {
            "rank_cpu{pid=225}",
            "job_cpu{}",
            "job_throttle_count{}",
            "job_throttled{}",
        }
    assert [fact.value["what"] for fact in collector.facts()] == ["/proc/stat"]
    collector.close()


@pytest.mark.parametrize("text", ["", "nonsense\n", "cpu  a b c d e f g h\nintr 1\n", "cpu  1 2 3\nintr 1\n"])
def test_another_format_is_refused_with_a_reason(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"proc/stat": text})
    ctx = captured_context(tmp_path)
    collector = CpuCounters()
    if collector.probe(ctx).available:  # numbers are looked at when they are read
        collector.open(ctx)
        assert collector.sample() == []
        assert collector.facts()
        collector.close()
    else:
        assert "/proc/stat" in collector.probe(ctx).reason


# Ranks


def test_cpu_time_of_a_captured_rank() -> None:
    assert once(CpuCounters(), machine("two-socket-remote"))["rank_cpu{pid=225}"] == (113 + 194) * TICK_NS


@pytest.mark.parametrize("name", ["python3", "a b", "(evil) S 1 2", "):) 9 9 9 9 9 9 9 9 9 9 9 9 9 9"])
def test_process_names_with_spaces_and_parentheses(name: str) -> None:
    rest = "S 185 0 0 0 -1 4194304 18786 0 0 0 113 194 0 0 20 0 1 0 4135 86773760"
    assert process_ticks(f"225 ({name}) {rest}\n".encode()) == 113 + 194


def test_ranks_come_and_go_without_a_word(tmp_path: Path) -> None:
    root = copy("two-socket-remote", tmp_path / "tree", "proc", "sys/fs/cgroup")
    pids = [225, 31337]
    collector = CpuCounters()
    collector.open(captured_context(root, pids=lambda: tuple(pids)))
    assert "rank_cpu{pid=225}" in by_series(collector.sample())
    pids.append(40_000)
    write(root, {"proc/40000/stat": "40000 (new) R 1 0 0 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 4135 86773760"})
    assert by_series(collector.sample())["rank_cpu{pid=40000}"] == 11 * TICK_NS
    pids.remove(225)
    assert "rank_cpu{pid=225}" not in by_series(collector.sample())
    assert not collector.facts()
    collector.close()


def test_a_rank_that_cannot_be_read_is_said_once() -> None:
    ctx = faulty(machine("two-socket-remote"))
    collector = CpuCounters()
    collector.open(ctx)
    ctx.fail("/proc/225/stat", "EACCES")
    for _ in range(3):
        assert "rank_cpu{pid=225}" not in by_series(collector.sample())
    assert [fact.labels for fact in collector.facts()] == [{"pid": "225"}]
    collector.close()


def test_the_clock_of_this_process_is_read_in_nanoseconds() -> None:
    pid = os.getpid()
    collector = CpuCounters()
    collector.open(live_context(pids=lambda: (pid,)))
    before = time.process_time_ns()
    first = by_series(collector.sample())[f"rank_cpu{{pid={pid}}}"]
    sum(range(300_000))
    second = by_series(collector.sample())[f"rank_cpu{{pid={pid}}}"]
    after = time.process_time_ns()
    assert first is not None and second is not None
    assert before <= first < second <= after
    collector.close()


def test_this_machine_agrees_with_itself() -> None:
    """The machine's busy time is that of its CPUs, within a tick of rounding for each."""
    lines = Path("/proc/stat").read_text().splitlines()
    readings = once(CpuCounters(), live_context())
    cpus = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
    busy = sum(int(line[column]) for line in cpus for column in (1, 2, 3, 6, 7))
    seen = (readings["cpu_busy{cpu=all}"] or 0) / 1e9 * os.sysconf("SC_CLK_TCK")
    assert busy - 5 * len(cpus) <= seen <= busy + 100 * len(cpus)


# The job's cgroup


def test_cpu_time_of_the_job() -> None:
    readings = once(CpuCounters(), machine("two-socket-remote"))
    assert readings["job_cpu{}"] == 26_126_255_000
    assert readings["job_throttled{}"] == 0
    assert readings["job_throttle_count{}"] == 0


def test_version_1_of_cgroups_counts_nanoseconds(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpuacct/batch/7"
    write(
        tmp_path,
        {
            "proc/stat": f"cpu  1 0 0 9 0 0 0 0 0 0\ncpu0 1 0 0 9 0 0 0 0 0 0\n{STAT_END}",
            "proc/77/cgroup": "3:cpuacct:/batch/7\n2:cpu:/batch/7\n",
            "proc/77/stat": "77 (x) R 1 0 0 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 4135 86773760",
            f"{group}/cpuacct.usage": "123456789\n",
            "sys/fs/cgroup/cpu/batch/7/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 5000\n",
        },
    )
    ctx = captured_context(tmp_path, pids=lambda: (77,))
    readings = once(CpuCounters(), ctx)
    assert readings["job_cpu{}"] == 123_456_789
    assert readings["job_throttled{}"] == 5000
    assert readings["job_throttle_count{}"] == 4
    assert not CpuCounters().probe(ctx).absent


def test_the_counter_goes_on_when_the_job_turns_out_to_be_wider(tmp_path: Path) -> None:
    """The second rank's Slurm task shares only the step's group, whose usage is larger."""
    root = copy("two-socket-before", tmp_path / "tree", "proc", "sys/fs/cgroup", "sys/devices/system/node")
    step = "sys/fs/cgroup/step_0"
    for task, usage in (("task_0", 1_000), ("task_1", 900)):
        write(root, {f"{step}/{task}/cpu.stat": f"usage_usec {usage}\n"})
    write(root, {f"{step}/cpu.stat": "usage_usec 5000\n", "proc/11/cgroup": "0::/step_0/task_0\n"})
    pids = [11]
    collector = CpuCounters()
    collector.open(captured_context(root, pids=lambda: tuple(pids)))
    assert by_series(collector.sample())["job_cpu{}"] == 1_000_000
    write(root, {"proc/12/cgroup": "0::/step_0/task_1\n"})
    pids.append(12)
    assert by_series(collector.sample())["job_cpu{}"] == 1_000_000
    write(root, {f"{step}/cpu.stat": "usage_usec 5300\n"})
    assert by_series(collector.sample())["job_cpu{}"] == 1_300_000
    collector.close()


def test_a_group_that_is_removed_ends_the_job_and_nothing_else() -> None:
    ctx = faulty(machine("two-socket-remote"))
    collector = CpuCounters()
    collector.open(ctx)
    collector.sample()
    ctx.fail("/sys/fs/cgroup/job1/cpu.stat", "ENODEV")
    for _ in range(2):
        readings = by_series(collector.sample())
        assert "job_cpu{}" not in readings
        assert "rank_cpu{pid=225}" in readings
    assert [fact.value["what"] for fact in collector.facts()] == ["job_cpu"]
    collector.close()


# Pressure


def test_pressure_of_machine_and_job_in_ns() -> None:
    readings = once(Pressure(), machine("two-socket-remote"))
    assert readings["pressure_some{resource=cpu,scope=system}"] == 1_180_764_000
    assert readings["pressure_some{resource=cpu,scope=job}"] == 128_998_000
    assert readings["pressure_full{resource=cpu,scope=job}"] == 119_100_000
    assert "pressure_full{resource=cpu,scope=system}" not in readings, "it is not defined for a machine"
    assert "pressure_full{resource=io,scope=system}" in readings


def test_absent_pressure_names_the_boot_option() -> None:
    capability = Pressure().probe(machine("knl-opa-before"))
    assert not capability.available
    assert "/proc/pressure/cpu" in capability.reason
    assert "psi=1" in capability.remedy


def test_pressure_that_is_switched_off_names_the_boot_option() -> None:
    """With CONFIG_PSI_DEFAULT_DISABLED the files can be there and answer: Operation not supported."""
    errors = {f"proc/pressure/{name}": "EOPNOTSUPP" for name in ("cpu", "memory", "io")}
    capability = Pressure().probe(machine("vm-nothing-available", errors=errors))
    assert not capability.available
    assert "not supported" in capability.reason
    assert "psi=1" in capability.remedy


def test_one_pressure_file_that_fails_ends_alone() -> None:
    ctx = faulty(machine("two-socket-remote"))
    collector = Pressure()
    collector.open(ctx)
    whole = set(by_series(collector.sample()))
    ctx.fail("/proc/pressure/io", "EOPNOTSUPP")
    left = set(by_series(collector.sample()))
    assert whole - left == {
        "pressure_some{resource=io,scope=system}",
        "pressure_full{resource=io,scope=system}",
    }
    assert [fact.labels for fact in collector.facts()] == [{"resource": "io", "scope": "system"}]
    collector.close()


def test_pressure_of_this_machine_only_grows() -> None:
    ctx = live_context()
    if not Pressure().probe(ctx).available:
        pytest.skip(f"no PSI here: {Pressure().probe(ctx).reason}")
    collector = Pressure()
    collector.open(ctx)
    first = by_series(collector.sample())
    second = by_series(collector.sample())
    assert "pressure_some{resource=cpu,scope=system}" in first
    assert all((second[key] or 0) >= (value or 0) for key, value in first.items())
    collector.close()


# Threads


def task_files(pid: int, tid: int, waited: int, voluntary: int, forced: int) -> dict[str, str]:
    folder = f"proc/{pid}/task/{tid}"
    switches = f"voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{forced}\n"
    return {f"{folder}/schedstat": f"999 {waited} 3\n", f"{folder}/status": f"Name:\tx\n{switches}"}


def test_waiting_is_summed_over_threads_from_the_first_look(tmp_path: Path) -> None:
    now = [SECOND_NS]
    collector = TaskTimes()
    write(tmp_path, task_files(50, 50, 1000, 10, 1) | task_files(50, 51, 4000, 20, 2))
    collector.open(captured_context(tmp_path, pids=lambda: (50,), clock=lambda: now[0]))
    assert by_series(collector.sample())["rank_runqueue_wait{pid=50}"] == 0
    write(tmp_path, task_files(50, 50, 1300, 11, 1) | task_files(50, 51, 4100, 20, 5))
    write(tmp_path, task_files(50, 52, 70, 1, 0))  # a thread that has begun since
    now[0] += 6 * SECOND_NS
    readings = by_series(collector.sample())
    assert readings["rank_runqueue_wait{pid=50}"] == 300 + 100 + 70
    assert readings["context_switches{kind=voluntary,pid=50}"] == 1 + 0 + 1
    assert readings["context_switches{kind=nonvoluntary,pid=50}"] == 3


def test_threads_that_end_take_nothing_away(tmp_path: Path) -> None:
    now = [SECOND_NS]
    collector = TaskTimes()
    write(tmp_path, task_files(50, 50, 0, 0, 0) | task_files(50, 51, 0, 0, 0))
    ctx = faulty(captured_context(tmp_path, pids=lambda: (50,), clock=lambda: now[0]))
    collector.open(ctx)
    collector.sample()
    write(tmp_path, task_files(50, 51, 500, 0, 0))
    assert by_series(collector.sample())["rank_runqueue_wait{pid=50}"] == 500
    ctx.fail("/proc/50/task/51/schedstat", "ESRCH")
    assert by_series(collector.sample())["rank_runqueue_wait{pid=50}"] == 500
    assert not collector.facts()


def test_of_many_threads_a_bounded_number_is_read_and_all_in_turn(tmp_path: Path) -> None:
    tids = range(100, 300)
    for tid in tids:
        write(tmp_path, task_files(100, tid, 0, 0, 0))
    now = [SECOND_NS]
    ctx = faulty(captured_context(tmp_path, pids=lambda: (100,), clock=lambda: now[0]))
    collector = TaskTimes()
    collector.open(ctx)
    rounds = 200 // (TASKS_PER_SAMPLE - 1) + 1
    for _ in range(rounds):
        ctx.reads.clear()
        readings = collector.sample()
        assert len({name.split("/")[4] for name in ctx.reads}) == TASKS_PER_SAMPLE
        assert "/proc/100/task/100/schedstat" in ctx.reads, "the main thread is read every time"
        assert readings[0].quality == DERIVED, "what the others gained comes later"
    for tid in tids:
        write(tmp_path, task_files(100, tid, 10, 0, 0))
    for _ in range(rounds):
        readings = collector.sample()
    assert by_series(readings)["rank_runqueue_wait{pid=100}"] == 200 * 10


def test_threads_of_another_user_are_given_up_with_a_remedy(tmp_path: Path) -> None:
    write(tmp_path, task_files(50, 50, 0, 0, 0) | task_files(60, 60, 0, 0, 0))
    ctx = faulty(captured_context(tmp_path, pids=lambda: (50, 60)))
    ctx.fail("/proc/50/task/50/schedstat", "EACCES")
    collector = TaskTimes()
    collector.open(ctx)
    for _ in range(2):
        assert {reading.series.labels["pid"] for reading in collector.sample()} == {"60"}
    (fact,) = collector.facts()
    assert "same user" in str(fact.value["reason"])


def test_the_wait_of_main_threads_is_read_at_each_tick_in_turn(tmp_path: Path) -> None:
    pids = range(50, 50 + MAIN_PER_SAMPLE + 4)
    for pid in pids:
        write(tmp_path, task_files(pid, pid, 10 * pid, 0, 0))
    here = list(pids)
    collector = MainThreads()
    collector.open(captured_context(tmp_path, pids=lambda: tuple(here)))
    first, second = by_series(collector.sample()), by_series(collector.sample())
    assert len(first) == len(second) == MAIN_PER_SAMPLE and len(first.keys() | second.keys()) == len(pids)
    assert first["rank_main_thread_wait{pid=50}"] == 500
    here[:] = [60]  # the others have ended
    write(tmp_path, task_files(60, 60, 777, 0, 0))
    assert by_series(collector.sample()) == {"rank_main_thread_wait{pid=60}": 777}
    collector.close()
    assert not collector.facts()


def test_a_main_thread_that_cannot_be_read_is_given_up_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, task_files(50, 50, 0, 0, 0) | {"proc/60/task/60/schedstat": "nothing\n"})
    collector = MainThreads()
    collector.open(captured_context(tmp_path, pids=lambda: (50, 60, 70)))
    for _ in range(2):
        assert by_series(collector.sample()) == {"rank_main_thread_wait{pid=50}": 0}
    (fact,) = collector.facts()
    assert fact.labels == {"pid": "60"} and fact.value["what"] == "schedstat"


@pytest.mark.parametrize(
    ("wchan", "state", "activity"),
    [
        ("0", "R", None),
        ("0", "S", HostActivity.BLOCKED),  # the kernel does not show where
        ("0", "D", HostActivity.FILES),
        ("futex_do_wait", "S", HostActivity.LOCK),
        ("futex_wait_queue_me", "S", HostActivity.LOCK),
        ("hrtimer_nanosleep", "S", HostActivity.SLEEP),
        ("do_epoll_wait", "S", HostActivity.PIPES),
        ("anon_pipe_read", "S", HostActivity.PIPES),
        ("folio_wait_bit_common", "D", HostActivity.FILES),
        ("jbd2_log_wait_commit", "D", HostActivity.FILES),
        ("rpc_wait_bit_killable", "S", HostActivity.FILES),
        ("do_wait", "S", HostActivity.BLOCKED),
    ],
)
def test_what_a_main_thread_sleeps_in_is_told_by_the_kernels_function(
    tmp_path: Path, wchan: str, state: str, activity: HostActivity | None
) -> None:
    here = {"proc/50/wchan": wchan, "proc/50/stat": f"50 (py) thon) {state} 1 50\n"}
    write(tmp_path, task_files(50, 50, 7, 0, 0) | here)
    collector = MainThreads()
    collector.open(captured_context(tmp_path, pids=lambda: (50,)))
    code = 0 if activity is None else 1 + ASLEEP.index(activity)
    read = by_series(collector.sample())
    assert read == {"rank_main_thread_wait{pid=50}": 7, "rank_main_thread_state{pid=50}": code}
    collector.close()


@pytest.mark.parametrize(
    ("code", "activity"),
    [
        (
            "import threading; held = threading.Lock(); held.acquire(); say(); held.acquire()",
            HostActivity.LOCK,
        ),
        ("import time; say(); time.sleep(60)", HostActivity.SLEEP),
        ("import os; say(); os.read(os.pipe()[0], 1)", HostActivity.PIPES),
        ("say()\nwhile True: pass", None),
    ],
)
def test_a_real_main_thread_is_seen_asleep(code: str, activity: HostActivity | None) -> None:
    say = "say = lambda: print('ready', flush=True)\n"
    with subprocess.Popen([sys.executable, "-c", say + code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        collector = MainThreads()
        collector.open(live_context(pids=lambda: (process.pid,)))
        seen = set()
        for _ in range(20):
            time.sleep(0.02)
            seen.add(by_series(collector.sample()).get(f"rank_main_thread_state{{pid={process.pid}}}"))
        collector.close()
        process.kill()
    assert (0 if activity is None else 1 + ASLEEP.index(activity)) in seen


def test_schedstat_of_this_process_sees_its_threads() -> None:
    pid = os.getpid()
    ctx = live_context(pids=lambda: (pid,))
    capability = TaskTimes().probe(ctx)
    if not capability.available:
        pytest.skip(capability.reason)
    collector = TaskTimes()
    collector.open(ctx)
    bounds = [waited_ns()]
    collector.sample()
    bounds.append(waited_ns())
    contend(0.1)
    bounds.append(waited_ns())
    readings = by_series(collector.sample())
    bounds.append(waited_ns())
    waited = readings[f"rank_runqueue_wait{{pid={pid}}}"] or 0
    assert 0 < bounds[2] - bounds[1] <= waited <= bounds[3] - bounds[0]
    assert (readings[f"context_switches{{kind=nonvoluntary,pid={pid}}}"] or 0) > 0


def waited_ns() -> int:
    """Of all threads of this process, so far."""
    return sum(int(path.read_text().split()[1]) for path in Path("/proc/self/task").glob("*/schedstat"))


def contend(seconds: float) -> None:
    """Want a CPU that another process wants as well."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    spin = f"import os; os.sched_setaffinity(0, {one}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            os.sched_setaffinity(0, one)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()


# Frequency and heat


def test_throttling_of_a_package_is_counted_once_not_once_per_cpu() -> None:
    before, after = (once(CpuClock(), machine(f"skx-2s-hdr-{when}")) for when in ("before", "after"))
    gained = {key: (after[key] or 0) - (value or 0) for key, value in before.items()}
    assert gained["thermal_throttle_count{package=0}"] == 1
    assert gained["thermal_throttle_count{core=all}"] == 2
    assert gained["thermal_throttle_time{package=0}"] == 3_000_000
    assert before["thermal_throttle_time{package=0}"] == 3_000_000


def test_frequency_is_the_mean_of_a_few_cpus_of_each_node(tmp_path: Path) -> None:
    ctx = faulty(many_cpus(tmp_path, 200))
    for cpu in range(200):
        write(tmp_path, {f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq": f"{2_000_000 + cpu}\n"})
    collector = CpuClock()
    collector.open(ctx)
    ctx.reads.clear()
    readings = by_series(collector.sample())
    assert len(ctx.reads) == 4 * 4
    assert set(readings) == {f"cpu_frequency{{node={node}}}" for node in range(4)}
    assert 2.0e9 <= (readings["cpu_frequency{node=0}"] or 0) < 2.0002e9
    collector.close()


def test_a_virtual_machine_has_neither_and_says_so() -> None:
    capability = CpuClock().probe(machine("vm-nothing-available"))
    assert not capability.available
    assert "cpufreq" in capability.reason
    assert "Intel" in capability.reason


@pytest.mark.parametrize("name", names())
def test_every_tree_can_be_probed_and_read(name: str) -> None:
    for make in (CpuCounters, Pressure, TaskTimes, CpuClock):
        collector = make()
        ctx = captured_context(tree(name))
        capability = collector.probe(ctx)
        assert capability.available or capability.reason
        if capability.available:
            collector.open(ctx)
            collector.sample()
            collector.close()
