"""`perfscope dashboard` over many runs: the first page, the page again, and again after one more run.

    python -m benchmarks.dashboard [--runs 1000] [--series 8]

Writes made-up runs of several series and times the command as a process of its own each time. Times are for
this machine, now; budget: 30 s for 1,000 runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.site_runs import write_many, write_run


def timed(runs: Path, site: Path) -> float:
    """Seconds that the command took."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "perfscope", "dashboard", str(runs), "-o", str(site)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--series", type=int, default=8)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs, site = Path(folder) / "runs", Path(folder) / "site"
        write_many(runs, chosen.runs, num_series=chosen.series)
        first, again = timed(runs, site), timed(runs, site)
        write_run(runs, "one-more", day=chosen.runs, series=1, step_ns=9e7)
        more = timed(runs, site)
        size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"{chosen.runs:,} runs    first {first:.2f} s, again {again:.2f} s, one more run {more:.2f} s")
    print(f"site          {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
