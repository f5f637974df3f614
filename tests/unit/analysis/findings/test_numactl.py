"""Command lines that bind ranks: exact where that is sure, advice everywhere else; bash takes them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from perfscope.analysis.findings.numactl import how_to_bind
from perfscope.analysis.machine.host import Host, HostRank
from perfscope.analysis.machine.topology import Topology
from perfscope.messages.findings.machine import binding_text
from perfscope.rundir.host_records import CeilingsRecord
from perfscope.rundir.samples import HostSamples
from tests.support.records import run_record

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


def host(num_ranks: int) -> Host:
    none = np.empty(0, dtype=np.int64)
    more = {"num_threads": 1, "affinity": frozenset[int](), "device": "cpu", "starts": none, "ends": none}
    ranks = [HostRank(rank=k, pid=100 + k, local_rank=k, **more) for k in range(num_ranks)]  # type: ignore[arg-type]
    empty = HostSamples(host="h", series=(), facts=(), anchors=(), intervals=(), ends=(), num_dropped=0)
    return Host(
        name="h",
        samples=empty,
        topology=Topology.of(None),
        ceilings=CeilingsRecord(),
        ranks=ranks,
        steps_ns=None,
    )


def told(command: str, launcher: str, *nodes: tuple[int, ...]) -> str:
    run = run_record({"command": command.split(), "launcher": launcher})
    return binding_text(how_to_bind(run, host(len(nodes)), dict(enumerate(nodes))))


EACH = "start rank 0 under `numactl --cpunodebind=0 --membind=0`"
BOTH = f"{EACH}, rank 1 under `numactl --cpunodebind=1 --membind=1`"


def test_one_process_gets_its_whole_line() -> None:
    line = "`numactl --cpunodebind=1 --membind=1 python train.py --lr 0.1`"
    assert told("python train.py --lr 0.1", "python", (1,)) == line
    assert "--cpunodebind=0,1 --membind=0,1 python" in told("python train.py", "python", (0, 1))


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("python train.py", "python"),  # ranks of torch.multiprocessing.spawn
        ("torchrun --no-python --nproc-per-node 2 python train.py", "torchrun"),
        ("torchrun --no_python --nproc_per_node=2 python train.py", "torchrun"),
        ("torchrun --nproc-per-node 2 -m train.py", "torchrun"),
        ("torchrun --nproc-per-node 2 --module package.train", "torchrun"),
        ("torchrun --nproc-per-node 2 train", "torchrun"),
        ("torchrun --nproc-per-node", "torchrun"),
        ("python -m torch.distributed.launch --nproc-per-node 2 train.py", "torchrun"),
        ("env A=1 torchrun --nproc-per-node 2 train.py", "torchrun"),
        ("torchrun --nproc-per-node 2 train.py --key <redacted>", "torchrun"),
        ("mpirun -np 2 python train.py", "mpirun"),
        ("mpirun -wdir /x/python3 -np 2 python3 t.py", "mpirun"),
        ("mpiexec -n 2 python train.py", "mpirun"),
        ("srun -n 2 python train.py", "srun"),
        ("accelerate launch train.py", "other"),
        ("bash job.sh", "shell"),
    ],
)
def test_who_else_starts_the_ranks_gets_advice(command: str, launcher: str) -> None:
    assert told(command, launcher, (0,), (1,)) == BOTH


def test_what_binds_already_is_to_be_replaced() -> None:
    command = "numactl -N 0 -m 1 python train.py"
    assert told(command, "python", (0,)) == f"{EACH} (in place of what the command binds now)"


def test_many_ranks_are_summarized_and_unknown_ones_left_out() -> None:
    text = told("srun python train.py", "srun", *[(k % 2,) for k in range(9)], ())
    assert text.startswith(BOTH) and text.count("numactl") == 4
    assert text.endswith(", the other 5 each on the node of its own CPUs or GPU")
    # A rank of which nothing is known would have no place in the table.
    assert told("torchrun --nproc-per-node 2 train.py", "torchrun", (0,), ()) == EACH


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A folder with a numactl that prints its arguments."""
    numactl = tmp_path / "numactl"
    numactl.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    # Runs what torchrun would run, once per rank.
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --no-python ]; do shift; done; shift\n'
        'for LOCAL_RANK in $RANKS; do export LOCAL_RANK; "$@" || exit; done\n'
        '[ -n "$RANKS" ] || "$@"\n'
    )
    for tool in (numactl, torchrun):
        tool.chmod(0o755)
    return tmp_path


@needs_bash
@pytest.mark.parametrize(
    ("start", "python"),
    [
        ("torchrun --standalone --log-dir logs.py --nproc_per_node=3", "python"),
        ("python3 -m torch.distributed.run --nproc-per-node 3", "python3"),
    ],
)
def test_every_produced_line_is_one_that_bash_accepts(start: str, python: str) -> None:
    text = told(f"{start} train.py --a $(x) --b 'y", "torchrun", (0,), (1,), (0, 1))
    assert text.startswith(f"`{start} --no-python bash -c ") and f" {python} train.py" in text
    line = text.strip("`")
    assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0


@needs_bash
def test_torchrun_s_line_binds_each_rank_and_stops_without_a_number(stand_ins: Path) -> None:
    text = told("torchrun --nproc-per-node 3 train.py it's $HOME", "torchrun", (0,), (1,), (0, 1))
    clean = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    path = f"{stand_ins}:{os.environ.get('PATH', '')}"

    def run(ranks: str) -> subprocess.CompletedProcess[str]:
        environment = {**clean, "PATH": path, "RANKS": ranks}
        line = ["bash", "-c", text.strip("`")]
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)

    program = ["python", "train.py", "it's", "$HOME"]
    expected = [
        word for n in ("0", "1", "0,1") for word in (f"--cpunodebind={n}", f"--membind={n}", *program)
    ]
    assert run("0 1 2").stdout.split("\n")[:-1] == expected
    for ranks in ("", "3"):  # no number; one more than there were
        stopped = run(ranks)
        assert stopped.returncode != 0 and stopped.stdout == "" and "bash" in stopped.stderr
