"""Programs of the frameworks people train with, plain and recorded, and what is recorded of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.run_support import PERFSCOPE, attached, user_environment

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent.parent / "data" / "ecosystem"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node")
ACCELERATE = (
    *("accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no"),
)
TIMM = str(Path(sys.prefix, "timm"))  # a folder of its own: tests/ecosystem/timm.txt
UV = ("uv", "run", "--no-project", "--offline", "--python", sys.executable)
# What differs between any two runs of the same program: times, rates, process ids.
_VARIES = re.compile(
    rb"'(?:eval|train)_(?:runtime|\w+_per_second)': '[^']*'|\[W\d[^\]]*\]|W\d{4} [\d:.]+ \d+ "
    rb"|\[\d{4}-\d\d-\d\d [\d:,]+\]"
    rb"|[\d.]+it/s|\d+(?:\.\d+)?s\b"
)


class Case(NamedTuple):
    """A program and what it does; `samples` and `tokens` are those of one rank in each step."""

    needs: str  # package
    command: tuple[str, ...]
    root: str | None  # None: its framework names none
    steps: int
    samples: list[int]
    ranks: int = 1
    tokens: int | None = None
    micro: int | None = 1  # forward passes of each step; None: they differ
    parts: tuple[str, ...] = ("steps",)  # of the whole run, and they took time


def _program(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(PROGRAMS / name), *arguments)


def _lightning(strategy: str, ranks: int, accumulate: int = 1) -> tuple[str, ...]:
    return ("python", *_program("lightning_fit.py", strategy, str(ranks), str(accumulate)))


_PARTS = ("steps", "evaluation", "checkpoint", "start_up")
_HF = ("transformers", "LlamaForCausalLM")
# The last micro-batches of an epoch are updated with, though they are fewer: 12 = 5 + 5 + 2, 24 = 4 x 5 + 4.
CASES = {
    "Lightning, one process": Case(
        "lightning", _lightning("auto", 1), "Classifier", 36, [8] * 36, parts=_PARTS
    ),
    "Lightning, accumulation": Case(
        "lightning", _lightning("auto", 1, 5), "Classifier", 9, [40, 40, 16] * 3, micro=None, parts=_PARTS
    ),
    "Lightning, ddp": Case(
        "lightning", _lightning("ddp", 2), "Classifier", 36, [8] * 36, ranks=2, parts=_PARTS
    ),
    "Lightning, ddp_spawn": Case(
        "lightning", _lightning("ddp_spawn", 2), "Classifier", 36, [8] * 36, ranks=2, parts=_PARTS
    ),
    "Lightning, FSDP2": Case(
        *("lightning", ("python", *_program("lightning_fsdp2.py")), "Sequential", 24, [8] * 24), ranks=2
    ),
    "Trainer, python": Case(
        *(_HF[0], ("python", *_program("hf_trainer.py", "2")), _HF[1], 24, [8] * 24),
        tokens=256,
        micro=2,
        parts=_PARTS,
    ),
    "Trainer, torchrun": Case(
        *(_HF[0], (*TORCHRUN, "2", *_program("hf_trainer.py", "2")), _HF[1], 24, [8] * 24),
        ranks=2,
        tokens=256,
        micro=2,
        parts=_PARTS,
    ),
    "Trainer, accelerate launch": Case(
        *(_HF[0], (*ACCELERATE, *_program("hf_trainer.py", "1")), _HF[1], 24, [4] * 24),
        tokens=128,
        parts=_PARTS,
    ),
    "accelerate, own loop": Case(
        *("accelerate", ("python", *_program("accelerate_loop.py", "5")), "Net", 10),
        [40, 40, 40, 40, 32] * 2,
        micro=None,
        parts=_PARTS,
    ),
    "DeepSpeed, ZeRO 1": Case(
        "deepspeed",
        (*TORCHRUN, "2", *_program("deepspeed_zero.py", "1", "1")),
        *("Sequential", 12, [8] * 12),
        ranks=2,
    ),
    "DeepSpeed, ZeRO 2, accumulation": Case(
        "deepspeed",
        (*TORCHRUN, "2", *_program("deepspeed_zero.py", "2", "4")),
        *("Sequential", 12, [32] * 12),
        ranks=2,
        micro=4,
    ),
    "DeepSpeed, ZeRO 3": Case(
        "deepspeed",
        (*TORCHRUN, "2", *_program("deepspeed_zero.py", "3", "1")),
        *("Sequential", 12, [8] * 12),
        ranks=2,
    ),
    "timm": Case(
        *("timm", ("python", *_program("timm_train.py", "1", TIMM)), "ResNet", 24, [8] * 24),
        parts=_PARTS,
    ),
    "timm, accumulation": Case(
        *("timm", ("python", *_program("timm_train.py", "5", TIMM)), "ResNet", 6, [40, 40, 16] * 2),
        micro=None,
        parts=_PARTS,
    ),
    # Ray kills its workers when the training function has returned, so that the last of 24 steps has no end.
    "Ray Train": Case("ray", ("python", *_program("ray_train.py")), "Sequential", 23, [8] * 23, ranks=2),
    "Flax NNX": Case("flax", ("python", *_program("flax_nnx.py")), None, 60, [16] * 60),
    "uv run": Case("uv", (*UV, *_program("notebook.py")), "Sequential", 40, [16] * 40),
}


def _environment() -> dict[str, str]:
    return user_environment(
        HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false"
    )


def _start(command: tuple[str, ...], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    cwd.mkdir()
    return subprocess.run(
        command,
        cwd=cwd,
        env=_environment(),
        capture_output=True,
        timeout=280,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _record(command: tuple[str, ...], tmp_path: Path) -> Path:
    """Run it plain and recorded: what it prints, returns and leaves is the same.

    Returns:
        The run directory.
    """
    plain = _start(command, tmp_path / "plain")
    run_dir = tmp_path / "run"
    recorded = _start(
        (*PERFSCOPE, "run", "--ceilings", "off", "-o", str(run_dir), "--", *command), tmp_path / "recorded"
    )
    assert plain.returncode == 0, plain.stderr.decode()[-3000:]
    assert recorded.returncode == 0, recorded.stderr.decode()[-3000:]
    assert _steady(recorded.stdout) == _steady(plain.stdout)
    assert set(_warnings(recorded.stderr)) <= set(_warnings(plain.stderr))
    assert _files(tmp_path / "recorded") == _files(tmp_path / "plain")
    return run_dir


def _steady(output: bytes) -> list[bytes]:
    return [_VARIES.sub(b"", line) for line in output.splitlines()]


def _warnings(stderr: bytes) -> list[bytes]:
    """Lines of the program: a bar of progress is rewritten as often as time allows."""
    lines = _steady(stderr)
    return [line for line in lines if line and b"%|" not in line and not line.startswith(b"perfscope: ")]


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _report(run_dir: Path) -> dict[str, Any]:
    done = subprocess.run(
        [*PERFSCOPE, "report", str(run_dir), "--json"], capture_output=True, timeout=120, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _steps(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    lines = (run_dir / "ranks" / str(rank) / "steps.jsonl").read_text("utf-8").splitlines()
    header, *rows = (json.loads(line) for line in lines)
    return [dict(zip(header["columns"], row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_recorded_as_it_is(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if find_spec(case.needs) is None and not Path(sys.prefix, case.needs).is_dir():
        pytest.skip(f"{case.needs} is not installed")
    run_dir = _record(case.command, tmp_path)
    assert attached(run_dir) == list(range(case.ranks))
    for rank in range(case.ranks):
        steps = _steps(run_dir, rank)
        assert len(steps) == case.steps
        assert [step["samples"] for step in steps] == case.samples
        assert {step["tokens"] for step in steps} == {case.tokens}
        assert case.micro is None or {step["num_micro"] for step in steps} == {case.micro}
        if case.root is not None:
            layers = json.loads((run_dir / "ranks" / str(rank) / "layers.json").read_bytes())
            assert layers["root"] == case.root
    report = _report(run_dir)
    _assert_traced(report, needs_layers=case.root is not None)
    whole = report["whole_run"]
    parts = {entry["part"]: entry["ns"] for entry in whole["parts"]}
    assert sum(parts.values()) == whole["wall_ns"]
    assert all(parts.get(part, 0) > 0 for part in case.parts), parts


def _assert_traced(report: dict[str, Any], *, needs_layers: bool) -> None:
    """The parts of the traced steps add up, layers have time, figures agree, and there is a verdict."""
    for rank in report["ranks"]:
        known = [part for part in rank["breakdown_ns"].values() if part is not None]
        assert sum(known) == rank["breakdown_step_ns"]
    if needs_layers:
        assert any(layer["forward_ns"] and layer["backward_ns"] for layer in report["layers"])
    assert all(check["ok"] for check in report["self_checks"]), report["self_checks"]
    assert report["findings"]


@pytest.mark.parametrize(("scheme", "axis"), [("2 2 1", "dp"), ("2 1 2", "tp")])
def test_stages_of_a_pipeline_of_divided_models(scheme: str, axis: str, tmp_path: Path) -> None:
    """Pipeline x FSDP2 and x tensor parallelism: steps of every rank, stages, communication by axis."""
    command = (*TORCHRUN, "4", *_program("pretrainer.py", *scheme.split()))
    run_dir = _record(command, tmp_path)
    assert attached(run_dir) == [0, 1, 2, 3]
    for rank in range(4):
        assert [(step["samples"], step["num_micro"]) for step in _steps(run_dir, rank)] == [(8, 4)] * 16
    report = _report(run_dir)
    assert report["pipeline"] is not None
    assert {"pp", axis} <= {entry["axis"] for entry in report["communication"]["by_axis"]}
    _assert_traced(report, needs_layers=True)


def test_each_trial_of_a_study_keeps_its_steps(tmp_path: Path) -> None:
    if find_spec("optuna") is None:
        pytest.skip("optuna is not installed")
    run_dir = _record(("python", *_program("optuna_study.py")), tmp_path)
    steps = _steps(run_dir, 0)
    assert [(step["samples"], step["num_micro"]) for step in steps] == [(16, 1)] * (25 + 25 + 15 + 25)


def test_a_notebook_is_recorded_in_its_kernel(tmp_path: Path) -> None:
    if find_spec("nbconvert") is None or find_spec("ipykernel") is None or shutil.which("jupyter") is None:
        pytest.skip("nbconvert or ipykernel is not installed")
    cells = (PROGRAMS / "notebook.py").read_text("utf-8").split("# %%\n")[1:]
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "cells": [
            *(
                {"cell_type": "code", "id": f"c{number}", "metadata": {}, "source": cell}
                | {"outputs": [], "execution_count": None}
                for number, cell in enumerate(cells)
            )
        ],
    }
    path = tmp_path / "training.ipynb"
    path.write_text(json.dumps(notebook), "utf-8")
    convert = ("jupyter", "nbconvert", "--to", "notebook", "--execute", "--stdout", str(path))
    done = _start(
        (*PERFSCOPE, "run", "--ceilings", "off", "-o", str(tmp_path / "run"), "--", *convert),
        tmp_path / "work",
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert len(_steps(tmp_path / "run", 0)) == 40
    assert _files(tmp_path / "work") == []


@pytest.mark.parametrize(
    ("library", "own"),
    [
        ("lightning", {"fit": 1, "sanity check": 1, "validate": 3, "run_training_epoch": 2}),
        ("transformers", {"train": 1, "epoch": 2, "training_step": 12}),
    ],
)
def test_callbacks_give_labels_samples_and_phases(library: str, own: dict[str, int], tmp_path: Path) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    run_dir = _record(("python", *_program("callbacks.py", library)), tmp_path)
    labels = json.loads((run_dir / "run.json").read_bytes())["labels"]
    assert labels == {"dataset": "random", "password": "<redacted>"}
    assert [step["samples"] for step in _steps(run_dir, 0)] == [40] * 12
    report = _report(run_dir)
    assert report["samples_source"] == "program"
    counts = dict.fromkeys(own, 0)
    for phase in report["phases"]:
        if phase["name"] in counts:  # validation is also part of Lightning's sanity check
            counts[phase["name"]] += phase["ranks"][0]["count"]
    assert counts == own
    assert not any(rank["is_open"] for phase in report["phases"] for rank in phase["ranks"])
