"""`--device cuda` and `--backend nccl` where there is no GPU, and schemes of a single rank."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.schemes.registry import SCHEMES
from perfscope.runners.world import check_devices, choose_device


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("scheme", [scheme.name for scheme in SCHEMES])
def test_cuda_without_a_gpu_is_one_line_of_every_scheme(without_gpu: None, scheme: str) -> None:
    config = BenchConfig(scheme=scheme, num_ranks=2, device="cuda")
    for refuse in (lambda: check_devices(config, 2), lambda: choose_device(config, 0, 2)):
        with pytest.raises(BenchError, match=r"--device cuda: .* use --device cpu") as error:
            refuse()
        assert "\n" not in str(error.value)
    check_devices(replace(config, device="cpu"), 2)
    check_devices(replace(config, device="auto"), 2)
    assert choose_device(replace(config, device="auto"), 0, 2) == torch.device("cpu")


def test_nccl_needs_gpus(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BenchConfig(scheme="dp.ddp", num_ranks=2, backend="nccl")
    with pytest.raises(BenchError, match=r"nccl needs 2 .* and there are 0; use --backend gloo"):
        check_devices(config, 2)
    with pytest.raises(BenchError, match="--device cpu uses none; use --backend gloo"):
        check_devices(replace(config, device="cpu"), 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_devices(config, 1)
    with pytest.raises(BenchError, match="2 ranks on this host, but 1 GPUs"):
        check_devices(replace(config, device="cuda"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["dp.ddp", "dp.fsdp", "mesh"])
def test_one_rank_without_a_launcher_trains(scheme: str) -> None:
    config = BenchConfig(scheme=scheme, model="mlp", input_shape=(3, 4, 4), batch=4, steps=2, device="cpu")
    command = [sys.executable, "-m", "perfscope.runners.rank", config.to_json()]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
