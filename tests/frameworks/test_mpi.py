"""mpi4py programs under `perfscope run`: calls with their bytes, groups, steps, and nothing changed."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frameworks.mpi_support import (
    EVERY_CALL,
    EXAMPLES,
    NEEDS_MPI,
    Recorded,
    environment,
    mpi,
    perfscope,
    program,
    record,
)

pytestmark = [pytest.mark.frameworks, NEEDS_MPI]
SIZE = 4
TRACED = 2  # steps of a window


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("every")
    found = record(mpi(SIZE, str(EVERY_CALL), str(folder / "results")), folder)
    assert found.done.returncode == 0, found.done.stderr
    return found


Truth = tuple[str, str, str, int | None, int | None, int | None]  # collective, name, group, in, out, peer


def expected(rank: int) -> Counter[Truth]:
    """Rows of one step of mpi_every_call.py."""
    right, left, half = (rank + 1) % SIZE, (rank - 1) % SIZE, rank // 2 * 2
    partner = half + 1 - rank % 2
    rows: list[Truth] = [
        ("all_reduce", "Allreduce", "world", 80, 80, None),
        ("all_reduce", "Allreduce", "copied", 80, 80, None),
        ("broadcast", "Bcast", "world", 40, 40, None),
        ("gather", "Gather", "world", 80, 320 if rank == 2 else 0, None),
        ("scatter", "Scatter", "world", 320 if rank == 1 else 0, 80, None),
        ("all_gather", "Allgather", "world", 80, 320, None),
        ("all_gather", "Allgatherv", "world", 8 * (rank + 1), 80, None),
        ("all_to_all", "Alltoall", "world", 320, 320, None),
        ("all_to_all", "Alltoallv", "world", 64, 64, None),
        ("reduce", "Reduce", "world.split1", 40, 40 if rank % 2 == 0 else 0, None),
        ("reduce_scatter", "Reduce_scatter_block", "world", 320, 80, None),
        ("scan", "Scan", "world", 80, 80, None),
        ("barrier", "Barrier", "cart(2x2).sub1", None, None, None),
        ("neighbor_all_gather", "Neighbor_allgather", "cart(2x2)", 80, 320, None),
        ("all_gather", "allgather", "world", rank + 1, 10, None),
        ("all_reduce", "allreduce", "world", None, None, None),
        ("broadcast", "bcast", "world", 4, 4, None),
        ("send", "Sendrecv", "world", 80, None, right),
        ("recv", "Sendrecv", "world", None, 80, left),
        ("send", "Sendrecv", "world.split1", 80, None, partner),
        ("recv", "Sendrecv", "world.split1", None, 80, partner),
        ("send", "Isend", "world", 80, None, right),
        ("recv", "Irecv", "world", None, 80, left),
        ("all_reduce", "Iallreduce", "world", 80, 80, None),
        ("send", "isend", "world", None, None, right),
        ("recv", "recv", "world", None, None, left),
        ("send", "Send_init", "world", 80, None, right),
        ("recv", "Recv_init", "world", None, 80, left),
        ("fence", "Fence", "world", None, None, None),
        ("put", "Put", "world", 32, None, right),
        ("fence", "Fence", "world", None, None, None),
        ("epoch", "Lock", "world", None, None, left),
        ("get", "Get", "world", None, 16, left),
        ("epoch", "Unlock", "world", None, None, left),
        ("barrier", "Barrier", "world", None, None, None),
    ]
    if rank % 2 == 0:
        rows += [
            ("all_reduce", "Allreduce", "world.group(0,2)", 80, 80, None),
            ("send", "Send", "world", 24, None, right),
            ("send", "send", "world", None, None, right),
        ]
    else:  # what came, not what there was room for; and from whom, though it asked anybody
        rows += [
            ("recv", "Recv", "world", None, 24, left),
            ("recv", "recv", "world", None, None, left),
        ]
    return Counter(rows)


@pytest.mark.parametrize("rank", range(SIZE))
def test_every_call_is_there_with_its_bytes_and_its_peer(every: Recorded, rank: int) -> None:
    assert every.errors() == []
    rows = [row for row in every.calls(rank)["rows"] if row["kind"] == "comm"]
    found = Counter(
        (
            row["collective"],
            row["name"].removeprefix("MPI."),
            row["group"],
            row["in_bytes"],
            row["out_bytes"],
            row["peer"],
        )
        for row in rows
    )
    truth = Counter({row: TRACED * count for row, count in expected(rank).items()})
    assert found - truth == Counter() and truth - found == Counter()


def test_types_are_told(every: Recorded) -> None:
    types = {row["name"]: row["dtype"] for row in every.calls(0)["rows"] if row["dtype"]}
    assert types["MPI.Reduce"] == "float32"
    assert types["MPI.Allreduce"] == types["MPI.Irecv"] == types["MPI.Put"] == "float64"


def test_what_is_started_and_waited_for_is_one_span_from_start_to_completion(every: Recorded) -> None:
    document = every.calls(1)
    rows = sorted(document["rows"], key=lambda row: row["start_ns"])
    main = [row for row in rows if row["lane"] == document["main_tid"]]
    flights = [row for row in rows if row["lane"] != document["main_tid"]]
    assert set(document["lanes"].values()) == {"MPI requests"}
    assert {row["name"] for row in flights} == {
        f"MPI.{name}" for name in ("Isend", "Irecv", "Iallreduce", "isend", "Send_init", "Recv_init")
    }
    assert {row["kind"] for row in flights} == {"comm"}
    starts = {row["start_ns"] for row in main if row["kind"] == "host"}
    ends = {
        row["start_ns"] + row["dur_ns"]
        for row in main
        if row["name"] in ("MPI.Wait", "MPI.Waitall", "MPI.wait")
    }
    for row in flights:
        assert row["start_ns"] in starts
        assert row["start_ns"] + row["dur_ns"] in ends


def test_communicators_are_listed_with_their_global_ranks(every: Recorded) -> None:
    for rank in range(SIZE):
        groups = {one["name"]: one["ranks"] for one in every.rank(rank)["groups"]}
        half, row = rank // 2 * 2, rank // 2 * 2
        truth = {
            "world": [0, 1, 2, 3],
            "copied": [0, 1, 2, 3],
            "world.split1": [half, half + 1],
            "cart(2x2)": [0, 1, 2, 3],
            "cart(2x2).sub1": [row, row + 1],
        }
        if rank % 2 == 0:
            truth["world.group(0,2)"] = [0, 2]
        assert groups == truth
        meta = every.rank(rank)
        assert (meta["rank"], meta["world_size"], meta["rank_source"]) == (rank, SIZE, "mpi4py")
        assert meta["framework"]["name"] == "mpi4py"


def test_results_and_output_are_those_without_perfscope(every: Recorded, tmp_path: Path) -> None:
    alone = subprocess.run(
        mpi(SIZE, str(EVERY_CALL), str(tmp_path / "results")),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert alone.returncode == 0, alone.stderr
    assert sorted(every.done.stdout.splitlines()) == sorted(alone.stdout.splitlines())
    complaints = [line for line in every.done.stderr.splitlines() if not line.startswith("perfscope: ")]
    numberless = [re.sub(r"\d+", "N", line) for line in complaints]  # Open MPI puts process ids in
    assert numberless == [re.sub(r"\d+", "N", line) for line in alone.stderr.splitlines()]

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, list):
            return len(one) == len(other) and all(map(same, one, other))
        return bool(np.array_equal(one, other))

    for rank in range(SIZE):
        mine, theirs = (
            pickle.loads((folder / f"results.{rank}").read_bytes())
            for folder in (every.place.parent, tmp_path)
        )
        assert same(mine, theirs)


def test_the_report_has_steps_groups_and_bytes(every: Recorded) -> None:
    report = every.report()
    by_kind = {(one["collective"], one["group"]): one for one in report["collectives"]}
    # Allreduce, Iallreduce (80 B each) and the pickled one, whose size is not known.
    assert by_kind["all_reduce", "world"]["count"] == 3 * TRACED
    assert by_kind["all_reduce", "copied"]["bytes"] == 80 * TRACED
    assert by_kind["all_to_all", "world"]["bytes"] == (320 + 64) * TRACED
    assert by_kind["reduce", "world.split1"]["group_size"] == 2
    assert by_kind["all_reduce", "copied"]["num_matched"] == TRACED
    # Each rank said that it works on 7 samples a step.
    per_step = report["throughput_samples_per_s"] * report["step_ns"]["median"] / 1e9
    assert per_step == pytest.approx(7 * SIZE)


# -- the example: no step is marked, perfscope is not mentioned ----------------------------------------------

HEAT_STEPS = 120


@pytest.fixture(scope="module")
def heat(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    command = mpi(SIZE, str(EXAMPLES / "mpi_heat.py"), "--size", "256", "--steps", str(HEAT_STEPS))
    found = record(command, tmp_path_factory.mktemp("heat"))
    assert found.done.returncode == 0, found.done.stderr
    return found


def test_steps_are_cut_where_the_loop_of_collectives_repeats(heat: Recorded) -> None:
    assert heat.errors() == []
    assert heat.ranks() == ["0", "1", "2", "3"]
    for rank in range(SIZE):
        # From one Allreduce to the next; of the first step nothing tells where it began.
        assert [one["step"] for one in heat.steps(rank)] == list(range(HEAT_STEPS - 1))
        traced = [one["step"] for one in heat.steps(rank) if one["window"] == 0]
        assert traced == [8, 9]


def test_a_halo_exchange_is_reported_with_its_bytes_and_partners(heat: Recorded) -> None:
    report = heat.report()
    by_kind = {(one["collective"], one["group"]): one for one in report["collectives"]}
    traced = report["ranks"][0]["num_traced_steps"]
    assert by_kind["all_reduce", "cart(2x2)"]["count"] == traced
    assert by_kind["all_reduce", "cart(2x2)"]["bytes"] == 8 * traced
    # Each block of 128 x 128 with its halo has two neighbors: a row and a column of 130 doubles.
    assert by_kind["send", "cart(2x2)"]["count"] == 2 * traced
    assert by_kind["send", "cart(2x2)"]["bytes"] == 2 * 130 * 8 * traced
    assert by_kind["recv", "cart(2x2)"]["bytes"] == 2 * 130 * 8 * traced


def test_the_step_is_computation_and_communication(heat: Recorded) -> None:
    text = perfscope("report", str(heat.place), "--text")
    assert text.returncode == 0, text.stderr
    assert "Exposed communication" in text.stdout and "all_reduce" in text.stdout
    for one in heat.report()["ranks"]:
        parts = one["breakdown_ns"]
        assert parts["compute"] > 0 and parts["exposed_comm"] > 0
        assert parts["idle"] < 0.02 * one["breakdown_step_ns"]


def test_the_rank_that_comes_late_is_named(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
import time
import numpy as np
from mpi4py import MPI
comm, out = MPI.COMM_WORLD, np.empty(1000)
for _ in range(40):
    time.sleep(0.06 if comm.rank == 2 else 0.01)
    comm.Allreduce(np.ones(1000), out)
    comm.Barrier()
""",
    )
    found = record(mpi(3, script), tmp_path, "--steps-per-window", "4")
    assert found.done.returncode == 0, found.done.stderr
    report = found.report()
    reduce = next(one for one in report["collectives"] if one["collective"] == "all_reduce")
    late = {one["rank"]: one["count"] for one in reduce["late_counts"]}
    assert reduce["num_matched"] == reduce["count"] >= 4
    assert late == {2: reduce["count"]}
    waits = report["waits"]["groups"][0]["reasons"][0]
    assert (waits["rank"], waits["reason"]) == (2, "compute")


