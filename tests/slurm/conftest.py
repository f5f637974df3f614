"""One Slurm for all tests of this folder; where there cannot be one they are skipped with the reason."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE
from tests.slurm.mini_slurm import MiniSlurm, NoSlurm, why_not

ALONE = (sys.executable, str(Path(__file__).parent / "train_alone.py"))
STEPS = "1000000"  # of a training that does not end by itself


@pytest.fixture(scope="session")
def slurm() -> Iterator[MiniSlurm]:
    """Two nodes of two CPUs, three spare ones, with accounting where MariaDB is there."""
    reason = why_not()
    if reason:
        pytest.skip(f"no Slurm here: {reason}")
    # Not pytest's own folder: sockets have short names, and munge wants folders that only root may write to.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    found = MiniSlurm(folder=folder, num_spare=3, accounting=not why_not(accounting=True))
    try:
        try:
            found.up()
        except NoSlurm as error:
            logs = "\n".join(f"{path.name}: {path.read_text()[-400:]}" for path in folder.glob("log/*"))
            pytest.fail(f"Slurm is installed but does not come up: {error}\n{logs}")
        yield found
    finally:
        found.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(slurm: MiniSlurm, request: pytest.FixtureRequest) -> Iterator[MiniSlurm]:
    """The cluster with all nodes but the spare ones idle, and idle again when the test is over."""
    if any("out_of_time" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("out_of_time")  # their minute passes while other tests run
    slurm.clear()
    yield slurm
    slurm.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfTime:
    """Jobs with a time limit of one minute (Slurm has no shorter one) that would train for hours.

    Attributes:
        folder: what they were submitted in.
        submitted: by `perfscope slurm submit`, one task, into `folder`/submitted.
        by_hand: a script with `srun perfscope run`, two nodes of two tasks, into `folder`/by-hand.
    """

    folder: Path
    submitted: str
    by_hand: str


@pytest.fixture(scope="session")
def out_of_time(slurm: MiniSlurm, tmp_path_factory: pytest.TempPathFactory) -> OutOfTime:
    """The jobs, on the spare nodes, since the first test began."""
    folder = tmp_path_factory.mktemp("out-of-time")
    submit = [*PERFSCOPE, "slurm", "submit", "--framework", "torch", "-p", "spare", "-t", "1", "--no-wait"]
    submit += ["--record", "--ceilings off", "-o", "submitted", "--", *ALONE]
    submitted = slurm.run(submit, cwd=folder, STEPS=STEPS, PAUSE="0.2")
    assert submitted.returncode == 0, submitted.stderr
    script = folder / "job.sh"
    run = shlex.join([*PERFSCOPE, "run", "--ceilings", "off", "-o", "by-hand", "--", *ALONE])
    script.write_text(
        f"#!/bin/sh\n#SBATCH -p spare -t 1 -N2 --ntasks-per-node=2 -o job.out -e job.err\nsrun {run}\n"
    )
    by_hand = slurm.run(["sbatch", "--parsable", str(script)], cwd=folder, STEPS=STEPS, PAUSE="0.2")
    assert by_hand.returncode == 0, by_hand.stderr
    return OutOfTime(folder=folder, submitted=submitted.stdout.strip(), by_hand=by_hand.stdout.strip())
