"""The first screen alone: of nine families of planted problems it names the problem and what to do.

What a reader sees before the first section: the run, the verdict with its action, tiles and small charts.
Seven families are played by the emulator, two are trainings recorded on a GPU (tests/data/gpu_runs).
"""

from __future__ import annotations

import html
import re
import tarfile
from pathlib import Path

import pytest

from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.rundir.reader import RunReader
from tests.planted.cases import CAUSES, Case, draw
from tests.planted.emulate import run
from tests.planted.recording import EmulatedRun

SEED = 7
GPU_RUNS = Path(__file__).parents[1] / "data" / "gpu_runs"
# Family -> what the headline and the action must say; {rank} and {layer} are where it was planted.
NAMED = {
    "straggler": ("Rank {rank} is the straggler", "{layer} on rank {rank}"),
    "slow_link": ("Limited by network bandwidth", "faster link"),
    "input_bound": ("Input-bound", "DataLoader"),
    "model_split": ("The model is split unevenly: rank {rank} computes", "from rank {rank}"),
    "numa_remote": ("Rank {rank} runs on NUMA node", "numactl"),
    "small_collectives": ("calls per step carry only", "bucket_cap_mb"),
    "disturbed": ("Other processes slowed the steps", "idle machine"),
}


def first_screen(page: str) -> tuple[str, str, str]:
    """Headline, action, and all text above the sections."""
    top = page[page.index("<main>") : page.index('<section id="')]

    def text(part: str) -> str:
        return html.unescape(" ".join(re.sub(r"<[^>]+>", "", part).split()))

    headline = re.search(r"<h1>(.*?)</h1>", top, re.DOTALL)
    action = re.search(r'<p class="action">(.*?)</p>', top, re.DOTALL)
    assert headline is not None and action is not None, text(top)
    return text(headline[1]), text(action[1]), text(top)


@pytest.mark.parametrize("cause", CAUSES)
def test_problem_and_action_are_on_the_first_screen(cause: str) -> None:
    case: Case = draw(SEED, cause)
    analysis = analyze_run(EmulatedRun(case.job, run(case.job)))
    headline, action, every = first_screen(render_html(build_report(analysis, None)))
    problem, remedy = (words.format(rank=case.rank, layer=case.layer) for words in NAMED[cause])
    assert problem in headline
    assert remedy in action
    assert "confidence" in every.lower()


@pytest.mark.parametrize(
    ("recorded", "problem", "remedy"),
    [("copy", "Copies take", "non_blocking=True"), ("allocator", "cudaMalloc", "PYTORCH_CUDA_ALLOC_CONF")],
)
def test_a_recorded_problem_of_a_gpu_and_its_action_are_there(
    tmp_path: Path, recorded: str, problem: str, remedy: str
) -> None:
    with tarfile.open(GPU_RUNS / f"{recorded}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    ingest_run(tmp_path)
    headline, action, _ = first_screen(render_html(build_report(analyze_run(RunReader(tmp_path)), None)))
    assert problem in headline
    assert remedy in action
