"""Getting at NVIDIA's management library, or at the reason why not.

The library is asked for once per process and initialised again after a fork. Tests replace
`pynvml.nvmlLib` by an object of their own; nothing here knows the difference.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any


class NvmlAbsent(Exception):
    """There is no usable NVML.

    Attributes:
        reason: what was found, one line.
        remedy: what to do; "" = nothing (no NVIDIA GPU).
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


# Gives the pynvml module, initialised. Any: the module is ctypes through and through, without types.
NvmlProvider = Callable[[], Any]


def no_nvml() -> Any:
    """For captured trees: NVML cannot be captured as files."""
    raise NvmlAbsent("a captured tree holds no NVML")


def real_nvml() -> Any:
    """The pynvml module after a successful nvmlInit.

    Raises:
        NvmlAbsent: not installed, no driver, or a driver that does not match the library.
    """
    if "pynvml" not in sys.modules and not _has_library():  # the module costs 4 MiB
        raise NvmlAbsent("libnvidia-ml.so.1 is not there: no NVIDIA driver")
    try:
        import pynvml
    except ImportError:
        raise NvmlAbsent(
            "the Python package nvidia-ml-py is not installed", "pip install nvidia-ml-py"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlAbsent(*_explain(pynvml, error)) from None
    return pynvml


def _has_library() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _explain(pynvml: Any, error: Exception) -> tuple[str, str]:
    code = getattr(error, "value", None)
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "libnvidia-ml.so.1 is not there: no NVIDIA driver", ""
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return (
            "the NVIDIA driver is installed but not loaded",
            "load it (modprobe nvidia), or expose the GPUs to the container (--gpus all)",
        )
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the NVIDIA driver and its library are of different versions", "reboot, or reload the driver"
    return f"NVML cannot be initialised: {error}", ""
