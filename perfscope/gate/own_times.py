"""Runs that perfscope did not record: step times that a training measured itself, as a small JSON file.

    {"perfscope_steps": 1, "steps_ns": [[26100000, 26300000], [26050000, 26400000]]}

`steps_ns`: durations in ns, one list per rank or one list in all, without warm-up. Optional: `name`, `pair`
and `side` (of interleaved runs), `samples_per_step`, `peak_memory_bytes`, `start_unix_ns`, `commit`, and
`fingerprint` (the fields of gate.records.Fingerprint).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from perfscope.errors import RunDirectoryError
from perfscope.gate.measure import step_metrics
from perfscope.gate.records import Fingerprint, Phases, RunFigures, Surroundings

_ABSENT = "the file holds step times only"


class _File(msgspec.Struct, kw_only=True):
    perfscope_steps: int
    steps_ns: list[list[float] | float]
    name: str = ""
    pair: int | None = None
    side: str = ""
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
            '"steps_ns": [...]}}'
        ) from error
    if file.perfscope_steps != 1:
        raise RunDirectoryError(f"{path} was written for a newer perfscope (version {file.perfscope_steps})")
    lists = [one for one in file.steps_ns if isinstance(one, list)]
    flat = [one for one in file.steps_ns if not isinstance(one, list)]
    if lists and flat:
        raise RunDirectoryError(
            f"{path}: steps_ns mixes numbers and lists; give one list per rank, or one list"
        )
    ranks = [np.asarray(own, dtype=np.int64) for own in lists or [flat]]
    if any(len(own) and own.min() <= 0 for own in ranks):
        raise RunDirectoryError(f"{path}: step times must be above 0 ns")
    metrics = step_metrics([own for own in ranks if len(own)])
    every = [float(np.median(own)) for own in ranks if len(own)]
    if file.samples_per_step and every:
        metrics["throughput"] = file.samples_per_step * 1e9 / float(np.median(np.concatenate(ranks)))
    if file.peak_memory_bytes:
        metrics["peak_memory"] = float(file.peak_memory_bytes)
    wanted = ("throughput", "input_wait", "exposed_comm", "peak_memory", "peak_device_memory", "energy")
    return RunFigures(
        name=file.name or name,
        fingerprint=file.fingerprint,
        metrics=metrics,
        absent={id_: _ABSENT for id_ in wanted if id_ not in metrics},
        num_steps=min((len(own) for own in ranks), default=0),
        phases=Phases(step=sum(every) / len(every)) if every else None,
        surroundings=Surroundings(start_unix_ns=file.start_unix_ns, commit=file.commit),
        side=file.side,
        pair=file.pair,
    )
