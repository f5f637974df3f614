"""The loader's causes and changes in words."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.messages.lists import counted
from perfscope.units import format_ns
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
        LoaderChange.DOUBLE_STORE: "workers wait half as long (a store twice as fast)",
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


def mean_wait(wait_ns: float, step_ns: float) -> str:
    """What the input wait of the mean step rests on, where the median step is another."""
    return f"of the mean step: {format_ns(wait_ns)} of {format_ns(step_ns)}, timed in every untraced step"
