"""The history: an SQLite file in the project, for as many runs as there will ever be.

A rollback journal, not a write-ahead log: that needs shared memory, which network file systems have not.
Fingerprints are compared by their fields, not by the stored key: a later perfscope may know a field more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.store.entries import (
    BaselineEntry,
    check_name,
    check_put,
    digest,
    identity,
    in_order,
    is_storable,
    summarize,
)
from perfscope.gate.store.errors import BaselineError, shown
from perfscope.gate.store.json_file import missing, read_regular
from perfscope.gate.store.locking import TIMEOUT_S, posix_lock_holder
from perfscope.gate.store.shareable import decode_run, encode_run, shareable

APPLICATION_ID = 0x50536742  # "PSgB": tells our files from other programs'
_MAGIC = b"SQLite format 3\0"
# Columns for queries by hand and quick series; `figures` has everything.
_METRICS = (
    "step_p10",
    "step_mean",
    "stalls",
    "throughput",
    "input_wait",
    "exposed_comm",
    "peak_memory",
    "peak_device_memory",
    "energy",
)
# One tuple of statements for each schema version, in order; a published one never changes.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        """CREATE TABLE benchmarks (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            key TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            UNIQUE (name, key)
        )""",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY,
            benchmark INTEGER NOT NULL REFERENCES benchmarks (id) ON DELETE CASCADE,
            identity TEXT NOT NULL,
            start_unix_ns INTEGER,
            "commit" TEXT NOT NULL,
            figures TEXT NOT NULL,
            """
        + ", ".join(f"{name} REAL" for name in _METRICS)
        + """,
            UNIQUE (benchmark, identity)
        )""",
        "CREATE INDEX runs_by_start ON runs (benchmark, start_unix_ns)",
    ),
)
SCHEMA_VERSION = len(MIGRATIONS)
_INSERT = (
    f'INSERT INTO runs (benchmark, identity, start_unix_ns, "commit", figures, {", ".join(_METRICS)}) '
    f"VALUES ({', '.join('?' * (5 + len(_METRICS)))})"
)


