"""What a disturbance did to the steps, whether it hit a traced window, and who is named for how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.machine.results import Disturbance, MachineAnalysis
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from tests.support.synthetic_run import span
from tests.support.synthetic_samples import BOOT, SECOND, SampledRun, SampleFile, ticks, two_nodes

MS = 1_000_000
FAST, SLOW = ticks(0, 40), ticks(0, 40, 1.0)


def neighbour(level: Callable[[float], float]) -> SampleFile:
    file = SampleFile()
    file.rate("neighbour_cpu", SLOW, lambda t: level(t) * 100, scale=1e7)
    return file


def between(start: float, end: float, high: float = 3.0) -> Callable[[float], float]:
    return lambda t: high if start <= t < end else 0.05


def stepped(
    path: Path,
    file: SampleFile,
    slow: tuple[float, float],
    factor: float,
    traced: tuple[float, ...] = (),
    ranks: int = 1,
    waited_ns: int | None = None,
) -> RunAnalysis:
    """Steps of 100 ms from second 10 to 30, `factor` times as long where they start in `slow`."""
    run = SampledRun(path, file, topology=two_nodes(), ranks=[{"pid": 100 + k} for k in range(ranks)])
    starts, durations, at = [], [], 10.0
    while at < 29.9:
        length = 0.1 * (factor if slow[0] <= at < slow[1] else 1.0)
        starts.append(BOOT + round(at * SECOND))
        durations.append(round(length * SECOND))
        at += length
    for rank in range(ranks):
        columns: dict[str, list[int | None]] = {
            "samples": [32] * len(starts),
            "runqueue_ns": [waited_ns] * len(starts),
        }
        run.run.steps(rank, durations, start_ns=starts, **columns)
    for number, second in enumerate(traced):
        begin = round(second * SECOND)
        spans = [span(begin, 80 * MS, "compute", layer="fc", phase="forward")]
        run.run.window(0, spans, [(number, begin, begin + 100 * MS)], window=number)
    return analyze_run(run.read())


def machine_of(analysis: RunAnalysis) -> MachineAnalysis:
    assert analysis.machine is not None
    return analysis.machine


def only(analysis: RunAnalysis) -> Disturbance:
    (found,) = machine_of(analysis).disturbances
    return found


def test_steps_in_a_disturbance_are_compared_with_those_outside(tmp_path: Path) -> None:
    analysis = stepped(tmp_path, neighbour(between(14, 20)), (14, 20), 2.0, traced=(12, 25), ranks=2)
    found, machine = only(analysis), machine_of(analysis)
    assert (found.step_ns_during, found.step_ns_otherwise) == (200 * MS, 100 * MS)
    assert 28 <= found.num_steps_during <= 35  # of one rank, not of both
    assert found.windows == () and machine.traced_disturbed is False
    assert machine.clean_reason.endswith(
        "for 6.00 s; steps took 200 ms during it, 100 ms otherwise. No traced window was hit."
    )


def test_traced_windows_that_were_hit_are_named(tmp_path: Path) -> None:
    analysis = stepped(tmp_path, neighbour(between(14, 20)), (14, 20), 2.0, traced=(15, 25, 18))
    machine = machine_of(analysis)
    assert only(analysis).windows == (0, 2) and machine.traced_disturbed is True
    assert "Traced windows 0 and 2 were hit." in machine.clean_reason
    finding = next(one for one in analysis.findings if one.id == "disturbed")
    assert "Traced windows 0 and 2 were hit." in finding.text.detail


def test_without_steps_on_both_sides_nothing_is_claimed(tmp_path: Path) -> None:
    analysis = stepped(tmp_path, neighbour(between(9, 31)), (9, 31), 2.0)
    found = next(one for one in machine_of(analysis).disturbances if one.within_steps)
    assert (found.step_ns_during, found.step_ns_otherwise) == (None, None) and found.num_steps_during > 50
    finding = next(one for one in analysis.findings if one.id == "disturbed")
    assert (finding.gain_ns, finding.gain_ratio) == (None, None)
    assert machine_of(analysis).traced_disturbed is None  # no window
    assert "steps took" not in machine_of(analysis).clean_reason


def test_what_a_disturbance_cost_is_the_gain_of_its_finding(tmp_path: Path) -> None:
    """60 steps of 100 ms become 30 of 200 ms, beside about 140 others."""
    analysis = stepped(tmp_path, neighbour(between(14, 20)), (14, 20), 2.0, traced=(12, 25))
    verdict, finding = analysis.findings[:2]
    assert (verdict.id, finding.id) == ("compute_bound", "disturbed")
    assert finding.gain_ns == pytest.approx(18 * MS, rel=0.1)
    assert finding.gain_ratio == pytest.approx(0.15, rel=0.1)
    assert "steps took 200 ms instead of 100 ms" in finding.text.title


def test_few_steps_that_were_very_much_longer_cost_no_more_than_a_step(tmp_path: Path) -> None:
    """6 steps of 2.5 s beside about 50 of 100 ms: the mean step lost more than the median one takes."""
    analysis = stepped(tmp_path, neighbour(between(14, 29)), (14, 29), 25.0, traced=(12,))
    finding = next(one for one in analysis.findings if one.id == "disturbed")
    assert finding.gain_ratio is not None and finding.gain_ratio > 0.5
    assert finding.gain_ns == pytest.approx(finding.gain_ratio * 100 * MS, rel=0.01)
    assert all(check.ok for check in analysis.self_checks)


def test_a_disturbance_that_costs_most_of_all_is_the_verdict(tmp_path: Path) -> None:
    analysis = stepped(tmp_path, neighbour(between(12, 28)), (12, 28), 2.0, traced=(12, 29))
    first, second = analysis.findings[:2]
    assert (first.id, second.id) == ("disturbed", "compute_bound")
    assert first.text.title.startswith("Other processes slowed the steps: 80 steps took 200 ms instead of")
    assert first.gain_ratio is not None and first.gain_ratio >= 0.25
    assert "idle machine before you change the code" in first.text.action


def test_a_neighbour_that_slows_nothing_gains_nothing(tmp_path: Path) -> None:
    analysis = stepped(tmp_path, neighbour(between(12, 28)), (0, 0), 1.0, traced=(12, 29))
    finding = next(one for one in analysis.findings if one.id == "disturbed")
    assert finding.gain_ns is None and "barely slower (100 ms, 100 ms without it)" in finding.text.title
    assert analysis.findings[0].id == "compute_bound"


def test_a_neighbor_beside_whom_the_training_waits_for_cpus_costs_though_all_steps_are_alike(
    tmp_path: Path,
) -> None:
    """Steps outside of a disturbance may be disturbed, too, by what is too small or short to be one."""
    file = neighbour(between(12, 28))
    file.rate("rank_main_thread_wait", FAST, 0.6 * SECOND, pid="100")
    analysis = stepped(tmp_path, file, (0, 0), 1.0, traced=(13, 29))
    first, second = analysis.findings[:2]
    assert (first.id, second.id, second.symptom_of) == ("disturbed", "compute_bound", "disturbed")
    assert first.gain_ratio == pytest.approx(0.6, rel=0.05)
    assert "in 60.0 % of step time the training was ready to run while others had the CPU" in first.text.title
    assert "(steps took 100 ms during it and 100 ms without it)" in first.text.title


def test_waiting_tells_more_than_other_steps_that_were_nearly_as_slow(tmp_path: Path) -> None:
    file = neighbour(between(12, 28))
    file.rate("rank_main_thread_wait", FAST, 0.6 * SECOND, pid="100")
    first = stepped(tmp_path, file, (12, 28), 1.06, traced=(13, 29)).findings[0]
    assert first.id == "disturbed" and first.gain_ratio == pytest.approx(0.6, rel=0.05)
    assert "(steps took 106 ms during it and 100 ms without it)" in first.text.title


def test_waits_that_the_training_read_at_each_step_count_before_the_sampler_s(tmp_path: Path) -> None:
    """A traced window may be shorter than the time between two readings of the sampler."""
    file = neighbour(between(12, 28))
    file.rate("rank_main_thread_wait", FAST, 0.02 * SECOND, pid="100")
    first = stepped(tmp_path, file, (0, 0), 1.0, traced=(13, 29), waited_ns=50 * MS).findings[0]
    assert first.id == "disturbed" and first.gain_ratio == pytest.approx(0.5, rel=0.02)


def test_a_neighbor_costs_no_more_than_the_cpus_that_it_had(tmp_path: Path) -> None:
    """The training waits for its own threads, too."""
    file = neighbour(between(10, 30, high=0.3))
    file.rate("rank_main_thread_wait", FAST, 0.9 * SECOND, pid="100")
    analysis = stepped(tmp_path, file, (0, 0), 1.0, traced=(13, 29))
    costs = [one.gain_ratio for one in analysis.findings if one.id == "disturbed" and one.gain_ratio]
    assert all(cost <= 0.32 for cost in costs)


def test_steps_that_were_faster_in_a_disturbance_are_not_called_hardly_slower(tmp_path: Path) -> None:
    analysis = stepped(tmp_path, neighbour(between(12, 28)), (12, 28), 0.8, traced=(12, 29))
    finding = next(one for one in analysis.findings if one.id == "disturbed")
    assert "steps were not slower (80.0 ms, 100 ms without it)" in finding.text.title


def test_two_long_steps_in_a_disturbance_are_not_its_cost_where_its_other_steps_are_as_short_as_ever(
    tmp_path: Path,
) -> None:
    analysis = stepped(tmp_path, neighbour(between(12, 28)), (14, 18.5), 40.0, traced=(13, 29))
    finding = next(one for one in analysis.findings if one.id == "disturbed")
    assert (finding.gain_ns, finding.gain_ratio) == (None, None) and "barely slower" in finding.text.title
    assert analysis.findings[0].id != "disturbed"


def facts(*rows: tuple[float, str, float, float]) -> SampleFile:
    """A disturbance of 3 CPUs from second 14 to 20; rows are (time, name, cpus, seconds)."""
    file = neighbour(between(14, 20))
    for at, name, cpus, seconds in rows:
        value: dict[str, Any] = {"pid": 5, "name": name, "user": "u", "cpus": cpus, "seconds": seconds}
        file.fact("neighbour", at, {"kind": "cpu"}, value)
    return file


def evidence(path: Path, *rows: tuple[float, str, float, float]) -> tuple[str, ...]:
    return only(stepped(path, facts(*rows), (0, 0), 1.0)).evidence


def test_named_neighbours_have_their_share_of_the_whole_disturbance(tmp_path: Path) -> None:
    """Seen 2 s at 3 CPUs is one CPU over 6 s; what was not named then is not hidden."""
    assert evidence(tmp_path, (16, "a", 3.0, 2.0), (17, "b", 1.8, 2.0)) == (
        "a (pid 5, user u): 1.0 CPUs",
        "b (pid 5, user u): 0.6 CPUs",
        "others, or not distinguished: 1.4 CPUs",
    )


def test_figures_of_the_named_never_exceed_the_disturbance(tmp_path: Path) -> None:
    """Facts that reach beyond it tell of more CPU time than it had."""
    assert evidence(tmp_path, (22, "a", 3.0, 9.0), (21, "b", 1.5, 6.0)) == (
        "a (pid 5, user u): 2.2 CPUs",
        "b (pid 5, user u): 0.8 CPUs",
    )
    small = (("a", 3.0), ("b", 0.2))
    found = only(stepped(tmp_path / "small", facts(*((16, n, c, 2.0) for n, c in small)), (0, 0), 1.0))
    assert "Other processes (a) took 3.0 of 8 CPUs" in found.title
    several = [(16.0, f"n{k}", 3.0, 1.0) for k in range(7)]
    lines = evidence(tmp_path / "several", *several)
    assert len(lines) == 6 and lines[-1].startswith("and 2 more: ")
    assert sum(float(line.rsplit(": ", 1)[1].split()[0]) for line in lines) == pytest.approx(3.0)
