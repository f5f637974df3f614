"""Conducts the analysis of wait states: from the ranks' lines and the matched calls to `WaitAnalysis`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.analysis import intervals as iv
from perfscope.analysis.buckets import LayerParams
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.mainline import LineRecord
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.waits.common_start import SEND
from perfscope.analysis.waits.host_conditions import HostConditions
from perfscope.analysis.waits.line_table import Clocks, line_table
from perfscope.analysis.waits.results import GroupWait, RankWait, ReasonShare, WaitAnalysis, WaitCall
from perfscope.analysis.waits.splits import Sums, split_rows
from perfscope.analysis.waits.stragglers import RankStepTimes, input_waits, pattern_of, step_stragglers
from perfscope.analysis.waits.why_late import Late, why_late
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.lateness import LateReason

_MOST_REASONS = 5  # per collective and group


def analyze_waits(
    lines: LineRecord,
    matches: Sequence[JudgedCalls],
    clocks: Clocks,
    hosts: Mapping[int, str],
    *,
    around: HostConditions | None = None,
    times: Mapping[int, RankStepTimes] | None = None,
    world_size: int | None = None,
    parameters: Sequence[LayerParams] = (),
    loader: str = "data loader",
) -> WaitAnalysis:
    """Everything about who waited for whom, and why.

    Args:
        lines: every rank's steps.
        matches: `CommAnalysis.matches`.
        clocks: `CommAnalysis.clocks`.
        hosts: rank -> host.
        around: what the machine says; None = nothing was recorded of it.
        times: rank -> its always-on steps; None or empty where there are none.
        world_size: ranks of the job; None = not known.
        parameters: the model's (`ModelFacts.shapes`), to tell what gradient buckets carry; () = not known.
        loader: what the training gets its batches from.
    """
    steps_of = _steps_of(lines)
    missing = _missing(lines, matches, steps_of, world_size)
    sums = Sums.of(len(lines.layers))
    by_window = _by_window(matches)
    input_of = input_waits(times or {}, _steps_before_windows(lines))
    windows: list[tuple[int, Sequence[JudgedCalls], Sequence[Late]]] = []
    for window in sorted(by_window):
        table = line_table(lines.lines.get(window, {}), clocks)
        mine = by_window[window]
        judged = why_late(
            window, mine, table, lines.layers, hosts, around or HostConditions(), input_of, loader
        )
        sums.add(mine, table, clocks, lines.layers, parameters)
        windows.append((window, mine, judged))
    num_steps = max(steps_of.values(), default=0)
    calls = _calls(windows)
    stragglers = step_stragglers(windows)
    num_ranks = len({rank for match in matches if match.key.collective != SEND for rank in match.ranks})
    pattern = pattern_of(stragglers, max(num_ranks, 1), times or {})
    return WaitAnalysis(
        num_steps=num_steps,
        calls=calls,
        groups=_groups(calls, windows, max(num_steps, 1)),
        ranks=_ranks(windows, sums, steps_of),
        stragglers=stragglers,
        persistent=pattern.persistent,
        pattern=pattern.pattern,
        pattern_reason=pattern.reason,
        split=split_rows(sums, lines.layers, steps_of),
        num_uncertain=sum(call.uncertain for call in calls),
        missing=tuple(missing),
    )


def _steps_before_windows(lines: LineRecord) -> set[int]:
    return {
        line.steps[0].step - 1
        for lines_of_window in lines.lines.values()
        for line in lines_of_window.values()
        if line.steps
    }


def _by_window(matches: Sequence[JudgedCalls]) -> dict[int, list[JudgedCalls]]:
    by_window: dict[int, list[JudgedCalls]] = defaultdict(list)
    for calls in matches:
        if calls.enter.shape[1]:
            by_window[calls.window].append(calls)
    return by_window


def _steps_of(lines: LineRecord) -> dict[int, int]:
    """Rank -> its traced steps."""
    steps_of: dict[int, int] = defaultdict(int)
    for of_window in lines.lines.values():
        for rank, line in of_window.items():
            steps_of[rank] += len(line.steps)
    return steps_of


def _missing(
    lines: LineRecord, matches: Sequence[JudgedCalls], steps_of: Mapping[int, int], world_size: int | None
) -> list[Missing]:
    traced = len(steps_of)
    if not traced:
        return [missing_figure(Figure.WAITS, Cause.NO_STEP_TRACED)]
    missing = []
    if world_size is not None and traced < world_size:
        figure, cause = Figure.WAITS_FOR_UNTRACED_RANKS, Cause.NOT_ALL_RANKS_TRACED
        missing.append(missing_figure(figure, cause, count=traced, total=world_size))
    if traced < 2:
        cause = Cause.ONE_RANK_JOB if world_size == 1 else Cause.ONE_RANK
        return [*missing, missing_figure(Figure.WAITS, cause)]
    if not any(match.enter.shape[1] for match in matches):
        return [*missing, missing_figure(Figure.WAITS, Cause.NO_CALL_MATCHED)]
    uneven = [
        window
        for window, of_window in sorted(lines.lines.items())
        if len({tuple(step.step for step in line.steps) for line in of_window.values()}) > 1
    ]
    if uneven:
        missing.append(missing_figure(Figure.SOME_WAITS, Cause.OTHER_STEPS_TRACED, windows=tuple(uneven)))
    unlined = {
        rank for match in matches for rank in match.ranks if rank not in lines.lines.get(match.window, {})
    }
    if unlined:
        missing.append(missing_figure(Figure.LATE_CAUSES, Cause.NO_STEP_IN_WINDOW, ranks=sorted(unlined)))
    return missing


def _calls(
    windows: Sequence[tuple[int, Sequence[JudgedCalls], Sequence[Late]]],
) -> tuple[WaitCall, ...]:
    result: list[WaitCall] = []
    for window, matches, judged in windows:
        for match, late in zip(matches, judged, strict=True):
            result.extend(_of_match(window, match, late))
    return tuple(sorted(result, key=lambda call: (call.window, call.start_ns, call.group, call.seq)))


def _of_match(window: int, match: JudgedCalls, late: Late) -> list[WaitCall]:
    at = np.arange(match.enter.shape[1])
    step = match.step[match.late_row, at].tolist()
    start = match.enter.min(axis=0).tolist()
    wait = np.rint(match.wait.mean(axis=0)).astype(np.int64).tolist()
    worst, transfer = match.wait.max(axis=0).tolist(), match.transfer.tolist()
    behind, rows, seq = late.lateness.tolist(), match.late_row.tolist(), match.seq.tolist()
    is_late, uncertain = late.is_late.tolist(), late.uncertain.tolist()
    return [
        WaitCall(
            window=window,
            step=step[call],
            seq=seq[call],
            collective=match.key.collective,
            group=match.key.group,
            ranks=match.ranks,
            start_ns=start[call],
            wait_ns=wait[call],
            max_wait_ns=worst[call],
            transfer_ns=transfer[call],
            late_rank=match.ranks[rows[call]] if is_late[call] else None,
            lateness_ns=behind[call],
            cause=late.causes.get(call),
            uncertain=uncertain[call],
        )
        for call in range(len(seq))
    ]


class _Share(Struct, eq=False):
    """One reason so far."""

    num_calls: int = 0
    wait: int = 0
    worst: int = -1
    sentence: str = ""
    meanwhile: str = ""


class _Group(Struct, eq=False):
    """One collective on one group so far."""

    ranks: set[int] = set()
    num_calls: int = 0
    rank_wait: int = 0  # summed over ranks and calls
    transfer: int = 0  # likewise
    worst: int = 0
    late: Counter[int] = field(default_factory=Counter)
    num_uncertain: int = 0
    call_wait: int = 0  # mean rank's, summed over calls
    reasons: dict[tuple[LateReason, int, str | None, str | None], _Share] = field(
        default_factory=lambda: defaultdict(_Share)
    )


def _groups(
    calls: Sequence[WaitCall],
    windows: Sequence[tuple[int, Sequence[JudgedCalls], Sequence[Late]]],
    num_steps: int,
) -> tuple[GroupWait, ...]:
    groups: dict[tuple[str, str], _Group] = defaultdict(_Group)
    for _, matches, _ in windows:
        for match in matches:
            group = groups[match.key.collective, match.key.group]
            group.ranks.update(match.ranks)
            group.rank_wait += int(match.wait.sum())
            group.transfer += int(match.transfer.sum()) * len(match.ranks)
    for call in calls:
        _count(groups[call.collective, call.group], call)
    result = [
        GroupWait(
            collective=collective,
            group=name,
            num_ranks=len(group.ranks),
            num_calls=group.num_calls,
            wait_ns=round(group.rank_wait / len(group.ranks) / num_steps),
            transfer_ns=round(group.transfer / len(group.ranks) / num_steps),
            max_wait_ns=group.worst,
            late_counts=tuple(sorted(group.late.items(), key=lambda item: (-item[1], item[0]))),
            num_uncertain=group.num_uncertain,
            reasons=_reasons(group),
        )
        for (collective, name), group in groups.items()
    ]
    return tuple(sorted(result, key=lambda wait: (-wait.wait_ns, wait.collective, wait.group)))


def _count(group: _Group, call: WaitCall) -> None:
    group.num_calls += 1
    group.worst = max(group.worst, call.max_wait_ns)
    group.num_uncertain += call.uncertain
    group.call_wait += call.wait_ns
    if call.late_rank is not None:
        group.late[call.late_rank] += 1
    cause = call.cause
    if cause is None:
        return
    share = group.reasons[cause.reason, cause.rank, cause.layer, cause.phase]
    share.num_calls += 1
    share.wait += call.wait_ns
    if call.wait_ns > share.worst:
        share.worst, share.sentence, share.meanwhile = call.wait_ns, cause.sentence, cause.meanwhile


def _reasons(group: _Group) -> tuple[ReasonShare, ...]:
    ordered = sorted(group.reasons.items(), key=lambda item: -item[1].wait)
    return tuple(
        ReasonShare(
            reason=reason,
            rank=rank,
            layer=layer,
            phase=phase,
            num_calls=share.num_calls,
            wait_ns=share.wait,
            share=share.wait / group.call_wait,
            sentence=share.sentence,
            meanwhile=share.meanwhile,
        )
        for (reason, rank, layer, phase), share in ordered[:_MOST_REASONS]
        if share.wait
    )


def _ranks(
    windows: Sequence[tuple[int, Sequence[JudgedCalls], Sequence[Late]]],
    sums: Sums,
    steps_of: Mapping[int, int],
) -> tuple[RankWait, ...]:
    times: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for _, matches, judged in windows:
        behind: dict[int, list[tuple[Int64, Int64]]] = defaultdict(list)
        for match, late in zip(matches, judged, strict=True):
            if match.key.collective == SEND:
                continue
            for row in distinct(match.late_row[late.is_late]).tolist():
                mine = late.is_late & (match.late_row == row)
                times[match.ranks[row]] += int(mine.sum())
                entered = match.last_entry[mine]
                behind[match.ranks[row]].append((entered - late.lateness[mine], entered))
        for rank, parts in behind.items():
            since, until = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            held[rank] += iv.length(iv.union(since, until))
    return tuple(
        RankWait(
            rank=rank,
            wait_ns=round(sums.wait[rank] / max(steps_of.get(rank, 0), 1)),
            exposed_wait_ns=round(sums.exposed_wait[rank] / max(steps_of.get(rank, 0), 1)),
            num_late=times[rank],
            held_ns=round(held[rank] / max(steps_of.get(rank, 0), 1)),
        )
        for rank in sorted(sums.wait)
    )
