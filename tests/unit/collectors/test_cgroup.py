"""The job's control group: where it is, and how a run gets one of its own; and the memory of the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.collectors.cgroup import IN_ROOT, NO_RANK, JobCgroup, JobWatch, job_cgroup, own_group
from perfscope.collectors.context import captured_context
from perfscope.collectors.machine.topology import read_topology
from tests.support.hardware import copy, write

PARTS = ("proc", "sys/devices/system/node", "sys/fs/cgroup")  # of a tree: what is read here


def test_ranks_in_groups_of_their_own_share_the_nearest_ancestor(tmp_path: Path) -> None:
    root = copy("two-socket-before", tmp_path / "tree", *PARTS)
    pids = [11]
    for pid in (11, 12):
        write(
            root,
            {
                f"proc/{pid}/cgroup": f"0::/slurm/job_7/step_0/task_{pid}\n",
                f"sys/fs/cgroup/slurm/job_7/step_0/task_{pid}/cgroup.type": "domain\n",
            },
        )
    watch = JobWatch(captured_context(root, pids=lambda: tuple(pids)))
    assert watch.group.v2 == "/sys/fs/cgroup/slurm/job_7/step_0/task_11"
    assert not watch.look()
    pids.append(12)
    assert watch.look()
    assert watch.group.v2 == "/sys/fs/cgroup/slurm/job_7/step_0"
    pids.remove(12)
    assert not watch.look()


def test_the_root_group_is_the_machine_and_no_job(tmp_path: Path) -> None:
    root = copy("two-socket-before", tmp_path / "tree", *PARTS)
    write(root, {"proc/11/cgroup": "0::/\n"})
    group = job_cgroup(captured_context(root, pids=lambda: (11,)))
    assert group.v2 == ""
    assert group.reason == IN_ROOT
    assert group.remedy(captured_context(root)) == own_group(captured_context(root)) != ""
    assert JobCgroup(reason=NO_RANK, has_rank=False).remedy(captured_context(root)) == ""


@pytest.mark.parametrize(
    ("files", "euid", "words"),
    [
        ((), 1000, "batch step"),
        ((), 0, "batch step"),
        (("run/systemd/system/x",), 0, "systemd-run --scope -p CPU"),
        (("run/systemd/system/x",), 1000, "batch step"),
        (("run/user/1000/bus",), 1000, "batch step"),
        (("run/systemd/system/x", "run/user/1000/bus"), 1000, "systemd-run --user --scope -p CPU"),
        (("run/systemd/system/x", "run/user/1001/bus"), 1000, "batch step"),
        (("run/systemd/system/x", "run/user/0/bus", ".dockerenv"), 0, ""),
    ],
)
def test_a_cgroup_of_its_own_is_got_as_this_machine_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], euid: int, words: str
) -> None:
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/of/this/machine/not/of/the/tree")
    write(tmp_path, dict.fromkeys(files, ""))
    remedy = own_group(captured_context(tmp_path, euid=euid))
    assert words in remedy and bool(words) == bool(remedy)


def test_two_figures_of_the_memory_are_both_told_where_they_differ(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       24684092 kB\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       9395240 kB\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
        },
    )
    topology = read_topology(captured_context(tmp_path), "h")
    (note,) = [note for note in topology["notes"] if "nodeN/meminfo" in note]  # type: ignore[attr-defined]
    assert "23.5 GiB of memory for the machine" in note and "8.96 GiB for its NUMA nodes" in note
    write(tmp_path, {"sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       24300000 kB\n"})
    assert "nodeN/meminfo" not in str(read_topology(captured_context(tmp_path), "h")["notes"])


def test_the_root_of_a_container_is_its_job(tmp_path: Path) -> None:
    root = copy("two-socket-before", tmp_path / "tree", *PARTS)
    write(root, {"proc/11/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.type": "domain\n"})
    assert job_cgroup(captured_context(root, pids=lambda: (11,))).v2 == "/sys/fs/cgroup"


def test_the_unified_mount_of_the_hybrid_layout_is_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/11/cgroup": "2:cpuacct:/\n0::/user.slice/run-3.scope\n",
            "sys/fs/cgroup/unified/user.slice/run-3.scope/cpu.stat": "usage_usec 1\n",
        },
    )
    group = job_cgroup(captured_context(tmp_path, pids=lambda: (11,)))
    assert group.v2 == "/sys/fs/cgroup/unified/user.slice/run-3.scope"
