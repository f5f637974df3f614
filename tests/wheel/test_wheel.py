"""What the wheel carries. Runs against the installed distribution, not the checkout."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import perfscope

PACKAGE = Path(perfscope.__file__).parent


@pytest.mark.parametrize(
    "path",
    [
        "probes/bootstrap/agent.py",
        "probes/bootstrap/site/sitecustomize.py",
        "probes/torch/probe.py",
        "rundir/layout.py",
        "reports/assets",
        "py.typed",
    ],
)
def test_files_that_are_found_by_path_are_installed(path: str) -> None:
    assert (PACKAGE / path).exists()


def test_the_injected_directory_holds_only_sitecustomize() -> None:
    names = {path.name for path in (PACKAGE / "probes" / "bootstrap" / "site").iterdir()}
    assert names - {"__pycache__"} == {"sitecustomize.py"}


def test_torch_is_no_dependency() -> None:
    required = importlib.metadata.requires("perfscope-hpc") or []
    plain = [line for line in required if "extra ==" not in line and "python_version" not in line]
    assert not any(line.startswith("torch") for line in plain)
    assert len(plain) <= 10


def test_version_is_stated_once() -> None:
    assert importlib.metadata.version("perfscope-hpc") == perfscope.__version__
    shown = subprocess.run(
        [sys.executable, "-m", "perfscope", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert perfscope.__version__ in shown
