"""What perfscope would have recorded of an emulated job: a run in memory, as `analyze_run` reads one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from perfscope.analysis.source import Document, RunSource
from perfscope.rundir.hangs import HangRecord
from perfscope.rundir.host_records import TopologyRecord, with_document
from perfscope.rundir.records import LayersRecord, RankRecord, rank_record
from perfscope.rundir.sample_facts import Binding, Neighbor
from perfscope.rundir.samples import HostSamples, SampleFact, SampleSeries
from perfscope.rundir.schema import STEPS, TIMELINE
from perfscope.rundir.scheme_records import BenchRecord
from perfscope.rundir.typed import decode_record, read_as
from perfscope.rundir.window_records import ProbeError, WindowSummary
from tests.planted.emulate import BACKEND, COMM_STREAM, MAIN, STREAM, Job, Played
from tests.support.records import run_record

SECOND = 1_000_000_000
EPOCH = 1_780_000_000 * SECOND
BOOT = 5_000 * SECOND
CPUS_PER_HOST = 8
_LEAD_S, _TAIL_S = 2.0, 1.0  # the sampler runs a little longer than the steps
_WORDS = {"kind", "phase", "layer", "name", "collective", "group", "dtype"}
_DEFAULTS: dict[str, Any] = {"device": -1, "lane": MAIN, "depth": 0, "phase": "other"}


class EmulatedRun:
    """Satisfies `analysis.source.RunSource`. Hosts' clocks stand apart by what `offsets_ns` says."""

    def __init__(self, job: Job, played: Sequence[Played]) -> None:
        self.job, self.played = job, played
        self.ranks = tuple(range(job.num_ranks))
        count = job.host_of(job.num_ranks - 1) + 1
        self.hosts = tuple(f"node{number}" for number in range(count)) if job.watched else ()
        rng = np.random.default_rng(job.seed + 1)
        self.offsets_ns = [0, *(int(rng.uniform(-40e6, 40e6)) for _ in range(count - 1))]
        document: Document = {
            "schema_version": 1,
            "origin": "run",
            "status": "finished",
            "name": "train",
            "host": "node0",
            "command": ["torchrun", "--nproc-per-node", str(job.ranks_per_host), "train.py"],
            "launcher": "torchrun",
            "world_size": job.num_ranks,
            "expected_ranks": job.num_ranks,
            "attached_ranks": job.num_ranks,
            "options": {"overhead": 0.01, "ceilings": "off"},
            "environment": {},
        }
        self.run = run_record(document)
        self.notes: tuple[()] = ()
        self.rank_records: Mapping[int, RankRecord] = {
            rank: rank_record(self._rank_json(rank)) for rank in self.ranks
        }

    # -- documents -----------------------------------------------------------------------------------------

    def _rank_json(self, rank: int) -> Document:
        job, local = self.job, rank % self.job.ranks_per_host
        steps = job.num_steps
        return {
            "schema_version": 1,
            "rank": rank,
            "local_rank": local,
            "world_size": job.num_ranks,
            "host": f"node{job.host_of(rank)}",
            "pid": 1000 + rank,
            "num_steps": steps,
            "finished": True,
            "affinity": [self._cpu(rank)],
            "num_threads": 1,
            "device": "cuda:0 NVIDIA H100" if job.on_gpu else "cpu",
            "backend": "nccl" if job.on_gpu else "gloo",
            "groups": job.groups(),
            "root": {"name": "Net", "data_parallel": job.shape == "data", "dp_size": job.num_ranks},
            "overhead": {"windows_ns": 1_000_000, "windows": 1, "always_on_ns": 1000 * steps},
        }

    def _cpu(self, rank: int) -> int:
        """Ranks alternate between the sockets of four CPUs each."""
        local = rank % self.job.ranks_per_host
        return 4 * (local % 2) + local // 2

    def layers(self, rank: int) -> LayersRecord | None:
        rows = []
        for index, layer in enumerate(self.job.layers):
            if self.job.share[rank, index] <= 0:
                continue
            shapes = [list(shape) for shape in self.job.shapes_on(rank, index)]
            count = sum(int(np.prod(shape)) for shape in shapes)
            rows.append({"layer": layer.name, "type": layer.type, "params": count, "param_shapes": shapes})
        return decode_record(LayersRecord, {"root": "Net", "layers": rows})[0]

    def part(self, ranks: Sequence[int]) -> RunSource:
        raise NotImplementedError("planted runs are read in one process")

    def add_notes(self, notes: Sequence[Any]) -> None:
        raise NotImplementedError("planted runs are read in one process")

    def bench_records(self) -> dict[int, BenchRecord]:
        return {}

    def windows(self, rank: int) -> Sequence[Document]:
        return []

    def errors(self, rank: int) -> Sequence[ProbeError]:
        return []

    def stacks(self, host: str) -> None:
        return None

    def ceilings(self, host: str) -> None:
        return None

    def topology(self, host: str) -> TopologyRecord | None:
        nodes = [
            {"node": k, "cpus": cpus, "memory_bytes": 1 << 34, "kind": "cpu", "package": k}
            for k, cpus in enumerate(("0-3", "4-7"))
        ]
        facts = {"logical_cpus": CPUS_PER_HOST, "online_cpus": "0-7", "sockets": 2, "numa_nodes": nodes}
        return read_as(TopologyRecord, with_document({"host": host, **facts}))

    def summaries(self) -> Sequence[WindowSummary]:
        return [self._summary(rank, number) for rank in self.ranks for number in range(len(self.job.windows))]

    def _summary(self, rank: int, number: int) -> WindowSummary:
        job, window = self.job, self.job.windows[number]
        starts = self._unix(rank, self.played[rank].starts)
        roles = [(-1, MAIN, "main"), (-1, BACKEND, "backend"), (-1, BACKEND + 1, "backend")]
        if job.on_gpu:
            roles = [(-1, MAIN, "main"), (0, STREAM, "stream"), (0, COMM_STREAM, "stream")]
        document = {
            "rank": rank,
            "window": number,
            "source": {"path": f"ranks/{rank}/windows/{number}.json.gz"},
            "events_read": len(self.played[rank].rows),
            "events_kept": len(self.played[rank].rows),
            "steps": [
                [step, starts[step], starts[step + 1]]
                for step in range(window.first, window.first + window.count)
            ],
            "step_source": "perfscope",
            "lanes": [{"device": d, "lane": lane, "role": role, "label": role} for d, lane, role in roles],
            "host": f"node{job.host_of(rank)}",
            "groups": [
                {"pg_name": group["name"], "pg_desc": group["desc"], "ranks": group["ranks"]}
                for group in job.groups()
            ],
            "world_size": job.num_ranks,
            "has_device": job.on_gpu,
        }
        return read_as(WindowSummary, document)

    def _unix(self, rank: int, times_s: Sequence[float]) -> list[int]:
        base = EPOCH + self.offsets_ns[self.job.host_of(rank)]
        return [base + round(time * 1e9) for time in times_s]

    # -- tables --------------------------------------------------------------------------------------------

    def phases(self, rank: int) -> None:
        return None

    def file_io(self) -> None:
        return None

    def imported_communicators(self) -> tuple[()]:
        return ()

    def loading(self, rank: int) -> None:
        return None

    def steps(self, rank: int) -> pa.Table:
        job, one = self.job, self.played[rank]
        starts = np.rint(np.array(one.starts) * 1e9).astype(np.int64)
        num = len(starts) - 1
        number = np.arange(num)
        columns = {
            "rank": np.full(num, rank),
            "step": number,
            "start_ns": starts[:-1] + BOOT,
            "dur_ns": np.diff(starts),
            "window": np.array([job.window_of(step) for step in range(num)]),
            "input_ns": np.rint(np.array(one.input_s) * 1e9).astype(np.int64),
            "num_micro": np.full(num, job.num_micro),
            "samples": np.full(num, 32),
        }
        nothing = [None] * num
        return pa.table(
            {name: pa.array(columns.get(name, nothing), STEPS.field(name).type) for name in STEPS.names}
        )

    def timeline_columns(self, rank: int, window: int, columns: Sequence[str]) -> pa.Table:
        return self.timeline(rank, window, columns)

    def timeline(self, rank: int, window: int, columns: Sequence[str] | None = None) -> pa.Table:
        rows = [row for row in self.played[rank].rows if row["window"] == window]
        rows.sort(key=lambda row: float(row["start"]))
        made: dict[str, list[Any]] = {
            "rank": [rank] * len(rows),
            "start_ns": self._unix(rank, [row["start"] for row in rows]),
            "dur_ns": [max(0, round(row["length"] * 1e9)) for row in rows],
            "launch_ns": [self._unix(rank, [row["launch"]])[0] if "launch" in row else None for row in rows],
            "launch_step": [row["step"] if "launch" in row else None for row in rows],
            "seq": _sequence(rows),
        }
        arrays = {}
        for name in columns or TIMELINE.names:
            values = made.get(name) or [row.get(name, _DEFAULTS.get(name)) for row in rows]
            if name in _WORDS:
                arrays[name] = pa.array(values, pa.string()).dictionary_encode()
            else:
                arrays[name] = pa.array(values, TIMELINE.field(name).type)
        return pa.table(arrays)

    # -- the machine ---------------------------------------------------------------------------------------

    def hangs(self, host: str) -> tuple[HangRecord, ...]:
        return ()

    def sampler_error(self, host: str) -> str:
        return ""

    def samples(self, host: str) -> HostSamples | None:
        number = self.hosts.index(host)
        mine = [rank for rank in self.ranks if self.job.host_of(rank) == number]
        end = max(self.played[rank].starts[-1] for rank in mine) + _TAIL_S
        slow = np.arange(-_LEAD_S, end, 1.0)
        foreign = np.full(len(slow), 0.03)
        facts = [_binding(rank, self._cpu(rank)) for rank in mine]
        near = self.job.neighbour
        if near is not None and near.host == number:
            starts = self.played[near.ranks[0]].starts
            begin, stop = starts[near.first], starts[min(near.last, len(starts) - 1)]
            inside = np.clip(np.minimum(slow + 1, stop) - np.maximum(slow, begin), 0, 1)
            foreign += near.cpus * inside
            value = Neighbor(pid=4242, name="stress-ng", user="bob", cpus=near.cpus, seconds=1.0)
            at = BOOT + round((begin + stop) / 2 * SECOND)
            facts.append(
                SampleFact(name="neighbour", collector="made", t_ns=at, labels={"kind": "cpu"}, value=value)
            )
        busy = foreign + 0.9 * len(mine)
        series = [
            _counter("neighbour_cpu", slow, foreign, {}),
            _counter("cpu_busy", slow, busy, {"cpu": "all"}),
            _counter("cpu_steal", slow, np.zeros(len(slow)), {"cpu": "all"}),
            *(one for rank in mine for one in self._pages(rank, slow)),
            *(self._queued(rank, slow[::2]) for rank in mine),
        ]
        return HostSamples(
            host=host,
            series=tuple(series),
            facts=tuple(facts),
            anchors=((BOOT, EPOCH + self.offsets_ns[number]),),
            intervals=((BOOT, SECOND),),
            ends=(),
            num_dropped=0,
        )

    def _queued(self, rank: int, times_s: np.ndarray[Any, Any]) -> SampleSeries:
        """Time in the run queue so far: a little for everybody, and what the neighbor took."""
        one = self.played[rank]
        total = np.concatenate(([0.0], np.cumsum(one.queued_s)))
        usual = np.random.default_rng([self.job.seed, rank]).uniform(0.002, 0.08)
        so_far = np.interp(times_s, one.starts, total) + usual * (times_s - times_s[0])
        values = np.rint(so_far * 1e9).astype(np.int64)
        return _series("rank_runqueue_wait", times_s, values, {"pid": str(1000 + rank)}, "ns", "counter", 1.0)

    def _pages(self, rank: int, times_s: np.ndarray[Any, Any]) -> list[SampleSeries]:
        own = self._cpu(rank) // 4
        away = self.job.remote.get(rank, 0.02)
        found = []
        for node, share in ((own, 1 - away), (1 - own, away)):
            values = np.full(len(times_s), round(512 * share))
            labels = {"pid": str(1000 + rank), "node": str(node)}
            found.append(_series("rank_pages", times_s, values, labels, "pages", "gauge", 1.0))
        return found


