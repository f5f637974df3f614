"""Two runs, one beside the other: what changed, largest change first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from perfscope.analysis.results import CollectiveResult, RunAnalysis
from perfscope.analysis.study.causes import cause_of
from perfscope.analysis.study.gather import mapping
from perfscope.analysis.study.results import (
    PARTS,
    DiffRow,
    DiffSection,
    RunDiff,
    RunEntry,
    StudyRun,
)
from perfscope.analysis.study.step_parts import axes_of, difference, has_axes
from perfscope.analysis.study.step_results import StepPart
from perfscope.messages.comparison import diff as words
from perfscope.messages.comparison import exposed as exposed_comm
from perfscope.messages.comparison.doubt import REPEAT_QUIETLY, cannot_tell
from perfscope.messages.comparison.schemes import NOT_ALIKE, advised, unequal_work
from perfscope.messages.sentences import capital
from perfscope.messages.study import PART_TITLES
from perfscope.vocabulary.comparison import CannotTell
from perfscope.vocabulary.efficiency import PopFactor

Value = float | str | None
Side = dict[str, Value]
DURATION = "duration"
_OF_COLLECTIVE = {  # figures of each collective, with their units
    "calls": "count",
    "bytes": "bytes",
    DURATION: "time",
    "transfer": "time",
    "wait": "time",
}
SAME_NUMBER = 1e-5  # of a plain figure (losses): sums in another order differ by as much
SAME_SHARE = 5e-4  # shares are shown with one decimal of a percent
SAME_SPEED = 0.0005  # relative; less is not seen in the figures
CLOSE = 1.05  # of two runs' speeds: what noise may be
_FACTORS = (PopFactor.PARALLEL, PopFactor.LOAD_BALANCE, PopFactor.SERIALISATION, PopFactor.TRANSFER)
_SCHEME_LEFT_OUT = frozenset({"predicted", "places", "groups", "summary", "layout", "criterion"})


def run_diff(before: tuple[StudyRun, RunEntry], after: tuple[StudyRun, RunEntry]) -> RunDiff:
    """What changed from one run to the other: step, parts, layers, collectives, machine, surroundings."""
    (first, first_entry), (second, second_entry) = before, after
    analysis, other = first_entry.analysis, second_entry.analysis
    exposed = _exposed_section(first, second)
    apart = difference((first.label, first.step_parts), (second.label, second.step_parts))
    sections = [
        _mixed("step", _step(first, analysis), _step(second, other)),
        _parts_section(first, second),
        *([exposed] if exposed is not None else []),
        _section(
            "layers",
            _layers(analysis, exposed is not None),
            _layers(other, exposed is not None),
            "time",
        ),
        _collective_section(analysis, other),
        _mixed("machine", _machine(first, analysis), _machine(second, other)),
        _texts("packages", first.packages, second.packages),
        _texts("environment", first.environment, second.environment),
        _texts("options", first.options, second.options),
        _texts("command", {"command": _command(first)}, {"command": _command(second)}),
        _texts("scheme", _scheme(first, analysis), _scheme(second, other)),
    ]
    moved = _moved_most(first, second)
    if moved and apart is not None and len(apart.by_axis) > 1:
        moved += exposed_comm.in_parentheses(apart.by_axis)
    headline, doubt = _headline(first, second, moved), None
    if first.disturbed or second.disturbed:
        doubt = CannotTell.REFERENCE_DISTURBED if first.disturbed else CannotTell.RUNS_DISTURBED
        headline = cannot_tell(doubt, headline)
    return RunDiff(
        before=first.label,
        after=second.label,
        headline=headline,
        cannot_tell=doubt,
        sections=tuple(sections),
        difference=apart,
        moved=f"{capital(moved)}." if moved else "",
        action=_action(first, second) if doubt is None else REPEAT_QUIETLY,
    )


def _headline(first: StudyRun, second: StudyRun, moved: str) -> str:
    if first.samples_per_s and second.samples_per_s:
        speeds = (first.samples_per_s, second.samples_per_s)
        is_equal = abs(speeds[1] / speeds[0] - 1) < SAME_SPEED
        clause = words.speed(first.label, second.label, speeds, is_equal=is_equal)
    elif first.step_ns and second.step_ns:
        steps = (first.step_ns.median, second.step_ns.median)
        clause = words.step_time(first.label, second.label, steps)
    else:
        lacking = [run.label for run in (first, second) if run.step_ns is None]
        return words.speed_not_known(lacking or [first.label])
    unequal = unequal_work(
        [size for run in (first, second) if (size := run.effective_batch or run.batch)],
        [run.axes.get("synchrony", "") for run in (first, second)],
    )
    return f"{words.headline(f'{clause}, {NOT_ALIKE}' if unequal else clause, moved)} {unequal}".rstrip()


def _moved_most(first: StudyRun, second: StudyRun) -> str:
    if first.composition is None or second.composition is None:
        return ""
    longer = second.composition.step - first.composition.step
    typical = (first.typical_step_ns, second.typical_step_ns)
    if None not in typical and longer * ((typical[1] or 0.0) - (typical[0] or 0.0)) < 0:
        return words.moved_the_other_way((first.composition.step, second.composition.step))
    changes = {part: getattr(second.composition, part) - getattr(first.composition, part) for part in PARTS}
    part = max(PARTS, key=lambda name: abs(changes[name]))
    if not changes[part]:
        return ""
    explains = None
    if longer * changes[part] < 0:  # it goes against the step, which it does not explain
        part = max(PARTS, key=lambda name: math.copysign(1, longer) * changes[name])
        explains = longer
    is_scaling = first.world_size != second.world_size
    return words.moved_most(part, changes[part], explains=explains, is_scaling=is_scaling)


def _action(first: StudyRun, second: StudyRun) -> str:
    """What the slower run's report advises; of runs that are close, to repeat them."""
    if not first.samples_per_s or not second.samples_per_s:
        return ""
    ratio = second.samples_per_s / first.samples_per_s
    if 1 / CLOSE < ratio < CLOSE:
        return words.REPEAT
    slower = second if ratio < 1 else first
    cause = cause_of(slower)
    action = cause.text.action if cause else ""
    return advised(slower.label, action) if action else ""


