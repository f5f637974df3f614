"""Where the boundaries of traced steps come from."""

from __future__ import annotations

from enum import Enum


class StepSource(str, Enum):
    """The value is recorded in the window's summary."""

    PERFSCOPE = "perfscope"
    PROFILER = "ProfilerStep"
    NVTX = "NVTX"
    INFERENCE = "inference step"  # ranges of inference servers (vLLM, SGLang)
    WHOLE_FILE = "whole file"  # no marks: the file counts as one step

    __str__ = str.__str__


CHAKRA_STEP = "perfscope.step"  # name of nodes with the span of a step in exported Chakra traces
