"""A rank of an emulated cluster that only talks: `cluster_traffic.py WHAT N [REPEATS]`.

receive  all others send N bytes each to rank 0, which prints the bit/s that arrived
send     rank 0 sends N bytes to rank 1, which prints them
echo     N times a byte there and back; rank 0 prints the shortest time in seconds
inside   local ranks exchange N bytes through gloo; local rank 0 prints the bytes sent on the wire meanwhile
ring     REPEATS all_reduces of N bytes over all ranks, beside an optimizer's steps
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

PORT = 7777
CHUNK = bytes(1 << 16)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FIRST = os.environ["MASTER_ADDR"]


def connect(address: str) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        link = socket.socket()
        if link.connect_ex((address, PORT)) == 0:
            return link
        link.close()
        assert time.monotonic() < deadline, "nobody listens"
        time.sleep(0.02)


def listen() -> socket.socket:
    return socket.create_server(("0.0.0.0", PORT))


def pour(link: socket.socket, size: int) -> None:
    while size > 0:
        link.sendall(CHUNK[: min(size, len(CHUNK))])
        size -= len(CHUNK)
    link.shutdown(socket.SHUT_WR)
    link.recv(1)  # until the other side has it all


def drain(links: list[socket.socket]) -> float:
    """bit/s over all links, from the first byte on; what came with it before the clock ran is left out."""
    import select

    open_links, total, begin = list(links), 0, None
    while open_links:
        for link in select.select(open_links, [], [], 60)[0]:
            data = link.recv(1 << 20)
            if begin is None:
                begin = time.monotonic()
            elif data:
                total += len(data)
            if not data:
                open_links.remove(link)
    assert begin is not None
    rate = total * 8 / (time.monotonic() - begin)
    for link in links:
        link.sendall(b"x")
    return rate


def receive(size: int) -> None:
    if rank == 0:
        with listen() as server:
            print(drain([server.accept()[0] for _ in range(world - 1)]))
    else:
        pour(connect(FIRST), size)


def send(size: int) -> None:
    if rank == 0:
        with listen() as server:
            pour(server.accept()[0], size)
    elif rank == 1:
        print(drain([connect(FIRST)]))


def echo(times: int) -> None:
    if rank == 0:
        with listen() as server:
            link = server.accept()[0]
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            best = float("inf")
            for _ in range(times):
                begin = time.monotonic()
                link.sendall(b"x")
                link.recv(1)
                best = min(best, time.monotonic() - begin)
            link.close()
            print(best)
    elif rank == 1:
        link = connect(FIRST)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while link.recv(1):
            link.sendall(b"x")


def wire_bytes() -> int:
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    line = next(line for line in lines if "wire0" in line)
    return int(line.partition(":")[2].split()[8])


def inside(size: int) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    groups = [
        dist.new_group(list(range(first, first + here)), use_local_synchronization=False)
        for first in range(0, world, here)
    ]
    mine = groups[rank // here]
    dist.all_reduce(torch.ones(1), group=mine)
    dist.barrier()
    time.sleep(0.2)
    before = wire_bytes()
    tensor = torch.ones(size // 4)
    for _ in range(3):
        dist.all_reduce(tensor, group=mine)
    if int(os.environ["LOCAL_RANK"]) == 0:
        print(wire_bytes() - before, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def ring(size: int, repeats: int) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()  # from here on there is a sampler
    time.sleep(2)
    tensor = torch.ones(size // 4)
    for _ in range(repeats):
        dist.all_reduce(tensor)
        optimizer.step()
    time.sleep(0.5)
    dist.destroy_process_group()


WHAT: dict[str, Callable[..., None]] = {
    "receive": receive,
    "send": send,
    "echo": echo,
    "inside": inside,
    "ring": ring,
}

if __name__ == "__main__":
    WHAT[sys.argv[1]](*map(int, sys.argv[2:]))
