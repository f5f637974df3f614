"""Imports damaged files one after the other, in a process of its own whose memory is bounded.

    python -m tests.support.damaged_imports FORMAT FIRST NUMBER FOLDER

Prints a JSON list of what went wrong: seed, what, stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

from perfscope.cli.main import main as cli_main
from perfscope.ingest.formats.registry import FORMATS
from tests.support.mutations import mutated
from tests.support.trace_samples import Sample, samples

MIB = 1 << 20
MOST_MEMORY = 3 << 30  # of addresses, for all imports of the process: threads and libraries take most
MOST_RESIDENT = 450 * MIB


def perfscope(*words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["perfscope", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli_main()
        except SystemExit as stop:
            return int(stop.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("a command ends with an exit code")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def problem_of(path: Path, folder: Path, *, read_report: bool) -> str:
    """What is wrong with how perfscope imports a file; "" = nothing."""
    run = folder / "run"
    before = path.read_bytes()
    code, _, stderr = perfscope("import", str(path), "-o", str(run))
    if path.read_bytes() != before:
        return "the file was changed"
    if "internal error" in stderr or "Traceback" in stderr or code not in (0, 1):
        return f"import: exit code {code}: {stderr}"
    if code == 1:
        if len(stderr.splitlines()) != 1 or not stderr.startswith("perfscope: "):
            return f"not one line: {stderr}"
        return "a run was left behind" if run.exists() else ""
    notes = "".join(file.read_text() for file in (run / "derived" / "ingest").glob("*.json"))
    if "internal error" in notes:
        return f"a note: {notes}"
    if read_report:
        code, stdout, stderr = perfscope("report", str(run), "--json")
        if code != 0:
            return f"report: exit code {code}: {stderr}"
        json.loads(stdout, parse_constant=_refuse)
    shutil.rmtree(run)
    return ""


def one_case(name: str, seed: int, folder: Path) -> tuple[Path, bool]:
    """The damaged file of a seed, and whether its report is read, too."""
    random = Random(f"{name} {seed}")
    sample: Sample = random.choice(samples()[name])
    compressible = next(one.compressible for one in FORMATS if one.name == name)
    packed = compressible and random.random() < 0.25
    path = folder / (sample.name + ".gz" * packed)
    path.write_bytes(mutated(sample, random, packed=packed))
    return path, random.random() < 0.6


def main(name: str, first: int, number: int, folder: Path) -> list[dict[str, Any]]:
    """All cases of a format."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    wrong = []
    for seed in range(first, first + number):
        here = folder / str(seed)
        here.mkdir()
        path, read_report = one_case(name, seed, here)
        problem = problem_of(path, here, read_report=read_report)
        if problem:
            wrong.append({"seed": seed, "problem": problem})
        shutil.rmtree(here)
    # Not ru_maxrss: Linux keeps that of the process which started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident = int(status["VmHWM"].split()[0]) * 1024
    if resident > MOST_RESIDENT:
        wrong.append({"seed": -1, "problem": f"{resident / MIB:.0f} MiB of memory"})
    return wrong


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])), indent=1))
