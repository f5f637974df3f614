"""What the gate keeps of a run directory, and of a file of step times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.errors import RunDirectoryError
from perfscope.gate.external_timings import read_own_times
from perfscope.gate.measure import measure_run, step_metrics
from perfscope.gate.records import PARTS, Fingerprint, RunFigures
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
DURATIONS = [50 * MS] + [round((20 + 0.1 * (k % 10)) * MS) for k in range(40)]


def made(path: Path, durations: list[int] = DURATIONS, **manifest: Any) -> SyntheticRun:
    """Two ranks with always-on figures; two windows, of which the first is twice as slow."""
    run = SyntheticRun(
        path,
        **{
            "name": "train",
            "world_size": 2,
            "perfscope_version": "0.1.0",
            "labels": {"check.side": "head", "check.pair": "3"},
            "exit": {"code": 0, "signal": None},
            "git": {"commit": "abc123", "dirty": False},
            "packages": {"torch": "2.13.0"},
            "command": ["python", "train.py"],
            "start_unix_ns": 77,
            **manifest,
        },
    )
    for rank in (0, 1):
        memory = {"peak_rss_bytes": (rank + 1) * 10**8, "peak_device_bytes": None}
        run.rank(rank, world_size=2, memory=memory, root={"data_parallel": True, "dp_size": 2})
        num = len(durations)
        run.steps(rank, durations, input_ns=[2 * MS] * num, samples=[16] * num, backward_ns=[9 * MS] * num)
        for window, factor in ((0, 2), (1, 1)):
            start = window * 1000 * MS
            length = factor * 20 * MS
            run.window(
                rank,
                [
                    span(start, length // 2, "compute", name="aten::conv2d"),
                    comm(start + length // 2, length // 4, window),
                ],
                [(window, start, start + length)],
                window=window,
            )
    return run


def test_the_metrics_are_those_of_the_counted_steps(tmp_path: Path) -> None:
    run = measure_run(made(tmp_path).path, "r")
    counted = np.array(DURATIONS[3:] * 2)
    assert run.metrics["step_p10"] == pytest.approx(np.percentile(counted, 10))
    assert run.metrics["step_mean"] == pytest.approx(counted.mean())
    assert run.metrics["stalls"] == 0.0
    assert run.metrics["input_wait"] == 2 * MS
    assert run.metrics["peak_memory"] == 2e8
    assert run.metrics["throughput"] == pytest.approx(32e9 / np.median(counted), rel=1e-3)
    assert run.absent["peak_device_memory"] == "no device memory was used"
    assert "energy" in run.absent
    assert run.num_steps == 38


def test_the_first_window_is_warm_up_where_there_are_later_ones(tmp_path: Path) -> None:
    run = measure_run(made(tmp_path).path, "r")
    assert run.composition is not None
    assert run.composition.step == pytest.approx(20 * MS)
    assert sum(getattr(run.composition, part) for part in PARTS) == pytest.approx(run.composition.step)
    (use,) = run.collectives
    assert use.name == "all_reduce over 2 ranks"
    assert use.calls == 1
    assert use.bytes == 4096


def test_the_pair_the_fingerprint_and_the_surroundings_come_from_the_record(tmp_path: Path) -> None:
    run = measure_run(made(tmp_path).path, "r")
    assert (run.side, run.pair) == ("head", 3)
    assert run.fingerprint.world_size == 2
    assert run.fingerprint.batch == 32
    assert run.fingerprint.torch == "2.13.0"
    assert run.surroundings.commit == "abc123"
    assert run.surroundings.command == ("python", "train.py")
    assert run.surroundings.start_unix_ns == 77
    assert run.phases is not None and run.phases.backward == 9 * MS
    assert not run.problem


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ({"exit": {"code": 3, "signal": None}}, "exit code 3"),
        ({"status": "running"}, "still running"),
        ({"world_size": 4}, "only 2 of 4 ranks"),
    ],
)
def test_a_run_that_cannot_be_judged_says_why(tmp_path: Path, manifest: dict[str, Any], says: str) -> None:
    assert says in measure_run(made(tmp_path, **manifest).path, "r").problem


def test_a_rank_that_was_killed_is_a_problem(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.rank(1, world_size=2, finished=False)
    assert measure_run(run.path, "r").problem == "rank 1 did not end its training"


def test_stalls_are_the_time_beyond_twice_the_median_step() -> None:
    quiet = np.full(90, 10 * MS)
    stalled = np.concatenate((quiet, np.full(10, 50 * MS)))
    found = step_metrics([stalled])
    assert found["stalls"] == pytest.approx(10 * 30 / (90 * 10 + 10 * 50))
    assert found["step_p10"] == 10 * MS
    assert step_metrics([]) == {}


def test_figures_survive_json(tmp_path: Path) -> None:
    run = measure_run(made(tmp_path).path, "r")
    assert msgspec.json.decode(msgspec.json.encode(run), type=RunFigures) == run


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.integers(2, 1000))
def test_slower_steps_scale_every_time(durations: list[int], factor: int) -> None:
    once = step_metrics([np.array(durations)])
    more = step_metrics([factor * np.array(durations)])
    assert more["step_p10"] == pytest.approx(factor * once["step_p10"])
    assert more["stalls"] == pytest.approx(once["stalls"])


def write(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_file_of_step_times_is_a_run(tmp_path: Path) -> None:
    steps = [[20 * MS] * 30, [22 * MS] * 25]
    document = {
        "perfscope_steps": 1,
        "steps_ns": steps,
        "samples_per_step": 64,
        "peak_memory_bytes": 5,
        "commit": "abc",
        "fingerprint": {"cpu": "X", "world_size": 2},
        "pair": 4,
    }
    run = read_own_times(write(tmp_path / "a.json", document), "a")
    assert run.metrics["step_p10"] == 21 * MS, "the mean over ranks of each one's p10"
    assert run.metrics["throughput"] == pytest.approx(64e9 / (20 * MS))
    assert run.num_steps == 25
    assert run.fingerprint.cpu == "X"
    assert run.pair == 4 and run.clean is None and not run.problem
    flat = read_own_times(
        write(tmp_path / "b.json", {"perfscope_steps": 1, "steps_ns": [5e6, 6e6, 7e6]}), "b"
    )
    assert flat.num_steps == 3 and flat.name == "b"


@pytest.mark.parametrize(("said", "world_size"), [({}, 4), ({"world_size": 8}, 8)])
def test_a_list_of_step_times_per_rank_says_how_many_ranks_there_are(
    tmp_path: Path, said: dict[str, int], world_size: int
) -> None:
    def read(name: str, steps: object, **more: object) -> Fingerprint:
        path = write(tmp_path / name, {"perfscope_steps": 1, "steps_ns": steps, **more})
        return read_own_times(path, name).fingerprint

    four = read("a.json", [[20 * MS]] * 4, fingerprint=said)
    assert four.world_size == world_size
    assert four.differences(read("b.json", [[20 * MS]])), "four ranks are not compared with one"
    assert read("c.json", [20 * MS, 21 * MS]).world_size is None


def test_step_times_with_fractions_of_a_nanosecond_keep_their_size(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"perfscope_steps": 1, "steps_ns": [2_000_000.6] * 9})
    assert read_own_times(path, "a").metrics["step_p10"] == 2_000_001


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("", "no file of step times"),
        ("{", "no file of step times"),
        ({"steps_ns": [1]}, "perfscope_steps"),
        ({"perfscope_steps": 2, "steps_ns": [1]}, "newer perfscope"),
        ({"perfscope_steps": 1, "steps_ns": "fast"}, "no file of step times"),
        ({"perfscope_steps": 1, "steps_ns": [[1, 0]]}, "above 0"),
        ({"perfscope_steps": 1, "steps_ns": [1.1, 1.2, 1.15]}, r"look like seconds \(the median is 1.15\)"),
        ({"perfscope_steps": 1, "steps_ns": [[0.026, 0.027], [0.026, 0.5]]}, "give nanoseconds"),
        ({"perfscope_steps": 1, "steps_ns": [26.0, 27.0]}, "give nanoseconds"),
        ({"perfscope_steps": 1, "steps_ns": [2.6e7, 1e300]}, "would take a day"),
        ('{"perfscope_steps": 1, "steps_ns": [26000000, NaN]}', "no file of step times"),
        ('{"perfscope_steps": 1, "steps_ns": [26000000, Infinity]}', "no file of step times"),
        ('{"perfscope_steps": 1, "steps_ns": [26000000, 1e999]}', "no file of step times|infinite"),
    ],
)
def test_a_file_that_holds_something_else_is_one_clear_line(
    tmp_path: Path, document: object, says: str
) -> None:
    with pytest.raises(RunDirectoryError, match=says) as caught:
        read_own_times(write(tmp_path / "a.json", document), "a")
    assert "\n" not in str(caught.value)
