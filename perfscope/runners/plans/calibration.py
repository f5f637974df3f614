"""How long a model's blocks take here: short serial trainings, as many at once as a host has ranks.

One calibration serves all candidates: a candidate's work is that of its blocks at its samples, times what its
mesh leaves of their operators. What the rates of a machine cannot say is in it: how well matrices of these
sizes use a core, what operators cost before they compute, and what ranks take from each other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from perfscope.runners.config import BenchConfig

_SECONDS = 1.0  # of each batch size
_LIMIT_S = 120.0  # for all copies together, start-up included


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured seconds of one copy's step.

    Attributes:
        copies: that ran at the same time.
        threads: of each.
        batches: samples of a step, ascending.
        parts: batch -> name (`forward 3`, `backward 3`, `loss`, `update`, `input`, `reset`) -> seconds.
        all_reduces: calls that were timed: num_ranks, bytes, seconds by repetition.
    """

    copies: int
    threads: int
    batches: tuple[int, ...]
    parts: Mapping[int, Mapping[str, float]]
    all_reduces: tuple[Mapping[str, Any], ...] = ()

    def seconds(self, name: str, samples: float) -> float:
        """Of a part at so many samples: a line between the batches beside it, or beyond the last two."""
        points = [(batch, self.parts[batch].get(name, 0.0)) for batch in self.batches]
        if len(points) == 1:
            return points[0][1] * samples / points[0][0]
        upper = next((i for i, (batch, _) in enumerate(points[1:], 1) if batch >= samples), len(points) - 1)
        (low, before), (high, after) = points[upper - 1], points[upper]
        slope = max((after - before) / (high - low), 0.0)
        return max(before + slope * (samples - low), before * min(samples / low, 1.0) * 0.5)

    @property
    def update_s(self) -> float:
        """Of a step, whatever its samples: the update, and gradients set back."""
        totals = [parts.get("update", 0.0) + parts.get("reset", 0.0) for parts in self.parts.values()]
        return sum(totals) / len(totals)


def threads_of_rank(num_ranks: int) -> int:
    """Of each of so many ranks on this host, as `bench run` starts them."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) else max(len(os.sched_getaffinity(0)) // num_ranks, 1)


def calibrate(
    config: BenchConfig, batches: Sequence[int], copies: int, threads: int, *, as_it_is: bool = False
) -> Calibration | str:
    """Trains copies of the model on this machine, each for a second per batch size.

    Args:
        config: model, input, precision, optimizer and device.
        batches: samples of a step, ascending.
        copies: at the same time.
        threads: of each copy.
        as_it_is: time that other processes took counts, too: for comparison with what runs now.

    Returns:
        The mean over the copies; or why there is none: the last line of one that failed, or the time limit.
    """
    serial = replace(config, scheme="serial", mesh=None, num_ranks=1, num_hosts=1, batch=batches[0])
    settings = {
        "config": serial.to_json(),
        "batches": list(batches),
        "seconds": _SECONDS,
        "threads": threads,
        "size": copies,
    }
    documents = _run_copies(settings, copies, threads)
    if isinstance(documents, str):
        return documents
    own_cpus = (
        min(1.0, len(os.sched_getaffinity(0)) / copies)
        if threads == 1 and config.device != "cuda" and not as_it_is
        else None
    )
    parts = {
        batch: _mean([_undisturbed(document["rows"][index], own_cpus) for document in documents])
        for index, batch in enumerate(batches)
    }
    return Calibration(
        copies=copies,
        threads=threads,
        batches=tuple(batches),
        parts=parts,
        all_reduces=tuple(documents[0]["all_reduces"]),
    )


def _run_copies(settings: Mapping[str, Any], copies: int, threads: int) -> list[dict[str, Any]] | str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(copies)]
        running = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "perfscope.runners.plans.calibration_rank"),
                    json.dumps({**settings, "rank": rank, "store": str(Path(folder) / "store")}),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors[rank],
                env=environment,
            )
            for rank in range(copies)
        ]
        try:
            outputs = [process.communicate(timeout=_LIMIT_S)[0] for process in running]
        except subprocess.TimeoutExpired:
            return f"not done within {_LIMIT_S:.0f} s"
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        failed = [error for process, error in zip(running, errors, strict=True) if process.returncode]
        if failed:
            return f"a copy failed: {_last_line(failed[0])}"
    try:
        return [json.loads(output) for output in outputs]
    except ValueError:
        return "a copy failed: it printed no times"


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def _undisturbed(row: Mapping[str, Any], own_cpus: float | None) -> dict[str, float]:
    """A copy's seconds without the time in which other processes had its CPUs.

    Args:
        row: with its `seconds`, and the `cpus` that it had on average.
        own_cpus: that it has if nothing but the copies runs; None: not known, as with several threads.
    """
    factor = 1.0 if own_cpus is None else min(1.0, row["cpus"] / own_cpus)
    return {name: seconds * factor for name, seconds in row["seconds"].items()}


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in rows[0]}


def chosen_batches(samples: Sequence[float], most: int) -> tuple[int, ...]:
    """Batch sizes to calibrate with: the least, the most and one between of what candidates take at once.

    Args:
        samples: that a rank computes at once, of every candidate.
        most: at most so many in a step.
    """
    usable = sorted({max(1, round(at_once)) for at_once in samples})
    low = usable[0]
    high = max([size for size in usable if size <= most], default=low)
    middle = min(usable, key=lambda size: abs(size * size - low * high))
    batches = sorted({low, middle, high})
    return tuple(batches) if len(batches) > 1 else (low, low * 2)
