"""Layers with what belongs to none, and axes, add up to the exposed communication of the step breakdown.

Of every trace in the repository, whatever recorded it, to the nanosecond.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfscope.analysis.call_labels import CallLabels
from perfscope.analysis.results import Communication
from perfscope.analysis.run import analyze_run
from perfscope.ingest.importing import import_traces
from perfscope.rundir.reader import RunReader
from perfscope.rundir.schema import EXPORTED
from perfscope.vocabulary.communication import Unattributed
from tests.support.nsys_database import Database, training

DATA = Path(__file__).parents[2] / "data"
TRACES = sorted(path for path in (DATA / "traces").iterdir() if path.is_dir())
FRAMEWORKS = sorted(
    path for path in (DATA / "frameworks").rglob("*.gz") if path.name.endswith((".json.gz", ".pb.gz"))
)


def parts_of(communication: Communication) -> tuple[int, int]:
    """Sums over layers with what belongs to none, and over axes; ns."""
    by_layer = sum(entry.exposed_ns for entry in communication.by_layer)
    unattributed = sum(entry.exposed_ns for entry in communication.unattributed)
    return by_layer + unattributed, sum(entry.exposed_ns for entry in communication.by_axis)


def runs_of(path: Path, folder: Path) -> list[RunReader]:
    """A trace, or the ranks of a folder, imported; files that are no ranks are trainings of their own."""
    files = [path]
    if path.is_dir():  # an execution trace by itself has no times
        files = sorted(file for file in path.glob("*.json.gz") if not file.name.endswith(".et.json.gz"))
    if path.is_file():  # as the probe leaves it
        unpacked = folder / path.name.removesuffix(".gz")
        unpacked.write_bytes(gzip.decompress(path.read_bytes()))
        files = [unpacked]
    of_ranks = [file for file in files if file.name.startswith("rank")]
    groups = [of_ranks] if of_ranks else [[file] for file in files]
    for number, group in enumerate(groups):
        import_traces(group, folder / f"run{number}")
    return [RunReader(folder / f"run{number}") for number in range(len(groups))]


@pytest.mark.parametrize("path", [*TRACES, *FRAMEWORKS], ids=lambda path: str(path.relative_to(DATA)))
def test_every_call_has_group_and_axis_and_the_parts_add_up(tmp_path: Path, path: Path) -> None:
    for run in runs_of(path, tmp_path):
        check(run)


def test_they_add_up_in_a_trace_of_nsight_systems(tmp_path: Path) -> None:
    database = Database()
    database.session()
    training(database, 4000, steps=3)
    import_traces([database.write(tmp_path / "report.sqlite")], tmp_path / "run")
    check(RunReader(tmp_path / "run"))


def check(run: RunReader) -> None:
    analysis = analyze_run(run)
    assert analysis.ranks and analysis.communication is not None
    for rank in analysis.ranks:
        assert rank.breakdown_ns is not None and rank.communication is not None
        exposed = rank.breakdown_ns.exposed_comm
        assert rank.communication.exposed_ns == exposed
        assert parts_of(rank.communication) == (exposed, exposed)
    exposed = analysis.communication.exposed_ns
    assert parts_of(analysis.communication) == (exposed, exposed)
    labels = CallLabels(run, analysis.process_groups)
    num_calls = sum(
        check_labels(labels, run, analysis.communication, summary.rank, summary.window)
        for summary in run.summaries()
    )
    assert bool(analysis.communication.by_axis) == (num_calls > 0)


def check_labels(
    labels: CallLabels, run: RunReader, communication: Communication, rank: int, window: int
) -> int:
    """Timelines as they are exported: complete, and of the report's axes and layers. Gives how many calls."""
    recorded = run.timeline(rank, window)
    table = labels.labeled(recorded, rank, window)
    assert table.schema.names == EXPORTED.names
    axes = {entry.axis for entry in communication.by_axis}
    layers = {entry.layer for entry in communication.by_layer}
    for row, before in zip(table.to_pylist(), recorded.to_pylist(), strict=True):
        if row["kind"] != "comm":
            assert row["axis"] is row["unattributed"] is None
            assert (row["layer"], row["group"]) == (before["layer"], before["group"])
            continue
        assert row["group"] and row["axis"]
        assert (row["layer"] is None) == (row["unattributed"] is not None)
        assert row["unattributed"] is None or Unattributed(row["unattributed"])
        in_steps = row["unattributed"] not in ("outside_steps", "beside_devices")
        assert not in_steps or row["axis"] in axes
        assert row["layer"] is None or layers.issuperset(row["layer"].split("; "))
    return sum(kind == "comm" for kind in table.column("kind").to_pylist())
