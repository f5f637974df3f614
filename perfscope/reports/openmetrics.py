"""Figures of a finished run as OpenMetrics text: for a metrics store, or node exporter's textfile collector.

Base units: seconds, bytes, ratios. What is not known has no sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from perfscope import __version__
from perfscope.analysis.results import Breakdown, RunAnalysis
from perfscope.reports.display import visible
from perfscope.reports.exposition import Sample, family

_NS = 1e-9


def render_openmetrics(analysis: RunAnalysis) -> str:
    """The whole exposition, `# EOF` and a newline at the end."""
    labels = {"run": visible(analysis.run.name or "unnamed run")}
    return "".join(f"{line}\n" for line in (*_lines(analysis, labels), "# EOF"))


def _lines(analysis: RunAnalysis, labels: dict[str, str]) -> Iterator[str]:
    about = {**labels, "framework": visible(analysis.framework), "version": __version__}
    yield from family("perfscope_run_info", "gauge", "", "The run.", [(about, 1.0)])
    step = analysis.step_ns
    quantiles = {} if step is None else {"p10": step.p10, "median": step.median, "p90": step.p90}
    samples = [({**labels, "statistic": key}, value * _NS) for key, value in quantiles.items()]
    yield from family("perfscope_step_seconds", "gauge", "seconds", "Step time over all ranks.", samples)
    for name, unit, help_, value in (
        (
            "throughput_samples_per_second",
            "samples_per_second",
            "Samples of all ranks.",
            analysis.throughput_samples_per_s,
        ),
        ("throughput_tokens_per_second", "tokens_per_second", "Tokens of all ranks.", analysis.tokens_per_s),
        ("overhead_ratio", "ratio", "Profiling overhead of the training time.", analysis.overhead_ratio),
    ):
        yield from family(f"perfscope_{name}", "gauge", unit, help_, _known({"": value}, labels, ""))
    yield from _of_ranks(analysis, labels)
    yield from _of_collectives(analysis, labels)


def _of_ranks(analysis: RunAnalysis, labels: dict[str, str]) -> Iterator[str]:
    steps: list[Sample] = []
    parts: list[Sample] = []
    memory: list[Sample] = []
    for rank in analysis.ranks:
        of_rank = {**labels, "rank": str(rank.rank), "host": visible(rank.host)}
        if rank.step_ns is not None:
            steps.append((of_rank, rank.step_ns.median * _NS))
        if rank.breakdown_ns is not None:
            times = {part: getattr(rank.breakdown_ns, part) * _NS for part in Breakdown.PARTS}
            parts += _known(
                {part: value for part, value in times.items() if part not in rank.unknown}, of_rank, "part"
            )
        held = {"process": rank.peak_rss_bytes, "device": rank.peak_device_bytes}
        memory += _known(held, of_rank, "memory")
    yield from family("perfscope_rank_step_seconds", "gauge", "seconds", "Median step of a rank.", steps)
    yield from family(
        "perfscope_rank_step_part_seconds", "gauge", "seconds", "Parts of the mean traced step.", parts
    )
    yield from family("perfscope_rank_peak_memory_bytes", "gauge", "bytes", "Most memory held.", memory)


def _of_collectives(analysis: RunAnalysis, labels: dict[str, str]) -> Iterator[str]:
    rates: dict[str, list[Sample]] = {"algorithm": [], "bus": []}
    calls: list[Sample] = []
    for entry in analysis.collectives:
        of_call = {**labels, "collective": visible(entry.collective), "group": visible(entry.group)}
        calls.append((of_call, float(entry.count)))
        for kind, rate in (("algorithm", entry.algbw_bytes_per_s), ("bus", entry.busbw_bytes_per_s)):
            rates[kind] += _known({"": rate}, of_call, "")
    yield from family("perfscope_collective_calls", "gauge", "", "Traced calls per rank.", calls)
    for kind, samples in rates.items():
        name = f"perfscope_collective_{kind}_bytes_per_second"
        yield from family(name, "gauge", "bytes_per_second", f"The {kind} bandwidth.", samples)


def _known(values: Mapping[str, float | None], labels: dict[str, str], key: str) -> list[Sample]:
    """A sample for each value that is known and finite, with its name as the label `key` ("" = no label)."""
    return [
        ({**labels, key: name} if key else labels, float(value))
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    ]
