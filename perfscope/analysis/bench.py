"""A bench run's own figures: speed, loss, and its bytes as predicted, as recorded and as counted on the wire.

predicted: from the scheme's formulas (run.json). recorded: the calls that the ranks really made, in
bytes_algorithmic (METRICS §2: a ring's share per rank). wire: what the hosts' interfaces sent between the
first and the last step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscope.analysis.intervals import Int64
from perfscope.analysis.missing import MissingFigure

WARM_UP_STEPS = 2
LOOPBACK, ETHERNET = "loopback", "ethernet"
Document = Mapping[str, Any]
_CallKey = tuple[str, str, int, int]  # collective, axis, ranks, bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBytes:
    """Bytes per step over one link class, summed over its senders; None: not known, `reason` says why."""

    link_class: str
    predicted: float  # bytes_algorithmic
    recorded: float | None  # bytes_algorithmic of the calls made
    predicted_wire: float  # with the backend's factors
    wire: float | None  # payload and headers, as the interfaces counted
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCount:
    """One kind of call, over all ranks and steps."""

    collective: str
    axis: str
    num_ranks: int
    bytes: int  # S of one call
    what: str
    predicted: int
    recorded: int | None  # None: made by a library, out of the ledger's sight


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What a bench run was and did."""

    scheme: str  # with modifiers
    model: str
    mesh: str
    num_ranks: int
    batch: int
    effective_batch: int
    num_steps: int
    samples_per_s: float | None  # after WARM_UP_STEPS
    step_p10_ns: int | None  # of the slowest rank
    step_median_ns: int | None
    first_loss: float | None  # mean over the ranks that know one
    last_loss: float | None
    held_out_loss: float | None
    peak_rss_bytes: int | None  # largest of the ranks
    links: tuple[LinkBytes, ...]
    calls: tuple[CallCount, ...]
    num_ranks_recorded: int
    details: Mapping[str, Any]  # the scheme's own, of the first rank that has any


def bench_result(
    scheme: object, records: Mapping[int, Document]
) -> tuple[BenchResult | None, tuple[MissingFigure, ...]]:
    """Figures of a bench run, and what of them is missing; (None, ()) where the run is none.

    Args:
        scheme: run.json's `scheme`.
        records: bench.json by rank; ranks that died have none.
    """
    if not isinstance(scheme, Mapping):
        return None, ()
    try:
        found = _figures(scheme, records)
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # edited, or by another version
        reason = f"its record cannot be understood ({type(error).__name__}: {error})"
        return None, (MissingFigure(what="the scheme's figures", reason=reason),)
    lost = found.num_ranks - found.num_ranks_recorded
    if lost:
        reason = f"{lost} of {found.num_ranks} ranks did not live to write their record"
        return found, (MissingFigure(what="calls and losses of every rank", reason=reason),)
    return found, ()


def _figures(scheme: Mapping[str, Any], records: Mapping[int, Document]) -> BenchResult:
    workers = {rank: one for rank, one in records.items() if _durations(one).size}
    slowest = max(workers.values(), key=lambda one: float(np.median(_durations(one))), default=None)
    durations = _durations(slowest)[_warm_up(slowest) :] if slowest else np.empty(0, dtype=np.int64)
    batch = int(scheme["batch"])
    num_steps = max((_durations(one).size for one in workers.values()), default=0)
    losses = [one["losses"] for one in workers.values()]
    return BenchResult(
        scheme=str(scheme["full_name"]),
        model=str(scheme["model"]),
        mesh=_mesh(scheme["mesh"]),
        num_ranks=int(scheme["num_ranks"]),
        batch=batch,
        effective_batch=int(scheme["effective_batch"]),
        num_steps=num_steps,
        samples_per_s=_samples_per_s(batch, workers.values()),
        step_p10_ns=round(float(np.percentile(durations, 10))) if durations.size else None,
        step_median_ns=round(float(np.median(durations))) if durations.size else None,
        first_loss=_mean(one[0] for one in losses),
        last_loss=_mean(one[-1] for one in losses),
        held_out_loss=next(
            (v for one in records.values() if (v := one.get("held_out_loss")) is not None), None
        ),
        peak_rss_bytes=max((int(one.get("peak_rss_bytes") or 0) for one in records.values()), default=None),
        links=_links(scheme, records, num_steps),
        calls=_calls(scheme["predicted"]["calls_of_rank"], records, num_steps),
        num_ranks_recorded=len(records),
        details=next((one["details"] for one in records.values() if one.get("details")), {}),
    )


def _mesh(mesh: Mapping[str, int]) -> str:
    parts = [mesh["data"], mesh["model"], mesh["stage"]]
    return " × ".join(
        f"{num} {axis}" for num, axis in zip(parts, ("data", "model", "stage"), strict=True) if num > 1
    )


def _durations(record: Document | None) -> Int64:
    """Times of a rank's steps, ns; none for a rank that only serves."""
    ends = (record or {}).get("step_ends_ns")
    points: Int64 = np.asarray(ends if isinstance(ends, list) else [], dtype=np.int64)
    return points[1:] - points[:-1]


def _warm_up(record: Document | None) -> int:
    return min(WARM_UP_STEPS, max(_durations(record).size - 1, 0))


