"""A run's machines as a whole: tracks, costs, what stopped, what is missing; and an hour of samples."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from perfscope.analysis.machine.host import Host, HostRank
from perfscope.analysis.machine.links import traffic
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.machine.topology import Topology
from perfscope.analysis.machine.tracks import tracks
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from perfscope.rundir.host_records import CeilingsRecord, TopologyRecord
from perfscope.rundir.samples import HostSamples, SampleSeries
from perfscope.rundir.typed import read_as
from tests.support.synthetic_run import EPOCH, SyntheticRun, comm, span
from tests.support.synthetic_samples import BOOT, SECOND, SampledRun, SampleFile, ticks, two_nodes

FAST = ticks(0, 40)
MS = 1_000_000


def machine_of(path: Path, file: SampleFile | None, **more: object) -> MachineAnalysis:
    machine = analyze_run(SampledRun(path, file, **{"topology": two_nodes(), **more}).read()).machine  # type: ignore[arg-type]
    assert machine is not None
    return machine


def test_an_import_has_no_machine(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, origin="import")
    run.rank(0)
    run.window(0, [span(0, MS, "compute")], [(0, 0, MS)])
    analysis = analyze_run(run.read())
    assert analysis.machine is None and analysis.findings[0].id == "compute_bound"


def test_tracks_are_shares_rates_and_levels_in_unix_time(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all")
    file.rate("cpu_busy", FAST, 300, scale=1e7, node="1")
    file.rate("rank_cpu", FAST, SECOND, pid="100")
    file.rate("rank_cpu", FAST, SECOND, pid="999")  # not a rank of this run
    file.rate("pressure_some", FAST, 250_000, scale=1000, resource="cpu", scope="job")
    file.rate("pressure_full", FAST, 0, scale=1000, resource="memory", scope="job")
    file.add(
        "node_memory_free", FAST, [6 << 20] * len(FAST), kind="gauge", unit="bytes", scale=1024, node="0"
    )
    file.add(
        "node_memory_total", FAST, [16 << 20] * len(FAST), kind="gauge", unit="bytes", scale=1024, node="0"
    )
    file.rate("net_tx_bytes", FAST, 1e6, unit="bytes", interface="eth0", netns="1")
    file.rate("net_tx_bytes", FAST, 10, unit="bytes", interface="docker0", netns="1")
    file.rate("rapl_energy", FAST, 42e6, scale=1e-6, unit="joules", domain="package-0")
    machine = machine_of(tmp_path, file)
    found = {one.title: one for one in machine.tracks}
    assert set(found) == {
        "CPUs busy",
        "node 1 CPUs busy",
        "rank 0 CPU use",
        "CPU pressure, job",
        "node 0 memory in use",
        "eth0 sent",
        "package-0",
    }
    values = {title: one.mean[len(one.mean) // 2] for title, one in found.items()}
    assert values["CPUs busy"] == pytest.approx(0.5, abs=0.02)
    assert values["node 1 CPUs busy"] == pytest.approx(0.75, abs=0.02)
    assert values["rank 0 CPU use"] == pytest.approx(1 / 8, abs=0.001)
    assert values["CPU pressure, job"] == pytest.approx(0.25)
    assert values["node 0 memory in use"] == 10 << 30 and found["node 0 memory in use"].peak == 16 << 30
    assert values["package-0"] == pytest.approx(42) and found["package-0"].unit == "watts"
    busy = found["CPUs busy"]
    assert len(busy.t_ns) == len(busy.low) == len(busy.high) <= 400
    assert busy.t_ns[0] == pytest.approx(EPOCH + 50 * MS, abs=MS) and busy.id.startswith("node0/cpu_busy{")
    assert len({one.id for one in machine.tracks}) == len(machine.tracks)


def test_ranks_are_added_up_where_there_are_many(tmp_path: Path) -> None:
    file = SampleFile()
    for pid in range(12):
        file.rate("rank_cpu", FAST, SECOND / 2, pid=str(pid))
        file.rate("rank_runqueue_wait", FAST, SECOND / 4, pid=str(pid))
    machine = machine_of(tmp_path, file, ranks=[{"pid": pid} for pid in range(12)])
    found = {one.title: one.mean[0] for one in machine.tracks}
    assert found == {
        "rank (all) CPU use": pytest.approx(12 * 0.5 / 8),
        "rank (mean of all) waits for a CPU": pytest.approx(0.25),
    }


def test_clock_steps_between_anchors_do_not_bend_tracks(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all")
    file._lines.append({"anchor": [BOOT + 40 * SECOND, EPOCH + 40 * SECOND + 2 * MS]})
    (track,) = machine_of(tmp_path, file).tracks
    assert track.t_ns[-1] == pytest.approx(EPOCH + 39.95 * SECOND + 2 * MS, abs=MS)


def test_windows_steps_and_readings_share_one_axis(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all")
    run = SampledRun(tmp_path, file, topology=two_nodes())
    run.run.window(0, [span(12 * SECOND, MS, "compute")], [(4, 12 * SECOND, 12 * SECOND + 9 * MS)])
    machine = analyze_run(run.read()).machine
    assert machine is not None
    assert machine.windows == ((0, EPOCH + 12 * SECOND, EPOCH + 12 * SECOND + 9 * MS),)
    assert (machine.steps_start_ns, machine.steps_end_ns) == (EPOCH + 10 * SECOND, EPOCH + 30 * SECOND)
    assert machine.start_ns == pytest.approx(EPOCH, abs=MS) and machine.end_ns == pytest.approx(
        EPOCH + 40 * SECOND, abs=MS
    )


def test_the_sampler_s_cost_and_what_stopped_are_told(tmp_path: Path) -> None:
    file = SampleFile(interval_s=0.2)
    file.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all")
    file.fact("stopped", 12, {"gpu": "1"}, {"what": "gpu_power", "reason": "GPU is lost"})
    file.end("every rank has ended", cpu_ns=40 * MS, wall_ns=40 * SECOND, ticks=200, late_ticks=10)
    machine = machine_of(tmp_path / "ended", file)
    (cost,) = machine.costs
    assert (cost.cpu_ratio, cost.late_ratio, cost.num_samples, cost.interval_ns) == (
        0.001,
        0.05,
        200,
        200 * MS,
    )
    assert cost.ended == "every rank has ended"
    (stopped,) = machine.stopped
    assert (stopped.what, stopped.reason) == ("gpu_power (gpu 1)", "GPU is lost")
    assert stopped.at_ns == EPOCH + 12 * SECOND
    killed = SampleFile()
    killed.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all")
    (cost,) = machine_of(tmp_path / "killed", killed).costs
    assert (cost.cpu_ratio, cost.num_samples, cost.ended) == (None, len(FAST), "")


def test_shares_of_the_time_end_at_one(tmp_path: Path) -> None:
    """Clocks of 10 ms grain count 810 of 800 jiffies in some seconds."""
    file = SampleFile()
    file.rate("cpu_busy", FAST, 810, scale=1e7, cpu="all")
    file.rate("rank_cpu", FAST, 8.1 * SECOND, pid="100")
    file.rate("pressure_some", FAST, 1_010_000, scale=1000, resource="cpu", scope="job")
    found = machine_of(tmp_path, file).tracks
    assert {one.title for one in found} == {
        "CPUs busy",
        "rank 0 CPU use",
        "CPU pressure, job",
    }
    for one in found:
        assert max(one.mean) == max(one.high) == max(one.low) == 1.0


def test_sources_that_a_host_lacks_are_told_once(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all", collector="cpu")
    for name in ("nvml", "membw", "nvml"):
        value = {"what": name, "reason": "no driver", "remedy": None}
        file.fact("absent", 0, {}, value, collector=name)
    file.fact("absent", 0, {}, {"what": "cpu", "reason": "earlier"}, collector="cpu")  # found later on
    (one,) = [one for one in machine_of(tmp_path, file).missing if "hardware sources" in figure_text(one)]
    assert figure_text(one) == "2 of 3 hardware sources of node0 (gpu.nvidia, membw)"
    assert "perfscope doctor" in cause_text(one)


def test_ceilings_are_missing_with_the_reason_though_no_layer_was_traced(tmp_path: Path) -> None:
    file = SampleFile()
    file.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all")
    machine = machine_of(tmp_path, file, options={"ceilings": "off"})
    (one,) = [one for one in machine.missing if "ceilings" in figure_text(one)]
    assert (figure_text(one), cause_text(one)) == (
        "measured ceilings of node0",
        "switched off by `--ceilings off`",
    )


def test_hosts_without_samples_are_missing_with_the_reason(tmp_path: Path) -> None:
    off = machine_of(tmp_path / "off", None, options={"sampling": None})
    assert any("--sample-interval off" in cause_text(one) for one in off.missing)
    file = SampleFile()
    file.rate("cpu_busy", FAST, 400, scale=1e7, cpu="all")
    other = machine_of(tmp_path / "other", file, ranks=[{"pid": 1}, {"pid": 2, "host": "node7"}])
    assert any("node7" in figure_text(one) for one in other.missing)


def test_a_full_link_of_a_run_bound_by_communication_is_a_finding(tmp_path: Path) -> None:
    nics = [{"id": "nic:eth0", "name": "eth0", "speed_bits_per_s": 1_000_000_000}]
    for name, rate, expected in (("full", 120e6, True), ("half", 60e6, False)):
        file = SampleFile()
        file.rate("net_tx_bytes", FAST, rate, unit="bytes", interface="eth0", netns="1")
        ranks = [{"pid": 1}, {"pid": 2}]
        run = SampledRun(tmp_path / name, file, step_s=0.01, topology=two_nodes(nics=nics), ranks=ranks)
        for rank in (0, 1):
            run.run.window(rank, [span(0, MS, "compute"), comm(2 * MS, 6 * MS, 0)], [(0, 0, 10 * MS)])
        found = {finding.id.value: finding for finding in analyze_run(run.read()).findings}
        assert ("link_saturated" in found) is expected
        if expected:
            assert "eth0 of node0 is full: sent 120 MB/s of 125 MB/s" in found["link_saturated"].text.title


def test_an_hour_of_a_hundred_series_is_analyzed_in_seconds() -> None:
    """36,000 readings of each; the bound is loose because test machines are shared."""
    num = 36_000
    at = BOOT + np.arange(num, dtype=np.int64) * (SECOND // 10)
    rng = np.random.default_rng(0)
    series = tuple(
        SampleSeries(
            collector="made",
            metric="net_tx_bytes" if index % 2 else "rank_cpu",
            labels={"interface": f"eth{index}", "netns": "1"} if index % 2 else {"pid": str(index)},
            unit="bytes",
            kind="counter",
            source="",
            limit=2**32 if index % 4 else None,
            scale=1.0,
            t_begin_ns=at,
            t_end_ns=at + 10_000,
            values=np.cumsum(rng.integers(0, 10**7, num)),
            quality=np.zeros(num, np.uint8),
            segment=np.zeros(num, np.int32),
        )
        for index in range(100)
    )
    samples = HostSamples(
        host="a", series=series, facts=(), anchors=((BOOT, EPOCH),), intervals=(), ends=(), num_dropped=0
    )
    rank = HostRank(
        rank=0,
        pid=2,
        local_rank=0,
        num_threads=1,
        affinity=frozenset({0}),
        device="cpu",
        starts=at[:1],
        ends=at[-1:],
    )
    host = Host(
        name="a",
        samples=samples,
        topology=Topology.of(read_as(TopologyRecord, two_nodes())),
        ceilings=CeilingsRecord(),
        ranks=[rank],
        steps_ns=(int(at[0]), int(at[-1])),
    )
    begin = time.process_time()
    drawn = tracks(host)
    moved = traffic(host)
    assert time.process_time() - begin < 10
    assert len(drawn) == 51 and len(moved) == 50
    assert all(len(track.t_ns) <= 400 for track in drawn)
