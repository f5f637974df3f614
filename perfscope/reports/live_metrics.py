"""A run that still goes on, as metrics for the node exporter's textfile collector.

The text is in Prometheus's text format 0.0.4, the one that the collector reads, and not in OpenMetrics: there
the TYPE line of a counter names it without _total, and the collector would find its samples untyped.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from perfscope.analysis.live import LiveHost, LiveRun
from perfscope.reports.display import visible
from perfscope.reports.exposition import Sample, family


class LiveMetric(NamedTuple):
    """One family.

    Attributes:
        name: whole, with its unit; that of a counter ends with _total.
        is_counter: it only grows.
    """

    name: str
    help: str
    is_counter: bool = False


RUNNING = LiveMetric("perfscope_run_running", "1 while the command runs, 0 after it has ended.")
START = LiveMetric("perfscope_run_start_time_seconds", "When the run started, Unix time.")
STEPS = LiveMetric("perfscope_run_steps_total", "Steps of the rank that has finished most.", True)
RANKS = LiveMetric("perfscope_run_ranks", "Ranks that are recorded on this host.")
HANGING = LiveMetric("perfscope_run_hanging_ranks", "Ranks that make no step for long.")
STEP = LiveMetric("perfscope_run_step_seconds", "Median of the last steps of the slowest rank.")
RATE = LiveMetric("perfscope_run_samples_per_second", "Samples per second of all ranks of the job.")
RANK_STEPS = LiveMetric("perfscope_rank_steps_total", "Steps that the rank has finished.", True)
RANK_STEP = LiveMetric("perfscope_rank_step_seconds", "Median step of a rank.")
RANK_AGE = LiveMetric("perfscope_rank_since_step_seconds", "Time since the rank's last step was written.")
RANK_HANGS = LiveMetric("perfscope_rank_hanging", "1 where the rank makes no step for long, else 0.")
_OF_RUN = (RUNNING, START, STEPS, RANKS, HANGING, STEP, RATE)
_OF_RANK = (RANK_STEPS, RANK_STEP, RANK_AGE, RANK_HANGS)
# Field of LiveHost -> its metric.
_OF_HOST: Mapping[str, LiveMetric] = {
    "cpus_busy": LiveMetric("perfscope_host_busy_cpus", "CPUs that were busy."),
    "others_cpus": LiveMetric("perfscope_host_other_cpus", "CPUs that other processes took."),
    "throttled_ratio": LiveMetric(
        "perfscope_host_throttled_ratio", "Time in which the job's CPU quota held threads back."
    ),
    "pressure_ratio": LiveMetric(
        "perfscope_host_cpu_pressure_ratio", "Time in which a task waited for a CPU."
    ),
    "memory_bytes": LiveMetric("perfscope_host_memory_used_bytes", "Memory in use without the page cache."),
    "memory_total_bytes": LiveMetric("perfscope_host_memory_bytes", "Memory of the host."),
    "received_bytes_per_s": LiveMetric(
        "perfscope_host_received_bytes_per_second", "Received by all network interfaces."
    ),
    "sent_bytes_per_s": LiveMetric("perfscope_host_sent_bytes_per_second", "Sent by all network interfaces."),
}
# Field of LiveHost, a value for each GPU -> its metric.
_OF_GPU: Mapping[str, LiveMetric] = {
    "gpu_busy_ratio": LiveMetric("perfscope_gpu_busy_ratio", "Share of time in which any kernel ran."),
    "gpu_memory_bytes": LiveMetric("perfscope_gpu_memory_used_bytes", "Device memory in use."),
}
LIVE_METRICS: tuple[LiveMetric, ...] = (*_OF_RUN, *_OF_RANK, *_OF_HOST.values(), *_OF_GPU.values())


def render_metrics(run: LiveRun, run_id: str, host: str, *, is_running: bool) -> str:
    """The whole text, a newline at the end.

    Args:
        run: as it is now.
        run_id: that tells the run from others, such as the name of its directory.
        host: that writes the text.
        is_running: False: what holds only while a run goes on is left out.
    """
    base = {"run": visible(run_id)}
    of_run = {**base, "host": visible(host)}
    steps = max((rank.steps for rank in run.ranks), default=None)
    values = [
        (RUNNING, float(is_running)),
        (START, None if run.started_unix_ns is None else run.started_unix_ns / 1e9),
        (STEPS, steps),
    ]
    if is_running:
        values += [
            (RANKS, len(run.ranks)),
            (HANGING, len(run.hanging) if run.looks_for_hangs else None),
            (STEP, _seconds(run.step_ns)),
            (RATE, run.samples_per_s),
        ]
    lines = [line for metric, value in values for line in _family(metric, [(of_run, value)])]
    if is_running:
        lines += [*_ranks(run, base), *_hosts(run.hosts, base)]
    return "".join(f"{line}\n" for line in lines)


def _ranks(run: LiveRun, base: Mapping[str, str]) -> Iterator[str]:
    ranks = run.ranks
    labels = [{**base, "host": visible(rank.host), "rank": str(rank.rank)} for rank in ranks]
    columns = (
        (RANK_STEPS, [rank.steps for rank in ranks]),
        (RANK_STEP, [_seconds(rank.step_ns) for rank in ranks]),
        (RANK_AGE, [rank.age_s for rank in ranks]),
        (RANK_HANGS, [int(rank.hangs) if run.looks_for_hangs else None for rank in ranks]),
    )
    for metric, values in columns:
        yield from _family(metric, list(zip(labels, values, strict=True)))


def _hosts(hosts: Sequence[LiveHost], base: Mapping[str, str]) -> Iterator[str]:
    labels = [{**base, "host": visible(host.host)} for host in hosts]
    for field, metric in _OF_HOST.items():
        values = [getattr(host, field) for host in hosts]
        yield from _family(metric, list(zip(labels, values, strict=True)))
    for field, metric in _OF_GPU.items():
        of_gpus = [
            ({**of_host, "gpu": visible(gpu)}, value)
            for of_host, host in zip(labels, hosts, strict=True)
            for gpu, value in getattr(host, field).items()
        ]
        yield from _family(metric, of_gpus)


def _family(metric: LiveMetric, samples: Sequence[tuple[dict[str, str], float | None]]) -> Iterator[str]:
    """Without the samples that are not known."""
    measured: list[Sample] = [(labels, float(value)) for labels, value in samples if value is not None]
    yield from family(metric.name, "counter" if metric.is_counter else "gauge", "", metric.help, measured)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
