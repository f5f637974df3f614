"""RDMA writes between ports: which ports, what the tool is asked for, what is read from it.

The tool here is a stand-in that prints as perftest 6.06 does; in the emulated machines (tests/vm) it is
the real one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.context import Context, live_context
from perfscope.collectors.links import rdma

_TOOL = """#!{python}
import sys
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[-1] == "127.0.0.1":
    print(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]")
    print("#, usec\\n1, 2.5\\n2, 3\\n3, 1e+03")
else:
    sys.stdin.read()
    __import__("time").sleep(60)
"""
_BROKEN = '#!/bin/sh\necho "Couldn\'t allocate MR" >&2\nexit 1\n'


def port(device: str, state: str = "ACTIVE", layer: str = "InfiniBand") -> dict[str, object]:
    return {"id": f"port:{device}/1", "device": device, "port": "1", "state": state, "link_layer": layer}


def measured(tmp_path: Path, ctx: Context, text: str, end: dict[str, object]) -> list[dict[str, Any]]:
    tool = tmp_path / "ib_write_lat"
    tool.write_text(text)
    tool.chmod(0o755)
    return list(rdma.measure_writes(ctx, str(tool), (end, end), time.monotonic() + 60, 0.01))


def test_each_active_port_writes_to_the_next_one() -> None:
    ports = [port("a"), port("b", "DOWN"), port("c"), port("d")]
    chosen = [(one["device"], other["device"]) for one, other in rdma.pairs(ports)]
    assert chosen == [("a", "c"), ("c", "d")]


def test_ports_of_different_fabrics_do_not_write_to_each_other() -> None:
    ports = [port("a"), port("b"), port("c", layer="Ethernet")]
    chosen = [(one["device"], other["device"]) for one, other in rdma.pairs(ports)]
    assert chosen == [("a", "b"), ("c", "c")]


@pytest.mark.parametrize(("state", "pairs"), [("ACTIVE", [("a", "a")]), ("DOWN", [])])
def test_a_single_active_port_writes_to_itself(state: str, pairs: list[tuple[str, str]]) -> None:
    assert [(one["device"], other["device"]) for one, other in rdma.pairs([port("a", state)])] == pairs


def test_every_size_has_the_seconds_of_each_write(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = _TOOL.format(python=sys.executable, log=str(log))
    rows = measured(tmp_path, live_context(), text, port("a"))
    assert [row["bytes"] for row in rows] == list(rdma.SIZES)
    assert all(row["seconds"] == pytest.approx([2.5e-6, 3e-6, 1e-3]) for row in rows)
    calls = log.read_text().splitlines()
    assert len(calls) >= len(rdma.SIZES)
    assert all(call.startswith("-d a -i 1 -s ") and " -x " not in call for call in calls)


def test_what_the_tool_refuses_has_its_reason(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, live_context(), _BROKEN, port("a"))
    assert row == {"missing": "64 B and more", "reason": "ib_write_lat: Couldn't allocate MR"}


def test_on_ethernet_the_routable_address_over_ipv4_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/infiniband/rxe0/ports/1"
    for index, (kind, gid) in enumerate(
        [
            ("IB/RoCE v1", "fe80::1"),
            ("RoCE v2", "fe80::1"),
            ("RoCE v2", "0000:0000:0000:0000:0000:ffff:0a07:0001"),
        ]
    ):
        (folder / "gid_attrs/types").mkdir(parents=True, exist_ok=True)
        (folder / "gids").mkdir(exist_ok=True)
        (folder / f"gid_attrs/types/{index}").write_text(kind + "\n")
        (folder / f"gids/{index}").write_text(gid + "\n")
    log = tmp_path / "log"
    text = _TOOL.format(python=sys.executable, log=str(log))
    measured(tmp_path, Context(root=tmp_path), text, port("rxe0", layer="Ethernet"))
    assert "-d rxe0 -i 1 -x 2 -s 64 " in log.read_text()
