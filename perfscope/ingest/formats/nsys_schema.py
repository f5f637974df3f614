"""What is read of a database of `nsys export --type sqlite`, and how it is opened.

Schema: "SQLite Schema Reference" of the Nsight Systems documentation. nsys creates a table with its first
row, so a missing table means that nothing of its kind was recorded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from perfscope.errors import TraceError

KNOWN_MAJOR_VERSIONS = ("2", "3")
KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")
)
NVTX, STRINGS = "NVTX_EVENTS", "StringIds"
SESSION, VERSION, HOST, GPUS = (
    "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_EXPORT",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_GPU",
)
DEVICES, MPI = "TARGET_INFO_CUDA_DEVICE", "MPI_RANKS"
# sqlite3's own messages quote damaged bytes, which are no text.
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
PUSH_POP_RANGE, START_END_RANGE, DOMAIN = 59, 60, 75  # NVTX_EVENTS.eventType


class SqliteTable(Struct, frozen=True):
    """The columns of one table of events that are read.

    Attributes:
        process: column whose bits 24 to 47 are the process id.
        needed: columns without which the table is of no use.
        optional: others; NULL where the schema has none.
        strings: those of both that point into StringIds.
    """

    process: str
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    strings: tuple[str, ...] = ()


_ON_DEVICE = ("start", "end", "deviceId", "streamId")
EVENTS = {
    KERNEL: SqliteTable(
        "globalPid",
        _ON_DEVICE,
        ("correlationId", "demangledName", "shortName"),
        ("demangledName", "shortName"),
    ),
    MEMCPY: SqliteTable("globalPid", _ON_DEVICE, ("correlationId", "bytes", "copyKind")),
    MEMSET: SqliteTable("globalPid", _ON_DEVICE, ("correlationId", "bytes")),
    GRAPH: SqliteTable("globalPid", _ON_DEVICE, ("correlationId", "graphId")),
    RUNTIME: SqliteTable(
        "globalTid", ("start", "end", "globalTid", "correlationId", "nameId"), (), ("nameId",)
    ),
    NVTX: SqliteTable(
        "globalTid",
        ("start", "end", "eventType", "globalTid"),
        ("text", "textId", "domainId", "jsonText", "jsonTextId"),
        ("textId", "jsonTextId"),
    ),
}
DEVICE_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH)


def process_of(column: str) -> str:
    """SQL for the process id in a globalPid or globalTid: hardware 8 bits, VM 8, process 24, thread 24."""
    return f"(({column} >> 24) & 0xFFFFFF)"


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A database from anywhere, read-only and without running anything that its schema defines.

    Raises:
        TraceError: it is no database, or damaged, wherever in the block that shows.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise TraceError(f"{path}: cannot be opened ({error})") from None
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection
    except DAMAGE as error:
        raise TraceError(
            f"{path}: cannot be read as a database of nsys export ({reason_of(error)})"
        ) from None
    finally:
        connection.close()


def reason_of(error: Exception) -> str:
    """What went wrong with a database, as one line."""
    return "its schema is damaged" if isinstance(error, UnicodeDecodeError) else " ".join(str(error).split())


def columns_of(connection: sqlite3.Connection, table: str, database: str = "main") -> frozenset[str]:
    """The columns of a table; empty where there is none. Views and virtual tables are no tables here."""
    row = connection.execute(
        f"SELECT sql FROM {database}.sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchone()
    if row is None or not str(row[0]).upper().startswith("CREATE TABLE"):
        return frozenset()
    return frozenset(
        str(column[1]) for column in connection.execute(f"PRAGMA {database}.table_info({table})")
    )


def schema_version(connection: sqlite3.Connection) -> str | None:
    """The version of the export's schema, e.g. "3.15.1"; None where the file does not say."""
    if not {"name", "value"} <= columns_of(connection, VERSION):
        return None
    query = f"SELECT value FROM {VERSION} WHERE name = 'EXPORT_SCHEMA_VERSION'"
    row = connection.execute(query).fetchone()
    return str(row[0]) if row else None
