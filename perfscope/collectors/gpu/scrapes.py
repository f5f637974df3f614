"""Scrapes of DCGM exporter into a run: samples of its hosts' GPUs, beside those that perfscope took itself.

A GPU is found by its UUID in the run's topology.json, else by the exporter's host name and number. What the
run's own sampler has of a GPU is kept: it is read more often.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from perfscope.collectors.gpu.nvidia.exporter import EXPORTED, LINK_LABELS, LINK_NAMES
from perfscope.collectors.gpu.scrape_text import ScrapedSeries, read_scrapes
from perfscope.errors import RunDirectoryError, TraceError, UnreadableFileError
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.files import replacing
from perfscope.rundir.host_records import GpuRow, TopologyRecord
from perfscope.rundir.metrics import Series
from perfscope.rundir.records import decode_run
from perfscope.rundir.samples import HostSamples, read_samples
from perfscope.rundir.typed import read_as

_BESIDE_NS = 60_000_000_000  # before the start and after the end of the run: scrapes are seconds apart
_HOST_LABELS = ("Hostname", "hostname", "node", "kubernetes_node", "instance")
_PART = "GPU_I_ID"  # of a GPU that is divided
_Place = tuple[str, str]  # host of the run, GPU as its samples are labeled
# GPU -> figure -> (times, values)
_OfHost: TypeAlias = "Mapping[str, Mapping[str, tuple[array[int], array[float]]]]"


class ImportedScrapes(Struct, frozen=True, kw_only=True):
    """What became of a run's scrapes.

    Attributes:
        hosts: of the run, that samples were added to; gpus: (host, GPU).
        num_values: that were added; num_outside: before or after the run; num_unknown: of GPUs that the run
            does not have; num_sampled: of figures that perfscope sampled itself; num_dropped: unreadable.
        by_file_time: files without times, whose one scrape is dated by when the file was written.
    """

    hosts: tuple[str, ...]
    gpus: tuple[_Place, ...]
    metrics: tuple[str, ...]
    num_values: int
    num_outside: int
    num_unknown: int
    num_sampled: int
    num_dropped: int
    by_file_time: tuple[Path, ...]


class _Run(Struct, kw_only=True):
    """The hosts and GPUs of a run, and when it ran."""

    path: Path
    start_ns: int
    end_ns: int
    hosts: list[str]
    by_uuid: dict[str, _Place]
    samples: dict[str, HostSamples | None]

    def target_of(self, labels: Mapping[str, str]) -> _Place | None:
        """The GPU that the exporter's labels name."""
        uuid = labels.get("UUID", "")
        if uuid in self.by_uuid:
            return self.by_uuid[uuid]
        host = _host_of(labels).partition(":")[0]
        short = host.partition(".")[0]
        fitting = [name for name in self.hosts if name == host or name.partition(".")[0] == short]
        number = labels.get("gpu", "")
        has_uuids = any(target[0] in fitting for target in self.by_uuid.values())
        if len(fitting) != 1 or not number.isdecimal() or (uuid and has_uuids):
            return None
        return fitting[0], number

    def has(self, target: _Place, metric: str) -> bool:
        """Whether the run's own sampler read this."""
        samples = self.samples[target[0]]
        return samples is not None and bool(samples.find(metric, gpu=target[1]))


def _host_of(labels: Mapping[str, str]) -> str:
    """As the exporter names it; "": it does not."""
    return next((labels[name] for name in _HOST_LABELS if labels.get(name)), "")


def import_scrapes(run_dir: Path, paths: Sequence[Path]) -> ImportedScrapes:
    """Add the scrapes of `paths` to the run; those of an earlier import are replaced.

    Raises:
        TraceError: a file cannot be read, or nothing in them is of this run.
        RunDirectoryError: `run_dir` is no run, or cannot be written.
    """
    run = _read_run(run_dir)
    counts = dict.fromkeys(("outside", "unknown", "sampled", "dropped", "kept"), 0)
    of_place: dict[_Place, dict[str, tuple[array[int], array[float]]]] = defaultdict(dict)
    dated, seen = [], set()
    for path in paths:
        scrapes = read_scrapes(path, frozenset(EXPORTED))
        counts["dropped"] += scrapes.num_dropped
        dated += [path] if scrapes.by_file_time else []
        for series in scrapes.series.values():
            seen.add(_host_of(series.labels) or "?")
            _sort_in(run, series, of_place, counts)
    if not counts["kept"]:
        raise TraceError(_why_nothing(run, counts, seen))
    hosts = sorted({host for host, _ in of_place})
    for host in hosts:
        _write(run, host, {gpu: names for (where, gpu), names in of_place.items() if where == host})
    return ImportedScrapes(
        hosts=tuple(hosts),
        gpus=tuple(sorted(of_place)),
        metrics=tuple(sorted({EXPORTED[name].name for names in of_place.values() for name in names})),
        num_values=counts["kept"],
        num_outside=counts["outside"],
        num_unknown=counts["unknown"],
        num_sampled=counts["sampled"],
        num_dropped=counts["dropped"],
        by_file_time=tuple(dated),
    )


