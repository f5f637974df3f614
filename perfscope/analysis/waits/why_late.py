"""Why the rank that entered last was late.

Each member's main line is followed from where all of them were last at the same place (`common_start`) to
its entry. What the late rank spent more on than the lower median of the others did is the reason: the parts'
excesses add up to about its lateness, and the largest is named, if it is a third of it at least. Of
computation it is the layer and phase with the largest excess. Where the excess is communication with another
rank else, in which the rank waited itself, the reason is that other rank's, and so on up the chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64
from perfscope.analysis.mainline import (
    LINE_COMPUTE,
    LINE_COPY,
    LINE_EXPOSED,
    LINE_IDLE,
    LINE_INPUT,
    LINE_OPTIMIZER,
)
from perfscope.analysis.waits.common_start import SEND, CommonStart, common_starts
from perfscope.analysis.waits.excess import (
    SKEW,
    UNTRACED,
    Computing,
    Excess,
    LayerExcess,
    excesses,
    layer_excesses,
)
from perfscope.analysis.waits.host_conditions import HostConditions
from perfscope.analysis.waits.line_table import LineTable
from perfscope.analysis.waits.results import Hop, LateCause
from perfscope.messages.lateness import Lateness, late_sentence
from perfscope.messages.stragglers import through
from perfscope.rundir.schema import PHASES
from perfscope.vocabulary.lateness import LateReason

_CLEAR = 1 / 3  # of the lateness; a smaller excess explains nothing
_TOGETHER = 1 / 4  # of the mean wait; who is that little behind the median came with the others
_STRETCHED = 1.05  # computation too takes longer, by so much at least, where the operating system is to blame
_LITTLE = 0.1  # a share of computation in the others' time too small to show whether it is stretched
_SINGLED_OUT = 0.6  # share of its host's lateness that one rank has, where chance is not to blame
_MOST_HOPS = 6
_SIMPLE = {
    LINE_OPTIMIZER: LateReason.OPTIMIZER,
    LINE_COPY: LateReason.COPY,
    LINE_INPUT: LateReason.INPUT_WAIT,
    LINE_IDLE: LateReason.IDLE,
    UNTRACED: LateReason.UNTRACED,
}


class Late(Struct, frozen=True, kw_only=True, eq=False):
    """Who was late to the calls of one match, and why; arrays of shape (calls,)."""

    is_late: NDArray[np.bool_]  # a rank was, and it is known which
    uncertain: NDArray[np.bool_]  # a rank may have been; the hosts' clocks leave open which
    lateness: Int64
    causes: Mapping[int, LateCause]  # call -> why; without those whose members are not all traced


class _Scene(Struct, kw_only=True, eq=False):
    """One window, and everything there is to know about it."""

    window: int
    matches: Sequence[JudgedCalls]
    table: LineTable
    layers: tuple[str, ...]
    hosts: Mapping[int, str]
    around: HostConditions
    input_of: Mapping[int, Mapping[int, int]]
    loader: str
    late: Sequence[NDArray[np.bool_]]
    starts: Mapping[int, CommonStart]
    excess: Mapping[int, Excess]
    singled_out: frozenset[int] = frozenset()
    causes: dict[tuple[int, int], LateCause] = {}


def why_late(
    window: int,
    matches: Sequence[JudgedCalls],
    table: LineTable,
    layers: tuple[str, ...],
    hosts: Mapping[int, str],
    around: HostConditions,
    input_of: Mapping[int, Mapping[int, int]],
    loader: str,
) -> list[Late]:
    """One entry per match.

    Args:
        window: which.
        matches: of that window.
        table: the window's lines.
        layers: names that the lines' codes stand for.
        hosts: rank -> host.
        around: what the machine says.
        input_of: step -> rank -> its wait for input by the always-on figures, ns; may be empty.
        loader: what the framework calls that which it waits for there.
    """
    usable = [len(calls.ranks) > 1 and all(rank in table.row_of for rank in calls.ranks) for calls in matches]
    uncertain = [_uncertain(judged_calls) for judged_calls in matches]
    starts = common_starts(matches, table, usable)
    excess = excesses(matches, starts, table)
    late = [
        (calls_of_kind.start_skew > 0) & ~open_
        if len(calls_of_kind.ranks) > 1
        else np.zeros(len(calls_of_kind.seq), dtype=bool)
        for calls_of_kind, open_ in zip(matches, uncertain, strict=True)
    ]
    scene = _Scene(
        window=window,
        matches=matches,
        table=table,
        layers=layers,
        hosts=hosts,
        around=around,
        input_of=input_of,
        loader=loader,
        late=late,
        starts=starts,
        excess=excess,
    )
    scene.singled_out = _singled_out(scene)
    _own_causes(scene)
    causes = _follow(scene)
    return [
        Late(
            is_late=late[index],
            uncertain=uncertain[index],
            lateness=lateness(calls_of_kind),
            causes=causes[index],
        )
        for index, calls_of_kind in enumerate(matches)
    ]


def lateness(calls: JudgedCalls) -> Int64:
    """How far the last entry lies behind the lower median of the others'. Shape (calls,), ns."""
    if len(calls.ranks) < 2:
        return np.zeros(len(calls.seq), dtype=np.int64)
    ordered = np.sort(calls.enter, axis=0)
    result: Int64 = ordered[-1] - ordered[(len(calls.ranks) - 2) // 2]
    return result


def _uncertain(calls: JudgedCalls) -> NDArray[np.bool_]:
    """Calls in which half of the others may have been as late: it is not one rank that was."""
    if len(calls.ranks) < 2:
        return np.zeros(len(calls.seq), dtype=bool)
    result: NDArray[np.bool_] = 2 * calls.uncertain.sum(axis=0) >= len(calls.ranks) - 1
    return result & calls.uncertain.any(axis=0)


def _singled_out(scene: _Scene) -> frozenset[int]:
    """Ranks with most of their host's lateness in collectives: what disturbs a host does not pick one."""
    held: dict[int, int] = defaultdict(int)
    for calls, late in zip(scene.matches, scene.late, strict=True):
        if calls.key.collective != SEND:
            total = np.bincount(
                calls.late_row, np.where(late, lateness(calls), 0), minlength=len(calls.ranks)
            )
            for rank, amount in zip(calls.ranks, total.tolist(), strict=True):
                held[rank] += int(amount)
    of_host: dict[str, int] = defaultdict(int)
    for rank, amount in held.items():
        of_host[scene.hosts.get(rank, "")] += amount
    mates: dict[str, int] = defaultdict(int)
    for rank in scene.table.row_of:
        mates[scene.hosts.get(rank, "")] += 1
    return frozenset(
        rank
        for rank, amount in held.items()
        if mates[scene.hosts.get(rank, "")] > 1
        and amount >= _SINGLED_OUT * of_host[scene.hosts.get(rank, "")] > 0
    )


def _own_causes(scene: _Scene) -> None:
    """What each late rank itself did longer; chains are followed later."""
    computing = Computing.of(scene.table, scene.layers)
    for index, excess in scene.excess.items():
        judged_calls = scene.matches[index]
        top = excess.by_class.argmax(axis=0)
        clear = excess.by_class[top, np.arange(len(top))] >= _CLEAR * excess.lateness
        together = excess.lateness < _TOGETHER * judged_calls.wait.mean(axis=0)
        calls = np.flatnonzero(scene.late[index])
        for call in calls[together[calls]].tolist():
            scene.causes[index, call] = _came_together(judged_calls, excess, call)
        calls = calls[~together[calls]]
        computes = calls[clear[calls] & (top[calls] == LINE_COMPUTE)]
        by_layer = layer_excesses(judged_calls, scene.starts[index], computes, scene.table, computing)
        for call in calls.tolist():
            late = _what(scene, index, call, int(top[call]) if clear[call] else None)
            if call in by_layer:
                _add_layer(scene, late, judged_calls, by_layer[call])
            scene.causes[index, call] = _cause(late)


def _came_together(calls: JudgedCalls, excess: Excess, call: int) -> LateCause:
    early = int(calls.wait[:, call].argmax())
    behind = int(excess.lateness[call])
    return _cause(
        Lateness(
            reason=LateReason.TOGETHER,
            rank=calls.ranks[int(calls.late_row[call])],
            lateness_ns=behind,
            excess_ns=behind,
            early_rank=calls.ranks[early],
            early_ns=int(calls.wait[early, call]),
        )
    )


def _what(scene: _Scene, index: int, call: int, top: int | None) -> Lateness:
    """Everything but computation, of which the layers say more."""
    calls, excess = scene.matches[index], scene.excess[index]
    rank = calls.ranks[int(calls.late_row[call])]
    noise = scene.around.disturbed.get((scene.hosts.get(rank, ""), scene.window), "")
    late = Lateness(
        reason=LateReason.UNCLEAR,
        rank=rank,
        lateness_ns=int(excess.lateness[call]),
        excess_ns=int(excess.lateness[call]),
        meanwhile=noise,
        has_layers=bool(scene.layers),
        loader=scene.loader,
        on_device=scene.table.lines[scene.table.row_of[rank]].has_device,
    )
    if top is None:
        return late
    late.excess_ns = int(excess.by_class[top, call])
    if top == SKEW:
        source = int(excess.source[call])
        late.reason = LateReason.STARTED_LATE if source < 0 else LateReason.LEFT_LATE
        if source >= 0:
            key = scene.matches[source].key
            late.collective, late.group = key.collective, key.group
        else:
            _look_before(scene, late, calls, call)
    elif top == LINE_EXPOSED:
        late.reason = LateReason.EXPOSED_COMM
    else:
        late.reason = _SIMPLE.get(top, LateReason.COMPUTE)
        if top == LINE_IDLE and _is_stretched(excess, call):
            _blame_noise(scene, late, calls)
    return late


def _look_before(scene: _Scene, late: Lateness, calls: JudgedCalls, call: int) -> None:
    """A step that began late: the always-on figures know how long the step before it waited for input."""
    step = int(calls.step[calls.late_row[call], call]) - 1
    waited = scene.input_of.get(step, {})
    other_waits = sorted(waited[rank] for rank in calls.ranks if rank in waited and rank != late.rank)
    if late.rank not in waited or len(other_waits) < len(calls.ranks) - 1:
        return
    excess = waited[late.rank] - other_waits[(len(other_waits) - 1) // 2]
    if excess >= _CLEAR * late.lateness_ns:
        late.reason, late.excess_ns, late.before = LateReason.INPUT_WAIT, excess, True


def _is_stretched(excess: Excess, call: int) -> bool:
    """Whether computation took longer as well, as it does when another process has the CPU at times."""
    usual, late = int(excess.usual[LINE_COMPUTE, call]), int(excess.late[LINE_COMPUTE, call])
    has_usual = usual >= _LITTLE * int(excess.usual[:UNTRACED, call].sum())
    return late >= _STRETCHED * usual if has_usual else True


def _blame_noise(scene: _Scene, late: Lateness, calls: JudgedCalls) -> None:
    """Where the machine explains that a rank did the same in more time, that becomes the reason."""
    rank = late.rank
    same_host = sum(scene.hosts.get(rank) == scene.hosts.get(other) for other in calls.ranks) - 1
    if rank in scene.singled_out and same_host > 0:
        return
    if late.meanwhile:
        late.reason, late.by = LateReason.DISTURBED, late.meanwhile
    elif rank in scene.around.crowded:
        late.reason, late.by = LateReason.OVERSUBSCRIBED, scene.around.crowded[rank]


def _add_layer(scene: _Scene, late: Lateness, calls: JudgedCalls, excess: LayerExcess) -> None:
    """Which layer, and whether it is the layer or the rank that is slow."""
    late.part_ns, late.ratio = excess.excess_ns, excess.ratio
    if excess.alike or excess.spread:
        late.alike, late.spread = excess.alike, True
        if excess.alike and late.rank in scene.around.remote:
            late.reason, late.by = LateReason.NUMA_REMOTE, scene.around.remote[late.rank]
        else:
            _blame_noise(scene, late, calls)
        return
    late.layer = scene.layers[excess.layer] if excess.layer >= 0 else None
    late.phase = PHASES[excess.phase] if excess.phase >= 0 else None
    if excess.is_own_layer and excess.layer >= 0:
        late.reason = LateReason.UPSTREAM if calls.key.collective == SEND else LateReason.MODEL_SPLIT


def _cause(late: Lateness) -> LateCause:
    return LateCause(
        reason=late.reason,
        rank=late.rank,
        excess_ns=late.excess_ns,
        sentence=late_sentence(late),
        layer=late.layer,
        phase=late.phase,
        group=late.group,
        meanwhile="" if late.reason is LateReason.DISTURBED else late.meanwhile,
    )


def _follow(scene: _Scene) -> list[dict[int, LateCause]]:
    """Every call's cause, through the calls in which the late rank waited for another one."""
    result: list[dict[int, LateCause]] = [{} for _ in scene.matches]
    before = _calls_before(scene)
    for (index, call), late_cause in scene.causes.items():
        at, cause, hops = (index, call), late_cause, list[Hop]()
        while cause.reason is LateReason.EXPOSED_COMM and len(hops) < _MOST_HOPS and at in before:
            other, is_wait = before[at]
            calls = scene.matches[other[0]]
            if not is_wait or other not in scene.causes:
                cause = structs.replace(cause, group=calls.key.group, sentence=_busy(cause, calls))
                break
            next_cause = scene.causes[other]
            late_rank = calls.ranks[int(calls.late_row[other[1]])]
            hops.append(
                Hop(
                    collective=calls.key.collective,
                    group=calls.key.group,
                    waiting_rank=cause.rank,
                    late_rank=late_rank,
                )
            )
            at, cause = other, next_cause
        if hops:
            way = [(hop.late_rank, hop.collective, hop.group) for hop in hops]
            text = through(late_cause.rank, way, cause.sentence)
            cause = structs.replace(cause, through=tuple(hops), group=hops[0].group, sentence=text)
        result[index][call] = cause
    return result


def _busy(cause: LateCause, calls: JudgedCalls) -> str:
    late = Lateness(
        reason=LateReason.EXPOSED_COMM,
        rank=cause.rank,
        lateness_ns=cause.excess_ns,
        excess_ns=cause.excess_ns,
        collective=calls.key.collective,
        group=calls.key.group,
    )
    return late_sentence(late)


_At = tuple[int, int]  # (match, call)


def _calls_before(scene: _Scene) -> dict[_At, tuple[_At, bool]]:
    """For calls whose late rank was in another call meanwhile: which one, and whether it waited there."""
    asked = [at for at, cause in scene.causes.items() if cause.reason is LateReason.EXPOSED_COMM]
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if asked:
        for index, calls in enumerate(scene.matches):
            for row, rank in enumerate(calls.ranks):
                rows[rank].append((index, row))
    result = {}
    of_rank: dict[int, _RankCalls] = {}
    for index, call in asked:
        calls = scene.matches[index]
        row = int(calls.late_row[call])
        rank = calls.ranks[row]
        if rank not in of_rank:
            of_rank[rank] = _RankCalls.of(scene.matches, rows[rank])
        begin, end = int(scene.excess[index].begin[call]), int(calls.enter[row, call])
        longest = of_rank[rank].longest(begin, end, (index, call))
        if longest is not None:
            result[index, call] = longest
    return result


class _RankCalls(Struct, frozen=True, kw_only=True, eq=False):
    """All matched calls of one rank; arrays of shape (calls,), reference clock."""

    enter: Int64
    leave: Int64
    waited: Int64  # until when it waited for the last rank
    match: NDArray[np.int64]
    call: NDArray[np.int64]

    @classmethod
    def of(cls, matches: Sequence[JudgedCalls], rows: Sequence[tuple[int, int]]) -> _RankCalls:
        enter = [matches[index].enter[row] for index, row in rows]
        wait = [matches[index].wait[row] for index, row in rows]
        return cls(
            enter=np.concatenate(enter),
            leave=np.concatenate([matches[index].exit[row] for index, row in rows]),
            waited=np.concatenate(enter) + np.concatenate(wait),
            match=np.concatenate([np.full(len(matches[index].seq), index) for index, _ in rows]),
            call=np.concatenate([np.arange(len(matches[index].seq)) for index, _ in rows]),
        )

    def longest(self, begin: int, end: int, but: _At) -> tuple[_At, bool] | None:
        """The call with most of its time in between, and whether more than half of that was waiting."""
        within = np.minimum(self.leave, end) - np.maximum(self.enter, begin)
        within = np.where((self.match == but[0]) & (self.call == but[1]), 0, within)
        top = int(within.argmax())
        if within[top] <= 0:
            return None
        waited = min(int(self.waited[top]), end) - max(int(self.enter[top]), begin)
        return (int(self.match[top]), int(self.call[top])), 2 * waited >= int(within[top])
