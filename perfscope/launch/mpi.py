"""mpirun and mpiexec: getting our variables to other hosts, counting ranks.

Open MPI passes the environment to processes on this host only; other hosts get what `-x` names.
Hydra (MPICH, Intel MPI, MVAPICH) passes everything unless configured otherwise.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfscope.children import is_open_mpi
from perfscope.launch import command_line
from perfscope.launch.environment import PYTHONPATH
from perfscope.launch.plan import CommandContext

COMMANDS = frozenset(
    {"mpirun", "mpiexec", "orterun", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi"}
) | frozenset({"mpirun.mpich", "mpiexec.mpich", "oshrun", "prterun"})
HOROVOD_OPTIONS_WITH_VALUE = frozenset(
    {
        "-np",
        "-n",
        "--num-proc",
        "-H",
        "--hosts",
        "-hostfile",
        "--hostfile",
        "-p",
        "--ssh-port",
        "-i",
        "--min-np",
    }
    | {
        "--max-np",
        "--network-interface",
        "--network-interfaces",
        "--output-filename",
        "--start-timeout",
        "--log-level",
    }
    | {"--fusion-threshold-mb", "--cycle-time-ms", "--timeline-filename", "--config-file", "--mpi-args"}
)
_ENV_LIST = "mca_base_env_list"
_ENV_LIST_VARIABLE = f"OMPI_MCA_{_ENV_LIST}"
_COUNT_OPTIONS = ("-np", "-n", "--np", "--n", "-c")
_MCA_OPTIONS = frozenset({"-mca", "--mca", "-gmca", "--gmca", "--prtemca", "--pmixmca"})  # two words of value
_WITH_VALUE = frozenset(
    {
        *_COUNT_OPTIONS,
        "-x",
        "-H",
        "-host",
        "--host",
        "-hosts",
        "-hostfile",
        "--hostfile",
        "-machinefile",
        "--machinefile",
    }
    | {
        "-f",
        "-N",
        "-npernode",
        "--npernode",
        "-npersocket",
        "--npersocket",
        "--map-by",
        "-map-by",
        "--bind-to",
        "-bind-to",
    }
    | {
        "--rank-by",
        "-rank-by",
        "-wdir",
        "--wdir",
        "-wd",
        "--wd",
        "--prefix",
        "-path",
        "--path",
        "-rf",
        "--rankfile",
    }
    | {
        "-ppn",
        "-genv",
        "-env",
        "-genvlist",
        "-envlist",
        "--output-filename",
        "-output-filename",
        "--output",
        "--app",
    }
    | {
        "-app",
        "--tune",
        "-tune",
        "-am",
        "--am",
        "--timeout",
        "-timeout",
        "--stdin",
        "-stdin",
        "--mca-base-env-list",
    }
    | {"-launcher-exec", "-bootstrap", "-bootstrap-exec", "-configfile", "-usize", "-topolib", "-membind"}
    | {"-demux", "-nameserver", "-prepend-pattern", "-outfile-pattern", "-errfile-pattern"}
    | {"-gpus-per-proc", "--display", "--runtime-options", "--dvm", "--dvm-uri", "--launch-agent"}
    | {"-iface", "-launcher", "-rmk", "--cpu-set", "--cpu-list", "--oversubscribe-count", "--personality"}
)
_HYDRA_TWO_VALUES = frozenset({"-genv", "-env"})
_HYDRA_LISTS = frozenset({"-genvlist", "-envlist"})
_HYDRA_RESTRICTIONS = frozenset({"-genvnone", "-envnone"})


@dataclass(frozen=True)
class Rewritten:
    """A command that passes our variables on.

    Attributes:
        argv: the command.
        environment: variables to set besides the injection.
        warnings: lines for the user.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def pass_environment(argv: tuple[str, ...], context: CommandContext) -> Rewritten:
    """The command changed so that every rank, on every host, gets our variables."""
    version = context.mpi_version(argv[0])
    program = program_index(argv, context.environment)
    if is_open_mpi(version):
        return _pass_open_mpi(argv, program, context)
    argv = _pass_hydra(argv, program, context)
    options = argv[:program]
    restricted = sorted(_HYDRA_RESTRICTIONS.intersection(options))
    if restricted and not _HYDRA_LISTS.intersection(options):
        reason = f"{' '.join(restricted)} keeps PYTHONPATH and PERFSCOPE_* from the ranks; leave it out"
        return Rewritten(argv, warnings=(reason,))
    if not version:
        return Rewritten(
            argv, warnings=(f"cannot tell which MPI {argv[0]} is; ranks on other hosts may be missed",)
        )
    return Rewritten(argv)