class SqliteStore:
    """A history file; see `entries.Store`.

    Args:
        path: the file.
        create: a file that is missing or empty is made.
        timeout_s: how long another process's write is waited for.

    Raises:
        BaselineError: there is no history that can be read.
    """

    def __init__(self, path: Path, *, create: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._create = create
        with self._open() as connection:
            connection.execute("SELECT count(*) FROM benchmarks").fetchone()

    @property
    def path(self) -> Path:
        return self._path

    def entries(self) -> tuple[BaselineEntry, ...]:
        with self._open() as connection:
            entries = [_entry(connection, *row) for row in _benchmarks(connection)]
        return tuple(sorted(entries, key=lambda entry: (entry.name, entry.key)))

    def find(self, name: str, fingerprint: Fingerprint) -> BaselineEntry | None:
        with self._open() as connection:
            for row in _benchmarks(connection, name):
                if row[2] == fingerprint:
                    return _entry(connection, *row)
        return None

    def nearest(self, name: str) -> tuple[BaselineEntry, ...]:
        matching = (entry for entry in self.entries() if entry.name == name)
        return tuple(sorted(matching, key=lambda entry: -entry.num_runs))

    def runs(self, name: str, key: str) -> tuple[RunFigures, ...]:
        with self._open() as connection:
            for id_, _, fingerprint in _benchmarks(connection, name):
                if fingerprint.key == key:
                    rows = connection.execute("SELECT figures FROM runs WHERE benchmark = ?", (id_,))
                    return tuple(in_order(_decoded(text, fingerprint) for (text,) in rows))
        return ()

    def put(
        self, name: str, runs: Sequence[RunFigures], *, keep: int | None = None, replace: bool = False
    ) -> BaselineEntry:
        check_name(name)
        new = in_order(shareable(run) for run in runs)
        fingerprint = check_put(new, keep)
        rows = [_row(run) for run in new]
        with self._open(writing=True) as connection:
            id_ = _benchmark_id(connection, name, fingerprint)
            if replace:
                connection.execute("DELETE FROM runs WHERE benchmark = ?", (id_,))
            for row in rows:
                connection.execute("DELETE FROM runs WHERE benchmark = ? AND identity = ?", (id_, row[0]))
                connection.execute(_INSERT, (id_, *row))
            if keep is not None:
                connection.execute(
                    "DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE benchmark = ? "
                    "ORDER BY coalesce(start_unix_ns, -1) DESC, identity DESC LIMIT -1 OFFSET ?)",
                    (id_, keep),
                )
            return _entry(connection, id_, name, fingerprint)

    @contextmanager
    def _open(self, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection, in a transaction that is committed at the end. Raises BaselineError."""
        start = read_regular(self._path, len(_MAGIC))
        name = shown(self._path)
        if start is None and not self._create:
            raise BaselineError(missing(self._path))
        if start == b"" and not self._create:
            raise BaselineError(f"{name} is empty; delete it and make it with `perfscope baseline update`")
        if start and start != _MAGIC:
            raise BaselineError(f"{name} is no SQLite file; a baseline's name must end in .json instead")
        try:
            with closing(_connect(self._path, create=not start, timeout_s=self._timeout_s)) as connection:
                _migrate(connection, self._path)
                connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                _check_sound(connection, self._path)
                yield connection
                connection.execute("COMMIT")  # without it, closing rolls back
        except (sqlite3.Error, sqlite3.Warning, ValueError, RecursionError) as error:
            raise BaselineError(self._what_failed(error, writing=writing)) from error

    def _what_failed(self, error: Exception, *, writing: bool) -> str:
        name, text = shown(self._path), shown(str(error))
        if not isinstance(error, sqlite3.OperationalError) or "malformed" in text:
            return (
                f"{name} is damaged ({text}): restore it from a copy, or move it away and begin anew with "
                "`perfscope baseline update`"
            )
        action = "write" if writing or self._create else "read"
        if "locked" in text:
            return (
                f"cannot {action} {name}: {posix_lock_holder(self._path)} has kept it locked for more than "
                f"{self._timeout_s:g} s; nothing was changed, try again when it has ended"
            )
        return f"cannot {action} {name}: {text}; nothing was changed"


def _connect(path: Path, *, create: bool, timeout_s: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()), errors='surrogateescape')}?mode={'rwc' if create else 'rw'}"
    connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        # FULL, and the directory's entry of the journal as well: a put that returned survives a power cut.
        connection.execute("PRAGMA synchronous = EXTRA")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date. Raises BaselineError: it is newer, or not ours."""
    if _version(connection, path) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for statements in MIGRATIONS[_version(connection, path) :]:  # again: another process may have been faster
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version = _number(connection, "PRAGMA user_version")
    num_tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if num_tables and _number(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise BaselineError(f"{shown(path)} is an SQLite file of another program; name another file")
    if version > SCHEMA_VERSION:
        raise BaselineError(
            f"{shown(path)} was written by a newer perfscope (schema {version}, this one knows "
            f"{SCHEMA_VERSION}); update perfscope"
        )
    return version


def _check_sound(connection: sqlite3.Connection, path: Path) -> None:
    """Of a file with pages missing or torn, SQLite gives what it finds, and writes into it all the same."""
    if path.stat().st_size % _number(connection, "PRAGMA page_size"):
        raise sqlite3.DatabaseError("its last page is cut off")
    answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if answer != "ok":
        raise sqlite3.DatabaseError(answer.splitlines()[-1])


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])


def _benchmarks(
    connection: sqlite3.Connection, name: str | None = None
) -> list[tuple[int, str, Fingerprint]]:
    if name is not None and not is_storable(name):
        return []
    condition, values = ("", ()) if name is None else (" WHERE name = ?", (name,))
    rows = connection.execute(f"SELECT id, name, fingerprint FROM benchmarks{condition} ORDER BY id", values)
    return [
        (id_, stored_name, msgspec.json.decode(text, type=Fingerprint))
        for id_, stored_name, text in rows.fetchall()
    ]


def _benchmark_id(connection: sqlite3.Connection, name: str, fingerprint: Fingerprint) -> int:
    for id_, _, stored in _benchmarks(connection, name):
        if stored == fingerprint:
            return id_
    text = msgspec.json.encode(fingerprint).decode()
    done = connection.execute(
        "INSERT INTO benchmarks (name, key, fingerprint) VALUES (?, ?, ?)", (name, fingerprint.key, text)
    )
    return int(done.lastrowid or 0)


def _entry(connection: sqlite3.Connection, id_: int, name: str, fingerprint: Fingerprint) -> BaselineEntry:
    # From the figures: the columns beside them are for queries by hand, and have no checksum.
    rows = connection.execute(
        "SELECT figures FROM runs WHERE benchmark = ? ORDER BY coalesce(start_unix_ns, -1), identity", (id_,)
    )
    digests = [digest(_decoded(text, fingerprint)) for (text,) in rows.fetchall()]
    return summarize(name, fingerprint, digests)


def _decoded(text: object, fingerprint: Fingerprint) -> RunFigures:
    """Raises ValueError: damaged, or in another entry than it belongs to."""
    if not isinstance(text, str):
        raise ValueError("a run's figures are no text")
    run = decode_run(text)
    if run.fingerprint != fingerprint:
        raise ValueError("a run is stored under a fingerprint that is not its own")
    return run


def _row(run: RunFigures) -> tuple[object, ...]:
    around = run.surroundings
    metrics = (run.metrics.get(name) for name in _METRICS)
    return (identity(run), around.start_unix_ns, around.commit, encode_run(run), *metrics)
