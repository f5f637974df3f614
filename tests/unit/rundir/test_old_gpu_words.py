"""What earlier versions recorded of GPUs, in NVIDIA's words, is read as if it were recorded today."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.nvidia.counters import NvmlDevices
from perfscope.collectors.gpu.nvidia.gpm import NvmlGpm
from perfscope.collectors.gpu.nvidia.links import NvmlLinks
from perfscope.collectors.gpu.nvidia.parts import NvmlCollector
from perfscope.collectors.library import this_machines
from perfscope.collectors.machine.topology import read_topology
from perfscope.rundir import old_gpu_words
from perfscope.rundir.reader import RunReader
from perfscope.rundir.sample_facts import Gap
from perfscope.vocabulary.gpu import GPU_METRICS, ThrottleReason
from tests.support import nvml_recording
from tests.support.nvml_stand_in import StandIn, hopper, installed, machine
from tests.support.synthetic_run import EPOCH, SyntheticRun
from tests.support.synthetic_samples import SampledRun, SampleFile

RECORDED = Path(__file__).parents[2] / "data" / "gpu_names_of_0.1.0"
KINDS: tuple[type[NvmlCollector], ...] = (NvmlDevices, NvmlLinks, NvmlGpm)


def test_old_metrics_have_their_present_names_and_labels(tmp_path: Path) -> None:
    file = SampleFile()
    times = [0.0, 1.0]
    for name in ("gpu_sm_clock", "gpm_sm_activity", "gpm_nvlink_tx_rate"):
        file.add(name, times, [1, 2], kind="gauge", gpu="0", collector="nvml.gpm")
    file.add("nvlink_tx_bytes", times, [0, 9], unit="bytes", gpu="0", link="3", collector="nvml.links")
    file.add("gpu_throttle_time", times, [0, 5], gpu="0", reason="hw_power_brake", collector="nvml")
    file.add("gpu_throttle_reasons", times, [0, 0x40], kind="gauge", gpu="0", collector="nvml")
    file.fact("absent", 0, {}, {"what": "nvml.gpm", "reason": "why"}, collector="nvml.gpm")
    file.fact("stopped", 0, {"gpu": "0"}, {"what": "gpu_sm_clock", "reason": "why"}, collector="nvml")
    found = file.read(tmp_path)
    assert [(one.metric, one.collector) for one in found.series] == [
        ("gpu_clock", "gpu.nvidia.gpm"),
        ("gpu_compute_activity", "gpu.nvidia.gpm"),
        ("gpu_link_tx_rate", "gpu.nvidia.gpm"),
        ("gpu_link_tx_bytes", "gpu.nvidia.links"),
        ("gpu_throttle_time", "gpu.nvidia"),
        ("gpu_throttle_reasons", "gpu.nvidia"),
    ]
    assert found.series[3].labels == {"gpu": "0", "link": "3", "kind": "NVLink"}
    assert found.series[4].labels == {"gpu": "0", "reason": "power_brake", "name": "HW power brake"}
    bits = {bit.mask: bit for bit in found.series[5].bits}
    assert (bits[0x40].reason, bits[0x40].name) == (ThrottleReason.THERMAL, "HW thermal")
    assert [(fact.collector, fact.value.what) for fact in found.facts if isinstance(fact.value, Gap)] == [
        ("gpu.nvidia.gpm", "gpu.nvidia.gpm"),
        ("gpu.nvidia", "gpu_clock"),
    ]


def test_words_of_today_are_left_as_they_are() -> None:
    for metric in GPU_METRICS:
        definition = {"metric": metric.name, "labels": {"gpu": "0", "reason": "thermal"}, "bits": []}
        assert old_gpu_words.series(definition) == definition
    assert old_gpu_words.collector("membw.uncore") == "membw.uncore"
    assert old_gpu_words.fact_value({"what": 3}) == {"what": 3}


def test_an_old_topology_has_vendors_and_links_of_today(tmp_path: Path) -> None:
    link = {"a": "gpu:0", "b": "gpu:1", "class": "nvlink", "path": "NV18", "peak_bytes_per_s": 450e9}
    document = {"gpus": [{"id": "gpu:0", "name": "NVIDIA H100"}, 3], "links": [link, {"class": "pcie"}, None]}
    run = SyntheticRun(tmp_path)
    run.rank(0)
    run.write("hosts/node0/topology.json", document)
    vendor = {"vendor": "NVIDIA", "visibility": [["CUDA_VISIBLE_DEVICES"]]}
    found = RunReader(tmp_path).topology("node0")
    assert found is not None
    assert found.gpus[0].vendor == "NVIDIA" and found.links[0].num_links == 18
    assert found.document == {
        "gpus": [{"id": "gpu:0", "name": "NVIDIA H100", **vendor}, 3],
        "links": [{**link, "class": "gpu_link", "kind": "NVLink", "num_links": 18}, {"class": "pcie"}, None],
    }


def test_a_recording_of_an_earlier_version_gives_what_the_same_gpus_give_today(tmp_path: Path) -> None:
    samples = (RECORDED / "samples.jsonl").read_text()
    assert "gpm_sm_activity" in samples and "gpu_clock" not in samples
    before = analysis(tmp_path / "before", samples, (RECORDED / "topology.json").read_text())
    with installed(StandIn(machine(hopper(0, 2), hopper(1, 2)))):
        topology = read_topology(Context(root=Path("/nonexistent"), library=this_machines), "node0")
    now = analysis(tmp_path / "now", nvml_recording.record(opened, EPOCH), json.dumps(topology))
    assert len(before.tracks) == 32
    assert before.tracks == now.tracks
    assert before.energy == now.energy and before.energy[0].mean_watts == 400
    assert before.traffic == now.traffic and before.traffic[0].bytes == 120e9
    assert before.disturbances == now.disturbances
    assert [one.title for one in before.disturbances] == [
        "GPU 0 was throttled (HW thermal) 100 % of the time for 6.00 s."
    ]


def opened(clock: Callable[[], int]) -> Iterator[NvmlCollector]:
    ctx = Context(root=Path("/nonexistent"), library=this_machines, clock=clock)
    for kind in KINDS:
        collector = kind()
        collector.open(ctx)
        yield collector


def analysis(folder: Path, samples: str, topology: str) -> MachineAnalysis:
    run = SampledRun(folder, None, topology=json.loads(topology), steps=(2.0, 22.0))
    run.run.write("hosts/node0/samples.jsonl", samples)
    found = analyze_run(run.read()).machine
    assert found is not None
    return found
