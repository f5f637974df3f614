"""One Slurm for all tests of this folder; where there cannot be one they are skipped with the reason."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.mini_slurm import MiniSlurm, NoSlurm, why_not


@pytest.fixture(scope="session")
def slurm() -> Iterator[MiniSlurm]:
    """Two nodes of two CPUs, with accounting where MariaDB is there."""
    reason = why_not()
    if reason:
        pytest.skip(f"no Slurm here: {reason}")
    # Not pytest's own folder: sockets have short names, and munge wants folders that only root may write to.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    found = MiniSlurm(folder=folder, accounting=not why_not(accounting=True))
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
def cluster(slurm: MiniSlurm) -> Iterator[MiniSlurm]:
    """The cluster with all nodes idle, and idle again when the test is over."""
    slurm.clear()
    yield slurm
    slurm.clear()
