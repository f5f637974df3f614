"""Run directories whose names are no UTF-8 or hold what a terminal would hide: printed commands name them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, user_environment
from tests.support.ingest_traces import GLOO

NAMES = [b"caf\xe9 run", b"a\xffb'c\t", "é ü".encode(), b"new\nline \x1b[31m"]


def perfscope(*words: str | bytes, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    command = [os.fsencode(word) for word in (*PERFSCOPE, *words)]
    return subprocess.run(
        command, cwd=cwd, env=user_environment(), capture_output=True, timeout=120, check=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_next_names_a_directory_that_is_there(tmp_path: Path, name: bytes) -> None:
    code = "import perfscope\nfor _ in range(30): perfscope.step()"
    place = b"./" + name
    done = perfscope(
        *("run", "--ceilings", "off", "-o", place, "--", sys.executable, "-c", code), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = re.search(rb"^perfscope: next: perfscope report (.*)$", done.stderr, re.MULTILINE)
    assert found, done.stderr
    shell = subprocess.run(
        ["bash", "-c", b"test -f " + found[1] + b"/run.json"],
        cwd=tmp_path,
        check=False,
    )
    assert shell.returncode == 0, found[1]
    assert b"\x1b" not in done.stderr


@pytest.mark.slow
def test_every_command_takes_such_a_name(tmp_path: Path) -> None:
    one, two = b"one\xff", b"two\xe9"
    trace = tmp_path / os.fsdecode(b"trace\xff.json.gz")
    trace.write_bytes((GLOO / "rank0.json.gz").read_bytes())
    commands: list[tuple[tuple[str | bytes, ...], tuple[int, ...]]] = [
        (("import", os.fsencode(trace), "-o", one), (0,)),
        (("import", os.fsencode(trace), "-o", two), (0,)),
        (("import", os.fsencode(trace), "-o", two), (1,)),  # there already
        (("report", one), (0,)),
        (("report", one, "--json"), (0,)),
        (("export", one, "--format", "perfetto"), (0,)),
        (("export", one, "--format", "parquet"), (0,)),
        (("compare", one, two), (0, 1)),
        (("collect", one, "-o", b"all\xff"), (0, 3)),
        (("baseline", "update", b"b\xff.json", one), (0, 1, 4)),
        (("check", "--base", one, "--head", two), (0, 1, 2, 3, 4)),
        (("report", b"gone\xff"), (1,)),
    ]
    for words, codes in commands:
        done = perfscope(*words, cwd=tmp_path)
        assert done.returncode in codes, (words, done.stderr)
        assert b"internal error" not in done.stderr and b"Traceback" not in done.stderr, (words, done.stderr)
    assert (tmp_path / os.fsdecode(one) / "report.html").is_file()
    assert (tmp_path / os.fsdecode(one) / "timeline.json.gz").exists() or list(
        (tmp_path / os.fsdecode(one)).glob("timeline*")
    )
