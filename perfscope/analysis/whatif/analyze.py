"""The what-ifs of one run (METRICS §6): each cause removed in the replay, as a predicted step.

The replay is of traced steps. What is saved of computation is put on the scale of the median step by their
ratio; what is saved of waiting and transfers stays as it is (a profiler stretches operators, not the
network), unless the traced steps were quite unlike the usual ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from perfscope.analysis.machine.results import Roofline
from perfscope.analysis.mainline import LINE_IDLE, LINE_INPUT, LINE_PARTS
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.replay.program import Change, Program
from perfscope.analysis.replay.replays import UNEXPLAINED, Replays
from perfscope.analysis.waits.outside import NOT_COMPARED, UntracedWork
from perfscope.analysis.waits.stragglers import CONFIRMS
from perfscope.analysis.whatif import changes
from perfscope.analysis.whatif.axes import RunAxes
from perfscope.analysis.whatif.latency import CallCost, call_costs
from perfscope.analysis.whatif.peers import RankWork, Slow, as_fast_as_peers, splits_differently
from perfscope.analysis.whatif.results import ReplayCheck, WhatIf, bounded
from perfscope.messages import whatif as texts
from perfscope.messages.advice import TORCH, TrainingAdvice
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

TRUSTED_ERROR = 0.05  # replay off by more: said beside every what-if
UNTRUSTED_ERROR = 0.25  # replay off by more: no what-if is given
ALIKE = 1.35  # traced over median step up to which time saved of waiting is taken as it is
MOSTLY = 0.5  # of what a slow rank takes longer that is idle time
TOP_LAYERS = 3


class WhatIfs(Struct, frozen=True, kw_only=True):
    """What-ifs with what findings need beside them."""

    what_ifs: tuple[WhatIf, ...]  # largest gain first
    check: ReplayCheck | None
    slow: tuple[Slow, ...]  # ranks slower than their peers, the worst first
    slow_at_times: tuple[Slow, ...]  # with ranks that were slow in some of the steps only
    missing: tuple[Missing, ...]
    different_work: bool = False  # ranks run different layers: the model is split over them
    axes: RunAxes = RunAxes()

    @property
    def usable(self) -> bool:
        """Whether the run could be replayed, closely enough to go by."""
        return self.check is not None and not self.missing

    def of(self, slug: str) -> WhatIf | None:
        """The what-if of that id."""
        return next((what_if for what_if in self.what_ifs if what_if.id == slug), None)

    def gain_ns(self, slug: str) -> int:
        """Its gain; 0 where there is none."""
        what_if = self.of(slug)
        return what_if.gain_ns if what_if else 0


NOTHING = WhatIfs(what_ifs=(), check=None, slow=(), slow_at_times=(), missing=())


def analyze_what_ifs(
    replays: Replays | None,
    usual_ns: float | None,
    layers: Sequence[str],
    rooflines: Sequence[Roofline] = (),
    remote: Sequence[int] = (),
    wording: TrainingAdvice = TORCH,
    axis_of: Mapping[tuple[str, str], str] = {},
    untraced: UntracedWork = NOT_COMPARED,
) -> WhatIfs:
    """Replays the run without each of its costs.

    Args:
        replays: its windows; None: none could be made, and why has been said.
        usual_ns: the usual (untraced) step; None: the traced one.
        layers: names of the layers that the programs' codes stand for.
        rooflines: of the machine, for layers at their roof.
        remote: ranks whose memory lies on other NUMA nodes than their CPUs.
        wording: of the framework that trained.
        axis_of: axis of the mesh of each kind of call.
        untraced: how ranks differ in untraced steps.
    """
    if replays is None or replays.base_ns <= 0:
        return NOTHING
    check = ReplayCheck(
        num_steps=replays.num_steps,
        measured_ns=round(replays.measured_ns),
        replayed_ns=round(replays.base_ns),
        error_ratio=replays.error_ratio,
    )
    if check.error_ratio > UNTRUSTED_ERROR:
        missing = (missing_figure(Figure.WHAT_IFS, Cause.REPLAY_ERROR, ratio=check.error_ratio),)
        return WhatIfs(what_ifs=(), check=check, slow=(), slow_at_times=(), missing=missing)
    costs = call_costs(replays)
    work = RankWork.of(replays)
    asked = _Asked(replays=replays, usual_ns=usual_ns or replays.measured_ns, check=check)
    if len(work.groups()) != 1:  # ranks with other work are not compared
        untraced = NOT_COMPARED
    slow = _confirmed(work.slow(layers), asked, untraced)
    axes = RunAxes.of(replays, costs, axis_of)
    what_ifs = [
        *_questions(asked, costs, work, slow, wording, axes, untraced),
        *_of_axes(asked, costs, axes),
        *_roofs(asked, layers, rooflines),
        *_of_memory(asked, work, remote),
    ]
    return WhatIfs(
        what_ifs=tuple(
            sorted(
                (what_if for what_if in what_ifs if what_if.gain_ns > 0), key=lambda what_if: -what_if.gain_ns
            )
        ),
        check=check,
        slow=tuple(slow),
        slow_at_times=tuple(work.slow(layers, nearly_each=False)),
        missing=(),
        different_work=splits_differently(work),
        axes=axes,
    )


class _Asked(Struct, frozen=True, kw_only=True):
    """Asks one question of the replay."""

    replays: Replays
    usual_ns: float
    check: ReplayCheck

    def what_if(
        self,
        slug: str,
        text: texts.WhatIfText,
        change: Callable[[Program], Change | None],
        *,
        keeps: bool = False,
        layer: str | None = None,
        rank: int | None = None,
        axis: str | None = None,
    ) -> list[WhatIf]:
        """`keeps`: the saved time is not the computation's, so tracing did not stretch it."""
        step = self.replays.step_ns(change)
        if step is None:
            return []
        saved = max(self.replays.base_ns - step, 0.0)
        stretched = self.replays.base_ns / self.usual_ns
        alike = 1 / ALIKE <= stretched <= ALIKE
        # What a longer traced step waited can exceed the median step; no step takes less than nothing.
        if not (keeps and alike) or saved >= self.usual_ns:
            saved /= stretched
        predicted = round(self.usual_ns - saved)
        gain = round(self.usual_ns) - predicted
        return [
            WhatIf(
                id=slug,
                title=text.title,
                step_ns=predicted,
                gain_ns=max(gain, 0),
                gain_ratio=max(gain, 0) / self.usual_ns,
                evidence=text.evidence,
                caution=self._caution(stretched if not alike else None),
                layer=layer,
                rank=rank,
                axis=axis,
            )
        ]

    def usual(self, traced_ns: float) -> float:
        """Time of the mean traced step on the scale of the usual one, as reports show all such times."""
        return traced_ns * self.usual_ns / self.replays.measured_ns

    def _caution(self, stretched: float | None) -> str:
        error, unexplained = self.check.error_ratio, self.replays.unexplained_ratio
        return texts.caution(
            error if error > TRUSTED_ERROR else None,
            stretched,
            unexplained if unexplained > UNEXPLAINED else None,
        )


