"""What every vendor of GPUs is: it finds devices, the links between them, and says what they can do at most.

What is read over time comes from collectors (`collectors.base.Collector`), which the registry lists beside
the vendor. Their metrics and throttle reasons are those of `vocabulary.gpu`, so that nothing behind the run
directory knows a vendor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from perfscope.collectors.base import Absent
from perfscope.collectors.context import Context
from perfscope.collectors.peak import TheoreticalPeak
from perfscope.rundir.metrics import Metric
from perfscope.vocabulary.gpu import GpuMetric

# A device or a link as topology.json has it; what is not known is None or left out.
# A device: index (in the order of the vendor's runtime), pci (address as in sysfs), name, uuid, memory_bytes,
# numa_node, cpus, pcie. A link: a, b ("gpu:0"), class (a LinkClass), kind (the vendor's name for it),
# path, peak_bytes_per_s (per direction), p2p, switch.
Entry = dict[str, object]
PCIE = "pcie"


class Vendor(Protocol):
    """One vendor. Made without arguments; keeps nothing open.

    Attributes:
        name: "NVIDIA".
        visibility: environment variables that select devices. Stages apply one after another to what the one
            before left; of a stage the first variable that is set counts.
    """

    name: str
    visibility: tuple[tuple[str, ...], ...]

    def is_usable(self, ctx: Context) -> bool:
        """Whether there is a GPU that a training could use."""
        ...

    def driver_devices(self, ctx: Context) -> list[Entry]:
        """Devices by the driver's files alone, without a library, in the order of the runtime."""
        ...

    def devices(self, ctx: Context, notes: list[str]) -> list[Entry]:
        """Devices with all that is known of them; adds lines to `notes` on what is amiss."""
        ...

    def links(self, ctx: Context) -> list[Entry]:
        """Links between the vendor's own GPUs; pairs left out are joined by PCIe as sysfs shows it."""
        ...

    def num_usable(self, ctx: Context) -> int | None:
        """Devices whose files in /dev this process sees, before `visibility`; None = not known."""
        ...

    def peaks(self, name: str) -> tuple[TheoreticalPeak, ...]:
        """Data-sheet peaks of a GPU by its name; () = not known."""
        ...


def metric(row: GpuMetric, source: str, **more: Any) -> Metric:
    """A metric of the catalogue as one source gives it; `more` are fields of Metric (scale, limit, ...)."""
    fields = {"name": row.name, "unit": row.unit, "kind": row.kind, "description": row.description, **more}
    return Metric(source=source, **fields)


def count_text(num_gpus: int) -> str:
    """``2 GPUs``."""
    return f"{num_gpus} GPU{'s' if num_gpus != 1 else ''}"


def absent_metrics(refused: Mapping[int, Sequence[tuple[str, str]]]) -> tuple[Absent, ...]:
    """What GPUs do not give, one entry per metric and reason; GPUs are named where others give it.

    Args:
        refused: for each GPU's number the metrics that it does not give, with reasons.
    """
    where: dict[tuple[str, str], list[int]] = {}
    for index, pairs in refused.items():
        for pair in dict.fromkeys(pairs):
            where.setdefault(pair, []).append(index)
    absent = []
    for (metric, reason), indexes in where.items():
        gpus_text = "" if len(indexes) == len(refused) else f" (GPU {', '.join(map(str, indexes))})"
        remedy = "run as root, or let the driver's administrator allow it" if "ermission" in reason else ""
        absent.append(Absent(what=metric, reason=reason + gpus_text, remedy=remedy))
    return tuple(absent)


def selected(devices: Sequence[Entry], text: str) -> list[Entry]:
    """What an environment variable leaves visible: numbers or starts of uuids, up to one that is none."""
    chosen: list[Entry] = []
    for word in (part.strip() for part in text.split(",")):
        named = [device for device in devices if word and str(device.get("uuid") or "").startswith(word)]
        devices_selected = devices[int(word) : int(word) + 1] if word.isdecimal() else named[:1]
        if not devices_selected:
            break
        chosen += devices_selected
    return chosen
