"""What `perfscope run` finds out about its host: the one place where launch meets the collectors."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

from perfscope.launch.facts import HostDuties
from perfscope.live.options import WatchOptions
from perfscope.notices import say
from perfscope.rundir import layout
from perfscope.rundir.layout import host_name
from perfscope.rundir.writer import write_json

_HANGS = WatchOptions()
GPU_BUDGET_S = 20.0  # torch needs seconds to start, and a context on each GPU; only once per host


def host_duties(ceilings: str, *, tell: bool, watched: WatchOptions = _HANGS) -> HostDuties:
    """Duties for one run.

    Args:
        ceilings: auto, refresh or off.
        tell: say so when measuring takes a while.
        watched: what to watch while the run goes on; by default hangs.
    """

    def measure(folder: Path) -> None:
        from perfscope.collectors.ceilings.measure import is_cached, read_or_measure, torch_python
        from perfscope.collectors.context import live_context
        from perfscope.collectors.gpu.registry import has_gpu
        from perfscope.collectors.links.cache import load

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
        # Links are only measured on demand (perfscope doctor --links): they take a minute, and other hosts.
        write_json(folder / layout.CEILINGS_JSON, {**measured, "links": load(ctx, host_name())})

    def describe(folder: Path) -> None:
        from perfscope.collectors.context import live_context
        from perfscope.collectors.machine.topology import read_topology

        write_json(folder / layout.TOPOLOGY_JSON, read_topology(live_context(), host_name()))

    def watch(folder: Path, over: threading.Event) -> None:
        from perfscope.live.watching import watch_run

        watch_run(folder, over, watched, say)

    duties = functools.partial(HostDuties, describe=describe, watch=watch)
    return duties(measure=measure) if ceilings != "off" else duties()
