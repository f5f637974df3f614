"""What differed around the runs, and what of it can explain a slower step by itself.

A measured quantity is weighty when it lies on the slower side, further than runs of one side differ among
themselves (its interval leaves out zero), and far enough to matter. A setting is weighty when it is one
that decides speed and no run of one side has a value of the other side. Commits and commands are expected
to differ: they are what is checked.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from perfscope.gate.explain.sides import Figure, Shift, Sides
from perfscope.gate.records import RunFigures
from perfscope.gate.results import Difference
from perfscope.messages.gate import explanation as words
from perfscope.messages.lists import first_of
from perfscope.units import format_ratio, format_si

CLOCK = 0.03  # a clock lower by less than this share explains nothing
FAULTS = "page faults"
SHARE = 0.01  # of the steps' time; likewise
CPUS = 0.02  # of the CPUs that neighbors take; likewise
# Different in any two launches, and nothing of speed in them.
_NO_SETTING_NAMES = """
RANK LOCAL_RANK NODE_RANK GROUP_RANK ROLE_RANK MASTER_ADDR MASTER_PORT PYTHONHASHSEED PMI_RANK
PMIX_RANK OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_RANK HOROVOD_RANK SLURM_JOB_ID
SLURM_STEP_ID SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_JOB_NODELIST PBS_JOBID LSB_JOBID
FLUX_JOB_ID TORCHELASTIC_RESTART_COUNT
"""
_NO_SETTING = frozenset(_NO_SETTING_NAMES.split())
_LIGHT_SETTINGS_NAMES = """
PYTHONUNBUFFERED TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCHELASTIC_MAX_RESTARTS
"""
_LIGHT_SETTINGS = frozenset(_LIGHT_SETTINGS_NAMES.split())
_HEAVY_OPTIONS = frozenset({"sampling"})  # stacks sampled during untraced steps cost time in them
_SHORT_COMMIT, _SHORT_TEXT = 12, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What differed.

    Attributes:
        differences: weighty ones first.
        explained: share of the base's step by which the weighty quantities would slow it down.
        settings: weighty differences whose effect has no figure (a version, a host, a variable).
        faults: share of the base's step by which more page faults can slow it down at most. Apart from
            `explained`: a change of the code may be what makes more of them.
    """

    differences: tuple[Difference, ...] = ()
    explained: float = 0.0
    settings: tuple[Difference, ...] = ()
    faults: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    what: str  # of words.QUANTITIES
    figure: Figure
    format: Callable[[float], str]
    cost: Callable[[Shift], float]  # share of the step; positive = slower
    least: float


def around(sides: Sides) -> Around:
    """What differed between the two sides."""
    differences: list[Difference] = []
    explained = faults = 0.0
    pressed_by_others = _pressed_by_others(sides)
    for quantity in _quantities(sides):
        shift = sides.shift(quantity.figure)
        if shift is None:
            continue
        cost = quantity.cost(shift)
        if not shift.is_certain or abs(cost) < quantity.least:
            continue
        weighty = cost > 0 and (quantity.what != "pressure" or pressed_by_others)
        if quantity.what == FAULTS:
            faults = max(cost, 0.0)
        elif weighty and quantity.what != "pressure":  # which says of what the others are counted for
            explained += cost
        differences.append(_measured(quantity, shift, weighty))
    settings = _settings(sides)
    differences += settings
    return Around(
        differences=tuple(sorted(differences, key=lambda difference: not difference.weighty)),
        explained=explained,
        settings=tuple(difference for difference in settings if difference.weighty),
        faults=faults,
    )


def _quantities(sides: Sides) -> Iterable[_Quantity]:
    cpus = max((run.fingerprint.num_cpus or 1 for run in sides.runs), default=1)

    def clock(shift: Shift) -> float:
        return shift.base / shift.head - 1 if shift.head > 0 else 0.0

    def lost(shift: Shift) -> float:
        return shift.change / max(0.05, 1 - shift.head)

    yield _Quantity(
        what="clock",
        figure=lambda run: run.surroundings.cpu_hz,
        format=_hertz,
        cost=clock,
        least=CLOCK,
    )
    yield _Quantity(
        what="gpu clock",
        figure=lambda run: run.surroundings.gpu_hz,
        format=_hertz,
        cost=clock,
        least=CLOCK,
    )
    yield _Quantity(
        what="throttling",
        figure=lambda run: run.surroundings.throttled_ratio,
        format=format_ratio,
        cost=lost,
        least=SHARE,
    )
    yield _Quantity(
        what="steal",
        figure=lambda run: run.surroundings.steal_ratio,
        format=format_ratio,
        cost=lost,
        least=SHARE,
    )
    yield _Quantity(
        what="neighbours",
        figure=lambda run: run.surroundings.neighbour_cpus,
        format=lambda value: f"{value:.2f}",
        cost=lambda shift: shift.change / cpus,
        least=CPUS,
    )
    yield _Quantity(
        what="pressure",
        figure=lambda run: run.surroundings.pressure_ratio,
        format=format_ratio,
        cost=lambda shift: shift.change,
        least=5 * SHARE,
    )
    yield _Quantity(
        what=FAULTS,
        figure=lambda run: run.surroundings.fault_ratio,
        format=format_ratio,
        cost=lost,
        least=SHARE,
    )


