"""Memory traffic through `perf stat`, for sites that give rights to perf but not to everybody.

The same counters as `membw`, read by a child process every 200 ms. Only where `membw` may not open them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading
from perfscope.collectors.context import Context
from perfscope.collectors.memory.bandwidth import FindUncore, describe, metric_of, series_of, try_to_open
from perfscope.collectors.memory.uncore import UncoreEvent, find_uncore
from perfscope.rundir.metrics import SCALED, Series

INTERVAL_MS = 200
_TRIAL_TIMEOUT_S = 3.0
_WHOLE = 99.99  # percent of the time that a counter ran


class PerfStat(BaseCollector):
    """Runs `perf stat -a -A -I 200` and adds up what it prints.

    perf counts as long as a `cat` that it runs reads from us, so it ends with us, however that happens.

    Args:
        find: where the counters come from; tests give others.
    """

    name = "membw.perf_stat"
    slow = True
    min_interval_ns = SECOND_NS // 5

    def __init__(self, find: FindUncore = find_uncore) -> None:
        super().__init__()
        self._find = find
        self._ctx = Context()
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._rest = b""
        self._series: dict[tuple[str, str], Series] = {}
        self._totals: dict[Series, int] = {}
        self._anchor_ns: int | None = None  # our clock at perf's time 0
        self._ended = False

    def probe(self, ctx: Context) -> Capability:
        uncore = self._find(ctx)
        perf = shutil.which("perf") or ""
        reason, remedy = self._why_not(ctx, perf)
        return self.capability(
            metrics=tuple({event.metric: metric_of(event, cached=False) for event in uncore.events}.values()),
            source=f"{perf or 'perf'} stat -a -A -I {INTERVAL_MS}",
            reason=reason,
            remedy=remedy,
            detail=describe(uncore),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        uncore = self._find(ctx)
        names: dict[int, str] = {}
        for event, cpu, series in series_of(uncore):
            name = names.setdefault(id(event), _name(len(names)))
            self._series[name, f"CPU{cpu}"] = series
        self._totals = dict.fromkeys(self._series.values(), 0)
        arguments = [part for event in uncore.events for part in ("-e", _event(event, names[id(event)]))]
        self._start(arguments)

    def sample(self) -> Sequence[Reading]:
        data = self._rest + self._drain()
        *lines, self._rest = data.split(b"\n")
        arrived = self._ctx.clock()
        readings = [reading for line in lines if (reading := self._parse(line, arrived)) is not None]
        if self._child is not None and self._child.poll() is not None and not self._ended:
            self._ended = True
            self.stopped("dram_*", {}, f"perf has ended with code {self._child.returncode}")
        return readings

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.stdin is not None:
                child.stdin.close()
            try:
                child.wait(1.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _why_not(self, ctx: Context, perf: str) -> tuple[str, str]:
        uncore = self._find(ctx)
        if not ctx.live:
            return "a captured tree runs no programs", ""
        if not uncore.events:
            return uncore.reason, uncore.remedy
        if not try_to_open(ctx, uncore)[0]:
            return "not needed: the counters are read directly", ""
        if not perf:
            return "perf is not installed", "install perf (Debian: linux-perf), with rights for everybody"
        return _trial(perf, uncore.events[0])

    def _start(self, events: Sequence[str]) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        command = [
            shutil.which("perf") or "perf",
            *("stat", "-a", "-A", "-I", str(INTERVAL_MS), "-x", ";", "--log-fd", str(writer)),
            *events,
            *("--", "cat"),
        ]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writer,),
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._pipe = reader

    def _drain(self) -> bytes:
        chunks = []
        with suppress(BlockingIOError):
            while self._pipe >= 0 and (chunk := os.read(self._pipe, 1 << 16)):
                chunks.append(chunk)
        return b"".join(chunks)

    def _parse(self, line: bytes, arrived: int) -> Reading | None:
        """``0.200;CPU0;value;unit;event;runtime;percent;..``: what was counted in this interval alone."""
        fields = line.decode("utf-8", "replace").split(";")
        if len(fields) < 7 or fields[0].lstrip().startswith("#"):
            return None
        series = self._series.get((fields[4], fields[1].strip()))
        if series is None:
            return None
        now = self._time(fields[0], arrived)
        if not fields[2].isdigit():  # <not counted>, <not supported>
            return Reading(series, None, now, now)
        self._totals[series] += int(fields[2])
        scaled = fields[6].replace(".", "", 1).isdigit() and float(fields[6]) < _WHOLE
        return Reading(series, self._totals[series], now, now, SCALED if scaled else None)

    def _time(self, text: str, arrived: int) -> int:
        """perf's seconds since its start, on our clock. A line arrives late by up to one of our intervals,
        never early: the earliest arrival tells best when perf began."""
        try:
            since = round(float(text) * 1e9)
        except ValueError:
            return arrived
        began = arrived - since
        self._anchor_ns = began if self._anchor_ns is None else min(self._anchor_ns, began)
        return self._anchor_ns + since


def _name(number: int) -> str:
    """A name for perf to print; one that ends in a digit would be read as an event code."""
    return f"perfscope_{number}_x"


def _event(event: UncoreEvent, name: str) -> str:
    return f"{event.pmu}/{event.how},name={name}/"


def _trial(perf: str, event: UncoreEvent) -> tuple[str, str]:
    """Whether perf may count one event."""
    command = [perf, "stat", "-a", "-x", ";", "-e", _event(event, _name(0)), "--", "true"]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"perf cannot be run: {error}", ""
    text = answer.stderr.decode("utf-8", "replace")
    if answer.returncode != 0 or "<not" in text:
        first_line = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        first_line = first_line.partition(";")[0][:120]  # "<not supported>;;name:..", or a sentence
        return f"perf may not count {event.pmu} either: {first_line}", ""
    return "", ""
