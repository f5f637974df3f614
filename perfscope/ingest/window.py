"""Streamed events to one timeline table and its summary. Runs inside a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from perfscope.errors import UnreadableFileError
from perfscope.ingest.classify import HostClass, mark_text
from perfscope.ingest.collect import EventCollector
from perfscope.ingest.collectives import ProcessGroups
from perfscope.ingest.events import Event, ReadCounts
from perfscope.ingest.files import WindowFile, source_of
from perfscope.ingest.groups import CallGroups, find_groups, stream_groups
from perfscope.ingest.lanes import describe_lanes
from perfscope.ingest.metadata import Metadata
from perfscope.ingest.scopes import Scopes
from perfscope.ingest.spill import Spill
from perfscope.ingest.steps import Steps, main_lane
from perfscope.ingest.summary import IngestSummary
from perfscope.ingest.table import TimelineFile
from perfscope.ingest.timeline import TimelineBuilder
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.records import LayersRecord
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.steps import StepSource


class EventSource(Protocol):
    """A trace as lists of events, in any order. `counts` and `metadata` are complete after the last list."""

    counts: ReadCounts

    def __iter__(self) -> Iterator[list[Event]]: ...

    def metadata(self) -> Metadata:
        """What the trace says about itself."""
        ...


def ingest_events(file: WindowFile, source: EventSource) -> IngestSummary:
    """Stream one trace to its timeline, with bounded memory.

    Raises:
        TraceError: the trace cannot be used at all.
        OSError: the timeline cannot be written.
    """
    with Spill(file.table.parent) as spill:
        collector = EventCollector(spill)
        for events in source:
            collector.add(events)
        collector.close()
        summary = _Window(file, source.counts, source.metadata(), collector).write(spill)
    del collector
    pa.default_memory_pool().release_unused()  # malloc's too: the analysis needs other sizes of arrays
    return summary


def unusable_window(file: WindowFile, reason: str) -> IngestSummary:
    """An empty timeline and a summary that says why."""
    with Spill(file.table.parent) as spill:
        collector = EventCollector(spill)
        collector.close()
        return _Window(file, ReadCounts(notes=[reason], lost=True), Metadata(), collector).write(spill)


_SIGNS_OF_TRAINING = [HostClass.NODE, HostClass.WRAPPER, HostClass.OPTIMIZER, HostClass.ZERO_GRAD]
_SIGNS_OF_WORK = [HostClass.OPERATOR, HostClass.MODULE, HostClass.INFERENCE_STEP]


class _Window:
    """The second half of an ingest: all rows are in the spill."""

    def __init__(
        self,
        file: WindowFile,
        counts: ReadCounts,
        metadata: Metadata,
        collector: EventCollector,
    ) -> None:
        self._file = file
        self._counts = counts
        self._collector = collector
        self._metadata = metadata
        strings = collector.host_words
        self._facts = collector.facts
        marked = bool(self._facts.host_codes[:, HostClass.LAYER].any())
        self._use_modules = not marked and bool(self._facts.host_codes[:, HostClass.MODULE].any())
        self._steps = Steps(self._facts, strings.texts, strings.codes)
        self._is_marked = self._steps.source is not StepSource.WHOLE_FILE
        self._steps_cut = self._cut_steps() if counts.ends_early else 0
        self._lacks_device = self._launches_without_device()
        self._renamed = renamed_layers(file)
        self._scopes = Scopes(
            strings.texts,
            strings.codes,
            collector.collectives,
            use_modules=self._use_modules,
            renamed=self._renamed,
        )

    def write(self, spill: Spill) -> IngestSummary:
        collector = self._collector
        main = main_lane(self._facts, collector.lanes)
        groups = ProcessGroups(self._metadata.groups, self._metadata.world_size, collector.collectives)
        call_groups = self._call_groups(groups)
        if groups.are_unlisted:
            call_groups.of_lane.update(stream_groups(collector.lanes, self._facts.device_codes))
        timeline = TimelineBuilder(
            collector,
            self._scopes,
            self._steps,
            main=main,
            use_modules=self._use_modules,
            lacks_device=self._lacks_device,
            queued_by=call_groups.queued_by,
        )
        host_words = collector.host_words
        texts = [
            self._word(HostClass(code), text)
            for code, text in zip(host_words.codes, host_words.texts, strict=True)
        ]
        texts += collector.device_words.texts
        with TimelineFile(
            self._file.table,
            rank=self._file.rank,
            window=self._file.window,
            base_ns=self._metadata.base_ns,
            strings=texts,
            layers=self._scopes.layers,
            lanes=[
                (owner if is_device else -1, lane)
                for (owner, lane), is_device in zip(
                    collector.lanes.keys, collector.lanes.is_device, strict=True
                )
            ],
            costs=collector.costs,
            configs=collector.configs,
            collectives=collector.collectives,
            groups=groups,
            call_groups=call_groups,
        ) as table:
            for until, (host, launches, device) in spill.slices():
                table.write(timeline.tables(until, host, launches, device))
        return self._summary(table.num_rows, timeline, main)

    def _word(self, code: HostClass, text: str) -> str:
        word = mark_text(code, text)
        return self._renamed.get(word, word) if code == HostClass.LAYER else word

    def _call_groups(self, groups: ProcessGroups) -> CallGroups:
        strings = self._collector.host_words
        if not self._facts.calls:
            return CallGroups()
        calls = np.concatenate(self._facts.calls)
        self._facts.calls.clear()
        codes = np.array(strings.codes, np.int64)[calls["name"]]
        return find_groups(
            calls, codes, strings.texts, self._collector.collectives, groups.sizes, self._metadata.reducers
        )

    def _summary(self, num_rows: int, timeline: TimelineBuilder, main: int | None) -> IngestSummary:
        counts, facts, metadata = self._counts, self._facts, self._metadata
        dropped = counts.dropped + facts.dropped
        device_words = self._collector.device_words.texts
        unclassified = {device_words[i]: int(n) for i, n in enumerate(timeline.unknown_rows) if n}
        lanes = describe_lanes(
            facts,
            self._collector.lanes,
            main,
            timeline.device_rows,
            timeline.comm_rows,
        )
        on_device = timeline.device_steps.spans()
        devices = sorted({lane.device for lane in lanes if lane.device >= 0})
        return IngestSummary(
            source=source_of(self._file),
            rank=self._file.rank,
            window=self._file.window,
            path=self._file.relative_source,
            events_read=counts.read,
            events_kept=num_rows,
            events_cut=timeline.num_cut,
            events_dropped=dropped,
            events_skipped=counts.read - num_rows - dropped,
            unclassified=tuple(sorted(unclassified.items(), key=lambda item: -item[1])),
            salvaged=counts.lost or counts.ends_early or dropped > 0,
            notes=tuple(self._notes()),
            lanes=tuple(lanes),
            steps=tuple(
                (step, start + metadata.base_ns, end + metadata.base_ns)
                for step, start, end in on_device or self._steps.spans
            ),
            runs_ahead=on_device is not None,
            step_source=self._steps.source,
            groups=tuple(metadata.groups),
            world_size=metadata.world_size,
            backend=metadata.backend,
            has_device=facts.num_device > 0,
            device_name=metadata.devices.get(devices[0]) if devices else None,
            host=metadata.host,
            lacks_device=self._lacks_device,
            ends_early=counts.ends_early,
            steps_cut=self._steps_cut,
            trains=self._trains(),
            allocations=self._collector.allocations.curves(metadata.base_ns),
        )

    def _cut_steps(self) -> int:
        facts = self._facts
        launches = np.concatenate([np.zeros((0, 3), np.int64), *facts.launches])
        launches = launches[launches[:, 2] > 0]
        ids = np.concatenate([np.zeros(0, np.int64), *facts.device_ids])
        listings = (facts.device_listing, facts.launch_listing)
        until = min(facts.last_listed_ns, *(listing.whole_until for listing in listings))
        return self._steps.cut(
            facts.device_listing.earliest, until, launches[:, 0], np.isin(launches[:, 1], ids)
        )

    def _launches_without_device(self) -> bool:
        """Whether the host used a device whose work is not in the file."""
        facts = self._facts
        noted = facts.host_codes[:, HostClass.LAUNCH_NOTE].any() and self._metadata.backend == "nccl"
        return not facts.num_device and bool(facts.num_launches or facts.num_profiler_ranges or noted)

    def _trains(self) -> bool | None:
        counts = self._facts.host_codes.sum(axis=0)
        if counts[_SIGNS_OF_TRAINING].any():
            return True
        return False if counts[_SIGNS_OF_WORK].any() else None

    def _notes(self) -> list[str]:
        notes = [*self._counts.notes, *self._metadata.notes]
        if self._steps.spans and self._steps.source is StepSource.WHOLE_FILE:
            notes.append("no step marks: the whole file counts as one step")
        if self._use_modules:
            notes.append("layers from the nn.Module frames of the Python stacks")
        if self._steps_cut:
            notes.append(f"steps that it does not hold whole are left out: {self._steps_cut}")
        if self._lacks_device:
            notes.append("the host uses a device, and the file has none of its work")
        if self._facts.num_device and not self._facts.num_launches:
            notes.append("no launches in the file: device work cannot be tied to the host")
        return notes


def renamed_layers(file: WindowFile) -> dict[str, str]:
    """LayersRecord.renamed; empty for an import, and where it is damaged (noted by the reader of the run)."""
    try:
        document = read_document(file.source.parent.parent / layout.LAYERS_JSON)
    except (FileNotFoundError, UnreadableFileError):
        return {}
    return read_as(LayersRecord, document).renamed
