"""samples.jsonl of two simulated NVIDIA GPUs over 24 s, as the collectors of a version write it.

tests/data/gpu_names_of_0.1.0 was made by this with the collectors of before GPU metrics had vendor-neutral
names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.nvml_stand_in import StandIn, World, field_of, hopper, installed, machine

BOOT, SECOND, TICK_S, DURATION_S = 5_000_000_000_000, 1_000_000_000, 0.5, 24.0
_HOT = 0x40


def record(open_collectors: Callable[[Callable[[], int]], Iterable[Any]], unix_ns: int) -> str:
    """The file.

    Args:
        open_collectors: given the clock, opens collectors while NVML is the simulated one.
        unix_ns: the time of second 0.
    """
    world = machine(hopper(0, 2), hopper(1, 2))
    now = [BOOT]
    header = {"schema_version": 1, "host": "node0", "pid": 7, "interval_ns": round(TICK_S * SECOND)}
    lines: list[Any] = [{**header, "anchor": [BOOT, unix_ns]}]
    ids: dict[tuple[Any, ...], int] = {}
    with installed(StandIn(world)):
        collectors = list(open_collectors(lambda: now[0]))
        for tick in range(int(DURATION_S / TICK_S)):
            now[0] = BOOT + round(tick * TICK_S * SECOND)
            _set(world, tick * TICK_S)
            for collector in collectors:
                lines += _rows(collector, ids)
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def _set(world: World, second: float) -> None:
    """GPU 0: 400 W, 3 GB/s over each link, slowed by heat in seconds 12 to 18."""
    heat = min(max(second - 12, 0), 6)
    field_of(world, 0, 83)[4] = round(400e3 * second)
    field_of(world, 0, 270)[4] = round(heat * SECOND)
    world["gpus"][0]["calls"]["nvmlDeviceGetCurrentClocksEventReasons"] = _HOT if 0 < heat < 6 else 4
    for link in range(2):
        field_of(world, 0, 138, link)[4] = round(3e9 * second / 1024)


def _rows(collector: Any, ids: dict[tuple[Any, ...], int]) -> list[Any]:
    readings = list(collector.sample())
    key = tuple(one.series for one in readings)
    found: list[Any] = []
    if readings and key not in ids:
        ids[key] = len(ids)
        series = [one.as_dict() for one in key]
        found.append({"id": ids[key], "collector": collector.name, "series": series})
    if readings:
        begin, end = readings[0].t_begin_ns, readings[0].t_end_ns
        found.append([ids[key], begin, end, [one.value for one in readings]])
    return found
