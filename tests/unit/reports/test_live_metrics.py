"""The metrics file of a run that goes on, as Prometheus's own parsers read it, and the dashboard for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analysis.live import LiveHost, LiveRank, LiveRun
from perfscope.reports.live import live_line, render_live
from perfscope.reports.live_metrics import LIVE_METRICS, render_metrics

ROOT = Path(__file__).parents[3]
NOW = 1_790_000_000.0
MS = 1_000_000
NOTHING = LiveHost(
    host="b", cpus_busy=None, others_cpus=None, memory_bytes=None, memory_total_bytes=None,
    received_bytes_per_s=None, sent_bytes_per_s=None,
)  # fmt: skip
HOST = LiveHost(
    host="a", cpus_busy=3.5, others_cpus=1.25, memory_bytes=1 << 30, memory_total_bytes=4 << 30,
    received_bytes_per_s=1000.0, sent_bytes_per_s=2000.5, throttled_ratio=0.25, pressure_ratio=0.5,
    gpu_busy_ratio={"0": 0.75}, gpu_memory_bytes={"0": 1 << 20},
)  # fmt: skip


def rank(number: int, step_ns: int | None, *, hangs: bool = False) -> LiveRank:
    return LiveRank(
        rank=number, host="a", pid=1, steps=10 + number, step_ns=step_ns, trend=0.5, samples_per_s=80.0,
        age_s=75.0 if step_ns else None, finished=False, hangs=hangs, silent_s=75.0,
    )  # fmt: skip


def live_run(*ranks: LiveRank, hosts: tuple[LiveHost, ...] = (HOST,)) -> LiveRun:
    step = max((one.step_ns for one in ranks if one.step_ns), default=None)
    return LiveRun(
        name="train", path="/runs/r1", started_unix_ns=int((NOW - 600) * 1e9), expected=2, is_open=True,
        step_ns=step, ranks=ranks, hosts=hosts, samples_per_s=160.0 if step else None,
    )  # fmt: skip


RUN = live_run(rank(0, 20 * MS), rank(1, 25 * MS, hangs=True))


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, rank) -> value by the parser of the format that the node exporter's collector reads."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.documentation and family.samples for family in families)
    for family in families:  # each is typed, and what grows is a counter
        is_total = all(sample.name.endswith("_total") for sample in family.samples)
        assert family.type == ("counter" if is_total else "gauge"), family.name
    found = [sample for family in families for sample in family.samples]
    assert all(sample.timestamp is None for sample in found)
    return {(sample.name, sample.labels.get("rank", "")): sample.value for sample in found}


def test_prometheus_reads_every_metric_typed_with_its_unit() -> None:
    text = render_metrics(RUN, "r1", "a", is_running=True)
    found = samples(text)
    assert {name for name, _ in found} == {metric.name for metric in LIVE_METRICS}
    assert found["perfscope_run_step_seconds", ""] == 0.025
    assert found["perfscope_run_steps_total", ""] == 11
    assert found["perfscope_rank_step_seconds", "0"] == 0.02
    assert (found["perfscope_rank_hanging", "0"], found["perfscope_rank_hanging", "1"]) == (0, 1)
    assert found["perfscope_run_hanging_ranks", ""] == 1
    assert found["perfscope_host_sent_bytes_per_second", ""] == 2000.5
    assert text.endswith("\n")
    assert "# TYPE perfscope_run_steps_total counter\n" in text


def test_where_nothing_looks_for_hangs_no_metric_says_that_there_are_none() -> None:
    found = samples(render_metrics(replace(RUN, looks_for_hangs=False), "r1", "a", is_running=True))
    assert found and not [name for name, _ in found if "hang" in name]


def test_what_is_not_measured_has_no_sample() -> None:
    found = samples(render_metrics(live_run(rank(0, None), hosts=(NOTHING,)), "r1", "a", is_running=True))
    assert ("perfscope_rank_step_seconds", "0") not in found
    assert not [name for name, _ in found if name.startswith(("perfscope_host", "perfscope_gpu"))]
    assert ("perfscope_run_samples_per_second", "") not in found


def test_after_its_end_a_run_shows_only_what_stays_true() -> None:
    found = samples(render_metrics(RUN, "r1", "a", is_running=False))
    assert {name.removeprefix("perfscope_run_") for name, _ in found} == {
        "running", "start_time_seconds", "steps_total"
    }  # fmt: skip
    assert found["perfscope_run_running", ""] == 0


def test_labels_of_any_text_are_escaped() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = render_metrics(RUN, 'a "quoted" \\ name', "a", is_running=True)
    families = list(parser.text_string_to_metric_families(text))
    assert families[0].samples[0].labels["run"] == 'a "quoted" \\ name'


def test_the_dashboard_uses_every_metric_and_no_other() -> None:
    dashboard = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [entry["query"]["query"] for entry in dashboard["templating"]["list"] if "refresh" in entry]
    used = set(re.findall(r"perfscope_\w+", " ".join(queries)))
    assert used == {metric.name for metric in LIVE_METRICS}


def test_the_guide_lists_every_metric() -> None:
    guide = (ROOT / "docs" / "watch.md").read_text()
    assert set(re.findall(r"perfscope_(?:run|rank|host|gpu)_\w+", guide)) == {
        metric.name for metric in LIVE_METRICS
    }


def test_the_live_line_has_speed_hangs_and_load() -> None:
    assert live_line(RUN, NOW) == (
        "10 min: step 11, 25.0 ms a step (slower by 50 %), 160 samples/s, slowest rank 1; "
        "rank 1 has made no step for 75 s; a: 3.5 CPUs busy, 1.2 with other processes; "
        "memory 1.00 GiB of 4.00 GiB; network 1.00 kB/s in, 2.00 kB/s out; GPU 0 75 %; "
        "held back by the CPU quota 25 % of the time"
    )
    assert live_line(live_run(rank(0, None), hosts=(NOTHING,)), NOW) == (
        "10 min: no rank has finished a step yet"
    )
    many = live_run(*(rank(number, 20 * MS, hangs=True) for number in range(6)), hosts=())
    assert live_line(replace(many, samples_per_s=None), NOW).endswith("75 s; and 3 more")


def test_slow_training_has_digits_where_its_rate_is_below_one() -> None:
    for rate, text in ((0.0031, "0.0031"), (0.49, "0.49"), (1.95, "1.95"), (1234.5, "1,234"), (None, "–")):
        one = replace(rank(0, 2_000 * MS), samples_per_s=rate)
        assert f" {text} " in shown(one)
        if rate is not None:
            assert f" {text} samples/s" in live_line(replace(live_run(one), samples_per_s=rate), NOW)


def test_a_rank_without_a_first_step_is_silent_for_as_long_as_it_is_known_to_be() -> None:
    silent = replace(rank(0, None, hangs=True), silent_s=700.0)
    assert "rank 0 has not made a first step for 11 min" in live_line(live_run(silent, hosts=()), NOW)
    assert "! rank 0 has not made a first step for 11 min" in shown(silent)
    assert "! rank 0 has not made a first step\n" in shown(replace(silent, silent_s=None))


def test_a_terminal_never_gets_escapes_of_a_run() -> None:
    text = shown(rank(0, 20 * MS, hangs=True), {0: "at \x1b[2Jtrain.py:1 (f)"})
    assert "\x1b" not in text and "\\x1b[2Jtrain.py" in text


def shown(one: LiveRank, standing: dict[int, str] | None = None) -> str:
    return render_live(live_run(one, hosts=()), standing or {}, width=200, most=4, now_s=NOW)