def _sort_in(
    run: _Run,
    series: ScrapedSeries,
    of_place: dict[_Place, dict[str, tuple[array[int], array[float]]]],
    counts: dict[str, int],
) -> None:
    target = None if series.labels.get(_PART) else run.target_of(series.labels)
    if target is None:
        counts["unknown"] += len(series.times)
        return
    if run.has(target, EXPORTED[series.name].name):
        counts["sampled"] += len(series.times)
        return
    times, values = of_place[target].setdefault(series.name, (array("q"), array("d")))
    for time_ns, value in zip(series.times, series.values, strict=True):
        if run.start_ns - _BESIDE_NS <= time_ns <= run.end_ns + _BESIDE_NS:
            times.append(time_ns)
            values.append(value)
            counts["kept"] += 1
        else:
            counts["outside"] += 1
    if not times:
        del of_place[target][series.name]
        if not of_place[target]:
            del of_place[target]


def _why_nothing(run: _Run, counts: Mapping[str, int], seen: set[str]) -> str:
    if counts["outside"]:
        return (
            f"no scrape is of the time of this run: {counts['outside']:,} values are of another time. "
            "Are the times those of the scrapes?"
        )
    if counts["sampled"]:
        return "perfscope sampled all of these figures itself in this run: nothing to add"
    return (
        f"no GPU of the scrapes ({_named(seen)}) is of this run "
        f"(hosts {', '.join(run.hosts[:4]) or 'not recorded'})"
    )


def _named(seen: set[str]) -> str:
    known = sorted(seen - {"?"})
    return f"hosts {', '.join(known[:4])}" if known else "which name no host: label Hostname"


def _read_run(run_dir: Path) -> _Run:
    try:
        run, _ = decode_run(read_document(run_dir / layout.RUN_JSON))
    except FileNotFoundError:
        raise RunDirectoryError(f"{run_dir} is no run: it has no {layout.RUN_JSON}") from None
    start, end = run.start_unix_ns, run.end_unix_ns
    if start is None or end is None:
        raise RunDirectoryError(f"{run_dir}: the run does not say when it began and ended; is it running?")
    folder = run_dir / layout.HOSTS
    hosts = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    samples: dict[str, HostSamples | None] = {}
    by_uuid: dict[str, _Place] = {}
    for host in hosts:
        try:
            samples[host] = read_samples(folder / host / layout.SAMPLES_JSONL, host)
        except (OSError, UnreadableFileError):
            samples[host] = None
        for gpu in _gpus(folder / host / layout.TOPOLOGY_JSON):
            by_uuid[gpu.uuid] = (host, str(gpu.index))
    return _Run(path=run_dir, start_ns=start, end_ns=end, hosts=hosts, by_uuid=by_uuid, samples=samples)


def _gpus(path: Path) -> list[GpuRow]:
    try:
        document = read_document(path)
    except (OSError, UnreadableFileError):
        return []
    return [gpu for gpu in read_as(TopologyRecord, document).gpus if gpu.uuid]


def _write(run: _Run, host: str, gpus: _OfHost) -> None:
    """hosts/<host>/scrapes.jsonl, in the format of samples.jsonl and the host's monotonic clock."""
    try:
        with replacing(run.path / layout.HOSTS / host / layout.SCRAPES_JSONL) as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in _lines(run, host, gpus))
    except OSError as error:
        raise RunDirectoryError(f"cannot write to {run.path}: {error.strerror}") from error


def _lines(run: _Run, host: str, gpus: _OfHost) -> Iterator[object]:
    samples = run.samples[host]
    anchors = samples.anchors if samples is not None and samples.anchors else ((run.start_ns, run.start_ns),)
    mono, unix = (np.array(column, np.int64) for column in zip(*anchors, strict=True))
    yield {
        "schema_version": 1,
        "host": host,
        "pid": 0,
        "interval_ns": 1_000_000_000,
        "anchor": list(anchors[0]),
    }
    series = [(gpu, name, read) for gpu, names in gpus.items() for name, read in names.items()]
    for number, (gpu, name, (times, values)) in enumerate(series):
        labels = {"gpu": gpu, **(LINK_LABELS if name in LINK_NAMES else {})}
        yield {"id": number, "collector": "gpu", "series": [Series(EXPORTED[name], labels).as_dict()]}
        wall, first = np.unique(np.frombuffer(times, np.int64), return_index=True)
        at = wall - unix[0] + mono[0] - _drift(wall, mono, unix)
        readings = zip(at.tolist(), np.frombuffer(values, np.float64)[first].tolist(), strict=True)
        for begin, value in readings:
            if begin >= 0:
                yield [number, begin, begin, [_plain(value)]]


def _drift(wall: Any, mono: Any, unix: Any) -> Any:
    """How much later than by the first anchor the wall clock is, in ns."""
    later = (unix - mono) - (unix[0] - mono[0])
    return np.rint(np.interp((wall - unix[0]).astype(float), (unix - unix[0]).astype(float), later)).astype(
        np.int64
    )


def _plain(value: float) -> int | float:
    return int(value) if value.is_integer() else value
