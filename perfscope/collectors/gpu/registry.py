"""Which vendors of GPUs there are: one table. Everything outside this package asks here and knows no vendor.

GPUs of a host are numbered through: those of the first vendor that has any keep the numbers of their runtime,
those of the next follow. With one vendor, which is the rule, GPU 0 is what the framework calls device 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.base import Entry, Vendor, selected
from perfscope.collectors.peak import TheoreticalPeak


class VendorModule(NamedTuple):
    """Where a vendor's code is: names, not classes, so that a host without its GPUs never loads it.

    Attributes:
        vendor: module and class of a `base.Vendor`.
        collectors: modules and classes of what is read over time, in the doctor's order.
        packages: Python packages whose versions a bug report needs.
        tools: commands of the vendor that may be here.
    """

    vendor: str
    collectors: tuple[str, ...]
    packages: tuple[str, ...]
    tools: tuple[str, ...]


_NVIDIA, _AMD = "perfscope.collectors.gpu.nvidia", "perfscope.collectors.gpu.amd"
PLACES: tuple[VendorModule, ...] = (
    VendorModule(
        f"{_NVIDIA}.vendor:Nvidia",
        (
            f"{_NVIDIA}.counters:NvmlDevices",
            f"{_NVIDIA}.links:NvmlLinks",
            f"{_NVIDIA}.links:NvmlPcieRate",
            f"{_NVIDIA}.gpm:NvmlGpm",
            f"{_NVIDIA}.processes:NvmlProcesses",
        ),
        packages=("nvidia-ml-py",),
        tools=("nvidia-smi",),
    ),
    VendorModule(
        f"{_AMD}.vendor:Amd",
        (
            f"{_AMD}.counters:AmdDevices",
            f"{_AMD}.pcie_rate:AmdPcieRate",
            f"{_AMD}.processes:AmdProcesses",
        ),
        packages=("amdsmi",),
        tools=("amd-smi",),
    ),
)
COLLECTORS = tuple(name for entry in PLACES for name in entry.collectors)
PACKAGES = tuple(name for entry in PLACES for name in entry.packages)
TOOLS = tuple(name for entry in PLACES for name in entry.tools)


def vendors() -> list[Vendor]:
    """One new instance of each."""
    return [_made(entry.vendor) for entry in PLACES]


def _made(import_path: str) -> Vendor:
    module, _, name = import_path.partition(":")
    vendor: Vendor = getattr(import_module(module), name)()
    return vendor


def devices(ctx: Context, notes: list[str]) -> list[Entry]:
    """Every GPU of the host, numbered through, with `vendor` and `visibility`. Never raises."""
    gpus: list[Entry] = []
    for vendor in vendors():
        gpus += _numbered(vendor, _own(vendor, ctx, notes), _next_index(gpus))
    return gpus


def _own(vendor: Vendor, ctx: Context, notes: list[str]) -> list[Entry]:
    """Devices of a vendor; where its library fails, by the driver's files alone."""
    entries = _read(vendor, lambda: vendor.devices(ctx, notes), notes)
    return entries if entries is not None else _read(vendor, lambda: vendor.driver_devices(ctx), notes) or []


def _read(vendor: Vendor, read: Callable[[], list[Entry]], notes: list[str]) -> list[Entry] | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a driver's fault of any kind; the rest must stand
        notes.append(f"GPUs of {vendor.name}: not read ({type(error).__name__}: {error})")
        return None


def _next_index(gpus: list[Entry]) -> int:
    return max((_index(gpu, 0) + 1 for gpu in gpus), default=0)


def _index(gpu: Entry, otherwise: int) -> int:
    index = gpu.get("index")
    return index if isinstance(index, int) else otherwise


def _numbered(vendor: Vendor, vendor_gpus: list[Entry], first: int) -> list[Entry]:
    numbers = [first + _index(gpu, position) for position, gpu in enumerate(vendor_gpus)]
    common: Entry = {"vendor": vendor.name, "visibility": [list(stage) for stage in vendor.visibility]}
    return [
        {**gpu, "id": f"gpu:{number}", "index": number, **common}
        for number, gpu in zip(numbers, vendor_gpus, strict=True)
    ]


def links(ctx: Context, gpus: list[Entry], notes: list[str]) -> list[Entry]:
    """Links between GPUs of the same vendor, by the numbers of `devices`. Never raises.

    Args:
        gpus: what `devices` gave.
        notes: gets a line for a vendor that could not be asked.
    """
    found_links: list[Entry] = []
    first = 0
    for vendor in vendors():
        vendor_gpus = [gpu for gpu in gpus if gpu["vendor"] == vendor.name]
        try:
            found_links += (
                [_renumbered(link, first) for link in vendor.links(ctx)] if len(vendor_gpus) > 1 else []
            )
        except Exception as error:  # noqa: BLE001 - as above
            notes.append(f"links of {vendor.name}: not read ({type(error).__name__}: {error})")
        first = max(first, _next_index(vendor_gpus))
    return found_links


def _renumbered(link: Entry, first: int) -> Entry:
    ends = {end: f"gpu:{int(str(link[end]).partition(':')[2]) + first}" for end in ("a", "b")}
    return {**link, **ends}


def first_index(ctx: Context, name: str) -> int:
    """The number of the vendor's first GPU: those of the vendors before it come first."""
    gpus: list[Entry] = []
    for vendor in vendors():
        if vendor.name == name:
            break
        gpus += _numbered(vendor, _own(vendor, ctx, []), _next_index(gpus))
    return _next_index(gpus)


def has_gpu(ctx: Context) -> bool:
    """Whether a training could use a GPU here."""
    return any(vendor.is_usable(ctx) for vendor in vendors())


def driver_names(ctx: Context) -> list[str]:
    """Names of all GPUs by the drivers' files; no library is loaded, which can take seconds."""
    return [str(gpu.get("name") or "") for vendor in vendors() for gpu in vendor.driver_devices(ctx)]


def visible_devices(ctx: Context, environment: Mapping[str, str]) -> list[Entry]:
    """What a framework sees of the first vendor that has a GPU, in its order.

    Args:
        environment: variables of the process, or {} for every device.
    """
    for vendor in vendors():
        left = vendor.driver_devices(ctx)
        if left:
            for text in _selections(vendor, environment):
                left = selected(left, text)
            return left
    return []


def num_visible(ctx: Context, environment: Mapping[str, str]) -> int | None:
    """How many devices a framework sees, by the files in /dev; None = not known."""
    for vendor in vendors():
        present = vendor.num_usable(ctx)
        if present is None:
            return None
        if present:
            return min([present, *(_num_named(text) for text in _selections(vendor, environment))])
    return 0


def _selections(vendor: Vendor, environment: Mapping[str, str]) -> list[str]:
    stages = ([environment[name] for name in stage if name in environment] for stage in vendor.visibility)
    return [texts[0] for texts in stages if texts]


def _num_named(text: str) -> int:
    """Devices that a variable names; runtimes stop at the first name that is none."""
    names = [word.strip() for word in text.split(",")]
    return next((n for n, word in enumerate(names) if not word or word.startswith("-")), len(names))


def gpu_peaks(name: str | None) -> tuple[TheoreticalPeak, ...]:
    """Peaks of a GPU by the driver's name, ``NVIDIA H100 80GB HBM3``; () = in no vendor's table."""
    return next((peaks for vendor in vendors() if (peaks := vendor.peaks(name or ""))), ())
