"""Why an AMD GPU's clocks are lowered: bits of the moment, or times that the firmware accumulates."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.collectors.gpu.amd.metrics_table import MetricsTable
from perfscope.collectors.gpu.base import metric
from perfscope.rundir.metrics import DERIVED, Series
from perfscope.vocabulary import gpu as words
from perfscope.vocabulary.gpu import ThrottleBit, ThrottleReason

_NAMES: Mapping[ThrottleReason, Mapping[int, str]] = {
    ThrottleReason.POWER_CAP: {
        **{bit: f"PPT{bit}" for bit in range(4)},
        **{4: "SPL", 5: "FPPT", 6: "SPPT", 7: "SPPT_APU"},
    },
    ThrottleReason.CURRENT: {
        **{16: "TDC_GFX", 17: "TDC_SOC", 18: "TDC_MEM", 19: "TDC_VDD", 20: "TDC_CVIP"},
        **{21: "EDC_CPU", 22: "EDC_GFX", 23: "APCC"},
    },
    ThrottleReason.THERMAL: {
        **{32: "TEMP_GPU", 33: "TEMP_CORE", 34: "TEMP_MEM", 35: "TEMP_EDGE", 36: "TEMP_HOTSPOT"},
        **{37: "TEMP_SOC", 38: "TEMP_VR_GFX", 39: "TEMP_VR_SOC", 40: "TEMP_VR_MEM0", 41: "TEMP_VR_MEM1"},
        **{42: "TEMP_LIQUID0", 43: "TEMP_LIQUID1", 44: "VRHOT0", 45: "VRHOT1"},
        **{46: "PROCHOT_CPU", 47: "PROCHOT_GFX"},
    },
    ThrottleReason.OTHER: {56: "PPM", 57: "FIT"},
}
# Of `indep_throttle_status`: SMU_THROTTLER_*_BIT of the kernel's amdgpu_smu.h, the same for every GPU.
STATUS_BITS = tuple(
    ThrottleBit(1 << bit, reason, name) for reason, names in _NAMES.items() for bit, name in names.items()
)

# Residencies of v1.6 and later: field, reason, AMD SMI's word for it.
_RESIDENCIES = (
    ("ppt_residency_acc", ThrottleReason.POWER_CAP, "PPT"),
    ("prochot_residency_acc", ThrottleReason.THERMAL, "PROCHOT"),
    ("socket_thm_residency_acc", ThrottleReason.THERMAL, "socket thermal"),
    ("vr_thm_residency_acc", ThrottleReason.THERMAL, "VR thermal"),
    ("hbm_thm_residency_acc", ThrottleReason.THERMAL, "HBM thermal"),
)
_COUNTER = "accumulation_counter"
_WORD = 1 << 32


class ThrottleTimes:
    """Time in each throttler, from the firmware's residencies.

    The firmware counts in ticks of its own and gives their total beside (`accumulation_counter`): a throttler
    was active in the share residency/total of the time between two readings, as in AMD SMI.
    The counters given here are the sum of share x time, in ns since the collector was opened.

    Attributes:
        series: one a throttler that the table has; [] for other revisions.
    """

    def __init__(self, now: MetricsTable, labels: Mapping[str, str]) -> None:
        has = [row for row in _RESIDENCIES if now.one(row[0]) is not None and now.one(_COUNTER) is not None]
        self._fields = [name for name, _, _ in has]
        self.series = [
            Series(
                metric(words.THROTTLE_TIME, f"gpu_metrics: {name} / {_COUNTER}", quality=DERIVED),
                {**labels, "reason": reason.value, "name": word},
            )
            for name, reason, word in has
        ]
        self._total_ns = [0.0] * len(has)
        self._last: tuple[int, MetricsTable] | None = None

    def add(self, table: MetricsTable, now_ns: int) -> list[int | None]:
        """The counters after another reading. None where the table does not have the fields this time."""
        ticks = table.one(_COUNTER)
        if ticks is None or any(table.one(name) is None for name in self._fields):
            return [None] * len(self.series)
        if self._last is not None:
            then_ns, before = self._last
            passed = _difference(ticks, before.one(_COUNTER))
            if not passed:  # the firmware has not updated its table
                return [round(total) for total in self._total_ns]
            for index, name in enumerate(self._fields):
                share = _difference(table.one(name), before.one(name)) / passed
                self._total_ns[index] += min(share, 1.0) * (now_ns - then_ns)
        self._last = (now_ns, table)
        return [round(total) for total in self._total_ns]


def _difference(now: int | None, before: int | None) -> int:
    """Of 32-bit counters that start again at 0."""
    assert now is not None and before is not None
    return (now - before) % _WORD