def _step(run: StudyRun, analysis: RunAnalysis) -> dict[tuple[str, str], Value]:
    """(what, unit) -> figure."""
    step = run.step_ns
    figures: dict[tuple[str, str], Value] = {
        ("samples_per_s", "rate"): run.samples_per_s,
        ("slowest_rank", "time"): run.typical_step_ns if analysis.bench else None,
        ("median_step", "time"): step.median if step else None,
        ("fast_step", "time"): step.p10 if step else None,
        ("slow_step", "time"): step.p90 if step else None,
        ("num_steps", "count"): run.num_steps,
        ("num_ranks", "count"): run.world_size,
        ("num_hosts", "count"): run.num_hosts,
        ("batch", "count"): run.batch,
        ("effective_batch", "count"): run.effective_batch,
        ("exposed_comm", "ratio"): run.composition.share("exposed_comm") if run.composition else None,
        ("overhead", "ratio"): analysis.overhead_ratio,
        ("peak_memory", "bytes"): run.peak_memory_bytes,
        ("first_loss", "number"): run.first_loss,
        ("last_loss", "number"): run.last_loss,
        ("held_out_loss", "number"): run.held_out_loss,
    }
    efficiency = run.efficiency
    return {
        **{(words.STEP_ROWS[figure], unit): value for (figure, unit), value in figures.items()},
        **{
            (words.factor_row(factor), "ratio"): efficiency.value(factor) if efficiency else None
            for factor in _FACTORS
        },
        **{(words.sent_row(link.link_class), "bytes"): _sent(link) for link in run.links},
    }


def _sent(link: object) -> float | None:
    recorded = getattr(link, "recorded", None)
    return float(recorded) if recorded is not None else None


def _parts_section(first: StudyRun, second: StudyRun) -> DiffSection:
    """The parts add up to the step to the nanosecond, and so do their changes."""
    lacking = [run.label for run in (first, second) if not run.step_parts]
    if lacking:
        title, reason = words.SECTIONS["parts"], words.not_traced(lacking)
        return DiffSection(id="parts", title=title, rows=(), num_same=0, reason=reason)
    axes = _axes(first, second)
    sides = [_summed(run.step_parts, lambda part: _part_name(part, axes)) for run in (first, second)]
    for side, run in zip(sides, (first, second), strict=True):
        side["step"] = sum(part.ns for part in run.step_parts)
    return _explained("parts", sides, sides)


def _exposed_section(first: StudyRun, second: StudyRun) -> DiffSection | None:
    """Exposed communication by layer, and axis where there are several; None: not known by axis."""
    axes = _axes(first, second)
    if not axes:
        return None
    several = len(axes) > 1
    sides = [
        _summed(
            [part for part in run.step_parts if part.axis is not None],
            lambda part: exposed_comm.exposed_row(part.layer, part.reason, part.axis if several else None),
        )
        for run in (first, second)
    ]
    steps: list[Side] = [{"step": sum(part.ns for part in run.step_parts)} for run in (first, second)]
    return _explained("exposed", sides, steps)


