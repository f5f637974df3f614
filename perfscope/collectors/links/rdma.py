"""Times RDMA writes between the ports of this host, with perftest's `ib_write_lat` at both ends.

A write of n bytes goes there and one comes back; half of that is the time of one, as for TCP. With several
active ports each writes to the next one; a single one writes to itself, through its adapter.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from perfscope.collectors.context import Context

TOOL = "ib_write_lat"
SIZES = (64, 4096, 65536, 1 << 20, 4 << 20)
_MOST_ROUNDS, _FEWEST_ROUNDS = 50, 6  # the tool refuses fewer than 5
_ROUND = re.compile(r"^\d+, ([\d.e+]+)$", re.MULTILINE)  # number, microseconds
_NO_SERVER_YET = "Couldn't connect"
_RETRY_S = 0.05
_PATIENCE = "20"  # of the queue pair, as exponent: 4 s, for software that is slow to acknowledge
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_IPV4_GID = "0000:0000:0000:0000:0000:ffff:"

Port = Mapping[str, object]


def pairs(ports: Sequence[Port]) -> list[tuple[Port, Port]]:
    """Which of the active ports write to which: each to the next of its fabric, a single one to itself."""
    fabrics: dict[object, list[Port]] = {}
    for port in ports:
        if port["state"] == "ACTIVE":
            fabrics.setdefault(port["link_layer"], []).append(port)
    result: list[tuple[Port, Port]] = []
    for active in fabrics.values():
        result += pairwise(active) if len(active) > 1 else [(active[0], active[0])]
    return result


def measure_writes(
    ctx: Context, tool: str, ends: tuple[Port, Port], deadline: float, seconds: float
) -> Iterator[dict[str, Any]]:
    """{"bytes", "seconds": of each write} by size, and {"missing", "reason"} where one could not be measured.

    Args:
        ctx: must be live.
        tool: path of ib_write_lat.
        ends: who writes first, and who answers: entries of `fabric_ports`.
        deadline: monotonic s.
        seconds: for each size, about.
    """
    of_byte = 0.0  # s, of the size before
    for size in SIZES:
        expected = max(of_byte * size, 1e-6)
        left = deadline - time.monotonic()
        if left <= 2 * _FEWEST_ROUNDS * expected:
            yield {"missing": f"{size} B and more", "reason": "no time was left"}
            return
        rounds = int(min(max(seconds / (2 * expected), _FEWEST_ROUNDS), _MOST_ROUNDS))
        times, failure = _writes(ctx, tool, ends, (size, rounds), deadline)
        if not times:
            yield {"missing": f"{size} B and more", "reason": failure}
            return
        of_byte = min(times) / size
        yield {"bytes": size, "seconds": times}


def _writes(
    ctx: Context, tool: str, ends: tuple[Port, Port], shape: tuple[int, int], deadline: float
) -> tuple[list[float], str]:
    """Seconds of each write of `shape` (bytes, rounds); none, and why."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = str(free.getsockname()[1])
    options = ["-s", str(shape[0]), "-n", str(shape[1]), "-p", meeting, "-u", _PATIENCE, "-F", "-U"]
    client, server = ([tool, *_port_options(ctx, end), *options] for end in ends)
    with subprocess.Popen(
        server, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            answer = _NO_SERVER_YET
            while _NO_SERVER_YET in answer:
                if serving.poll() is not None:
                    return [], _reason(serving.stderr.read() if serving.stderr else "")
                time.sleep(_RETRY_S)
                done = subprocess.run(
                    [*client, "127.0.0.1"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=max(deadline - time.monotonic(), 0),
                    check=False,
                )
                answer = done.stdout
        except subprocess.TimeoutExpired:
            return [], "no time was left"
        finally:
            with suppress(OSError):
                serving.kill()
    times = [float(micros) / 1e6 for micros in _ROUND.findall(answer)]
    return times, "" if times else _reason(answer)


def _reason(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip(" -")]
    return f"{TOOL}: {lines[-1][:200]}" if lines else f"{TOOL} printed nothing"


def _port_options(ctx: Context, port: Port) -> list[str]:
    """Device and port; on Ethernet also which of its addresses: RoCE v2, over IPv4 if there is one."""
    device, number = str(port["device"]), str(port["port"])
    options = ["-d", device, "-i", number]
    if port["link_layer"] != "Ethernet":
        return options
    folder = f"/sys/class/infiniband/{device}/ports/{number}"
    routable = []
    for path in ctx.glob(f"{folder}/gid_attrs/types/*"):
        index = path.rpartition("/")[2]
        gid = ctx.read_or(f"{folder}/gids/{index}")
        if ctx.read_or(path) == "RoCE v2" and gid and gid != _NO_GID:
            routable.append((not gid.startswith(_IPV4_GID), int(index)))
    return [*options, "-x", str(min(routable)[1])] if routable else options
