"""The runs of a folder, without analyzing them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from perfscope.analysis.missing_reasons import why_cut_short
from perfscope.analysis.rank_facts import runs_ahead
from perfscope.analysis.spans import window_facts
from perfscope.analysis.steps import quantiles, rank_steps, steps_on_device
from perfscope.errors import PerfscopeError
from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from perfscope.rundir.writer import write_json

if TYPE_CHECKING:
    from perfscope.reports.model import Report

VERDICT_JSON = "verdict.json"  # in derived/: what the last report said first


class ListedRun(Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        path: its directory.
        started_unix_ns: None: not recorded.
        ranks: that were recorded.
        expected: ranks of the job; None: not known.
        state: "finished", "failed", "running" (or perfscope was killed), "incomplete" or "unreadable".
        step_ns: median of the first rank's steps, without warm-up; None: it recorded none.
        verdict: headline of its last report; "" until there is one.
        samples_per_s: of all ranks, by the last report; None: there is none, or it does not know.
        cpu, num_cpus, gpus: of its first host; "", None, (): not recorded.
    """

    path: str
    name: str
    started_unix_ns: int | None = None
    ranks: int = 0
    expected: int | None = None
    state: str = "unreadable"
    step_ns: int | None = None
    verdict: str = ""
    samples_per_s: float | None = None
    command: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    commit: str = ""
    hosts: tuple[str, ...] = ()
    cpu: str = ""
    num_cpus: int | None = None
    gpus: tuple[str, ...] = ()
    framework: str = ""


class Kept(Struct, frozen=True, kw_only=True):
    """What the last report of a run said first."""

    headline: str = ""
    samples_per_s: float | None = None


def list_runs(folder: Path) -> list[ListedRun]:
    """The runs in a folder, the latest first; one that cannot be read has the state "unreadable".

    Raises:
        OSError: the folder cannot be read.
    """
    paths = [
        path for path in folder.iterdir() if not path.is_symlink() and (path / layout.RUN_JSON).is_file()
    ]
    runs = [listed_run(path) for path in paths]
    return sorted(runs, key=lambda run: (run.started_unix_ns or 0, run.path), reverse=True)


def keep_verdict(run: Path, report: Report) -> None:
    """Writes what a report says first, for `list_runs`; nothing where the run cannot be written to."""
    kept = {"headline": report.verdict.headline, "samples_per_s": report.document["throughput_samples_per_s"]}
    try:
        write_json(run / layout.DERIVED / VERDICT_JSON, kept)
    except (OSError, PerfscopeError):
        return  # the report stands without it


def listed_run(path: Path) -> ListedRun:
    """What is known of a run; one that cannot be read has the state "unreadable"."""
    try:
        return _read(path)
    except (OSError, PerfscopeError):
        return ListedRun(path=str(path), name=path.name)


def _read(path: Path) -> ListedRun:
    reader = RunReader(path)
    run = reader.run
    step = None
    if reader.ranks:
        first = reader.ranks[0]
        windows = [window_facts(summary) for summary in reader.summaries() if summary.rank == first]
        ahead, on_device = runs_ahead(reader.rank_records), steps_on_device(windows)
        step = quantiles(rank_steps(reader.steps(first), runs_ahead=ahead, on_device=on_device).counted)
    kept = _kept(path)
    records = reader.rank_records.values()
    hosts = tuple(sorted({record.host for record in records if record.host})) or tuple(
        filter(None, (run.host,))
    )
    topology = next(filter(None, map(reader.topology, hosts)), None)
    failed = run.exit is not None and bool(run.exit.code or run.exit.signal)
    cut_short = bool(why_cut_short(run))
    return ListedRun(
        path=str(path),
        name=run.name or path.name,
        started_unix_ns=run.start_unix_ns,
        ranks=len(reader.ranks),
        expected=run.expected_ranks or run.world_size,
        state="incomplete" if cut_short else "failed" if failed else "running" if run.is_open else "finished",
        step_ns=step.median if step is not None else None,
        verdict=kept.headline,
        samples_per_s=kept.samples_per_s,
        command=run.command,
        labels=run.labels,
        commit=(run.git.commit or "") if run.git else "",
        hosts=hosts,
        cpu=topology.cpu_model if topology else "",
        num_cpus=topology.logical_cpus if topology else None,
        gpus=tuple(gpu.name for gpu in topology.gpus) if topology else (),
        framework=next((record.framework.full_name for record in records if record.framework.name), ""),
    )


def _kept(path: Path) -> Kept:
    try:
        return msgspec.json.decode((path / layout.DERIVED / VERDICT_JSON).read_bytes(), type=Kept)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return Kept()
