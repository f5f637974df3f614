"""A run on a made-up machine with AMD GPUs, from the drivers' files to the report and the doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.analysis.machine.host import open_hosts
from perfscope.analysis.machine.placement import placements
from perfscope.analysis.run import analyze_run
from perfscope.cli.doctor import command as doctor
from perfscope.collectors.context import captured_context
from perfscope.collectors.gpu.amd.counters import AmdDevices
from perfscope.collectors.machine.topology import read_topology
from perfscope.reports.sections.links import device_names, paths_table, rails
from perfscope.rundir.metrics import Series
from tests.support.amd_machine import TableV1_3, busy, card_folder, table, write, write_machine
from tests.support.synthetic_samples import BOOT, SECOND, SampledRun, SampleFile, two_nodes
from tests.support.synthetic_topology import topology_record


def record(root: Path, metrics: Any) -> SampleFile:
    """What the collector reads in 40 s, four times a second; `metrics` gives GPU 0's table at a second."""
    now = [BOOT]
    collector = AmdDevices()
    (root / card_folder(0) / "gpu_metrics").write_bytes(metrics(0.0))
    collector.open(captured_context(root, clock=lambda: now[0]))
    file = SampleFile()
    ids: dict[Series, int] = {}
    for tick in range(160):
        now[0] = BOOT + tick * SECOND // 4
        (root / card_folder(0) / "gpu_metrics").write_bytes(metrics(tick / 4))
        for reading in collector.sample():
            series = reading.series
            if series not in ids:
                ids[series] = len(ids)
                head = {"id": ids[series], "collector": collector.name, "series": [series.as_dict()]}
                file._lines.append(head)
            file._lines.append([ids[series], reading.t_begin_ns, reading.t_end_ns, [reading.value]])
    collector.close()
    return file


def hot(second: float) -> bytes:
    """600 W; a quarter of the time slowed by heat from second 12 to 28, at the power limit all along."""
    ticks = round(1000 * second)
    heat = round(250 * min(max(second - 12, 0), 16))
    xgmi = [0, round(50e6 * second / 1024)]
    return busy(
        round(600 * second * 2**16),
        ticks,
        socket_thm_residency_acc=heat,
        ppt_residency_acc=ticks,
        xgmi_write_data_acc=xgmi,
    )


def test_a_recorded_run_shows_what_an_amd_gpu_did(tmp_path: Path) -> None:
    root = write_machine(tmp_path / "machine")
    topology = read_topology(captured_context(root), "node0")
    run = SampledRun(tmp_path / "run", record(root, hot), topology={**topology, "online_cpus": "0-7"})
    analysis = analyze_run(run.read())
    machine = analysis.machine
    assert machine is not None
    tracks = {track.title: track for track in machine.tracks if "GPU 0" in track.title}
    assert {title: (track.group, track.unit, track.mean[5]) for title, track in tracks.items()} == {
        "GPU 0 busy": ("gpu", "ratio", pytest.approx(0.97)),
        "GPU 0 memory busy": ("gpu", "ratio", pytest.approx(0.43)),
        "GPU 0 memory in use": ("gpu", "bytes", 17 << 30),
        "GPU 0 throttled: PPT": ("gpu", "ratio", pytest.approx(1.0)),
        "GPU 0 throttled: socket thermal": ("gpu", "ratio", 0),
        "GPU 0 XGMI sent": ("gpu_link", "bytes_per_s", pytest.approx(50e6, rel=1e-3)),
        "GPU 0 PCIe": ("gpu_link", "bytes_per_s", 3e9),
        "GPU 0": ("power", "watts", 612),
        "GPU 0 temperature": ("power", "celsius", 71),
        "GPU 0 memory temperature": ("power", "celsius", 58),
        "GPU 0 clock": ("clocks", "hz", pytest.approx(2.05e9)),
        "GPU 0 memory clock": ("clocks", "hz", pytest.approx(1.3e9)),
    }
    energy = next(one for one in machine.energy if one.domain == "GPU 0")
    assert energy.mean_watts == pytest.approx(600)
    assert energy.source == "gpu_metrics 1.7: energy_accumulator"
    (sent,) = [one for one in machine.traffic if one.name == "GPU 0 XGMI"]
    assert (sent.link_class, sent.direction, sent.peak_bytes_per_s) == ("gpu_link", "sent", 50e9)
    (found,) = machine.disturbances
    assert found.kind == "throttling"
    assert found.title.startswith("GPU 0 was throttled (socket thermal) 25 % of the time for 16")
    assert "clock 2050 to 2050 MHz" in found.evidence
    capped = next(one for one in analysis.findings if one.id == "power_capped")
    assert capped.text.title == "GPU 0 of node0 was at its power limit in 100 % of the steps' time."


