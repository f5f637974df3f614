"""Damaged files of every format: one line or the figures with notes, never an internal error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.ingest.formats.registry import FORMATS
from tests.support.trace_samples import Sample, samples

ROOT = Path(__file__).parents[4]
NAMES = [one.name for one in FORMATS]
CASES = [(one, sample) for one, group in sorted(samples().items()) for sample in group]


def perfscope(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfscope", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_every_format_has_a_sample() -> None:
    assert sorted(samples()) == sorted(NAMES)


@pytest.mark.parametrize(("name", "sample"), CASES, ids=[sample.name for _, sample in CASES])
def test_the_sample_as_it_is_has_figures(name: str, sample: Sample, tmp_path: Path) -> None:
    (tmp_path / sample.name).write_bytes(sample.data)
    done = perfscope("import", sample.name, "-o", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (trace,) = json.loads(done.stdout)["traces"]
    assert trace["format"] == name
    assert trace["events"]["kept"] > 0


def damaged(name: str, first: int, number: int, folder: Path) -> object:
    words = ["-m", "tests.support.damaged_imports", name, str(first), str(number), str(folder)]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_one_line_or_a_note(name: str, tmp_path: Path) -> None:
    assert damaged(name, 0, 25, tmp_path) == []


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_more_damage_is_one_line_or_a_note(name: str, part: int, tmp_path: Path) -> None:
    assert damaged(name, 1000 * (part + 1), 250, tmp_path) == []


def test_what_is_no_file_is_one_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "trace.json").symlink_to("trace.json")
    (tmp_path / "loop" / "loop").symlink_to("loop")
    (tmp_path / "dangling.json").symlink_to("not-there.json")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    names = ("empty", "empty.json", "loop", "loop/trace.json", "dangling.json", "pipe.json", "folder.json")
    for name in names:
        done = perfscope("import", name, "-o", "run", cwd=tmp_path)
        assert done.returncode == 1, (name, done.stderr)
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"perfscope: {name}"), line
        assert "internal error" not in line
        assert not (tmp_path / "run").exists()
