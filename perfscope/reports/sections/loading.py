"""Section "Input": what loader workers did, when their batches were ready, and what was read from files."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.loading.results import LoaderWorker, RankLoading
from perfscope.analysis.loading.what_ifs import longest_wait
from perfscope.analysis.results import RunAnalysis
from perfscope.messages import loading as texts
from perfscope.messages.lists import counted
from perfscope.reports.model import (
    Block,
    ChartPart,
    Column,
    Curve,
    CurveChart,
    FactList,
    Lane,
    LaneChart,
    LaneSpan,
    Section,
    Table,
    Unit,
)
from perfscope.reports.sections.file_io import file_io_blocks, file_io_lead

MOST_LANES = 32
_OFTEN_LATE = 0.1  # of the batches: where finished ones are in the queue all the same, the report says why


def loading_section(analysis: RunAnalysis) -> Section | None:
    """None where no loader has workers, and no log of files was imported."""
    loading, file_io = longest_wait(analysis.loading), analysis.file_io
    if loading is None and file_io is None:
        return None
    lead = [] if loading is None else [_lead(analysis, loading)]
    blocks = [] if loading is None else _loader(loading)
    if file_io is not None:
        lead.append(file_io_lead(file_io))
        blocks += file_io_blocks(file_io)
    return Section(id="input", title="Input", lead=" ".join(lead), blocks=tuple(blocks))


def _loader(loading: RankLoading) -> list[Block]:
    blocks: list[Block] = [_facts(loading), _workers(loading)]
    if loading.predictions:
        blocks.append(_predictions(loading))
    if loading.drawn:
        blocks.append(_lanes(loading))
    if len(loading.ready) > 1:
        blocks.append(_ready(loading))
    return blocks


def _lead(analysis: RunAnalysis, loading: RankLoading) -> str:
    of_rank = f"On rank {loading.rank}, which waits longest, " if len(analysis.loading) > 1 else ""
    waits = (
        f"{'the' if of_rank else 'The'} training waits {units.format_ns(loading.wait_ns)} of "
        f"{units.format_ns(loading.period_ns)} from one batch to the next for the data loader."
    )
    if loading.cause is None:
        return of_rank + waits
    return f"{of_rank}{waits} Cause: {texts.CAUSES[loading.cause]}."


def _facts(loading: RankLoading) -> FactList:
    passes = counted(loading.num_passes, "pass", "passes")
    starts = f"{units.format_ns(loading.start_ns)} for the first batch of {passes}"
    pairs = [
        ("Workers", f"{loading.num_workers}, prefetch {loading.prefetch or 'not known'}"),
        ("Batches", units.format_count(loading.num_asks)),
        ("Wait per batch", _wait(loading)),
        ("Next batch not finished in time", f"{units.format_ratio(loading.late_ratio)} of the batches"),
        ("Start of workers", starts),
    ]
    if loading.mean_ready is not None:
        later = " (batches are taken in order: later ones wait for the next)"
        explained = later if loading.mean_ready >= 1 and loading.late_ratio >= _OFTEN_LATE else ""
        pairs.append(("Finished batches in the queue", f"{loading.mean_ready:.1f} on average{explained}"))
    pairs += _reads(loading)
    return FactList(id="input-facts", title="Loader", pairs=tuple(pairs))


def _wait(loading: RankLoading) -> str:
    received = loading.wait_ns - loading.late_wait_ns
    return f"{units.format_ns(loading.wait_ns)}; {units.format_ns(received)} of it for finished batches"


def _reads(loading: RankLoading) -> list[tuple[str, str]]:
    chars, stored = loading.read_chars, loading.read_bytes
    if not chars:
        return []
    per = "" if not loading.samples else f", {units.format_bytes(chars / loading.samples)} per sample"
    pairs = [("Read by workers", f"{units.format_bytes(chars)}{per}")]
    if loading.pass_samples and loading.bytes_per_sample:
        part = units.format_bytes(loading.bytes_per_sample * loading.pass_samples)
        pairs.append(("A pass over the data", f"{part} of this rank"))
    if stored is not None and loading.cached_ratio is not None:
        busy_ns = sum(worker.mean_ns * worker.num_batches for worker in loading.workers)
        rate = units.format_rate(stored / busy_ns * 1e9 * loading.num_workers) if busy_ns else ""
        share = units.format_ratio(loading.cached_ratio)
        pairs.append(("From the page cache", share))
        if stored:
            text = f"{units.format_bytes(stored)}, {rate} while workers make batches"
            pairs.append(("From storage", text))
    return pairs


def _workers(loading: RankLoading) -> Table:
    return Table(
        id="input-workers",
        title="Workers of the loader",
        columns=(
            Column(key="worker", title="Worker", unit=Unit.COUNT, primary=True),
            Column(key="batches", title="Batches", unit=Unit.COUNT),
            Column(key="mean", title="Mean per batch", unit=Unit.TIME, bar="input_wait", primary=True),
            Column(key="median", title="Median", unit=Unit.TIME),
            Column(key="cpu", title="On a CPU", unit=Unit.RATIO, primary=True),
            Column(key="queued", title="Waits for a CPU", unit=Unit.RATIO),
            Column(key="asleep", title="Asleep", unit=Unit.RATIO, primary=True, hint="reads, network, locks"),
            Column(key="idle", title="Without a task", unit=Unit.RATIO, hint="of its time: enough is ready"),
            Column(key="read", title="Read", unit=Unit.BYTES),
            Column(key="stored", title="From storage", unit=Unit.BYTES, primary=True),
        ),
        rows=tuple(_row(worker) for worker in loading.workers),
        terminal_rows=8,
    )


def _row(worker: LoaderWorker) -> tuple[int | float | None, ...]:
    return (
        worker.worker,
        worker.num_batches,
        worker.mean_ns,
        worker.median_ns,
        worker.cpu_ratio,
        worker.runqueue_ratio,
        worker.asleep_ratio,
        worker.idle_ratio,
        worker.read_chars,
        worker.read_bytes,
    )


def _predictions(loading: RankLoading) -> Table:
    replayed = units.format_ns(loading.replayed_ns or 0)
    return Table(
        id="input-what-ifs",
        title="Predicted time from one batch to the next, one change at a time",
        columns=(
            Column(key="what", title="What if", primary=True),
            Column(key="period", title="Between batches", unit=Unit.TIME, modeled=True, primary=True),
            Column(key="saved", title="Saved", unit=Unit.TIME, modeled=True, primary=True),
        ),
        rows=tuple(
            (texts.change_text(entry.change, entry.factor), entry.period_ns, entry.saved_ns)
            for entry in loading.predictions
        ),
        caption="Each row replays the loader's batches with one thing changed. Unchanged, the replay gives "
        f"{replayed} for {units.format_ns(loading.period_ns)} measured.",
        terminal_rows=6,
    )


def _lanes(loading: RankLoading) -> LaneChart:
    length = max(1, *(span.end_ns for span in loading.drawn))
    numbers = sorted({span.worker for span in loading.drawn})[: MOST_LANES + 1]
    return LaneChart(
        id="input-lanes",
        title="Batches in the middle of the run",
        parts=(
            ChartPart(key="input_wait", title="The training waits"),
            ChartPart(key="forward", title="A worker makes a batch"),
        ),
        lanes=tuple(_lane(loading, number) for number in numbers),
        length=length,
        caption="Numbers are batches. Empty in the lane of a worker: it has no task, because enough batches "
        "are ready; in that of the training: it computes.",
    )


def _lane(loading: RankLoading, number: int) -> Lane:
    spans = [span for span in loading.drawn if span.worker == number]
    what = "wait for batch" if number < 0 else "batch"
    return Lane(
        label="Training" if number < 0 else f"Worker {number}",
        spans=tuple(
            LaneSpan(
                part="input_wait" if number < 0 else "forward",
                start=span.start_ns,
                end=span.end_ns,
                text=str(span.batch),
                title=f"{what} {span.batch}, {units.format_ns(span.end_ns - span.start_ns)}",
            )
            for span in spans
        ),
    )


def _ready(loading: RankLoading) -> CurveChart:
    return CurveChart(
        id="input-ready",
        title="Batches that were ready when the training asked",
        x_title="time since the first batch",
        y_title="batches",
        x_unit=Unit.TIME,
        y_unit=Unit.COUNT,
        curves=(
            Curve(
                label="ready",
                x=tuple(map(float, loading.ready_times_ns)),
                y=tuple(map(float, loading.ready)),
                kind="fit",
            ),
        ),
        caption="At 0 the training waits for the workers; above it, where the next in order is not among the "
        "ready ones. Workers make at most "
        f"{loading.num_workers * (loading.prefetch or 2)} batches ahead.",
    )
