"""A realistic 4-rank CNN run made by arithmetic, for the report's tests, and checks that it holds together.

Deterministic: the same arguments give the same run, so goldens stand. Nothing here is measured.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
from msgspec import structs

from perfscope.analysis.missing import missing_figure
from perfscope.analysis.results import (
    Breakdown,
    CollectiveCall,
    CollectiveResult,
    FileProvenance,
    Finding,
    LayerResult,
    LayerTimes,
    Quantiles,
    RankResult,
    RunAnalysis,
)
from perfscope.analysis.timeline_extract import LaneExtract, StepMark, TimelineExtract, WindowExtract
from perfscope.analysis.waits.results import StepWaits
from perfscope.rundir.schema import KINDS, PHASES
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from tests.support.records import run_record
from tests.support.stated_finding import stated

US = 1_000
MS = 1_000_000

# layer, type, forward µs, backward µs, GFLOP forward + backward, MiB moved
LAYERS = (
    ("features.0.conv", "Conv2d", 1480, 2210, 1.42, 38.0),
    ("features.0.norm", "BatchNorm2d", 310, 480, 0.012, 50.3),
    ("features.0.relu", "ReLU", 120, 150, 0.004, 33.6),
    ("features.1.conv", "Conv2d", 2840, 5390, 4.83, 61.2),
    ("features.1.norm", "BatchNorm2d", 260, 390, 0.010, 41.9),
    ("features.1.relu", "ReLU", 90, 110, 0.003, 27.9),
    ("features.2.conv", "Conv2d", 2310, 4420, 4.83, 32.5),
    ("features.2.norm", "BatchNorm2d", 140, 210, 0.006, 21.0),
    ("features.2.relu", "ReLU", 50, 60, 0.002, 14.0),
    ("pool", "AdaptiveAvgPool2d", 70, 90, 0.001, 7.4),
    ("classifier.0", "Linear", 420, 880, 0.269, 18.1),
    ("classifier.2", "Linear", 60, 110, 0.002, 1.2),
)
BUCKETS = ((620, 2_359_296), (1410, 1_048_576), (380, 147_456))  # transfer µs, bytes; last layers first
INPUT_US = (180, 170, 190, 1950)  # rank 3 reads slowly, and every other rank waits for it
OPTIMIZER_US = 640


class Strings:
    """Gives each string one number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int:
        return -1 if text is None else self.numbers.setdefault(text, len(self.numbers))


@dataclasses.dataclass
class Lane:
    """Spans as they are made: (start, dur, name, layer, kind, phase, depth, step, flops, bytes)."""

    rank: int
    lane: int
    role: str
    label: str
    spans: list[tuple[int, int, int, int, int, int, int, int, int, int]] = dataclasses.field(
        default_factory=list
    )

    def extract(self) -> LaneExtract:
        rows = np.array(sorted(self.spans, key=lambda s: (s[0], s[6])), dtype=np.int64).reshape(-1, 10)
        return LaneExtract(
            rank=self.rank,
            host="node01",
            device=-1,
            lane=self.lane,
            role=self.role,
            label=self.label,
            start_ns=rows[:, 0],
            dur_ns=rows[:, 1],
            name=rows[:, 2].astype(np.int32),
            layer=rows[:, 3].astype(np.int32),
            kind=rows[:, 4].astype(np.int8),
            phase=rows[:, 5].astype(np.int8),
            depth=rows[:, 6].astype(np.int16),
            step=rows[:, 7].astype(np.int32),
            count=np.ones(len(rows), dtype=np.int32),
            flops=rows[:, 8],
            bytes=rows[:, 9],
            num_recorded=len(rows),
            num_left_out=0,
        )


