"""Names of AMD GPUs by AMD SMI's Python binding, for cards whose driver does not give one.

amdsmi comes with ROCm. Nothing else is asked of it: everything that changes is in the driver's files.
"""

from __future__ import annotations

from typing import Any

from perfscope.collectors.library import LibraryAbsent


def load_amdsmi() -> Any:
    """The amdsmi module after a successful amdsmi_init.

    Raises:
        LibraryAbsent: not installed, or it cannot be initialized.
    """
    try:
        import amdsmi
    except Exception as error:  # noqa: BLE001 - importing it loads a shared library, which fails in its own ways
        raise LibraryAbsent(
            f"the Python package amdsmi cannot be loaded: {error}", is_expected=True
        ) from None
    try:
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    except amdsmi.AmdSmiException as error:
        raise LibraryAbsent(f"AMD SMI cannot be initialized: {error}") from None
    return amdsmi


def market_names(amdsmi: Any) -> dict[str, str]:
    """PCI address -> name of every GPU that answers."""
    names: dict[str, str] = {}
    try:
        for handle in amdsmi.amdsmi_get_processor_handles():
            address = str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower()
            name = amdsmi.amdsmi_get_gpu_asic_info(handle).get("market_name")
            if isinstance(name, str) and name not in ("", "N/A"):
                names[address] = name
    except amdsmi.AmdSmiException:
        return names
    finally:
        amdsmi.amdsmi_shut_down()
    return names
