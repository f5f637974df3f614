"""Machines with GPUs as the analysis would describe them, for the reports' tests."""

from __future__ import annotations

import dataclasses
from enum import Enum

from msgspec import Struct, structs

from perfscope.analysis.machine.results import (
    Ceiling,
    CounterTrack,
    Energy,
    LinkTraffic,
    MachineAnalysis,
    RankPlacement,
    SamplerCost,
    StackFrame,
)
from perfscope.analysis.results import LayerResult
from perfscope.vocabulary.links import LinkClass
from perfscope.vocabulary.missing import Missing
from tests.support.synthetic_machine import _wire, roofline, vm_machine, wave
from tests.support.synthetic_topology import GIB, gpu_topology, topology_record


def gpu_tracks(host: str, num_gpus: int = 8) -> tuple[CounterTrack, ...]:
    gpus = range(num_gpus)
    links = [
        ("node 0 DRAM read", 88e9, 11),
        ("node 1 DRAM read", 61e9, 12),
        ("node 0 DRAM written", 34e9, 13),
    ]
    return (
        wave(host, "cpu", "CPU busy", "ratio", 0.11, 0.05, 21),
        *(
            wave(host, "gpu", f"GPU {g} SM activity", "ratio", 0.81 - 0.02 * g, 0.12, 30 + g, peak=1.0)
            for g in gpus
        ),
        *(
            wave(
                host,
                "gpu",
                f"GPU {g} memory used",
                "bytes",
                (52 + g) * GIB,
                GIB,
                40 + g,
                peak=80 * GIB,
                peak_source="installed",
            )
            for g in gpus
        ),
        *(
            wave(
                host,
                "power",
                f"GPU {g} power",
                "watts",
                520 + 8 * g,
                90,
                50 + g,
                peak=700.0,
                peak_source="theoretical: H100 SXM",
            )
            for g in gpus
        ),
        *(
            wave(
                host,
                "clocks",
                f"GPU {g} clock",
                "hz",
                1.71e9 + 4e6 * g,
                60e6,
                60 + g,
                peak=1.98e9,
                peak_source="theoretical: H100 SXM",
            )
            for g in gpus
        ),
        *(
            wave(
                host,
                "gpu_link",
                f"GPU {g} NVLink sent",
                "bytes_per_s",
                140e9 - 4e9 * g,
                60e9,
                70 + g,
                peak=450e9,
                peak_source="NVLink 4, 18 links",
            )
            for g in gpus
        ),
        *(
            wave(
                host,
                "memory",
                title,
                "bytes_per_s",
                rate,
                rate / 5,
                seed,
                peak=210e9,
                peak_source="measured",
                quality="scaled",
            )
            for title, rate, seed in links
        ),
        *(
            wave(
                host,
                "fabric",
                f"mlx5_{n}/1 sent",
                "bytes_per_s",
                31e9 - 2e9 * n,
                9e9,
                80 + n,
                peak=50e9,
                peak_source="link speed",
            )
            for n in range(4)
        ),
    )


