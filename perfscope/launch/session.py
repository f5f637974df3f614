"""`perfscope run` from start to end: plan, make the run directory, start, wait, finish.

The order of duties: the command's behavior first, the record second. Nothing that fails after the
command has started changes its output or exit code.
"""

from __future__ import annotations

import functools
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfscope import __version__
from perfscope.children import ask_version
from perfscope.errors import EXIT_OWN_FAILURE, RunDirectoryError
from perfscope.launch import attachment, finish, joining, step_closing, step_tasks
from perfscope.launch.environment import Injection, ProbeOptions, is_nested, make_injection
from perfscope.launch.facts import Facts, HostDuties
from perfscope.launch.flight_dumps import keep_flight_dumps
from perfscope.launch.launchers import plan_command
from perfscope.launch.plan import CommandContext, LaunchPlan
from perfscope.launch.process import (
    EXIT_NOT_FOUND,
    Ending,
    SignalGate,
    hold_signals,
    replace_process,
    require_command,
    spawn,
    supervise,
)
from perfscope.launch.sampling import SamplerKeeper
from perfscope.launch.sightings import ProcessWatch, Sightings
from perfscope.launch.signal_probe import Witness
from perfscope.launch.slurm_job import StepTask, find_step_task, slurm_facts
from perfscope.launch.step_tasks import StepRoom
from perfscope.notices import say
from perfscope.rundir import layout, seal
from perfscope.rundir.files import short_path
from perfscope.rundir.inventory import INVENTORY, take_inventory
from perfscope.rundir.redact import allowed_environment, plain_argv, redact_argv, redact_labels, redact_text
from perfscope.rundir.shell import quote
from perfscope.rundir.writer import RUNS, create_run_dir, default_run_dir_name, write_json

