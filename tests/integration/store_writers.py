"""Processes that write baselines and histories, and die of it: started by test_gate_store_faults.py.

write FILE FIRST COUNT      waits for a line on stdin, puts runs one by one, prints the number of each kept
killed FILE ROUNDS SEED     forks writers, kills each at a random moment; prints what was kept and is there
killed-at FILE CALL WHEN    one put, killed right before or after its first CALL
hold FILE                   holds the lock that writers of FILE need until stdin closes
full FILE BYTES             puts more than fits, into files of at most BYTES (0: any size, the disk is small)
nobody FILE WHAT            put or read by a user who owns nothing
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.errors import PerfscopeError
from perfscope.gate.store import BaselineError, open_store
from perfscope.gate.store.locking import locked
from perfscope.gate.store.sqlite_file import SCHEMA_VERSION  # noqa: F401 - while modules may still be read
from tests.support.gate_store_runs import numbered, numbers

NOBODY = 65534


def write(file: Path, first: int, count: int) -> None:
    sys.stdin.readline()
    for number in range(first, first + count):
        open_store(file, create=True).put("train", [numbered(number)])
        print(number, flush=True)


def killed(file: Path, rounds: int, seed: int) -> None:
    """Each writer tells over a pipe what put has returned for; whatever it told must be there ever after.

    It is killed within the time of one put after it told the first, second or third (or none).
    """
    draw = random.Random(seed)
    promised: list[int] = []
    took = [0.03]
    num_unsaid = number = 0
    for _ in range(rounds):
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            _write_until_killed(file, number, theirs)
        os.close(theirs)
        with os.fdopen(ours) as told:
            since = time.monotonic()
            new = [int(told.readline()) for _ in range(draw.choice((0, 1, 1, 2, 3)))]
            if new:
                took.append((time.monotonic() - since) / len(new))
            time.sleep(draw.uniform(0, statistics.median(took)))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            new += [int(line) for line in told.read().splitlines()]
        promised += new
        number += len(new)
        there = _there(file)
        if set(promised) - set(there):
            print(json.dumps({"lost": sorted(set(promised) - set(there))}))
            sys.exit(1)
        num_unsaid += len(set(there) - set(promised))  # killed before it could say so: it will be put again
    print(json.dumps({"promised": promised, "there": _there(file), "unsaid": num_unsaid}))


def _write_until_killed(file: Path, number: int, pipe: int) -> None:
    while True:
        open_store(file, create=True).put("train", [numbered(number)])
        os.write(pipe, f"{number}\n".encode())
        number += 1


def _there(file: Path) -> list[int]:
    entries = open_store(file, create=True).entries()
    return numbers(open_store(file).runs("train", entries[0].key)) if entries else []


def killed_at(file: Path, call: str, when: str) -> None:
    store = open_store(file, create=True)
    place: Any = {"flock": fcntl, "fsync": os, "replace": Path, "unlink": Path}[call]
    original: Callable[..., Any] = getattr(place, call)

    def deadly(*args: Any, **kwargs: Any) -> Any:
        if call == "unlink" and args[0].suffix != ".lock":
            return original(*args, **kwargs)
        if when == "after":
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, call, deadly)
    store.put("train", [numbered(77)])


def hold(file: Path) -> None:
    if file.suffix == ".json":
        with locked(file):
            _say_and_wait()
        return
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    _say_and_wait()
    connection.close()


def _say_and_wait() -> None:
    print("held", flush=True)
    sys.stdin.read()


def full(file: Path, size: int) -> None:
    """Prints what the failed put said, and what is there afterwards."""
    store = open_store(file, create=True)
    store.put("train", [numbered(1)])
    if size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        store.put("train", [numbered(number) for number in range(100, 300)])
    except BaselineError as error:
        files = sorted(path.name for path in file.parent.iterdir())
        print(json.dumps({"error": str(error), "there": _there(file), "files": files}))


def nobody(file: Path, what: str) -> None:
    run = numbered(1)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    store = open_store(file)
    if what == "put":
        store.put("train", [run])
    print(store.entries()[0].num_runs)


def main(command: str, name: str, *rest: str) -> None:
    file = Path(name)
    try:
        if command == "write":
            write(file, int(rest[0]), int(rest[1]))
        elif command == "killed":
            killed(file, int(rest[0]), int(rest[1]))
        elif command == "killed-at":
            killed_at(file, *rest)
        elif command == "hold":
            hold(file)
        elif command == "full":
            full(file, int(rest[0]))
        else:
            nobody(file, rest[0])
    except PerfscopeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
