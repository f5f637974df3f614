"""srun: getting our variables past `--export`.

`--export=NONE|NIL|A,B=x` lets only the named variables through; a bare name passes the value srun
itself sees. `ALL` (also the default) and lists that contain it pass everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.launch import command_line
from perfscope.launch.environment import PYTHONPATH
from perfscope.launch.plan import CommandContext

_VALUE_OPTIONS = """
-A -a -b -c -C -d -D -e -g -G -i -J -L -m -M -n -N -o -p -q -r -S -t -T -w -W -x --account --chdir
--constraint --cpu-bind --cpus-per-gpu --cpus-per-task --distribution --error --exclude --export
--gpu-bind --gpus --gpus-per-node --gpus-per-task --gres --hint --input --jobid --job-name --label-format
--mem --mem-bind --mem-per-cpu --mem-per-gpu --mpi --nodelist --nodes --ntasks --ntasks-per-core
--ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --open-mode --output --partition --qos --relative
--reservation --signal --threads-per-core --time --wait --container-image --container-mounts
--container-workdir --container-name
"""
_WITH_VALUE = frozenset(_VALUE_OPTIONS.split())


def program_index(argv: Sequence[str]) -> int:
    """Where the program starts. Options this list does not know and that take a spaced value mislead it."""
    return command_line.end_of_options(argv, _WITH_VALUE)


def count_tasks(options: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Number of tasks; None when only Slurm can tell."""
    if command_line.last_value(options, "--het-group", "--pack-group") is not None:
        return (
            None  # several parts of a heterogeneous job, of which each has as many as its own variables say
        )
    given = command_line.last_value(options, "-n", "--ntasks")
    if given is None:
        given = next((word[2:] for word in options if word.startswith("-n") and word[2:].isdigit()), None)
    if given is not None:
        return command_line.as_count(given)
    if command_line.last_value(options, "-N", "--nodes", "--ntasks-per-node") is not None:
        return None
    return command_line.as_count(environment.get("SLURM_NTASKS"))


def pass_environment(argv: tuple[str, ...], program: int, context: CommandContext) -> tuple[str, ...]:
    """argv with `--export` extended by our variables, where there is a list that would keep them out."""
    for index, word in enumerate(argv[:program]):
        if word.startswith("--export="):
            exported = _extend(word.removeprefix("--export="), context)
            return (*argv[:index], f"--export={exported}", *argv[index + 1 :])
        if word == "--export" and index + 1 < program:
            return (*argv[: index + 1], _extend(argv[index + 1], context), *argv[index + 2 :])
    inherited = context.environment.get("SLURM_EXPORT_ENV")
    if inherited is None or _passes_all(inherited):
        return argv
    # The option wins over the variable.
    return (argv[0], f"--export={_extend(inherited, context)}", *argv[1:])


def _passes_all(export: str) -> bool:
    return "ALL" in export.split(",")


def _extend(export: str, context: CommandContext) -> str:
    if _passes_all(export) and not any(name.startswith(f"{PYTHONPATH}=") for name in export.split(",")):
        return export
    kept = []
    python_path = f"{PYTHONPATH}={context.injection.site_dir}"
    for item in export.split(","):
        name, equals, value = item.partition("=")
        if name == PYTHONPATH:
            # A bare name passes the value srun sees, which is ours already.
            python_path = f"{PYTHONPATH}={context.injection.python_path(value)}" if equals else PYTHONPATH
        elif item and item not in ("NONE", "NIL"):
            kept.append(item)
    return ",".join([*kept, python_path, *context.injection.variables])
