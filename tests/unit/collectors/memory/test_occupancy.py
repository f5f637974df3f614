"""Memory of ranks, of the host and of limited control groups: captured files, and this machine."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from perfscope.collectors.context import Context, captured_context, live_context
from perfscope.collectors.memory.occupancy import MemoryOccupancy
from tests.support.hardware import by_series, write

GIB = 1 << 30
MEMINFO = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    4096 kB\n"
V2 = {
    "/proc/meminfo": MEMINFO,
    "/proc/7/cgroup": "0::/job/task\n",
    "/proc/7/statm": "9000 300 100 1 0 200 0\n",
    "/sys/fs/cgroup/cgroup.controllers": "memory\n",
    "/sys/fs/cgroup/job/memory.max": "5000000\n",
    "/sys/fs/cgroup/job/memory.current": "3000000\n",
    "/sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 500000\n",
    "/sys/fs/cgroup/job/task/memory.max": "max\n",
    "/sys/fs/cgroup/job/task/memory.current": "2000000\n",
}
V1 = {
    "/proc/meminfo": MEMINFO,
    "/proc/7/cgroup": "4:memory:/job\n",
    "/proc/7/statm": "9000 300 100 1 0 200 0\n",
    "/sys/fs/cgroup/memory/release_agent": "",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4000000\n",
    "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "3000000\n",
    "/sys/fs/cgroup/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 600000\n",
}


def captured(root: Path, files: dict[str, str]) -> Context:
    write(root, files)
    return captured_context(root, pids=lambda: (7,))


def readings(ctx: Context) -> dict[str, float | int | None]:
    collector = MemoryOccupancy()
    collector.open(ctx)
    found = by_series(collector.sample())
    collector.close()
    return found


@pytest.mark.parametrize(
    ("files", "group", "used", "limit"),
    [(V2, "/job", 2_500_000, 5_000_000), (V1, "/memory/job", 2_400_000, 4_000_000)],
)
def test_the_nearest_group_with_a_limit_counts_without_old_page_cache(
    tmp_path: Path, files: dict[str, str], group: str, used: int, limit: int
) -> None:
    ctx = captured(tmp_path, files)
    found = readings(ctx)
    assert found[f"job_memory_used{{group={group}}}"] == used
    assert found[f"job_memory_limit{{group={group}}}"] == limit
    assert sum(key.startswith("job_") for key in found) == 2  # none of the group without a limit
    assert found["rank_resident_bytes{pid=7}"] == 300 * ctx.page_size
    assert found["rank_shared_bytes{pid=7}"] == 100 * ctx.page_size
    assert found["host_memory_total{}"] == 16384 * 1024
    assert found["host_memory_available{}"] == 4096 * 1024


def test_a_job_without_a_limit_is_no_gap(tmp_path: Path) -> None:
    files = {name: text.replace("5000000", "max") for name, text in V2.items()}
    ctx = captured(tmp_path, files)
    assert not any(key.startswith("job_") for key in readings(ctx))
    capability = MemoryOccupancy().probe(ctx)
    assert capability.available
    assert capability.absent == ()
    assert "no control group limits" in capability.detail


def test_a_rank_that_has_ended_is_not_read_as_zero(tmp_path: Path) -> None:
    files = {**V2, "/proc/7/statm": "0 0 0 0 0 0 0\n"}
    assert not any(key.startswith("rank_") for key in readings(captured(tmp_path, files)))


def test_memory_that_this_process_takes_is_seen() -> None:
    ctx = live_context(pids=lambda: (os.getpid(),))
    key, size = f"rank_resident_bytes{{pid={os.getpid()}}}", 64 << 20
    collector = MemoryOccupancy()
    collector.open(ctx)
    before = by_series(collector.sample())[key]
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for page in range(0, size, mmap.PAGESIZE):
            area[page] = 1
        after = by_series(collector.sample())[key]
    collector.close()
    assert before is not None and after is not None
    # The kernel may count some pages of each thread late.
    assert after - before == pytest.approx(size, rel=0.1)