def _sequence(rows: Sequence[dict[str, Any]]) -> list[int | None]:
    """k-th of its kind, for the communication rows."""
    seen: dict[str, int] = {}
    found: list[int | None] = []
    for row in rows:
        kind = row.get("collective")
        found.append(None if kind is None else seen.get(kind, 0))
        if kind is not None:
            seen[kind] = seen.get(kind, 0) + 1
    return found


def _binding(rank: int, cpu: int) -> SampleFact:
    value = Binding(cpus=str(cpu), cpu_nodes=(cpu // 4,), policy="default")
    labels = {"pid": str(1000 + rank)}
    return SampleFact(name="binding", collector="made", t_ns=BOOT, labels=labels, value=value)


def _counter(metric: str, times_s: Any, cpus: Any, labels: dict[str, str]) -> SampleSeries:
    """CPU time in jiffies of 10 ms; `cpus[k]` are in use from times_s[k] on."""
    total = np.concatenate(([0.0], np.cumsum(cpus[:-1] * np.diff(times_s))))
    return _series(metric, times_s, np.rint(total * 100).astype(np.int64), labels, "ns", "counter", 1e7)


def _series(
    metric: str, times_s: Any, values: Any, labels: dict[str, str], unit: str, kind: str, scale: float
) -> SampleSeries:
    at = BOOT + np.rint(times_s * SECOND).astype(np.int64)
    num = len(at)
    return SampleSeries(
        collector="made",
        metric=metric,
        labels=labels,
        unit=unit,
        kind=kind,
        source="move_pages(2) of up to 512 pages" if metric == "rank_pages" else "made up",
        limit=None,
        scale=scale,
        t_begin_ns=at - 10_000,
        t_end_ns=at + 10_000,
        values=np.asarray(values, np.int64),
        quality=np.zeros(num, np.uint8),
        segment=np.zeros(num, np.int32),
    )
