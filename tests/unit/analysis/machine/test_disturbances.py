"""Whether a run was clean: the neighbors, quotas and heat that were put into the samples, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from tests.support.synthetic_run import EPOCH, span
from tests.support.synthetic_samples import SECOND, SampledRun, SampleFile, ticks, two_nodes

FAST, SLOW = ticks(0, 40), ticks(0, 40, 1.0)
CPUS = 1_000_000_000  # ns of CPU time per second


def quiet_file(
    neighbour: float | Callable[[float], float] = 0.05, steal: float | Callable[[float], float] = 0
) -> SampleFile:
    """40 s on 8 CPUs, steps from second 10 to 30. `neighbour` in CPUs, `steal` in jiffies per second."""
    file = SampleFile()
    own: Callable[[float], float] = neighbour if callable(neighbour) else lambda _: neighbour
    file.rate("neighbour_cpu", SLOW, lambda t: own(t) * 100, scale=1e7)
    file.rate("cpu_busy", FAST, lambda t: (2 + own(t)) * 100, scale=1e7, cpu="all")
    file.rate("cpu_steal", FAST, steal, scale=1e7, cpu="all")
    return file


def analyze(path: Path, file: SampleFile | None, **more: Any) -> tuple[MachineAnalysis, list[Finding]]:
    analysis = analyze_run(SampledRun(path, file, **{"topology": two_nodes(), **more}).read())
    assert analysis.machine is not None
    return analysis.machine, list(analysis.findings)


def between(start: float, end: float, high: float, low: float = 0.05) -> Callable[[float], float]:
    return lambda t: high if start <= t < end else low


def test_a_quiet_run_is_clean_and_says_what_that_rests_on(tmp_path: Path) -> None:
    machine, findings = analyze(tmp_path, quiet_file())
    assert machine.clean is True and machine.disturbances == ()
    assert machine.clean_reason == (
        "In 20.0 s of steps other processes used 0.05 of 8 CPUs, the hypervisor took 0.0 %."
    )
    assert "disturbed" not in {finding.id for finding in findings}


def test_a_neighbour_is_found_when_it_was_there_and_named(tmp_path: Path) -> None:
    file = quiet_file(between(14, 20, 3.0))
    value = {"pid": 4242, "name": "stress-ng", "user": "bob", "cpus": 2.9, "seconds": 1.0}
    file.fact("neighbour", 15, {"kind": "cpu"}, value)
    file.fact("neighbour", 3, {"kind": "cpu"}, {**value, "name": "earlier", "pid": 1})
    machine, findings = analyze(tmp_path, file)
    assert machine.clean is False
    (found,) = machine.disturbances
    assert (found.kind, found.host, found.within_steps) == ("cpu_neighbour", "node0", True)
    assert abs(found.start_ns - (EPOCH + 14 * SECOND)) <= SECOND
    assert abs(found.end_ns - (EPOCH + 20 * SECOND)) <= SECOND
    assert 0.3 < found.severity < 0.4
    assert found.title.startswith("Other processes (stress-ng) took 3.0 of 8 CPUs for 6.00 s")
    # One look saw 2.9 CPUs: over the whole of it, it is the title's figure.
    assert found.evidence == ("stress-ng (pid 4242, user bob): 3.0 CPUs",)
    finding = findings[1]  # right after the verdict: it may explain the figures
    assert finding.id == "disturbed" and "stress-ng" in finding.text.detail


def test_what_happens_before_the_first_step_or_after_the_last_does_not_count(tmp_path: Path) -> None:
    machine, findings = analyze(tmp_path, quiet_file(lambda t: 0.05 if 9 <= t < 31 else 4.0))
    assert machine.clean is True
    assert [one.within_steps for one in machine.disturbances] == [False, False]
    assert machine.disturbances[0].title.endswith("before the first step.")
    assert machine.disturbances[1].title.endswith("after the last step.")
    assert "disturbed" not in {finding.id for finding in findings}


def test_less_than_a_second_or_than_a_twentieth_of_the_machine_is_no_disturbance(tmp_path: Path) -> None:
    assert analyze(tmp_path / "little", quiet_file(0.3))[0].disturbances == ()
    file = quiet_file(steal=between(20, 20.3, 100, 0))
    assert analyze(tmp_path / "short", file)[0].clean is True


def test_on_a_small_machine_a_twentieth_is_less_than_a_neighbour(tmp_path: Path) -> None:
    """On 2 CPUs, 5 % is 0.1 CPU: any shell reaches it for a second."""
    topology = {**two_nodes(), "online_cpus": "0-1", "logical_cpus": 2}
    assert analyze(tmp_path / "shell", quiet_file(0.15), topology=topology)[0].clean is True
    assert analyze(tmp_path / "job", quiet_file(0.5), topology=topology)[0].clean is False


def test_a_neighbour_that_comes_and_goes_is_one_disturbance(tmp_path: Path) -> None:
    machine, _ = analyze(tmp_path, quiet_file(lambda t: 3.0 if int(t) % 2 else 0.05))
    inside = [one for one in machine.disturbances if one.within_steps]
    assert len(inside) == 1 and inside[0].end_ns - inside[0].start_ns >= 17 * SECOND


def test_a_short_disturbance_of_a_long_run_is_listed_but_leaves_it_clean(tmp_path: Path) -> None:
    file = SampleFile()
    times = ticks(0, 1000, 1.0)
    file.rate("neighbour_cpu", times, lambda t: between(500, 504, 3.0)(t) * 100, scale=1e7)
    machine, _ = analyze(tmp_path, file, steps=(10.0, 990.0), step_s=5.0)
    assert machine.clean is True and len(machine.disturbances) == 1
    assert "1 short disturbance in 0.4 % of it" in machine.clean_reason


def test_steal_is_laid_at_the_hypervisor(tmp_path: Path) -> None:
    file = quiet_file(steal=between(12, 28, 160, 0))  # of 800 jiffies a second
    machine, findings = analyze(tmp_path, file)
    assert [one.kind for one in machine.disturbances] == ["steal"]
    assert "20 % of CPU time" in machine.disturbances[0].title
    assert "shared" in next(one for one in findings if one.id == "disturbed").text.action


def test_a_quota_that_stops_the_job_is_found(tmp_path: Path) -> None:
    file = quiet_file()
    file.rate("job_throttled", FAST, between(12, 25, 300_000, 0), scale=1000, source="cpu.stat")
    machine, _ = analyze(tmp_path, file, topology=two_nodes(cpu_limit=2.0))
    (found,) = machine.disturbances
    assert found.kind == "cgroup_throttling" and "30 % of the time" in found.title
    assert "the quota is 2 CPUs" in found.evidence


def test_heat_counts_and_a_power_cap_does_not(tmp_path: Path) -> None:
    for reason, clean in (("hw_thermal", False), ("hw_power_brake", False), ("sw_power_cap", True)):
        file = quiet_file()
        file.rate("gpu_throttle_time", FAST, between(12, 28, 0.5 * CPUS, 0), gpu="0", reason=reason)
        file.rate("gpu_sm_clock", FAST, 0, gpu="0")
        machine, findings = analyze(tmp_path / reason, file)
        assert machine.clean is clean
        titles = {finding.id.value: finding.text.title for finding in findings}
        assert ("power_capped" in titles) is clean
        assert clean or " GPU 0 was throttled" in titles["disturbed"]


def test_heat_is_found_where_only_reasons_or_counts_are_told(tmp_path: Path) -> None:
    file = quiet_file()
    bits = [0x40 if 12 <= t < 20 else 0x4 for t in FAST]
    file.add("gpu_throttle_reasons", FAST, bits, kind="gauge", unit="bitmask", gpu="0")
    file.rate("thermal_throttle_count", FAST, between(12, 20, 5, 0), unit="events", package="1")
    machine, _ = analyze(tmp_path, file)
    assert {one.title.split(" for ")[0] for one in machine.disturbances} == {
        "GPU 0 was throttled (HW thermal)",
        "CPU package 1 was throttled by heat 5 times a second",
    }
    assert all(one.kind == "throttling" for one in machine.disturbances)


def test_other_processes_on_a_gpu_are_found_with_their_memory(tmp_path: Path) -> None:
    file = quiet_file()
    values = [1 if 15 <= t < 25 else 0 for t in FAST]
    file.add("gpu_foreign_processes", FAST, values, kind="gauge", unit="processes", gpu="1")
    file.add("gpu_foreign_memory", FAST, [v << 30 for v in values], kind="gauge", unit="bytes", gpu="1")
    file.add("gpu_memory_total", FAST, [4 << 30] * len(FAST), kind="gauge", unit="bytes", gpu="1")
    machine, _ = analyze(tmp_path, file)
    (found,) = machine.disturbances
    assert (found.kind, found.severity) == ("gpu_neighbour", 0.25)
    assert "1 other process used GPU 1 (1.00 GiB of its memory)" in found.title


def test_memory_pressure_is_found(tmp_path: Path) -> None:
    file = quiet_file()
    file.rate(
        "pressure_some", FAST, between(12, 20, 400_000, 0), scale=1000, resource="memory", scope="system"
    )
    machine, _ = analyze(tmp_path, file)
    assert [one.kind for one in machine.disturbances] == ["pressure"]


def test_the_job_s_own_threads_are_no_neighbour(tmp_path: Path) -> None:
    """16 threads on 8 CPUs: everything waits, and nobody else is there."""
    file = quiet_file()
    for scope in ("system", "job"):
        file.rate("pressure_some", FAST, 900_000, scale=1000, resource="cpu", scope=scope)
    ranks = [{"pid": 100 + k, "num_threads": 4, "affinity": list(range(8))} for k in range(4)]
    machine, findings = analyze(tmp_path, file, ranks=ranks)
    assert machine.clean is True
    finding = next(one for one in findings if one.id == "oversubscribed")
    assert finding.text.title == "CPU oversubscription: 4 ranks x 4 compute threads share CPUs 0-7 (8 CPUs)."
    assert "90.0 % of step time" in finding.text.detail and "OMP_NUM_THREADS=2" in finding.text.action
    assert machine.pressures == {"node0": 0.9}


def idle_run(path: Path, file: SampleFile, threads: int = 1) -> list[Finding]:
    """One rank; in its traced step of 10 ms, among the others, it computes for 2 ms."""
    begin = 15 * SECOND
    ranks = [{"pid": 100, "num_threads": threads}]
    sampled = SampledRun(path, file, step_s=0.01, topology=two_nodes(), ranks=ranks)
    sampled.run.window(0, [span(begin, 2_000_000, "compute")], [(0, begin, begin + 10_000_000)])
    return list(analyze_run(sampled.read()).findings)


def waiting_for_cpus(seconds_per_s: float, neighbour: float = 0.05) -> SampleFile:
    file = quiet_file(neighbour)
    file.rate("rank_runqueue_wait", SLOW, seconds_per_s * SECOND, pid="100")
    return file


def test_idle_time_in_which_threads_wait_for_a_cpu_is_not_laid_at_the_code(tmp_path: Path) -> None:
    findings = idle_run(tmp_path, waiting_for_cpus(0.7))
    finding = findings[0]
    assert (finding.id, round(finding.gain_ratio or 0, 3)) == ("preempted", 0.56)  # of 0.8
    assert "56.0 % of the median step" in finding.text.title
    assert "In 70.0 % of step time" in finding.text.detail
    assert "Profile" not in finding.text.action
    gaps = next(finding for finding in findings if finding.id == "host_bound")
    assert round(gaps.gain_ratio or 0, 3) == 0.24
    assert "(time asleep or waiting for a CPU not counted)" in gaps.text.title
    assert "Profile" in gaps.text.action


def test_less_waiting_for_a_cpu_has_its_share_of_the_gaps_too_and_little_has_none(tmp_path: Path) -> None:
    some = {one.id.value: one for one in idle_run(tmp_path / "some", waiting_for_cpus(0.25))}
    assert round(some["preempted"].gain_ratio or 0, 3) == 0.2  # of 0.8
    assert round(some["host_bound"].gain_ratio or 0, 3) == 0.6
    little = {one.id.value: one for one in idle_run(tmp_path / "little", waiting_for_cpus(0.05))}
    assert "preempted" not in little and round(little["host_bound"].gain_ratio or 0, 3) == 0.8
    assert "not counted" not in little["host_bound"].text.title


def test_gaps_beyond_waiting_for_a_cpu_are_not_laid_to_a_neighbour(tmp_path: Path) -> None:
    findings = idle_run(tmp_path, waiting_for_cpus(0.6, neighbour=6.0))
    gaps = next(finding for finding in findings if finding.id == "host_bound")
    assert gaps.symptom_of is None and "Profile" in gaps.text.action


def test_with_a_neighbour_the_disturbance_comes_before_such_idle_time(tmp_path: Path) -> None:
    found = [finding.id for finding in idle_run(tmp_path, waiting_for_cpus(0.7, neighbour=6.0))]
    assert found[:2] == ["disturbed", "preempted"]


def test_idle_time_beside_short_waits_for_a_cpu_is_the_code_s(tmp_path: Path) -> None:
    """A tenth of the time, or as much of each of eight threads."""
    for name, waits, threads in (("short", 0.1, 1), ("many", 0.8, 8)):
        assert idle_run(tmp_path / name, waiting_for_cpus(waits), threads)[0].id == "host_bound"


def test_ranks_pinned_to_one_cpu_are_oversubscribed_though_others_are_free(tmp_path: Path) -> None:
    ranks = [{"pid": 100 + k, "affinity": [0] if k < 2 else [k]} for k in range(4)]
    _, findings = analyze(tmp_path / "pinned", quiet_file(), ranks=ranks)
    finding = next(one for one in findings if one.id == "oversubscribed")
    assert finding.text.title == "CPU oversubscription: 2 ranks x 1 compute thread share CPUs 0 (1 CPU)."
    apart = [{"pid": 100 + k, "affinity": [k]} for k in range(4)]
    _, findings = analyze(tmp_path / "apart", quiet_file(), ranks=apart)
    assert "oversubscribed" not in {finding.id for finding in findings}


def test_ranks_that_compute_on_gpus_do_not_oversubscribe_cpus(tmp_path: Path) -> None:
    ranks = [
        {"pid": 100 + k, "num_threads": 8, "device": f"cuda:{k} NVIDIA X", "affinity": [0, 1]}
        for k in range(2)
    ]
    _, findings = analyze(tmp_path, quiet_file(), ranks=ranks)
    assert "oversubscribed" not in {finding.id for finding in findings}


def test_without_readings_of_others_it_cannot_be_told(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, 200, scale=1e7, cpu="all")
    file.fact("stopped", 1, {}, {"what": "neighbour_cpu", "reason": "no such file"}, collector="neighbours")
    machine, _ = analyze(tmp_path / "no neighbors", file)
    assert machine.clean is None
    assert machine.clean_reason == "The CPU time of other processes was not read: no such file."
    machine, _ = analyze(tmp_path / "no samples", None)
    assert machine.clean is None and machine.clean_reason == "Its counters were not sampled."
    file = SampleFile()
    file.rate("neighbour_cpu", ticks(0, 13, 1.0), 1, scale=1e7)
    machine, _ = analyze(tmp_path / "killed early", file)
    assert machine.clean is None and "only 15 % of step time" in machine.clean_reason


def test_where_others_are_hidden_the_control_group_tells_them_apart(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, between(14, 20, 500, 200), scale=1e7, cpu="all")
    file.rate("job_cpu", FAST, 2_000_000, scale=1000)
    machine, _ = analyze(tmp_path, file)
    assert machine.clean is False
    (found,) = machine.disturbances
    assert "outside the job's control group took 3.0 of 8 CPUs" in found.title


def test_cpus_waited_for_with_threads_to_spare_point_at_somebody_unseen(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("pressure_some", FAST, 600_000, scale=1000, resource="cpu", scope="job")
    machine, _ = analyze(tmp_path / "room", file)
    assert {one.kind for one in machine.disturbances if one.within_steps} == {"pressure"}
    ranks = [{"pid": 1, "num_threads": 16, "affinity": list(range(8))}]
    machine, _ = analyze(tmp_path / "crowded", file, ranks=ranks)
    assert machine.disturbances == () and machine.clean is None