def gpu_machine(layers: tuple[LayerResult, ...] = (), *, num_hosts: int = 2) -> MachineAnalysis:
    """Hosts of two sockets and eight GPUs; rank 3 computes on node 0 with its memory on node 1."""
    hosts = tuple(f"gpu{number + 1:02d}" for number in range(num_hosts))
    placements = []
    for rank in range(8):
        node = rank // 4
        share = {node: 0.97, 1 - node: 0.03} if rank != 3 else {0: 0.08, 1: 0.92}
        placements.append(
            RankPlacement(
                rank=rank,
                host=hosts[0],
                pid=9000 + rank,
                cpus=f"{14 * rank}-{14 * rank + 13}",
                cpu_nodes=(node,),
                memory_nodes=share,
                local_ratio=share[node],
                policy="default" if rank != 3 else "bind:1",
                source="move_pages, 512 pages",
                device_node=node,
            )
        )
    traffic = []
    rows = (
        (LinkClass.MEMORY, "node 0 DRAM", "read", 88e9, 210e9, "measured", "scaled"),
        (LinkClass.MEMORY, "node 0 DRAM", "written", 34e9, 210e9, "measured", "scaled"),
        (LinkClass.GPU_LINK, "GPU 0 NVLink", "sent", 140e9, 450e9, "NVLink 4, 18 links", "exact"),
        (LinkClass.PCIE, "GPU 0 PCIe", "received", 3.1e9, 63e9, "PCIe 5.0 x16", "ambiguous"),
        (LinkClass.FABRIC, "mlx5_0/1", "sent", 31e9, 50e9, "link speed", "exact"),
        (LinkClass.FABRIC, "mlx5_1/1", "sent", 47.5e9, 50e9, "link speed", "saturated"),
        (LinkClass.ETHERNET, "eno1", "sent", 2e6, 3.125e9, "link speed", "exact"),
    )
    for number, (link_class, name, direction, rate, peak, source, quality) in enumerate(rows):
        traffic.append(
            LinkTraffic(
                host=hosts[0],
                link_class=link_class,
                name=name,
                direction=direction,
                bytes=int(rate * 11),
                mean_bytes_per_s=rate,
                p95_bytes_per_s=min(rate * 1.4, peak),
                peak_bytes_per_s=peak,
                peak_source=source,
                quality=quality,
                errors=None if link_class is LinkClass.MEMORY else 0,
                numa_node=number % 2,
            )
        )
    return structs.replace(
        vm_machine(disturbed=False),
        hosts=hosts,
        topologies={host: topology_record(gpu_topology(host)) for host in hosts},
        clean=True,
        tracks=gpu_tracks(hosts[0]),
        ceilings=(
            Ceiling(
                host=hosts[0],
                what="STREAM triad",
                where="node 0",
                threads=56,
                value=212e9,
                unit="bytes_per_s",
                dtype=None,
                source="measured",
                note="best of 5, spread 3 %",
            ),
            Ceiling(
                host=hosts[0],
                what="STREAM triad",
                where="node 1",
                threads=56,
                value=209e9,
                unit="bytes_per_s",
                dtype=None,
                source="measured",
                note="best of 5, spread 4 %",
            ),
            Ceiling(
                host=hosts[0],
                what="GEMM bfloat16",
                where="GPU 0",
                threads=None,
                value=742e12,
                unit="flops_per_s",
                dtype="bfloat16",
                source="measured",
                note="best of 5, spread 1 %",
            ),
            Ceiling(
                host=hosts[0],
                what="GEMM float32",
                where="GPU 0",
                threads=None,
                value=67e12,
                unit="flops_per_s",
                dtype="float32",
                source="theoretical: H100 SXM, dense",
            ),
            Ceiling(
                host=hosts[0],
                what="device copy",
                where="GPU 0",
                threads=None,
                value=2.9e12,
                unit="bytes_per_s",
                dtype=None,
                source="measured",
                note="best of 5, spread 1 %",
            ),
        ),
        rooflines=(roofline(layers, host=hosts[0], peak=742e9, bandwidth=29e9),) if layers else (),
        placements=tuple(placements),
        traffic=tuple(traffic),
        wire=(
            _wire(0, wire_bytes=64_402_000, link="mlx5_0/1"),
            _wire(1, wire_bytes=63_702_000, link="mlx5_0/1"),
        ),
        energy=(
            Energy(host=hosts[0], domain="CPU package 0", joules=2_310.0, mean_watts=218.0, source="RAPL"),
            Energy(host=hosts[0], domain="CPU package 1", joules=2_190.0, mean_watts=207.0, source="RAPL"),
            *(
                Energy(
                    host=hosts[0],
                    domain=f"GPU {g}",
                    joules=5_700.0 + 60 * g,
                    mean_watts=538.0 + 6 * g,
                    source="NVML field 83",
                )
                for g in range(8)
            ),
        ),
        joules_per_sample=1.07,
        stacks=(
            StackFrame(
                name="forward", file="torch/nn/modules/conv.py", line=553, self_ratio=0.31, total_ratio=0.44
            ),
            StackFrame(
                name="_worker_loop",
                file="torch/utils/data/_utils/worker.py",
                line=309,
                self_ratio=0.12,
                total_ratio=0.19,
            ),
        ),
        costs=tuple(
            SamplerCost(
                host=host,
                interval_ns=100_000_000,
                num_samples=116,
                cpu_ratio=0.0044,
                late_ratio=0.0,
                ended="every rank has ended",
            )
            for host in hosts
        ),
        stopped=(),
        missing=(),
        pressures={},
    )


def every_string(value: object, text: str) -> object:
    """`value` with `text` in place of every string: names are other people's input."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return text
    if isinstance(value, Missing):
        detail = tuple((name, every_string(item, text)) for name, item in value.detail)
        return dataclasses.replace(value, detail=detail)
    if isinstance(value, Struct):
        fields = value.__struct_fields__
        return type(value)(**{name: every_string(getattr(value, name), text) for name in fields})
    if isinstance(value, dict):
        return {key: every_string(item, text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(every_string(item, text) for item in value)
    return value


def hostile_machine(text: str, layers: tuple[LayerResult, ...]) -> MachineAnalysis:
    """A disturbed run on GPUs with `text` wherever a string from outside can stand."""
    guest = vm_machine(layers)
    machine = structs.replace(
        gpu_machine(layers, num_hosts=1),
        clean=False,
        disturbances=guest.disturbances,
        stopped=guest.stopped,
        missing=guest.missing,
    )
    changed = every_string(machine, text)
    assert isinstance(changed, MachineAnalysis)
    # Groups and units are analysis' own words; with them a few charts are drawn.
    tracks = tuple(
        structs.replace(track, group=own.group, unit=own.unit)
        for track, own in zip(changed.tracks, machine.tracks, strict=True)
    )
    return structs.replace(changed, tracks=tracks, topologies={text: changed.topologies["gpu01"]})
