"""The figures of a framework run: its report's, and its losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.rundir.documents import read_document
from perfscope.rundir.writer import write_json

PARITY = "parity"  # key of run.json: how a run's losses compare with the reference's


def figures_of_run(run_dir: Path) -> dict[str, Any]:
    """Reads and analyses a run; JSON values, None where a figure is missing (why: `missing`).

    Raises:
        RunDirectoryError: the run cannot be read, or no process left its losses.
    """
    from perfscope.analysis.run import analyze_run
    from perfscope.analysis.study.parity import mean_losses
    from perfscope.engines.opening import open_executor
    from perfscope.ingest.run import ingest_run
    from perfscope.messages.missing import cause_text, figure_text
    from perfscope.rundir.reader import RunReader

    with open_executor() as executor:
        ingest_run(run_dir, executor=executor)
    reader = RunReader(run_dir)
    analysis = analyze_run(reader)
    records = reader.bench_records()
    if not records:
        raise RunDirectoryError(f"{run_dir} holds no result of a bench run: no process came to its end")
    losses = mean_losses([record.losses for record in records.values()])
    figures = {
        "samples_per_s": analysis.throughput_samples_per_s,
        "step_median_ns": analysis.step_ns.median if analysis.step_ns else None,
        "step_p10_ns": analysis.step_ns.p10 if analysis.step_ns else None,
        "num_ranks_recorded": len(analysis.ranks),
        "losses": losses,
        "first_loss": losses[0] if losses else None,
        "final_loss": losses[-1] if losses else None,
        "peak_rss_bytes": max((record.peak_rss_bytes or 0 for record in records.values()), default=0) or None,
        "missing": {figure_text(entry): cause_text(entry) for entry in analysis.missing},
    }
    return figures


def compare_losses(reference: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`figures_of_run` of two runs -> what analysis.study.parity says, as JSON."""
    from perfscope.analysis.study.parity import parity

    agreement = parity(reference["losses"], other["losses"])
    return {"verdict": agreement.verdict, **to_builtins(agreement)}


def keep_parity(run_dir: Path, reference: str, agreement: Mapping[str, Any]) -> None:
    """Leaves the verdict in the run's run.json, where `perfscope compare` finds it.

    Raises:
        RunDirectoryError: run.json cannot be read or written.
    """
    path = run_dir / layout.RUN_JSON
    try:
        manifest = read_document(path)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}") from error
    write_json(path, {**manifest, PARITY: {"reference": reference, **agreement}})
