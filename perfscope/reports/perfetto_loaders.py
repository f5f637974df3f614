"""Data loaders for Perfetto: threads for the workers and for waits, and a counter of ready batches."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analysis.loading.lanes import LoaderSpans, WorkerBatches
from perfscope.reports.trace_events import counter_event, metadata_event, span_event

FIRST_THREAD = 1_000_000  # numbers of threads, clear of the rank's lanes
_PER_LOADER = 10_000


def loader_events(rank: int, loader: LoaderSpans, origin: int) -> Iterator[bytes]:
    """Everything recorded of one loader over the whole run, inside the rank's process.

    Args:
        origin: Unix ns that times count from.
    """
    which = f" of loader {loader.number + 1}" if loader.number else ""
    first = FIRST_THREAD + _PER_LOADER * loader.number
    yield from _named(rank, first, f"loader queue{which}: waits")
    yield from _waits(loader, (rank, first), origin)
    track = f"loader queue{which}: batches ready"
    for at, ready in zip(loader.ask_ns.tolist(), loader.ready.tolist(), strict=True):
        if ready >= 0:
            yield counter_event(rank, at - origin, track, ready)
    for worker in loader.workers:
        thread = first + 1 + worker.worker
        yield from _named(rank, thread, f"loader worker {worker.worker}{which}")
        yield from _batches(worker, (rank, thread), origin)


def _named(rank: int, thread: int, name: str) -> Iterator[bytes]:
    yield metadata_event("thread_name", rank, thread, name=name)
    yield metadata_event("thread_sort_index", rank, thread, sort_index=thread)


def _waits(loader: LoaderSpans, thread: tuple[int, int], origin: int) -> Iterator[bytes]:
    columns = (loader.ask_ns, loader.wait_ns, loader.batch, loader.worker, loader.ready, loader.made_ns)
    for ask, wait, batch, worker, ready, made in zip(*(each.tolist() for each in columns), strict=True):
        values = {
            "batch": batch,
            "worker": worker if worker >= 0 else None,
            "batches_ready": ready if ready >= 0 else None,
            "finished_ns_before": ask - made if made >= 0 else None,
        }
        arguments = {name: value for name, value in values.items() if value is not None}
        yield span_event(thread, ask - origin, wait, ("input", f"wait for batch {batch}"), arguments)


def _batches(worker: WorkerBatches, thread: tuple[int, int], origin: int) -> Iterator[bytes]:
    columns = (worker.start_ns, worker.dur_ns, worker.batch, worker.cpu_ns, worker.queued_ns)
    for start, dur, batch, cpu, queued in zip(*(each.tolist() for each in columns), strict=True):
        arguments = {"batch": batch, "worker": worker.worker, "cpu_ns": cpu, "waited_for_cpu_ns": queued}
        yield span_event(thread, start - origin, dur, ("loading", f"batch {batch}"), arguments)
