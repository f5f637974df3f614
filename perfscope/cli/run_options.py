"""What can be asked of a recording, for every command that makes a run: one definition of each option."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from perfscope.cli.lazy_group import with_options
from perfscope.errors import UsageError
from perfscope.launch.environment import ProbeOptions
from perfscope.live.options import WatchOptions
from perfscope.units import parse_ns, parse_ratio
from perfscope.vocabulary.defaults import HANG_AFTER_S, LIVE_EVERY_S, METRICS_EVERY_S, RUN

SHORTEST_MS, LONGEST_MS = 10.0, 60_000.0
SHORTEST_HANG_S = 1.0
_F = TypeVar("_F", bound=Callable[..., Any])


def _to_ratio(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return parse_ratio(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share such as `1%` or `0.01`", ctx, param) from None


def to_seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Of a time such as `500ms`."""
    try:
        return parse_ns(value) / 1e9
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as `500ms` or `2s`", ctx, param) from None


def _to_interval(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """Milliseconds; None for `off`."""
    if value.strip().lower() in ("off", "0"):
        return None
    try:
        milliseconds = parse_ns(value) / 1e6
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as `100ms` or `1s`", ctx, param) from None
    if not SHORTEST_MS <= milliseconds <= LONGEST_MS:
        raise click.BadParameter(
            f"{value!r} is not between {SHORTEST_MS:.0f} ms and {LONGEST_MS / 1000:.0f} s", ctx, param
        )
    return milliseconds


def to_hang_floor(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """Seconds; None for `off`."""
    text = value.strip().lower()
    if text == "off":
        return None
    seconds = 0.0 if text == "0" else to_seconds(ctx, param, value)
    if seconds < SHORTEST_HANG_S:
        hint = "; `off` looks for no hangs" if not seconds else ""
        raise click.BadParameter(f"{value!r} is shorter than {SHORTEST_HANG_S:g} s{hint}", ctx, param)
    return seconds


_PLACE = (
    click.option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Run directory to make."
    ),
    click.option("--force", is_flag=True, help="Replace a run that is already in DIR."),
)
_LABELS = (
    click.option(
        "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Keep a label with the run; repeatable."
    ),
)
_TRACING = (
    click.option(
        "--overhead",
        callback=_to_ratio,
        default=f"{RUN.overhead:.0%}",
        show_default=True,
        metavar="SHARE",
        help="Training time that traced windows may cost.",
    ),
    click.option(
        "--windows",
        type=click.IntRange(0, 1000),
        default=RUN.windows,
        show_default=True,
        help="Windows to trace; 0 traces none.",
    ),
    click.option(
        "--steps-per-window",
        type=click.IntRange(1, 1000),
        default=RUN.steps_per_window,
        show_default=True,
        help="Steps in one window.",
    ),
    click.option("--no-trace", is_flag=True, help="Record steps only, trace no windows."),
)
_WATCH = (
    click.option(
        "--hang-after",
        callback=to_hang_floor,
        default="60s",
        show_default=True,
        metavar="TIME",
        help="A rank that makes no step for ten usual ones, and for this long, hangs; `off` does not look.",
    ),
)
_LIVE = (
    click.option(
        "--live", is_flag=True, help="Print a line on stderr each minute: step, speed, load, hangs."
    ),
    click.option(
        "--live-interval",
        callback=to_seconds,
        default=f"{LIVE_EVERY_S:.0f}s",
        show_default=True,
        metavar="TIME",
        help="Between these lines.",
    ),
    click.option(
        "--metrics-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Keep FILE (.prom) up to date for the node exporter's textfile collector.",
    ),
    click.option(
        "--metrics-interval",
        callback=to_seconds,
        default=f"{METRICS_EVERY_S:.0f}s",
        show_default=True,
        metavar="TIME",
        help="Between its updates.",
    ),
)
_SHORTEST_S = 0.5
_HARDWARE = (
    click.option(
        "--sample-interval",
        callback=_to_interval,
        default="100ms",
        show_default=True,
        metavar="TIME",
        help="How often hardware counters are read; `off` reads none.",
    ),
    click.option(
        "--ceilings",
        type=click.Choice(["auto", "refresh", "off"]),
        default="auto",
        show_default=True,
        help="Measure this host's peaks before the command starts: at most 2 s, once per host.",
    ),
)


def place_options(function: _F) -> _F:
    """-o and --force."""
    return with_options(_PLACE, function)


def label_options(function: _F) -> _F:
    """--label."""
    return with_options(_LABELS, function)


def tracing_options(function: _F) -> _F:
    """--overhead, --windows, --steps-per-window, --no-trace."""
    return with_options(_TRACING, function)


def watch_options(function: _F) -> _F:
    """--hang-after, --live, --live-interval, --metrics-file, --metrics-interval."""
    return with_options((*_WATCH, *_LIVE), function)


def watched(
    *,
    hang_after: float | None,
    live: bool,
    live_interval: float,
    metrics_file: Path | None,
    metrics_interval: float,
) -> WatchOptions:
    """What the options above ask for.

    Raises:
        UsageError: the file cannot be written, or an interval is too short.
    """
    for option, seconds in (("--live-interval", live_interval), ("--metrics-interval", metrics_interval)):
        if seconds < _SHORTEST_S:
            raise UsageError(f"{option} is shorter than {_SHORTEST_S:g} s")
    path = None if metrics_file is None else metrics_file.absolute()
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK)):
        why = "is a directory" if path.is_dir() else f"{path.parent} is no directory that can be written"
        raise UsageError(f"--metrics-file {metrics_file}: {why}")
    return WatchOptions(
        hang_after_s=hang_after,
        live_every_s=live_interval if live else None,
        metrics_file=path,
        metrics_every_s=metrics_interval,
    )


def hardware_options(function: _F) -> _F:
    """--sample-interval and --ceilings."""
    return with_options(_HARDWARE, function)


def probe_options(
    *,
    overhead: float,
    windows: int,
    steps_per_window: int,
    no_trace: bool,
    sample_interval: float | None,
    samples_per_step: int | None = None,
    stacks: bool = False,
    layer_counters: bool = False,
    allocations: bool = False,
    hang_after: float | None = HANG_AFTER_S,
) -> ProbeOptions:
    """What the options above ask of the probe.

    Raises:
        UsageError: stacks are wanted and cannot be had.
    """
    if stacks and sample_interval is None:
        raise UsageError("--stacks needs the sampler; leave out `--sample-interval off`")
    if stacks:
        from perfscope.collectors.stacks.bursts import missing_py_spy

        problem = missing_py_spy()
        if problem is not None:
            raise UsageError(f"--stacks: {problem}")
    return ProbeOptions(
        overhead=overhead,
        windows=windows,
        steps_per_window=steps_per_window,
        trace=not no_trace and windows > 0,
        samples_per_step=samples_per_step,
        sampling=sample_interval is not None,
        sample_interval_ms=sample_interval or 0,
        stacks=stacks,
        layer_counters=layer_counters,
        allocations=allocations,
        hang_after_s=hang_after,
    )