_LAST_SIGNAL = 64
_MEASURE_LIMIT_S = 30.0  # for the local leader of a node, while the others wait


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where this `perfscope run` records, and with whom.

    Attributes:
        run_dir: absolute.
        joined: another perfscope made the run; this one leaves run.json's beginning and ending to it.
        room: what the tasks of a Slurm step know of each other; None outside of steps.
    """

    run_dir: Path
    joined: bool
    room: StepRoom | None = None

    @property
    def is_eldest(self) -> bool:
        """Whether what is done once on a host is this process's to do."""
        return self.room is None or self.room.task.task == self.room.task.local_leader


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What the user asked for.

    Attributes:
        command: the training command, at least one word.
        output: run directory wanted with -o; None = the default place.
        force: replace a run in `output`.
        name: the run's name; None = the script's.
        labels: free key-value pairs kept in run.json.
        probe: how to measure.
        host: what to find out about this host.
        options: what else was asked for and is to be kept in run.json.
        scheme: what a bench run is, for run.json; None for other commands. What the ranks leave in
            scheme.json replaces it when the command has ended.
        environment: variables to set for the command besides the caller's.
        keep_command_line: record the command as it is, secrets in it included.
        conclude: run directory, whether to stop -> closing lines, after a command that succeeded.
    """

    command: tuple[str, ...]
    output: Path | None = None
    force: bool = False
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    host: HostDuties = field(default_factory=HostDuties)
    options: Mapping[str, object] = field(default_factory=dict)
    scheme: Mapping[str, object] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_command_line: bool = False
    conclude: Callable[[Path, Callable[[], bool]], Sequence[str]] | None = None


def run_command(request: RunRequest, environment: Mapping[str, str]) -> int:
    """Run the command under perfscope; returns the code to exit with.

    Raises:
        CommandNotStarted: the command is missing or not executable.
        PerfscopeError: perfscope cannot do its part (no run directory); the command was not started.
    """
    environment = {**environment, **request.environment}
    require_command(request.command[0], environment)
    task = find_step_task(environment)
    if is_nested(environment):
        _run_nested(request, environment, task)
    with hold_signals() as gate:
        plan = _plan(request, environment)
        if task is None or task.is_first:
            for warning in plan.warnings:
                say(f"warning: {warning}")
        try:
            location = _open_run_dir(request, plan, environment, task)
        except RunDirectoryError:
            if task is None or task.task == task.local_leader:
                raise
            return EXIT_OWN_FAILURE  # the node's first task says why
        return _record(request, plan, environment, location, gate)


def _record(
    request: RunRequest, plan: LaunchPlan, environment: Mapping[str, str], location: _Place, gate: SignalGate
) -> int:
    """Start the command and record it in `location`; returns the code to exit with."""
    run_dir = location.run_dir
    injection = make_injection(run_dir, request.probe, environment)
    manifest = _first_manifest(request, plan, environment, location)
    if not location.joined:
        write_json(run_dir / layout.RUN_JSON, manifest)
    elif location.room is None:
        joining.announce(run_dir, plan.expected_ranks)
    host = request.host if location.is_eldest else HostDuties()
    facts = Facts(run_dir, host, wants_git=not location.joined, environment=environment)
    _measure(facts, location, request, gate)
    early = gate.stop_requested()
    if early is not None:  # Ctrl-C while we prepared: there is nothing to pass it on to
        _close_early(location, manifest, plan, Ending(128 + early, early), facts, gate)
        return 128 + early
    child_environment = {**environment, **injection.changes(environment), **plan.environment}
    keeper = _keep_sampler(run_dir, request, child_environment)
    watch = ProcessWatch(run_dir, injection.site_dir)
    witness = Witness()
    try:
        pid = spawn(plan.argv, child_environment, gate)
    except Exception:
        witness.dismiss()
        with suppress(RunDirectoryError):
            _close_early(location, manifest, plan, Ending(EXIT_NOT_FOUND, None), facts, gate)
        raise
    for begin in (facts.start, keeper.start, functools.partial(watch.begin, pid)):
        with suppress(RuntimeError):  # no thread to be had: the command's ending is what counts
            begin()
    ending = supervise(pid, gate, witness)
    facts.over.set()
    witness.dismiss()
    gate.drain()
    keeper.stop()
    seen = watch.end()
    try:
        if location.room is None:
            is_last = _finish(run_dir, manifest, plan, ending, facts, gate, location.joined, seen)
        else:
            is_last = _finish_task(location.room, manifest, plan, ending, facts, gate)
        if is_last and ending.code == 0 and request.conclude is not None:
            for line in request.conclude(run_dir, lambda: gate.stop_requested() is not None):
                say(line)
    except Exception as error:  # noqa: BLE001 - the command has run; its exit code is all that counts now
        say(f"the record is incomplete: {error}")
    keeper.bury()
    return ending.code


def describe_run(request: RunRequest, environment: Mapping[str, str]) -> str:
    """What `run_command` would do, as text for `--dry-run`. Creates nothing.

    Raises:
        CommandNotStarted: the command is missing or not executable.
    """
    environment = {**environment, **request.environment}
    require_command(request.command[0], environment)
    plan = _plan(request, environment)
    shared = environment.get(layout.ENV_RUN_DIR)
    task = find_step_task(environment)
    run_dir = request.output or Path(RUNS) / default_run_dir_name(_name(request, plan))
    if task is not None:
        default = Path(RUNS) / step_tasks.default_name(task, _name(request, plan))
        run_dir = step_tasks.step_directory(request.output, task) if request.output else default
    if shared and (request.output is None or is_nested(environment)):
        run_dir = Path(shared)
    injection = make_injection(_absolute(run_dir), request.probe, environment)
    changes = {**injection.changes(environment), **plan.environment}
    num_ranks = plan.expected_ranks if task is None else task.num_tasks * (plan.expected_ranks or 1)
    expected = "unknown" if num_ranks is None else str(num_ranks)
    changes = {**request.environment, **changes}
    lines = [
        f"launcher: {plan.launcher}",
        f"expected ranks: {expected}",
        f"run directory: {run_dir}",
        "environment:",
        *(f"  {name}={shlex.quote(value)}" for name, value in changes.items()),
        "command:",
        f"  {shlex.join(plan.argv)}",
        *(f"warning: {warning}" for warning in plan.warnings),
    ]
    return "\n".join(lines)


def planned_name(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a run of the command is called where no name is given: its script's name."""
    return _plan(RunRequest(command=tuple(command)), environment).name


def _keep_sampler(run_dir: Path, request: RunRequest, environment: Mapping[str, str]) -> SamplerKeeper:
    """The keeper of this host's sampler; without a place to write or a wish to sample it never starts one."""
    sampling = request.probe.as_dict()["sampling"]
    wanted = isinstance(sampling, dict)
    keeper = SamplerKeeper(
        run_dir / layout.HOSTS / layout.host_name(),
        sampling if isinstance(sampling, dict) else {},
        environment,
    )
    with suppress(OSError):  # without our word the ranks try themselves, and say why not
        if wanted:
            keeper.announce()
            return keeper
    keeper.stop()
    return keeper


