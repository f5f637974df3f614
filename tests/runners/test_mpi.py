"""Schemes over MPI: the same rules, the same predictions, and no hang when a rank dies."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.runners.config import BenchConfig
from perfscope.runners.schemes.registry import SCHEMES as REGISTERED
from tests.runners import test_every_scheme as every_scheme
from tests.runners.async_cases import (
    BASE,
    alone,
    case,
    distance,
    elastic_by_arrival,
    server_by_arrival,
)
from tests.runners.pp_cases import trained_alone

_BESIDE = Path(sys.executable).parent / "mpiexec"  # as the mpich wheel puts it
MPIEXEC = str(_BESIDE) if _BESIDE.exists() else shutil.which("mpiexec")
NUM_RANKS = 3
SCHEMES = (
    "ps.sync",
    "ps.async_sgd",
    "ps.async_msgd",
    "easgd.original",
    "easgd.async",
    "easgd.async_mom",
    "hogwild.sgd",
    "easgd.hogwild",
)
TOKENS: dict[str, Any] = {"model": "transformer", "input_shape": (12,)}
CLICKS: dict[str, Any] = {"model": "dlrm-nano", "input_shape": (16,), "num_classes": 2, "steps": 3}
COLLECTIVES: dict[str, dict[str, Any]] = {  # schemes whose ranks step together, and their model
    "dp.packed": {},
    "dp.perlayer": {},
    "dp.dist_update": {},
    "easgd.sync1": {},
    "emb.table": CLICKS,
    "cp.ring": TOKENS,
}
EQUAL_ON_FOUR = [
    one.name for one in REGISTERED if "mpi" in one.backends and one.equals_serial and one.name != "serial"
]

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        MPIEXEC is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec"
    ),
]


def under_mpi(
    folder: Path, target: str, configs: list[BenchConfig], num_ranks: int = NUM_RANKS
) -> subprocess.CompletedProcess[str]:
    """`target` of async_cases on so many ranks; results are in `folder`."""
    (folder / "configs").write_bytes(pickle.dumps(configs))
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return subprocess.run(
        [
            str(MPIEXEC),
            "-n",
            str(num_ranks),
            sys.executable,
            "-m",
            "tests.runners.async_cases",
            target,
            str(folder),
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Scheme -> what each rank found."""
    folder = tmp_path_factory.mktemp("mpi")
    cases = [case(name, NUM_RANKS, backend="mpi") for name in SCHEMES]
    cases += [case(name, NUM_RANKS, backend="mpi", **model) for name, model in COLLECTIVES.items()]
    done = under_mpi(folder, "train_all", cases)
    assert done.returncode == 0, done.stderr
    ranks = [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(NUM_RANKS)]
    names = [*SCHEMES, *COLLECTIVES]
    trained = {name: [rank[0][index] for rank in ranks] for index, name in enumerate(names)}
    return trained | {"norm": [rank[1] for rank in ranks]}


def test_the_synchronous_server_trains_as_one_process_does(found: dict[str, list[Any]]) -> None:
    serial = alone(case("serial", 1)).state
    state = found["ps.sync"][0]["state"]
    assert max(float((state[name] - serial[name]).abs().max()) for name in serial) < 1e-9


@pytest.mark.parametrize("scheme", [name for name in COLLECTIVES if not name.startswith("easgd")])
def test_collectives_over_mpi_train_as_one_process_does(found: dict[str, list[Any]], scheme: str) -> None:
    serial = alone(case("serial", 1, **COLLECTIVES[scheme])).state
    state = found[scheme][0]["state"]
    assert max(float((state[name] - serial[name]).abs().max()) for name in serial) < 1e-12


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Scheme -> what each of four ranks found."""
    folder, num = tmp_path_factory.mktemp("four"), every_scheme.NUM_RANKS
    configs = [replace(every_scheme.case(name), backend="mpi") for name in EQUAL_ON_FOUR]
    done = under_mpi(folder, "train_all", configs, num)
    assert done.returncode == 0, done.stderr
    ranks = [pickle.loads((folder / f"result{rank}").read_bytes())[0] for rank in range(num)]
    return {name: [rank[index] for rank in ranks] for index, name in enumerate(EQUAL_ON_FOUR)}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", EQUAL_ON_FOUR)
def test_every_scheme_that_equals_one_process_does_so_over_mpi(
    on_four: dict[str, list[Any]], scheme: str
) -> None:
    reference, state = trained_alone(every_scheme.case(scheme)).state, on_four[scheme][0]["state"]
    assert reference is not None and reference.keys() == state.keys()
    assert max(float((state[name] - reference[name]).abs().max()) for name in reference) < 1e-12
    assert all(rank["recorded"] == rank["predicted"] for rank in on_four[scheme])


@pytest.mark.parametrize("scheme", SCHEMES[1:6])
def test_the_recorded_arrivals_explain_the_weights(found: dict[str, list[Any]], scheme: str) -> None:
    server = found[scheme][0]
    details = server["details"]
    order = [rank - 1 for rank in details["arrivals"]]
    if scheme.startswith("ps."):
        expected = server_by_arrival(BASE, NUM_RANKS - 1, order, details.get("momentum"))
    else:
        expected = elastic_by_arrival(
            BASE, NUM_RANKS - 1, details["moving_rate"], order, details.get("momentum")
        )
    assert distance(server["state"], expected) < 1e-9


@pytest.mark.parametrize("scheme", [*SCHEMES, *COLLECTIVES])
def test_what_was_sent_is_what_was_predicted(found: dict[str, list[Any]], scheme: str) -> None:
    for rank in found[scheme]:
        assert rank["recorded"] == rank["predicted"]
        assert bool(rank["recorded"]) is not scheme.endswith(("hogwild", "hogwild.sgd"))


@pytest.mark.parametrize("scheme", ["hogwild.sgd", "easgd.hogwild"])
def test_unlocked_workers_share_memory(found: dict[str, list[Any]], scheme: str) -> None:
    details = found[scheme][0]["details"]
    assert sum(details["staleness"].values()) == details["num_updates"] == NUM_RANKS * BASE.steps


def test_running_statistics_come_from_a_worker(found: dict[str, list[Any]]) -> None:
    state = found["norm"][0]
    assert int(state["0.num_batches_tracked"]) == 2
    assert float(state["0.running_mean"].abs().max()) > 0


def test_a_rank_that_dies_or_is_silent_ends_the_job(tmp_path: Path) -> None:
    done = under_mpi(tmp_path, "die_or_wait", [case("ps.async_sgd", NUM_RANKS, timeout_s=1.0)])
    for file in (
        (tmp_path / "mapped").read_text().splitlines()
    ):  # MPICH leaves it behind a job that was killed
        Path(file).unlink(missing_ok=True)
    assert done.returncode != 0
    assert (tmp_path / "silent").read_text() == "receiving from any rank: timed out after 1 s"
    assert not (tmp_path / "survived").exists()
