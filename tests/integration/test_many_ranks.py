"""The report of a thousand ranks: a page that opens, twelve pages of paper, thirty lines of text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.reports.pdf import MOST_PAGES, num_pages
from tests.integration.run_support import PERFSCOPE, user_environment

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale.py"
MOST_BYTES = 3_000_000


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["1", "3"])
def test_a_thousand_ranks_fit_a_page_and_twelve_sheets(tmp_path: Path, axes: str) -> None:
    run = tmp_path / "run"
    options = ["--ranks", "1024", "--axes", axes, "--layers", "40", "--keep", str(run)]
    subprocess.run([sys.executable, str(SCALE), *options], check=True, capture_output=True, timeout=600)
    words = [*PERFSCOPE, "report", str(run)]
    done = subprocess.run(
        words, env=user_environment(), capture_output=True, text=True, check=True, timeout=600
    )
    assert len(done.stdout.splitlines()) <= 30
    page = (run / "report.html").read_bytes()
    assert len(page) <= MOST_BYTES
    assert b"64 of 1,024 ranks" in page
    assert num_pages((run / "report.pdf").read_bytes()) <= MOST_PAGES
