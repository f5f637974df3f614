"""Communication along one axis of a hybrid's mesh, or of one layer, by what the replay says would help."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from msgspec import Struct

from perfscope.analysis import advice
from perfscope.analysis.findings.communication import are_small_inside_host
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import CommByAxis, CommByLayer, Communication, Finding
from perfscope.analysis.whatif.changes import SMALL_BYTES
from perfscope.analysis.whatif.results import WhatIf
from perfscope.messages.findings.axes import AxisComm, UnevenComm
from perfscope.messages.findings.facts import SmallCalls
from perfscope.vocabulary.findings import FindingKind

SERIAL = 0.4  # of the exposed communication: ideal transfers that save less leave mostly waiting
HELPS = 0.6  # of what ideal transfers along the axis would bring: a remedy that brings as much is named
OF_LINK = 0.35  # likewise, of the link of another axis
UNEVEN = 1.7  # times the bytes of the other layers from which a layer stands out
ALIKE = 1.3  # largest over smallest bytes of the layers that it is compared with
ALIKE_SHARE = 0.6  # of the other layers that must be alike
MIN_PEERS = 3
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def by_axis(evidence: Evidence) -> list[Finding]:
    """One for each axis of a mesh of several; none where nothing could be replayed."""
    communication = evidence.communication
    if communication is None or not evidence.what_ifs.usable:
        return []
    exposed = [entry for entry in communication.by_axis if entry.exposed_ns]
    if len(exposed) < 2 or not any(what_if.axis for what_if in evidence.what_ifs.what_ifs):
        return []
    return [_of_axis(evidence, communication, entry) for entry in exposed]


class _Remedy(Struct, frozen=True, kw_only=True):
    kind: FindingKind = FindingKind.COMM_BOUND
    what_if: WhatIf | None = None
    small: SmallCalls | None = None


def _of_axis(evidence: Evidence, communication: Communication, entry: CommByAxis) -> Finding:
    axis = entry.axis
    remedy = _remedy(evidence, entry)
    layers, ratio = _carriers(communication, entry)
    free, hidden, fast = (
        _asked(evidence, name, axis) for name in ("zero_transfer", "full_overlap", "fast_link")
    )
    total = entry.exposed_ns + entry.hidden_ns
    collective = max(entry.collectives, key=lambda name: entry.collectives[name], default=None)
    faster = evidence.what_ifs.axes.faster_than(axis)
    links = {other.axis: other.link_class for other in communication.by_axis}
    helps = remedy.what_if
    gain_ns, gain_ratio = evidence.of_communication(helps.gain_ns, helps.gain_ratio) if helps else (0, 0.0)
    return Finding(
        id=remedy.kind,
        facts=AxisComm(
            axis=axis,
            inferred=entry.inferred,
            exposed=evidence.of_step(entry.exposed_ns),
            collective=collective,
            layers=layers,
            layers_ratio=ratio,
            group_size=entry.group_size,
            link=entry.link_class,
            calls=entry.calls,
            num_bytes=entry.bytes,
            wait_ns=entry.wait_ns,
            transfer_ns=entry.transfer_ns,
            hidden_ratio=entry.hidden_ns / total if total else None,
            library=_library(evidence, axis),
            small=remedy.small,
            faster=faster,
            faster_link=links.get(faster.axis) if faster is not None else None,
            ideal_step_ns=free.step_ns if free else None,
            overlap_step_ns=hidden.step_ns if hidden else None,
            fast_link_step_ns=fast.step_ns if fast else None,
        ),
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
        collective=collective,
        axis=axis,
    )


def _asked(evidence: Evidence, question: str, axis: str) -> WhatIf | None:
    return evidence.what_ifs.of(f"{question}:{axis}")


def _remedy(evidence: Evidence, entry: CommByAxis) -> _Remedy:
    """What kind of problem the axis is, by what would bring most of what ideal transfers would."""
    ideal = _asked(evidence, "zero_transfer", entry.axis)
    hidden, fast = (_asked(evidence, name, entry.axis) for name in ("full_overlap", "fast_link"))
    if ideal is None:
        return _Remedy(kind=FindingKind.SERIALIZED)
    merged, small = evidence.what_ifs.of("one_bucket"), _small_calls(evidence, entry.axis)
    if merged is not None and small is not None and merged.gain_ns >= HELPS * ideal.gain_ns:
        return _Remedy(kind=FindingKind.SMALL_COLLECTIVES, what_if=merged, small=small)
    if ideal.gain_ratio < SERIAL * entry.exposed_ns / evidence.step:
        return _Remedy(kind=FindingKind.SERIALIZED, what_if=ideal)
    kinds = evidence.what_ifs.axes.kinds.get(entry.axis, ())
    calls = [call for call in evidence.calls if (call.collective, call.group) in kinds]
    if (
        fast is not None
        and fast.gain_ns >= OF_LINK * ideal.gain_ns
        and not are_small_inside_host(evidence, calls)
    ):
        return _Remedy(kind=FindingKind.SLOW_LINK, what_if=fast)
    barely_hidden = entry.hidden_ns < 0.1 * (entry.hidden_ns + entry.exposed_ns)
    if barely_hidden and hidden is not None and hidden.gain_ns >= 0.9 * ideal.gain_ns:
        return _Remedy(kind=FindingKind.NO_OVERLAP, what_if=hidden)
    return _Remedy(what_if=ideal)


def _small_calls(evidence: Evidence, axis: str) -> SmallCalls | None:
    """All-reduces along the axis that are too small to use the link, and can be merged."""
    axes, merged = evidence.what_ifs.axes, evidence.what_ifs.of("one_bucket")
    blocking = axes.blocking
    all_small = [
        call
        for call in evidence.calls
        if call.collective == "all_reduce"
        and (call.collective, call.group) not in blocking
        and (call.bytes or SMALL_BYTES) < SMALL_BYTES
    ]
    small = [call for call in all_small if (call.collective, call.group) in axes.kinds.get(axis, ())]
    # What merging brings is known for all axes together.
    if not small or len(small) < len(all_small) or merged is None or not evidence.steps_per_rank:
        return None
    num_groups = len({call.group for call in small})
    return SmallCalls(
        calls_per_step=len(small) / num_groups / evidence.steps_per_rank,
        mean_bytes=sum(call.bytes or 0 for call in small) / len(small),
        shortest_ns=min(call.transfer_ns for call in small),
        merged_step_ns=merged.step_ns,
        library=advice.library_of(evidence.metas, tuple({call.group for call in small})),
    )


def _library(evidence: Evidence, axis: str) -> str:
    kinds = evidence.what_ifs.axes.kinds.get(axis, frozenset())
    return advice.library_of(evidence.metas, tuple(sorted({group for _, group in kinds})))


def pattern_of(layer: str) -> str:
    """The name with its numbers replaced: ``layers.*.attention.wo``."""
    return _NUMBER.sub("*", layer)


def _carriers(communication: Communication, entry: CommByAxis) -> tuple[str | None, float]:
    """The pattern of layers with most of the axis' exposed communication, and its share."""
    times: dict[str, int] = defaultdict(int)
    names: dict[str, set[str]] = defaultdict(set)
    for row in communication.by_layer:
        if row.layer and row.axes.get(entry.axis):
            times[pattern_of(row.layer)] += row.axes[entry.axis]
            names[pattern_of(row.layer)].add(row.layer)
    if not times or not entry.exposed_ns:
        return None, 0.0
    top = max(times, key=lambda pattern: times[pattern])
    (only,) = names[top] if len(names[top]) == 1 else (top,)
    return only, times[top] / entry.exposed_ns


