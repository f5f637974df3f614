"""What tests on a GPU need; without one they are skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perfscope.collectors.gpu.nvidia.library import load_nvml
from perfscope.collectors.library import LibraryAbsent


@pytest.fixture(scope="session")
def nvml() -> Any:
    try:
        module = load_nvml()
    except LibraryAbsent as absent:
        pytest.skip(f"no NVIDIA GPU: {absent.reason}")
    if not module.nvmlDeviceGetCount():
        pytest.skip("no NVIDIA GPU: NVML sees none")
    return module


@pytest.fixture(scope="session")
def cuda(nvml: Any) -> Any:
    """torch, with CUDA."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("the installed torch has no CUDA, or cannot use this GPU")
    return torch


@pytest.fixture
def gpu_index(nvml: Any, cuda: Any) -> Iterator[int]:
    """NVML's index of torch's device 0: the two orders differ under CUDA_VISIBLE_DEVICES."""
    uuid = str(getattr(cuda.cuda.get_device_properties(0), "uuid", ""))
    for index in range(nvml.nvmlDeviceGetCount()):
        if uuid and nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)).endswith(uuid):
            yield index
            return
    if nvml.nvmlDeviceGetCount() > 1:
        pytest.skip("several GPUs, and this torch does not tell which one it uses")
    yield 0