def _samples_per_s(batch: int, workers: Iterable[Document]) -> float | None:
    """All samples after the warm-up over the time that the slowest rank took for them."""
    rates = []
    for one in workers:
        rest = _durations(one)[_warm_up(one) :]
        if rest.size and rest.sum():
            rates.append(batch * rest.size / (float(rest.sum()) / 1e9))
    return min(rates, default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _recorded_calls(record: Document) -> dict[_CallKey, int]:
    return {
        (str(call["collective"]), str(call["axis"]), int(call["num_ranks"]), int(call["bytes"])): int(
            call["count"]
        )
        for call in record.get("calls") or ()
    }


def _key(row: Mapping[str, Any]) -> _CallKey:
    return str(row["collective"]), str(row["axis"]), int(row["num_ranks"]), int(row["bytes"])


def _predicted_count(row: Mapping[str, Any], num_steps: int) -> int:
    return int(row["count"]) * (num_steps // int(row["every"]))


def _links(
    scheme: Mapping[str, Any], records: Mapping[int, Document], num_steps: int
) -> tuple[LinkBytes, ...]:
    predicted = scheme["predicted"]
    algorithmic, wires = predicted["bytes_algorithmic_per_step"], predicted["bytes_wire_per_step"]
    recorded, reason = _recorded_links(predicted["calls_of_rank"], records, num_steps)
    measured = _wire(scheme, records, num_steps)
    classes = sorted(set(algorithmic) | set(measured), key=lambda name: -algorithmic.get(name, 0))
    return tuple(
        LinkBytes(
            link_class=link_class,
            predicted=algorithmic.get(link_class, 0.0),
            recorded=None if recorded is None else recorded.get(link_class, 0.0),
            predicted_wire=wires.get(link_class, 0.0),
            wire=measured.get(link_class),
            reason=reason,
        )
        for link_class in classes
    )


def _recorded_links(
    predicted: Mapping[str, Sequence[Mapping[str, Any]]], records: Mapping[int, Document], num_steps: int
) -> tuple[dict[str, float] | None, str]:
    """Bytes per step by link class of the calls that were made.

    A ledger knows the group of a call, not the links it used: those follow from the prediction's entry of the
    same collective, group and size. A call without one is told by the reason.
    """
    if not num_steps or not records:
        return None, "no rank has left its record"
    if any(row["by_library"] for rows in predicted.values() for row in rows):
        return None, "a library makes these calls itself; the traced windows show them"
    found: dict[str, float] = defaultdict(float)
    strange = 0
    for rank, record in records.items():
        entries: dict[_CallKey, list[Mapping[str, Any]]] = defaultdict(list)
        for row in predicted.get(str(rank), ()):
            entries[_key(row)].append(row)
        for key, count in _recorded_calls(record).items():
            rows = entries.get(key)
            if not rows:
                strange += count
                continue
            whole = sum(int(row["count"]) / int(row["every"]) for row in rows)
            for row in rows:
                share = int(row["count"]) / int(row["every"]) / whole
                for link_class, amount in row["links"].items():
                    found[link_class] += count * share * amount / num_steps
    reason = f"{strange} calls that no formula foresaw are left out" if strange else ""
    return dict(found), reason


def _wire(scheme: Mapping[str, Any], records: Mapping[int, Document], num_steps: int) -> dict[str, float]:
    """Bytes per step that the hosts' interfaces sent; one rank of each host tells."""
    hosts = {int(place["rank"]): str(place["host"]) for place in scheme.get("places") or ()}
    by_host: dict[str, Mapping[str, Mapping[str, int]]] = {}
    for rank in sorted(records):
        by_host.setdefault(hosts.get(rank, "?"), records[rank].get("interfaces") or {})
    if not num_steps:
        return {}
    found: dict[str, float] = defaultdict(float)
    for interfaces in by_host.values():
        for name, counters in interfaces.items():
            if counters["tx_bytes"]:
                found[LOOPBACK if name == "lo" else ETHERNET] += counters["tx_bytes"] / num_steps
    if len(set(hosts.values())) < 2:
        found.pop(ETHERNET, None)  # of one host: somebody else's
    return dict(found)


def _calls(
    predicted: Mapping[str, Sequence[Mapping[str, Any]]], records: Mapping[int, Document], num_steps: int
) -> tuple[CallCount, ...]:
    """Every kind of call, summed over ranks; those that only the ledger knows say `not predicted`."""
    foreseen: dict[_CallKey, int] = defaultdict(int)
    words: dict[_CallKey, str] = {}
    by_library: set[_CallKey] = set()
    for rows in predicted.values():
        for row in rows:
            foreseen[_key(row)] += _predicted_count(row, num_steps)
            words.setdefault(_key(row), str(row["what"]))
            if row["by_library"]:
                by_library.add(_key(row))
    made: dict[_CallKey, int] = defaultdict(int)
    for record in records.values():
        for key, count in _recorded_calls(record).items():
            made[key] += count
    keys = sorted(set(foreseen) | set(made), key=lambda key: -key[3] * max(foreseen[key], made[key]))
    return tuple(
        CallCount(
            collective=key[0],
            axis=key[1],
            num_ranks=key[2],
            bytes=key[3],
            what=words.get(key, "not predicted"),
            predicted=foreseen[key],
            recorded=None if key in by_library else made[key],
        )
        for key in keys
    )