# -- who leaves a trace ------------------------------------------------------------------------------------


def test_a_program_that_only_imports_mpi4py_leaves_no_trace(tmp_path: Path) -> None:
    script = program(tmp_path, "from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank)\n")
    found = record(mpi(2, script), tmp_path)
    assert found.done.returncode == 0
    assert found.ranks() == [] and found.errors() == []


def test_communication_without_a_loop_gives_one_line_that_helps(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.barrier()\nprint(comm.allreduce(comm.rank))\n",
    )
    found = record(mpi(2, script), tmp_path)
    assert found.done.returncode == 0
    assert found.ranks() == ["0", "1"]
    for rank in (0, 1):
        assert found.steps(rank) == []
        assert ["perfscope.step()" in note for note in found.rank(rank)["notes"]] == [True]
        assert found.rank(rank)["finished"] is True


def test_a_setting_up_loop_gives_way_to_the_main_one_and_a_validation_does_not(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
import numpy as np
from mpi4py import MPI
comm, out = MPI.COMM_WORLD, np.empty(4)
for _ in range(10):
    comm.bcast("a file's name")
    comm.Barrier()
for epoch in range(3):
    for _ in range(200):
        comm.Allreduce(np.ones(4), out)
        comm.Sendrecv(np.ones(1), 1 - comm.rank, recvbuf=out)
        comm.Bcast(out)
    for _ in range(100):
        comm.Reduce(np.ones(4), out)
""",
    )
    found = record(mpi(2, script), tmp_path)
    assert found.done.returncode == 0, found.done.stderr
    for rank in (0, 1):
        numbers = [one["step"] for one in found.steps(rank)]
        assert numbers == list(range(len(numbers)))
        # 9 steps of the first loop and all of the second, but for the last and what detection let pass.
        assert 9 + 3 * 200 - 1 - 70 <= len(numbers) <= 9 + 3 * 200
    assert len(found.steps(0)) == len(found.steps(1))


def test_the_programs_own_steps_win_over_a_loop(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
import perfscope
from mpi4py import MPI
comm = MPI.COMM_WORLD
for _ in range(20):
    comm.bcast("setting up")
    comm.Barrier()
for _ in range(5):
    perfscope.step(3)
    for _ in range(10):
        comm.allreduce(1.0)
        comm.Barrier()
perfscope.step()
""",
    )
    found = record(mpi(2, script), tmp_path)
    assert found.done.returncode == 0, found.done.stderr
    for rank in (0, 1):
        assert [one["samples"] for one in found.steps(rank)].count(3) == 5


