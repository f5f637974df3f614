"""Times of a step on the scale of the usual one.

A profiler slows the steps it traces, so the parts of traced steps are longer than those of the others. Shares
of the step are what traced steps tell; as times they are shares of the median untraced step: every time of
traced steps x (median untraced step / mean traced step). Rates and totals over windows are left as measured.
"""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analysis.experts.results import Experts
from perfscope.analysis.pipeline.results import Pipeline, PipelineBubble
from perfscope.analysis.results import Breakdown, Communication, LayerResult, RankResult, RunAnalysis
from perfscope.analysis.waits.results import WaitAnalysis


def on_usual_step(analysis: RunAnalysis) -> RunAnalysis:
    """The results with times of the mean traced step as those of the median untraced one.

    As they are where no step is untraced. Parts of a breakdown add up to its step.
    """
    if not analysis.traced_ratio:
        return analysis
    factor = 1 / analysis.traced_ratio
    communication = analysis.communication
    return replace(
        analysis,
        ranks=tuple(_rank(rank, factor) for rank in analysis.ranks),
        layers=tuple(_layer(layer, factor) for layer in analysis.layers),
        communication=None if communication is None else _communication(communication, factor),
        waits=None if analysis.waits is None else _waits(analysis.waits, factor),
        pipeline=None if analysis.pipeline is None else _pipeline(analysis.pipeline, factor),
        experts=None if analysis.experts is None else _experts(analysis.experts, factor),
    )


def _rank(rank: RankResult, factor: float) -> RankResult:
    breakdown = rank.breakdown_ns
    return replace(
        rank,
        breakdown_ns=None if breakdown is None else _breakdown(breakdown, factor),
        comm_ns=_time(rank.comm_ns, factor),
        idle_host_wait_ns=_time(rank.idle_host_wait_ns, factor),
        host_idle=None
        if rank.host_idle is None
        else tuple(replace(entry, ns=round(entry.ns * factor)) for entry in rank.host_idle),
    )


def _breakdown(breakdown: Breakdown, factor: float) -> Breakdown:
    """Ends of the parts are rounded, not the parts: they add up to the step."""
    end, before, parts = 0, 0, {}
    for part in Breakdown.PARTS:
        end += getattr(breakdown, part)
        parts[part], before = round(end * factor) - before, round(end * factor)
    return Breakdown(step=before, num_steps=breakdown.num_steps, **parts)


def _layer(layer: LayerResult, factor: float) -> LayerResult:
    return replace(
        layer,
        forward_ns=round(layer.forward_ns * factor),
        backward_ns=round(layer.backward_ns * factor),
        exposed_comm_ns=_time(layer.exposed_comm_ns, factor),
    )


def _communication(communication: Communication, factor: float) -> Communication:
    return replace(
        communication,
        exposed_ns=round(communication.exposed_ns * factor),
        hidden_ns=round(communication.hidden_ns * factor),
        by_layer=tuple(
            replace(
                entry,
                exposed_ns=round(entry.exposed_ns * factor),
                hidden_ns=round(entry.hidden_ns * factor),
                axes={axis: round(ns * factor) for axis, ns in entry.axes.items()},
            )
            for entry in communication.by_layer
        ),
        by_axis=tuple(
            replace(
                entry,
                exposed_ns=round(entry.exposed_ns * factor),
                hidden_ns=round(entry.hidden_ns * factor),
                wait_ns=_time(entry.wait_ns, factor),
                transfer_ns=_time(entry.transfer_ns, factor),
                collectives={name: round(ns * factor) for name, ns in entry.collectives.items()},
            )
            for entry in communication.by_axis
        ),
        unattributed=tuple(
            replace(
                entry,
                exposed_ns=round(entry.exposed_ns * factor),
                collectives={name: round(ns * factor) for name, ns in entry.collectives.items()},
                axes={axis: round(ns * factor) for axis, ns in entry.axes.items()},
            )
            for entry in communication.unattributed
        ),
    )


def _waits(waits: WaitAnalysis, factor: float) -> WaitAnalysis:
    """What is per step; single calls and steps are as measured."""
    return replace(
        waits,
        ranks=tuple(
            replace(
                rank,
                wait_ns=round(rank.wait_ns * factor),
                exposed_wait_ns=round(rank.exposed_wait_ns * factor),
                held_ns=round(rank.held_ns * factor),
            )
            for rank in waits.ranks
        ),
        groups=tuple(
            replace(
                group,
                wait_ns=round(group.wait_ns * factor),
                transfer_ns=round(group.transfer_ns * factor),
                reasons=tuple(
                    replace(reason, wait_ns=round(reason.wait_ns * factor)) for reason in group.reasons
                ),
            )
            for group in waits.groups
        ),
        split=tuple(
            replace(
                row,
                compute_ns=_time(row.compute_ns, factor),
                exposed_comm_ns=round(row.exposed_comm_ns * factor),
                wait_ns=round(row.wait_ns * factor),
                transfer_ns=round(row.transfer_ns * factor),
            )
            for row in waits.split
        ),
    )


def _pipeline(pipeline: Pipeline, factor: float) -> Pipeline:
    """The means per step; the step that is drawn is as traced."""
    return replace(
        pipeline,
        stages=tuple(
            replace(
                stage,
                compute_ns=round(stage.compute_ns * factor),
                wait_ns=round(stage.wait_ns * factor),
                bubble_ns=round(stage.bubble_ns * factor),
            )
            for stage in pipeline.stages
        ),
        active_ns=round(pipeline.active_ns * factor),
        balanced_ns=round(pipeline.balanced_ns * factor),
        equal_stages_ns=round(pipeline.equal_stages_ns * factor),
        bubble=_bubble(pipeline.bubble, factor),
    )


def _bubble(bubble: PipelineBubble, factor: float) -> PipelineBubble:
    """Ends of the parts are rounded, not the parts: they add up to the bubble."""
    end, before, parts = 0, 0, {}
    for part in ("fill_ns", "drain_ns", "imbalance_ns", "late_sends_ns", "other_ns"):
        end += getattr(bubble, part)
        parts[part], before = round(end * factor) - before, round(end * factor)
    return replace(bubble, measured_ns=before, **parts)


def _experts(experts: Experts, factor: float) -> Experts:
    return replace(
        experts,
        layers=tuple(
            replace(
                layer,
                wait_ns=round(layer.wait_ns * factor),
                saved_ns=round(layer.saved_ns * factor),
                ranks=tuple(
                    replace(rank, compute_ns=round(rank.compute_ns * factor)) for rank in layer.ranks
                ),
            )
            for layer in experts.layers
        ),
    )


def _time(ns: int | None, factor: float) -> int | None:
    return None if ns is None else round(ns * factor)
