"""Table "Counters of layers": what the processor and the kernel counted while each layer ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfscope.analysis.counter_results import LayerCounters
from perfscope.analysis.results import LayerResult, RunAnalysis
from perfscope.reports.display import visible
from perfscope.reports.model import Column, Table, Unit, Value

_Get = Callable[[LayerCounters], Value]


def _faults(counters: LayerCounters) -> Value:
    if counters.minor_faults is None or counters.major_faults is None:
        return None
    return counters.minor_faults + counters.major_faults


def _count(key: str, title: str, hint: str = "") -> Column:
    return Column(key=key, title=title, unit=Unit.NUMBER, hint=hint)


_COLUMNS: tuple[tuple[Column, _Get], ...] = (
    (Column(key="cpu_time", title="CPU time", unit=Unit.TIME, primary=True), lambda c: c.task_clock_ns),
    (
        Column(
            key="run_queue_wait",
            title="Run-queue wait",
            unit=Unit.TIME,
            primary=True,
            hint="ready to run, but no CPU was free",
        ),
        lambda c: c.run_queue_wait_ns,
    ),
    (_count("instructions", "Instructions"), lambda c: c.instructions),
    (_count("cycles", "Cycles"), lambda c: c.cycles),
    (_count("ipc", "IPC", "instructions per cycle"), lambda c: c.ipc),
    (
        Column(
            key="llc_miss_bytes",
            title="LLC misses",
            unit=Unit.BYTES,
            primary=True,
            hint="misses of the last-level cache × 64 bytes",
        ),
        lambda c: c.llc_miss_bytes,
    ),
    (_count("page_faults", "Page faults"), _faults),
    (_count("major_faults", "Major faults", "pages read from storage"), lambda c: c.major_faults),
    (_count("context_switches", "Context switches"), lambda c: c.context_switches),
    (_count("cpu_migrations", "CPU migrations"), lambda c: c.cpu_migrations),
)


def counters_table(
    analysis: RunAnalysis, by_time: Sequence[LayerResult], names: Mapping[str, str], root_name: str
) -> Table | None:
    """The counters that were read, by layer; None where none was.

    Args:
        analysis: of the run.
        by_time: the layers in the order of the table.
        names: shorter names of layers.
        root_name: of the layer without a name.
    """
    layers = [(layer, layer.counters) for layer in by_time if layer.counters is not None]
    if not layers or analysis.counters is None:
        return None
    columns = [
        (column, get) for column, get in _COLUMNS if any(get(counters) is not None for _, counters in layers)
    ]
    rows = [
        (visible(names.get(layer.layer, layer.layer)) or root_name, *(get(counters) for _, get in columns))
        for layer, counters in layers
    ]
    notes = ["Measured, of the training thread alone, without its intra-operator threads"]
    if any((counters.running_ratio or 1) < 1 for _, counters in layers):
        notes.append("the processor's counters were shared with others, and are scaled up")
    if analysis.counters.user_only:
        notes.append("instructions, cycles and misses leave out what the kernel does")
    return Table(
        id="layer-counters-table",
        title="Counters of layers, mean per traced step and rank",
        terminal_rows=8,
        columns=(
            Column(key="layer", title="Layer", unit=Unit.CODE, primary=True),
            *(column for column, _ in columns),
        ),
        rows=tuple(rows),
        caption=f"{'; '.join(notes)}.",
    )
