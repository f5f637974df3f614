"""One small database per process, of one that nsys exported: the rows and columns that are read.

nsys records the environment of the profiled processes, which may hold secrets: the rest is not copied.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from perfscope.errors import TraceError
from perfscope.ingest.formats import nsys_schema as schema


def copy_process(path: Path, process: int | None, target: Path) -> None:
    """Write the rows of one process to `target`, a new database.

    Raises:
        TraceError: it cannot be read, or nothing tells its processes apart.
    """
    with schema.opened(path) as source:
        is_only = len(processes(source)) == 1
        selections = {name: _selection(source, name, process, is_only) for name in schema.EVENTS}
    target.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(target, uri=True, isolation_level=None)) as copy:
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            copy.execute("PRAGMA trusted_schema = OFF")
            copy.execute("ATTACH ? AS source", (f"{path.absolute().as_uri()}?mode=ro&immutable=1",))
            _copy_events(copy, {name: sql for name, sql in selections.items() if sql}, process)
            _copy_facts(copy, process)
    except schema.DAMAGE as error:
        raise TraceError(f"{path}: cannot be copied ({schema.reason_of(error)})") from None


def processes(connection: sqlite3.Connection) -> list[int]:
    """Process ids in the order of their first GPU.

    Processes with work on a device; where there is none those with NVTX ranges, else those with CUDA calls.
    """
    for tables in (schema.DEVICE_TABLES, (schema.NVTX,), (schema.RUNTIME,)):
        first_device: dict[int, int] = {}
        for table in tables:
            columns = schema.columns_of(connection, table)
            if not columns.issuperset(schema.EVENTS[table].needed):
                continue
            column = schema.EVENTS[table].process
            process = schema.process_of(column) if column in columns else "0"
            device = "min(deviceId)" if "deviceId" in columns else "0"
            for pid, index in connection.execute(f"SELECT {process}, {device} FROM {table} GROUP BY 1"):
                if isinstance(pid, int) and isinstance(index, int):
                    first_device[pid] = min(index, first_device.get(pid, index))
        if first_device:
            gpus = _gpus(connection)
            return sorted(
                first_device, key=lambda pid: (gpus.get((pid, first_device[pid]), first_device[pid]), pid)
            )
    return []


def _gpus(connection: sqlite3.Connection) -> dict[tuple[int, int], int]:
    """(process, its CUDA device) -> GPU of the machine: CUDA_VISIBLE_DEVICES renumbers them."""
    if not {"pid", "cudaId", "gpuId"} <= schema.columns_of(connection, schema.DEVICES):
        return {}
    rows = connection.execute(f"SELECT pid, cudaId, gpuId FROM {schema.DEVICES}")
    return {(pid, device): gpu for pid, device, gpu in rows if isinstance(gpu, int)}


def mpi_ranks(connection: sqlite3.Connection) -> dict[int, int]:
    if not {"globalTid", "rank"} <= schema.columns_of(connection, schema.MPI):
        return {}
    rows = connection.execute(f"SELECT {schema.process_of('globalTid')}, rank FROM {schema.MPI}")
    return {pid: rank for pid, rank in rows if isinstance(rank, int) and 0 <= rank < 10**7}


def _selection(connection: sqlite3.Connection, name: str, process: int | None, is_only: bool) -> str | None:
    """SQL for one process's rows of a table of events; None where the file has no such table.

    Raises:
        TraceError: nothing tells the processes of the file apart.
    """
    table, columns = schema.EVENTS[name], schema.columns_of(connection, name)
    if not columns:
        return None
    chosen = ", ".join(f'"{column}"' for column in (*table.needed, *table.optional) if column in columns)
    if table.process in columns:
        return f"SELECT {chosen} FROM source.{name} WHERE {schema.process_of(table.process)} = {process}"
    if not is_only:
        raise TraceError(
            f"{name} has no column {table.process}: the processes of the file cannot be distinguished"
        )
    return f"SELECT {chosen} FROM source.{name}"


def _copy_events(copy: sqlite3.Connection, selections: dict[str, str], process: int | None) -> None:
    pointers = []
    for name, sql in selections.items():
        copy.execute(f"CREATE TABLE {name} AS {sql}")
        present = schema.columns_of(copy, name)
        strings = (column for column in schema.EVENTS[name].strings if column in present)
        pointers += [f"SELECT {column} FROM main.{name}" for column in strings]
    copy.execute(f"CREATE TABLE {schema.STRINGS} (id INTEGER PRIMARY KEY, value TEXT)")
    if pointers and {"id", "value"} <= _source_columns(copy, schema.STRINGS):
        copy.execute(
            f"INSERT OR IGNORE INTO {schema.STRINGS} SELECT id, value FROM source.{schema.STRINGS} "
            f"WHERE id IN ({' UNION '.join(pointers)})"
        )


def _copy_facts(copy: sqlite3.Connection, process: int | None) -> None:
    """The few rows about the machine and the session that are read."""
    for table, columns, where in (
        (schema.SESSION, ("utcEpochNs",), "1"),
        (schema.VERSION, ("name", "value"), "name = 'EXPORT_SCHEMA_VERSION'"),
        (schema.HOST, ("name", "value"), "name = 'Hostname'"),
        (schema.GPUS, ("id", "name"), "1"),
        (schema.DEVICES, ("pid", "cudaId", "gpuId"), f"pid = {process}"),
    ):
        if _source_columns(copy, table).issuperset(columns):
            chosen = ", ".join(columns)
            copy.execute(f"CREATE TABLE {table} AS SELECT {chosen} FROM source.{table} WHERE {where}")


def _source_columns(copy: sqlite3.Connection, table: str) -> frozenset[str]:
    return schema.columns_of(copy, table, "source")
