"""Many framework runs: what is run, kept and left out; which Python; what a run is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from perfscope.cli.compare import find_runs
from perfscope.cli.main import cli
from perfscope.launch.environment import ProbeOptions
from perfscope.probes.windows import Windows
from perfscope.runners.config import BenchError
from perfscope.runners.frameworks.interpreters import find_interpreter, other_release
from perfscope.runners.frameworks.matrix import (
    FrameworkCell,
    changed_cells,
    continued,
    load_cells,
    run_all,
    run_order,
    save_cells,
)
from perfscope.runners.frameworks.registry import find_framework
from tests.unit.runners.frameworks.test_models import request


def cell(name: str, digest: str = "a", **more: Any) -> FrameworkCell:
    model, framework, ranks = name.split("-")
    return FrameworkCell(
        name=name, framework=framework, model=model, ranks=int(ranks), digest=digest, words=[name], **more
    )


def finished(folder: Path, one: FrameworkCell, repeat: int = 1) -> None:
    run = {"repeat": repeat, "path": f"runs/{one.name}-r{repeat}", "status": "done", "seconds": 1.0}
    one.runs.append({**run, "error": None, "figures": {"samples_per_s": 10.0 * repeat}})
    (folder / run["path"]).mkdir(parents=True)  # type: ignore[operator]
    (folder / run["path"] / "run.json").write_text("{}")  # type: ignore[operator]


def test_a_comparison_goes_on_with_what_is_left_and_changed_cells_run_again(tmp_path: Path) -> None:
    old = [cell("lenet-torch-1"), cell("lenet-jax-1"), cell("lenet-mxnet-1")]
    for one in old:
        finished(tmp_path, one)
    old[2].runs.append({**old[2].runs[0], "repeat": 2, "status": "pending", "figures": None})
    wanted = [cell("lenet-torch-1"), cell("lenet-jax-1", "another release")]
    assert [one.name for one in changed_cells(wanted, old)] == ["lenet-jax-1"]
    every = continued(wanted, old, 2, tmp_path, retry_failed=False)
    assert [one.name for one in every] == ["lenet-torch-1", "lenet-jax-1", "lenet-mxnet-1"]
    left = sorted((one.name, run["repeat"]) for one, run in run_order(wanted))
    assert left == [("lenet-jax-1", 1), ("lenet-jax-1", 2), ("lenet-torch-1", 2)]


def test_only_what_was_asked_for_runs_and_the_folder_keeps_the_rest(tmp_path: Path) -> None:
    other = cell("lenet-mxnet-1")
    other.runs.append({**pending(other), "status": "pending"})
    wanted = cell("lenet-torch-1")
    wanted.runs.append(pending(wanted))
    program = "import json; print(json.dumps({'figures': {'samples_per_s': 5.0}}))"
    ended: list[str] = []
    run_all(
        [wanted],
        [wanted, other],
        tmp_path,
        (sys.executable, "-c", program),
        60,
        begins=lambda one, run, at, total: None,
        ended=lambda one, run: ended.append(one.name),
    )
    assert ended == ["lenet-torch-1"]
    kept = {one.name: one.runs[0]["status"] for one in load_cells(tmp_path)}
    assert kept == {"lenet-torch-1": "done", "lenet-mxnet-1": "pending"}


def pending(one: FrameworkCell) -> dict[str, Any]:
    run = {"repeat": 1, "path": f"runs/{one.name}-r1", "status": "pending"}
    return {**run, "seconds": None, "error": None, "figures": None}


def test_a_folder_of_a_comparison_stands_for_its_runs(tmp_path: Path) -> None:
    cells = [cell("lenet-torch-1"), cell("lenet-jax-1"), cell("lenet-mxnet-1", skipped="not installed")]
    finished(tmp_path, cells[0])
    cells[1].runs.append({**pending(cells[1]), "status": "failed", "error": "exit code 1: no"})
    save_cells(cells, tmp_path)
    lost: list[tuple[str, str]] = []
    places = find_runs([tmp_path], lost)
    assert [place.path for place in places] == [tmp_path / "runs" / "lenet-torch-1-r1"]
    assert [reason for _, reason in lost] == ["failed: exit code 1: no", "not installed"]


# -- what is asked ------------------------------------------------------------------------------------


def frameworks(*words: str) -> Result:
    return CliRunner().invoke(cli, ["bench", "frameworks", "--models", "lenet", "--dry-run", *words])


def test_a_python_that_was_named_and_cannot_be_used_is_no_reason_to_leave_its_framework_out(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    place = ("-o", str(tmp_path / "c"))
    result = frameworks("--frameworks", "torch,jax", "--python", f"jax={broken}", *place)
    assert "jax: " in str(result.exception) and "does not run as a Python" in str(result.exception)
    result = frameworks("--frameworks", "torch", "--python", f"jax={broken}", *place)
    assert "is not among the --frameworks: torch" in str(result.exception)
    assert not (tmp_path / "c").exists()


def test_a_broken_environment_does_not_hide_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-broken", "b-good"):
        folder = tmp_path / "perfscope" / "envs" / name
        (folder / "bin").mkdir(parents=True)
        told = {"framework": "jax", "state": "ready", "packages": []}
        (folder / "perfscope-env.json").write_text(json.dumps(told))
    good = tmp_path / "perfscope" / "envs" / "b-good" / "bin" / "python"
    answer = json.dumps({"python": "3.11.7", "missing": [], "versions": {"jax": "0.4.30"}})
    good.write_text(f"#!/bin/sh\necho '{answer}'\n")
    good.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(lacking(tmp_path)))
    found = find_interpreter(find_framework("jax"), None, None, {"XDG_CACHE_HOME": str(tmp_path)})
    assert (found.path, found.version) == (str(good), "0.4.30")


def lacking(folder: Path) -> Path:
    python = folder / "bare"
    answer = json.dumps({"python": "3.11.7", "missing": ["jax"], "versions": {}})
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("framework", "version", "is_other"),
    [
        ("jax", "0.10.9", False),
        ("jax", "0.4.30", True),
        ("keras-jax", "2.15.0", True),
        ("keras-jax", "3.9.0", False),
        ("tensorflow", "1.15.0", True),
        ("mxnet", "1.8.0", False),
        ("mxnet", "2.0.0", True),
        ("horovod", "0.28.0", False),
        ("torch", "", False),
    ],
)
def test_another_major_release_is_said(framework: str, version: str, is_other: bool) -> None:
    said = other_release(find_framework(framework), version)
    assert (f"{framework} {version} is another release than" in said) == is_other
    assert bool(said) == is_other


# -- files of a run -----------------------------------------------------------------------------------


def test_samples_are_laid_out_as_the_framework_wants_them_and_have_one_digest(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from perfscope.runners.frameworks.preparation import check, prepare

    found = {}
    for name in ("torch", "jax", "mxnet"):
        run = request(name, model="lenet", steps=2, batch=4)
        (tmp_path / name).mkdir()
        config, digests = prepare(run, check(run), tmp_path / name)
        found[name] = (np.load(tmp_path / name / "inputs.npy"), digests, json.loads(config.read_text()))
    torch_inputs, jax_inputs = found["torch"][0], found["jax"][0]
    assert torch_inputs.shape == (2, 4, 3, 32, 32) and jax_inputs.shape == (2, 4, 32, 32, 3)
    np.testing.assert_array_equal(np.moveaxis(jax_inputs, -1, 2), torch_inputs)
    assert found["torch"][1] == found["jax"][1] == found["mxnet"][1]
    # MXNet's workers wait for one another when they end: rank 0 waiting, too, would be a minute lost.
    assert found["mxnet"][2]["others_ended"] == "" and found["torch"][2]["others_ended"]


def test_batch_norm_over_all_processes_is_another_training_and_refused() -> None:
    """Measured: Keras on JAX with two processes has the losses of torch with one."""
    pytest.importorskip("torch")
    from perfscope.runners.frameworks.preparation import check

    assert check(request("keras-jax", model="resnet50", batch=4))
    assert check(request("keras-jax", model="lenet", batch=4, ranks=2))
    assert check(request("jax", model="resnet50", batch=4, ranks=2))
    with pytest.raises(BenchError, match="normalizes over the samples of all of them"):
        check(request("keras-jax", model="resnet50", batch=4, ranks=2))
    with pytest.raises(BenchError, match="a batch of at least 8"):
        check(request("jax", model="resnet50", batch=4, ranks=4))


def test_the_traced_window_begins_where_it_is_asked_to() -> None:
    """Compiled frameworks are slow for more steps than the probe's own first window waits."""
    recorder: Any = SimpleNamespace(run_dir="")
    asked = ProbeOptions(windows=1, first_step=20).as_dict()
    windows = Windows(recorder, asked, None, None, None)
    assert not windows.wants(19) and windows.wants(20)
    assert "first_step" not in ProbeOptions().as_dict()
    early = Windows(recorder, {**ProbeOptions().as_dict(), "first_step": 0}, None, None, None)
    assert not early.wants(2) and early.wants(3)