def _plan(request: RunRequest, environment: Mapping[str, str]) -> LaunchPlan:
    # Launchers get names and our site directory; the run directory need not be known yet.
    injection: Injection = make_injection(Path(), request.probe, environment)
    context = CommandContext(environment=environment, injection=injection, mpi_version=ask_version)
    return plan_command(request.command, context)


def _measure(facts: Facts, location: _Place, request: RunRequest, gate: SignalGate) -> None:
    """Measure the idle host; of a node's tasks the local leader does, and the others wait for it."""
    facts.measure()
    if location.room is None or not request.host.measures:
        return
    if location.is_eldest:
        with suppress(OSError):  # the others go on after some time
            location.room.say("measured")
    else:
        location.room.await_measured(_MEASURE_LIMIT_S, lambda: gate.stop_requested() is not None)


def _open_run_dir(
    request: RunRequest, plan: LaunchPlan, environment: Mapping[str, str], task: StepTask | None
) -> _Place:
    shared = environment.get(layout.ENV_RUN_DIR)
    name = _name(request, plan)
    try:
        if task is not None and (request.output or not shared or joining.is_for_step(Path(shared))):
            room = _enter_step(
                task, request.output or (Path(shared) if shared else None), name, request.force
            )
            return _Place(run_dir=room.run_dir, joined=not room.is_owner, room=room)
        if request.output is None and shared:
            run_dir, joined = joining.open_shared(Path(shared))
            return _Place(run_dir=run_dir, joined=joined)
        return _Place(run_dir=create_run_dir(request.output, name=name, force=request.force), joined=False)
    except FileNotFoundError as error:
        raise RunDirectoryError("the current directory no longer exists; name a place with -o") from error


def _name(request: RunRequest, plan: LaunchPlan) -> str:
    """What the run is called, in run.json and in the name of its directory."""
    return redact_text(request.name or plan.name)


def _enter_step(task: StepTask, wanted: Path | None, name: str, force: bool) -> StepRoom:
    if wanted is None:
        return step_tasks.enter_default(task, Path.cwd(), name)
    directory = step_tasks.step_directory(_absolute(wanted), task)
    return step_tasks.enter(task, directory, name=name, force=force)


def _run_nested(request: RunRequest, environment: Mapping[str, str], task: StepTask | None) -> None:
    """Inside another `perfscope run`: that one records, this one is replaced by the command."""
    outer = environment[layout.ENV_RUN_DIR]
    if task is None or task.is_first:
        say(f"already inside a perfscope run ({outer}); running the command as part of it")
    plan = _plan(request, environment)
    replace_process(plan.argv, {**environment, **plan.environment})


def _first_manifest(
    request: RunRequest, plan: LaunchPlan, environment: Mapping[str, str], location: _Place
) -> dict[str, object]:
    num_tasks = location.room.task.num_tasks if location.room is not None else None
    return {
        "schema_version": layout.SCHEMA_VERSION,
        "perfscope_version": __version__,
        "origin": "run",
        "name": _name(request, plan),
        "labels": redact_labels(request.labels),
        "command": (plain_argv if request.keep_command_line else redact_argv)(request.command),
        "cwd": redact_text(str(Path.cwd())),
        "launcher": plan.launcher if num_tasks is None else "srun",
        "host": layout.host_name(),
        "start_unix_ns": time.time_ns(),
        "end_unix_ns": None,
        "status": "running",
        "exit": None,
        # A task is a rank, or a launcher of its own that says how many it starts.
        "expected_ranks": num_tasks * (plan.expected_ranks or 1) if num_tasks else plan.expected_ranks,
        "attached_ranks": 0,
        "attach_notes": [],
        "git": None,
        "packages": {},
        "environment": allowed_environment(environment),
        "options": {**request.probe.as_dict(), **request.options},
        "scheme": dict(request.scheme) if request.scheme is not None else None,
        "world_size": plan.world_size if num_tasks is None else None,
        "slurm": slurm_facts(environment) or None,
        seal.SEALS: seal.SEALS_VERSION,
    }


