"""Reads a run directory, whatever state a crash left it in.

What can be read is given; what cannot is counted in `RunReader.notes`, never passed over in silence. Only a
directory that holds no run at all is an error. Files are read when asked for, one rank at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from perfscope.errors import RunDirectoryError, UnreadableFileError
from perfscope.rundir import layout, seal
from perfscope.rundir.attempts import Attempt, all_attempts, choose
from perfscope.rundir.documents import Document, is_too_deep, parse_document
from perfscope.rundir.hangs import HangRecord, read_hangs
from perfscope.rundir.host_records import CeilingsRecord, StacksRecord, TopologyRecord, with_document
from perfscope.rundir.inventory import INVENTORY, by_folder, is_read, mark_of
from perfscope.rundir.last_layers import LastLayers
from perfscope.rundir.links import refuse_links
from perfscope.rundir.manifest import locate, read_manifest
from perfscope.rundir.migrations import migrate
from perfscope.rundir.opening import (
    MAX_DOCUMENT_BYTES,
    MAX_LINES_BYTES,
    read_bounded,
    reason_of,
)
from perfscope.rundir.rank_lines import RankLines
from perfscope.rundir.records import LayersRecord, RankRecord, decode_run
from perfscope.rundir.rows import Row, decode_lines, without_impossible
from perfscope.rundir.samples import HostSamples, read_samples
from perfscope.rundir.schema import STEPS, TIMELINE
from perfscope.rundir.scheme_records import BenchRecord
from perfscope.rundir.scrapes import with_scrapes
from perfscope.rundir.steps_ahead import StepsAhead
from perfscope.rundir.timeline_columns import TimelineColumns, nulls
from perfscope.rundir.typed import decode_record, read_as
from perfscope.rundir.window_records import ProbeError, WindowSummary

_T = TypeVar("_T", bound=Struct)

_UNVERIFIED = "carries no checksum, which it should: whether it is as it was written is not known"
_SHORT_ROWS = 1 << 16  # of a timeline
_GONE = "the run had this file when it was closed; it is not there any more"

# Step columns in a file, beside `rank`, which is the directory's.
_STEP_COLUMNS = tuple((field.name, field.type) for field in STEPS if field.name != "rank")


class ReadNote(Struct, frozen=True, kw_only=True):
    """Something of a run that could not be used."""

    path: str  # relative to the run directory
    num_dropped: int  # lines, or 1 for a whole file
    reason: str


class RunReader(RankLines):
    """A run directory, its `latest` link, or the path of its run.json.

    Args:
        path: which.
        ranks: whose files are read, and no others'; None = all. Those that are not there are left out.

    Raises:
        RunDirectoryError: not there, no run, unreadable, broken run.json, a newer schema, or
            a symbolic link in it.
    """

    def __init__(self, path: Path | str, ranks: Collection[int] | None = None) -> None:
        self.path = locate(Path(path))
        refuse_links(self.path)
        self._wanted = None if ranks is None else frozenset(ranks)
        manifest, has_checksum = read_manifest(self.path)
        document = migrate(manifest, str(self.path))
        self._is_sealed = document.pop(seal.SEALS, None) is not None
        inventory = document.pop(INVENTORY, None)
        marks = inventory.items() if isinstance(inventory, dict) else ()
        self._inventory: Document = {name: mark for name, mark in marks if self._is_wanted(name)}
        self._notes: dict[tuple[str, str], ReadNote] = {}
        self.run, damaged = decode_run(document)
        self._note_damaged(self.path / layout.RUN_JSON, damaged)
        self._summaries: tuple[WindowSummary, ...] | None = None
        self._by_rank: dict[int, list[WindowSummary]] | None = None
        self._steps_ahead = StepsAhead()
        self._last_layers = LastLayers()
        self._folders: dict[int, Path] = {}  # rank -> the attempt that is shown
        self.rank_records: Mapping[int, RankRecord] = self._read_rank_records()
        self.ranks: tuple[int, ...] = tuple(sorted(self.rank_records))
        hosts = self.path / layout.HOSTS
        self.hosts: tuple[str, ...] = tuple(sorted(p.name for p in hosts.glob("*") if p.is_dir()))
        if self._is_sealed and not has_checksum:
            self._note(self.path / layout.RUN_JSON, 0, _UNVERIFIED)
        self._inventory_of = by_folder(self._inventory)
        self._note_absent()

    def part(self, ranks: Sequence[int]) -> RunReader:
        """The same run with these ranks only and without notes, to be pickled; nothing is read again."""
        part = RunReader.__new__(RunReader)
        part.__dict__.update(self.__dict__)
        part.ranks = tuple(sorted(ranks))
        part.rank_records = {rank: self.rank_records[rank] for rank in part.ranks}
        part._folders = {rank: self._folders[rank] for rank in part.ranks}
        part._summaries = tuple(summary for rank in part.ranks for summary in self._of_rank(rank))
        part._by_rank = None
        part._inventory_of = {
            name: self._inventory_of[name]
            for folder in part._folders.values()
            if (name := folder.name) in self._inventory_of
        }
        part._inventory = {name: mark for of in part._inventory_of.values() for name, mark in of.items()}
        part._notes, part._steps_ahead, part._last_layers = {}, StepsAhead(), LastLayers()
        return part

    def add_notes(self, notes: Iterable[ReadNote]) -> None:
        """Takes the notes of a `part` that was read elsewhere."""
        self._notes.update({(note.path, note.reason): note for note in notes})

    @property
    def notes(self) -> tuple[ReadNote, ...]:
        """What has been dropped by the reads so far, by path."""
        return tuple(self._notes[key] for key in sorted(self._notes))

    def layers(self, rank: int) -> LayersRecord | None:
        """layers.json, or None when the rank has none; one record for consecutive ranks of one model."""
        path = self.rank_folder(rank) / layout.LAYERS_JSON
        document = self._document(path, self._seal(rank, layout.LAYERS_JSON))
        if document is None:
            return None
        record, rows = self._last_layers.record(document), document.get("layers")
        if lost := (len(rows) if isinstance(rows, list) else 1) - len(record.layers):
            self._note(path, lost, f"{lost:,} of its entries cannot be read as a layer")
        return record

    def bench_records(self) -> dict[int, BenchRecord]:
        """bench.json of a bench run by rank, of ranks that no probe reached, too; empty for other runs."""
        records: dict[int, BenchRecord] = {}
        for path in sorted((self.path / layout.RANKS).glob(f"*/{layout.BENCH_JSON}")):
            name = path.parent.name
            document = self._document(path) if name.isdigit() else None
            record = self._record(BenchRecord, path, document)
            if record is not None:
                records[int(name)] = record
        return records

    def windows(self, rank: int) -> tuple[Document, ...]:
        """Lines of windows.jsonl: one per traced window. What is listed and lost becomes a note."""
        listed = self._lines(rank, layout.WINDOWS_JSONL)
        self._note_other_traces(rank)
        ingested = {summary.window for summary in self._of_rank(rank)}
        for line in listed:
            window = line.get("window")
            if type(window) is not int or window in ingested:
                continue
            file = line.get("file")
            name = file.rpartition("/")[2] if isinstance(file, str) else f"{window}{layout.KINETO}"
            path = self.rank_folder(rank) / layout.WINDOWS / name
            packed = path.with_name(f"{path.name}.gz")
            if not path.exists() and not packed.exists():
                self._note(packed, 1, "this window is listed in windows.jsonl, but its trace is not there")
        return listed

    def errors(self, rank: int) -> tuple[ProbeError, ...]:
        """Lines of errors.jsonl: what a probe swallowed."""
        return tuple(read_as(ProbeError, line) for line in self._lines(rank, layout.ERRORS_JSONL))

    def steps(self, rank: int) -> pa.Table:
        """The rank's steps as schema.STEPS, in file order.

        A run has them from steps.jsonl (monotonic clock). An imported trace has no such file: its steps are
        the marks found by ingest (trace clock), without the always-on columns.
        """
        path = self.rank_folder(rank) / layout.STEPS_JSONL
        if path.exists():
            columns = self._step_columns(rank, path)
            num_rows = len(columns["step"]) if columns else 0
            self._note_lost_steps(rank, num_rows)
        else:
            rows = _marked_steps(self._of_rank(rank))
            num_rows, names = len(rows), ("step", "start_ns", "dur_ns", "window")
            columns = {
                name: pa.array([row[at] for row in rows], STEPS.field(name).type)
                for at, name in enumerate(names)
            }
            if rows and not self.run.is_imported:
                self._note(path, 1, "not there: the rank's step times are those of its traced windows alone")
        arrays: list[pa.Array | pa.ChunkedArray] = [pa.repeat(pa.scalar(rank, pa.int32()), num_rows)]
        for name, kind in _STEP_COLUMNS:
            column = columns.get(name)
            column = nulls(num_rows, kind) if column is None else column
            arrays.append(column if column.type == kind else column.cast(kind))
        table, wrong = without_impossible(pa.Table.from_arrays(arrays, schema=STEPS))
        for what, number in wrong.items():
            self._note(path, number, what)
        return table

    def _note_lost_steps(self, rank: int, num_rows: int) -> None:
        """A rank that ended counted its steps; a rank that was killed wrote what it could."""
        record, path = self.rank_records[rank], self.rank_folder(rank) / layout.STEPS_JSONL
        counted, written = record.num_steps, path.relative_to(self.path).as_posix()
        if not record.finished or counted is None or num_rows == counted:
            return
        if not any(note.path == written for note in self._notes.values()):
            reason = f"{num_rows:,} of the {counted:,} steps that the rank counted are there"
            if num_rows > counted:
                reason = f"{num_rows:,} steps are there; the rank counted {counted:,}"
            self._note(path, max(0, counted - num_rows), reason)

    def summaries(self) -> tuple[WindowSummary, ...]:
        """What ingest says of each (rank, window), sorted so. Empty before ingest."""
        if self._summaries is None:
            folder = self.path / layout.DERIVED / layout.INGEST
            usable = [
                self._record(WindowSummary, path, document)
                for path in sorted(folder.glob("*.json"), key=attrgetter("name"))  # three times as fast
                if self._is_wanted(f"{layout.RANKS}/{_rank_of(path)}/")
                and (document := self._document(path)) is not None
                and type(document.get("rank")) is int
                and type(document.get("window")) is int
            ]
            current = [summary for summary in usable if summary is not None and self._is_shown(summary)]
            self._summaries = tuple(sorted(current, key=lambda summary: (summary.rank, summary.window)))
        return self._summaries

    def _of_rank(self, rank: int) -> Sequence[WindowSummary]:
        """`summaries` of one rank."""
        if self._by_rank is None:
            self._by_rank = defaultdict(list)
            for summary in self.summaries():
                self._by_rank[summary.rank].append(summary)
        return self._by_rank.get(rank, ())

    def _is_wanted(self, name: str) -> bool:
        """Whether a file, relative to the run, is of a rank that is read, or of none."""
        folder = name.split("/")[1] if name.startswith(f"{layout.RANKS}/") else ""
        rank = folder.partition(".")[0]
        return self._wanted is None or not rank.isdecimal() or int(rank) in self._wanted

    def topology(self, host: str) -> TopologyRecord | None:
        """topology.json of a host in `hosts`, or None."""
        path = self._host_file(host, layout.TOPOLOGY_JSON)
        document = self._document(path)
        return self._record(TopologyRecord, path, with_document(document) if document is not None else None)

    def ceilings(self, host: str) -> CeilingsRecord | None:
        """ceilings.json of a host, or None."""
        path = self._host_file(host, layout.CEILINGS_JSON)
        return self._record(CeilingsRecord, path, self._document(path))

    def stacks(self, host: str) -> StacksRecord | None:
        """The speedscope file of a host, or None."""
        path = self._host_file(host, layout.STACKS_JSON)
        return self._record(StacksRecord, path, self._document(path))

    def hangs(self, host: str) -> tuple[HangRecord, ...]:
        """Ranks that made no step for long, as the `perfscope run` of a host noticed."""
        path = self._host_file(host, layout.HANGS_JSONL)
        return read_hangs(self._json_lines(path, self._line_bytes(path, None)))

    def samples(self, host: str) -> HostSamples | None:
        """Hardware counters of a host; None when none were recorded."""
        path = self._host_file(host, layout.SAMPLES_JSONL)
        scrapes = self._host_file(host, layout.SCRAPES_JSONL)
        try:
            samples = read_samples(path, host)
        except FileNotFoundError:
            return with_scrapes(None, scrapes, host, self._note)
        except (OSError, UnreadableFileError) as error:
            why = error.reason if isinstance(error, UnreadableFileError) else reason_of(error)
            self._note(path, 1, f"cannot be read: {why}")
            return None
        sealed = self._document(self._host_file(host, layout.SAMPLES_SEAL))
        files = sealed.get(seal.FILES) if sealed is not None else None
        of_samples = files.get(layout.SAMPLES_JSONL) if isinstance(files, dict) else None
        if sealed is not None and (reason := seal.difference(of_samples, samples.seal)):
            self._note(path, 0, reason)
        if samples.num_dropped:
            reason = "lines that cannot be read (the last is torn when the sampler is killed)"
            self._note(path, samples.num_dropped, reason)
        return with_scrapes(samples, scrapes, host, self._note)

    def sampler_error(self, host: str) -> str:
        """What kept this host's sampler from starting; "" where nothing did."""
        error = self._host_file(host, layout.SAMPLER_ERROR)
        return error.read_text("utf-8", "replace").strip() if error.is_file() else ""

    def _host_file(self, host: str, name: str) -> Path:
        return self.path / layout.HOSTS / host / name

    def timeline(self, rank: int, window: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The timeline of one rank and window, schema.TIMELINE or the columns asked for.

        Raises:
            RunDirectoryError: ingest has not written it, or it cannot be read.
        """
        return self._timeline(rank, window, TIMELINE.names if columns is None else columns, as_table=True)

    def timeline_columns(self, rank: int, window: int, columns: Sequence[str]) -> pa.Table | TimelineColumns:
        """The same; a column is decoded when it is asked for, where the file is known to be whole."""
        return self._timeline(rank, window, columns, as_table=False)

    def _timeline(self, rank: int, window: int, columns: Sequence[str], *, as_table: bool) -> Any:
        path = self.path / layout.DERIVED / layout.TIMELINE / f"rank-{rank:05d}-window-{window:03d}.parquet"
        sealed = next((s.table for s in self._of_rank(rank) if s.window == window), None)
        try:
            data = read_bounded(path, MAX_LINES_BYTES)
            if sealed is not None and (damage := seal.damage(sealed, data)):
                raise UnreadableFileError(path, damage)
            table = TimelineColumns(data, columns)
            is_short = table.num_rows <= _SHORT_ROWS  # one call for all columns is faster there
            return table.decoded() if as_table or sealed is None or is_short else table
        except FileNotFoundError:
            reason = "is missing"
        except (OSError, KeyError, pa.ArrowException, UnreadableFileError) as error:
            why = error.reason if isinstance(error, UnreadableFileError) else reason_of(error)
            reason = f"cannot be read ({why})"
        folder = self.path / layout.DERIVED
        raise RunDirectoryError(f"{path} {reason}: delete {folder} and run `perfscope report` again")

    def rank_folder(self, rank: int) -> Path:
        """Where the rank's files are: those of the attempt that is shown."""
        return self._folders[rank]

    def _read_rank_records(self) -> dict[int, RankRecord]:
        """rank.json of every rank that has a usable one, in the order of the ranks."""
        records: dict[int, RankRecord] = {}
        try:
            attempts = all_attempts(self.path)
        except OSError as error:
            raise RunDirectoryError(
                f"{self.path / layout.RANKS} cannot be read: {reason_of(error)}"
            ) from None
        for rank, tried in attempts.items():
            if self._wanted is not None and rank not in self._wanted:
                continue
            chosen = choose(tried)
            self._folders[rank] = chosen.path
            self._note_others(chosen, tried)
            file = chosen.path / layout.RANK_JSON
            meta = self._document(file)
            version = meta.get("schema_version") if meta is not None else None
            if meta is None:
                self._note(file, 1, "no readable rank.json: left out")
            elif type(recorded_rank := meta.get("rank")) is int and recorded_rank != rank:
                self._note(file, 1, f"it is of rank {recorded_rank}: left out")
            elif isinstance(version, int) and version > layout.SCHEMA_VERSION:
                reason = (
                    f"made by a newer perfscope (schema {version}, this one reads up to "
                    f"{layout.SCHEMA_VERSION}): left out, upgrade perfscope to read it"
                )
                self._note(file, 1, reason)
            else:
                record, damaged = decode_record(RankRecord, meta)
                records[rank] = record
                self._note_damaged(file, damaged)
        return dict(sorted(records.items()))

    def _note_others(self, chosen: Attempt, tried: Sequence[Attempt]) -> None:
        """Attempts of a rank that nothing is shown of."""
        for attempt in tried:
            if attempt is not chosen:
                chosen_path = chosen.path.relative_to(self.path).as_posix()
                num_steps = attempt.count_steps()
                steps = f"{num_steps:,} step{'' if num_steps == 1 else 's'}"
                self._note(attempt.path, 0, f"{steps}, not shown; {chosen_path} is")

    def _is_shown(self, summary: WindowSummary) -> bool:
        """Whether a summary is of the rank's chosen attempt: an earlier report may have ingested another."""
        parts = summary.source.path.split("/")
        folder = self._folders.get(summary.rank)
        return folder is None or len(parts) < 3 or parts[0] != layout.RANKS or parts[1] == folder.name

    def _note(self, path: Path, num_dropped: int, reason: str) -> None:
        name = path.relative_to(self.path).as_posix()
        self._notes[name, reason] = ReadNote(path=name, num_dropped=num_dropped, reason=reason)

    def _note_damaged(self, path: Path, entries: Sequence[str]) -> None:
        if entries:
            self._note(
                path, 0, f"entries of a wrong type or an impossible value are left out: {', '.join(entries)}"
            )

    def _record(self, kind: type[_T], path: Path, document: Document | None) -> _T | None:
        """The document of `path` as a record, with a note of the entries that are not in it."""
        if document is None:
            return None
        record, damaged = decode_record(kind, document)
        self._note_damaged(path, damaged)
        return record

    def _seal(self, rank: int, name: str) -> object:
        """What rank.json says of a file beside it; None while the rank trains, and where it was killed."""
        return self.rank_records[rank].files.get(name)

    def _bytes(self, path: Path, limit: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        try:
            return read_bounded(path, limit)
        except FileNotFoundError:
            return None
        except UnreadableFileError as error:
            self._note(path, 1, f"cannot be read: {error.reason}")
            return None

    def _line_bytes(self, path: Path, sealed: object) -> bytes | None:
        """An append-only file, and a note if it is not what its rank wrote."""
        data = self._bytes(path, MAX_LINES_BYTES)
        reason = seal.damage(sealed, data) if data is not None and sealed is not None else None
        if reason is not None:
            self._note(path, 0, reason)
        return data

    def _document(self, path: Path, sealed: object = None) -> Document | None:
        """A JSON object; of a sealed run with a note where it carries no checksum. Damage is left out."""
        data = self._bytes(path)
        if data is None:
            return None
        try:
            parse = self._last_layers.parsed if path.name == layout.LAYERS_JSON else parse_document
            document, has_checksum = parse(data, path)
        except UnreadableFileError as error:
            self._note(path, 1, error.reason)
            return None
        reason = seal.damage(sealed, data) if sealed is not None else self._exchanged(path, data)
        if reason is not None:
            self._note(path, 1, reason)
            return None
        if self._is_sealed and not has_checksum:
            self._note(path, 0, _UNVERIFIED)
        return document

    def _exchanged(self, path: Path, data: bytes) -> str | None:
        """Why a document is not the one that was recorded at its place; None: it is, as far as is known."""
        mark = self._inventory.get(str(path).removeprefix(f"{self.path}/"))  # each rank's: not `relative_to`
        recorded = mark.get(seal.CHECKSUM) if isinstance(mark, dict) else None
        if recorded is None or recorded == seal.checksum_of(data):
            return None
        return "not the document that was recorded: another host's or rank's"

    def _note_absent(self) -> None:
        """Files that run.json or a rank.json names and that are gone; of a whole folder the first one."""
        paths = {self.path / name for name in self._inventory if f"/{layout.WINDOWS}/" not in name}
        for rank, record in self.rank_records.items():
            paths |= {self._folders[rank] / name for name in record.files}
        gone_folders = set()
        for path in sorted(paths, key=lambda path: (path.name != layout.RANK_JSON, path.parts)):
            if path.parent in gone_folders or path.exists():
                continue
            if not path.parent.is_dir():
                gone_folders.add(path.parent)
            self._note(path, 1, _GONE)

    def _note_other_traces(self, rank: int) -> None:
        """Traces of a rank that are gone, or are not those that were recorded."""
        folder = self.rank_folder(rank) / layout.WINDOWS
        prefix = f"{folder.relative_to(self.path).as_posix()}/"
        read = [summary.source for summary in self._of_rank(rank)]
        for name, mark in self._inventory_of.get(self.rank_folder(rank).name, {}).items():
            if not name.startswith(prefix):
                continue
            path = self.path / name
            if path.exists():
                if mark is not None and mark_of(path) != mark:
                    self._note(path, 0, "not the trace that was recorded: damaged, or another's")
            elif not path.with_suffix("").exists() and not is_read(name, read):
                self._note(path, 1, "the run had this trace when it was closed; it is not there any more")

    def _lines(self, rank: int, name: str) -> tuple[Document, ...]:
        path = self.rank_folder(rank) / name
        return self._json_lines(path, self._line_bytes(path, self._seal(rank, name)))

    def _json_lines(self, path: Path, data: bytes | None) -> tuple[Document, ...]:
        if data is None:
            return ()
        good, num_bad = decode_lines(data.splitlines(), msgspec.json.Decoder(Document))
        if num_bad:
            self._note(path, num_bad, "lines that are not JSON objects (torn by a crash?)")
        shallow = [document for document in good if not is_too_deep(document)]
        if len(shallow) < len(good):
            self._note(path, len(good) - len(shallow), "lines nested too deeply")
        return tuple(shallow)

    def _step_bytes(self, rank: int) -> bytes:
        path = self.rank_folder(rank) / layout.STEPS_JSONL
        return self._line_bytes(path, self._seal(rank, layout.STEPS_JSONL)) or b""

    def _step_columns(self, rank: int, path: Path) -> Mapping[str, pa.Array | pa.ChunkedArray]:
        steps = self._steps_ahead.of(rank, self.ranks, self._step_bytes)
        if not steps.num_processes:
            if steps.num_bad:
                self._note(path, steps.num_bad, "no header naming the columns")
            return {}
        if steps.num_processes > 1:
            self._note(path, 0, f"{steps.num_processes} processes wrote steps of this rank one after another")
        if steps.num_bad:
            reason = "step lines that cannot be read (the last is torn when a rank is killed)"
            self._note(path, steps.num_bad, reason)
        return steps.columns


def _rank_of(summary: Path) -> str:
    """By the name of its file."""
    return summary.name.removeprefix("rank-").partition("-")[0]


def _marked_steps(summaries: Iterable[WindowSummary]) -> list[Row]:
    """(step, start, duration, window) of the step marks ingest found in a rank's traces."""
    return [
        [step, start, end - start, summary.window]
        for summary in summaries
        if summary.is_marked
        for step, start, end in summary.steps
    ]
