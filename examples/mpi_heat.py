"""Heat spreading over a plate: a grid cut into blocks, one for each MPI rank.

mpiexec -n 4 python examples/mpi_heat.py
mpiexec -n 4 python examples/mpi_heat.py --size 512 --steps 200

Each step exchanges the edges with up to four neighbors, computes, and asks all ranks how much changed.
Needs mpi4py and numpy.
"""

import argparse

import numpy as np
from mpi4py import MPI

CONDUCTIVITY = 0.2


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Heat spreading over a plate.")
    parser.add_argument("--size", type=int, default=1024, help="points of the plate along each side")
    parser.add_argument("--steps", type=int, default=400)
    return parser.parse_args()


def exchange(grid: MPI.Cartcomm, block: np.ndarray) -> None:
    """Fill the block's halo with the neighbors' edges; at the rim of the plate it stays as it is."""
    up, down = grid.Shift(0, 1)
    left, right = grid.Shift(1, 1)
    grid.Sendrecv(block[1, :].copy(), dest=up, recvbuf=block[-1, :], source=down)
    grid.Sendrecv(block[-2, :].copy(), dest=down, recvbuf=block[0, :], source=up)
    column = np.empty(block.shape[0])
    requests = [
        grid.Isend(block[:, 1].copy(), dest=left),
        grid.Irecv(column, source=right),
    ]
    MPI.Request.Waitall(requests)
    if right != MPI.PROC_NULL:
        block[:, -1] = column
    requests = [
        grid.Isend(block[:, -2].copy(), dest=right),
        grid.Irecv(column, source=left),
    ]
    MPI.Request.Waitall(requests)
    if left != MPI.PROC_NULL:
        block[:, 0] = column


def step(block: np.ndarray) -> float:
    """One explicit step; returns the sum of squared changes."""
    inner = block[1:-1, 1:-1]
    around = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    change = CONDUCTIVITY * (around - 4 * inner)
    inner += change
    return float(np.sum(change * change))


def main() -> None:
    options = parse()
    world = MPI.COMM_WORLD
    grid = world.Create_cart(MPI.Compute_dims(world.size, 2))
    rows, columns = (options.size // extent for extent in grid.dims)
    block = np.zeros((rows + 2, columns + 2))
    if grid.coords == [0, 0]:
        block[0, :] = 100.0  # one edge of the plate is hot
    total = np.empty(1)
    for _ in range(options.steps):
        exchange(grid, block)
        own = np.array([step(block)])
        grid.Allreduce(own, total, op=MPI.SUM)
    heat = grid.reduce(float(block[1:-1, 1:-1].sum()), op=MPI.SUM, root=0)
    if grid.rank == 0:
        print(f"after {options.steps} steps: heat {heat:.6f}, last change {total[0] ** 0.5:.6f}")


if __name__ == "__main__":
    main()
