"""Machines made by arithmetic, for the report's tests: what analysis would say of three kinds of host.

Deterministic; nothing here is measured. Instants fit the windows of `synthetic_timeline`.
"""

from __future__ import annotations

import math
import random

from msgspec import structs

from perfscope.analysis.machine.results import (
    Ceiling,
    CounterTrack,
    Disturbance,
    LinkTraffic,
    MachineAnalysis,
    RankPlacement,
    Roofline,
    RooflinePoint,
    SamplerCost,
    StoppedReading,
    WireBytes,
)
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.results import LayerResult
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.disturbances import DisturbanceKind
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.links import LinkClass
from tests.support.synthetic_topology import GIB, knl_topology, topology_record, vm_topology

START = 1_790_000_000_000_000_000  # of window 0 of synthetic_timeline; window 1 starts 5 s later
SECOND = 1_000_000_000
WINDOWS = ((0, START, START + 82_000_000), (1, START + 5 * SECOND, START + 5 * SECOND + 82_000_000))


def wave(
    host: str,
    group: str,
    title: str,
    unit: str,
    level: float,
    swing: float,
    seed: int,
    *,
    peak: float | None = None,
    peak_source: str = "",
    quality: str = "exact",
    boost: float = 0.0,
) -> CounterTrack:
    """A track of 10 s at 10 Hz around `level`; `boost` is added between 4 s and 7 s; one gap."""
    rng = random.Random(seed)
    t, mean, low, high = [], [], [], []
    for i in range(115):
        at = -0.5 + 0.1 * i
        value = level + swing * math.sin(at * 2.1 + seed) * 0.6 + swing * rng.uniform(-0.4, 0.4)
        value += boost if 4 <= at <= 7 else 0.0
        value = max(value, 0.0) if not (62 <= i <= 64 and seed % 5 == 0) else math.nan
        t.append(START + int(at * SECOND))
        mean.append(value)
        low.append(max(value - swing * 0.3, 0.0))
        high.append(value + swing * 0.35)
    return CounterTrack(
        id=f"{host}/{title}",
        host=host,
        group=group,
        title=title,
        unit=unit,
        t_ns=tuple(t),
        mean=tuple(mean),
        low=tuple(low),
        high=tuple(high),
        peak=peak,
        peak_source=peak_source,
        quality=quality,
    )


def roofline(layers: tuple[LayerResult, ...], *, host: str, peak: float, bandwidth: float) -> Roofline:
    """Points of layers whose work is known, by METRICS §5."""
    points = []
    for layer in layers:
        for phase, share, time in (
            ("forward", 1 / 3, layer.forward_ns),
            ("backward", 2 / 3, layer.backward_ns),
        ):
            if not layer.flops or not layer.bytes or not time:
                continue
            flops, size = int(layer.flops * share), int(layer.bytes * share)
            intensity, rate = flops / size, flops * 1e9 / time
            attainable = min(peak, intensity * bandwidth)
            bound = "compute" if attainable == peak else "memory"
            points.append(
                RooflinePoint(
                    layer=layer.layer,
                    phase=phase,
                    time_ns=time,
                    flops=flops,
                    bytes=size,
                    intensity=intensity,
                    flops_per_s=rate,
                    bytes_per_s=size * 1e9 / time,
                    attainable_flops_per_s=attainable,
                    fraction=rate / attainable,
                    bound=bound if rate / attainable > 0.4 else "neither",
                )
            )
    return Roofline(
        host=host,
        device="cpu",
        dtype="float32",
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        ranks_sharing=4,
        points=tuple(points),
        ceilings_source="measured",
        cached=True,
    )


def _wire(window: int, *, wire_bytes: int | None, link: str = "eth0") -> WireBytes:
    return WireBytes(
        window=window,
        start_ns=WINDOWS[window][1],
        dur_ns=82_000_000,
        algorithmic_bytes=21_233_664,
        wire_bytes=wire_bytes,
        link_class=LinkClass.ETHERNET,
        links=(link,),
        covered_ns=300_000_000,
        reason="" if wire_bytes is not None else "no reading fell into the window",
    )