def _explained(id_: str, sides: list[dict[str, Value]], steps: Sequence[Side]) -> DiffSection:
    """What only one side has takes no time in the other; each row with its share of the step's change."""
    for side, other in (sides, sides[::-1]):
        side |= {name: 0 for name in other if name not in side}
    section = _section(id_, sides[0], sides[1], "time")
    before, after = (step["step"] for step in steps)
    assert isinstance(before, int) and isinstance(after, int)
    longer = after - before
    rows = (
        replace(row, share=row.change / longer)
        if longer and row.change is not None and row.what != "step"
        else row
        for row in section.rows
    )
    return replace(section, rows=tuple(rows))


def _axes(first: StudyRun, second: StudyRun) -> list[str]:
    """Axes with exposed communication in either run; none where it is not divided in both."""
    if not first.step_parts or not second.step_parts:
        return []
    steps = (first.step_parts, second.step_parts)
    return axes_of(steps) if all(map(has_axes, steps)) else []


def _part_name(part: StepPart, axes: Sequence[str]) -> str:
    title = PART_TITLES[part.part]
    return exposed_comm.along(title, part.axis) if part.axis is not None and len(axes) > 1 else title


def _summed(parts: Iterable[StepPart], name_of: Callable[[StepPart], str]) -> dict[str, Value]:
    sums: dict[str, int] = defaultdict(int)
    for part in parts:
        sums[name_of(part)] += part.ns
    return dict(sums)


def _layers(analysis: RunAnalysis, has_exposed: bool) -> Side:
    """`has_exposed`: exposed communication has a section of its own."""
    side: Side = {}
    for layer in analysis.layers:
        name = layer.layer or exposed_comm.ROOT_LAYER
        side[f"{name}, forward"] = layer.forward_ns
        side[f"{name}, backward"] = layer.backward_ns
        if layer.exposed_comm_ns is not None and not has_exposed:
            side[exposed_comm.exposed_of(name)] = layer.exposed_comm_ns
    return side


def _collective_section(analysis: RunAnalysis, other: RunAnalysis) -> DiffSection:
    """Rows of one collective stand together, weighed by the time in its calls."""
    before, after = _collectives(analysis), _collectives(other)
    section = _mixed("collectives", before, after)
    moved: dict[str, float] = defaultdict(float)
    names = _collective_names(analysis) | _collective_names(other)
    for name in set(names.values()):
        sides = [side.get((words.collective_row(name, DURATION), "time")) for side in (before, after)]
        numbers = [value if isinstance(value, float) else 0.0 for value in sides]
        moved[name] = abs(numbers[1] - numbers[0])
    rows = [replace(row, weight=moved[names[row.what]]) for row in section.rows]
    rows.sort(key=lambda row: (-row.weight, names[row.what]))
    return replace(section, rows=tuple(rows))


def _name_of(collective: CollectiveResult) -> str:
    return words.collective_name(collective.collective, collective.group_size)


def _collective_names(analysis: RunAnalysis) -> dict[str, str]:
    """Row of `_collectives` -> which collective it is of."""
    names = {_name_of(collective) for collective in analysis.collectives}
    return {words.collective_row(name, figure): name for name in names for figure in _OF_COLLECTIVE}


def _collectives(analysis: RunAnalysis) -> dict[tuple[str, str], Value]:
    """Per step of a rank, by collective and group size: groups of two runs need not have the same names."""
    traced = [rank.num_traced_steps for rank in analysis.ranks if rank.num_traced_steps]
    steps = max(traced, default=0)
    sums: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for collective in analysis.collectives if steps else ():
        name, values = (
            _name_of(collective),
            (
                collective.count,
                collective.bytes,
                collective.duration_ns,
                collective.transfer_ns,
                collective.wait_ns,
            ),
        )
        for (figure, unit), value in zip(_OF_COLLECTIVE.items(), values, strict=True):
            sums[words.collective_row(name, figure), unit].append(None if value is None else value / steps)
    return {
        key: None if None in values else math.fsum(value for value in values if value is not None)
        for key, values in sums.items()
    }


def _machine(run: StudyRun, analysis: RunAnalysis) -> dict[tuple[str, str], Value]:
    facts = run.machine
    values: dict[tuple[str, str], Value] = {
        ("cpu", "text"): facts.cpu or None,
        ("num_cpus", "count"): facts.num_cpus,
        ("num_nodes", "count"): facts.num_nodes,
        ("memory", "bytes"): facts.memory_bytes,
        ("gpus", "text"): ", ".join(facts.gpus) or None,
        ("kernel", "text"): facts.kernel or None,
        ("hosts", "text"): ", ".join(facts.hosts) or None,
        ("cluster", "text"): facts.cluster or None,
        ("device", "text"): facts.device or None,
        ("threads", "count"): run.threads,
        ("disturbed", "text"): None if run.disturbed is None else "yes" if run.disturbed else "no",
    }
    side = {(words.MACHINE_ROWS[fact], unit): value for (fact, unit), value in values.items()}
    for number, disturbance in enumerate(run.disturbances[:3], 1):
        side[words.disturbance_row(number), "text"] = disturbance
    for ceiling in analysis.machine.ceilings if analysis.machine else ():
        unit = "rate" if ceiling.unit == "bytes_per_s" else "flops"
        side[
            words.ceiling_row(ceiling.host, ceiling.what, ceiling.where, ceiling.threads, ceiling.source),
            unit,
        ] = ceiling.value
    return side


