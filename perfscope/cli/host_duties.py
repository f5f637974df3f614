"""What `perfscope run` finds out about its host: the one place where launch meets the collectors."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from perfscope.launch.machine import host_name
from perfscope.launch.session import HostDuties, say
from perfscope.rundir import layout
from perfscope.rundir.writer import write_json


def host_duties(ceilings: str, *, tell: bool) -> HostDuties:
    """Duties for one run. `ceilings`: auto, refresh or off; `tell`: say so when measuring takes a while."""

    def measure(folder: Path) -> None:
        from perfscope.collectors.ceilings.measure import is_cached, read_or_measure
        from perfscope.collectors.context import live_context

        ctx = live_context()
        if tell and (ceilings == "refresh" or not is_cached(ctx, host_name())):
            say("measuring this host's peak bandwidth and FLOP/s first: 2 s, once (--ceilings off skips it)")
        found = read_or_measure(
            ctx,
            host_name(),
            refresh=ceilings == "refresh",
            torch_python=shutil.which("python") or sys.executable,
        )
        write_json(folder / layout.CEILINGS_JSON, found)

    def describe(folder: Path) -> None:
        from perfscope.collectors.context import live_context
        from perfscope.collectors.machine.topology import read_topology

        write_json(folder / layout.TOPOLOGY_JSON, read_topology(live_context(), host_name()))

    return (
        HostDuties(measure=measure, describe=describe) if ceilings != "off" else HostDuties(describe=describe)
    )