def _finish(
    run_dir: Path,
    manifest: dict[str, object],
    plan: LaunchPlan,
    ending: Ending,
    facts: Facts,
    gate: SignalGate,
    joined: bool,
    seen: Sightings,
) -> bool:
    """Compress, count, write run.json, tell the user. Returns whether the run is whole now."""
    end_ns = time.time_ns()
    if ending.code != 0:
        attachment.await_end(run_dir)
    problems = finish.compress_windows(
        attachment.read_ranks(run_dir), stop=lambda: gate.stop_requested() is not None
    )
    if ending.code != 0:
        problems += keep_flight_dumps(run_dir, facts.environment, manifest["start_unix_ns"])
    finish.await_sampler(run_dir / layout.HOSTS / layout.host_name())
    facts.end()
    if facts.problem:
        problems.append(facts.problem)
    with joining.exclusive(run_dir):
        ranks = attachment.read_ranks(run_dir)
        manifest = {**joining.newest(run_dir, manifest), "end_unix_ns": end_ns}
        reported = attachment.world_size(ranks)
        expected = joining.expected_ranks(manifest, plan.expected_ranks, reported)
        expected = attachment.without_helpers(ranks, expected)
        notes = attachment.explain(run_dir, ranks, expected, plan, ending, seen)
        if joined and ending.code != 0:
            notes.append(f"the launcher on {layout.host_name()} ended with exit code {ending.code}")
        manifest |= {
            "attached_ranks": attachment.num_attached(ranks),
            "expected_ranks": expected,
            "attach_notes": [redact_text(note) for note in notes],
            "world_size": reported or manifest.get("world_size"),
            "packages": attachment.packages(ranks),
            "scheme": finish.recorded_scheme(run_dir) or manifest.get("scheme"),
            "labels": attachment.labels(ranks, manifest.get("labels")),
        }
        if not joined:
            manifest["git"] = facts.git
        try:
            _close_manifest(run_dir, manifest, ending, joined)
        except RunDirectoryError as error:
            problems.insert(0, str(error))  # without run.json there is no run: say that before anything else
    num_attached = attachment.num_attached(ranks)
    _tell(run_dir, num_attached, expected, notes, problems)
    return not joined and 0 < num_attached == (expected or num_attached)


def _finish_task(
    room: StepRoom,
    manifest: dict[str, object],
    plan: LaunchPlan,
    ending: Ending,
    facts: Facts,
    gate: SignalGate,
) -> bool:
    """As `_finish`, for one of several tasks: what is this task's, and if it is the last one, the rest."""

    facts.end()
    problems = [facts.problem] if facts.problem else []
    if ending.code != 0:
        problems += keep_flight_dumps(room.run_dir, facts.environment, manifest["start_unix_ns"])
    own_end = step_closing.OwnEnd(ending=ending, git=facts.git, problems=tuple(problems))
    closed = step_closing.leave(room, manifest, plan, own_end, stop=lambda: gate.stop_requested() is not None)
    if closed is not None:
        _tell(room.run_dir, closed.attached, closed.expected, closed.notes, closed.problems)
    return closed is not None and closed.attached > 0


def _close_early(
    location: _Place,
    manifest: dict[str, object],
    plan: LaunchPlan,
    ending: Ending,
    facts: Facts,
    gate: SignalGate,
) -> None:
    """The command was not started."""
    if location.room is None:
        _close_manifest(location.run_dir, manifest, ending, location.joined)
        return
    with suppress(OSError):  # the others, or readers, find that this task left no ending
        _finish_task(location.room, manifest, plan, ending, facts, gate)


def _tell(
    run_dir: Path, attached: int, expected: int | None, notes: Sequence[str], problems: Sequence[str]
) -> None:
    """The closing lines."""
    say(attachment.verdict(attached, expected))
    for note in notes:
        say(note)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        say(f"the record is incomplete: {problems[0]}{more}")
    run_text = quote(str(short_path(run_dir)))
    say(f"run directory: {run_text}")
    if attached:
        say(f"next: perfscope report {run_text}")


def _close_manifest(run_dir: Path, manifest: dict[str, object], ending: Ending, joined: bool) -> None:
    """Write run.json for the last time. Who only joined leaves the ending to the run's owner."""
    if not joined:
        # srun says 128+N when a signal ended its tasks: scancel, the time limit, a requeue.
        cut = ending.signal is not None or 128 < ending.code <= 128 + _LAST_SIGNAL
        manifest |= {
            "status": "incomplete" if manifest.get("slurm") and cut else "finished",
            "exit": {"code": ending.code, "signal": ending.signal},
            "end_unix_ns": manifest["end_unix_ns"] or time.time_ns(),
        }
    manifest |= {INVENTORY: take_inventory(run_dir)}
    write_json(run_dir / layout.RUN_JSON, manifest)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links in the user's path are kept
