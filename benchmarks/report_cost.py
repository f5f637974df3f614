"""CPU time of `perfscope report` in every format, of one Python or several: which version costs what.

    python benchmarks/report_cost.py RUN                                       # this Python's perfscope
    python benchmarks/report_cost.py RUN --python old/bin/python new/bin/python  # two, in turn

Each figure is user + system time of a fresh process with compiled bytecode, the median over `--repeats`
rounds; the versions take turns within a round. The spread shown is the interquartile range over the median:
differences below it are noise. The first version runs twice in each round (A/A). glibc's heap is kept from
shrinking and growing by MALLOC_TOP_PAD_, which otherwise decides more than the code does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

IMPORT = "import numpy, pyarrow"
FORMATS = ("import numpy, pyarrow", "--json", "--text", "--html", "--text --html --pdf")


def command(python: str, run: Path, kind: str, folder: Path) -> list[str]:
    """The process that is timed; `kind` is one of FORMATS."""
    if kind == IMPORT:
        return [python, "-c", IMPORT]
    paths = {"--html": [str(folder / "report.html")], "--pdf": [str(folder / "report.pdf")]}
    words = [word for option in kind.split() for word in (option, *paths.get(option, ()))]
    return [python, "-m", "perfscope", "report", str(run), *words]


def cpu_s(words: list[str], environment: dict[str, str], folder: Path) -> float:
    """User and system time of a process and its children, seconds.

    It runs in `folder`: `python -m` would import a perfscope of the current directory.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, cwd=folder
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, stderr=errors)
    return usage.ru_utime + usage.ru_stime


def measure(run: Path, pythons: list[str], repeats: int) -> dict[str, dict[str, list[float]]]:
    """Version -> format -> CPU seconds, one per round."""
    names = [pythons[0], f"{pythons[0]} (A/A)", *pythons[1:]]
    seconds: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in FORMATS} for name in names}
    environment = {**os.environ, "MALLOC_TOP_PAD_": str(64 << 20)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the first, uncounted round compiles
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, repeats):
            print(f"round {max(number, 0)} of {repeats}", end="\r", file=sys.stderr, flush=True)
            for kind in FORMATS:
                for name in names if number % 2 else reversed(names):
                    words = command(name.removesuffix(" (A/A)"), run, kind, Path(folder))
                    value = cpu_s(words, environment, Path(folder))
                    if number >= 0:
                        seconds[name][kind].append(value)
    print(file=sys.stderr)
    return seconds


def spread(values: list[float]) -> float:
    """Interquartile range over the median."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run directory, such as that of `make demo`")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters with a perfscope")
    parser.add_argument("--repeats", type=int, default=9, help="rounds; default 9, at least 2")
    parser.add_argument("--json", action="store_true", help="seconds of every round")
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error("--repeats: at least 2")
    seconds = measure(args.run.resolve(), [str(Path(one).absolute()) for one in args.python], args.repeats)
    if args.json:
        print(json.dumps(seconds, indent=1))
        return
    first = next(iter(seconds.values()))
    for name, figures in seconds.items():
        print(name)
        for kind, values in figures.items():
            median = statistics.median(values)
            ratio = median / statistics.median(first[kind])
            print(f"  {kind:<24}{median:8.3f} s  spread {spread(values):5.1%}  {ratio:6.2f} x the first")


if __name__ == "__main__":
    main()
