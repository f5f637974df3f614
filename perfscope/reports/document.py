"""The JSON report: the same figures as every other renderer, raw, in base units.

`schema_version` counts changes that could break a reader; fields are only ever added within a version.
Missing figures are null, never NaN and never 0; `missing` says why, and `affects` of an entry names by dotted
paths the figures that are there but not what they would be (analysis/missing.py). `machine` is described in
document_machine.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping

from perfscope import __version__
from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.results import (
    Breakdown,
    CollectiveResult,
    DeviceBreakdown,
    LayerResult,
    Quantiles,
    RankResult,
    RunAnalysis,
)
from perfscope.messages.missing import missing_document
from perfscope.reports.document_machine import machine_document
from perfscope.reports.document_path import path_document
from perfscope.reports.document_waits import waits_document

REPORT_SCHEMA_VERSION = 1

Json = dict[str, object]


def build_document(analysis: RunAnalysis) -> Json:
    """The report as JSON-ready data: str, int, finite float, bool, None, list and dict only."""
    document: Json = {
        "schema_version": REPORT_SCHEMA_VERSION,
        "perfscope_version": __version__,
        "run": analysis.run.document,
        "step_ns": _quantiles(analysis.step_ns),
        "throughput_samples_per_s": analysis.throughput_samples_per_s,
        "samples_source": analysis.samples_source,
        "samples_per_step": analysis.samples_per_step,
        "samples_per_step_range": None if analysis.batch_range is None else list(analysis.batch_range),
        "throughput_tokens_per_s": analysis.tokens_per_s,
        "tokens_per_step": analysis.tokens_per_step,
        "framework": analysis.framework,
        "remarks": list(analysis.remarks),
        "overhead_ratio": analysis.overhead_ratio,
        "breakdown_of": analysis.breakdown_of,
        "clock_residual_ns": analysis.clock_residual_ns,
        "ranks": [_rank(rank) for rank in analysis.ranks],
        "layers": [_layer(layer) for layer in analysis.layers],
        "collectives": [_collective(collective) for collective in analysis.collectives],
        "findings": [dataclasses.asdict(finding) for finding in analysis.findings],
        "missing": [missing_document(gap) for gap in analysis.missing],
        "provenance": [dataclasses.asdict(source) for source in analysis.provenance],
        "machine": machine_document(analysis.machine),
        "efficiency": dataclasses.asdict(analysis.efficiency) if analysis.efficiency else None,
        "what_ifs": [dataclasses.asdict(one) for one in analysis.what_ifs],
        "replay": dataclasses.asdict(analysis.replay) if analysis.replay else None,
        "waits": waits_document(analysis.waits),
        "critical_path": path_document(analysis.critical_paths),
        "clocks": _clocks(analysis.clocks),
        "bench": dataclasses.asdict(analysis.bench) if analysis.bench else None,
    }
    finite = without_nan(document)
    assert isinstance(finite, dict)
    return finite


def _clocks(clocks: ClockFit) -> Json:
    """Each host's clock against the reference's; an unlinked host has none."""
    return {
        "reference": clocks.reference,
        "offset_ns": dict(clocks.offset_ns),
        "drift_ppm": dict(clocks.drift_ppm),
        "residual_ns": dict(clocks.residual_ns),
        "unlinked": list(clocks.unlinked),
    }


def render_json(document: Mapping[str, object]) -> str:
    """`document` as indented ASCII JSON with a newline at the end. Raises ValueError on NaN."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def without_nan(value: object) -> object:
    """`value` with NaN and infinities as None, tuples as lists and every key a string."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)


def _quantiles(quantiles: Quantiles | None) -> Json | None:
    if quantiles is None:
        return None
    return {
        "median": quantiles.median,
        "p10": quantiles.p10,
        "p90": quantiles.p90,
        "count": quantiles.count,
    }


def _rank(rank: RankResult) -> Json:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "num_steps": rank.num_steps,
        "num_traced_steps": rank.num_traced_steps,
        "step_ns": _quantiles(rank.step_ns),
        "breakdown_ns": _breakdown(rank),
        "breakdown_step_ns": None if rank.breakdown_ns is None else rank.breakdown_ns.step,
        "breakdown_num_steps": None if rank.breakdown_ns is None else rank.breakdown_ns.num_steps,
        "comm_ns": rank.comm_ns,
        "overlap_ratio": rank.overlap_ratio,
        "device_ns": _device(rank.device_ns),
        "input_wait_ns": rank.input_wait_ns,
        "samples_per_step": rank.samples_per_step,
        "overhead_ns": rank.overhead_ns,
        "elapsed_ns": rank.elapsed_ns,
        "idle_host_wait_ns": rank.idle_host_wait_ns,
        "finished": rank.finished,
    }


def _breakdown(rank: RankResult) -> Json | None:
    """The parts alone, so that the sum of those that are told is `breakdown_step_ns`."""
    own = rank.breakdown_ns
    if own is None:
        return None
    return {part: None if part in rank.untold else getattr(own, part) for part in Breakdown.PARTS}


def _device(device: DeviceBreakdown | None) -> Json | None:
    return None if device is None else dataclasses.asdict(device)


def _layer(layer: LayerResult) -> Json:
    busy_ns = layer.forward_ns + layer.backward_ns
    return {
        "layer": layer.layer,
        "type": layer.module_type,
        "order": layer.order,
        "calls": layer.calls,
        "forward_ns": layer.forward_ns,
        "backward_ns": layer.backward_ns,
        "exposed_comm_ns": layer.exposed_comm_ns,
        "flops": layer.flops,
        "bytes": layer.bytes,
        "forward_flops": layer.forward_flops,
        "backward_flops": layer.backward_flops,
        "forward_bytes": layer.forward_bytes,
        "backward_bytes": layer.backward_bytes,
        "flops_per_s": per_second(layer.flops, busy_ns),
        "bytes_per_s": per_second(layer.bytes, busy_ns),
        "num_params": layer.num_params,
    }


def per_second(amount: int | None, duration_ns: int) -> float | None:
    """`amount` per second, or None where either side is missing."""
    return None if amount is None or duration_ns <= 0 else amount * 1e9 / duration_ns


def _collective(collective: CollectiveResult) -> Json:
    return {
        "collective": collective.collective,
        "group": collective.group,
        "group_size": collective.group_size,
        "dtype": collective.dtype,
        "count": collective.count,
        "num_matched": collective.num_matched,
        "num_waits_uncertain": collective.num_waits_uncertain,
        "bytes": collective.bytes,
        "num_unsized": collective.num_unsized,
        "duration_ns": collective.duration_ns,
        "transfer_ns": collective.transfer_ns,
        "wait_ns": collective.wait_ns,
        "max_wait_ns": collective.max_wait_ns,
        "algbw_bytes_per_s": collective.algbw_bytes_per_s,
        "busbw_bytes_per_s": collective.busbw_bytes_per_s,
        "busbw_with_wait_bytes_per_s": collective.busbw_with_wait_bytes_per_s,
        "late_counts": [{"rank": rank, "count": count} for rank, count in collective.late_counts],
    }
