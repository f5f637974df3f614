"""Rows of an Nsight Systems database as the events that the streaming pipeline takes, in chunks.

NVTX ranges carry what Kineto has in categories of its own:

- ranges of `torch.autograd.profiler.emit_nvtx` are operators: `aten::mm, seq = 12, op_id = 5, sizes = [...]`;
- perfscope's and PyTorch's marks (`perfscope.step:3`, `Optimizer.step#SGD.step`) mean what they mean there;
- layers: `{'Module': 'model.layers.0', ...}` and Lightning's `[pl][module]torch.nn...Linear: head.fc`;
- steps, passes, optimizer and input by their customary names, see `classify`;
- ranges of NCCL's domain are its calls, with the size of the message where it was recorded.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perfscope.ingest.classify import (
    BACKWARD_WRAPPER,
    NVTX_CATEGORY,
    UNNUMBERED_STEP,
    HostClass,
    operator_class,
)
from perfscope.ingest.collectives import canonical
from perfscope.ingest.events import NO_ARGS, Args, Event, ReadCounts
from perfscope.ingest.formats import nsys_schema as schema
from perfscope.ingest.metadata import Metadata
from perfscope.rundir import layout

_CHUNK_ROWS = 4096
_MAX_STRINGS = 1 << 15  # held at a time: emit_nvtx makes a new text for every call
_PID_SHIFT, _ID_MASK = 24, 0xFFFFFF
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}  # CUpti_ActivityMemcpyKind
_EMITTED = re.compile(
    r"^(?P<name>.*?)(?:, seq = (?P<sequence>\d+))?(?:, op_id = \d+)?"
    r"(?:, sizes = \[.*?\])?(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_LAYERS = (
    re.compile(r"^\{'Module': '(?P<layer>[^']+)'"),
    re.compile(r"^\[pl\]\[module\][\w.]+: (?P<layer>.+)$"),
)
_CALL_VERSION = re.compile(r"_v\d+$")  # cudaLaunchKernel_v7000
_WHY_MISSING = {
    schema.KERNEL: "no kernels were recorded; nsys profile --trace=cuda records them",
    schema.RUNTIME: "device work cannot be tied to the host; nsys profile --trace=cuda records CUDA calls",
    schema.NVTX: (
        "no steps, layers and phases; nsys profile --trace=nvtx records the ranges "
        "that a training marks or torch.autograd.profiler.emit_nvtx emits"
    ),
}


class NsysEvents:
    """The events of the one process in a database of a run.

    Attributes:
        counts: filled while iterating.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.counts = ReadCounts()
        self._connection = connection
        self._notes: list[str] = []
        self._strings = _Strings(connection)
        self._domains: dict[object, str] = {}
        self._unnumbered: dict[tuple[int, str], int] = defaultdict(int)

    def __iter__(self) -> Iterator[list[Event]]:
        self._check_version()
        for table, build in (
            (schema.NVTX, self._range),
            (schema.RUNTIME, self._call),
            (schema.KERNEL, self._kernel),
            (schema.MEMCPY, self._copy),
            (schema.MEMSET, self._set),
            (schema.GRAPH, self._graph),
        ):
            columns = self._columns(table)
            if not columns:
                continue
            try:
                for rows in self._rows(table, columns):
                    self.counts.read += len(rows)
                    events = [event for event in map(build, rows) if event is not None]
                    self.counts.dropped += len(rows) - len(events)
                    yield events
            except schema.DAMAGE as error:
                self.counts.notes.append(f"{table} could not be read to its end ({schema.reason_of(error)})")

    def metadata(self) -> Metadata:
        """Clock, host and GPUs; and what the file lacks."""
        epoch = self._facts(schema.SESSION, ("utcEpochNs",))
        if not (epoch and isinstance(epoch[0][0], int)):
            self._notes.append(
                f"no table {schema.SESSION}: times count from the start of the profile, "
                "and cannot be compared with those of other files"
            )
        hosts = self._facts(schema.HOST, ("name", "value"))
        names = dict(self._facts(schema.GPUS, ("id", "name")))
        gpus = {device: gpu for _, device, gpu in self._facts(schema.DEVICES, ("pid", "cudaId", "gpuId"))}
        devices = {device: names[gpu] for device, gpu in gpus.items() if gpu in names} or names
        return Metadata(
            base_ns=epoch[0][0] if epoch and isinstance(epoch[0][0], int) else 0,
            host=str(hosts[0][1]) if hosts else None,
            devices={device: str(name) for device, name in devices.items() if isinstance(device, int)},
            notes=self._notes,
        )

    # Tables

    def _check_version(self) -> None:
        version = schema.schema_version(self._connection)
        if version is not None and version.partition(".")[0] not in schema.KNOWN_MAJOR_VERSIONS:
            versions = " and ".join(schema.KNOWN_MAJOR_VERSIONS)
            self._notes.append(
                f"schema version {version} is not known (known: {versions}): tables and "
                "columns may have changed"
            )

    def _columns(self, table: str) -> frozenset[str]:
        """The columns of a table of events; empty, with a note why, where it is of no use."""
        columns = schema.columns_of(self._connection, table)
        lacking = [name for name in schema.EVENTS[table].needed if name not in columns]
        if not columns:
            if table in _WHY_MISSING:
                self._notes.append(f"no table {table}: {_WHY_MISSING[table]}")
            return frozenset()
        if lacking:
            version = schema.schema_version(self._connection) or "not recorded"
            missing = ", ".join(lacking)
            self._notes.append(f"{table} was left out: no column {missing} (schema version {version})")
            return frozenset()
        if table == schema.GRAPH:
            self._notes.append(
                "CUDA graphs were recorded as a whole (--cuda-graph-trace=graph): "
                "their kernels, copies and collectives are not known"
            )
        return columns

    def _rows(self, table: str, columns: frozenset[str]) -> Iterator[list[Any]]:
        """All rows in chunks: needed columns, then optional ones."""
        events = schema.EVENTS[table]
        wanted = [f'"{name}"' if name in columns else "NULL" for name in (*events.needed, *events.optional)]
        query = f"SELECT {', '.join(wanted)} FROM {table}"
        if table == schema.NVTX:
            for domain, text, text_id in self._connection.execute(
                f"SELECT {wanted[6]}, {wanted[4]}, {wanted[5]} FROM {table} WHERE eventType = {schema.DOMAIN}"
            ):
                self._domains[domain] = self._strings.either(text, text_id)
            kinds = f"{schema.PUSH_POP_RANGE}, {schema.START_END_RANGE}"
            query += f" WHERE eventType IN ({kinds}) ORDER BY start"  # repeated steps are numbered by time
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            yield rows

    def _facts(self, table: str, columns: Sequence[str]) -> list[Any]:
        if not schema.columns_of(self._connection, table).issuperset(columns):
            return []
        return self._connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()

    # Rows

    def _range(self, row: Sequence[Any]) -> Event | None:
        start, end, _, thread, text, text_id, domain, payload, payload_id = row
        if not isinstance(thread, int):
            return None
        name = self._strings.either(text, text_id)
        if self._domains.get(domain) == "NCCL" and name.startswith("nccl"):
            call = canonical(name.removeprefix("nccl"))
            if call is not None:
                args = _message(self._strings.either(payload, payload_id))
                return _event(NVTX_CATEGORY, f"nccl:{call}", start, end, thread, args)
        if UNNUMBERED_STEP.fullmatch(name):
            number = self._unnumbered[thread, name]
            self._unnumbered[thread, name] += 1
            name = f"{name} {number}"
        category, name, args = _meaning(name)
        return _event(category, name, start, end, thread, args)

    def _call(self, row: Sequence[Any]) -> Event | None:
        start, end, thread, correlation, name = row
        text = _CALL_VERSION.sub("", self._strings[name])
        return _event("cuda_runtime", text, start, end, thread, Args(correlation=_int(correlation)))

    def _kernel(self, row: Sequence[Any]) -> Event | None:
        start, end, device, stream, correlation, demangled, short = row
        name = self._strings[demangled] or self._strings[short]
        return _event("kernel", name, start, end, 0, _on_device(device, stream, correlation))

    def _copy(self, row: Sequence[Any]) -> Event | None:
        start, end, device, stream, correlation, size, kind = row
        name = f"Memcpy {_COPIES[kind]}" if kind in _COPIES else "Memcpy"
        return _event("gpu_memcpy", name, start, end, 0, _on_device(device, stream, correlation, size))

    def _set(self, row: Sequence[Any]) -> Event | None:
        start, end, device, stream, correlation, size = row
        return _event("gpu_memset", "Memset", start, end, 0, _on_device(device, stream, correlation, size))

    def _graph(self, row: Sequence[Any]) -> Event | None:
        start, end, device, stream, correlation, graph = row
        return _event("kernel", f"CUDA graph {graph}", start, end, 0, _on_device(device, stream, correlation))


