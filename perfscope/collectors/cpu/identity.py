"""Which processor this is: what decides how its counters are programmed and its memory is identified."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.collectors.context import Context

KNIGHTS = (87, 133)  # Knights Landing and Knights Mill, of Intel's family 6


@dataclass(frozen=True, slots=True)
class CpuIdentity:
    """From the first processor of /proc/cpuinfo.

    Attributes:
        vendor: "GenuineIntel", "AuthenticAMD", ...; "" = not known (not an x86, or a tree without the file).
        family, model: as the kernel prints them, decimal; -1 = not known.
        name: marketing name; None = not known.
        flags: its features.
    """

    vendor: str = ""
    family: int = -1
    model: int = -1
    name: str | None = None
    flags: frozenset[str] = frozenset()

    @property
    def is_knights(self) -> bool:
        """A Xeon Phi x200 with MCDRAM."""
        return self.vendor == "GenuineIntel" and self.family == 6 and self.model in KNIGHTS


def read_cpu_identity(ctx: Context) -> CpuIdentity:
    """Never raises; fields that cannot be read have their defaults."""
    fields: dict[str, str] = {}
    for line in ctx.read_or("/proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return CpuIdentity(
        vendor=fields.get("vendor_id", ""),
        family=_number(fields.get("cpu family", "")),
        model=_number(fields.get("model", "")),
        name=fields.get("model name") or fields.get("Model") or fields.get("cpu model") or None,
        flags=frozenset(fields.get("flags", "").split()),
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1