def program_index(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Index of the first program on the command line.

    The launchers' options differ and grow; a word that follows an option we do not know counts as
    the program only if it can be executed.
    """
    path = environment.get("PATH", os.defpath)
    index = 1
    unknown_before = False
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return index + 1
        if word.startswith("-"):
            two = word in _MCA_OPTIONS or word in _HYDRA_TWO_VALUES
            unknown_before = not two and word not in _WITH_VALUE
            index += 3 if two else 2 if word in _WITH_VALUE else 1
            continue
        if not unknown_before or command_line.is_python(word) or shutil.which(word, path=path):
            return index
        unknown_before = False
        index += 1
    return len(argv)


def count_ranks(argv: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Ranks over all `:`-separated parts; None when one of them does not say."""
    total = 0
    part: list[str] = [argv[0]]
    for word in [*argv[1:], ":"]:
        if word != ":":
            part.append(word)
            continue
        count = command_line.as_count(
            command_line.last_value(part[: program_index(part, environment)], *_COUNT_OPTIONS)
        )
        if count is None:
            return None
        total += count
        part = [argv[0]]
    return total


def _pass_open_mpi(argv: tuple[str, ...], program: int, context: CommandContext) -> Rewritten:
    names = context.injection.names
    for index in range(1, program - 2):
        if argv[index] in _MCA_OPTIONS and argv[index + 1] == _ENV_LIST:
            # `-x` together with the list aborts the job, so the list itself grows.
            extended = _extend_list(argv[index + 2], context)
            return Rewritten((*argv[: index + 2], extended, *argv[index + 3 :]))
    inherited = context.environment.get(_ENV_LIST_VARIABLE)
    if inherited:
        return Rewritten(argv, environment={_ENV_LIST_VARIABLE: _extend_list(inherited, context)})
    changed = list(argv)
    already = set()
    for index in range(1, program - 1):
        if argv[index] not in ("-x", "--x"):
            continue
        name, equals, value = argv[index + 1].partition("=")
        already.add(name)
        if name == PYTHONPATH and equals:
            changed[index + 1] = f"{PYTHONPATH}={context.injection.python_path(value)}"
    inserted = [word for name in names if name not in already for word in ("-x", name)]
    return Rewritten((changed[0], *inserted, *changed[1:]))


def _pass_hydra(argv: tuple[str, ...], program: int, context: CommandContext) -> tuple[str, ...]:
    """Lists of variables get ours, and a PYTHONPATH of the user's own stays behind ours."""
    changed = list(argv)
    for index in range(1, program - 1):
        if argv[index] in _HYDRA_LISTS:
            listed = [name for name in argv[index + 1].split(",") if name]
            more = [name for name in context.injection.names if name not in listed]
            changed[index + 1] = ",".join([*listed, *more])
        elif argv[index] in _HYDRA_TWO_VALUES and argv[index + 1] == PYTHONPATH:
            changed[index + 2] = context.injection.python_path(argv[index + 2])
    return tuple(changed)


def _extend_list(listed: str, context: CommandContext) -> str:
    """A `;`-separated list with our names added and a PYTHONPATH of the user's own kept behind ours."""
    items = []
    names = set()
    for item in filter(None, listed.split(";")):
        name, equals, value = item.partition("=")
        names.add(name)
        ours_too = name == PYTHONPATH and equals
        items.append(f"{PYTHONPATH}={context.injection.python_path(value)}" if ours_too else item)
    return ";".join([*items, *(name for name in context.injection.names if name not in names)])
