"""Writes samples.jsonl as the sampler does, with figures whose truth is known, and runs around them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfscope.rundir.reader import RunReader
from perfscope.rundir.samples import HostSamples, read_samples
from tests.support.synthetic_run import EPOCH, SyntheticRun

SECOND = 1_000_000_000
BOOT = 5_000 * SECOND  # monotonic time of second 0 of every file made here
READ_NS = 20_000  # a reading takes so long
HOST = "node0"


class SampleFile:
    """A samples.jsonl under construction; times are seconds since BOOT."""

    def __init__(self, host: str = HOST, interval_s: float = 0.1) -> None:
        self.host = host
        self._ids = 0
        self._lines: list[Any] = []
        self.sampler(interval_s)

    def sampler(self, interval_s: float = 0.1) -> None:
        """A sampler begins (again): what follows is another segment."""
        self._ids = 0
        header = {"schema_version": 1, "host": self.host, "pid": 7, "interval_ns": round(interval_s * SECOND)}
        self._lines.append({**header, "anchor": [BOOT, EPOCH]})

    def add(
        self,
        metric: str,
        times_s: Sequence[float],
        values: Sequence[int | float | None],
        *,
        kind: str = "counter",
        unit: str = "ns",
        quality: dict[int, str] | None = None,
        **more: Any,
    ) -> None:
        """One series; `more` are its labels, and limit, scale, source, collector."""
        extra = {name: more.pop(name) for name in ("limit", "scale") if name in more}
        collector, source = more.pop("collector", "made"), more.pop("source", "made up")
        definition = {"metric": metric, "labels": more, "unit": unit, "kind": kind, "quality": "exact"}
        number = self._ids
        self._ids += 1
        self._lines.append(
            {"id": number, "collector": collector, "series": [{**definition, "source": source, **extra}]}
        )
        for index, (time_s, value) in enumerate(zip(times_s, values, strict=True)):
            begin = BOOT + round(time_s * SECOND) - READ_NS // 2
            row: list[Any] = [number, begin, begin + READ_NS, [value]]
            odd = (quality or {}).get(index)
            self._lines.append([*row, {"0": odd}] if odd else row)

    def rate(
        self, metric: str, times_s: Sequence[float], per_s: float | Callable[[float], float], **more: Any
    ) -> None:
        """A counter that grows by `per_s` (at the middle of each interval) raw units per second."""
        values, total = [0], 0.0
        for before, after in itertools.pairwise(times_s):
            now = per_s((before + after) / 2) if callable(per_s) else per_s
            total += now * (after - before)
            values.append(round(total))
        self.add(metric, times_s, values, **more)

    def fact(
        self, name: str, time_s: float, labels: dict[str, str], value: dict[str, Any], **more: Any
    ) -> None:
        at = BOOT + round(time_s * SECOND)
        self._lines.append(
            {
                "fact": name,
                "collector": more.get("collector", "made"),
                "t_ns": at,
                "labels": labels,
                "value": value,
            }
        )

    def end(self, reason: str, **cost: Any) -> None:
        self._lines.append({"end": reason, "t_ns": BOOT, "cost": cost})

    @property
    def text(self) -> str:
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self._lines)

    def read(self, folder: Path) -> HostSamples:
        path = folder / "samples.jsonl"
        path.write_text(self.text)
        return read_samples(path, self.host)


def ticks(start_s: float, end_s: float, every_s: float = 0.1) -> list[float]:
    """Times of readings, both ends included."""
    return [round(start_s + k * every_s, 6) for k in range(round((end_s - start_s) / every_s) + 1)]


def two_nodes(**more: Any) -> dict[str, Any]:
    """topology.json of two sockets with four CPUs each."""
    return {
        "schema_version": 1,
        "host": HOST,
        "logical_cpus": 8,
        "online_cpus": "0-7",
        "sockets": 2,
        "numa_nodes": [
            {"node": 0, "cpus": "0-3", "memory_bytes": 1 << 34, "kind": "cpu", "package": 0},
            {"node": 1, "cpus": "4-7", "memory_bytes": 1 << 34, "kind": "cpu", "package": 1},
        ],
        **more,
    }


class SampledRun:
    """A run whose steps lie at known seconds beside a SampleFile.

    `steps` are (start, end) of the steps' time; each step lasts `step_s`.
    """

    def __init__(
        self,
        path: Path,
        samples: SampleFile | None,
        *,
        steps: tuple[float, float] = (10.0, 30.0),
        step_s: float = 0.5,
        topology: dict[str, Any] | None = None,
        ceilings: dict[str, Any] | None = None,
        ranks: Sequence[dict[str, Any]] = ({"pid": 100},),
        **manifest: Any,
    ) -> None:
        self.run = SyntheticRun(path, world_size=len(ranks), **manifest)
        num = round((steps[1] - steps[0]) / step_s)
        starts = [BOOT + round((steps[0] + k * step_s) * SECOND) for k in range(num)]
        for rank, meta in enumerate(ranks):
            self.run.rank(rank, **{"local_rank": rank, "device": "cpu", "num_threads": 1, **meta})
            self.run.steps(rank, [round(step_s * SECOND)] * num, start_ns=starts, samples=[32] * num)
        if samples is not None:
            self.run.write(f"hosts/{samples.host}/samples.jsonl", samples.text)
        if topology is not None:
            self.run.write(f"hosts/{HOST}/topology.json", topology)
        if ceilings is not None:
            self.run.write(f"hosts/{HOST}/ceilings.json", ceilings)

    def read(self) -> RunReader:
        return self.run.read()
