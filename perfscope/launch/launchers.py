"""Recognizing how a command starts training, and changing it where the environment would be lost.

One function per kind of launcher; each returns a plan, or None when the command is not its own.
`LAUNCHERS` is the whole list, in the order they are asked. Launchers that start another command
(`env`, `numactl`, `srun`, ...) ask `recognize` about that one.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import PurePath

from perfscope.launch import command_line, mpi, slurm, torchrun
from perfscope.launch.environment import PYTHONPATH
from perfscope.launch.plan import CommandContext, Launcher, LaunchPlan
from perfscope.launch.slurm_job import find_step_task

# Commands that start another one and keep its environment: options with a value, words of their own.
_PREFIXES: dict[str, tuple[frozenset[str], int]] = {
    "chrt": (frozenset(), 1),
    "ionice": (frozenset({"-c", "-n", "--class", "--classdata"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "nohup": (frozenset(), 0),
    "numactl": (
        frozenset(
            {
                "-N",
                "-m",
                "-C",
                "-i",
                "-p",
                "--cpunodebind",
                "--membind",
                "--physcpubind",
                "--interleave",
                "--preferred",
            }
        ),
        0,
    ),
    "setsid": (frozenset(), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}), 0),
    "taskset": (frozenset(), 1),
    "time": (frozenset({"-f", "-o", "--format", "--output"}), 0),
    "timeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1),
}
# Commands that start the script they name among many options of their own, and keep the environment.
_SCRIPT_RUNNERS = frozenset({"accelerate", "deepspeed", "jupyter", "pipenv", "poetry", "uv"})
_SCRIPTS = (".py", ".ipynb")
# Commands that start another one without our environment.
_CLOSED_DOORS = {
    "sudo": "sudo does not pass PYTHONPATH on",
    "doas": "doas does not pass PYTHONPATH on",
    "ssh": "ssh does not pass the environment to the other host",
    "docker": "docker starts the command outside this environment",
    "podman": "podman starts the command outside this environment",
    "sbatch": "sbatch only queues the command; use `perfscope slurm submit`, or perfscope in the script",
}
_PYTHON_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_PYTHON_LETTERS_THAT_SHUT_OUT = {"E": "-E", "I": "-I", "S": "-S"}
_TORCHRUN_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run"}
    | {"perfscope.runners.starting.elastic"}
)
_CLUSTER_MODULE = "perfscope.runners.cluster"
_CLUSTER = re.compile(r"([0-9]{1,4})x([0-9]{1,4})(?:@.*)?")  # HOSTSxRANKS@RATE
_RANK_MODULE = "perfscope.runners.rank"


def recognize(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan:
    """The plan for a command; `launcher` is "other" when nothing is known about it."""
    for launcher in LAUNCHERS:
        plan = launcher(argv, context)
        if plan is not None:
            return plan
    return LaunchPlan(launcher="other", argv=argv, name=PurePath(argv[0]).stem)


def _behind(argv: tuple[str, ...], start: int, context: CommandContext, launcher: str) -> LaunchPlan:
    """The plan of the command that starts at `start` of argv; `launcher` when there is none."""
    if start >= len(argv):
        return LaunchPlan(launcher=launcher, argv=argv, name=command_line.base(argv[0]))
    return recognize(argv[start:], context).behind(*argv[:start])


def plan_torchrun(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`torchrun`, `python -m torch.distributed.run|launch`, and perfscope's own torchrun."""
    start = 1
    if command_line.is_python(argv[0]):
        kind, module = _python_target(argv)
        if kind != "m" or argv[module] not in _TORCHRUN_MODULES:
            return None
        start = module + 1
    elif command_line.base(argv[0]) != "torchrun":
        return None
    job = torchrun.read(argv[start:], context.environment)
    plan = LaunchPlan(
        launcher="torchrun",
        argv=argv,
        name=job.name,
        expected_ranks=job.num_local_ranks,
        world_size=job.world_size,
        # `python -E -m torch.distributed.run` is no obstacle: it starts its workers without -E.
    )
    if job.runs_command and job.script is not None:
        inner = recognize(job.script, context)
        plan = replace(plan, name=inner.name, warnings=inner.warnings, unreachable=inner.unreachable)
    return plan


