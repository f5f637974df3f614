"""What is measured of a machine before a training starts (ceilings.json), and its data sheets."""

from __future__ import annotations

from enum import Enum


class CeilingKind(str, Enum):
    """A measurement. The value is the code in ceilings.json."""

    TRIAD = "stream_triad"
    GEMM = "gemm"
    DEVICE_COPY = "device_copy"
    DEVICE_GEMM = "device_gemm"


CEILING_TITLES = {
    CeilingKind.TRIAD: "STREAM triad",
    CeilingKind.GEMM: "GEMM",
    CeilingKind.DEVICE_COPY: "device copy",
    CeilingKind.DEVICE_GEMM: "device GEMM",
}
DRAM = "DRAM"  # the data sheet's bandwidth of one socket, among the theoretical peaks
