"""docs/extending.md: its diffs are those of this code; a section and a finding are two files each."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perfscope
from tests.support.synthetic_run import SyntheticRun

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
PACKAGE = Path(perfscope.__file__).parent
REPORT = """
import sys
from pathlib import Path
from perfscope.analysis.run import analyze_run
from perfscope.reports.build import build_report
from perfscope.reports.html import render_html
from perfscope.reports.text import render_text
from perfscope.rundir.reader import RunReader
report = build_report(analyze_run(RunReader(Path(sys.argv[1]))), None)
print(render_text(report))
assert "cost-table" in render_html(report)
"""

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git to apply diffs with")


def diffs(heading: str) -> str:
    """The fenced diffs below a heading of the page."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(r"^```diff\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))


def apply(diff: str, folder: Path, *options: str) -> None:
    command = ["git", "apply", *options, "-"]
    done = subprocess.run(command, cwd=folder, input=diff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(PACKAGE, folder / "perfscope", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@needs_git
def test_a_section_and_a_finding_are_two_files_each(copied: Path, tmp_path: Path) -> None:
    for heading, num_new in (("Add a report section", 1), ("Add a finding", 2)):
        diff = diffs(heading)
        assert diff.count("--- /dev/null") == num_new
        apply(diff, copied)
    run = SyntheticRun(tmp_path, name="extended")
    for rank, samples in enumerate((8, 16)):
        run.rank(rank, overhead={"windows_ns": 0, "always_on_ns": 1_000_000})
        run.steps(rank, [10_000_000] * 20, samples=[samples] * 20)
    command = [sys.executable, "-c", REPORT, str(run.path)]
    done = subprocess.run(command, cwd=copied, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Batch sizes differ: rank 1 has 16 samples per step, rank 0 has 8." in done.stdout
    assert re.search(r"^Profiling overhead\n +Rank +Overhead +Share$", done.stdout, re.MULTILINE)


@needs_git
def test_the_new_axis_is_the_change_that_was_made(copied: Path) -> None:
    apply(diffs("Add a parallel axis"), copied, "--reverse", "--check")


def test_lines_that_excerpts_add_are_in_their_files() -> None:
    """Excerpts of diffs are indented; `...` stands for lines that are left out."""
    found = 0
    for path, block in re.findall(
        r"^    \+\+\+ b/perfscope/(\S+)\n((?:    .*\n|\n(?=    ))*)", PAGE, re.MULTILINE
    ):
        code = " ".join((PACKAGE / path).read_text(encoding="utf-8").split())
        for line in re.findall(r"^    \+(?!\+\+)(.*)$", block, re.MULTILINE):
            if line.strip() != "...":
                assert " ".join(line.split()) in code, f"{path}: {line}"
                found += 1
    assert found > 5
