"""Runs and studies as what predictions start from: opened, ingested, analyzed, planned again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.analysis.predict.from_run import NotUsable, measured_run
from perfscope.analysis.predict.records import MeasuredRun, Plan
from perfscope.analysis.predict.scripts import DDP, gradient_buckets
from perfscope.cli.engine import UNSTATED, Engine
from perfscope.cli.output import notice
from perfscope.cli.report import ingest, opened_run
from perfscope.errors import RunDirectoryError, TraceError, UsageError

if TYPE_CHECKING:
    from perfscope.rundir.host_records import LinksRecord
    from perfscope.rundir.records import RankRecord
    from perfscope.rundir.scheme_records import SchemeRecord
    from perfscope.runners.config import BenchConfig

STUDY_JSON = "study.json"
_SMALL_BYTES = 32 << 20
_LIBRARY_SCHEMES = frozenset({"serial", DDP})  # whose calls the traces tell well enough without torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was read.

    Attributes:
        runs: usable ones.
        configs: of the bench runs among them, by their scheme; the first of each. Empty: scripts.
        buckets: of the gradients of a script of one rank.
        backend: of the runs.
        notes: what was left out, and why.
        links: of the runs' hosts, as `perfscope doctor --links` measured them before.
    """

    runs: tuple[MeasuredRun, ...]
    configs: Mapping[str, BenchConfig]
    buckets: tuple[int, ...]
    backend: str | None
    notes: tuple[str, ...]
    links: tuple[LinksRecord, ...] = ()


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The run directories that are meant: each path is one, or a study of `bench sweep`.

    Raises:
        RunDirectoryError: one is neither.
    """
    folders: list[Path] = []
    for path in paths:
        study = path / STUDY_JSON
        if study.is_file():
            folders += _runs_of(study)
        elif (path / "run.json").is_file():
            folders.append(path)
        else:
            raise RunDirectoryError(f"{path} is neither a run directory nor a study: it has no run.json")
    return list({path.resolve(): path for path in folders}.values())


def _runs_of(study: Path) -> list[Path]:
    try:
        cells = json.loads(study.read_bytes())["cells"]
        done = [run["path"] for cell in cells for run in cell["runs"] if run["status"] == "done"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(
            f"{study} cannot be read as a study ({error}); run the sweep again"
        ) from error
    if not done:
        raise RunDirectoryError(f"{study} has no finished run; let the sweep end first")
    return [study.parent / path for path in done]


def load_runs(paths: Sequence[Path], engine: Engine = UNSTATED) -> Loaded:
    """Opens all runs, with the work on `engine`; those that cannot serve are left out with a note.

    Raises:
        RunDirectoryError: none can be used.
        UsageError: bench runs and scripts are mixed.
    """
    runs: list[MeasuredRun] = []
    configs: dict[str, BenchConfig] = {}
    notes: list[str] = []
    buckets: tuple[int, ...] = ()
    backends: set[str] = set()
    is_bench: set[bool] = set()
    links: dict[tuple[tuple[str, ...], int | None], LinksRecord] = {}
    folders = run_folders(paths)
    show_progress = sys.stderr.isatty()
    for number, path in enumerate(folders, 1):
        name = path.name
        if show_progress:
            click.echo(f"\r\x1b[Kreading run {number} of {len(folders)}", nl=False, err=True)
        try:
            loaded_run = _load(_up_to_date(path, engine), name, engine)
        except (NotUsable, RunDirectoryError, TraceError) as error:
            notes.append(f"{name} is left out: {error}")
            continue
        finally:
            if show_progress:
                click.echo("\r\x1b[K", nl=False, err=True)
        runs.append(loaded_run.run)
        links |= {(record.hosts, record.measured_unix_ns): record for record in loaded_run.links}
        is_bench.add(loaded_run.config is not None)
        if loaded_run.config is not None:
            configs.setdefault(loaded_run.config.full_name, loaded_run.config)
        buckets = buckets or loaded_run.buckets
        backends |= {loaded_run.backend} if loaded_run.backend else set()
    if not runs:
        raise RunDirectoryError("no run can be used: " + "; ".join(notes))
    if len(is_bench) > 1:
        raise UsageError(
            "runs of `perfscope bench` and of scripts cannot be predicted from together; name one kind"
        )
    backend = next(iter(backends)) if len(backends) == 1 else None
    return Loaded(
        runs=tuple(runs),
        configs=configs,
        buckets=buckets,
        backend=backend,
        notes=tuple(notes),
        links=tuple(links.values()),
    )


def _up_to_date(path: Path, engine: Engine) -> Path:
    """Where the run can be read with its derived tables, see `ingest`.

    Small runs are read in this process: in a study of many, starting workers for each takes most of the time.

    Raises:
        RunDirectoryError: it cannot be brought up to date.
    """
    from perfscope.ingest.run import ingest_run

    ranks = path / "ranks"
    num_bytes = sum(file.stat().st_size for file in ranks.rglob("*") if file.is_file())
    if engine.is_chosen or num_bytes > _SMALL_BYTES or not os.access(path, os.W_OK):
        return ingest(path, engine)
    try:
        ingest_run(path)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be brought up to date: {error}") from error
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    run: MeasuredRun
    config: BenchConfig | None
    buckets: tuple[int, ...]
    backend: str | None
    links: tuple[LinksRecord, ...]


def _load(path: Path, name: str, engine: Engine) -> _One:
    from perfscope.rundir.reader import RunReader
    from perfscope.rundir.records import LayersRecord

    reader = RunReader(path)
    metas = reader.rank_records
    scheme = reader.run.scheme
    config, plan = None, None
    if scheme is not None:
        config = config_of(reader.run.command)
        plan = _own_plan(config, scheme, name)
    analysis = opened_run(reader, engine).analysis
    run = measured_run(name, analysis, metas, plan)
    if config is None:
        _require_data_parallel(metas, name)
    layers = reader.layers(reader.ranks[0]) or LayersRecord()
    backend = next((meta.backend for meta in metas.values() if meta.backend), None)
    if backend is None and len(metas) == 1:
        backend = "gloo"  # one rank joined no group; what it will use is the CPU's default
    ceilings = [reader.ceilings(host) for host in reader.hosts]
    return _One(
        run=run,
        config=config,
        buckets=gradient_buckets(layers),
        backend=backend,
        links=tuple(record for document in ceilings if document for record in document.links),
    )


def config_of(command: Sequence[str]) -> BenchConfig:
    """The configuration that a bench run's ranks were given, from its command.

    Raises:
        NotUsable: it holds none.
    """
    from perfscope.runners.config import BenchConfig, BenchError

    for word in command:
        if word.startswith("{"):
            try:
                return BenchConfig.from_json(word)
            except BenchError:
                continue
    raise NotUsable("its command holds no configuration of `perfscope bench run`; record it again")


def _own_plan(config: BenchConfig, scheme: SchemeRecord, name: str) -> Plan | None:
    """What the run's own scheme says that it sends; None where only its record tells (no torch)."""
    if find_spec("torch") is None:
        if config.full_name not in _LIBRARY_SCHEMES:
            raise NotUsable(
                f"what {config.full_name} sends is planned with torch, which is not installed: "
                f'pip install "perfscope-hpc[torch]"'
            )
        return None
    from perfscope.cli.predict.plans import plan_of

    hosts = [rank_place.host for rank_place in scheme.places]
    names = {host: index for index, host in enumerate(dict.fromkeys(hosts))}
    where = tuple(names[host] for host in hosts)
    if len(where) != config.num_ranks:
        raise NotUsable("its record does not state the hosts of its ranks; record it again")
    return plan_of(config, where)


def _require_data_parallel(metas: Mapping[int, RankRecord], name: str) -> None:
    """Raises NotUsable for a script of several ranks that is not plain data parallel."""
    if len(metas) < 2:
        return
    if not all(meta.root is not None and meta.root.data_parallel for meta in metas.values()):
        raise NotUsable(
            "its model is not wrapped by DistributedDataParallel: "
            "what it would send on other numbers of ranks is not known"
        )


def say_notes(notes: Sequence[str]) -> None:
    """To stderr, a line each."""
    for note in notes:
        notice(note)
