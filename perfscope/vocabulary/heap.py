"""What keeps glibc's heap as it is: memory that is freed stays in the process.

By default glibc returns large blocks to the kernel and adapts its limits to what a program frees: two runs of
one program may map their tensors anew in every step, or never. The three belong together: one of them alone
turns off the adaptation.
"""

from __future__ import annotations

from types import MappingProxyType

STILL_HEAP = MappingProxyType(  # environment variables; bytes
    {
        "MALLOC_MMAP_THRESHOLD_": "33554432",  # the largest that glibc takes
        "MALLOC_TRIM_THRESHOLD_": "536870912",
        "MALLOC_TOP_PAD_": "67108864",
    }
)
