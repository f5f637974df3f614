"""Getting at NVIDIA's management library, or at the reason why not.

The library is asked for once per process and initialized again after a fork. Tests replace
`pynvml.nvmlLib` by an object of their own; nothing here knows the difference.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from perfscope.collectors.library import LibraryAbsent


def load_nvml() -> Any:
    """The pynvml module after a successful nvmlInit.

    Raises:
        LibraryAbsent: not installed, no driver, or a driver that does not match the library.
    """
    if "pynvml" not in sys.modules and not _has_library():  # the module costs 4 MiB
        raise _no_driver()
    try:
        import pynvml
    except ImportError:
        raise LibraryAbsent(
            "the Python package nvidia-ml-py is not installed", "pip install nvidia-ml-py"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _explained(pynvml, error) from None
    return pynvml


def _has_library() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _no_driver() -> LibraryAbsent:
    return LibraryAbsent("libnvidia-ml.so.1 is not there: no NVIDIA driver", is_expected=True)


def _explained(pynvml: Any, error: Exception) -> LibraryAbsent:
    code = getattr(error, "value", None)
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return _no_driver()
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return LibraryAbsent(
            "the NVIDIA driver is installed but not loaded",
            "load it (modprobe nvidia), or expose the GPUs to the container (--gpus all)",
        )
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return LibraryAbsent(
            "the NVIDIA driver and its library are of different versions", "reboot, or reload the driver"
        )
    return LibraryAbsent(f"NVML cannot be initialized: {error}")
