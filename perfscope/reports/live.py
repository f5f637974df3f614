"""A run that still goes on, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfscope import units
from perfscope.analysis.live import LiveHost, LiveRank, LiveRun
from perfscope.messages.hangs import seconds_text
from perfscope.messages.lists import counted, listed
from perfscope.reports.display import visible
from perfscope.reports.terminal import Style, cells, head, pad, wrapped
from perfscope.reports.values import Unit, format_value

_TITLES = ("Rank", "Host", "Steps", "Step", "Samples/s", "Last step", "")
_RIGHT = (0, 2, 3, 4, 5)  # columns of numbers
_MOST_HANGING, _MOST_HOSTS, _MOST_UNREADABLE = 3, 2, 3  # in a line
_THROTTLED = 0.01  # less of the time is not shown
_TREND = 0.03  # a change of the step time below it is not shown


def render_live(
    run: LiveRun, standing: Mapping[int, str], *, width: int, most: int, now_s: float, color: bool = False
) -> str:
    """The run as text, with a newline at the end.

    Args:
        run: as it is now.
        standing: rank -> where it stands, of ranks that hang.
        width: columns.
        most: ranks that are shown: those that hang, then the slowest.
        now_s: Unix time, seconds.
        color: with terminal styling.
    """
    style = Style(color)
    lines = [
        *_top(run, style, width, now_s),
        *_hangs(run, standing, style, width),
        *_unreadable(run, width),
        "",
    ]
    lines += [*_ranks(run, style, width, most), *_hosts(run, style, width)]
    return "\n".join(lines) + "\n"


def _top(run: LiveRun, style: Style, width: int, now_s: float) -> Iterator[str]:
    num = len(run.ranks)
    of = f" of {run.expected}" if run.expected and run.expected != num else ""
    since = "" if run.started_unix_ns is None else seconds_text(now_s - run.started_unix_ns / 1e9)
    state = f"for {since}" if run.is_open else "has ended"
    title = f"{visible(run.name)}: {counted(num, 'rank')}{of}, {state}"
    yield style.bold(head(title, width))
    if run.step_ns is not None:
        steps = max(rank.steps for rank in run.ranks)
        rate = "" if run.samples_per_s is None else f"; {_rate(run.samples_per_s)} samples/s"
        yield head(f"step {steps:,}; {units.format_ns(run.step_ns)} on the slowest rank{rate}", width)
    else:
        yield head("no rank has finished a step yet", width)


def _hangs(run: LiveRun, standing: Mapping[int, str], style: Style, width: int) -> Iterator[str]:
    for rank in run.hanging:
        usual = "" if rank.step_ns is None else f" (a step usually takes {units.format_ns(rank.step_ns)})"
        text = f"! {_hang(rank)}{usual}"
        location = visible(standing.get(rank.rank, ""))
        yield from map(style.bold, wrapped(f"{text}; {location}" if location else text, width, first=""))


def _hang(rank: LiveRank) -> str:
    """Such as "rank 1 has made no step for 75 s"."""
    what = "made no step" if rank.age_s is not None else "not made a first step"
    since_s = rank.silent_s if rank.age_s is None else rank.age_s
    return f"rank {rank.rank} has {what}{'' if since_s is None else f' for {seconds_text(since_s)}'}"


def _unreadable(run: LiveRun, width: int) -> Iterator[str]:
    if run.unreadable:
        yield head(f"! {unreadable_text(run.unreadable)}", width)


def unreadable_text(paths: Sequence[str]) -> str:
    """In words, what of a run cannot be read: paths below its directory."""
    names = listed([visible(path) for path in paths], _MOST_UNREADABLE)
    return f"{names} cannot be read: what is shown of it is from before"


def _ranks(run: LiveRun, style: Style, width: int, most: int) -> Iterator[str]:
    selected = sorted(run.ranks, key=lambda rank: (not rank.hangs, -(rank.step_ns or 0), rank.rank))[:most]
    rows = [_TITLES, *map(_row, selected)]
    sizes = [max(cells(row[at]) for row in rows) for at in range(len(_TITLES))]
    for number, row in enumerate(rows):
        line = "  ".join(pad(text, sizes[at], right=at in _RIGHT) for at, text in enumerate(row))
        line = head(line.rstrip(), width)
        yield style.quiet(line) if number == 0 else line
    if len(run.ranks) > most:
        more = len(run.ranks) - most
        shown = f"{counted(more, 'faster rank')} {'is' if more == 1 else 'are'} not shown (--ranks)"
        yield style.quiet(head(shown, width))


def _row(rank: LiveRank) -> tuple[str, ...]:
    state = (
        "hangs" if rank.hangs else "ended" if rank.finished else "died" if rank.lost else _trend(rank.trend)
    )
    return (
        str(rank.rank),
        visible(rank.host),
        units.format_count(rank.steps),
        units.format_ns(rank.step_ns),
        _rate(rank.samples_per_s),
        units.MISSING if rank.age_s is None else f"{seconds_text(rank.age_s)} ago",
        state,
    )


def _rate(samples_per_s: float | None) -> str:
    """Three digits; of slow training the two that count, never 0."""
    is_slow = samples_per_s is not None and samples_per_s < 1
    return format_value(Unit.FACTOR if is_slow else Unit.SAMPLES, samples_per_s)


def _trend(trend: float | None) -> str:
    if trend is None or abs(trend) < _TREND:
        return ""
    return f"{'slower' if trend > 0 else 'faster'} by {units.format_ratio(abs(trend), 0)}"


def _hosts(run: LiveRun, style: Style, width: int) -> Iterator[str]:
    lines = [line for host in run.hosts if (line := _host(host))]
    if lines:
        yield ""
        yield from (style.quiet(text) for line in lines for text in wrapped(line, width, first=""))


def live_line(run: LiveRun, now_s: float) -> str:
    """How the run goes, in one line.

    Args:
        run: as it is now.
        now_s: Unix time, seconds.
    """
    since = "" if run.started_unix_ns is None else f"{seconds_text(now_s - run.started_unix_ns / 1e9)}: "
    speed = ", ".join(_speed(run)) or "no rank has finished a step yet"
    hangs = [_hang(rank) for rank in run.hanging[:_MOST_HANGING]]
    more = len(run.hanging) - _MOST_HANGING
    hangs += [f"and {more} more"] if more > 0 else []
    hosts = [text for host in run.hosts[:_MOST_HOSTS] if (text := _host(host))]
    return "; ".join([f"{since}{speed}", *hangs, *hosts])


def _speed(run: LiveRun) -> Iterator[str]:
    slowest = max(run.ranks, key=lambda rank: rank.step_ns or 0, default=None)
    if slowest is None or slowest.step_ns is None:
        return
    trend = _trend(slowest.trend)
    yield f"step {max(rank.steps for rank in run.ranks):,}"
    yield f"{units.format_ns(run.step_ns)} a step{f' ({trend})' if trend else ''}"
    if run.samples_per_s is not None:
        yield f"{_rate(run.samples_per_s)} samples/s"
    if len(run.ranks) > 1:
        yield f"slowest rank {slowest.rank}"


def _host(host: LiveHost) -> str:
    parts = []
    if host.cpus_busy is not None:
        neighbors = f", {host.others_cpus:.1f} with other processes" if host.others_cpus else ""
        parts.append(f"{host.cpus_busy:.1f} CPUs busy{neighbors}")
    if host.memory_bytes is not None:
        of = units.format_bytes(host.memory_total_bytes)
        parts.append(f"memory {units.format_bytes(host.memory_bytes)} of {of}")
    if host.received_bytes_per_s is not None and host.sent_bytes_per_s is not None:
        received, sent = map(units.format_rate, (host.received_bytes_per_s, host.sent_bytes_per_s))
        parts.append(f"network {received} in, {sent} out")
    parts += [f"GPU {gpu} {units.format_ratio(busy, 0)}" for gpu, busy in host.gpu_busy_ratio.items()]
    if (host.throttled_ratio or 0) >= _THROTTLED:
        parts.append(f"held back by the CPU quota {units.format_ratio(host.throttled_ratio, 0)} of the time")
    return f"{visible(host.host)}: {'; '.join(parts)}" if parts else ""
