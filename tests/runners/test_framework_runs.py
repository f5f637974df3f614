"""Framework runs against the torch runners: equal networks, weights, samples, losses; and environments."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import click
import torch

from perfscope.cli.main import cli
from perfscope.errors import EXIT_USAGE, PerfscopeError
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import open_feed
from perfscope.runners.frameworks import preparation
from perfscope.runners.frameworks.envs import creation
from perfscope.runners.frameworks.envs.pins import Pins
from perfscope.runners.frameworks.envs.store import READY, read_environment
from perfscope.runners.frameworks.registry import find_framework
from perfscope.runners.frameworks.request import FrameworkRun
from perfscope.runners.models.catalogue import MODELS
from perfscope.runners.models.registry import build_model
from tests.integration.run_support import PERFSCOPE, read_manifest, user_environment

SMALL = ("--model", "lenet", "--batch", "8", "--threads", "1", "--ceilings", "off")


def run_of(**settings: Any) -> FrameworkRun:
    config = BenchConfig(scheme="dp.ddp", threads=1, **settings)
    return FrameworkRun(framework=find_framework("torch"), config=config)


@pytest.fixture()
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """train_torch.py, as a plain program sees itself."""
    monkeypatch.syspath_prepend(str(Path(preparation.__file__).parent))
    import train_torch  # type: ignore[import-not-found]

    found: ModuleType = train_torch
    return found


@pytest.mark.parametrize("model", ["lenet", "smallcnn", "resnet50", "googlenet"])
def test_the_programs_network_is_the_runners_network(model: str, program: ModuleType) -> None:
    run = run_of(model=model, batch=4, input_shape=(3, 32, 32))
    reference, other = build_model(run.config), program.build(preparation.check(run))
    program.load(other, preparation.initial_weights(run.config))
    assert [name for name, _ in other.named_parameters()] == [
        name for name, _ in reference.named_parameters()
    ]
    inputs = open_feed(run.config).batch(0, 0, 1).inputs
    assert torch.equal(other(inputs), reference(inputs))


def test_models_whose_maps_do_not_divide_are_refused_with_a_way_out() -> None:
    with pytest.raises(BenchError, match=r"4x4 maps to 5x5.*--input"):
        preparation.check(run_of(model="lenet", input_shape=(1, 28, 28)))
    assert {"lenet", "smallcnn", "resnet50"} <= {one.name for one in MODELS}


def test_weights_and_samples_are_those_of_the_runners_and_of_the_seed(tmp_path: Path) -> None:
    run = run_of(model="lenet", batch=6, steps=3, seed=4)
    config, digests = preparation.prepare(run, preparation.check(run), tmp_path)
    document = json.loads(config.read_bytes())
    inputs, labels = np.load(document["inputs"]), np.load(document["labels"])
    feed = open_feed(run.config)
    for step in range(3):
        batch = feed.batch(step, 0, 1)
        np.testing.assert_array_equal(inputs[step], batch.inputs.numpy())
        np.testing.assert_array_equal(labels[step], batch.targets.numpy())
    weights = np.load(document["weights"])
    for name, value in build_model(run.config).state_dict().items():
        np.testing.assert_array_equal(weights[name], value.numpy())
    again, other = tmp_path / "again", tmp_path / "other"
    again.mkdir()
    other.mkdir()
    assert preparation.prepare(run, [], again)[1] == digests
    different = preparation.prepare(run_of(model="lenet", batch=6, steps=3, seed=5), [], other)[1]
    assert different["weights"] != digests["weights"] and different["samples"] != digests["samples"]


def test_samples_that_fit_nowhere_are_refused_before_they_are_written() -> None:
    with pytest.raises(BenchError, match="use fewer --steps"):
        preparation.check(run_of(model="lenet", steps=10**6, batch=64))


def bench(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFSCOPE, "bench", *words],
        cwd=cwd,
        env=user_environment(**variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.torch
def test_a_framework_run_is_an_ordinary_run_with_labels_and_the_losses_of_serial(tmp_path: Path) -> None:
    words = (*SMALL, "--steps", "8", "--json", "--sample-interval", "off")
    result = bench(
        "run",
        "--framework",
        "torch",
        *words,
        "--momentum",
        "0.9",
        "--label",
        "who=me",
        "-o",
        "run",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)["figures"]
    manifest = read_manifest(tmp_path / "run")
    assert manifest["labels"] == {"framework": "torch", "model": "lenet", "ranks": "1", "who": "me"}
    assert manifest["scheme"] is None and manifest["attached_ranks"] == 1
    assert manifest["options"]["framework_run"]["digests"].keys() == {"weights", "samples"}
    assert figures["samples_per_s"] > 0 and figures["num_ranks_recorded"] == 1
    serial = bench("run", "serial", *words, "--momentum", "0.9", "-o", "serial", cwd=tmp_path)
    assert serial.returncode == 0, serial.stderr
    record = json.loads((tmp_path / "serial" / "ranks" / "0" / "bench.json").read_bytes())
    assert figures["losses"] == pytest.approx(record["losses"], rel=1e-6)


@pytest.mark.torch
def test_a_process_that_fails_ends_the_others_and_is_told(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)\n")
    job = {
        "meeting": "torch",
        "python": sys.executable,
        "program": str(program),
        "config": "-",
        "size": 2,
        "threads": 1,
        "devices": [],
        "others_ended": str(tmp_path / "others-ended"),
    }
    command = [sys.executable, "-m", "perfscope.runners.frameworks.start", json.dumps(job)]
    ended = subprocess.run(
        command, env=user_environment(), capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 7
    assert ended.stderr == "perfscope bench: rank 1 ended with exit code 7; stopping the others\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["serial", "--framework", "torch"], "leave out the scheme serial"),
        (["--framework", "torch", "--cluster", "1x2@1gbit"], "leave out --cluster"),
        (["--framework", "torhc"], "did you mean torch"),
        (["--framework", "torch", "--label", "model=x"], "--label model is set by --framework"),
        (["--framework", "torch", "--model", "lenett"], "did you mean lenet"),
        (["--python", "x", "serial"], "--python and --env name the Python of a --framework"),
        ([], "name a SCHEME"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: list[str], expected: str, tmp_path: Path) -> None:
    with pytest.raises((PerfscopeError, click.ClickException)) as caught:
        cli.main(["bench", "run", *words, "-o", str(tmp_path / "run")], standalone_mode=False)
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert getattr(caught.value, "exit_code", None) == EXIT_USAGE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.torch
def test_a_comparison_leaves_out_what_is_not_there_and_goes_on(tmp_path: Path) -> None:
    words = ("frameworks", "--models", "lenet", "--frameworks", "torch,mxnet", "--ranks", "1")
    small = ("--steps", "6", "--batch", "8", "-o", "c")
    empty = str(tmp_path)  # no environment of the user's has an MXNet
    first = bench(*words, *small, "--json", cwd=tmp_path, XDG_CACHE_HOME=empty)
    assert first.returncode == 0, first.stderr
    torch_cell, mxnet_cell = json.loads(first.stdout)["cells"]
    assert torch_cell["runs"][0]["status"] == "done" and "cannot import mxnet" in mxnet_cell["skipped"]
    assert "next: perfscope compare --by framework" not in first.stderr  # one run alone
    again = bench(*words, *small, cwd=tmp_path, XDG_CACHE_HOME=empty)
    assert again.returncode == 0 and "1 run finished before; nothing is left to run" in again.stderr
    assert "lenet-mxnet-1" in again.stdout and "torch" in again.stdout
    order = bench(*words, *small, "--repeats", "2", "--dry-run", cwd=tmp_path, XDG_CACHE_HOME=empty)
    assert order.stdout.startswith("1 run, in this order")


# -- environments -------------------------------------------------------------------------------------


def write_index(folder: Path, version: str) -> str:
    """A package index of one wheel, `tiny`; its URL."""
    place = folder / "simple" / "tiny"
    place.mkdir(parents=True, exist_ok=True)
    name = f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    with zipfile.ZipFile(place / name, "w") as wheel:
        for path, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text)}")
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
    links = "".join(f'<a href="{one.name}">{one.name}</a>' for one in place.glob("*.whl"))
    (place / "index.html").write_text(f"<html><body>{links}</body></html>")
    return (folder / "simple").as_uri()


@pytest.mark.slow
def test_an_environment_is_made_finished_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # no index but ours
    monkeypatch.setenv("PIP_RETRIES", "1")  # pip tells of a lost connection when it tries again
    index = write_index(tmp_path, "1.0")
    wanted: dict[str, Any] = {"oldest": (3, 8), "newest": (3, 99), "megabytes": 1, "imports": ("tiny",)}
    pins = Pins(name="torch", packages=("tiny==1.0",), **wanted)
    lines: list[str] = []

    def create(pins: Pins) -> tuple[Any, bool]:
        base = tmp_path / "envs"
        return creation.create("e", pins, base, python=sys.executable, tell=lines.append, index_url=index)

    nowhere = "http://127.0.0.1:9/simple"
    with pytest.raises(BenchError, match="the package index cannot be reached"):
        creation.create(
            "e", pins, tmp_path / "envs", python=sys.executable, tell=lines.append, index_url=nowhere
        )
    newer = Pins(name="torch", packages=("tiny==2.0",), **wanted)
    with pytest.raises(BenchError, match=r"has no tiny==2\.0 .* \(all that was said: "):
        create(newer)
    unfinished = read_environment(tmp_path / "envs" / "e")
    assert unfinished is not None and unfinished.state != READY
    lines.clear()
    made, done = create(pins)
    assert done and made.state == READY and made.versions["tiny"] == "1.0"
    assert not any("virtual environment" in line for line in lines)  # of the first attempt: it goes on
    assert create(pins) == (made, False)
    write_index(tmp_path, "2.0")
    changed, done = create(newer)  # perfscope's pins have changed
    assert done and changed.versions["tiny"] == "2.0"
