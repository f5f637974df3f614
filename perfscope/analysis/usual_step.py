"""Times of a step on the scale of the usual one.

A profiler slows the steps it traces, so the parts of traced steps are longer than those of the others. Shares
of the step are what traced steps tell; as times they are shares of the median untraced step: every time of
traced steps x (median untraced step / mean traced step). Rates and totals over windows are left as measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.experts.results import Experts
from perfscope.analysis.pipeline.results import BUBBLE_PARTS, Pipeline
from perfscope.analysis.results import Breakdown, Communication, LayerResult, RankResult, RunAnalysis
from perfscope.analysis.waits.results import WaitAnalysis

_Record = TypeVar("_Record", bound=Struct)


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
    breakdown, idle = rank.breakdown_ns, rank.host_idle
    return replace(
        _scaled(rank, factor, "comm_ns", "idle_host_wait_ns", "recompute_ns"),
        breakdown_ns=None if breakdown is None else _breakdown(breakdown, factor),
        host_idle=None if idle is None else tuple(_scaled(entry, factor, "ns") for entry in idle),
    )


def _breakdown(breakdown: Breakdown, factor: float) -> Breakdown:
    step, parts = _scaled_parts(breakdown, factor, Breakdown.PARTS)
    return replace(breakdown, step=step, **parts)


def _layer(layer: LayerResult, factor: float) -> LayerResult:
    return _scaled(layer, factor, "forward_ns", "backward_ns", "exposed_comm_ns")


def _communication(communication: Communication, factor: float) -> Communication:
    sums = ("exposed_ns", "hidden_ns")
    of_axis = (*sums, "wait_ns", "transfer_ns", "collectives")
    return replace(
        _scaled(communication, factor, *sums),
        by_layer=tuple(_scaled(entry, factor, *sums, "axes") for entry in communication.by_layer),
        by_axis=tuple(_scaled(entry, factor, *of_axis) for entry in communication.by_axis),
        unattributed=tuple(
            _scaled(entry, factor, "exposed_ns", "collectives", "axes")
            for entry in communication.unattributed
        ),
    )


def _waits(waits: WaitAnalysis, factor: float) -> WaitAnalysis:
    """What is per step; single calls and steps are as measured."""
    of_split = ("compute_ns", "exposed_comm_ns", "wait_ns", "transfer_ns")
    return replace(
        waits,
        ranks=tuple(_scaled(rank, factor, "wait_ns", "exposed_wait_ns", "held_ns") for rank in waits.ranks),
        groups=tuple(
            replace(
                _scaled(group, factor, "wait_ns", "transfer_ns"),
                reasons=tuple(_scaled(reason, factor, "wait_ns") for reason in group.reasons),
            )
            for group in waits.groups
        ),
        split=tuple(_scaled(row, factor, *of_split) for row in waits.split),
    )


def _pipeline(pipeline: Pipeline, factor: float) -> Pipeline:
    """The means per step; the step that is drawn is as traced."""
    measured, parts = _scaled_parts(pipeline.bubble, factor, BUBBLE_PARTS)
    return replace(
        _scaled(pipeline, factor, "active_ns", "balanced_ns", "equal_stages_ns"),
        stages=tuple(
            _scaled(stage, factor, "compute_ns", "wait_ns", "bubble_ns") for stage in pipeline.stages
        ),
        bubble=replace(pipeline.bubble, measured_ns=measured, **parts),
    )


def _experts(experts: Experts, factor: float) -> Experts:
    return replace(
        experts,
        layers=tuple(
            replace(
                _scaled(layer, factor, "wait_ns", "saved_ns"),
                ranks=tuple(_scaled(rank, factor, "compute_ns") for rank in layer.ranks),
            )
            for layer in experts.layers
        ),
        incomplete=tuple(_scaled(rank, factor, "compute_ns") for rank in experts.incomplete),
    )


def _scaled(record: _Record, factor: float, *names: str) -> _Record:
    """The record with these times scaled: each an int, None, or a mapping to ints."""
    return replace(record, **{name: _time(getattr(record, name), factor) for name in names})


def _time(ns: Any, factor: float) -> Any:
    if isinstance(ns, Mapping):
        return {name: round(of_name * factor) for name, of_name in ns.items()}
    return None if ns is None else round(ns * factor)


def _scaled_parts(record: Struct, factor: float, names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """The sum of the parts, and the parts. Their ends are rounded, not they: they add up to the sum."""
    end, before, parts = 0, 0, {}
    for name in names:
        end += getattr(record, name)
        parts[name], before = round(end * factor) - before, round(end * factor)
    return before, parts