@dataclasses.dataclass
class Maker:
    """Lays out one window: forward, backward with overlapped buckets, optimizer."""

    names: Strings
    rng: random.Random
    ops_per_layer: int = 2

    def span(
        self,
        lane: Lane,
        start: int,
        dur: int,
        name: str,
        step: int,
        kind: str,
        *,
        phase: str = "other",
        layer: str | None = None,
        depth: int = 0,
        flops: int = -1,
        size: int = -1,
    ) -> None:
        lane.spans.append(
            (
                start,
                dur,
                self.names.number(name),
                self.names.number(layer),
                KINDS.index(kind),
                PHASES.index(phase),
                depth,
                step,
                flops,
                size,
            )
        )

    def layer(self, lane: Lane, at: int, dur: int, index: int, step: int, phase: str) -> None:
        """One layer: its own annotation on top and its operators nested below."""
        layer, kind, _, _, gflop, mib = LAYERS[index]
        backward = phase == "backward"
        share = 2 / 3 if backward else 1 / 3
        self.span(lane, at, dur, layer, step, "annotation", phase=phase, layer=layer, depth=1)
        op = {"Conv2d": "aten::convolution", "BatchNorm2d": "aten::batch_norm", "Linear": "aten::addmm"}.get(
            kind, "aten::relu"
        )
        op = f"{op}_backward" if backward else op
        piece = dur // self.ops_per_layer
        for number in range(self.ops_per_layer):
            flops, size = int(gflop * 1e9 * share), int(mib * 2**20 * share)
            start, length = at + number * piece + 2 * US, max(piece - 4 * US, 1)
            if self.ops_per_layer > 10:
                start, length = at + number * piece, max(piece * 3 // 4, 1)
            self.span(
                lane,
                start,
                length,
                op,
                step,
                "compute",
                phase=phase,
                layer=layer,
                depth=2,
                flops=flops // self.ops_per_layer,
                size=size // self.ops_per_layer,
            )
            if kind == "Conv2d" and self.ops_per_layer < 10:
                self.span(
                    lane,
                    start + 9 * US,
                    max(length - 30 * US, 1),
                    "aten::mkldnn_convolution",
                    step,
                    "compute",
                    phase=phase,
                    layer=layer,
                    depth=3,
                )

    def step(self, lanes: list[tuple[Lane, Lane]], at: list[int], step: int) -> list[int]:
        """One step of every rank, starting at `at[rank]`; gives each rank's end."""
        ready: list[list[int]] = [[] for _ in BUCKETS]
        ends = []
        for rank, (main, _) in enumerate(lanes):
            now = at[rank]
            wait = INPUT_US[rank % len(INPUT_US)] * US + self.rng.randrange(40) * US
            self.span(main, now, wait, "DataLoader next", step, "input", depth=1)
            now += wait + 25 * US
            for index, (_, _, forward, _, _, _) in enumerate(LAYERS):
                dur = int(forward * US * self.rng.uniform(0.97, 1.05))
                self.layer(main, now, dur, index, step, "forward")
                now += dur + 8 * US
            for index in reversed(range(len(LAYERS))):
                dur = int(LAYERS[index][3] * US * self.rng.uniform(0.97, 1.05))
                self.layer(main, now, dur, index, step, "backward")
                now += dur + 8 * US
                if index in (6, 3, 0):
                    ready[(6, 3, 0).index(index)].append(now)
            ends.append(now)
        free = 0
        for bucket, (transfer_us, size) in enumerate(BUCKETS):
            begin = max(*ready[bucket], free)
            free = begin + transfer_us * US
            for rank, (_, gloo) in enumerate(lanes):
                entry = max(ready[bucket][rank], gloo.spans[-1][0] + gloo.spans[-1][1] if gloo.spans else 0)
                self.span(gloo, entry, free - entry, "gloo:all_reduce", step, "comm", size=size)
        done = []
        for rank, (main, _) in enumerate(lanes):
            now = max(ends[rank], free) + 20 * US
            dur = OPTIMIZER_US * US + self.rng.randrange(30) * US
            self.span(main, now, dur, "SGD.step", step, "optimizer", phase="optimizer", depth=1)
            end = now + dur + 60 * US
            self.span(main, at[rank], end - at[rank], f"step {step}", step, "annotation", depth=0)
            done.append(end)
        return done


def synthetic_timeline(
    *, num_ranks: int = 4, num_windows: int = 2, steps: int = 3, ops: int = 2
) -> TimelineExtract:
    """Windows of `steps` steps; `ops` operators per layer and direction (more: a denser timeline)."""
    maker = Maker(Strings(), random.Random(7), ops)
    windows = []
    for window in range(num_windows):
        lanes = [
            (Lane(rank, 4100 + rank, "main", "main thread"), Lane(rank, 4200 + rank, "backend", "gloo"))
            for rank in range(num_ranks)
        ]
        at = [rank * 7 * US for rank in range(num_ranks)]
        marks = []
        for number in range(steps):
            step = 10 + 100 * window + number
            begin, at = at, maker.step(lanes, at, step)
            marks += [
                StepMark(rank=rank, step=step, start_ns=begin[rank], dur_ns=at[rank] - begin[rank])
                for rank in range(num_ranks)
            ]
        windows.append(
            WindowExtract(
                window=window,
                start_ns=1_790_000_000_000_000_000 + window * 5_000_000_000,
                dur_ns=max(at),
                steps=tuple(marks),
                lanes=tuple(lane.extract() for pair in lanes for lane in pair),
                ranks_left_out=(),
            )
        )
    drawn = sum(len(lane.start_ns) for window in windows for lane in window.lanes)
    return TimelineExtract(
        windows=tuple(windows),
        strings=tuple(maker.names.numbers),
        span_budget=200_000,
        num_recorded=drawn,
        num_drawn=drawn,
        num_left_out=0,
        resolution_ns=0,
    )


def synthetic_layers() -> tuple[LayerResult, ...]:
    exposed = {0: 380 * US, 3: 1210 * US, 6: 45 * US}
    return tuple(
        LayerResult(
            layer=layer,
            module_type=kind,
            calls=1.0,
            forward_ns=forward * US,
            backward_ns=backward * US,
            exposed_comm_ns=exposed.get(order, 0),
            flops=int(gflop * 1e9),
            bytes=int(mib * 2**20),
            order=order,
        )
        for order, (layer, kind, forward, backward, gflop, mib) in enumerate(LAYERS)
    )


def synthetic_rank(rank: int) -> tuple[RankResult, tuple[int, ...]]:
    rng = random.Random(100 + rank)
    input_ns = INPUT_US[rank % len(INPUT_US)] * US
    parts = {
        "compute": 22_640 * US + 41 * US * rank,
        "exposed_comm": 3_640 * US - input_ns,
        "copy": 0,
        "input_wait": input_ns,
        "optimizer": OPTIMIZER_US * US,
        "idle": 312 * US + 7 * US * rank,
    }
    step = sum(parts.values())
    breakdown = Breakdown(step=step, num_steps=6, **parts)
    series = [int(step * rng.uniform(0.985, 1.03)) for _ in range(240)]
    series[0], series[1] = step * 4, int(step * 1.6)
    series[119] = int(step * 1.9)
    warm = sorted(series[2:])
    comm = 4_400 * US
    result = RankResult(
        rank=rank,
        host="node01",
        num_steps=len(series),
        num_traced_steps=6,
        step_ns=Quantiles(median=warm[119], p10=warm[24], p90=warm[214], count=len(warm)),
        breakdown_ns=breakdown,
        comm_ns=comm,
        overlap_ratio=1 - parts["exposed_comm"] / comm,
        device_ns=None,
        input_wait_ns=input_ns,
        samples_per_step=128.0,
        overhead_ns=41 * MS,
        elapsed_ns=sum(series),
    )
    return result, tuple(series)


def synthetic_run() -> dict[str, object]:
    return {
        "schema_version": 1,
        "perfscope_version": "0.1.0",
        "origin": "run",
        "name": "train_cnn",
        "labels": {"batch": "32", "purpose": "baseline"},
        "command": ["torchrun", "--standalone", "--nproc-per-node", "4", "examples/train_cnn.py"],
        "cwd": "/home/ada/cnn",
        "launcher": "torchrun",
        "host": "node01",
        "start_unix_ns": 1_790_000_000_000_000_000,
        "end_unix_ns": 1_790_000_011_000_000_000,
        "status": "finished",
        "exit": {"code": 0, "signal": None},
        "expected_ranks": 4,
        "attached_ranks": 4,
        "attach_notes": [],
        "git": {"commit": "9f1c2e7", "dirty": True},
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
        "environment": {"OMP_NUM_THREADS": "1"},
        "options": {"overhead": 0.01, "windows": 2, "steps_per_window": 3, "trace": True},
        "scheme": None,
        "world_size": 4,
    }


def synthetic_collectives() -> tuple[CollectiveResult, ...]:
    size = sum(bucket[1] for bucket in BUCKETS) * 6
    transfer, wait = 2_410 * US * 6, 1_990 * US * 6
    return (
        CollectiveResult(
            collective="all_reduce",
            group="default",
            group_size=4,
            dtype="float32",
            count=18,
            bytes=size,
            duration_ns=transfer + wait,
            transfer_ns=transfer,
            wait_ns=wait,
            max_wait_ns=1_830 * US,
            algbw_bytes_per_s=size * 1e9 / transfer,
            busbw_bytes_per_s=1.5 * size * 1e9 / transfer,
            busbw_with_wait_bytes_per_s=1.5 * size * 1e9 / (transfer + wait),
            late_counts=((3, 14), (1, 3), (0, 1)),
            num_matched=18,
        ),
        CollectiveResult(
            collective="broadcast",
            group="default",
            group_size=4,
            dtype=None,
            count=2,
            bytes=None,
            duration_ns=310 * US,
            transfer_ns=None,
            wait_ns=None,
            max_wait_ns=None,
            algbw_bytes_per_s=None,
            busbw_bytes_per_s=None,
            busbw_with_wait_bytes_per_s=None,
            late_counts=(),
            num_matched=0,
        ),
    )


def synthetic_findings() -> tuple[Finding, ...]:
    return (
        stated(
            FindingKind.STRAGGLER,
            "Rank 3 holds the others up: they wait 1.77 ms of every 27.2 ms step (6.5 %) "
            "for it in all_reduce",
            "Rank 3 entered 14 of 18 matched all_reduce calls last. It waits 1.95 ms per step "
            "for input, the other ranks 0.18 ms.",
            "Give rank 3's data loader more workers or a faster file system, and look at what else "
            "runs on its cores.",
            "Rank 3 holds the others up",
            gain_ns=1_770 * US,
            gain_ratio=0.065,
            rank=3,
            collective="all_reduce",
        ),
        stated(
            FindingKind.COMM_BOUND,
            "1.21 ms of all_reduce per step (4.4 %) has nothing to hide under",
            "The last bucket holds features.1.conv and starts when backward is nearly over.",
            "Try smaller buckets: DistributedDataParallel(bucket_cap_mb=10).",
            gain_ns=1_210 * US,
            gain_ratio=0.044,
            layer="features.1.conv",
            collective="all_reduce",
        ),
        stated(
            FindingKind.MEMORY_BOUND,
            "features.1.conv runs at 587 GFLOP/s against 717 GFLOP/s of features.2.conv",
            "Both do the same work; features.1.conv moves twice the bytes.",
            "Try the channels_last memory format.",
            layer="features.1.conv",
        ),
    )


def synthetic_analysis(*, num_ranks: int = 4) -> RunAnalysis:
    """The figures of that run. `num_ranks` beyond 4 repeats the pattern of the first four."""
    pairs = [synthetic_rank(rank) for rank in range(num_ranks)]
    ranks = tuple(pair[0] for pair in pairs)
    calls = tuple(
        CollectiveCall(
            window=seq // 9,
            seq=seq % 9,
            collective="all_reduce",
            group="default",
            start_ns=seq * 9 * MS,
            transfer_ns=BUCKETS[seq % 3][0] * US,
            late_rank=3 if seq % 9 else 1,
            start_skew_ns=(1_830 - 60 * seq) * US,
            end_skew_ns=9 * US,
            bytes=BUCKETS[seq % 3][1],
        )
        for seq in range(18)
    )
    warm = sorted(value for rank, series in pairs for value in series[2:])
    provenance = tuple(
        FileProvenance(
            path=f"ranks/{rank}/windows/{window}.json.gz",
            rank=rank,
            window=window,
            events_read=18_402 + 31 * rank,
            events_kept=2_911 + rank,
            events_cut=3,
            events_dropped=1 if (rank, window) == (2, 1) else 0,
            events_skipped=15_487 + 30 * rank,
            unclassified=(("void fused_mystery_kernel<float>", 12),) if rank == 1 else (),
            salvaged=(rank, window) == (2, 1),
            notes=("cut off in the last event",) if (rank, window) == (2, 1) else (),
        )
        for rank in range(min(num_ranks, 4))
        for window in range(2)
    )
    return RunAnalysis(
        run=run_record(synthetic_run() | {"expected_ranks": num_ranks, "attached_ranks": num_ranks}),
        ranks=ranks,
        layers=synthetic_layers(),
        collectives=synthetic_collectives(),
        calls=calls,
        in_calls_ns=41_200 * US,
        waiting_ns=25_700 * US,
        step_ns=Quantiles(
            median=warm[len(warm) // 2],
            p10=warm[len(warm) // 10],
            p90=warm[len(warm) * 9 // 10],
            count=len(warm),
        ),
        throughput_samples_per_s=4_689.3,
        samples_source="derived",
        overhead_ratio=0.0062,
        findings=synthetic_findings(),
        missing=(
            missing_figure(
                Figure.OTHER,
                Cause.PROBE_LIMIT,
                what="GPU timelines",
                reason="no CUDA, ROCm or XPU device was used by any rank",
            ),
            missing_figure(
                Figure.OTHER,
                Cause.PROBE_LIMIT,
                what="bytes on the wire",
                reason="no network counters were sampled; bytes are those of tensors",
            ),
            missing_figure(
                Figure.OTHER,
                Cause.PROBE_LIMIT,
                what="broadcast: transfer and wait",
                reason="calls could not be matched across ranks",
            ),
        ),
        provenance=provenance,
        step_series={rank.rank: series for rank, series in pairs},
    )


def with_maps(analysis: RunAnalysis) -> RunAnalysis:
    """With what maps need: waits by step, rank 3 being late, and layers, one of them slow on rank 2."""
    ranks = tuple(rank.rank for rank in analysis.ranks)
    steps = [10, 11, 12, 110, 111, 112]
    wait = np.array(
        [[(0 if rank == 3 else 400 * (1 + rank) + 90 * at) * US for at in range(6)] for rank in ranks]
    )
    times = {}
    for layer in analysis.layers:
        means = [[float(layer.forward_ns), float(layer.backward_ns), 1.0, 0.0, 0.0, 0.0, 0.0] for _ in ranks]
        means[2][1] *= 1.7 if layer.layer == "features.1.conv" else 1.0
        times[layer.layer] = LayerTimes(ranks=ranks, means=np.array(means))
    waits = StepWaits(ranks=ranks, windows=[0, 0, 0, 1, 1, 1], steps=steps, wait_ns=wait)
    return structs.replace(analysis, step_waits=waits, layer_times=times)


def test_synthetic_breakdown_adds_up() -> None:
    for rank in synthetic_analysis().ranks:
        assert rank.breakdown_ns is not None
        parts = [getattr(rank.breakdown_ns, part) for part in Breakdown.PARTS]
        assert min(parts) >= 0
        assert sum(parts) == rank.breakdown_ns.step


def test_synthetic_lanes_are_sorted_and_nested() -> None:
    for window in synthetic_timeline().windows:
        for lane in window.lanes:
            assert (np.diff(lane.start_ns) >= 0).all()
            for depth in range(int(lane.depth.max()) + 1):
                row = lane.depth == depth
                ends = lane.start_ns[row] + lane.dur_ns[row]
                assert (lane.start_ns[row][1:] >= ends[:-1]).all(), (lane.label, depth)


def test_synthetic_run_is_deterministic() -> None:
    first, second = synthetic_timeline(), synthetic_timeline()
    assert synthetic_analysis() == synthetic_analysis()
    assert first.strings == second.strings
    assert first.windows[1].dur_ns == second.windows[1].dur_ns
