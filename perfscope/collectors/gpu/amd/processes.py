"""Who else computes on AMD GPUs, by amdkfd's list of processes. See `gpu.foreign`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Fact, Reading
from perfscope.collectors.context import Context
from perfscope.collectors.gpu.amd.cards import KFD, list_cards
from perfscope.collectors.gpu.amd.counters import NO_GPU
from perfscope.collectors.gpu.base import count_text, metric
from perfscope.collectors.gpu.foreign import ForeignProcesses, GpuProcess
from perfscope.collectors.gpu.registry import first_index
from perfscope.rundir.metrics import Series
from perfscope.vocabulary import gpu as words

_PROCESSES = f"{KFD}/proc"
_SOURCE = f"{_PROCESSES}/PID/vram_GPU"
FOREIGN_PROCESSES = metric(words.FOREIGN_PROCESSES, _SOURCE)
FOREIGN_MEMORY = metric(words.FOREIGN_MEMORY, _SOURCE)


class AmdProcesses(BaseCollector):
    """Foreign processes on the GPUs. See the module.

    A process that opens amdkfd is listed for every GPU; it counts for those whose memory it has taken.
    """

    name = "gpu.amd.processes"
    slow = True
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._foreign: ForeignProcesses | None = None
        self._gpus: list[tuple[int, int, Series, Series]] = []  # (amdkfd's id, index, ...)
        self._clock: Callable[[], int] = lambda: 0

    def probe(self, ctx: Context) -> Capability:
        cards = [card for card in list_cards(ctx) if card.gpu_id]
        available = bool(cards) and ctx.exists(_PROCESSES)
        return self.capability(
            metrics=(FOREIGN_PROCESSES, FOREIGN_MEMORY) if available else (),
            source=_SOURCE,
            reason="" if available else f"{_PROCESSES} is not there" if cards else NO_GPU,
            detail=count_text(len(cards)) if available else "",
        )

    def open(self, ctx: Context) -> None:
        """See Collector."""
        self._ctx, self._clock = ctx, ctx.clock
        self._foreign = ForeignProcesses(ctx, lambda pid: ctx.read_or(f"/proc/{pid}/comm"))
        first = first_index(ctx, "AMD")
        for card in list_cards(ctx):
            if card.gpu_id:
                index = first + card.index
                labels = {"gpu": str(index)}
                series = Series(FOREIGN_PROCESSES, labels), Series(FOREIGN_MEMORY, labels)
                self._gpus.append((card.gpu_id, index, *series))

    def sample(self) -> Sequence[Reading]:
        assert self._foreign is not None
        readings: list[Reading] = []
        for gpu_id, index, number, memory in self._gpus:
            begin = self._clock()
            counts = self._foreign.count(index, self._on(gpu_id))
            end = self._clock()
            readings += [Reading(number, counts[0], begin, end), Reading(memory, counts[1], begin, end)]
        return readings

    def _on(self, gpu_id: int) -> list[GpuProcess]:
        processes = []
        for path in self._ctx.glob(f"{_PROCESSES}/*/vram_{gpu_id}"):
            pid, taken = path.split("/")[-2], self._ctx.read_int(path)
            if pid.isdecimal() and taken:
                processes.append(GpuProcess(int(pid), taken))
        return processes

    def facts(self) -> Sequence[Fact]:
        return [*super().facts(), *(self._foreign.take_facts() if self._foreign is not None else ())]
