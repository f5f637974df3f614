"""`python -m perfscope.runners.cluster SPEC -- COMMAND...`: COMMAND once per rank of an emulated cluster.

The launcher sits in the switch's namespace and is the parent of all ranks; a guard stands above it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from perfscope.errors import EXIT_USAGE
from perfscope.runners.cluster.network import build, leave_machine, require_tools
from perfscope.runners.cluster.ranks import RankProcesses
from perfscope.runners.cluster.spec import ClusterSpec, describe, parse_cluster
from perfscope.runners.config import BenchError
from perfscope.runners.starting import kernel
from perfscope.runners.starting.endings import say
from perfscope.runners.starting.guard import run_guarded

_USAGE = "usage: python -m perfscope.runners.cluster [--quiet] HOSTSxRANKS[@RATE[,LATENCY]] -- COMMAND..."


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; the code to exit with."""
    argv = list(arguments)
    if argv[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    quiet = argv[:1] == ["--quiet"]
    if quiet:
        del argv[0]
    if argv[1:2] == ["--"]:
        del argv[1]
    if len(argv) < 2:
        print(_USAGE, file=sys.stderr)
        return EXIT_USAGE
    try:
        spec = parse_cluster(argv[0])
        require_tools()
    except BenchError as error:
        say(str(error))
        return error.exit_code
    if not quiet:
        for line in describe(spec).splitlines():
            say(line)
    return run_cluster(spec, argv[1:], os.environ)


def run_cluster(spec: ClusterSpec, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start `command` once per rank and wait.

    Returns:
        The exit code of the first rank that failed, 128+N for signal N; 0 when none did.
    """
    return run_guarded(lambda mask: _launch(spec, command, environment, mask))


def _launch(
    spec: ClusterSpec, command: Sequence[str], environment: Mapping[str, str], mask: frozenset[int]
) -> int:
    guard = os.getppid()
    try:
        leave_machine()
        kernel.die_with_parent(signal.SIGTERM, guard)  # new credentials make the kernel forget it
        ranks = RankProcesses(spec, build(spec), command, environment, mask)
    except BenchError as error:
        say(str(error))
        return error.exit_code
    ranks.start()
    return ranks.watch(guard)