def _questions(
    asked: _Asked,
    costs: Mapping[tuple[str, str], CallCost],
    work: RankWork,
    slow: Sequence[Slow],
    wording: TrainingAdvice,
    axes: RunAxes,
    untraced: UntracedWork,
) -> list[WhatIf]:
    replays = asked.replays
    input_ns, idle_ns = _time_of(replays, LINE_INPUT), _time_of(replays, LINE_IDLE)
    what_ifs = asked.what_if(
        "no_input_wait",
        texts.no_input_wait(asked.usual(input_ns), wording.loader),
        changes.no_input_wait,
        keeps=True,
    )
    what_ifs += asked.what_if(
        "no_idle",
        texts.no_idle(asked.usual(idle_ns), wording.gap_is),
        changes.no_idle,
    )
    if len(work.ranks) > 1:
        what_ifs += [*_of_calls(asked, costs, axes), *_of_ranks(asked, work, slow, untraced)]
    return what_ifs


def _of_calls(asked: _Asked, costs: Mapping[tuple[str, str], CallCost], axes: RunAxes) -> list[WhatIf]:
    fixed, moved = map(asked.usual, _transfers(asked.replays, costs))
    questions: dict[str, Callable[[Program], Change | None]] = {
        "zero_transfer": changes.zero_transfer,
        "double_bandwidth": partial(changes.faster_links, costs=costs, factor=2.0),
        "full_overlap": changes.full_overlap,
    }
    what_ifs = [
        what_if
        for slug, change in questions.items()
        for what_if in asked.what_if(slug, texts.transfers(slug, moved, fixed), change, keeps=True)
    ]
    merged = partial(changes.merged_calls, costs=costs, blocking=axes.blocking)
    return what_ifs + asked.what_if("one_bucket", texts.one_bucket(changes.SMALL_BYTES), merged, keeps=True)


def _of_axes(asked: _Asked, costs: Mapping[tuple[str, str], CallCost], axes: RunAxes) -> list[WhatIf]:
    """Each axis of a mesh of several alone."""
    what_ifs = []
    for axis, kinds in axes.kinds.items() if len(axes.kinds) > 1 else ():
        questions: dict[str, Callable[[Program], Change | None]] = {
            "zero_transfer": partial(changes.zero_transfer, kinds=kinds),
            "full_overlap": partial(changes.full_overlap, kinds=kinds),
        }
        faster = axes.faster_than(axis)
        if faster is not None:
            questions["fast_link"] = partial(
                changes.faster_links, costs=costs, factor=faster.factor, kinds=kinds
            )
        for question, change in questions.items():
            text = texts.of_axis(question, axis, faster)
            what_ifs += asked.what_if(f"{question}:{axis}", text, change, keeps=True, axis=axis)
    return what_ifs