def _hertz(value: float) -> str:
    return format_si(value, "Hz")


def _pressed_by_others(sides: Sides) -> bool:
    """Waiting for a CPU may be the training's own doing (more threads), unless others took CPUs."""
    neighbours = sides.shift(lambda run: run.surroundings.neighbour_cpus)
    steal = sides.shift(lambda run: run.surroundings.steal_ratio)
    return any(shift is not None and shift.low > 0 for shift in (neighbours, steal))


def _measured(quantity: _Quantity, shift: Shift, weighty: bool) -> Difference:
    base, head = quantity.format(shift.base), quantity.format(shift.head)
    return _difference(quantity.what, words.QUANTITIES[quantity.what], (base, head), weighty)


def _difference(what: str, title: str, values: tuple[str, str], weighty: bool) -> Difference:
    base, head = values
    text = words.difference(title, base, head)
    return Difference(what=what, base=base, head=head, weighty=weighty, text=text)


def _settings(sides: Sides) -> list[Difference]:
    differences = [
        _setting(sides, "hosts", lambda run: ", ".join(run.surroundings.hosts), one_each=True),
        _setting(sides, "kernel", lambda run: run.surroundings.kernel),
        _command(sides),
        _setting(sides, "commit", lambda run: run.surroundings.commit[:_SHORT_COMMIT], heavy=False),
        _setting(sides, "uncommitted changes", _dirty, heavy=False),
    ]
    for kind, of in (
        ("package", lambda run: run.surroundings.packages),
        ("environment", lambda run: run.surroundings.environment),
        ("option", lambda run: run.surroundings.options),
    ):
        for name in _names(sides, of):
            if kind == "environment" and name in _NO_SETTING:
                continue
            differences.append(
                _setting(
                    sides,
                    f"{kind} {name}",
                    lambda run, of=of, name=name: str(of(run)[name]) if name in of(run) else words.UNSET,  # type: ignore[misc]
                    heavy=name in _HEAVY_OPTIONS if kind == "option" else name not in _LIGHT_SETTINGS,
                    title=f"{words.KINDS[kind]} {name}",
                )
            )
    return [difference for difference in differences if difference is not None]


def _names(sides: Sides, of: Callable[[RunFigures], Mapping[str, object]]) -> list[str]:
    return sorted({name for run in sides.runs for name in of(run)})


def _setting(
    sides: Sides,
    what: str,
    value: Callable[[RunFigures], str],
    *,
    heavy: bool = True,
    one_each: bool = False,
    title: str = "",
) -> Difference | None:
    """None where both sides have the same values, or one of them none that is known.

    Args:
        heavy: it decides speed.
        one_each: weighty only where each side has a single value: of several, the noise of a side tells.
        title: where it is not that of words.SETTINGS.
    """
    base = {setting for run in sides.base if (setting := value(run))}
    head = {setting for run in sides.head if (setting := value(run))}
    if not base or not head or base == head:
        return None
    weighty = heavy and not base & head and (not one_each or len(base) == len(head) == 1)
    return _difference(what, title or words.SETTINGS[what], (_listed(base), _listed(head)), weighty)


def _listed(values: Iterable[str]) -> str:
    text = first_of(sorted(values), 3)
    return text if len(text) <= _SHORT_TEXT else f"{text[: _SHORT_TEXT - 1]}…"


def _dirty(run: RunFigures) -> str:
    return {True: "yes", False: "no", None: ""}[run.surroundings.dirty]


def _command(sides: Sides) -> Difference | None:
    """Of two single commands only the words that differ are listed."""
    base = {run.surroundings.command for run in sides.base if run.surroundings.command}
    head = {run.surroundings.command for run in sides.head if run.surroundings.command}
    if len(base) != 1 or len(head) != 1:
        return _setting(sides, "command", lambda run: shlex.join(run.surroundings.command), heavy=False)
    (first,), (second,) = base, head
    if first == second:
        return None
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    tail = 0
    while tail < min(len(first), len(second)) - same and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    # The word before tells whose value it is: `--amount 0` says more than `0`.
    start = max(0, same - 1) if same and first[same - 1].startswith("-") else same
    before, after = (
        shlex.join(command[start : len(command) - tail]) or words.NOTHING for command in (first, second)
    )
    return _difference("command", words.SETTINGS["command"], (_listed([before]), _listed([after])), False)
