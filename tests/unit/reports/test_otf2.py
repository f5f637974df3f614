"""The OTF2 archive, read again by the package's own reader."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.errors import PerfscopeError
from perfscope.reports.otf2_archive import write_otf2
from tests.unit.reports.test_speedscope import EPOCH, part

otf2 = pytest.importorskip("otf2")
TRACES = Path(__file__).parents[2] / "data" / "traces" / "cpu_gloo_2ranks"


def read(folder: Path) -> list[tuple[str, str, str, int]]:
    """(kind, process and location, region, time) of each event."""
    with importlib.import_module("otf2").reader.open(str(folder / "traces.otf2")) as trace:
        return [
            (type(event).__name__, f"{place.group.name}: {place.name}", event.region.name, event.time)
            for place, event in trace.events
        ]


def test_each_rank_is_a_process_and_its_spans_enter_and_leave(tmp_path: Path) -> None:
    first, second = part(0, ("step", 0, 100), ("mm", 10, 40)), part(1, ("step", 5, 50), lane=3)
    assert write_otf2([first, second], "run", tmp_path / "archive") == 3
    main, other = "rank 0: main thread", "rank 1: thread 3"
    assert sorted(read(tmp_path / "archive"), key=lambda event: (event[1], event[3])) == [
        ("Enter", main, "step", EPOCH),
        ("Enter", main, "mm", EPOCH + 10),
        ("Leave", main, "mm", EPOCH + 40),
        ("Leave", main, "step", EPOCH + 100),
        ("Enter", other, "step", EPOCH + 5),
        ("Leave", other, "step", EPOCH + 50),
    ]


def test_a_folder_that_is_there_is_not_written_into(tmp_path: Path) -> None:
    with pytest.raises(PerfscopeError, match="is there already"):
        write_otf2([part(0, ("step", 0, 1))], "run", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_every_span_of_a_run(tmp_path: Path) -> None:
    def perfscope(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "perfscope", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    assert perfscope("import", str(TRACES), "-o", "run").returncode == 0
    done = perfscope("export", "run", "--format", "otf2", "-o", "archive")
    assert done.returncode == 0, done.stderr
    csv = perfscope("export", "run", "--format", "csv")
    count = sum(1 for line in Path(tmp_path, csv.stdout.strip()).read_text().splitlines()) - 1
    assert sum(kind == "Enter" for kind, *_ in read(tmp_path / "archive")) == count
    again = perfscope("export", "run", "--format", "otf2", "-o", "archive")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
