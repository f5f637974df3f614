"""The figures of a bench run for its closing lines and for a study: its report's, under a study's names.

The one place where runners meet analysis; nothing is computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.errors import RunDirectoryError
from perfscope.runners.sweep.sides import UNEXPECTED

if TYPE_CHECKING:
    from perfscope.analysis.bench import BenchResult
    from perfscope.analysis.machine.results import MachineAnalysis

# of a BenchResult -> in a study
_NAMES = {
    "samples_per_s": "samples_per_s",
    "step_p10_ns": "step_p10_ns",
    "step_median_ns": "step_median_ns",
    "traced_steps": "traced_steps",
    "exposed_comm_ns": "exposed_comm_ns",
    "exposed_comm_ratio": "exposed_comm_ratio",
    "first_loss": "first_loss",
    "last_loss": "final_loss",
    "held_out_loss": "held_out_loss",
    "peak_rss_bytes": "peak_rss_bytes",
}
_SAID_BY_ANOTHER = frozenset({"step_p10_ns", "exposed_comm_ratio", "final_loss", "samples_per_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A bench run that has come to its end; JSON values.

    Attributes:
        scheme: run.json's record of what was run, and where the ranks really were.
        figures: by name; those that are None are in `missing` with the reason. `bytes_per_step`: predicted,
            predicted_wire, recorded and wire, each by link class; None: not known.
    """

    scheme: dict[str, Any]
    figures: dict[str, Any]


def finished_run(run_dir: Path) -> Finished:
    """Reads and analyses a run.

    Raises:
        RunDirectoryError: the run cannot be read, or holds no result of a bench run.
    """
    from perfscope.analysis.run import analyze_run
    from perfscope.engines.opening import open_executor
    from perfscope.ingest.run import ingest_run
    from perfscope.rundir.reader import RunReader

    with open_executor() as executor:
        ingest_run(run_dir, executor=executor)
    reader = RunReader(run_dir)
    analysis = analyze_run(reader)
    scheme = analysis.run.scheme
    if analysis.bench is None or scheme is None:
        raise RunDirectoryError(f"{run_dir} holds no result of a bench run that can be read")
    if not analysis.bench.num_ranks_recorded:
        raise RunDirectoryError(f"{run_dir} holds no result of a bench run: no rank came to its end")
    figures = {**figures_of(analysis.bench), **disturbed(analysis.machine)}
    finished = Finished(scheme=scheme.document, figures=figures)
    return finished


def figures_of(bench: BenchResult) -> dict[str, Any]:
    """A run's figures under the names of a study."""
    missing = {_NAMES.get(name, name): why for name, why in bench.missing.items()}
    recorded = None
    if "recorded" not in bench.missing:
        recorded = {link.link_class: link.recorded for link in bench.links if link.recorded}
        if bench.unexpected_bytes:
            recorded[UNEXPECTED] = bench.unexpected_bytes
    return {
        **{ours: getattr(bench, theirs) for theirs, ours in _NAMES.items()},
        "bytes_per_step": {
            "predicted": {link.link_class: link.predicted for link in bench.links if link.predicted},
            "predicted_wire": {
                link.link_class: link.predicted_wire for link in bench.links if link.predicted_wire
            },
            "recorded": recorded,
            "wire": {link.link_class: link.wire for link in bench.links if link.wire is not None} or None,
        },
        "learning": None if bench.learning is None else msgspec.to_builtins(bench.learning),
        "diverged": _diverged(bench),
        "details": dict(bench.details),
        "missing": {name: why for name, why in missing.items() if name not in _SAID_BY_ANOTHER},
    }


def disturbed(machine: MachineAnalysis | None) -> dict[str, Any]:
    """Whether something else used the machine during the steps (None: not known), and what; as the report."""
    if machine is None or machine.clean is None:
        return {"disturbed": None, "disturbances": []}
    kinds = {disturbance.kind.value for disturbance in machine.disturbances if disturbance.within_steps}
    return {"disturbed": not machine.clean, "disturbances": [] if machine.clean else sorted(kinds)}


def _diverged(bench: BenchResult) -> bool:
    """A loss that is no number at the end of a run that ended well, or one that has grown tenfold."""
    losses = (bench.first_loss, bench.last_loss, bench.held_out_loss)
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        return bench.num_ranks_recorded == bench.num_ranks and bench.num_steps > 0
    return (bench.last_loss or 0.0) > _GROWN * abs(bench.first_loss or 0.0)


_GROWN = 10.0
