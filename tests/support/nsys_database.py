"""Writes databases as `nsys export --type sqlite` does: tables, columns and encodings of schema 3.15."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH_NS = 1_700_000_000_000_000_000
KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")
)
_DEVICE = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
SCHEMA = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    KERNEL: f"{_DEVICE}, demangledName INT, shortName INT, mangledName INT, gridX INT, graphNodeId INT",
    MEMCPY: f"{_DEVICE}, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    MEMSET: f"{_DEVICE}, value INT, bytes INT, memKind INT",
    GRAPH: f"{_DEVICE}, graphId INT, graphExecId INT",
    RUNTIME: "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
    "NVTX_EVENTS": (
        "start INT, end INT, eventType INT, rangeId INT, category INT, color INT, text TEXT, globalTid INT, "
        "endGlobalTid INT, textId INT, domainId INT, jsonTextId INT, jsonText TEXT"
    ),
    "MPI_RANKS": "globalTid INT, rank INT",
    "PROCESSES": "globalPid INT, pid INT, name TEXT",
    "TARGET_INFO_GPU": "id INT, name TEXT, busLocation TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INT, cudaId INT, pid INT, uuid TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INT, name TEXT, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT, utcTime TEXT, localTime TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
}
US = 1000


def global_tid(pid: int, tid: int) -> int:
    """Hardware id 1, VM 0, process and thread, as nsys serializes them."""
    return 1 << 56 | pid << 24 | tid


@dataclass
class Database:
    """Rows to write; times are microseconds. A table exists when it has a row, as in a real export."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    correlation: int = 0

    def add(self, table: str, **values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def text(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings) + 1)

    def nvtx(
        self, pid: int, text: str, start: float, end: float | None, *, tid: int = 0, **more: Any
    ) -> None:
        """A push-pop range; `end` None is a range that was open at the end."""
        more.setdefault("eventType", 59)
        self.add(
            "NVTX_EVENTS",
            start=int(start * US),
            end=None if end is None else int(end * US),
            globalTid=global_tid(pid, tid or pid),
            **({"domainId": 0} | more),
            # Registered strings are numbers, others stand in the row.
            **({"textId": self.text(text)} if len(text) % 2 else {"text": text}),
        )

    def call(self, pid: int, start: float, name: str = "cudaLaunchKernel_v7000", *, tid: int = 0) -> int:
        self.correlation += 1
        self.add(
            RUNTIME,
            start=int(start * US),
            end=int((start + 1) * US),
            globalTid=global_tid(pid, tid or pid),
            correlationId=self.correlation,
            nameId=self.text(name),
        )
        return self.correlation

    def on_device(
        self, table: str, pid: int, start: float, end: float, *, device: int = 0, stream: int = 7, **more: Any
    ) -> None:
        self.add(
            table,
            start=int(start * US),
            end=int(end * US),
            deviceId=device,
            streamId=stream,
            globalPid=global_tid(pid, 0),
            **more,
        )

    def kernel(self, pid: int, name: str, launch: float, start: float, end: float, **more: Any) -> None:
        tid = more.pop("tid", 0)
        correlation = self.call(pid, launch, tid=tid)
        names = {"demangledName": self.text(name), "shortName": self.text(name.partition("<")[0])}
        self.on_device(KERNEL, pid, start, end, correlationId=correlation, **names, **more)

    def session(self, version: str = "3.15.1") -> None:
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)
        self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value=version)
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="gpu-node")
        self.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value="TOKEN=hunter2")
        self.add("META_DATA_CAPTURE", name="COMMAND_LINE", value="train --token hunter2")
        self.text("TOKEN=hunter2 in a string")
        for gpu in range(2):
            self.add("TARGET_INFO_GPU", id=gpu, name="NVIDIA H100 80GB HBM3")

    def write(self, path: Path, *, without: tuple[str, ...] = ()) -> Path:
        """The file; tables named in `without` are left out."""
        rows = self.rows | {"StringIds": [{"id": n, "value": text} for text, n in self.strings.items()]}
        with closing(sqlite3.connect(path)) as connection:
            for table, values in rows.items():
                if table in without:
                    continue
                connection.execute(f"CREATE TABLE {table} ({SCHEMA[table]})")
                for row in values:
                    marks = ", ".join("?" * len(row))
                    connection.execute(
                        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values())
                    )
            connection.commit()
        return path


def training(database: Database, pid: int, *, device: int = 0, steps: int = 3) -> None:
    """Steps of 1,000 us: a copy, two layers under emit_nvtx, their backward, an all_reduce, an optimizer."""
    autograd = pid + 1
    for step in range(steps):
        at = 100 + 1000 * step
        database.nvtx(pid, f"iteration {step}", at, at + 950)
        database.nvtx(pid, "load batch", at + 1, at + 20)
        copy = database.call(pid, at + 5, "cudaMemcpyAsync_v3020")
        database.on_device(
            MEMCPY, pid, at + 10, at + 30, device=device, correlationId=copy, bytes=4096, copyKind=1
        )
        database.nvtx(pid, "forward", at + 50, at + 300)
        for number, layer in enumerate(("stem", "head")):
            begin, sequence = at + 60 + 100 * number, 2 * step + number
            database.nvtx(pid, f"{{'Module': '{layer}', 'TrainableParams': {{}}}}", begin, begin + 90)
            database.nvtx(
                pid,
                f"aten::linear, seq = {sequence}, op_id = {10 * step + number}, sizes = [[8, 8], [8, 8]]",
                begin + 5,
                begin + 80,
            )
            database.kernel(pid, "gemm<float>", begin + 10, begin + 20, begin + 70, device=device)
        for number, sequence in enumerate((2 * step + 1, 2 * step)):
            begin = at + 310 + 100 * number
            for name in ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"):
                database.nvtx(pid, f"{name}, seq = {sequence}, op_id = 5", begin, begin + 90, tid=autograd)
            database.nvtx(pid, "aten::mm, op_id = 6", begin + 2, begin + 60, tid=autograd)
            database.kernel(
                pid, "gemm_tn<float>", begin + 5, begin + 15, begin + 75, device=device, tid=autograd
            )
        payload = json.dumps({"Message size [bytes]": 1 << 20, "Reduction operation": "Sum"})
        database.nvtx(pid, "ncclAllReduce", at + 520, at + 540, domainId=9, jsonText=payload)
        database.kernel(
            pid,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)",
            at + 525,
            at + 530,
            at + 730,
            device=device,
            stream=20,
        )
        database.nvtx(pid, "Optimizer.step#SGD.step, op_id = 9", at + 750, at + 850)
        database.kernel(pid, "multi_tensor_apply", at + 755, at + 760, at + 840, device=device)
        clear = database.call(pid, at + 860, "cudaMemsetAsync_v3020")
        database.on_device(MEMSET, pid, at + 865, at + 870, device=device, correlationId=clear, bytes=256)
    database.nvtx(pid, "NCCL", 0, None, eventType=75, domainId=9)
    database.add("PROCESSES", globalPid=global_tid(pid, 0), pid=pid, name="python")
