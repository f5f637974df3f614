"""Bytes of a bench run: as formulas predicted them, as its ranks recorded them, as the wire counted them.

All are bytes per step, summed over their senders, by link class (METRICS §2: a ring's share per rank).

predicted        by the scheme's formulas, before the run (run.json); bytes_algorithmic.
predicted_wire   the same with what the backend is known to add (its factor table); bytes_wire.
recorded         of the calls really made; bytes_algorithmic. A rank's ledger counts its own calls over the
                 whole run. Calls that a library makes (DDP, FSDP, torch's pipelines) are in no ledger: for
                 each kind of collective their prediction is scaled by traced / predicted S, where traced = S
                 of that kind per traced step minus S per step of the ledgers. Without a traced window they
                 are missing.
wire             what the hosts' interfaces sent between the first and the last step, headers included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

from perfscope.messages import bench as why
from perfscope.rundir.scheme_records import (
    BenchRecord,
    InterfaceBytes,
    LedgerCall,
    PredictedCall,
    SchemeRecord,
)
from perfscope.vocabulary.links import LinkClass

# A trace shows what a backend does, not what it was asked: (backend, asked) -> seen. S is the same.
_SEEN_AS = {("gloo", "reduce_scatter"): "all_reduce"}
_CallKey = tuple[str, str, int, int]  # collective, axis, ranks, bytes


class LinkBytes(Struct, frozen=True, kw_only=True):
    """Bytes per step over one link class, summed over its senders; None: not known, `reason` says why."""

    link_class: str  # class of the link
    predicted: float  # bytes_algorithmic
    recorded: float | None  # bytes_algorithmic of the calls made
    predicted_wire: float  # with the backend's factors
    wire: float | None  # payload and headers, as the interfaces counted
    reason: str = ""  # why a value is missing


class CallCount(Struct, frozen=True, kw_only=True):
    """One kind of call, over all ranks and steps."""

    collective: str
    axis: str  # of the mesh
    num_ranks: int
    bytes: int  # S of one call
    what: str  # purpose of the call
    predicted: int  # calls by the formulas of the scheme
    recorded: int | None  # None: made by a library, out of the ledger's sight


class RecordedBytes(Struct, frozen=True, kw_only=True):
    """Bytes per step of the calls made.

    Attributes:
        links: by link class; None: not known.
        unexpected: S per step of calls that no formula predicts; their links are not known.
        reason: what is missing of `links`, and why; empty: nothing.
    """

    links: Mapping[str, float] | None
    unexpected: float = 0.0
    reason: str = ""


def recorded_bytes(
    scheme: SchemeRecord,
    records: Mapping[int, BenchRecord],
    num_steps: int,
    traced_bytes: Mapping[str, float] | None,
) -> RecordedBytes:
    """Bytes per step by link class of the calls that were made.

    A ledger knows the group of a call, not the links it used: those follow from the prediction's entry of the
    same collective, group and size.

    Args:
        scheme: run.json's `scheme`.
        records: bench.json by rank.
        num_steps: of the run.
        traced_bytes: collective -> S per traced step, over all callers; None: nothing was traced.
    """
    predicted = scheme.calls_of_rank
    if not num_steps or not records:
        return RecordedBytes(links=None, reason=why.NO_RECORD)
    if unlisted := [rank for rank in records if str(rank) not in predicted]:
        reason = why.calls_not_listed(len(unlisted), len(records))
        return RecordedBytes(links=None, reason=reason)
    scales, reason = _library_scales(scheme, records, num_steps, traced_bytes)
    if scales is None:
        return RecordedBytes(links=None, reason=reason)
    totals: dict[str, float] = defaultdict(float)
    strange, unexpected = 0, 0.0
    for rank, record in records.items():
        entries: dict[_CallKey, list[PredictedCall]] = defaultdict(list)
        for row in predicted.get(str(rank), ()):
            if row.by_library:
                _add(totals, row, _per_step(row) * scales[_seen_as(scheme, row.collective)])
            else:
                entries[_key(row)].append(row)
                _add(totals, row, 0.0)  # a link whose calls were never made carried 0 bytes
        for key, count in _ledger(record).items():
            rows = entries.get(key)
            if not rows:
                strange += count
                unexpected += key[3] * count / num_steps
                continue
            total = sum(_per_step(row) for row in rows)
            for row in rows:
                _add(totals, row, _per_step(row) / total * count / num_steps)
    reason = why.calls_left_out(strange) if strange else ""
    return RecordedBytes(links=dict(totals), unexpected=unexpected, reason=reason)


def _library_scales(
    scheme: SchemeRecord,
    records: Mapping[int, BenchRecord],
    num_steps: int,
    traced_bytes: Mapping[str, float] | None,
) -> tuple[dict[str, float] | None, str]:
    """(collective as traced -> traced over predicted S of libraries' calls, ""); (None, why not)."""
    wanted: dict[str, float] = defaultdict(float)
    for rows in scheme.calls_of_rank.values():
        for row in rows:
            if row.by_library:
                wanted[_seen_as(scheme, row.collective)] += row.bytes * _per_step(row)
    if wanted and traced_bytes is None:
        return None, why.LIBRARY_NOT_TRACED
    sums: dict[str, float] = defaultdict(float)
    for record in records.values():
        for key, count in _ledger(record).items():
            sums[_seen_as(scheme, key[0])] += key[3] * count / num_steps
    seen: dict[str, float] = defaultdict(float)
    for name, amount in (traced_bytes or {}).items():
        seen[_seen_as(scheme, name)] += amount
    unseen = sorted(set(wanted) - set(seen))
    if unseen:
        return None, why.library_not_sized(unseen[0])
    return {
        name: max(0.0, seen[name] - sums[name]) / amount if amount else 0.0 for name, amount in wanted.items()
    }, ""


def _seen_as(scheme: SchemeRecord, collective: str) -> str:
    return _SEEN_AS.get((scheme.backend or "gloo", collective), collective)


def _per_step(row: PredictedCall) -> float:
    """Calls per step, over a whole period."""
    return row.count / row.every


def _add(totals: dict[str, float], row: PredictedCall, calls: float) -> None:
    for link_class, amount in row.links.items():
        totals[link_class] += calls * amount


def link_bytes(
    scheme: SchemeRecord, records: Mapping[int, BenchRecord], num_steps: int, recorded: RecordedBytes
) -> tuple[LinkBytes, ...]:
    """Predicted, recorded and counted bytes side by side, the link with most predicted bytes first."""
    predicted = scheme.predicted
    algorithmic = predicted.bytes_algorithmic_per_step if predicted is not None else {}
    wires = predicted.bytes_wire_per_step if predicted is not None else {}
    measured = wire_bytes(scheme, records, num_steps)
    made = recorded.links
    classes = set(algorithmic) | set(made or ()) | {name for name, amount in measured.items() if amount}
    return tuple(
        LinkBytes(
            link_class=link_class,
            predicted=algorithmic.get(link_class, 0.0),
            recorded=None if made is None else made.get(link_class, 0.0),
            predicted_wire=wires.get(link_class, 0.0),
            wire=measured.get(link_class),
            reason=recorded.reason,
        )
        for link_class in sorted(classes, key=lambda name: (-algorithmic.get(name, 0), name))
    )


def wire_bytes(scheme: SchemeRecord, records: Mapping[int, BenchRecord], num_steps: int) -> dict[str, float]:
    """Bytes per step that the hosts' interfaces sent: the loopback devices, and all others together.

    One rank of each host reports. On a single host other interfaces carry other programs' bytes and are left
    out.
    """
    hosts = {rank_place.rank: rank_place.host for rank_place in scheme.places}
    by_host: dict[str, Mapping[str, InterfaceBytes]] = {}
    for rank in sorted(records):
        by_host.setdefault(hosts.get(rank, "?"), records[rank].interfaces)
    totals: dict[str, float] = defaultdict(float)
    for interfaces in by_host.values() if num_steps else ():
        for name, counters in interfaces.items():
            totals[LinkClass.LOOPBACK if name == "lo" else LinkClass.ETHERNET] += (
                counters.tx_bytes / num_steps
            )
    if len(set(hosts.values())) < 2:
        totals.pop(LinkClass.ETHERNET, None)
    return dict(totals)


def call_counts(
    scheme: SchemeRecord, records: Mapping[int, BenchRecord], num_steps: int
) -> tuple[CallCount, ...]:
    """Every kind of call, summed over ranks; those that only the ledger knows say `not predicted`."""
    foreseen: dict[_CallKey, int] = defaultdict(int)
    labels: dict[_CallKey, str] = {}
    by_library: set[_CallKey] = set()
    for rows in scheme.calls_of_rank.values():
        for row in rows:
            planned = round(row.count * (num_steps // row.every))
            is_complete = row.calls is not None and not (scheme.steps and num_steps < scheme.steps)
            foreseen[_key(row)] += (row.calls if is_complete and row.calls else planned) if num_steps else 0
            labels.setdefault(_key(row), row.what)
            if row.by_library:
                by_library.add(_key(row))
    made: dict[_CallKey, int] = defaultdict(int)
    for record in records.values():
        for key, count in _ledger(record).items():
            made[key] += count
    keys = sorted(set(foreseen) | set(made), key=lambda key: (-key[3] * max(foreseen[key], made[key]), key))
    return tuple(
        CallCount(
            collective=key[0],
            axis=key[1],
            num_ranks=key[2],
            bytes=key[3],
            what=labels.get(key, "not predicted"),
            predicted=foreseen[key],
            recorded=None if key in by_library else made[key],
        )
        for key in keys
    )


def _ledger(record: BenchRecord) -> dict[_CallKey, int]:
    counts: dict[_CallKey, int] = defaultdict(int)
    for call in record.calls:
        counts[_key(call)] += call.count
    return counts


def _key(row: PredictedCall | LedgerCall) -> _CallKey:
    return row.collective, row.axis, row.num_ranks, row.bytes
