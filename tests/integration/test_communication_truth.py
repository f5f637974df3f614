"""Communication of libraries for distributed training has the layers and axes of the program's structure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from perfscope.vocabulary.communication import Unattributed
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import GAPS
from tests.integration import communication_programs, hybrid_programs
from tests.integration.run_support import PERFSCOPE, user_environment
from tests.integration.test_communication import exact

QUICK = ("ddp_buckets", "tp")
RIGHT = 0.99  # of the exposed time that has a layer by the program's structure
# The mesh names the axes.
BY_MESH = (
    *("fsdp2", "fsdp2_kept", "fsdp2_nested", "hsdp", "tp", "fsdp2_tp", "sp", "loss_parallel"),
    *("gpipe", "1f1b", "1f1b_4", "interleaved", "interleaved_3"),
)
PROGRAMS = {
    name: (module.__file__, *program)
    for module in (communication_programs, hybrid_programs)
    for name, program in module.PROGRAMS.items()
}
OF_A_THREAD = "thread"  # communicates in a helper thread, which a window does not trace


def report_of(name: str, folder: Path) -> dict[str, Any]:
    """The JSON report of a recorded program."""
    program, ranks, *_ = PROGRAMS[name]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    recorded = (*PERFSCOPE, "run", "-o", "run", "--ceilings", "off", "--sample-interval", "off", "--")
    for command in ((*recorded, *torchrun, program, name), (*PERFSCOPE, "report", "run", "--json")):
        ended = subprocess.run(
            command,
            cwd=folder,
            env=user_environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in PROGRAMS
        if name != OF_A_THREAD
    ],
)
def test_exposed_time_belongs_to_the_layers_and_axes_that_communicate(tmp_path: Path, name: str) -> None:
    report = report_of(name, tmp_path)
    for rank in report["ranks"]:
        exact(rank["communication"], rank["breakdown_ns"]["exposed_comm"])
    communication = report["communication"]
    exact(communication, communication["exposed_ns"])
    truth = PROGRAMS[name][3]
    of_layers = communication["exposed_ns"] - sum(
        entry["exposed_ns"]
        for entry in communication["unattributed"]
        if entry["reason"] == Unattributed.NO_LAYER_TENSORS
    )
    right = sum(
        time
        for entry in communication["by_layer"]
        for axis, time in entry["axes"].items()
        if entry["layer"] in truth.get(axis, ())
    )
    assert of_layers > 0
    assert right >= RIGHT * of_layers, (communication["by_layer"], communication["unattributed"])
    assert {entry["axis"] for entry in communication["by_axis"]} >= set(truth)
    if name in BY_MESH:
        assert not any(entry["inferred"] for entry in communication["by_axis"] if entry["axis"] in truth)


@pytest.mark.slow
def test_a_rank_that_reads_data_while_its_messages_are_under_way_waits_for_data(tmp_path: Path) -> None:
    report = report_of("pipeline", tmp_path)
    first, second = (rank["breakdown_ns"] for rank in report["ranks"])
    loading = hybrid_programs.MICROBATCHES * hybrid_programs.LOADING_SECONDS * 1e9
    assert first["input_wait"] >= loading  # a sleep takes at least its time
    assert first["exposed_comm"] < first["input_wait"]
    assert second["exposed_comm"] > 0.5 * loading and not second["input_wait"]


def test_communication_of_a_helper_thread_is_missing_and_not_zero(tmp_path: Path) -> None:
    report = report_of(OF_A_THREAD, tmp_path)
    (entry,) = (entry for entry in report["missing"] if entry["figure"] == Figure.EXPOSED_COMM.value)
    assert "calls of allreduce" in entry["reason"]
    assert report["communication"] is None
    for rank in report["ranks"]:
        assert rank["comm_ns"] is rank["overlap_ratio"] is rank["communication"] is None
        assert rank["breakdown_ns"]["exposed_comm"] is None
        assert sum(time or 0 for time in rank["breakdown_ns"].values()) == rank["breakdown_step_ns"]
    assert not {finding["id"] for finding in report["findings"]} & {kind.value for kind in GAPS}
    assert all(check["ok"] for check in report["self_checks"])
