"""`%%perfscope` in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from IPython.core.interactiveshell import InteractiveShell

import perfscope
from perfscope.api.magic import record_cell
from perfscope.errors import PerfscopeError, UsageError

CELL = """
import helper, perfscope
for _ in range(20):
    perfscope.step(samples=8)
    helper.work()
perfscope.step()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text("import time\ndef work(): time.sleep(0.005)\n")
    return tmp_path


def test_a_cell_is_recorded_and_its_run_is_the_result(capfd: pytest.CaptureFixture[str]) -> None:
    """Modules beside the notebook can be imported; the notebook's variables cannot be seen."""
    shell = cast(Any, InteractiveShell)(history_manager=None)
    perfscope.load_ipython_extension(shell)
    run = shell.run_cell_magic("perfscope", "-o kept --ceilings off --sample-interval off", CELL)
    assert isinstance(run, perfscope.Run)
    assert run.path == Path("kept").resolve() and run.table("steps").num_rows == 20
    assert "perfscope: run directory: kept" in capfd.readouterr().out


def test_a_cell_that_fails_is_an_error() -> None:
    with pytest.raises(PerfscopeError, match=r"exit code 3; what was recorded is in .*failed"):
        record_cell("-o failed --ceilings off --sample-interval off", "raise SystemExit(3)")


def test_ranks_need_a_number() -> None:
    with pytest.raises(UsageError, match="--ranks needs a number"):
        record_cell("--ranks two", CELL)
