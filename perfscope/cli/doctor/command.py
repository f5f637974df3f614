"""`perfscope doctor`: parse, survey, print."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import print_result
from perfscope.errors import PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.cli.doctor.memory_modes import Copies
    from perfscope.collectors.context import Context
    from perfscope.collectors.survey import Survey
    from perfscope.collectors.trial import CollectorTrial

MOST_SECONDS = 60.0


def _to_seconds(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value <= MOST_SECONDS:  # not a number is neither
        raise click.BadParameter(f"{value:g} is not between 0 and {MOST_SECONDS:g} seconds", ctx, param)
    return value


@click.command("doctor", context_settings=HELP)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, readable=False),  # we say it ourselves: exit code 1, not 2
    metavar="DIR",
    help="Look at a captured /proc and /sys (a folder, or a tar) in place of this machine.",
)
@click.option(
    "--ceilings",
    is_flag=False,
    flag_value="host",
    type=click.Choice(["host", "all"]),
    help="Measure memory bandwidth and FLOP/s now (up to half a minute); all: links, too.",
)
@click.option(
    "--links",
    is_flag=True,
    help="Measure NUMA memory, GPU copies, TCP, RDMA and collectives now (a minute); under srun, mpiexec "
    "or torchrun between hosts, too.",
)
@click.option(
    "--budget", "budget_s", type=float, metavar="SECONDS", help="Time for all links at most, 5 to 600."
)
@click.option(
    "--cluster",
    metavar="SPEC",
    help="Measure links of an emulated cluster, HOSTSxRANKS@RATE[,LATENCY]: 2x1@1gbit.",
)
@click.option(
    "--fits",
    metavar="COPIESxSIZE",
    help="Say whether so many copies of a model fit the fast memory (MCDRAM, HBM): 4x500MB.",
)
@click.option(
    "--sample",
    "seconds",
    type=float,
    callback=_to_seconds,
    metavar="SECONDS",
    help="Read every available source for so long: the proof that it works.",
)
def command(
    as_json: bool,
    root: Path | None,
    ceilings: str | None,
    links: bool,
    budget_s: float | None,
    cluster: str | None,
    fits: str | None,
    seconds: float | None,
) -> None:
    """Show what can be measured on this machine, what cannot and why, and what to do about it.

    Marks: ✓ available, ! available in part, – not available. Nothing is changed and nothing is sent; the
    last block is what a bug report needs. The exit code is 0 also when sources are missing.

    \b
    Examples:
      perfscope doctor
      perfscope doctor --sample 2
      perfscope doctor --json | jq '.sources[] | select(.available | not) | {collector, reason, remedy}'
      perfscope doctor --root node17.tar.xz
      perfscope doctor --ceilings all --json > node17.json
      srun -N 4 --ntasks-per-node 1 perfscope doctor --links
    """
    from perfscope.cli.doctor.links import (
        check_budget,
        measure,
        measured_before,
        run_in_cluster,
    )
    from perfscope.cli.doctor.memory_modes import parse_copies

    links = links or ceilings == "all" or cluster is not None
    _refuse_beside_root(root, ceilings=ceilings, links=links, seconds=seconds)
    check_budget(budget_s, links)
    copies = None if fits is None else parse_copies(fits)
    if cluster is not None:
        given = {"--ceilings": ceilings, "--budget": budget_s, "--fits": fits, "--sample": seconds}
        arguments = [f"{name}={value}" for name, value in given.items() if value is not None]
        sys.exit(run_in_cluster(cluster, ["--links", *arguments, *(["--json"] if as_json else [])]))
    with tempfile.TemporaryDirectory(prefix="perfscope-doctor-") as scratch:
        ctx = _live(Path(scratch))
        measured = measure(ctx, budget_s) if links else None
        if links and measured is None:
            return  # rank 0 prints
        examined, trials = _examine(root, Path(scratch), ceilings is not None, seconds)
        documents = [measured] if measured else measured_before(ctx) if root is None else []
    _print(examined, trials, documents, copies, as_json)


def _print(
    examined: Survey,
    trials: list[CollectorTrial] | None,
    links: list[dict[str, Any]],
    copies: Copies | None,
    as_json: bool,
) -> None:
    from perfscope.cli.doctor.links import fitted_documents
    from perfscope.cli.doctor.machine import topology_of
    from perfscope.cli.doctor.memory_modes import fit_document

    if not examined.sources and not examined.topology:
        raise PerfscopeError(
            "nothing could be surveyed: " + ("; ".join(examined.problems) or "no source answered")
        )
    if not as_json:
        _print_text(examined, trials, links, copies)
        return
    document = examined.as_dict()
    document["sample"] = None if trials is None else [trial.as_dict() for trial in trials]
    document["links"] = fitted_documents(links)
    document["fits"] = None if copies is None else fit_document(topology_of(examined), copies)
    print_result(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _refuse_beside_root(
    root: Path | None, *, ceilings: str | None, links: bool, seconds: float | None
) -> None:
    measures = ceilings is not None or links or seconds is not None
    if root is None or not measures:
        return
    option = "--ceilings" if ceilings else "--links" if links else "--sample"
    raise UsageError(f"{option} needs the machine itself; leave out --root")


def _examine(
    root: Path | None, scratch: Path, ceilings: bool, seconds: float | None
) -> tuple[Survey, list[CollectorTrial] | None]:
    from perfscope.collectors.survey import survey
    from perfscope.rundir.layout import host_name

    if root is not None:
        from perfscope.cli.doctor.captured_tree import find_tree

        ctx = _captured(find_tree(root, scratch))
        return survey(ctx, captured_name(ctx), captured=str(root)), None
    ctx = _live(scratch)
    surveyed = survey(ctx, host_name(), measure_ceilings=ceilings)
    return surveyed, None if seconds is None else _sample(surveyed, ctx, seconds)


def _live(scratch: Path) -> Context:
    """This machine; this process replaces a rank, and asks for everything that is off by default."""
    from perfscope.collectors.context import live_context

    return live_context(pids=lambda: (os.getpid(),), out_dir=scratch, options={"stacks": True})


def _captured(tree: Path) -> Context:
    from perfscope.collectors.context import captured_context

    pids = sorted(int(entry.name) for entry in tree.glob("proc/[0-9]*") if entry.name.isdigit())
    return captured_context(tree, pids=lambda: pids, options={"stacks": True})


def captured_name(ctx: Context) -> str:
    """The host name a tree was captured under, or "captured"."""
    return ctx.read_or("/proc/sys/kernel/hostname") or "captured"


def _sample(surveyed: Survey, ctx: Context, seconds: float) -> list[CollectorTrial]:
    from perfscope.collectors.survey import all_collectors
    from perfscope.collectors.trial import try_out

    available = {source.capability.collector for source in surveyed.sources if source.capability.available}
    host_collectors, foreign = all_collectors([])
    return try_out(
        [collector for collector in (*host_collectors, *foreign) if collector.name in available], ctx, seconds
    )


def _print_text(
    surveyed: Survey,
    trials: list[CollectorTrial] | None,
    links: list[dict[str, Any]],
    copies: Copies | None,
) -> None:
    from perfscope.cli.doctor.text import in_ascii, render
    from perfscope.reports.text import wants_color

    if sys.stdout is None:
        raise PerfscopeError("cannot write to stdout: it is closed")
    width = shutil.get_terminal_size((100, 24)).columns
    text = render(surveyed, trials, links=links, copies=copies, width=width, color=wants_color(sys.stdout))
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = in_ascii(text).encode(encoding, "replace").decode(encoding)
    print_result(text)
