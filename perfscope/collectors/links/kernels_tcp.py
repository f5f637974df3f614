"""Measures TCP over loopback, between two processes. Run as a script, in a process of its own.

    python kernels_tcp.py PLAN             PLAN: JSON, see `main`; prints one JSON object a line as it goes

A message of n bytes goes there and back; half of that is the time of one send. Standard library only.
`kernels_collectives.py` uses the same functions between hosts.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from typing import Any

# Small ones for the latency, large ones for the bandwidth: what is between them may stay in caches and in the
# queues that limit rates.
SIZES = (64, 1024, 4 << 20, 8 << 20, 16 << 20)
MOST_ROUNDS, FEWEST_ROUNDS = 30, 3
_HEAD = struct.Struct("!qd")
_END = -1


def main(text: str) -> None:
    """Do what a plan says: {"deadline": monotonic s, "seconds": per size}. Prints calls of links.json."""
    plan = json.loads(text)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        pid = os.fork()
        if pid == 0:
            try:
                serve(listener)
            finally:
                os._exit(0)
        with socket.create_connection(listener.getsockname()) as connection:
            measured = ping(connection, plan["seconds"], plan["deadline"])
            for size, seconds in measured:
                say({"bytes": size, "seconds": seconds})
            if not measured:
                say({"missing": "every size", "reason": "no time was left"})
        os.waitpid(pid, 0)


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def serve(listener: socket.socket) -> None:
    """Answer one caller until it says that it is done."""
    connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(max(SIZES))
        while True:
            (size, _) = _HEAD.unpack(_receive(connection, bytearray(_HEAD.size)))
            if size == _END:
                return
            message = memoryview(buffer)[:size]
            _receive(connection, message)
            connection.sendall(message)


def ping(connection: socket.socket, seconds: float, deadline: float) -> list[tuple[int, list[float]]]:
    """(size, s of one message each round) of every size that time was left for.

    Args:
        connection: to a process that serves.
        seconds: for each size, about.
        deadline: monotonic s.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    measured: list[tuple[int, list[float]]] = []
    for size in SIZES:
        payload, answer = bytes(size), bytearray(size)
        began = time.monotonic()
        rounds: list[float] = []
        _round(connection, payload, answer)  # opens the window of TCP
        while len(rounds) < MOST_ROUNDS:
            now = time.monotonic()
            if now > deadline or (now - began > seconds and len(rounds) >= FEWEST_ROUNDS):
                break
            rounds.append(_round(connection, payload, answer))
        if rounds:
            measured.append((size, rounds))
        following = SIZES[min(len(measured), len(SIZES) - 1)]
        if not rounds or time.monotonic() + 2 * FEWEST_ROUNDS * min(rounds) * following / size > deadline:
            break  # the next size would not end in time
    connection.sendall(_HEAD.pack(_END, 0.0))
    return measured


def _round(connection: socket.socket, payload: bytes, answer: bytearray) -> float:
    began = time.perf_counter()
    connection.sendall(_HEAD.pack(len(payload), began) + payload)
    _receive(connection, answer)
    return (time.perf_counter() - began) / 2


def _receive(connection: socket.socket, into: Any) -> Any:
    """Fill a buffer. Raises ConnectionError when the other side has gone."""
    view = memoryview(into)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the other side has gone")
        view = view[count:]
    return into


if __name__ == "__main__":
    main(sys.argv[1])
