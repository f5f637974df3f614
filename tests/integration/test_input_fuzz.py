"""Traces, baselines and histories of other people, broken at random: one line or a result, nothing else.

Traces that `perfscope import` and the report ingest carry no checksum, as other programs wrote them. A digit
that was changed in one cannot be noticed, so of traces nothing is asked here but: no internal error, no
traceback, no hang, one line. Baselines and histories are perfscope's own: what is read of a broken one is
what was written.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.analysis.run import analyze_run
from perfscope.errors import PerfscopeError
from perfscope.gate.records import RunFigures
from perfscope.gate.store import open_store
from perfscope.gate.store.shareable import shareable
from perfscope.ingest.importing import import_traces
from perfscope.ingest.run import ingest_run
from perfscope.rundir.layout import CALL_COLUMNS
from perfscope.rundir.reader import RunReader
from perfscope.rundir.writer import write_json
from tests.integration.damage import time_limit
from tests.support.gate_store_runs import numbered

DATA = Path(__file__).parents[1] / "data"

_NUMBER = re.compile(rb"(?<=[:\[,])\s*-?\d[\d.eE+-]*")
_STRING = re.compile(rb'(?<=[:\[,])\s*"[^"\\]{0,80}"')
_WRONG = (
    b'"x"',
    b"null",
    b"-1",
    b"1e308",
    b"[]",
    b"{}",
    str(1 << 70).encode(),
    b"true",
    b'"\\ud800"',
    b"0.5",
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to three things broken."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 3, 40, 2000)))
        kind = rng.choice(("flip", "cut", "delete", "repeat", "nest", "number", "string", "zero"))
        found = list({"number": _NUMBER, "string": _STRING}.get(kind, _NUMBER).finditer(data))
        if kind == "flip":
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "delete":
            data = data[:at] + data[to:]
        elif kind == "repeat":
            data = data[:to] + data[at:to] * rng.choice((1, 20)) + data[to:]
        elif kind == "nest":
            data = data[:at] + rng.choice((b"[", b'{"a":')) * rng.choice((10, 100_000)) + data[at:]
        elif kind == "zero":
            data = data[:at] + b"\0" * (to - at) + data[to:]
        elif found:
            where = rng.choice(found)
            data = data[: where.start()] + rng.choice(_WRONG) + data[where.end() :]
    return data


def calls_document() -> bytes:
    start = 1_000_000
    rows = []
    for number in range(40):
        at = start + 1000 * number
        values = (at, at + 700, 7, "comm", "backward", None, "MPI_Allreduce", "all_reduce", "world", 2)
        rows.append([*values, 4096, 4096, "float32", None])
    assert len(rows[0]) == len(CALL_COLUMNS)
    steps = [[step, start + 10_000 * step, start + 10_000 * (step + 1)] for step in range(4)]
    head = {"version": 1, "monotonic_ns": 0, "unix_ns": 10**18, "main_tid": 7, "lanes": {"7": "main"}}
    groups = [{"name": "world", "ranks": [0, 1], "backend": "mpi"}]
    rest = {"columns": list(CALL_COLUMNS), "rows": rows, "num_lost": 0, "steps": steps, "groups": groups}
    return json.dumps({**head, **rest}).encode()


# Kind of input: (its name in windows/, or that of a file to import; its bytes)
def _traces() -> dict[str, tuple[str, Callable[[], bytes]]]:
    traces, frameworks = DATA / "traces", DATA / "frameworks"
    kineto = traces / "cpu_grad_hooks" / "hooks.json.gz"
    groups = traces / "cpu_gloo_groups" / "rank0.json.gz"
    tensorflow = frameworks / "tensorflow_fit" / "windows" / "0.tensorflow.xplane.pb.gz"
    jax = frameworks / "jax-two-processes.jax.xplane.pb.gz"
    mxnet = frameworks / "mxnet-dist-sync-0.mxnet.json.gz"
    return {
        "import of JSON": ("trace.json", lambda: gzip.decompress(kineto.read_bytes())),
        "import of gzip": ("trace.json.gz", groups.read_bytes),
        "TensorFlow": ("0.tensorflow.xplane.pb", lambda: gzip.decompress(tensorflow.read_bytes())),
        "JAX": ("0.jax.xplane.pb", lambda: gzip.decompress(jax.read_bytes())),
        "MXNet": ("0.mxnet.json", lambda: gzip.decompress(mxnet.read_bytes())),
        "MXNet in gzip": ("0.mxnet.json.gz", mxnet.read_bytes),
        "calls": ("0.calls.json", calls_document),
    }


TRACES = _traces()


def read_trace(folder: Path, name: str, data: bytes) -> list[str]:
    """Ingest the trace as a user's command would, and analyze what came of it; the notes."""
    run = folder / "run"
    if name.startswith("trace"):
        (folder / name).write_bytes(data)
        result = import_traces([folder / name], run, force=True)
        notes = [note for one in result.summaries for note in one.notes]
    else:
        window = run / "ranks" / "0" / "windows" / name
        window.parent.mkdir(parents=True)
        window.write_bytes(data)
        write_json(run / "run.json", {"schema_version": 1, "perfscope_version": "0", "origin": "run"})
        write_json(run / "ranks" / "0" / "rank.json", {"schema_version": 1, "rank": 0, "host": "h"})
        notes = [note for one in ingest_run(run) for note in one.notes]
    analyze_run(RunReader(run))
    return notes


