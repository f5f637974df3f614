"""Allocator events (`[memory]`, of torch.profiler with profile_memory=True) as curves, one per device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from perfscope.ingest.events import Event
from perfscope.ingest.timestamps import parse_us
from perfscope.rundir.window_records import HOST_DEVICE, AllocatorCurve

EVENT = "[memory]"
MOST_POINTS = 240  # of a curve
_HOST_TYPE = 0  # c10::DeviceType::CPU


class Allocations:
    """Collects events in any order; five numbers are kept of each."""

    def __init__(self) -> None:
        self._times: list[bytes] = []
        self._rows: list[tuple[int, int, int, int]] = []  # device, thread, allocated, reserved

    def add(self, events: list[Event]) -> None:
        """Those of `events` that are allocator events with all their numbers."""
        for event in events:
            if event.name != EVENT:
                continue
            args = event.args
            values = [
                _number(raw)
                for raw in (args.device_type, args.device_id, args.total_allocated, args.total_reserved)
            ]
            kind, device, allocated, reserved = values
            if kind is None or device is None or allocated is None or reserved is None:
                continue
            thread = event.tid if isinstance(event.tid, int) else -1
            self._times.append(bytes(event.ts) or b"-")
            self._rows.append((HOST_DEVICE if kind == _HOST_TYPE else device, thread, allocated, reserved))

    def curves(self, base_ns: int) -> tuple[AllocatorCurve, ...]:
        """By device. `base_ns` is added to all times."""
        if not self._rows:
            return ()
        times, ok = parse_us(self._times)
        rows = np.array(self._rows, np.int64)[ok]
        order = np.argsort(times[ok], kind="stable")
        times, rows = times[ok][order] + base_ns, rows[order]
        return tuple(
            _curve(int(device), times[rows[:, 0] == device], rows[rows[:, 0] == device])
            for device in np.unique(rows[:, 0])
        )


def _number(raw: Raw) -> int | None:
    try:
        value = int(bytes(raw))
    except ValueError:
        return None
    return value if -(1 << 62) < value < 1 << 62 else None


def _curve(device: int, times: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> AllocatorCurve:
    thread, allocated, reserved = rows[:, 1], rows[:, 2], rows[:, 3]
    peak = int(np.argmax(allocated))
    kept = _highest(times, allocated)
    has_cache = int(reserved.max()) >= int(allocated.max())  # CPU allocators report zero, or a part of it
    return AllocatorCurve(
        device=device,
        num_events=len(times),
        t_ns=tuple(times[kept].tolist()),
        allocated=tuple(allocated[kept].tolist()),
        reserved=tuple(reserved[kept].tolist()) if has_cache else (),
        peak_ns=int(times[peak]),
        peak_allocated=int(allocated[peak]),
        peak_reserved=int(reserved.max()) if has_cache else None,
        peak_thread=int(thread[peak]),
    )


def _highest(times: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Which of the events stand for all: of each of MOST_POINTS equal stretches the highest, and the last."""
    if len(times) <= MOST_POINTS:
        return np.arange(len(times))
    stretch = (times - times[0]) * (MOST_POINTS - 1) // max(int(times[-1] - times[0]), 1)
    order = np.lexsort((values, stretch))
    last = np.flatnonzero(np.diff(stretch[order], append=MOST_POINTS))
    return np.unique(np.append(order[last], len(times) - 1))
