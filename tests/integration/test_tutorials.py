"""The notebooks of docs/tutorials run, and were saved as they ran.

With PERFSCOPE_UPDATE_GOLDEN=1 those that run are saved anew; those that record runs need a machine without
other load, or they show that it was disturbed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read("notebook.ipynb", as_version=4)
NotebookClient(notebook, timeout=240, coalesce_streams=True).execute()
for cell in notebook.cells:
    cell.metadata.pop("execution", None)  # when it ran
notebook.metadata["language_info"] = {"name": "python"}
nbformat.write(notebook, "executed.ipynb")
"""
ABSOLUTE = re.compile(r"(?<![\w.~*<])/(?:home|root|tmp|work|usr|var|opt|data|Users)/")


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def texts_of(cell: dict[str, Any]) -> list[Any]:
    return [output.get("data", output).get("text/plain", output.get("text")) for output in cell["outputs"]]


def executed(notebook: Path, folder: Path) -> Path:
    """The notebook after a run in a fresh kernel, in a checkout with nothing else than test data."""
    there = folder / "docs" / "tutorials"
    there.mkdir(parents=True)
    (folder / "tests").symlink_to(ROOT / "tests")
    (there / "notebook.ipynb").write_bytes(notebook.read_bytes())
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE], check=False, cwd=there, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        notebook.write_bytes((there / "executed.ipynb").read_bytes())
    return there / "executed.ipynb"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["read-a-run", "compare-scaling"])
def test_a_tutorial_that_records_its_runs_works(name: str, tmp_path: Path) -> None:
    """Its figures are the machine's; each cell shows something where it did so when it was saved."""
    saved = ROOT / "docs" / "tutorials" / f"{name}.ipynb"
    for now, before in zip(code_cells(executed(saved, tmp_path)), code_cells(saved), strict=True):
        kinds = [{output["output_type"] for output in cell["outputs"]} for cell in (now, before)]
        assert kinds[0] == kinds[1], now["source"]


@pytest.mark.slow
def test_the_rule_over_recorded_traces_gives_the_golden_figures(tmp_path: Path) -> None:
    saved = ROOT / "docs" / "tutorials" / "own-rule.ipynb"
    for now, before in zip(code_cells(executed(saved, tmp_path)), code_cells(saved), strict=True):
        assert texts_of(now) == texts_of(before), now["source"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_outputs_hold_no_errors_and_no_paths_of_a_machine(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) > 5 and not any(output["output_type"] == "error" for output in outputs)
    text = "".join(json.dumps(output) for output in outputs)
    assert ABSOLUTE.search(re.sub(r'"image/png": "[^"]*"', "", text)) is None
    assert notebook.stat().st_size < 300_000
