"""Allocates memory when told to, touches every page, and waits: `worker.py MIB`. Standard library only."""

from __future__ import annotations

import mmap
import sys

MIB = 1 << 20

size = int(sys.argv[1]) * MIB
print("started", flush=True)
sys.stdin.readline()
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would count as one event
for start in range(0, size, MIB):
    memory[start : start + MIB] = bytes(MIB)
print("touched", flush=True)
sys.stdin.readline()
