"""Opening every available collector and sampling for a moment: the proof that what `probe` promised works."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from perfscope.collectors.base import Collector
from perfscope.collectors.context import Context

TICK_NS = 100_000_000
_PATIENCE_S = 5.0  # for a slow collector that is in the middle of a call


@dataclass(slots=True, kw_only=True)
class CollectorTrial:
    """What became of one collector.

    Attributes:
        collector: its name.
        samples: calls of sample().
        readings, failed: values it gave, and those that could not be read.
        cpu_ns, wall_ns: of all calls together; CPU time of the calling thread.
        stopped: what ended meanwhile, and why.
        fault: why it could not be opened, or what it raised; "" = nothing.
    """

    collector: str
    samples: int = 0
    readings: int = 0
    failed: int = 0
    cpu_ns: int = 0
    wall_ns: int = 0
    stopped: list[str] = field(default_factory=list)
    fault: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def try_out(collectors: Sequence[Collector], ctx: Context, seconds: float) -> list[CollectorTrial]:
    """Sample `collectors`, which are available, for that long; slow ones have a thread each. Never raises."""
    stop = threading.Event()
    trials = [CollectorTrial(collector=collector.name) for collector in collectors]
    pairs = list(zip(collectors, trials, strict=True))
    slow = [
        threading.Thread(target=_loop, args=([pair], ctx, stop), daemon=True, name=pair[0].name)
        for pair in pairs
        if pair[0].slow
    ]
    fast = threading.Thread(
        target=_loop, args=([pair for pair in pairs if not pair[0].slow], ctx, stop), daemon=True, name="fast"
    )
    threads = [*slow, fast]
    for thread in threads:
        thread.start()
    try:
        stop.wait(seconds)
    finally:
        stop.set()
    for thread in threads:
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            for _, trial in pairs:
                if trial.collector == thread.name:
                    trial.fault = f"a call did not come back within {_PATIENCE_S:.0f} s"
    return trials


def _loop(pairs: Sequence[tuple[Collector, CollectorTrial]], ctx: Context, stop: threading.Event) -> None:
    """Open, sample every tick or at the collector's own interval until `stop`, close."""
    opened = [(collector, trial) for collector, trial in pairs if _open(collector, trial, ctx)]
    due = {collector.name: 0 for collector, _ in opened}
    while True:
        now = ctx.clock()
        for collector, trial in opened:
            if now >= due[collector.name] and not trial.fault:
                _sample(collector, trial)
                due[collector.name] = now + max(collector.min_interval_ns, TICK_NS) - TICK_NS // 2
        if stop.wait(max(TICK_NS - (ctx.clock() - now), 0) / 1e9):
            break
    for collector, trial in opened:
        _close(collector, trial)


def _open(collector: Collector, trial: CollectorTrial, ctx: Context) -> bool:
    try:
        collector.open(ctx)
    except Exception as error:  # noqa: BLE001 - may be foreign; reported as its fault, the others go on
        trial.fault = f"cannot be opened: {error}"
        return False
    return True


def _sample(collector: Collector, trial: CollectorTrial) -> None:
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    try:
        readings = collector.sample()
        facts = collector.facts()
    except Exception as error:  # noqa: BLE001 - as above
        trial.fault = f"{type(error).__name__}: {error}"
        return
    trial.cpu_ns += time.thread_time_ns() - cpu
    trial.wall_ns += time.monotonic_ns() - wall
    trial.samples += 1
    missing = sum(reading.value is None for reading in readings)
    trial.failed += missing
    trial.readings += len(readings) - missing
    trial.stopped += [
        f"{fact.value.get('what')}: {fact.value.get('reason')}" for fact in facts if fact.name == "stopped"
    ]


def _close(collector: Collector, trial: CollectorTrial) -> None:
    try:
        collector.close()
    except Exception as error:  # noqa: BLE001 - as above
        trial.fault = trial.fault or f"close: {type(error).__name__}: {error}"
