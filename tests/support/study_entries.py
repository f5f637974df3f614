"""Runs of a study whose truth is known, as analysis yields them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from perfscope.analysis.bench import LEFT_OUT, BenchResult
from perfscope.analysis.bench_bytes import LinkBytes
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.analysis.results import (
    Breakdown,
    CommByAxis,
    CommByLayer,
    CommUnattributed,
    Communication,
    Finding,
    LayerResult,
    Quantiles,
    RankResult,
    RunAnalysis,
)
from perfscope.analysis.study.results import PARTS, RunEntry
from perfscope.rundir.records import rank_record
from perfscope.rundir.scheme_records import BenchRecord
from perfscope.rundir.typed import read_as
from perfscope.vocabulary.communication import NoTimes, Unattributed
from perfscope.vocabulary.findings import FindingKind
from tests.support.records import run_record
from tests.support.stated_finding import stated
from tests.support.synthetic_topology import topology_record

MS = 1_000_000
_STARTS = itertools.count(1_780_000_000_000_000_000)


def parts(step_ms: float = 100, exposed: float = 0.2, **shares: float) -> Breakdown:
    """A traced step; what the shares leave is compute."""
    step = round(step_ms * MS)
    given = {"exposed_comm": exposed, **shares}
    values = {part: round(given.get(part, 0.0) * step) for part in PARTS if part != "compute"}
    return Breakdown(step=step, compute=step - sum(values.values()), num_steps=2, **values)


def rank_result(rank: int, host: str, breakdown: Breakdown | None, num_steps: int = 20) -> RankResult:
    step = breakdown.step if breakdown else 100 * MS
    return RankResult(
        rank=rank,
        host=host,
        num_steps=num_steps,
        num_traced_steps=2 if breakdown else 0,
        step_ns=Quantiles(median=step, p10=step, p90=step, count=num_steps),
        breakdown_ns=breakdown,
        comm_ns=None,
        overlap_ratio=None,
        device_ns=None,
        input_wait_ns=None,
        samples_per_step=None,
        overhead_ns=None,
        elapsed_ns=None,
        finished=True,
    )


def efficiency(ranks: int, useful_ms: float, step_ms: float, **changes: Any) -> Efficiency:
    """Balanced ranks; half of what is not useful is serialization, by default."""
    share = useful_ms / step_ms
    values: dict[str, Any] = {
        "num_steps": 2,
        "step_ns": round(step_ms * MS),
        "ideal_step_ns": round(step_ms * MS * share**0.5),
        "useful_ns": tuple((rank, round(useful_ms * MS)) for rank in range(ranks)),
        "load_balance": 1.0,
        "lb_in": None,
        "lb_out": None,
        "comm_efficiency": share,
        "serialisation": share**0.5,
        "transfer": share**0.5,
        "parallel_efficiency": share,
    }
    return Efficiency(**{**values, **changes})


def machine(hosts: Sequence[str], cpu: str = "Epyc", clean: bool | None = True) -> MachineAnalysis:
    topology = {
        "cpu_model": cpu,
        "logical_cpus": 8,
        "memory_bytes": 2**34,
        "numa_nodes": [{"node": 0}],
        "gpus": [],
        "kernel": "6.1",
        "nics": [],
    }
    return MachineAnalysis(
        hosts=tuple(hosts),
        topologies={host: topology_record(topology) for host in hosts},
        clean=clean,
        clean_reason="looked at",
    )


def bench_result(scheme: str, ranks: int, speed: float | None, batch: int, **changes: Any) -> BenchResult:
    values: dict[str, Any] = {
        "scheme": scheme,
        "model": "smallcnn",
        "mesh": f"{ranks} data",
        "num_ranks": ranks,
        "batch": batch,
        "effective_batch": batch,
        "num_steps": 20,
        "samples_per_s": speed,
        "step_p10_ns": None,
        "step_median_ns": None,
        "num_counted_steps": 16,
        "traced_steps": LEFT_OUT,
        "first_loss": 2.0,
        "last_loss": 1.0,
        "held_out_loss": 1.1,
        "peak_rss_bytes": 2**30,
        "exposed_comm_ns": None,
        "exposed_comm_ratio": None,
        "links": (),
        "unexpected_bytes": 0.0,
        "calls": (),
        "num_ranks_recorded": ranks,
        "details": {},
        "missing": {},
    }
    return BenchResult(**{**values, **changes})


def link(link_class: str, size: float) -> LinkBytes:
    return LinkBytes(link_class=link_class, predicted=size, recorded=size, predicted_wire=size, wire=size)


def finding(id_: str, title: str = "Something bounds the step.", action: str = "Mend it.") -> Finding:
    return stated(FindingKind(id_), title, action=action)


def layer(name: str, kind: str, num_params: int | None) -> LayerResult:
    return LayerResult(
        layer=name,
        module_type=kind,
        calls=1,
        forward_ns=MS,
        backward_ns=MS,
        exposed_comm_ns=None,
        flops=None,
        bytes=None,
        order=0,
        num_params=num_params,
    )


def communication(**exposed_ms: float) -> Communication:
    """By axis; half of the first axis is of layer fc, all else of none."""
    times = {axis: round(value * MS) for axis, value in exposed_ms.items()}
    first = next(iter(times))
    of_layer = times[first] // 2
    outside = {**times, first: times[first] - of_layer}
    return Communication(
        exposed_ns=sum(times.values()),
        hidden_ns=0,
        by_layer=(
            CommByLayer(
                layer="fc", exposed_ns=of_layer, hidden_ns=0, calls=1, bytes=None, axes={first: of_layer}
            ),
        ),
        by_axis=tuple(
            CommByAxis(
                axis=axis,
                inferred=False,
                group_size=2,
                link_class=None,
                no_link=None,
                ports=(),
                calls=1,
                bytes=None,
                busbw_bytes_per_s=None,
                wait_ns=None,
                transfer_ns=None,
                no_times=NoTimes.NOT_MATCHED,
                hidden_ns=0,
                exposed_ns=value,
            )
            for axis, value in times.items()
        ),
        unattributed=(
            CommUnattributed(
                reason=Unattributed.OUTSIDE_LAYERS,
                exposed_ns=sum(outside.values()),
                calls=1,
                collectives={},
                axes=outside,
            ),
        ),
    )


def entry(
    name: str,
    *,
    ranks: int = 2,
    scheme: str = "dp.ddp",
    speed: float | None = 100.0,
    batch: int = 32,
    hosts: int = 1,
    breakdown: Breakdown | None = None,
    traced: bool = True,
    bench: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    cpu: str = "Epyc",
    clean: bool | None = True,
    analysis: dict[str, Any] | None = None,
    records: dict[int, dict[str, Any]] | None = None,
    root: dict[str, Any] | None = None,
) -> RunEntry:
    """One run of `perfscope bench`; scheme "" makes it any other program, `batch` its option."""
    step = breakdown or parts()
    names = [f"node{rank * hosts // ranks}" for rank in range(ranks)]
    document: dict[str, Any] = {
        "perfscope_version": "0.1.0",
        "name": name,
        "status": "finished",
        "exit": {"code": 0, "signal": None},
        "start_unix_ns": next(_STARTS),
        "world_size": ranks,
        "command": ["python", "train.py"],
        "packages": {"torch": "2.13.0"},
        "environment": {},
        "labels": {},
        "options": {"samples_per_step": batch},
    }
    if scheme:
        document["scheme"] = {
            "full_name": scheme,
            "input_shape": [3, 16, 16],
            "dtype": "float32",
            "threads": 1,
            "axes": {"parallelism": "data"},
        }
    document.update(run or {})
    seen = [rank_result(at, names[at], step if traced else None) for at in range(ranks)]
    values: dict[str, Any] = {
        "run": run_record(document),
        "ranks": tuple(seen),
        "layers": (),
        "collectives": (),
        "calls": (),
        "step_ns": Quantiles(median=step.step, p10=step.step, p90=step.step, count=20),
        "throughput_samples_per_s": speed,
        "samples_source": "scheme" if scheme else "option",
        "overhead_ratio": 0.001,
        "findings": (),
        "missing": (),
        "provenance": (),
        "machine": machine(sorted(set(names)), cpu, clean),
        "bench": bench_result(scheme, ranks, speed, batch, **(bench or {})) if scheme else None,
    }
    return RunEntry(
        name=name,
        analysis=RunAnalysis(**{**values, **(analysis or {})}),
        bench_records={rank: read_as(BenchRecord, one) for rank, one in (records or {}).items()},
        metas=dict.fromkeys(range(ranks), rank_record({"root": root})) if root else {},
    )
