"""Makes every kind of call that the MPI probe knows, the same in each of six steps; four ranks.

    mpi_every_call.py [FILE]

Writes what it computed to FILE.<rank>, so that a run without perfscope can be compared.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

try:
    from perfscope import step as begin_step
except ImportError:  # the same program where perfscope is not installed

    def begin_step(samples: int | None = None) -> None:
        """Nobody listens."""


world = MPI.COMM_WORLD
rank, size = world.rank, world.size
right, left = (rank + 1) % size, (rank - 1) % size
halves = world.Split(rank // 2, rank)
grid = world.Create_cart([2, 2], periods=[True, True])
rows = grid.Sub([False, True])
copy = world.Dup()
evens = world.Create_group(world.group.Incl([0, 2])) if rank % 2 == 0 else None
copy.Set_name("copied")
data = np.arange(10, dtype=np.float64) + rank
many = np.arange(10.0 * size) + rank
sends = world.Send_init(data, right, tag=9)
receives = world.Recv_init(np.zeros(10), left, tag=9)
window = MPI.Win.Allocate(80, 8, comm=world)


def collectives() -> list[Any]:
    found: list[Any] = []
    out, all_of = np.zeros(10), np.zeros(10 * size)
    world.Allreduce(data, out)
    found.append(out.copy())
    out[:] = data
    copy.Allreduce(MPI.IN_PLACE, [out, MPI.DOUBLE], op=MPI.MAX)
    found.append(out.copy())
    world.Bcast([out, 5, MPI.DOUBLE], root=1)
    world.Gather(data, all_of if rank == 2 else None, root=2)
    world.Scatter(many if rank == 1 else None, out, root=1)
    found.append(out.copy())
    world.Allgather(data, [all_of, 10, MPI.DOUBLE])
    counts = [1, 2, 3, 4]
    world.Allgatherv(data[: rank + 1], [all_of[:10], counts])
    world.Alltoall(many, all_of)
    world.Alltoallv([many, [2] * size], [all_of, [2] * size])
    found.append(all_of.copy())
    halves.Reduce(data.astype(np.float32), np.zeros(10, np.float32) if halves.rank == 0 else None)
    world.Reduce_scatter_block(many, out)
    world.Scan(data, out)
    found.append(out.copy())
    rows.Barrier()
    around = np.zeros(4 * 10)
    grid.Neighbor_allgather(data, around)
    found.append(world.allgather(b"x" * (rank + 1)))
    found.append(world.allreduce(rank))
    found.append(world.bcast("word" if rank == 0 else None))
    if evens is not None:
        evens.Allreduce(data, out)
    return found


def point_to_point() -> list[Any]:
    out = np.zeros(20)
    world.Sendrecv(data, right, 1, out, left, 1)
    if rank % 2 == 0:
        world.Send([data, 3, MPI.DOUBLE], right, tag=2)
        world.send({"a": rank}, right, tag=3)
    else:
        world.Recv(out, MPI.ANY_SOURCE, 2)
        world.recv(source=left, tag=3)
    halves.Sendrecv(data, 1 - halves.rank, 4, out, 1 - halves.rank, 4)
    world.Send(data, MPI.PROC_NULL)
    requests = [world.Isend(data, right, tag=5), world.Irecv(out, left, tag=5)]
    MPI.Request.Waitall(requests)
    total = np.zeros(10)
    request = world.Iallreduce(data, total)
    request.Wait()
    pickled = world.isend([rank], right, tag=6)
    heard = world.recv(source=left, tag=6)
    pickled.wait()
    MPI.Prequest.Startall([sends, receives])
    MPI.Request.Waitall([sends, receives])
    return [out.copy(), total, heard]


def one_sided() -> list[Any]:
    window.Fence()
    window.Put(data[:4], right)
    window.Fence(MPI.MODE_NOSUCCEED)
    out = np.zeros(2)
    window.Lock(left)
    window.Get(out, left)
    window.Unlock(left)
    world.Barrier()
    return [out]


results = []
for _ in range(6):
    begin_step(7)
    results.append([collectives(), point_to_point(), one_sided()])
begin_step()
assert isinstance(world, MPI.Intracomm) and isinstance(halves, MPI.Intracomm)
assert isinstance(grid, MPI.Cartcomm) and isinstance(sends, MPI.Prequest)
for made in (window, sends, receives, copy):
    made.Free()
halves.Free()
if len(sys.argv) > 1:
    Path(f"{sys.argv[1]}.{rank}").write_bytes(pickle.dumps(results))
print(f"rank {rank} done")