def uneven(evidence: Evidence) -> Finding | None:
    """The layer with much more communication than other layers of its name, which all send alike."""
    communication = evidence.communication
    if communication is None or not evidence.step:
        return None
    findings = []
    for axis in (entry.axis for entry in communication.by_axis if entry.exposed_ns):
        rows: dict[str, list[CommByLayer]] = defaultdict(list)
        for row in communication.by_layer:
            if axis in row.axis_bytes:
                rows[pattern_of(row.layer)].append(row)
        findings += [
            finding
            for pattern, of_pattern in rows.items()
            if (finding := _uneven_of(evidence, axis, pattern, of_pattern)) is not None
        ]
    return max(findings, key=lambda finding: finding.gain_ns or 0, default=None)


def _uneven_of(evidence: Evidence, axis: str, pattern: str, rows: list[CommByLayer]) -> Finding | None:
    *smaller, largest = sorted(rows, key=lambda row: row.axis_bytes[axis])
    size, most = largest.axis_bytes[axis], smaller[-1].axis_bytes[axis] if smaller else 0
    # A first layer has no gradients of its input to reduce: some may send less, as long as most are alike.
    peers = [row for row in smaller if row.axis_bytes[axis] * ALIKE >= most]
    if len(peers) < max(MIN_PEERS, ALIKE_SHARE * len(smaller)) or not most or size < UNEVEN * most:
        return None
    sizes = [row.axis_bytes[axis] for row in peers]
    exposed, peer_ns = largest.axes.get(axis, 0), float(np.median([row.axes.get(axis, 0) for row in peers]))
    gain_ns, gain_ratio = evidence.all_of(max(exposed - peer_ns, 0))
    usual = evidence.step_ns.median if evidence.step_ns is not None else evidence.step
    return Finding(
        id=FindingKind.UNEVEN_COMM,
        facts=UnevenComm(
            pattern=pattern,
            num_peers=len(peers),
            axis=axis,
            exposed=evidence.of_step(exposed),
            peer_ns=peer_ns,
            num_bytes=size,
            peer_bytes=float(np.median(sizes)),
            gain_ratio=gain_ratio,
            without_step_ns=round(usual - gain_ns),
        ),
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
        layer=largest.layer,
        axis=axis,
    )
