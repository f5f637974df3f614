"""Samples and tokens per step against what each training counted itself, exactly."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.run_support import run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HERE = Path(__file__).parent
# These are part of `make test`.
QUICK = ("fsdp2 x tp", "loader with workers", "sequence first, flat targets", "lbfgs")
RANKS = {
    **{
        "fsdp2": 2,
        "fsdp2 x tp": 4,
        "hsdp": 4,
        "hsdp x tp": 8,
        "tp": 2,
        "tp x gradients by hand": 4,
        "ddp": 2,
    },
    **{"pipeline": 2, "pipeline x dp": 4, "own groups": 4},
}
ALONE = (
    *("loader", "loader with workers", "loader without the last", "batch sampler", "stream", "slices"),
    *("steps on slices", "ahead", "teacher", "transposed", "sequence first", "sequence first, flat targets"),
    *("batch first", "batch first, flat targets", "lbfgs", "closure after micro-batches", "twice"),
    *("evaluations with gradients", "gradients of each sample", "recurrent", "recurrent, rows are samples"),
    *("adversaries", "adversaries in turns", "parts in turns"),
)
FROM_LOADER = frozenset((*ALONE[:10], *ALONE[-3:], "lbfgs", "ddp"))
TOKENS_OF_A_SAMPLE = 13
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted({*RANKS, *ALONE})
]


def recorded_steps(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    lines = (run_dir / "ranks" / str(rank) / "steps.jsonl").read_text().splitlines()
    columns = json.loads(lines[0])["columns"]
    return [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]


def report(run_dir: Path) -> dict[str, Any]:
    from perfscope.analysis.run import analyze_run
    from perfscope.reports.build import build_report
    from perfscope.reports.document import render_json
    from perfscope.rundir.reader import RunReader

    document: dict[str, Any] = json.loads(
        render_json(build_report(analyze_run(RunReader(run_dir)), None).document)
    )
    return document


@pytest.mark.parametrize("name", NAMES)
def test_every_step_has_the_samples_that_the_training_counted(name: str, tmp_path: Path) -> None:
    num_ranks = RANKS.get(name, 1)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    program = [str(HERE / "sample_programs.py"), name, str(tmp_path)]
    done = run(
        *(sys.executable, *(launcher if num_ranks > 1 else ()), *program),
        cwd=tmp_path,
        options=["--no-trace"],
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    run_dir = tmp_path / "run"
    for rank in range(num_ranks):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        steps = recorded_steps(run_dir, rank)
        assert [step["samples"] for step in steps] == told["steps"]
        if "sequence" in name or "batch first" in name or name == "transposed":
            assert [step["tokens"] for step in steps] == [TOKENS_OF_A_SAMPLE * n for n in told["steps"]]
        else:
            assert {step["tokens"] for step in steps} == {None}
        assert not list(run_dir.glob("ranks/*/errors.jsonl"))
    document = report(run_dir)
    width = told["width"]
    if not width:
        assert document["throughput_samples_per_s"] is None
        (missing,) = (one for one in document["missing"] if one["what"] == "throughput")
        assert "`--samples-per-step`" in missing["reason"]
        return
    warm_up = max(1, min(3, len(told["steps"]) // 4))
    counted = [samples for samples in told["steps"][warm_up:] if samples is not None]
    mean, usual = statistics.fmean(counted), statistics.median(counted)
    assert document["samples_source"] == ("loader" if name in FROM_LOADER else "derived")
    if document["samples_per_step_range"] is None:
        assert document["samples_per_step"] == usual * width
        rate = mean * width * 1e9 / document["step_ns"]["median"]
    else:  # all samples over the time of their steps
        assert document["samples_per_step_range"] == [min(counted), max(counted)]
        assert document["samples_per_step"] == pytest.approx(mean * width)
        of_ranks = [recorded_steps(run_dir, rank)[warm_up:] for rank in range(num_ranks)]
        times_s = [sum(step["dur_ns"] for step in steps) / 1e9 for steps in of_ranks]
        rate = width * statistics.fmean(sum(counted) / time_s for time_s in times_s)
    assert document["throughput_samples_per_s"] == pytest.approx(rate, rel=1e-9)
    if document["throughput_tokens_per_s"] is not None:
        assert document["throughput_tokens_per_s"] == pytest.approx(rate * TOKENS_OF_A_SAMPLE, rel=1e-9)
