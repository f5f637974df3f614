"""What the analysis of data loaders yields."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct

from perfscope.vocabulary.loading import InputCause, LoaderChange

# Shares of the time that workers are asleep at which the loader is replayed; see RankLoading.store_ns.
STORE_RATIOS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
BUSY = 0.5  # share of its life without a batch to make, below which a worker is waited for


class LoaderWorker(Struct, frozen=True, kw_only=True):
    """One worker, by its number; with loaders made anew for each epoch, all processes that had the number.

    Attributes:
        num_batches: that it made.
        mean_ns, median_ns: from when a batch was assigned to it until it handed the batch over.
        cpu_ratio: share of that time in which it computed.
        runqueue_ratio: in which it was ready to and had no CPU; of batches under 1 ms not read.
        asleep_ratio: in which it did neither: it waited for reads, the network, locks or a timer.
        idle_ratio: share of its life in which no batch was assigned to it, because enough were ready.
        read_chars: bytes that it read, the page cache included; None: not known.
        read_bytes: of these, what had to be fetched from storage; None: not known.
        major_faults: page faults that waited for storage (memory-mapped files); None: not known.
        num_asked: batches of it that the training asked for.
        wait_ns: that the training waited for these, in all; `late_wait_ns`: of that, until they were
            finished.
        mean_ready: batches of all workers that were ready when it asked for these; None: not known.
    """

    worker: int
    num_batches: int
    mean_ns: int
    median_ns: int
    cpu_ratio: float
    runqueue_ratio: float
    asleep_ratio: float
    idle_ratio: float
    read_chars: int | None
    read_bytes: int | None
    major_faults: int | None
    num_asked: int
    wait_ns: int
    late_wait_ns: int
    mean_ready: float | None


class LoadedBatch(Struct, frozen=True, kw_only=True):
    """A batch of the stretch that is drawn; times in ns since it begins. `worker` -1: the training's wait."""

    worker: int
    batch: int
    start_ns: int
    end_ns: int


class LoaderPrediction(Struct, frozen=True, kw_only=True):
    """The time from one batch to the next with one thing changed, by the replay of the loader.

    Attributes:
        period_ns: mean, predicted.
        saved_ns: of the mean measured one; never negative.
        factor: how many times as fast; of workers how many there would be; of a cache in each node, the share
            of a pass over the data that it holds.
    """

    change: LoaderChange
    period_ns: int
    saved_ns: int
    factor: float


class RankLoading(Struct, frozen=True, kw_only=True):
    """The loader with workers that a rank took most batches from.

    Attributes:
        rank: global rank.
        num_workers, prefetch: of the loader; prefetch None: not known.
        num_asks: batches that the training asked for.
        num_steps: training steps of the rank.
        num_passes: over the loader; with persistent workers, passes of the same ones count as one.
        start_ns: waits for the first batch of each pass, in all: workers start.
        period_ns: mean time from one batch of a pass to the next.
        wait_ns: of that, waiting for the batch.
        late_wait_ns: of that, until the worker had finished the batch; all of it where that is not known.
        late_ratio: share of the asks for which the batch was not finished.
        mean_ready: batches that were ready when the training asked; None: not known.
        ready_times_ns, ready: some of these, in order; ns since the first.
        samples: that the asks gave; None: the loader has no fixed batch size.
        workers: by their number.
        cause: why batches came late; None: not known, or they did not.
        slow_worker: its number, where it is the cause; -1: none.
        replayed_ns: `period_ns` as the replay gives it without any change; None: it could not be replayed.
        predictions: the largest saving first.
        store_ns: `period_ns` by the replay with 0, 0.125, 0.25, 0.5, 0.75 and 1 of the workers' sleep.
            0.25 stands for a store that is 4 times as fast. Empty: not replayed, or they hardly sleep.
        pass_samples: of a whole pass over the data; None: not known.
        drawn: some batches in the middle of the run.
    """

    rank: int
    num_workers: int
    prefetch: int | None
    num_asks: int
    num_steps: int
    num_passes: int
    start_ns: int
    period_ns: int
    wait_ns: int
    late_wait_ns: int
    late_ratio: float
    mean_ready: float | None
    ready_times_ns: tuple[int, ...]
    ready: tuple[int, ...]
    samples: int | None
    workers: tuple[LoaderWorker, ...]
    cause: InputCause | None = None
    slow_worker: int = -1
    replayed_ns: int | None = None
    predictions: tuple[LoaderPrediction, ...] = ()
    store_ns: tuple[int, ...] = ()
    pass_samples: int | None = None
    drawn: tuple[LoadedBatch, ...] = ()

    def prediction(self, change: LoaderChange) -> LoaderPrediction | None:
        """That of a change, if the replay has it."""
        return next((entry for entry in self.predictions if entry.change is change), None)

    def period_with(self, asleep_ratio: float) -> float | None:
        """`period_ns` were workers asleep for that share of the time that they are, 0 to 1: 1 / k of a store
        k times as fast. Between replays evenly; None: there is none."""
        if not self.store_ns:
            return None
        ratio = min(max(asleep_ratio, 0.0), 1.0)
        at = max(1, bisect_left(STORE_RATIOS, ratio))
        low, high = STORE_RATIOS[at - 1], STORE_RATIOS[at]
        part = (ratio - low) / (high - low)
        return self.store_ns[at - 1] * (1 - part) + self.store_ns[at] * part

    @property
    def cpu_ratio(self) -> float:
        """Of the time on batches, mean over workers by their time."""
        return self._mean("cpu_ratio")

    @property
    def asleep_ratio(self) -> float:
        """Likewise."""
        return self._mean("asleep_ratio")

    @property
    def read_bytes(self) -> int | None:
        """From storage, by all workers; None: not known of some."""
        return _sum([worker.read_bytes for worker in self.workers])

    @property
    def read_chars(self) -> int | None:
        """Page cache included, likewise."""
        return _sum([worker.read_chars for worker in self.workers])

    @property
    def bytes_per_sample(self) -> float | None:
        """Read by workers, page cache included; None: not known."""
        return self.read_chars / self.samples if self.read_chars is not None and self.samples else None

    @property
    def cached_ratio(self) -> float | None:
        """Share of the bytes read that the page cache had; None: not known, or nothing was read."""
        chars, stored = self.read_chars, self.read_bytes
        return None if not chars or stored is None else max(0.0, 1 - stored / chars)

    @property
    def sets_pace(self) -> bool:
        """Whether batches come as fast as workers make them. One busy worker is enough: they take turns."""
        return min((worker.idle_ratio for worker in self.workers), default=1.0) < BUSY

    @property
    def num_made(self) -> int:
        """Batches that workers made."""
        return sum(worker.num_batches for worker in self.workers)

    def _mean(self, name: str) -> float:
        weights = [worker.mean_ns * worker.num_batches for worker in self.workers]
        total = sum(weights)
        shares = zip(self.workers, weights, strict=True)
        return sum(getattr(worker, name) * weight for worker, weight in shares) / total if total else 0.0


def _sum(values: list[int | None]) -> int | None:
    counts = [value for value in values if value is not None]
    return sum(counts) if len(counts) == len(values) and counts else None
