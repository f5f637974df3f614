"""The same CNN in several frameworks, without any: layouts, batches, requests, meetings, and loss parity."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analysis.study.parity import (
    EARLY_STEPS,
    EARLY_TOLERANCE,
    MIN_STEPS,
    PARITY_STEPS,
    TOLERANCE,
    mean_losses,
    parity,
)
from perfscope.cli.bench.framework import planned_run
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.registry import num_visible
from perfscope.runners.config import BenchError
from perfscope.runners.frameworks import layouts
from perfscope.runners.frameworks.registry import FRAMEWORKS, NAMES, find_framework
from perfscope.runners.frameworks.rendezvous import (
    Start,
    common_environment,
    devices_of,
    free_ports,
    tasks_of,
)
from perfscope.runners.frameworks.request import FrameworkRun, framework_run
from perfscope.runners.frameworks.train_common import CellProcess, main
from perfscope.vocabulary.frameworks import REFERENCE

PROGRAMS = sorted(Path(layouts.__file__).parent.glob("train_*.py"))
CURVE = [2.77 * math.exp(-0.05 * step) for step in range(30)]


def request(framework: str = "jax", **settings: Any) -> FrameworkRun:
    return framework_run(
        find_framework(framework), settings, default_learning_rate=lambda model: 0.05, threads=lambda ranks: 1
    )


# -- layouts ------------------------------------------------------------------------------------------


def test_convolutions_go_to_another_layout() -> None:
    weight = np.arange(6 * 3 * 5 * 4, dtype=np.float32).reshape(6, 3, 5, 4)
    other = layouts.conv_to_hwio(weight)
    assert other.shape == (5, 4, 3, 6) and other.flags.c_contiguous
    assert other[2, 1, 0, 4] == weight[4, 0, 2, 1]
    np.testing.assert_array_equal(other.transpose(3, 2, 0, 1), weight)


def test_linear_layers_are_transposed() -> None:
    weight = np.random.default_rng(0).standard_normal((7, 60)).astype(np.float32)
    other = layouts.linear_to_in_out(weight)
    assert other.flags.c_contiguous
    np.testing.assert_array_equal(other, weight.T)


def test_a_linear_layer_behind_maps_computes_the_same_on_either_order_of_its_inputs() -> None:
    random = np.random.default_rng(1)
    maps, weight = random.standard_normal((2, 3, 4, 5)), random.standard_normal((7, 60))
    expected = maps.reshape(2, -1) @ weight.T
    nhwc = layouts.images_to_nhwc(maps)
    found = nhwc.reshape(2, -1) @ layouts.linear_to_in_out(weight, (3, 4, 5))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    wrong = nhwc.reshape(2, -1) @ layouts.linear_to_in_out(weight)  # the order forgotten
    assert np.abs(wrong - expected).max() > 0.1


def test_a_convolution_computes_the_same_in_either_layout() -> None:
    random = np.random.default_rng(2)
    image, weight = random.standard_normal((1, 2, 4, 4)), random.standard_normal((3, 2, 4, 4))
    expected = np.einsum("nchw,ochw->no", image, weight)  # one window
    found = np.einsum("nhwc,hwco->no", layouts.images_to_nhwc(image), layouts.conv_to_hwio(weight))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# -- the programs -------------------------------------------------------------------------------------


def test_every_framework_has_its_program() -> None:
    assert {one.path for one in FRAMEWORKS} | {PROGRAMS[0].with_name("train_common.py")} == set(PROGRAMS)


@pytest.mark.parametrize("path", [*PROGRAMS, Path(layouts.__file__)], ids=lambda path: path.name)
def test_programs_need_no_perfscope_and_parse_as_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    allowed = {"numpy", "torch", "tensorflow", "keras", "jax", "mxnet", "horovod", "layouts", "__future__"}
    allowed |= {one.stem for one in PROGRAMS}
    ifs = [one for one in ast.walk(tree) if isinstance(one, ast.If)]
    for guard in (one for one in ifs if ast.unparse(one.test) == "TYPE_CHECKING"):
        guard.body = []  # what only type checkers see
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.split(".")[0]
            assert top in allowed or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_what_programs_share_loads_under_a_python_without_perfscope() -> None:
    code = "import train_common, layouts, sys; assert not any('perfscope' in name for name in sys.modules)"
    environment = {"PYTHONPATH": str(PROGRAMS[0].parent)}
    numpy_place = str(Path(np.__file__).parents[1])
    code = f"import sys; sys.path.append({numpy_place!r}); {code}"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def write_config(folder: Path, **changes: Any) -> Path:
    inputs = np.arange(2 * 6 * 3, dtype=np.float32).reshape(2, 6, 3, 1, 1)
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", np.arange(12, dtype=np.int32).reshape(2, 6))
    weights: dict[str, Any] = {"fc.weight": np.ones((2, 3), np.float32)}
    np.savez(folder / "weights.npz", **weights)
    document = {
        "framework": "torch",
        "layers": [],
        "steps": 2,
        "batch": 6,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "num_classes": 2,
        "input_shape": [3, 1, 1],
        "threads": 1,
        "device": "cpu",
        "inputs": str(folder / "inputs.npy"),
        "labels": str(folder / "labels.npy"),
        "weights": str(folder / "weights.npz"),
        "others_ended": str(folder / "others-ended"),
        "folder": str(folder),
        **changes,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return path


def test_the_parts_of_all_processes_are_the_batch_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path)
    parts = []
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        cell = CellProcess(str(path))
        assert cell.share == 2
        parts.append(list(cell.batches()))
    inputs, labels = np.load(tmp_path / "inputs.npy"), np.load(tmp_path / "labels.npy")
    for step in range(2):
        np.testing.assert_array_equal(np.concatenate([one[step][0] for one in parts]), inputs[step])
        np.testing.assert_array_equal(np.concatenate([one[step][1] for one in parts]), labels[step])


def test_a_cell_leaves_its_losses_and_times_where_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path)
    monkeypatch.setenv("PERFSCOPE_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def train(cell: CellProcess) -> None:
        assert cell.weights()["fc.weight"].shape == (2, 3)
        cell.begin()
        cell.step_done(2.5)
        cell.step_done(math.nan)

    assert main(train, [str(path)]) == 0
    record = json.loads((tmp_path / "run" / "ranks" / "0" / "bench.json").read_bytes())
    assert record["losses"] == [2.5, None]
    assert len(record["step_ends_ns"]) == 3 and sorted(record["step_ends_ns"]) == record["step_ends_ns"]
    assert record["peak_rss_bytes"] > 1e6


def test_rank_0_leaves_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config(tmp_path)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            (tmp_path / "others-ended").touch()

    monkeypatch.setattr("perfscope.runners.frameworks.train_common.time.sleep", sleep)
    assert main(lambda cell: cell.begin(), [str(path)]) == 0
    assert len(looks) == 3


def test_a_fault_of_the_training_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(cell: CellProcess) -> None:
        raise ValueError("shapes\ndo not fit")

    assert main(train, [str(write_config(tmp_path))]) == 1
    said = capsys.readouterr().err
    assert "ValueError: shapes do not fit" in said and len(said.splitlines()) == 1
    assert main(train, []) == 2


# -- requests -----------------------------------------------------------------------------------------


def test_a_request_has_the_labels_that_comparisons_group_by() -> None:
    run = request("jax", model="lenet", ranks=2)
    assert run.labels == {"framework": "jax", "model": "lenet", "ranks": "2"}
    assert run.config.batch == 32 and run.config.learning_rate == 0.05 and run.config.threads == 1
    assert request("jax").config.num_ranks == 1


def test_the_digest_changes_with_what_decides_a_run() -> None:
    digests = {
        request("jax", model="lenet").digest,
        request("torch", model="lenet").digest,
        request("jax", model="smallcnn").digest,
        request("jax", model="lenet", momentum=0.9).digest,
        request("jax", model="lenet", ranks=2).digest,
    }
    assert len(digests) == 5
    assert request("jax", model="lenet").digest == request("jax", model="lenet").digest


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mesh": ({"mesh": "2,1"}, "--mesh belongs to parallel schemes"),
    "period": ({"period": 3}, "--period belongs to parallel schemes"),
    "float64": ({"dtype": "float64"}, "--dtype can only be float32"),
    "dropout": ({"dropout": 0.5}, "--dropout can only be 0"),
    "uneven batch": ({"batch": 7, "ranks": 2}, "cannot be cut into 2 equal parts"),
    "no steps": ({"steps": 0}, "steps: must be a whole number from 1"),
    "lr rule": ({"lr_rule": "linear"}, "--lr-rule belongs to parallel schemes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_framework_run_cannot_be_is_one_line(name: str) -> None:
    settings, expected = REFUSED[name]
    with pytest.raises(BenchError) as caught:
        request("jax", **settings)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_keras_on_tensorflow_says_why_it_trains_on_one_process_only() -> None:
    assert request("keras-tensorflow").config.num_ranks == 1
    with pytest.raises(BenchError, match=r"2 processes is not supported: .*20585"):
        request("keras-tensorflow", ranks=2)


def test_unknown_frameworks_name_the_nearest() -> None:
    with pytest.raises(BenchError, match="did you mean tensorflow"):
        find_framework("tensorflw")
    with pytest.raises(BenchError, match="keras-jax"):
        find_framework("keras")
    assert REFERENCE in NAMES


# -- how processes meet -------------------------------------------------------------------------------


def start(size: int) -> Start:
    return Start(python="/venv/bin/python", program="train.py", config="config.json", size=size, threads=1)


def test_on_gpus_each_rank_sees_its_own_of_those_that_are_visible() -> None:
    devices = devices_of(2, {"CUDA_VISIBLE_DEVICES": "GPU-aa, GPU-bb,GPU-cc"})
    assert devices == ("GPU-aa", "GPU-bb") and devices_of(2, {}) == ("0", "1")
    on_gpus = replace(start(2), devices=devices)
    for name in ("torch", "tensorflow", "jax", "mxnet"):
        ranks = [task for task in tasks_of(name, on_gpus) if task.rank is not None]
        assert [task.environment["CUDA_VISIBLE_DEVICES"] for task in ranks] == ["GPU-aa", "GPU-bb"]
    common = common_environment(on_gpus)
    assert (common["CUDA_VISIBLE_DEVICES"], common["JAX_PLATFORMS"]) == ("GPU-aa,GPU-bb", "cuda")
    common = common_environment(start(2))
    assert (common["CUDA_VISIBLE_DEVICES"], common["JAX_PLATFORMS"]) == ("", "cpu")


def test_a_run_on_gpus_is_another_run_and_says_how_it_communicates() -> None:
    on_gpu, on_cpu = request("torch", device="cuda"), request("torch", device="auto")
    assert (on_gpu.device, on_cpu.device) == ("cuda", "cpu") and on_gpu.digest != on_cpu.digest
    assert "NCCL" in on_gpu.summary and "gloo" in on_cpu.summary


@pytest.mark.skipif(bool(num_visible(Context(), os.environ)), reason="this machine has GPUs")
def test_gpus_that_are_not_there_are_one_line_before_anything_starts() -> None:
    with pytest.raises(BenchError, match=r"^--device cuda needs .*, and 0 GPUs are visible here for 2 ranks"):
        planned_run("torch", {"device": "cuda", "ranks": 2})


def test_every_process_is_told_its_rank_in_the_words_of_the_probe() -> None:
    for name in ("torch", "tensorflow", "jax", "mxnet"):
        ranks = [task for task in tasks_of(name, start(2)) if task.rank is not None]
        assert [(one.rank, one.environment["RANK"]) for one in ranks] == [(0, "0"), (1, "1")]
        assert {one.environment["WORLD_SIZE"] for one in ranks} == {"2"}


def test_tensorflow_workers_share_one_list_of_addresses() -> None:
    told = [json.loads(task.environment["TF_CONFIG"]) for task in tasks_of("tensorflow", start(2))]
    assert told[0]["cluster"] == told[1]["cluster"] and len(set(told[0]["cluster"]["worker"])) == 2
    assert [one["task"] for one in told] == [{"type": "worker", "index": rank} for rank in range(2)]
    assert "TF_CONFIG" not in tasks_of("tensorflow", start(1))[0].environment


def test_mxnet_has_a_scheduler_and_a_server_beside_its_workers() -> None:
    tasks = tasks_of("mxnet", start(2))
    roles = [task.environment["DMLC_ROLE"] for task in tasks]
    assert sorted(roles) == ["scheduler", "server", "worker", "worker"]
    assert len({task.environment["DMLC_PS_ROOT_PORT"] for task in tasks}) == 1
    assert all("RANK" not in task.environment for task in tasks if task.rank is None)


def test_horovod_is_started_by_its_own_launcher_beside_its_python() -> None:
    (task,) = tasks_of("horovod", start(2))
    assert task.command[:3] == ("/venv/bin/horovodrun", "-np", "2")
    assert task.command[-3:] == start(2).command


def test_ports_are_all_different() -> None:
    assert len(set(free_ports(8))) == 8


# -- parity -------------------------------------------------------------------------------------------


def test_curves_that_differ_by_rounding_are_the_same() -> None:
    other = [loss * (1 + 1e-7 * 1.3**step) for step, loss in enumerate(CURVE)]
    found = parity(CURVE, other)
    assert found.agrees is True and found.verdict == "same" and found.reason == ""
    assert found.num_steps == PARITY_STEPS and found.max_at_step == PARITY_STEPS
    assert found.max_difference == pytest.approx(1e-7 * 1.3 ** (PARITY_STEPS - 1), rel=1e-6)
    assert found.early_difference == pytest.approx(1e-7 * 1.3 ** (EARLY_STEPS - 1), rel=1e-5)
    assert (found.tolerance, found.early_tolerance) == (TOLERANCE, EARLY_TOLERANCE)


def test_a_max_pool_that_rounding_tips_parts_curves_late_and_says_where() -> None:
    """smallcnn, one process, JAX against torch: 1e-4 at step 15, 3e-3 at step 18."""
    parted = [*[1e-7] * 14, 1.1e-4, 5e-4, 1e-3, 3.3e-3, 2e-3, 5e-4]
    found = parity(CURVE, [loss * (1 + one) for loss, one in zip(CURVE, parted, strict=False)])
    assert found.agrees is True and found.parted_at == 15 and found.max_at_step == 18
    early = parity(CURVE, [loss * (1 + one) for loss, one in zip(CURVE, parted[11:], strict=False)])
    assert early.agrees is False and "at step 4: the updates are not the same" in early.reason


def test_another_first_loss_is_told_apart_from_other_updates_and_from_what_comes_late() -> None:
    network = parity(CURVE, [loss * (1 + 2 * EARLY_TOLERANCE) for loss in CURVE])
    assert network.agrees is False and "before any update" in network.reason
    updates = parity(CURVE, [loss * (1 + 4e-6 * step) for step, loss in enumerate(CURVE)])
    assert updates.agrees is False and "1.2e-05 at step 4: the updates" in updates.reason
    assert updates.first_difference == 0 and updates.parted_at is None
    late = parity(CURVE, [loss * (1.1 if step > 8 else 1) for step, loss in enumerate(CURVE)])
    assert late.agrees is False and "at step 10, more than rounding makes of it" in late.reason


def test_losses_that_are_no_numbers_do_not_agree() -> None:
    for bad in (None, math.nan, math.inf):
        found = parity(CURVE, [*CURVE[:4], bad, *CURVE[5:]])
        assert found.agrees is False and found.max_difference is None and found.max_at_step == 5
        assert parity([bad, *CURVE], CURVE).agrees is False


def test_too_few_steps_are_not_compared() -> None:
    found = parity(CURVE, CURVE[: MIN_STEPS - 1])
    assert found.agrees is None and found.verdict == "not compared" and "are needed" in found.reason
    assert parity([], []).agrees is None


def test_steps_behind_the_compared_ones_do_not_count() -> None:
    other = [*CURVE[:PARITY_STEPS], *[9.0] * 10]
    assert parity(CURVE, other).agrees is True
    assert parity(CURVE, other, num_steps=PARITY_STEPS + 1).agrees is False


def test_losses_near_zero_are_not_divided_by_them() -> None:
    assert parity([1.0, 1e-9, 1e-9], [1.0, 2e-9, 1e-9]).agrees is True


def test_the_mean_over_processes_needs_all_of_them() -> None:
    assert mean_losses([[1.0, 2.0, 5.0], [3.0, None]]) == [2.0, None]
    assert mean_losses([]) == []
