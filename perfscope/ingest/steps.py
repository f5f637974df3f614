"""Which training step a moment belongs to, and which thread is the main one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from perfscope.ingest.classify import HostClass, step_number
from perfscope.ingest.collect import FileFacts
from perfscope.ingest.string_table import Lanes
from perfscope.vocabulary.steps import StepSource

OUTSIDE = -1
_AS_OTHERS = 0.8  # of the launches of the step with most; files may list later steps first
_WITH_WORK = 0.98  # of a step's launches of kernels; in files that are whole, all of them have their work
_SOURCES = (
    (HostClass.STEP, StepSource.PERFSCOPE),
    (HostClass.PROFILER_STEP, StepSource.PROFILER),
    (HostClass.INFERENCE_STEP, StepSource.INFERENCE),
)
# The thread with most spans of the first of these classes that occurs is the main thread.
_MAIN_SIGNS = (
    HostClass.STEP,
    HostClass.PROFILER_STEP,
    HostClass.INFERENCE_STEP,
    HostClass.OPTIMIZER,
    HostClass.LAYER,
    HostClass.ZERO_GRAD,
    HostClass.MODULE,
    HostClass.INPUT,
)


class Steps:
    """Steps of one window: step i lasts until step i+1 starts, the last one as long as its mark.

    Attributes:
        spans: (step, start_ns, end_ns) in the time of the trace's events, in order.
        source: without marks, StepSource.WHOLE_FILE, everything is step 0.
    """

    def __init__(self, facts: FileFacts, texts: Sequence[str], codes: Sequence[int]) -> None:
        self.source = StepSource.WHOLE_FILE
        self.spans: list[tuple[int, int, int]] = []
        for code, source in _SOURCES:
            marks = [mark for mark in facts.steps if codes[mark[2]] == code]
            if marks:
                self.source = source
                if source is not StepSource.INFERENCE and not texts[marks[0][2]].startswith(source):
                    self.source = StepSource.NVTX
                self.spans = _spans(marks, texts)
                break
        if not self.spans and facts.first_ns <= facts.last_ns:
            self.source = StepSource.WHOLE_FILE
            self.spans = [(0, facts.first_ns, facts.last_ns + 1)]
        self._index()

    def _index(self) -> None:
        self._numbers = np.array([step for step, _, _ in self.spans], np.int32)
        self._starts = np.array([start for _, start, _ in self.spans], np.int64)
        self._ends = np.array([end for _, _, end in self.spans], np.int64)

    def of(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The step each moment is in; `OUTSIDE` for none."""
        index = self.places(starts)
        if not len(self._numbers):
            return index.astype(np.int32)
        return np.where(index >= 0, self._numbers[index], np.int32(OUTSIDE))

    def cut(
        self, since: int, until: int, launched: npt.NDArray[np.int64], has_work: npt.NDArray[np.bool_]
    ) -> int:
        """Leaves out steps that a file which ends early does not hold whole.

        Those are steps that end later than what was listed last, and steps of which launches, or their
        work on the device, are missing. Without marks the rest of the file is left out.

        Args:
            since: start of the first work of a device; the maximum: there is none.
            until: start of what was listed last.
            launched: start of each call that launches kernels, shape (n,).
            has_work: whether what it launched is in the file, likewise.

        Returns:
            How many steps that are.
        """
        if self.source is StepSource.WHOLE_FILE:
            self.spans = [(step, start, min(end, until)) for step, start, end in self.spans if start < until]
            self._index()
            return 0
        index = self.places(launched)
        inside = index >= 0
        num = np.bincount(index[inside], minlength=len(self.spans))
        num_with_work = np.bincount(index[inside], has_work[inside], len(self.spans))
        is_complete = (num_with_work >= _WITH_WORK * num) & (num >= _AS_OTHERS * num.max(initial=0))
        if since < np.iinfo(np.int64).max:  # work that earlier steps launched runs in later ones
            is_complete[1:] &= self._starts[1:] >= since
        kept = [
            span for span, ok in zip(self.spans, is_complete.tolist(), strict=True) if ok and span[2] <= until
        ]
        cut = len(self.spans) - len(kept)
        self.spans = kept
        self._index()
        return cut

    def places(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index in `spans` of the step each moment is in; -1 for none."""
        if not len(self._starts):
            return np.full(len(starts), -1, np.int64)
        index = np.searchsorted(self._starts, starts, side="right") - 1
        inside = (index >= 0) & (starts < self._ends[index])
        return np.where(inside, index, -1)

    @property
    def is_marked(self) -> bool:
        """Whether there are marks, not the whole file as one step."""
        return self.source is not StepSource.WHOLE_FILE and bool(len(self._starts))

    @property
    def first_ns(self) -> int:
        """Start of the first marked step; the smallest integer where nothing is marked."""
        return int(self._starts[0]) if self.is_marked else int(np.iinfo(np.int64).min)


def _spans(marks: list[tuple[int, int, int, int]], texts: Sequence[str]) -> list[tuple[int, int, int]]:
    busiest = Counter(lane for *_, lane in marks).most_common()
    lane = min(lane for lane, count in busiest if count == busiest[0][1])
    spans: list[tuple[int, int, int]] = []
    reached = -1
    for start, end, word, mark_lane in sorted(marks):
        if mark_lane != lane:
            continue
        number = step_number(texts[word])
        if number is None and start >= reached:  # of a server's steps, the outermost ranges count
            number, reached = len(spans), end
        if number is not None:
            spans.append((number, start, end))
    return [
        (number, start, spans[i + 1][1] if i + 1 < len(spans) else end)
        for i, (number, start, end) in enumerate(spans)
    ]


def main_lane(facts: FileFacts, lanes: Lanes) -> int | None:
    """Number of the thread that runs the training loop; None without host threads."""
    counts = facts.host_codes
    threads = [lane for lane in range(len(counts)) if not lanes.is_device[lane] and counts[lane].any()]
    if not threads:
        return None
    for code in _MAIN_SIGNS:
        best = max(threads, key=lambda lane: int(counts[lane, code]))
        if counts[best, code]:
            return best
    initial = [lane for lane in threads if lanes.keys[lane][0] == lanes.keys[lane][1]]
    return max(initial or threads, key=lambda lane: int(counts[lane].sum()))
