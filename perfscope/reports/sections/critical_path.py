"""Section "Critical path": what the duration of a step is made of, across ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import structs

from perfscope import units
from perfscope.analysis.critical.results import (
    CriticalPath,
    PathEntry,
    entries,
    never_on_path,
    shares_by_kind,
    total_of,
)
from perfscope.messages.lists import joined
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    Note,
    Section,
    StackedBars,
    Table,
    Unit,
    Value,
)

MOST_BARS = 12
MOST_ROWS = 20
MOST_RANKS = 12
LEAST_SHARE = 0.02  # of the path, to be worth a place in the sentence
LONGEST_NAME = 60

# Kinds of the path -> color of the bars. Communication of which the other ends are not known has the lighter
# color of waiting: it may be waiting in part.
_PARTS = (
    ("compute", ChartPart.of_step("compute")),
    ("transfer", ChartPart(key="exposed_comm", title="Transfer", hint="from the last rank's entry on")),
    ("comm", ChartPart(key="wait", title="Communication", hint="waiting included: the peers are unknown")),
    ("copy", ChartPart.of_step("copy")),
    ("input", ChartPart.of_step("input_wait")),
    ("optimizer", ChartPart.of_step("optimizer")),
    (
        "host",
        ChartPart(key="idle_host_wait", title="Host", hint="the device, or the call, waited for the host"),
    ),
    (
        "launch",
        ChartPart(
            key="idle_kernel_wait", title="Launch", hint="from the launch call to the start on the device"
        ),
    ),
    ("idle", ChartPart.of_step("idle", hint="no activity in the trace")),
)
_KIND_WORDS = {
    "compute": "compute",
    "transfer": "transfer",
    "comm": "communication",
    "copy": "copies",
    "input": "input wait",
    "optimizer": "optimizer",
    "host": "host",
    "launch": "launch",
    "idle": "idle",
}


def critical_path_section(
    paths: Sequence[CriticalPath], names: Mapping[str, str] | None = None
) -> Section | None:
    """None where no step was traced: other sections say so. `names` of layers: what to call them."""
    total = total_of(paths)
    if not paths or total <= 0:
        return None
    blocks: list[Block] = [_bars(paths), _table(paths, names)]
    blocks += _notes(paths)
    return Section(
        id="critical-path", title="Critical path", lead=path_sentence(paths, names), blocks=tuple(blocks)
    )


def path_sentence(paths: Sequence[CriticalPath], names: Mapping[str, str] | None = None) -> str:
    """``Largest parts of the critical path (path of 3.20 s): rank 2's fc6 backward (41 %), ...``"""
    step = "path" if len(paths) == 1 else "mean path"
    parts = [f"{what} ({units.format_ratio(ratio, 0)})" for what, ratio in _largest(paths, names)]
    head = "Largest parts of" if len(parts) > 1 else "Largest part of"
    length = units.format_ns(total_of(paths) / len(paths))
    return f"{head} the critical path ({step} of {length}): {', '.join(parts)}."


def _largest(paths: Sequence[CriticalPath], names: Mapping[str, str] | None) -> list[tuple[str, float]]:
    """At most three pieces of work in words, of all ranks together, with their shares."""
    alike: dict[str, list[PathEntry]] = defaultdict(list)
    for entry in _named(paths, names):
        alike[_sentence_words(entry)].append(entry)
    ranked = sorted(
        ((sum(path_entry.ratio for path_entry in group), what, group) for what, group in alike.items()),
        key=_rank,
    )
    many = len({rank for path in paths for rank in path.ranks}) > 1
    result: list[tuple[str, float]] = []
    for ratio, what, group in ranked[:3]:
        if ratio < LEAST_SHARE and result:
            break
        ranks = sorted({path_entry.rank for path_entry in group if path_entry.rank is not None})
        if many and len(ranks) == 1:
            result.append((f"rank {ranks[0]}'s {what}", ratio))
        else:
            result.append((f"{what} on {_ranks(ranks)}" if many and ranks else what, ratio))
    return result


def _named(paths: Sequence[CriticalPath], names: Mapping[str, str] | None) -> list[PathEntry]:
    titles = names or {}
    return [
        structs.replace(path_entry, layer=titles.get(path_entry.layer, path_entry.layer))
        if path_entry.layer
        else path_entry
        for path_entry in entries(paths)
    ]


def _sentence_words(entry: PathEntry) -> str:
    """Coarser than `entry_words` where names are those of operators and kernels, of which there are many."""
    if entry.kind == "host":
        return "host work"
    if entry.kind in ("compute", "copy", "launch", "comm") and not entry.layer:
        return _plain_words(entry)
    return entry_words(entry)


def _rank(item: tuple[float, str, list[PathEntry]]) -> tuple[float, str]:
    return -item[0], item[1]


