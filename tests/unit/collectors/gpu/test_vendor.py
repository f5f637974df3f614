"""A vendor that is nothing but a class, a collector and an entry of the registry is everywhere a GPU is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.machine.host import open_hosts
from perfscope.analysis.machine.placement import placements
from perfscope.analysis.run import analyze_run
from perfscope.collectors.base import BaseCollector, Capability, Reading
from perfscope.collectors.context import Context, captured_context
from perfscope.collectors.gpu import registry
from perfscope.collectors.gpu.base import Entry, Vendor, metric
from perfscope.collectors.machine.topology import read_topology
from perfscope.collectors.peak import BYTES, TheoreticalPeak
from perfscope.rundir.metrics import Series
from perfscope.vocabulary import gpu as words
from perfscope.vocabulary.links import LinkClass
from tests.support.synthetic_samples import BOOT, SECOND, SampledRun, SampleFile, two_nodes

NAME = "Acme A1"


class Acme(Vendor):
    """Two GPUs on different sockets, joined by a link of its own kind."""

    name = "Acme"
    visibility = (("ACME_VISIBLE",),)

    def is_usable(self, ctx: Context) -> bool:
        return True

    def driver_devices(self, ctx: Context) -> list[Entry]:
        return [{"index": n, "name": NAME, "numa_node": n, "uuid": f"ACME-{n}"} for n in range(2)]

    def devices(self, ctx: Context, notes: list[str]) -> list[Entry]:
        return self.driver_devices(ctx)

    def links(self, ctx: Context) -> list[Entry]:
        link: Entry = {
            "a": "gpu:0",
            "b": "gpu:1",
            "class": LinkClass.GPU_LINK,
            "kind": "AcmeLink",
            "path": "AcmeLink",
        }
        return [{**link, "peak_bytes_per_s": 10e9}]

    def num_usable(self, ctx: Context) -> int | None:
        return 2

    def peaks(self, name: str) -> tuple[TheoreticalPeak, ...]:
        return (
            (TheoreticalPeak(what="memory", value=2e12, unit=BYTES, source="made up"),)
            if name == NAME
            else ()
        )


class AcmeCounters(BaseCollector):
    """GPU 0: 300 W, 4 GB/s over its link, half of the time slowed by heat."""

    name = "gpu.acme"

    def probe(self, ctx: Context) -> Capability:
        return self.capability(metrics=(metric(words.POWER, "made up"),))

    def open(self, ctx: Context) -> None:
        gpu = {"gpu": "0"}
        self._clock = ctx.clock
        self._power = Series(metric(words.POWER, "made up"), gpu)
        self._sent = Series(metric(words.LINK_TX, "made up"), {**gpu, "link": "0", "kind": "AcmeLink"})
        heat = {**gpu, "reason": words.ThrottleReason.THERMAL.value, "name": "too hot"}
        self._heat = Series(metric(words.THROTTLE_TIME, "made up"), heat)

    def sample(self) -> Sequence[Reading]:
        now = self._clock()
        passed = now - BOOT
        return [
            Reading(self._power, 300, now, now),
            Reading(self._sent, 4 * passed, now, now),
            Reading(self._heat, passed // 2, now, now),
        ]


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    place = registry.VendorModule(f"{__name__}:Acme", (f"{__name__}:AcmeCounters",), (), ())
    monkeypatch.setattr(registry, "PLACES", (*registry.PLACES, place))


def test_a_vendor_needs_nothing_but_its_entry_in_the_registry(acme: None, tmp_path: Path) -> None:
    ctx = captured_context(tmp_path)
    topology: dict[str, Any] = read_topology(ctx, "node0")
    assert [gpu["id"] for gpu in topology["gpus"]] == ["gpu:0", "gpu:1"]
    assert registry.num_visible(ctx, {"ACME_VISIBLE": "1"}) == 1
    assert [one["uuid"] for one in registry.visible_devices(ctx, {"ACME_VISIBLE": "1"})] == ["ACME-1"]
    assert registry.has_gpu(ctx)

    here = {key: topology[key] for key in ("gpus", "links")}
    ranks = [{"pid": 100, "device": f"cuda:0 {NAME}"}]
    run = SampledRun(tmp_path / "run", recorded(), topology=two_nodes(**here), ranks=ranks).read()
    machine = analyze_run(run).machine
    assert machine is not None
    titles = {track.title for track in machine.tracks if track.title.startswith("GPU 0")}
    assert titles == {"GPU 0", "GPU 0 AcmeLink sent", "GPU 0 throttled: too hot"}
    (sent,) = [one for one in machine.traffic if one.name == "GPU 0 AcmeLink"]
    assert sent.mean_bytes_per_s == pytest.approx(4e9) and sent.peak_bytes_per_s == 10e9
    assert machine.disturbances[0].title == "GPU 0 was throttled (too hot) 50 % of the time for 20.0 s."
    (host,) = open_hosts(run, {})
    assert placements(host, {"ACME_VISIBLE": "1"})[0].device_node == 1
    assert 2e12 in [one.value for one in registry.gpu_peaks(NAME)]


def recorded() -> SampleFile:
    """What the collector gives in 40 s."""
    now = [BOOT]
    collector = AcmeCounters()
    collector.open(Context(clock=lambda: now[0]))
    file = SampleFile()
    for tick in range(160):
        now[0] = BOOT + tick * SECOND // 4
        readings = collector.sample()
        if not tick:
            series = [one.series.as_dict() for one in readings]
            file._lines.append({"id": 0, "collector": collector.name, "series": series})
        file._lines.append([0, now[0], now[0], [one.value for one in readings]])
    return file