# -- what must not change ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "code"), [("raise SystemExit(7)", 7), ("MPI.COMM_WORLD.Abort(9)", 9), ("1 / 0", 1)]
)
def test_a_failing_ranks_exit_code_is_the_commands(tmp_path: Path, ending: str, code: int) -> None:
    script = program(
        tmp_path,
        f"""
from mpi4py import MPI
comm = MPI.COMM_WORLD
for index in range(40):
    comm.allreduce(index)
    comm.Barrier()
if comm.rank == 1:
    {ending}
""",
    )
    alone = subprocess.run(mpi(2, script), env=environment(), capture_output=True, check=False, timeout=60)
    found = record(mpi(2, script), tmp_path)
    assert found.done.returncode == alone.returncode
    assert alone.returncode != 0
    assert "1" in found.ranks()
    assert len(found.steps(1)) >= 30


def test_programs_see_mpi4pys_own_classes(tmp_path: Path) -> None:
    text = """
import copy, pickle, sys
import mpi4py
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD
from mpi4py.util import pkl5
import numpy as np

def facts():
    w = MPI.COMM_WORLD
    yield COMM_WORLD is w, isinstance(w, MPI.Intracomm), isinstance(w, MPI.Comm), type(w).__name__
    yield repr(w).split(" at ")[0], w == MPI.Intracomm(w), w != MPI.COMM_SELF, bool(w)
    if not mpi4py.__version__.startswith("3"):
        yield pickle.dumps(w), pickle.loads(pickle.dumps(w)) is w, copy.copy(w) is w
        yield pickle.loads(pickle.dumps(MPI.Intracomm(w))) == w
        yield pickle.loads(pickle.dumps(MPI.Intracomm(MPI.COMM_SELF))) == MPI.COMM_SELF
    dup = w.Dup()
    for call in (lambda: pickle.dumps(dup), lambda: hash(w), lambda: setattr(w, "mine", 1)):
        try:
            call()
        except Exception as error:
            yield type(error).__name__, str(error).replace("mpi4py.MPI.", "")
    split = w.Split(MPI.UNDEFINED if w.rank else 0)
    yield split == MPI.COMM_NULL, type(split).__name__
    cart = w.Create_cart([w.size])
    yield type(cart).__name__, isinstance(cart, MPI.Topocomm), cart.dims, type(cart.Sub([True])).__name__
    graph = w.Create_dist_graph_adjacent([0], [0])
    yield isinstance(graph, MPI.Distgraphcomm), graph.inedges
    inter = w.Split(w.rank % 2).Create_intercomm(0, w, 1 - w.rank % 2)
    yield type(inter).__name__, inter.remote_size, type(inter.Merge(w.rank % 2)).__name__
    again, request = w.Idup()
    yield request.Wait(), again.size
    request = w.Ibarrier()
    yield isinstance(request, MPI.Request), type(request).__name__, request.Wait()
    yield issubclass(MPI.Prequest, MPI.Request), isinstance(MPI.REQUEST_NULL, MPI.Request)
    yield isinstance(w, MPI.Request), MPI.Request().__class__.__name__
    win = MPI.Win.Allocate(8, comm=w)
    yield isinstance(win, MPI.Win), type(win).__name__, len(win.tomemory()), isinstance(MPI.WIN_NULL, MPI.Win)
    win.Free()
    five = pkl5.Intracomm(w)
    yield five.bcast({"a": np.arange(3)}, root=0)["a"].tolist(), five.allreduce(2)
    if hasattr(w, "free"):
        w.free()
    getattr(dup, "free", dup.Free)()
    yield w == MPI.COMM_WORLD, w.size, dup == MPI.COMM_NULL, w.name, MPI.Comm.Get_parent() == MPI.COMM_NULL
    yield w.Get_parent() == MPI.COMM_NULL, w.Get_attr(MPI.TAG_UB) > 0, w.allreduce(3, op=MPI.MAX)
    w.name = "named"
    yield w.Get_name()

for fact in facts():
    print(MPI.COMM_WORLD.rank, fact)
"""
    script = program(tmp_path, text)
    alone = subprocess.run(
        mpi(2, script), env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert alone.returncode == 0, alone.stderr
    found = record(mpi(2, script), tmp_path)
    assert found.done.returncode == 0, found.done.stderr
    assert sorted(found.done.stdout.splitlines()) == sorted(alone.stdout.splitlines())
    assert found.errors() == []


def test_futures_go_on_working(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
from mpi4py.futures import MPICommExecutor
from mpi4py import MPI
def square(value):
    return value * value
if __name__ == "__main__":
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            print(sum(executor.map(square, range(20))))
""",
    )
    found = record(mpi(3, script), tmp_path)
    assert found.done.returncode == 0, found.done.stderr
    assert found.done.stdout.split() == [str(sum(value * value for value in range(20)))]
    assert found.errors() == []


def test_an_mpi4py_of_another_kind_is_left_alone_and_said(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("__version__ = '9.0'\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text("COMM_WORLD = 'another world'\nclass Request: pass\n")
    script = program(tmp_path, "from mpi4py import MPI\nprint(MPI.COMM_WORLD, MPI.Request.__module__)\n")
    found = record([sys.executable, script], tmp_path)
    assert found.done.returncode == 0, found.done.stderr
    assert found.done.stdout == "another world mpi4py.MPI\n"
    assert ["mpi4py 9.0 is not known" in line for line in found.said()].count(True) == 1


def test_a_program_that_initializes_mpi_itself_is_recorded_too(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        """
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD
assert not MPI.Is_initialized() and COMM_WORLD is MPI.COMM_WORLD
MPI.Init()
for index in range(40):
    COMM_WORLD.allreduce(index)
    COMM_WORLD.Barrier()
print(COMM_WORLD.rank, MPI.COMM_WORLD == MPI.Intracomm(COMM_WORLD))
MPI.Finalize()
""",
    )
    found = record(mpi(2, script), tmp_path)
    assert found.done.returncode == 0, found.done.stderr
    assert sorted(found.done.stdout.splitlines()) == ["0 True", "1 True"]
    assert found.errors() == []
    for rank in (0, 1):
        assert [one["step"] for one in found.steps(rank)] == list(range(39))
        assert (found.rank(rank)["world_size"], found.rank(rank)["finished"]) == (2, True)


def test_a_program_that_never_initializes_mpi_runs_as_it_did(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\nprint(MPI.Is_initialized())\n",
    )
    found = record([sys.executable, script], tmp_path)
    assert (found.done.returncode, found.done.stdout) == (0, "False\n")
    assert found.ranks() == [] and found.errors() == []
