"""Names and sentences of kernel tables."""

from __future__ import annotations

import re

from perfscope.messages.lists import counted
from perfscope.units import format_ratio
from perfscope.vocabulary.kernels import CopyKind, KernelType

TITLES = {
    KernelType.GEMM: "GEMM",
    KernelType.ATTENTION: "Attention",
    KernelType.CONVOLUTION: "Convolution",
    KernelType.NORMALIZATION: "Normalization",
    KernelType.ELEMENTWISE: "Elementwise",
    KernelType.REDUCTION: "Reduction",
    KernelType.COPY: "Copy",
    KernelType.COMMUNICATION: "Communication",
    KernelType.OPTIMIZER: "Optimizer",
    KernelType.OTHER: "Other",
}
COPIES = {
    CopyKind.HOST_TO_DEVICE: "Host to device",
    CopyKind.DEVICE_TO_HOST: "Device to host",
    CopyKind.DEVICE_TO_DEVICE: "Within a device",
    CopyKind.PEER_TO_PEER: "Between devices",
    CopyKind.HOST_TO_HOST: "Host to host",
    CopyKind.SET: "Set",
    CopyKind.UNKNOWN: "Not known",
}
_NOISE = re.compile(r"\(anonymous namespace\)::|\bat::native::|^void |\bat::detail::|\bstd::")


def short_name(name: str) -> str:
    """A kernel's name without its argument list and the namespaces that all kernels of torch have."""
    text = _NOISE.sub("", name)
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0 and position:
            return text[:position]
    return text


def in_graphs(ratio: float, replays: int) -> str:
    """How much of the devices' time graphs launched, and what that means for other tables."""
    return (
        f"{format_ratio(ratio)} of the device time was launched by {counted(replays, 'replay')} of CUDA or "
        "HIP graphs. The trace does not say which operator or layer a kernel of a graph is of: it is counted "
        "for the call that replays the graph, and for the layer that makes this call."
    )


def launches_absent(calls: int, ratio: float) -> str:
    """Kernels whose launch is not in the trace."""
    return (
        f"The launch of {counted(calls, 'kernel or copy', 'kernels and copies')} ({format_ratio(ratio)} of "
        "the device time) is not in the trace, for example because it was before the trace began: their "
        "operator, layer and step are not known."
    )
