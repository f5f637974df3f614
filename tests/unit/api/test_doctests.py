"""Examples in docstrings of the API, and on its page of the documentation."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import matplotlib as mpl
import pytest

import perfscope
from tests.unit.cli.test_compare import recorded

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests" / "data" / "traces" / "cpu_gloo_2ranks"
MODULES = ("perfscope.api.run", "perfscope.api.study", "perfscope.api.plots")
NOT_INSTALLED = re.compile(r"^(import duckdb|import polars|%)", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the traces and the runs that examples name."""
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    (tmp_path / "traces").symlink_to(TRACES)
    for rank in range(2):
        (tmp_path / f"trace_rank{rank}.json.gz").symlink_to(TRACES / f"rank{rank}.json.gz")
    for count, step_ms in ((1, 100.0), (2, 60.0), (4, 40.0)):
        recorded(tmp_path / f"n{count}", count, step_ms)
    return tmp_path


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_show(module: str, folder: Path) -> None:
    """`run` is opened from recorded traces, `study` compares three small runs."""
    run = perfscope.load_traces("traces", output="my-run")
    study = perfscope.compare(["n1", "n2", "n4"], mode="strong")
    result = doctest.testmod(
        importlib.import_module(module),
        extraglobs={"perfscope": perfscope, "run": run, "study": study},
        optionflags=doctest.ELLIPSIS,
    )
    assert result.failed == 0 and result.attempted > 0


def test_the_code_of_the_page_runs(folder: Path) -> None:
    perfscope.load_traces("traces", output="my-run")
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    runnable = [block for block in blocks if not NOT_INSTALLED.search(block)]
    assert len(runnable) >= 4
    names: dict[str, object] = {}
    for block in runnable:
        exec(block.replace('output="my-run"', 'output="imported"'), names)
    assert {"report.html", "collectives.parquet", "scaling.pdf"} <= {path.name for path in folder.iterdir()}
