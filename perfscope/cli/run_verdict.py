"""What bounds the step, in two lines at the end of `perfscope run`.

The analysis runs in a process of its own and within limits: a recording never fails, grows or waits long
because of it. What takes longer is left to `perfscope report`, which then finds the tables ready.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

_MOST_BYTES = 32 << 20  # of traces, compressed, and of steps
_MOST_RANKS = 64
_LIMIT_S = 20.0
_POLL_S = 0.05


def verdict_lines(run_dir: Path, stop: Callable[[], bool], *, limit_s: float = _LIMIT_S) -> Sequence[str]:
    """The verdict with its confidence, and what to do; nothing where it takes too long or cannot be had.

    Args:
        run_dir: a closed run.
        stop: whether perfscope was asked to end.
        limit_s: time that the analysis may take, seconds.
    """
    if stop() or not is_small(run_dir):
        return ()
    command = (sys.executable, "-m", __name__, str(run_dir))
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that its workers end with it
    )
    end = time.monotonic() + limit_s
    try:
        while process.poll() is None and time.monotonic() < end and not stop():
            time.sleep(_POLL_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output.decode("utf-8", "replace").splitlines() if process.returncode == 0 else ()


def is_small(run_dir: Path) -> bool:
    """Whether a run is analyzed within seconds."""
    from perfscope.rundir import layout

    ranks = run_dir / layout.RANKS
    files = [path for path in ranks.rglob("*") if path.is_file()] if ranks.is_dir() else []
    num_ranks = sum(path.name == layout.RANK_JSON for path in files)
    return 0 < num_ranks <= _MOST_RANKS and sum(path.stat().st_size for path in files) <= _MOST_BYTES


def main() -> None:
    """Prints the lines of the run that the command line names."""
    from perfscope.api.listing import keep_verdict
    from perfscope.api.opening import up_to_date
    from perfscope.api.run import Run
    from perfscope.rundir.reader import RunReader

    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `perfscope run` holds signals back while it closes a run
    run_dir = Path(sys.argv[1])
    with ExitStack() as stack:
        report = Run(RunReader(up_to_date(run_dir, stack.callback))).document
    verdict = report.verdict
    keep_verdict(run_dir, report)
    print(f"{verdict.headline}{f' ({verdict.confidence})' if verdict.confidence else ''}")
    if verdict.action:
        print(f"  → {verdict.action}")


if __name__ == "__main__":
    main()
