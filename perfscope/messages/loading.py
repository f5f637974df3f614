"""The loader's causes and changes in words."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.messages.lists import counted
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.loading import InputCause, LoaderChange

CAUSES: Mapping[InputCause, str] = {
    InputCause.DECODE: "decode-bound",
    InputCause.STORE: "store-bound",
    InputCause.WAIT: "waiting workers",
    InputCause.RECEIVING: "finished batches are received slowly",
    InputCause.SLOW_WORKER: "one slow worker",
}


def change_text(change: LoaderChange, factor: float) -> str:
    """Such as "4 loader workers"."""
    return {
        LoaderChange.DOUBLE_STORE: f"a store {factor:g} times as fast",
        LoaderChange.FASTER_STORE: f"a store {factor:g} times as fast",
        LoaderChange.NODE_CACHE: f"a cache in each node's memory: {format_ratio(factor, 0)} of the data",
        LoaderChange.CACHED: "all samples in the page cache",
        LoaderChange.DOUBLE_DECODE: "samples are decoded twice as fast",
        LoaderChange.MORE_WORKERS: f"{counted(round(factor), 'loader worker')}",
        LoaderChange.EQUAL_WORKERS: "the slow loader worker as fast as the others",
    }[change]


def rests_on(period_ns: float, replayed_ns: float, num_batches: int) -> str:
    """What a prediction of the loader's replay rests on."""
    return (
        f"replay of {counted(num_batches, 'batch', 'batches')} of the loader: {format_ns(replayed_ns)} "
        f"from one to the next, {format_ns(period_ns)} measured; of the mean step"
    )


SAME_DATA = "; where ranks read the same data (tensor or pipeline parallel), a cache holds more of it"


def seen_in_files(read_ns: float, wait_ns: float) -> str:
    """What a prediction for a training thread that loads its own data rests on; ns per mean step."""
    return (
        f"the training thread was seen waiting for files for {format_ns(read_ns)} of the "
        f"{format_ns(wait_ns)} that it waits for input; writes to files count, too, except syncs that were "
        "timed; of the mean step"
    )


def mean_wait(wait_ns: float, step_ns: float) -> str:
    """What the input wait of the mean step rests on, where the median step is another."""
    return f"of the mean step: {format_ns(wait_ns)} of {format_ns(step_ns)}, timed in every untraced step"