def outcome_of_trace(folder: Path, kind: str, seed: int) -> str:
    name, original = TRACES[kind]
    rng, data = random.Random(f"{kind} {seed}"), original()
    if data.startswith(b"\x1f\x8b") and seed % 2:  # what is packed, not how
        data = gzip.compress(mutated(gzip.decompress(data), rng), 1)
    else:
        data = mutated(data, rng)
    shutil.rmtree(folder / "run", ignore_errors=True)
    notes = read_trace(folder, name, data)
    wrong = [note for note in notes if "internal error" in note or "\n" in note]
    assert not wrong, wrong
    return "noted" if notes else "read"


def originals() -> list[RunFigures]:
    return [shareable(numbered(number)) for number in range(3)]


def outcome_of_store(folder: Path, kind: str, seed: int) -> str:
    """Every run that is read of a broken file is one that was written."""
    path = folder / f"{seed}{'.json' if kind == 'baseline' else '.sqlite'}"
    written = originals()
    open_store(path, create=True).put("cnn", written)
    rng = random.Random(f"{kind} {seed}")
    path.write_bytes(mutated(path.read_bytes(), rng))
    store = open_store(path)
    found = [run for entry in store.entries() for run in store.runs(entry.name, entry.key)]
    assert all(run in written for run in found)
    return "read" if len(found) == len(written) else "part of it read"


STORES = ("baseline", "history")
KINDS = (*TRACES, *STORES)


def run_case(folder: Path, kind: str, seed: int) -> str:
    outcome = outcome_of_store if kind in STORES else outcome_of_trace
    try:
        with time_limit():
            return outcome(folder, kind, seed)
    except PerfscopeError as error:
        assert "\n" not in str(error)
        assert "internal error" not in str(error)
        return "one line"
    except Exception as error:  # noqa: BLE001 - everything else is what this looks for
        where = "".join(traceback.format_exception(error)[-3:])
        return f"FAILED {kind} {seed}: {type(error).__name__}: {error}\n{where}"


def fuzz(folder: Path, kind: str, seeds: range) -> None:
    outcomes = [run_case(folder, kind, seed) for seed in seeds]
    failed = [one for one in outcomes if one.startswith("FAILED")]
    print(f"{kind}: {len(outcomes)} mutations: {dict(Counter(one.split()[0] for one in outcomes))}")
    assert not failed, "\n".join(failed[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_untouched_inputs_are_read(tmp_path: Path, kind: str) -> None:
    if kind in STORES:
        return
    name, original = TRACES[kind]
    read_trace(tmp_path, name, original())


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_broken_inputs(tmp_path: Path, kind: str) -> None:
    fuzz(tmp_path, kind, range(4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_broken_inputs(tmp_path: Path, kind: str) -> None:
    fuzz(tmp_path, kind, range(4, 60))
