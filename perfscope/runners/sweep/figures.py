"""The figures of one finished bench run, read back from its directory: what tables and studies are made of.

Bytes are per step and summed over all senders. Three are told apart: *predicted* from the scheme's formulas
before the run, *recorded* as the ranks' ledgers (for calls of a library: the traces) hold them, *wire*
as the hosts' interfaces counted them. A figure that the run does not hold is None, and `missing` says why.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.runners.identity import Place, all_traffic, bytes_by_link, planned_places
from perfscope.runners.job import Job
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.sweep.sides import ETHERNET, UNEXPECTED
from perfscope.runners.traffic import Traffic, expected_calls

Document = dict[str, Any]
_KEPT_LOSSES = 3  # the first and last training losses are means over that many steps
_Key = tuple[str, str, int, int]  # collective, axis, ranks, bytes: as a ledger counts calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """What only an analysis of the run's steps and traces can tell.

    Attributes:
        step_p10_ns, step_median_ns: over all ranks' steps, without warm-up and traced steps.
        rank_step_ns: rank -> its own median.
        exposed_comm_ns: per mean traced step and rank; None: nothing was traced.
        exposed_comm_ratio: its share of the mean traced step.
        traced_bytes: collective -> bytes of S per traced step and rank, from the traces.
        reason: why there is no exposed communication.
    """

    step_p10_ns: int | None = None
    step_median_ns: int | None = None
    rank_step_ns: Mapping[int, int] = field(default_factory=dict)
    exposed_comm_ns: float | None = None
    exposed_comm_ratio: float | None = None
    traced_bytes: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def read_figures(run_dir: Path, job: Job, analysed: Analysed) -> Document:
    """Every figure of the run; JSON values.

    Raises:
        RunDirectoryError: the run holds no result of a bench run.
    """
    ranks = _read_ranks(run_dir)
    manifest = _read(run_dir / layout.RUN_JSON) or {}
    places = _places(manifest.get("scheme"), job)
    missing: dict[str, str] = {}
    losses = _training_losses(ranks)
    held_out = ranks.get(0, {}).get("held_out_loss")
    if held_out is None:
        missing["held_out_loss"] = "rank 0 wrote none, or it is not a number"
    if analysed.exposed_comm_ns is None:
        missing["exposed_comm_ns"] = analysed.reason or "no window was traced"
    if analysed.step_median_ns is None:
        missing["step_median_ns"] = "no step was recorded"
    return {
        "samples_per_s": _samples_per_s(job, ranks, analysed),
        "step_p10_ns": analysed.step_p10_ns,
        "step_median_ns": analysed.step_median_ns,
        "exposed_comm_ns": analysed.exposed_comm_ns,
        "exposed_comm_ratio": analysed.exposed_comm_ratio,
        "first_loss": _mean(losses[:_KEPT_LOSSES]),
        "final_loss": _mean(losses[-_KEPT_LOSSES:]),
        "held_out_loss": held_out,
        "peak_rss_bytes": max((int(one.get("peak_rss_bytes") or 0) for one in ranks.values()), default=0),
        "bytes_per_step": _bytes(job, ranks, places, analysed, missing),
        "details": ranks.get(0, {}).get("details") or {},
        "missing": missing,
    }


def recorded_bytes(
    traffic: Mapping[int, Sequence[Traffic]],
    ledgers: Mapping[int, Counter[_Key]],
    places: Sequence[Place],
    steps: int,
    traced_bytes: Mapping[str, float],
) -> dict[str, float] | None:
    """Bytes per step over each link class as recorded; None where a library's calls were not traced.

    A ledger knows a call's kind, axis, size and bytes, but not its links. Those are the predicted call's of
    the same kind, so each prediction is scaled by how often the call was really made. Bytes of calls that
    nobody predicted are on no link: `unexpected`.
    """
    found: dict[str, float] = defaultdict(float)
    library = _library_scale(traffic, ledgers, steps, traced_bytes)
    if any(
        call.by_library and call.collective not in library for calls in traffic.values() for call in calls
    ):
        return None
    for rank, calls in traffic.items():
        made = ledgers.get(rank, Counter())
        expected = expected_calls(calls, steps)
        for call in calls:
            often = (
                call.calls_in(steps) / steps * call.every / call.count
            )  # `steps` need be no multiple of `every`
            if call.by_library:
                scale = library[call.collective]
            else:
                scale = often * made[_key(call)] / expected[_key(call)] if expected[_key(call)] else 0.0
            for link, amount in bytes_by_link({rank: [call]}, places).items():
                found[link] += amount * scale
        unexpected = sum(key[3] * count / steps for key, count in made.items() if key not in expected)
        if unexpected:
            found[UNEXPECTED] += unexpected
    return dict(found)


def _library_scale(
    traffic: Mapping[int, Sequence[Traffic]],
    ledgers: Mapping[int, Counter[_Key]],
    steps: int,
    traced_bytes: Mapping[str, float],
) -> dict[str, float]:
    """collective -> traced over predicted bytes of the calls that libraries make."""
    predicted: dict[str, float] = defaultdict(float)
    own: dict[str, float] = defaultdict(float)
    for calls in traffic.values():
        for call in calls:
            if call.by_library:
                predicted[call.collective] += call.bytes * call.count / call.every
    for ledger in ledgers.values():
        for key, count in ledger.items():
            own[key[0]] += key[3] * count / steps
    found = {}
    for collective, amount in predicted.items():
        seen = traced_bytes.get(collective)
        if seen is not None and amount:
            found[collective] = max(0.0, seen * len(traffic) - own[collective]) / amount
    return found


def _bytes(
    job: Job,
    ranks: Mapping[int, Document],
    places: Sequence[Place],
    analysed: Analysed,
    missing: dict[str, str],
) -> Document:
    traffic = all_traffic(job)
    ledgers = {rank: _ledger(one) for rank, one in ranks.items()}
    backend = "gloo" if job.config.backend == "auto" and job.config.device != "cuda" else job.config.backend
    recorded = recorded_bytes(traffic, ledgers, places, job.config.steps, analysed.traced_bytes)
    if recorded is None:
        missing["recorded"] = "calls that a library makes are only in traces, and no window was traced"
    return {
        "predicted": bytes_by_link(traffic, places),
        "predicted_wire": bytes_by_link(traffic, places, backend),
        "recorded": recorded,
        "wire": _wire(ranks, places, job.config.steps),
    }


def _wire(ranks: Mapping[int, Document], places: Sequence[Place], steps: int) -> dict[str, float]:
    """What the hosts' interfaces sent per step: the loopback device, and all others together."""
    found = {"loopback": 0.0, ETHERNET: 0.0}
    seen: set[str] = set()
    for rank in sorted(ranks):  # ranks of one host read the same counters
        host = places[rank].host if rank < len(places) else ""
        if host in seen:
            continue
        seen.add(host)
        for name, counters in (ranks[rank].get("interfaces") or {}).items():
            found["loopback" if name == "lo" else ETHERNET] += counters.get("tx_bytes", 0) / steps
    return found


