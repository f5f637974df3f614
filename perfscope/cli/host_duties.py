"""What `perfscope run` finds out about its host: the one place where launch meets the collectors."""

from __future__ import annotations

from pathlib import Path

from perfscope.launch.session import HostDuties, say
from perfscope.rundir import layout
from perfscope.rundir.layout import host_name
from perfscope.rundir.writer import write_json

GPU_BUDGET_S = 20.0  # torch needs seconds to start, and a context on each GPU; only once per host


def host_duties(ceilings: str, *, tell: bool) -> HostDuties:
    """Duties for one run. `ceilings`: auto, refresh or off; `tell`: say so when measuring takes a while."""

    def measure(folder: Path) -> None:
        from perfscope.collectors.ceilings.measure import is_cached, read_or_measure, torch_python
        from perfscope.collectors.context import live_context
        from perfscope.collectors.gpu.registry import has_gpu

        ctx = live_context()
        gpus = has_gpu(ctx)
        if tell and (ceilings == "refresh" or not is_cached(ctx, host_name())):
            time = "2 s and, for torch and the GPUs, up to 20 s more" if gpus else "2 s"
            say(f"measuring this host's peaks first: {time}, once (--ceilings off skips it)")
        measured = read_or_measure(
            ctx,
            host_name(),
            refresh=ceilings == "refresh",
            torch_python=torch_python(),
            torch_budget_s=GPU_BUDGET_S if gpus else 0.0,
        )
        write_json(folder / layout.CEILINGS_JSON, measured)

    def describe(folder: Path) -> None:
        from perfscope.collectors.context import live_context
        from perfscope.collectors.machine.topology import read_topology

        write_json(folder / layout.TOPOLOGY_JSON, read_topology(live_context(), host_name()))

    return (
        HostDuties(measure=measure, describe=describe) if ceilings != "off" else HostDuties(describe=describe)
    )