def vm_machine(layers: tuple[LayerResult, ...] = (), *, disturbed: bool = True) -> MachineAnalysis:
    """The 2-CPU guest; stress-ng runs beside the training from 4 s to 7 s, unless not `disturbed`."""
    host = "node01"
    boost = 0.85 if disturbed else 0.0
    stress = Disturbance(
        host=host,
        kind=DisturbanceKind.CPU_NEIGHBOR,
        start_ns=START + 4 * SECOND,
        end_ns=START + 7 * SECOND,
        severity=0.95,
        title="Processes that are not of this run used 1.9 of 2 CPUs for 3.00 s",
        evidence=("stress-ng (pid 4242, user bob): 1.9 CPUs",),
        names=("stress-ng",),
        windows=(1,),
        step_ns_during=41_000_000,
        step_ns_otherwise=24_000_000,
        num_steps_during=70,
    )
    steal = Disturbance(
        host=host,
        kind=DisturbanceKind.STEAL,
        start_ns=START + int(8.4 * SECOND),
        end_ns=START + int(9.1 * SECOND),
        severity=0.12,
        title="The hypervisor gave 12 % of the CPU time to others for 700 ms",
        evidence=("steal time in /proc/stat: 168 ms",),
    )
    return MachineAnalysis(
        hosts=(host,),
        topologies={host: topology_record(vm_topology(host))},
        clean=not disturbed,
        traced_disturbed=disturbed,
        clean_reason="Two neighbors took CPU time: stress-ng 1.9 CPUs for 3.00 s, the hypervisor 12 % for "
        "700 ms."
        if disturbed
        else "No foreign process used more than 1 % of a CPU, nothing was stolen or throttled, and the links "
        "carried this run's traffic only.",
        disturbed_summary="Two neighbors took CPU time." if disturbed else "",
        disturbances=(stress, steal) if disturbed else (),
        tracks=(
            wave(host, "cpu", "CPU busy", "ratio", 0.78 - boost * 0.2, 0.18, 1, peak=1.0, boost=boost * 0.3),
            wave(host, "cpu", "CPU of this run", "ratio", 0.74, 0.15, 2, boost=-boost * 0.55),
            wave(host, "cpu", "CPU stolen by the hypervisor", "ratio", 0.004, 0.004, 3),
            wave(host, "pressure", "CPU pressure", "ratio", 0.05, 0.04, 4, boost=boost * 0.7),
            wave(
                host,
                "memory",
                "Memory used",
                "bytes",
                2.4 * GIB,
                0.2 * GIB,
                6,
                peak=8 * GIB,
                peak_source="installed",
            ),
            wave(host, "network", "eth0 sent", "bytes_per_s", 61e6, 30e6, 5),
            wave(host, "network", "eth0 received", "bytes_per_s", 58e6, 28e6, 7),
            wave(host, "io", "vda read", "bytes_per_s", 0.0, 0.0, 8),
        ),
        ceilings=(
            Ceiling(
                host=host,
                what="STREAM triad",
                where="all nodes",
                threads=2,
                value=38.2e9,
                unit="bytes_per_s",
                dtype=None,
                source="measured",
                note="best of 5, spread 3 %",
            ),
            Ceiling(
                host=host,
                what="GEMM float32",
                where="all nodes",
                threads=2,
                value=148e9,
                unit="flops_per_s",
                dtype="float32",
                source="measured",
                note="best of 5, spread 2 %",
            ),
            Ceiling(
                host=host,
                what="GEMM float64",
                where="all nodes",
                threads=2,
                value=71e9,
                unit="flops_per_s",
                dtype="float64",
                source="measured",
                note="best of 5, spread 11 %; CPU pressure 4 %",
            ),
        ),
        rooflines=(roofline(layers, host=host, peak=840e9, bandwidth=58e9),) if layers else (),
        placements=tuple(
            RankPlacement(
                rank=rank,
                host=host,
                pid=4100 + rank,
                cpus="0-1",
                cpu_nodes=(0,),
                memory_nodes={0: 1.0},
                local_ratio=1.0,
                policy="default",
                source="memory.numa_stat of the job",
            )
            for rank in range(4)
        ),
        traffic=(
            LinkTraffic(
                host=host,
                link_class=LinkClass.ETHERNET,
                name="eth0",
                direction="sent",
                bytes=671_000_000,
                mean_bytes_per_s=61e6,
                p95_bytes_per_s=104e6,
                peak_bytes_per_s=None,
                peak_source="",
                quality="exact",
                errors=0,
                numa_node=0,
            ),
            LinkTraffic(
                host=host,
                link_class=LinkClass.ETHERNET,
                name="eth0",
                direction="received",
                bytes=638_000_000,
                mean_bytes_per_s=58e6,
                p95_bytes_per_s=99e6,
                peak_bytes_per_s=None,
                peak_source="",
                quality="exact",
                errors=2,
                numa_node=0,
            ),
        ),
        wire=(_wire(0, wire_bytes=63_981_000), _wire(1, wire_bytes=None)),
        costs=(
            SamplerCost(
                host=host,
                interval_ns=100_000_000,
                num_samples=116,
                cpu_ratio=0.0031,
                late_ratio=0.02,
                ended="every rank has ended",
            ),
        ),
        stopped=(
            StoppedReading(
                host=host, what="rank_cpu of rank 2", at_ns=START + 6 * SECOND, reason="its process has ended"
            ),
        ),
        missing=(
            missing_figure(
                Figure.OTHER,
                Cause.PROBE_LIMIT,
                what="memory bandwidth",
                reason="no uncore PMU here; perf_event_paranoid is 2",
            ),
            missing_figure(
                Figure.OTHER,
                Cause.PROBE_LIMIT,
                what="energy",
                reason="no RAPL domain under /sys/class/powercap",
            ),
        ),
        start_ns=START - SECOND // 2,
        end_ns=START + 11 * SECOND,
        windows=WINDOWS,
        steps_start_ns=START - SECOND // 5,
        steps_end_ns=START + int(10.4 * SECOND),
        pressures={host: 0.21},
    )


def knl_machine() -> MachineAnalysis:
    """The Knights Landing, undisturbed, two ranks on clusters 0 and 1 with memory in MCDRAM and far DDR."""
    base = vm_machine(disturbed=False)
    placements = tuple(
        RankPlacement(
            rank=rank,
            host="knl01",
            pid=70 + rank,
            cpus=f"{17 * rank}-{17 * rank + 16}",
            cpu_nodes=(rank,),
            memory_nodes={4 + rank: 0.71, rank: 0.21, 3: 0.08},
            local_ratio=0.92,
            policy=f"prefer:{4 + rank}",
            source="move_pages, 512 pages",
        )
        for rank in range(2)
    )
    return structs.replace(
        base,
        hosts=("knl01",),
        topologies={"knl01": topology_record(knl_topology())},
        placements=placements,
        clean=None,
        clean_reason="Other users' processes could not be seen: /proc is mounted with hidepid=2.",
    )