def _of_ranks(asked: _Asked, work: RankWork, slow: Sequence[Slow], untraced: UntracedWork) -> list[WhatIf]:
    last, apart = _last_to_begin(asked.replays)
    what_ifs = asked.what_if(
        "equal_start",
        texts.equal_start(last, apart),
        changes.equal_start,
        keeps=True,
        rank=last,
    )
    # A rank that is late in traced steps alone started its profiler later. Sleep does not show in CPU times.
    sleeps = any(rank.rank == last and _is_mostly_idle(rank) for rank in slow)
    late = math.inf if sleeps else untraced.excess.get(last, math.inf)
    what_ifs = [what_if for what_if in what_ifs if late >= CONFIRMS * what_if.gain_ns]
    what_ifs += _balanced(asked, work, untraced)
    ranks = [slow_rank.rank for slow_rank in slow]
    if ranks:
        slower = texts.slower_than_peers(
            slow[0].rank,
            asked.usual(slow[0].excess_ns),
            asked.usual(slow[0].part_excess_ns),
            layer=slow[0].layer,
            phase=slow[0].phase,
            part=slow[0].part,
            has_layers=slow[0].has_layers,
        )
        what_ifs += asked.what_if(
            "no_stragglers",
            texts.no_stragglers(ranks, slower),
            partial(as_fast_as_peers, work=work, slow=ranks),
            # Peers are traced, too: what a rank is idle for longer than they are is none of the tracing.
            keeps=_is_mostly_idle(slow[0]),
            rank=ranks[0],
            layer=slow[0].layer,
        )
    return what_ifs


def _balanced(asked: _Asked, work: RankWork, untraced: UntracedWork) -> list[WhatIf]:
    """Work balanced evenly saves no more than in the mean untraced step, of which there are many more."""
    most_ns = untraced.imbalance_of(work.ranks[int(work.total.sum(axis=1).argmax())])
    return [
        what_if
        if most_ns is None or what_if.gain_ns <= most_ns
        else bounded(what_if, most_ns, texts.untraced_imbalance(most_ns))
        for what_if in asked.what_if("perfect_balance", texts.PERFECT_BALANCE, changes.perfect_balance)
    ]


def _is_mostly_idle(slow: Slow) -> bool:
    return slow.part == LINE_PARTS[LINE_IDLE] and slow.part_excess_ns > MOSTLY * slow.excess_ns


def _confirmed(slow: Sequence[Slow], asked: _Asked, untraced: UntracedWork) -> list[Slow]:
    """Without ranks that are hardly slower in untraced steps, where these compare peers.

    What a rank only sleeps does not show in those: others sleep as long, as they wait for it.
    """
    return [
        rank
        for rank in slow
        if _is_mostly_idle(rank)
        or untraced.excess.get(rank.rank, math.inf) >= CONFIRMS * asked.usual(rank.excess_ns)
    ]


def _of_memory(asked: _Asked, work: RankWork, remote: Sequence[int]) -> list[WhatIf]:
    """Ranks whose memory lies on other NUMA nodes than their CPUs, as fast as their peers."""
    if not remote:
        return []
    return asked.what_if(
        "local_memory",
        texts.local_memory(remote),
        lambda program: as_fast_as_peers(program, work, remote),
    )


def _last_to_begin(replays: Replays) -> tuple[int, float]:
    """(rank that begins a window last, how long after the first), of the window where it is most."""
    program = max(
        (window.program for window in replays.windows), key=lambda candidate: float(candidate.begin.max())
    )
    return program.ranks[int(program.begin.argmax())], float(program.begin.max())


def _roofs(asked: _Asked, layers: Sequence[str], rooflines: Sequence[Roofline]) -> list[WhatIf]:
    """The longest layers at what the machine's ceilings allow them."""
    factors: dict[str, dict[str, float]] = {}
    times: dict[str, int] = {}
    for point in rooflines[0].points if rooflines else ():
        times[point.layer] = times.get(point.layer, 0) + point.time_ns
        factors.setdefault(point.layer, {})[point.phase] = min(max(point.fraction, 0.0), 1.0)
    what_ifs = []
    for layer in sorted(times, key=lambda name: -times[name])[:TOP_LAYERS]:
        if layer not in layers:
            continue
        code = list(layers).index(layer)
        what_ifs += asked.what_if(
            f"roofline:{layer}",
            texts.at_roofline(layer, asked.usual(times[layer]), factors[layer]),
            partial(changes.layer_faster, layer=code, factor=factors[layer]),
            layer=layer,
        )
    return what_ifs


def _time_of(replays: Replays, part: int) -> float:
    """Of the mean rank, per step."""
    total = sum(
        float(window.program.cells.local[window.program.cells.part == part].sum()) / len(window.program.ranks)
        for window in replays.windows
    )
    return total / replays.num_steps


def _transfers(replays: Replays, costs: Mapping[tuple[str, str], CallCost]) -> tuple[float, float]:
    """(latency, all) of the transfers, per step of the mean rank."""
    fixed = moved = 0.0
    for window in replays.windows:
        program = window.program
        transfer = program.events.transfer
        of_call = changes.latency_of(program, costs)
        fixed += float(transfer.clip(max=of_call).sum()) / len(program.ranks)
        moved += float(transfer.sum()) / len(program.ranks)
    return fixed / replays.num_steps, moved / replays.num_steps
