"""mpiexec over two hosts: network namespaces, and a stand-in for ssh that brings no environment along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.mpi_support import EXAMPLES, MPIEXEC, NEEDS_MPI, Recorded, record

pytestmark = [pytest.mark.frameworks, NEEDS_MPI]
NUM_HOSTS = 2
# As ssh: enters another host, whose shell knows nothing of ours but the way to programs.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec nsenter --net=/run/netns/NAME-${host##*.} env -i PATH="$PATH" HOME="$HOME" OMPI_ALLOW_RUN_AS_ROOT=1 \\
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 unshare --uts sh -c "hostname node-${host##*.}; $*"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The stem of the namespaces' names; address of host k: 10.9.8.k."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("hosts as network namespaces need root, iproute2 and util-linux")
    stem = f"perfscope-mpi-{os.getpid()}"
    names = [f"{stem}-{index}" for index in range(1, NUM_HOSTS + 1)]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add wire1 netns {names[0]} type veth peer name wire2 netns {names[1]}")
    for index, name in enumerate(names, 1):
        commands += [
            f"-n {name} addr add 10.9.8.{index}/24 dev wire{index}",
            f"-n {name} link set lo up",
            f"-n {name} link set wire{index} up",
        ]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"this kernel gives no network namespaces: {done.stderr.strip()}")
        yield stem
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def on_first_host(stem: str, folder: Path, command: list[str], **changes: str) -> Recorded:
    """`perfscope run -- command` on host 1."""
    inside = ["nsenter", f"--net=/run/netns/{stem}-1", "unshare", "--uts", "sh", "-c"]
    return record(command, folder, within=[*inside, 'hostname node-1; exec "$@"', "sh"], **changes)


def agent(stem: str, folder: Path) -> str:
    path = folder / "enter"
    path.write_text(AGENT.replace("NAME", stem))
    path.chmod(0o755)
    return str(path)


def version_of(command: str) -> str:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def launch(stem: str, folder: Path) -> list[str]:
    """mpiexec with one rank on each host."""
    hosts = [f"10.9.8.{index}" for index in range(1, NUM_HOSTS + 1)]
    version = version_of(MPIEXEC)
    if "Open MPI" in version or "OpenRTE" in version:
        key = "plm_ssh_agent" if "5." in version.split("Open MPI")[-1][:6] else "plm_rsh_agent"
        slots = ",".join(f"{host}:1" for host in hosts)
        option = "--prtemca" if key == "plm_ssh_agent" else "--mca"
        return [MPIEXEC, option, key, agent(stem, folder), "--host", slots, "--map-by", "node", "-np", "2"]
    return [
        MPIEXEC,
        "-launcher",
        "ssh",
        "-launcher-exec",
        agent(stem, folder),
        "-hosts",
        ",".join(hosts),
        "-n",
        "2",
    ]


def test_ranks_of_both_hosts_are_in_one_run(cluster: str, tmp_path: Path) -> None:
    train = [sys.executable, str(EXAMPLES / "mpi_heat.py"), "--size", "256", "--steps", "60"]
    found = on_first_host(cluster, tmp_path, [*launch(cluster, tmp_path), *train], FI_PROVIDER="tcp")
    assert found.done.returncode == 0, found.done.stderr
    assert found.errors() == []
    assert found.ranks() == ["0", "1"]
    assert [found.rank(rank)["host"] for rank in (0, 1)] == ["node-1", "node-2"]
    assert "attached 2 of expected 2 ranks" in found.said()
    assert [len(found.steps(rank)) for rank in (0, 1)] == [59, 59]
    assert sorted(path.name for path in (found.place / "hosts").iterdir()) == ["node-1", "node-2"]


def test_a_pythonpath_of_the_users_own_reaches_the_other_host_behind_ours(
    cluster: str, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_module.py").write_text("WORD = 'found'\n")
    script = tmp_path / "program.py"
    script.write_text(
        "import my_module\nfrom mpi4py import MPI\n"
        "for _ in range(20):\n    MPI.COMM_WORLD.allreduce(1)\n    MPI.COMM_WORLD.Barrier()\n"
        "print(MPI.COMM_WORLD.rank, my_module.WORD)\n"
    )
    command = launch(cluster, tmp_path)
    is_open = "--host" in command
    option = (
        ["-x", f"PYTHONPATH={tmp_path / 'mine'}"]
        if is_open
        else ["-genv", "PYTHONPATH", str(tmp_path / "mine")]
    )
    found = on_first_host(
        cluster, tmp_path, [command[0], *option, *command[1:], sys.executable, str(script)], FI_PROVIDER="tcp"
    )
    assert found.done.returncode == 0, found.done.stderr
    assert sorted(found.done.stdout.splitlines()) == ["0 found", "1 found"]
    assert found.ranks() == ["0", "1"]