def test_bits_of_the_moment_become_a_disturbance_with_the_vendors_name(tmp_path: Path) -> None:
    root = write_machine(tmp_path / "machine", 1)

    def bits(second: float) -> bytes:
        status = 1 << 36 if 12 <= second < 20 else 1 << 16  # the hot spot, else the regulators' current
        return table(TableV1_3, temperature_hotspot=105, indep_throttle_status=status)

    run = SampledRun(tmp_path / "run", record(root, bits), topology={"online_cpus": "0-7"})
    machine = analyze_run(run.read()).machine
    assert machine is not None
    (found,) = machine.disturbances
    assert found.title.startswith("GPU 0 was throttled (TEMP_HOTSPOT) for 8")
    assert found.evidence[1] == "temperature 105 to 105 °C"


def test_xgmi_is_a_rail_of_the_picture_and_a_way_of_the_table(tmp_path: Path) -> None:
    topology = topology_record(read_topology(captured_context(write_machine(tmp_path, 4)), "node0"))
    (rail,) = rails(topology, device_names(topology))
    assert rail.title == "XGMI, all to all, 50.0 GB/s each way" and len(rail.members) == 4
    ways = paths_table(topology)
    assert ways is not None and ways.caption == "XGMI: XGMI."
    assert ways.rows[0] == ("GPU 0", "·", "XGMI", "XGMI", "XGMI")


def test_the_doctor_lists_an_amd_machine(tmp_path: Path) -> None:
    write_machine(tmp_path)
    write(tmp_path, "proc/stat", "cpu 1 2 3 4\n")
    done = CliRunner().invoke(doctor.command, ["--root", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "gpu.amd 13 metrics" in text or "gpu.amd 14 metrics" in text
    assert "GPU 1: AMD Instinct MI300X, 192 GiB" in text
    assert "gpu:0 – gpu:1: XGMI (gpu_link, 50.0 GB/s at most)" in text


@pytest.mark.parametrize(
    ("device", "environment", "node"),
    [
        ("cuda:1 AMD Instinct MI300X", {}, 0),
        ("cuda:1 AMD Instinct MI300X", {"HIP_VISIBLE_DEVICES": "0,4"}, 1),
        ("cuda:1 AMD Instinct MI300X", {"ROCR_VISIBLE_DEVICES": "5,4,1", "HIP_VISIBLE_DEVICES": "1,2"}, 0),
        ("cuda:0 AMD Instinct MI300X", {"CUDA_VISIBLE_DEVICES": "4"}, 1),
        ("cuda:0 NVIDIA H100", {"HIP_VISIBLE_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "0"}, 7),
        ("cuda:0 something else", {}, None),
    ],
)
def test_a_rank_is_placed_by_its_own_vendors_gpus(
    tmp_path: Path, device: str, environment: dict[str, str], node: int | None
) -> None:
    root = write_machine(tmp_path / "machine", 6)
    write(root, "proc/driver/nvidia/gpus/0000:f0:00.0/information", "Model: \t NVIDIA H100\n")
    write(root, "sys/bus/pci/devices/0000:f0:00.0/numa_node", "7\n")
    topology = two_nodes(gpus=read_topology(captured_context(root), "node0")["gpus"])
    ranks = [{"pid": 100, "device": device}]
    run = SampledRun(tmp_path / "run", SampleFile(), topology=topology, ranks=ranks)
    (host,) = open_hosts(run.read(), {})
    (placed,) = placements(host, environment)
    assert placed.device_node == node
