"""Runs that perfscope did not record: step times that a training measured itself, as a small JSON file.

    {"perfscope_steps": 1, "steps_ns": [[26100000, 26300000], [26050000, 26400000]]}

`steps_ns`: durations in ns, one list per rank or one list in all, without warm-up. Optional: `name`, `pair`
(of interleaved runs), `samples_per_step`, `peak_memory_bytes`, `start_unix_ns`, `commit`, and `fingerprint`
(the fields of gate.records.Fingerprint; `world_size` is the number of lists unless it says otherwise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from perfscope.analysis.intervals import Int64
from perfscope.errors import RunDirectoryError
from perfscope.gate.measure import step_metrics
from perfscope.gate.records import Fingerprint, Phases, RunFigures, Surroundings
from perfscope.messages.gate.metrics import ONLY_STEP_TIMES

_SHORTEST_NS, _LONGEST_NS = 1e3, 1e14  # of a median step, of any step (28 hours): it was not nanoseconds


class _File(msgspec.Struct, kw_only=True):
    perfscope_steps: int
    steps_ns: list[list[float] | float]
    name: str = ""
    pair: int | None = None
    samples_per_step: int | None = None
    peak_memory_bytes: int | None = None
    start_unix_ns: int | None = None
    commit: str = ""
    fingerprint: Fingerprint = msgspec.field(default_factory=Fingerprint)


def read_own_times(path: Path, name: str) -> RunFigures:
    """The file as a run.

    Raises:
        RunDirectoryError: it cannot be read, or is no such file.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunDirectoryError(
            f'{path} is no file of step times ({error}); it should hold {{"perfscope_steps": 1, '
            '"steps_ns": [...]}'
        ) from error
    if file.perfscope_steps != 1:
        raise RunDirectoryError(f"{path} was written for a newer perfscope (version {file.perfscope_steps})")
    lists = [item for item in file.steps_ns if isinstance(item, list)]
    flat = [item for item in file.steps_ns if not isinstance(item, list)]
    if lists and flat:
        raise RunDirectoryError(
            f"{path}: steps_ns mixes numbers and lists; give one list per rank, or one list"
        )
    ranks = _in_ns(path, lists or [flat])
    fingerprint = file.fingerprint
    if lists and fingerprint.world_size is None:
        fingerprint = replace(fingerprint, world_size=len(lists))
    if fingerprint.batch is None:
        fingerprint = replace(fingerprint, batch=file.samples_per_step)
    metrics = step_metrics([durations for durations in ranks if len(durations)])
    every = [float(np.median(durations)) for durations in ranks if len(durations)]
    if file.samples_per_step and every:
        metrics["throughput"] = file.samples_per_step * 1e9 / float(np.median(np.concatenate(ranks)))
    if file.peak_memory_bytes:
        metrics["peak_memory"] = float(file.peak_memory_bytes)
    wanted = ("throughput", "input_wait", "exposed_comm", "peak_memory", "peak_device_memory", "energy")
    return RunFigures(
        name=file.name or name,
        fingerprint=fingerprint,
        metrics=metrics,
        absent={id_: ONLY_STEP_TIMES for id_ in wanted if id_ not in metrics},
        num_steps=min((len(durations) for durations in ranks), default=0),
        phases=Phases(step=sum(every) / len(every)) if every else None,
        surroundings=Surroundings(start_unix_ns=file.start_unix_ns, commit=file.commit),
        pair=file.pair,
    )


def _in_ns(path: Path, lists: Sequence[Sequence[float]]) -> list[Int64]:
    """Whole nanoseconds. Raises RunDirectoryError: these are none."""
    ranks = [np.asarray(durations, dtype=np.float64) for durations in lists]
    every = np.concatenate(ranks)
    if not np.isfinite(every).all():
        raise RunDirectoryError(f"{path}: a step time is infinite or not a number")
    if len(every) and every.min() <= 0:
        raise RunDirectoryError(f"{path}: step times must be above 0 ns")
    if len(every) and float(np.median(every)) < _SHORTEST_NS:
        raise RunDirectoryError(
            f"{path}: these look like seconds (the median is {float(np.median(every)):g}); give nanoseconds"
        )
    if len(every) and every.max() > _LONGEST_NS:
        raise RunDirectoryError(f"{path}: a step of {every.max():g} ns would take a day; give nanoseconds")
    return [np.maximum(np.rint(durations), 1).astype(np.int64) for durations in ranks]
