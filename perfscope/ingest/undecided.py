"""Spans of categories that are not known: of a device, or of the host?

That is known once the whole file is read. A lane is a device's where the trace labels its process as a device
(``GPU 0``, ``MTIA 1``, ``HPU 3``), where known device work is on it, or where most of its spans were launched
by a call of the runtime: they have its correlation id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.ingest.events import Event
from perfscope.ingest.timestamps import parse_us

Ints = npt.NDArray[np.int64]
MOST_DEVICES = 1 << 15  # numbers that the timeline has for devices
# Kineto labels devices; other writers name them, as they name ranks and workers.
_DEVICE_LABELS = {
    "process_labels": re.compile(r"(?!CPU)[A-Z][A-Za-z]{1,11}[ :#_-]{0,2}(\d{1,4})"),
    "process_name": re.compile(r"(?:/device:|/)?(?!CPU|HOST|RANK|NODE)[A-Z]{2,5}[ :#_-]{0,2}(\d{1,4})"),
}
_LARGEST = 1 << 62  # nonsense in a damaged file may be larger
_LAUNCHED = 0.5  # share of a lane's spans that runtime calls must have launched


class DeviceNumbers:
    """Numbers of devices that a trace names by text, or by numbers that are no small ones."""

    def __init__(self) -> None:
        self._others: dict[int | str, int] = {}

    def of(self, owner: int | str) -> int:
        """The number itself, else that at the end of the name, else the place in order of appearance."""
        if isinstance(owner, int) and 0 <= owner < MOST_DEVICES:
            return owner
        digits = re.search(r"(\d{1,4})$", owner) if isinstance(owner, str) else None
        return int(digits[1]) if digits else self._others.setdefault(owner, len(self._others))


class DecidedLane(Struct, frozen=True):
    """All spans of one lane and category.

    Attributes:
        times: shape (n, 2), start and duration, ns.
        correlations: shape (n,), -1 = none.
    """

    category: str
    owner: int | str
    lane: int | str
    device: int | None  # None: of the host
    names: list[str]
    times: Ints
    correlations: Ints


class Undecided:
    """Holds spans, compactly, until `decided`.

    Attributes:
        device_owners: processes with known device work.
        dropped: spans without a usable time.
    """

    def __init__(self) -> None:
        self.device_owners: set[int | str] = set()
        self.host_owners: set[int | str] = set()
        self.dropped = 0
        self._labels: dict[int | str, int] = {}  # process -> number of the device that it stands for
        self._names: dict[str, int] = {}
        self._held: dict[tuple[str, int | str, int | str], list[Ints]] = {}  # start, dur, correlation, name

    def __bool__(self) -> bool:
        return bool(self._held)

    def label(self, events: Sequence[Event]) -> None:
        """Takes in metadata: which processes are named or labeled as a device."""
        for event in events:
            pattern = _DEVICE_LABELS.get(event.name)
            if pattern is None:
                continue
            text = event.args.labels if event.name == "process_labels" else event.args.title
            if match := pattern.fullmatch(bytes(text).decode("utf-8", "replace").strip('"')):
                self._labels.setdefault(event.pid, int(match[1]))

    def add(self, category: str, spans: Sequence[Event]) -> None:
        """Holds the spans; nothing of the events is kept."""
        start, ok = parse_us([event.ts for event in spans])
        dur, dur_ok = parse_us([event.dur for event in spans])
        ok &= dur_ok & (dur >= 0) & (start >= 0)
        self.dropped += int(np.count_nonzero(~ok))
        names = [self._names.setdefault(event.name, len(self._names)) for event in spans]
        numbers = [event.args.correlation for event in spans]
        correlations = [number if -1 <= number < _LARGEST else -1 for number in numbers]
        rows = np.stack((start, dur, correlations, names), axis=1).astype(np.int64)
        lanes: dict[tuple[int | str, int | str], list[int]] = {}
        for index in np.flatnonzero(ok).tolist():
            lanes.setdefault((spans[index].pid, spans[index].tid), []).append(index)
        for lane, indices in lanes.items():
            self._held.setdefault((category, *lane), []).append(rows[indices])

    def decided(self, launches: Ints, numbers: DeviceNumbers) -> Iterator[DecidedLane]:
        """Each lane with what it is of. Args: launches: correlation ids of all launching calls."""
        texts = list(self._names)
        for (category, owner, lane), parts in self._held.items():
            rows = np.concatenate(parts)
            device = self._device(owner, rows[:, 2], launches, numbers)
            names = [texts[name] for name in rows[:, 3].tolist()]
            yield DecidedLane(category, owner, lane, device, names, rows[:, :2], rows[:, 2])
        self._held.clear()

    def _device(
        self, owner: int | str, correlations: Ints, launches: Ints, numbers: DeviceNumbers
    ) -> int | None:
        if owner in self.host_owners:
            return None
        if owner in self._labels:
            return self._labels[owner]
        launched = np.isin(correlations, launches) & (correlations > 0)
        if owner in self.device_owners or launched.mean() >= _LAUNCHED:
            return numbers.of(owner)
        return None