def plan_emulated_cluster(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`python -m perfscope.runners.cluster [--quiet] HOSTSxRANKS@RATE -- COMMAND`: hosts emulated here."""
    if not command_line.is_python(argv[0]):
        return None
    kind, module = _python_target(argv)
    if kind != "m" or argv[module] != _CLUSTER_MODULE:
        return None
    start = module + 1 + (argv[module + 1 : module + 2] == ("--quiet",))
    match = _CLUSTER.fullmatch(argv[start]) if start < len(argv) else None
    num_ranks = int(match[1]) * int(match[2]) if match else None
    start += 1 + (argv[start + 1 : start + 2] == ("--",))
    inner = recognize(argv[start:], context) if start < len(argv) else None
    return LaunchPlan(
        launcher="cluster",
        argv=argv,
        name=inner.name if inner else "cluster",
        expected_ranks=num_ranks or None,
        world_size=num_ranks or None,
        warnings=inner.warnings if inner else (),
        unreachable=inner.unreachable if inner else None,
    )


def plan_bench_rank(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`python -m perfscope.runners.rank`: a rank of a bench run, perhaps of several that record together."""
    if not _is_bench_rank(argv):
        return None
    return LaunchPlan(
        launcher="python",
        argv=argv,
        name="bench",
        expected_ranks=1,
        world_size=command_line.as_count(context.environment.get("WORLD_SIZE")) or 1,
    )


def plan_mpi(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`mpirun`, `mpiexec` and their aliases, of Open MPI or of the Hydra family."""
    if command_line.base(argv[0]) not in mpi.COMMANDS:
        return None
    rewritten = mpi.pass_environment(argv, context)
    program = mpi.program_index(argv, context.environment)
    inner = recognize(argv[program:], context) if program < len(argv) else None
    num_ranks = mpi.count_ranks(argv, context.environment)
    return LaunchPlan(
        launcher="mpirun",
        argv=rewritten.argv,
        name=inner.name if inner else "mpirun",
        environment=rewritten.environment,
        expected_ranks=num_ranks,
        world_size=num_ranks,
        hosts=True,
        warnings=(*rewritten.warnings, *(inner.warnings if inner else ())),
        unreachable=inner.unreachable if inner else None,
    )


def plan_srun(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`srun`: the environment goes along unless `--export` says otherwise."""
    if command_line.base(argv[0]) != "srun":
        return None
    program = slurm.program_index(argv)
    inner = recognize(argv[program:], context) if program < len(argv) else None
    # `srun -n1 a : -n2 b` is a step of several parts.
    num_tasks = None if ":" in argv[program:] else slurm.count_tasks(argv[:program], context.environment)
    # A task may itself be torchrun: then the ranks are tasks x ranks of each.
    per_task = 1 if inner is None or inner.launcher != "torchrun" else inner.expected_ranks
    expected = num_tasks * per_task if num_tasks and per_task else None
    return LaunchPlan(
        launcher="srun",
        argv=slurm.pass_environment(argv, program, context),
        name=inner.name if inner else "srun",
        expected_ranks=expected,
        world_size=expected,
        hosts=True,
        warnings=inner.warnings if inner else (),
        unreachable=inner.unreachable if inner else None,
    )


def plan_horovodrun(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`horovodrun` exports the whole environment to its workers by itself."""
    if command_line.base(argv[0]) != "horovodrun":
        return None
    program = command_line.end_of_options(argv, mpi.HOROVOD_OPTIONS_WITH_VALUE)
    num_ranks = command_line.as_count(command_line.last_value(argv[:program], "-np", "-n", "--num-proc"))
    inner = recognize(argv[program:], context) if program < len(argv) else None
    return LaunchPlan(
        launcher="horovodrun",
        argv=argv,
        name=inner.name if inner else "horovodrun",
        expected_ranks=num_ranks,
        world_size=num_ranks,
        hosts=True,
        warnings=inner.warnings if inner else (),
        unreachable=inner.unreachable if inner else None,
    )


def plan_env(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`env [-i] [-u NAME] [NAME=VALUE...] command`; a PYTHONPATH set here keeps its value behind ours."""
    if command_line.base(argv[0]) != "env":
        return None
    start = command_line.end_of_options(argv, ("-u", "--unset", "-C", "--chdir"))
    options = argv[1:start]
    emptied = bool({"-i", "--ignore-environment"}.intersection(options))
    if argv[start : start + 1] == ("-",):  # the old way to write -i
        emptied, start = True, start + 1
    changed = list(argv)
    while start < len(argv) and "=" in argv[start]:
        name, _, value = argv[start].partition("=")
        if name == PYTHONPATH:
            changed[start] = f"{PYTHONPATH}={context.injection.python_path(value)}"
        start += 1
    plan = _behind(tuple(changed), start, context, "other")
    if emptied or PYTHONPATH in (command_line.last_value(options, "-u", "--unset"), *options):
        return replace(plan, unreachable="`env` takes PYTHONPATH, through which the probe enters, away")
    return plan


def plan_prefix(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """Commands that only change how another command runs (`numactl`, `timeout`, ...)."""
    planner = _PREFIXES.get(command_line.base(argv[0]))
    if planner is None:
        return None
    with_value, own_words = planner
    return _behind(argv, command_line.end_of_options(argv, with_value) + own_words, context, "other")


def plan_script_runner(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`accelerate launch --num_processes 2 train.py`, `uv run train.py`: named after the script."""
    if command_line.base(argv[0]) not in _SCRIPT_RUNNERS:
        return None
    plan = plan_python(argv, context) or LaunchPlan(launcher="other", argv=argv, name=PurePath(argv[0]).stem)
    script = next((word for word in argv[1:] if word.endswith(_SCRIPTS)), None)
    return plan if script is None else replace(plan, name=PurePath(script).stem)


def plan_closed_door(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """Commands behind which our environment does not arrive."""
    reason = _CLOSED_DOORS.get(command_line.base(argv[0]))
    if reason is None:
        return None
    return LaunchPlan(launcher="other", argv=argv, name=command_line.base(argv[0]), unreachable=reason)


def plan_python(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """`python script.py`, `python -m module`, or a script whose first line names python."""
    interpreter = argv
    if not command_line.is_python(argv[0]):
        line = command_line.shebang(argv[0], context.environment)
        if not line or not command_line.is_python(line[0]):
            return None
        interpreter = (*line, argv[0])
    kind, target = _python_target(interpreter)
    name = "python"
    if kind == "m":
        name = interpreter[target]
    elif kind == "script":
        name = PurePath(interpreter[target]).stem
    letters = _shutting_letters(interpreter[1:target])
    reason = f"`python {letters}` skips PYTHONPATH or sitecustomize, through which the probe enters"
    return LaunchPlan(launcher="python", argv=argv, name=name, unreachable=reason if letters else None)


def plan_shell(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan | None:
    """A shell script: it may start anything, so nothing is expected of it."""
    script = argv[0]
    if command_line.is_shell(script):
        index = command_line.end_of_options(argv, ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"))
        runs_text = any(
            word.startswith("-") and not word.startswith("--") and "c" in word for word in argv[1:index]
        )
        script = command_line.base(argv[0]) if runs_text or index >= len(argv) else argv[index]
    else:
        line = command_line.shebang(script, context.environment)
        if not line or not command_line.is_shell(line[0]):
            return None
    return LaunchPlan(launcher="shell", argv=argv, name=PurePath(script).stem)


def _is_bench_rank(argv: tuple[str, ...]) -> bool:
    kind, module = _python_target(argv) if command_line.is_python(argv[0]) else ("", 0)
    return kind == "m" and argv[module] == _RANK_MODULE


def _python_target(argv: tuple[str, ...]) -> tuple[str, int]:
    """What Python is to run, and its index: ("script", i), ("m", i) a module, ("c", i) a text, ("", len)."""
    index = 1
    while index < len(argv):
        word = argv[index]
        if not word.startswith("-"):
            return "script", index
        if word[:2] != "--" and word[-1] in "mc" and word[:2] not in _PYTHON_OPTIONS_WITH_VALUE:
            return (word[-1], index + 1) if index + 1 < len(argv) else ("", len(argv))
        index += 2 if word in _PYTHON_OPTIONS_WITH_VALUE else 1
    return "", len(argv)


def _shutting_letters(options: tuple[str, ...]) -> str:
    """Those of `options` that keep sitecustomize on PYTHONPATH from being imported, as text."""
    options_found = []
    for index, word in enumerate(options):
        if (
            not word.startswith("-")
            or word.startswith("--")
            or (index and options[index - 1] in ("-W", "-X"))
        ):
            continue
        if word[1:2] in ("W", "X"):
            continue
        options_found += [
            option for letter, option in _PYTHON_LETTERS_THAT_SHUT_OUT.items() if letter in word[1:]
        ]
    return " ".join(dict.fromkeys(options_found))


LAUNCHERS: tuple[Launcher, ...] = (
    plan_torchrun,
    plan_mpi,
    plan_srun,
    plan_horovodrun,
    plan_emulated_cluster,
    plan_bench_rank,
    plan_env,
    plan_prefix,
    plan_script_runner,
    plan_closed_door,
    plan_python,  # before plan_shell: `python` may itself be a shell script (a pyenv shim)
    plan_shell,
)


def plan_command(argv: tuple[str, ...], context: CommandContext) -> LaunchPlan:
    """`recognize`, and the warnings that hold for every launcher."""
    plan = recognize(argv, context)
    warnings = list(plan.warnings)
    if os.pathsep in context.injection.site_dir:
        reason = f"perfscope is installed in a path with a {os.pathsep!r}, which PYTHONPATH cannot hold"
        plan = replace(plan, unreachable=reason)
    if plan.unreachable:
        warnings.append(f"no rank will be recorded: {plan.unreachable}")
    # Ranks of a bench run and tasks of a Slurm step join the others by themselves.
    joins = _is_bench_rank(argv) or find_step_task(context.environment) is not None
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        if name in context.environment and not joins:
            warnings.append(
                f"perfscope is started once per rank ({name} is set); write it in front of the launcher: "
                "`perfscope run -- mpirun ...`"
            )
            break
    return replace(plan, warnings=tuple(warnings))
