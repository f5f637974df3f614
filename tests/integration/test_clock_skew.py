"""Two hosts whose clocks really differ, by 10 s and 50 ppm, over real gloo collectives on an emulated wire.

The wall clock of the one kernel below both is the truth that the analysis does not see.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.timeline_extract import extract_timeline
from perfscope.runners.cluster.network import require_rights, require_tools
from perfscope.runners.config import BenchError
from tests.integration.run_support import user_environment
from tests.support.synthetic_run import EPOCH, SyntheticRun, comm

RANKS = str(Path(__file__).with_name("clock_ranks.py"))
WINDOWS, CALLS, APART_S = 3, 48, 2.0
AHEAD_S, PPM = 10, 50
BYTES = (4, 4096, 262144)
RECOVERED_NS = 20_000
NARROW_NS = 5_000  # readings further apart than this were interrupted, and tell no truth
pytestmark = pytest.mark.torch


def recorded(spec: str, folder: Path, ahead_s: int) -> dict[int, dict[str, Any]]:
    """Runs the ranks on an emulated cluster; rank -> what it wrote."""
    try:
        require_tools()
        require_rights()
    except BenchError as error:
        pytest.skip(str(error))
    pytest.importorskip("torch")
    words = [str(folder), str(WINDOWS), str(CALLS), str(APART_S), str(ahead_s), str(PPM)]
    launch = [sys.executable, "-m", "perfscope.runners.cluster", "--quiet", spec, "--"]
    done = subprocess.run(
        [*launch, sys.executable, RANKS, *words],
        env=user_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode and "namespace" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def as_run(path: Path, ranks: dict[int, dict[str, Any]]) -> SyntheticRun:
    """The recorded calls as the run directory of a training, in the hosts' own times."""
    run = SyntheticRun(path, world_size=len(ranks))
    for rank, found in sorted(ranks.items()):
        run.rank(rank, host=f"host{found['host']}")
        for window, rows in enumerate(found["windows"]):
            spans = [
                comm(row[0], row[1] - row[0], k, in_bytes=BYTES[k % 3], out_bytes=BYTES[k % 3])
                for k, row in enumerate(rows)
            ]
            run.window(rank, spans, [(window, rows[0][0], rows[-1][1])], window=window)
    return run


def truth_and_aligned(
    ranks: dict[int, dict[str, Any]], analysis: RunAnalysis
) -> tuple[dict[int, Int64], dict[int, Int64], NDArray[np.bool_]]:
    """rank -> entries and exits (windows, calls, 2) on the first host's clock; and where to trust them."""
    tables = {rank: np.array(found["windows"], dtype=np.int64) for rank, found in ranks.items()}
    widest: Int64 = np.stack([table[..., 4] for table in tables.values()]).max(axis=0)
    narrow: NDArray[np.bool_] = np.asarray(widest <= NARROW_NS)
    first = tables[0][narrow]
    wall = first[:, 2] - first[:, 0]
    zero = int(wall[0]) + round(float(np.median(wall - wall[0])))  # wall clock - first host's clock
    truth = {rank: table[..., 2:4] - zero + EPOCH for rank, table in tables.items()}
    aligned = {
        rank: analysis.clocks.to_reference(f"host{ranks[rank]['host']}", tables[rank][..., :2] + EPOCH)
        for rank in ranks
    }
    return truth, aligned, narrow


def check(ranks: dict[int, dict[str, Any]], path: Path, ahead_s: int) -> None:
    run = as_run(path, ranks)
    analysis = analyze_run(run.read())
    assert round(analysis.clocks.offset_ns["host1"] / 1e9, 1) == ahead_s
    residual = analysis.clock_residual_ns
    assert residual is not None
    truth, aligned, narrow = truth_and_aligned(ranks, analysis)
    assert narrow.mean() > 0.2
    worst = max(int(np.abs(aligned[rank] - truth[rank])[narrow].max()) for rank in ranks)
    print(f"{ahead_s} s: worst {worst} ns, residual {residual} ns, drift {analysis.clocks.drift_ppm}")
    assert worst <= max(RECOVERED_NS, residual) + NARROW_NS // 2
    # Who was late is right wherever it is not marked.
    entered = np.stack([truth[rank][..., 0] for rank in sorted(truth)])
    hosts = np.array([ranks[rank]["host"] for rank in sorted(ranks)])
    sure = 0
    assert len(analysis.calls) == WINDOWS * CALLS
    for call in analysis.calls:
        own = entered[:, call.window, call.seq]
        if narrow[call.window, call.seq] and call.start_skew_ns > residual + NARROW_NS:
            sure += 1
            assert own.max() - own[hosts == hosts[call.late_rank]].max() <= residual + NARROW_NS
    assert sure > len(analysis.calls) // 10  # marking everything would be no answer
    [collective] = analysis.collectives
    assert collective.num_waits_uncertain is not None
    # The timeline is drawn on that clock, too: no window is ten seconds long.
    timeline = extract_timeline(run.read(), clocks=analysis.clocks)
    assert all(one.dur_ns < 5_000_000_000 for one in timeline.windows)


def test_clocks_ten_seconds_and_fifty_ppm_apart_are_brought_together(tmp_path: Path) -> None:
    ranks = recorded("2x1@1gbit", tmp_path, AHEAD_S)
    assert {found["clock"] for found in ranks.values()} in ({"own", "namespace"}, {"own", "arithmetic"})
    check(ranks, tmp_path / "run", AHEAD_S)


@pytest.mark.slow
def test_several_ranks_a_host_and_a_clock_behind(tmp_path: Path) -> None:
    check(recorded("2x2@1gbit", tmp_path, -AHEAD_S), tmp_path / "run", -AHEAD_S)
