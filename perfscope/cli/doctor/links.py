"""Links for `perfscope doctor`: measured here and by other ranks, or as they were measured before."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from perfscope.cli.output import notice
from perfscope.errors import PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.collectors.context import Context
    from perfscope.collectors.links.measure import Document, JoinedRanks, Tools
    from perfscope.rundir.host_records import LinksRecord

LEAST_BUDGET_S, MOST_BUDGET_S = 5.0, 600.0


def tell(text: str) -> None:
    """Progress: on stderr, so that it is not in what is piped on."""
    notice(text)


def joined_ranks(environment: Mapping[str, str]) -> JoinedRanks | None:
    """The ranks of the launcher that has started this process; None = it is alone.

    Raises:
        PerfscopeError: the launcher does not say where its ranks can meet.
    """
    from perfscope.collectors.links.measure import JoinedRanks
    from perfscope.runners.config import BenchError
    from perfscope.runners.starting.launching import meeting_place
    from perfscope.runners.starting.outer_launcher import find_outer

    try:
        outer = find_outer(environment)
        if outer is None or outer.size < 2:
            return None
        facts = {
            "RANK": outer.rank,
            "WORLD_SIZE": outer.size,
            "LOCAL_RANK": outer.local_rank,
            **meeting_place(environment, outer),
        }
    except BenchError as error:
        raise PerfscopeError(f"--links: {error}") from None
    return JoinedRanks(
        rank=outer.rank, size=outer.size, environment={name: str(value) for name, value in facts.items()}
    )


def measure(ctx: Context, budget_s: float | None) -> Document | None:
    """Measure now; None on ranks other than 0, which have nothing to print."""
    from perfscope.collectors.links.measure import measure_links, most_seconds
    from perfscope.rundir.layout import host_name

    tools = _tools(joined_ranks(os.environ))
    if tools.joined is None or tools.joined.rank == 0:
        most = most_seconds(ctx, tools) if budget_s is None else budget_s
        tell(f"measuring links: at most {most:.0f} s in all" + ("" if budget_s else " (--budget S: less)"))
    return measure_links(ctx, host_name(), tools, budget_s=budget_s, say=tell)


def measured_before(ctx: Context) -> list[Document]:
    """What is kept of the sets of hosts that this one belongs to."""
    from perfscope.collectors.links.cache import load
    from perfscope.rundir.layout import host_name

    return load(ctx, host_name()) if ctx.live else []


def kept_records() -> list[LinksRecord]:
    """As `measured_before`, of this machine, as records."""
    from perfscope.collectors.context import live_context
    from perfscope.rundir.host_records import LinksRecord
    from perfscope.rundir.typed import read_as

    return [read_as(LinksRecord, document) for document in measured_before(live_context())]


def run_in_cluster(spec: str, arguments: list[str]) -> int:
    """The doctor once per rank of an emulated cluster; its exit code.

    Raises:
        UsageError: the spec is none, or this machine cannot emulate one.
    """
    from perfscope.runners.cluster.launcher import run_cluster
    from perfscope.runners.cluster.network import require_rights, require_tools
    from perfscope.runners.cluster.spec import describe, parse_cluster
    from perfscope.runners.config import BenchError

    try:
        cluster = parse_cluster(spec)
        require_tools()
        require_rights()
    except BenchError as error:
        raise UsageError(f"--cluster: {error}") from None
    if cluster.num_ranks < 2:
        raise UsageError(f"--cluster {spec}: one rank has no links; write 2x1@1gbit, for instance")
    for line in describe(cluster).splitlines():
        tell(line)
    command = [sys.executable, "-m", "perfscope", "doctor", *arguments]
    return run_cluster(cluster, command, os.environ)


def _tools(joined: JoinedRanks | None) -> Tools:
    from perfscope.collectors.ceilings.measure import torch_python
    from perfscope.collectors.links.measure import Tools
    from perfscope.runners.config import BenchError
    from perfscope.runners.starting.launching import mpiexec_command

    mpiexec: tuple[str, ...] = ()
    why = "mpi4py is not installed: pip install 'perfscope-hpc[mpi]'"
    if find_spec("mpi4py") is not None:
        why = "neither beside Python nor on PATH is there an mpiexec"
        try:
            mpiexec = mpiexec_command(os.environ)
        except BenchError:
            mpiexec = ()
    return Tools(torch_python=torch_python(), mpiexec=mpiexec, no_mpi=why, joined=joined)


def fitted_documents(documents: list[Document]) -> list[dict[str, object]]:
    """For --json: the measurements, each with what was fitted to them as `fits`."""
    import msgspec

    from perfscope.analysis.predict.measured_links import fitted_series
    from perfscope.rundir.host_records import LinksRecord
    from perfscope.rundir.typed import read_as

    return [
        {**document, "fits": msgspec.to_builtins(fitted_series(read_as(LinksRecord, document)))}
        for document in documents
    ]


def check_budget(budget_s: float | None, wanted: bool) -> None:
    """Raises UsageError for a budget that is too small, too large, or of nothing."""
    if budget_s is None:
        return
    if not wanted:
        raise UsageError("--budget bounds --links and --ceilings all; give one of them")
    if not LEAST_BUDGET_S <= budget_s <= MOST_BUDGET_S:
        raise UsageError(f"--budget {budget_s:g}: give {LEAST_BUDGET_S:g} to {MOST_BUDGET_S:g} seconds")
