"""Trainings under the libraries of torch: layer, axis and bytes of calls against what shapes tell."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("torch")

from perfscope.analysis.results import Communication
from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.communication import Unattributed
from tests.integration.run_support import run, user_environment
from tests.integration.test_communication import check_sums

TRAIN = str(Path(__file__).parent / "library_communication.py")
QUIET = ("--ceilings", "off", "--sample-interval", "off", "--overhead", "100%", "--windows", "2")


def truth_of(stdout: str) -> dict[tuple[str, str], int]:
    """(layer, axis) -> bytes per step, as the program printed them."""
    said = [line.split() for line in stdout.splitlines() if line.startswith("truth ")]
    return {(layer, axis): int(size) for _, layer, axis, size in said}


def check_attribution(communication: Communication, truth: dict[tuple[str, str], int]) -> None:
    """At least 99 % of the exposed time is at layers and axes of `truth`; bytes are exact."""
    of_layer: dict[str, int] = defaultdict(int)
    for (layer, _), size in truth.items():
        of_layer[layer] += size
    assert {entry.layer: entry.bytes for entry in communication.by_layer} == of_layer
    right = sum(
        exposed
        for entry in communication.by_layer
        for axis, exposed in entry.axes.items()
        if (entry.layer, axis) in truth
    )
    no_layer = sum(
        entry.exposed_ns
        for entry in communication.unattributed
        if entry.reason is Unattributed.NO_LAYER_TENSORS
    )
    assert right >= 0.99 * (communication.exposed_ns - no_layer), communication


PLAIN = [("ddp", 2), ("tp", 2)]
SLOW = [("fsdp2", 2)]


@pytest.mark.parametrize(
    ("program", "ranks"),
    [*PLAIN, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_communication_of_a_library_is_at_the_layer_and_axis_that_need_it(
    tmp_path: Path, program: str, ranks: int
) -> None:
    command = ("torchrun", "--standalone", "--nproc-per-node", str(ranks), TRAIN, program)
    ended: subprocess.CompletedProcess[bytes] = run(
        *command, cwd=tmp_path, options=QUIET, environment=user_environment()
    )
    assert ended.returncode == 0, ended.stderr.decode()
    ingest_run(tmp_path / "run")
    analysis = analyze_run(RunReader(tmp_path / "run"))
    for rank in analysis.ranks:
        assert rank.breakdown_ns is not None
        check_sums(rank.communication, rank.breakdown_ns.exposed_comm)
    assert analysis.communication is not None and analysis.communication.exposed_ns > 0
    check_attribution(analysis.communication, truth_of(ended.stdout.decode()))
