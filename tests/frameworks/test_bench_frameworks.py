"""The same CNN in every framework that is here: losses agree with torch's, and a comparison says so.

Frameworks of another Python (MXNet): PERFSCOPE_MXNET_PYTHON names it.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.study.parity import EARLY_TOLERANCE, parity
from perfscope.cli.bench.framework_figures import PARITY
from perfscope.runners.config import BenchError
from perfscope.runners.frameworks.interpreters import find_interpreter
from perfscope.runners.frameworks.registry import FRAMEWORKS, NAMES, find_framework
from perfscope.runners.frameworks.request import framework_run
from tests.integration.run_support import PERFSCOPE, read_manifest, user_environment

pytestmark = pytest.mark.frameworks
SEVERAL = tuple(one.name for one in FRAMEWORKS if not one.one_process_because)
SETTINGS = ("--model", "lenet", "--batch", "8", "--steps", "8", "--momentum", "0.9", "--threads", "1")
QUIET = ("--ceilings", "off", "--sample-interval", "off", "--json")


def python_of(framework: str) -> str:
    """The Python that has it; skips the test where none has."""
    named = os.environ.get("PERFSCOPE_MXNET_PYTHON") if framework == "mxnet" else None
    try:
        return find_interpreter(find_framework(framework), named or None, None).path
    except BenchError as error:
        pytest.skip(str(error))


def bench(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFSCOPE, "bench", *words],
        cwd=cwd,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def trained(framework: str, folder: Path, *words: str) -> dict[str, Any]:
    """Figures of a run in `folder`."""
    result = bench(
        *("run", "--framework", framework, "--python", python_of(framework)),
        *(*SETTINGS, *words, *QUIET, "-o", str(folder)),
        cwd=folder.parent,
    )
    assert result.returncode == 0, result.stderr
    figures: dict[str, Any] = json.loads(result.stdout)["figures"]
    return figures


@cache
def reference(place: Path, *words: str) -> dict[str, Any]:
    """torch's on one process: of the whole batch, so that any number of processes must agree with it."""
    name = "-".join(word.strip("-") for word in words) or "lenet"
    return trained("torch", place / name, *words)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reference")


@pytest.mark.parametrize("framework", [name for name in NAMES if name != "torch"])
def test_losses_on_one_process_are_torchs(framework: str, place: Path, tmp_path: Path) -> None:
    figures = trained(framework, tmp_path / "run")
    found = parity(reference(place)["losses"], figures["losses"])
    assert found.agrees is True and found.num_steps == 8, (found, figures["losses"])
    assert figures["samples_per_s"] is not None and figures["num_ranks_recorded"] == 1, figures["missing"]


@pytest.mark.parametrize("framework", SEVERAL)
def test_losses_on_two_processes_are_those_of_one(framework: str, place: Path, tmp_path: Path) -> None:
    figures = trained(framework, tmp_path / "run", "--ranks", "2")
    found = parity(reference(place)["losses"], figures["losses"])
    assert found.agrees is True, (found, figures["losses"])
    assert figures["num_ranks_recorded"] == 2
    assert read_manifest(tmp_path / "run")["labels"]["ranks"] == "2"


# Padding, strides, normalization and shortcuts: what lenet has none of.
@pytest.mark.parametrize("framework", [name for name in NAMES if name not in ("torch", "horovod")])
def test_a_residual_network_agrees_too(framework: str, place: Path, tmp_path: Path) -> None:
    words = ("--model", "resnet50", "--input", "3x32x32", "--steps", "3", "--batch", "8", "--no-trace")
    figures = trained(framework, tmp_path / "run", *words)
    found = parity(reference(place, *words)["losses"], figures["losses"])
    assert found.agrees is True, (found, figures["losses"])


def losses_of_program(folder: Path, **settings: Any) -> list[float]:
    """Losses of the torch program, started as a plain program, without perfscope around it."""
    pytest.importorskip("torch")
    from perfscope.runners.frameworks.preparation import check, prepare

    given = {"model": "lenet", "batch": 8, "steps": 8, "momentum": 0.9, **settings}
    torch = find_framework("torch")
    run = framework_run(torch, given, default_learning_rate=lambda model: 0.05, threads=lambda ranks: 1)
    folder.mkdir()
    config, _ = prepare(run, check(run), folder)
    command = [python_of("torch"), str(torch.path), str(config)]
    subprocess.run(command, env=user_environment(), check=True, timeout=120)
    record = json.loads((folder / "ranks" / "0" / "bench.json").read_bytes())
    found: list[float] = record["losses"]
    return found


WRONG = {"momentum": 0.8, "lr": 0.049, "seed": 1, "classes": 17}


def test_a_wrong_convention_is_found_out(tmp_path: Path) -> None:
    right = losses_of_program(tmp_path / "right")
    assert parity(right, losses_of_program(tmp_path / "again")).max_difference == 0
    for name, value in WRONG.items():
        found = parity(right, losses_of_program(tmp_path / name, **{name: value}))
        assert found.agrees is False and (found.early_difference or 0) > 10 * EARLY_TOLERANCE, (name, found)


def test_one_command_compares_frameworks_and_keeps_the_verdict_with_the_runs(tmp_path: Path) -> None:
    python_of("jax")
    words = (
        "--models",
        "lenet",
        "--frameworks",
        "torch,jax",
        "--ranks",
        "2",
        "--steps",
        "8",
        "--batch",
        "8",
    )
    result = bench("frameworks", *words, "-o", "c", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Loss parity" in result.stdout and result.stdout.count("same") >= 2
    assert "next: perfscope compare c" in result.stderr
    manifest = read_manifest(tmp_path / "c" / "runs" / "lenet-jax-2-r1")
    assert manifest[PARITY]["agrees"] is True and manifest[PARITY]["reference"] == "lenet-torch-2"
    compared = subprocess.run(
        [*PERFSCOPE, "compare", "c", "--json"],
        cwd=tmp_path,
        env=user_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert compared.returncode == 0, compared.stderr
    document = json.loads(compared.stdout)
    assert document["by"] == "framework" and document["headline"].startswith("Both frameworks learn the same")
    (study,) = document["frameworks"]
    ways = {row["name"]: row["how"] for row in study["rows"]}
    assert ways["jax"].startswith("JAX: jit") and ways["torch"].startswith("PyTorch: eager")