def entry_words(entry: PathEntry) -> str:
    """What an entry is, without its rank: ``fc6 backward``, ``all_reduce transfer between h0 and h1``."""
    what = visible(entry.what, LONGEST_NAME)
    if entry.kind == "transfer":
        return f"{what} transfer{_between(entry.hosts)}"
    kind = _KIND_WORDS[entry.kind]
    if entry.layer:
        layer = visible(entry.layer, LONGEST_NAME)
        phase = entry.phase if entry.phase in ("forward", "backward") else kind
        return f"{layer} {phase}" if entry.kind in ("compute", "optimizer") else f"{layer} {kind}"
    if entry.kind == "host":
        return f"host work ({what})" if what else "host work between operators"
    if entry.kind in ("compute", "copy") and what:
        return what
    if entry.kind == "compute":
        return f"{entry.phase} without a layer" if entry.phase in ("forward", "backward") else "other compute"
    return f"{kind} ({what})" if what and entry.kind in ("launch", "comm") else kind


def _plain_words(entry: PathEntry) -> str:
    """What an entry is, its layer and its names left out: ``backward compute``."""
    phase = f"{entry.phase} " if entry.phase in ("forward", "backward") else ""
    return f"{phase}{_KIND_WORDS[entry.kind]}"


def _between(hosts: Sequence[str]) -> str:
    names = [visible(host) for host in hosts if host]
    if len(names) > 3:
        return f" over {len(names)} hosts"
    if len(names) > 1:
        return f" between {joined(names)}"
    return f" within {names[0]}" if names else ""


def _bars(paths: Sequence[CriticalPath]) -> StackedBars:
    drawn = sorted(sorted(paths, key=lambda path: -path.total_ns)[:MOST_BARS], key=_order)
    windows = {path.window for path in paths}
    caption = (
        "The parts of a bar add up to the step, from the end of the last rank back to the start of the step."
    )
    if len(paths) > len(drawn):
        caption += f" {len(paths):,} steps were traced; the {MOST_BARS} longest are drawn."
    bars, present = [], _present(paths)
    for path in drawn:
        times = {share.key: share.ns for share in shares_by_kind([path])}
        window = f"window {path.window}, " if len(windows) > 1 else ""
        values = tuple(times.get(kind, 0) for kind, _ in present)
        bars.append(Bar(label=f"{window}step {path.step}", values=values))
    return StackedBars(
        id="critical-path-chart",
        title="Composition of the critical path of each step",
        parts=tuple(part for _, part in present),
        bars=tuple(bars),
        caption=caption,
    )


def _present(paths: Sequence[CriticalPath]) -> list[tuple[str, ChartPart]]:
    kinds = {share.key for share in shares_by_kind(paths)}
    return [(kind, part) for kind, part in _PARTS if kind in kinds]


def _order(path: CriticalPath) -> tuple[int, int]:
    return path.window, path.step


def _table(paths: Sequence[CriticalPath], names: Mapping[str, str] | None) -> Table:
    every = _named(paths, names)
    columns = (
        Column(key="rank", title="Rank", unit=Unit.TEXT, primary=True),
        Column(key="what", title="What", primary=True),
        Column(key="layer", title="Layer", unit=Unit.CODE, primary=any(entry.layer for entry in every)),
        Column(key="time", title="Time per traced step", unit=Unit.TIME, primary=True, bar="compute"),
        Column(key="share", title="Of the path", unit=Unit.RATIO, primary=True),
        Column(key="count", title="Segments per step", unit=Unit.NUMBER),
    )
    rows: list[tuple[Value, ...]] = [
        (
            "group" if entry.rank is None else str(entry.rank),
            _plain_words(entry) if entry.layer else entry_words(entry),
            visible(entry.layer) if entry.layer else None,
            round(entry.ns / len(paths)),
            entry.ratio,
            entry.count / len(paths),
        )
        for entry in every[:MOST_ROWS]
    ]
    left_ratio = sum(entry.ratio for entry in every[MOST_ROWS:])
    caption = "A transfer belongs to its group: it begins when the last rank enters."
    if len(every) > MOST_ROWS:
        caption += f" {len(every) - MOST_ROWS:,} smaller entries make up {units.format_ratio(left_ratio)}."
    return Table(
        id="critical-path-table",
        title="The longest entries of the critical path",
        columns=columns,
        rows=tuple(rows),
        caption=caption,
        sorted_by=("time", True),
        print_rows=12,
        cards=True,
    )


def _notes(paths: Sequence[CriticalPath]) -> list[Note]:
    notes = []
    never = never_on_path(paths)
    if never:
        text = (
            f"Never on the critical path: {_ranks(never)}. "
            "Making only these ranks faster would not shorten the step."
        )
        notes.append(Note(text=text))
    uncertain = sum(path.num_uncertain for path in paths)
    if uncertain:
        times = "once" if uncertain == 1 else f"{uncertain:,} times"
        text = (
            f"The path goes {times} to a rank that may not have been the last to enter: by how much it was "
        )
        notes.append(
            Note(text=f"{text}later is within the clock-synchronization uncertainty.", tone="caution")
        )
    cut = [path for path in paths if not path.complete]
    if cut:
        steps = ", ".join(str(path.step) for path in cut[:MOST_RANKS])
        text = f"The path of step {steps} ends before the step's beginning: see “Not collected”."
        notes.append(Note(text=text, tone="caution"))
    return notes


def _ranks(ranks: Sequence[int]) -> str:
    """``ranks 1 and 3``, ``ranks 0 to 6``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) > MOST_RANKS:
        return f"{len(ranks):,} ranks"
    return f"ranks {joined(ranks)}"