class _Strings(dict[Any, str]):
    """StringIds, each looked up when it is first asked for; "" for what is not there."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection
        self._exists = {"id", "value"} <= schema.columns_of(connection, schema.STRINGS)

    def __missing__(self, number: Any) -> str:
        row = None
        if len(self) >= _MAX_STRINGS:
            self.clear()
        if self._exists and isinstance(number, int):
            query = f"SELECT value FROM {schema.STRINGS} WHERE id = ?"
            row = self._connection.execute(query, (number,)).fetchone()
        text = self[number] = row[0] if row and isinstance(row[0], str) else ""
        return text

    def either(self, text: Any, number: Any) -> str:
        """A text that is in the row itself, or the one its number points to."""
        return text if isinstance(text, str) and text else self[number]


def _event(category: str, name: str, start: Any, end: Any, thread: Any, args: Args = NO_ARGS) -> Event | None:
    """A complete event; None where it has no usable times, as a range that was still open at the end."""
    if not (
        isinstance(start, int) and isinstance(end, int) and isinstance(thread, int) and 0 <= start <= end
    ):
        return None
    pid, tid = (thread >> _PID_SHIFT) & _ID_MASK, thread & _ID_MASK
    return Event("X", category, name, pid, tid, _us(start), _us(end - start), args)


def _us(ns: int) -> Raw:
    return Raw(b"%d.%03d" % divmod(ns, 1000))


def _on_device(device: Any, stream: Any, correlation: Any, size: Any = None) -> Args:
    num_bytes = Raw(b"%d" % size) if isinstance(size, int) else Raw()
    return Args(device=_int(device), stream=_int(stream), correlation=_int(correlation), num_bytes=num_bytes)


def _int(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _meaning(text: str) -> tuple[str, str, Args]:
    """(category, name, arguments) of an NVTX range, as Kineto has them."""
    for pattern in _LAYERS if text.startswith(("{", "[")) else ():
        layer = pattern.match(text)
        if layer:
            return NVTX_CATEGORY, layout.MARK_LAYER + layer["layer"], NO_ARGS
    emitted = _EMITTED.match(text)
    if emitted is None:
        return NVTX_CATEGORY, text, NO_ARGS
    name, sequence = emitted["name"], int(emitted["sequence"] or -1)
    kind = operator_class(name)
    if (
        sequence < 0
        and kind not in (HostClass.OPERATOR, HostClass.NODE)
        and not name.startswith(BACKWARD_WRAPPER)
    ):
        return NVTX_CATEGORY, name, NO_ARGS
    # The sequence number of a backward node is that of the forward operator that made it.
    is_backward = kind == HostClass.NODE or name.startswith(BACKWARD_WRAPPER)
    return "cpu_op", name, Args(sequence=sequence, forward_thread=1 if is_backward else -1)


def _message(payload: str) -> Args:
    """The size in the payload of a range of NCCL's: what one rank gives, of a reduce_scatter what it gets."""
    try:
        fields = msgspec.json.decode(payload.encode())
    except ValueError:
        return NO_ARGS
    sizes = [
        value
        for key, value in (fields.items() if isinstance(fields, dict) else ())
        if key.lower().startswith("message size") and isinstance(value, int) and 0 <= value < 1 << 62
    ]
    return Args(num_bytes=Raw(b"%d" % sizes[0])) if sizes else NO_ARGS