def _samples_per_s(job: Job, ranks: Mapping[int, Document], analysed: Analysed) -> float | None:
    """Samples per second of median steps. Asynchronous workers step by themselves: they are added up."""
    if find_scheme(job.config.scheme).axes.synchrony != "asynchronous":
        return job.config.batch * 1e9 / analysed.step_median_ns if analysed.step_median_ns else None
    workers = [rank for rank, one in ranks.items() if any(x is not None for x in one.get("losses") or ())]
    steps = [analysed.rank_step_ns[rank] for rank in workers if analysed.rank_step_ns.get(rank)]
    return sum(job.config.batch / len(workers) * 1e9 / step for step in steps) if steps else None


def _training_losses(ranks: Mapping[int, Document]) -> list[float]:
    """By step, the mean over the ranks that know theirs."""
    rows = [one.get("losses") or [] for _, one in sorted(ranks.items())]
    found = []
    for step in range(max(map(len, rows), default=0)):
        known = [row[step] for row in rows if step < len(row) and row[step] is not None]
        if known:
            found.append(sum(known) / len(known))
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _key(call: Traffic) -> _Key:
    return call.collective, call.axis, call.group_size or len(call.members), call.bytes


def _ledger(document: Document) -> Counter[_Key]:
    found: Counter[_Key] = Counter()
    for one in document.get("calls") or ():
        found[one["collective"], one["axis"], one["num_ranks"], one["bytes"]] += one["count"]
    return found


def _places(scheme: Any, job: Job) -> tuple[Place, ...]:
    """Where the ranks were, by rank; as planned where the run does not say."""
    rows = scheme.get("places") if isinstance(scheme, dict) else None
    if not isinstance(rows, list) or len(rows) != job.num_ranks:
        return planned_places(job)
    return tuple(
        Place(host=str(row["host"]), numa=row["numa"], cpus=tuple(row["cpus"]), gpu=row["gpu"])
        for row in rows
    )


def _read_ranks(run_dir: Path) -> dict[int, Document]:
    found = {}
    for path in (run_dir / layout.RANKS).glob(f"*/{layout.BENCH_JSON}"):
        document = _read(path)
        if document is not None and path.parent.name.isdigit():
            found[int(path.parent.name)] = document
    if not found:
        raise RunDirectoryError(f"{run_dir} holds no result of a bench run: no rank came to its end")
    return dict(sorted(found.items()))


def _read(path: Path) -> Document | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