def _command(run: StudyRun) -> str | None:
    return " ".join(run.command) or None


def _scheme(run: StudyRun, analysis: RunAnalysis) -> dict[str, object]:
    scheme = analysis.run.scheme.document if analysis.run.scheme is not None else {}
    facts: dict[str, object] = {
        str(name): value
        for name, value in scheme.items()
        if name not in _SCHEME_LEFT_OUT and not isinstance(value, Mapping)
    }
    nested = {
        f"{name}.{key}": value
        for name, entries in scheme.items()
        if name in ("axes", "mesh", "learning_rate")
        for key, value in mapping(entries).items()
    }
    git = analysis.run.git
    commit = {"git commit": git.commit, "git dirty": git.dirty} if git is not None else {}
    labels = {f"label {name}": value for name, value in run.labels.items()}
    version = {"perfscope": run.perfscope_version or None}
    return {**facts, **nested, **commit, **labels, **version}


def _texts(id_: str, before: Mapping[str, object], after: Mapping[str, object]) -> DiffSection:
    sides: list[Side] = [
        {name: None if value is None else _text(value) for name, value in side.items()}
        for side in (before, after)
    ]
    return _section(id_, sides[0], sides[1], "text")


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(item)}" for name, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)


def _section(id_: str, before: Side, after: Side, unit: str) -> DiffSection:
    names = dict.fromkeys((*before, *after))
    rows = (_row(name, unit, before.get(name), after.get(name), relative=False) for name in names)
    return _sorted(id_, rows)


def _mixed(
    id_: str,
    before: dict[tuple[str, str], Value],
    after: dict[tuple[str, str], Value],
) -> DiffSection:
    """Of several units, by (what, unit): ordered by relative change."""
    keys = dict.fromkeys((*before, *after))
    rows = (
        _row(what, unit, before.get((what, unit)), after.get((what, unit)), relative=True)
        for what, unit in keys
    )
    return _sorted(id_, rows)


def _sorted(id_: str, rows: Iterable[DiffRow | None]) -> DiffSection:
    every = list(rows)
    diffs = [row for row in every if row is not None]
    changed = [row for row in diffs if row.before != row.after]
    changed.sort(key=lambda row: -row.weight)  # stable: what belongs together stays in order
    reason = "" if diffs else words.NEITHER_HAS_ANY
    return DiffSection(
        id=id_,
        title=words.SECTIONS[id_],
        rows=tuple(changed),
        num_same=len(diffs) - len(changed),
        reason=reason,
    )


def _row(what: str, unit: str, first: Value, second: Value, *, relative: bool) -> DiffRow | None:
    """None where neither side knows it."""
    if first is None and second is None:
        return None
    only = "" if first is not None and second is not None else "after" if first is None else "before"
    if isinstance(first, str) or isinstance(second, str):
        return DiffRow(
            what=what, unit="text", before=first, after=second, change=None, ratio=None, weight=1.0, only=only
        )
    if first is None or second is None:
        alone = abs(first if first is not None else second or 0.0)
        weight = (alone if unit == "ratio" else 1.0) if relative else alone
        return DiffRow(
            what=what,
            unit=unit,
            before=first,
            after=second,
            change=None,
            ratio=None,
            weight=weight,
            only=only,
        )
    if _is_same(unit, first, second):
        second = first
    change = second - first
    ratio = second / first if first else None
    return DiffRow(
        what=what,
        unit=unit,
        before=first,
        after=second,
        change=change,
        ratio=ratio,
        weight=_relative(unit, first, change) if relative else abs(change),
    )


def _is_same(unit: str, first: float, second: float) -> bool:
    """Whether nothing of a change would be seen, or it is rounding."""
    if unit == "ratio":
        return abs(second - first) < SAME_SHARE
    return unit == "number" and math.isclose(first, second, rel_tol=SAME_NUMBER)


def _relative(unit: str, before: float, change: float) -> float:
    """How much a change weighs among rows of several units: relative, of shares as it is."""
    if unit == "ratio":
        return abs(change)
    return abs(change / before) if before else 1.0
