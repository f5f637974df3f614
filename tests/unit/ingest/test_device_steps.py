"""Steps of a device that its host runs ahead of: what the host's marks hide and the queue's end shows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ingest_traces import Json, document, ingest, kernel, launch, note

PER_STEP = 4  # kernels


def queued(
    host_us: list[float], kernel_us: float, *, busy_until: float = 0
) -> tuple[list[Json], list[float]]:
    """A trace of steps whose kernels run one after the other, and when the device has done each step.

    Args:
        host_us: how long the host takes for each step.
        kernel_us: how long the device takes for each kernel.
        busy_until: the device has unseen work till then.
    """
    events, done, now, free, correlation = [], [], 0.0, busy_until, 0
    for step, length in enumerate(host_us):
        events.append(note(f"ProfilerStep#{step}", now, length))
        for number in range(PER_STEP):
            correlation += 1
            called = now + 2 + number * (length - 10) / PER_STEP
            events.append(launch(called, correlation))
            free = max(free, called + 3)
            events.append(kernel("gemm", free, kernel_us, correlation))
            free += kernel_us
        now += length
        done.append(free)
    return events, done


def steps_of(tmp_path: Path, events: list[Json]) -> tuple[bool, list[tuple[float, float]]]:
    summary = ingest(tmp_path, document(events)).summary
    base = min(float(event["ts"]) for event in events)
    first = summary.steps[0][1] if not summary.runs_ahead else None
    origin = (first if first is not None else 0) - base * 1000
    return summary.runs_ahead, [((b - origin) / 1000, (e - origin) / 1000) for _, b, e in summary.steps]


def test_steps_end_when_the_device_has_done_them(tmp_path: Path) -> None:
    events, done = queued([100] * 5, 60)  # 240 us of work in steps of 100 us
    ahead, steps = steps_of(tmp_path, events)
    assert ahead
    lengths = [end - start for start, end in steps]
    assert lengths[1:] == pytest.approx([240] * 4)
    assert steps[-1][1] - steps[0][0] == pytest.approx(done[-1])


def test_the_first_step_begins_where_unseen_work_ends(tmp_path: Path) -> None:
    events, _ = queued([100] * 3, 60, busy_until=400)
    ahead, steps = steps_of(tmp_path, events)
    assert ahead
    assert [end - start for start, end in steps] == pytest.approx([240] * 3)


def test_a_device_that_keeps_up_has_the_steps_of_the_host(tmp_path: Path) -> None:
    events, _ = queued([300, 320, 310], 60)
    ahead, steps = steps_of(tmp_path, events)
    assert not ahead
    assert [end - start for start, end in steps] == pytest.approx([300, 320, 310])


@settings(max_examples=60)
@given(
    st.lists(st.integers(50, 400), min_size=2, max_size=8),
    st.integers(5, 120),
    st.sampled_from([0, 500]),
)
def test_steps_touch_and_hold_all_of_their_work(
    tmp_path_factory: pytest.TempPathFactory, host_us: list[int], kernel_us: int, busy_until: int
) -> None:
    events, done = queued([float(us) for us in host_us], kernel_us, busy_until=busy_until)
    ahead, steps = steps_of(tmp_path_factory.mktemp("run"), events)
    assert all(end == start for (_, end), (start, _) in pairwise(steps))
    if ahead:
        work = sum(end - start for start, end in steps)
        assert work >= len(host_us) * PER_STEP * kernel_us - 0.01
        marks = [sum(host_us[: number + 1]) for number in range(len(host_us))]
        origin = max(done[-1], marks[-1]) - steps[-1][1]
        for (_, end), mark, finished in zip(steps, marks, done, strict=True):
            assert end + origin == pytest.approx(max(mark, finished), abs=0.01)
