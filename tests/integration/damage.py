"""Seeded damage to a run directory, and what a report of the damaged run must say."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.cli.main import main

HANG_S = 60.0  # a report of these runs takes a tenth of a second
_NOT_FIGURES = ("missing", "machine.missing", "provenance", "remarks")
_NOT_READ = ("sampler.lock",)

Document = dict[str, Any]


class HangError(Exception):
    """The report did not end."""


@dataclass(frozen=True)
class Outcome:
    """What a command did; `document` is the report's JSON."""

    code: int
    stdout: str
    stderr: str
    document: Document | None = None


def report_of(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> Outcome:
    """`perfscope report --json` in this process. Raises HangError."""
    outcome = perfscope(capsys, "report", "--json", str(run_dir))
    return replace(outcome, document=json.loads(outcome.stdout) if outcome.stdout else None)


def perfscope(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """A command in this process. Raises HangError."""
    with pytest.MonkeyPatch.context() as patch, time_limit():
        patch.setattr("sys.argv", ["perfscope", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code if isinstance(ended.value.code, int) else 1
    out, err = capsys.readouterr()
    return Outcome(code=code, stdout=out, stderr=err)


@contextmanager
def time_limit(seconds: float = HANG_S) -> Iterator[None]:
    """Raises HangError inside the block when it takes longer."""

    def too_long(*_: object) -> None:
        raise HangError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def figures(document: Document) -> dict[str, object]:
    """Every number, word and truth value of a report by its dotted path, as in `missing[].affects`."""
    found: dict[str, object] = {}

    def walk(value: object, path: str) -> None:
        if path in _NOT_FIGURES:
            return
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                own = item.get("rank", index) if path == "ranks" and isinstance(item, dict) else index
                walk(item, f"{path}.{own}")
        else:
            found[path] = value

    walk(document, "")
    return found


def gaps(document: Document) -> list[Document]:
    """All entries about what is missing, those of the machine's section as well."""
    return [*document["missing"], *((document.get("machine") or {}).get("missing") or [])]


def uncovered(before: Document, after: Document) -> list[str]:
    """Figures that differ and that no new entry of `missing` names among the affected ones."""
    old, new = figures(before), figures(after)
    known = [json.dumps(gap, sort_keys=True) for gap in gaps(before)]
    fresh = [gap for gap in gaps(after) if json.dumps(gap, sort_keys=True) not in known]
    affected = {path for gap in fresh for path in gap.get("affects", ())}
    changed = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    patterns = [re.compile(re.escape(one).replace(r"\*", "[0-9]+") + r"(\.|$)") for one in affected]
    return [path for path in changed if not any(pattern.match(path) for pattern in patterns)]


def complaint(before: Document, outcome: Outcome) -> str:
    """What is wrong with the report of a damaged run; "" where nothing is."""
    if outcome.code == 1:
        lines = outcome.stderr.splitlines()
        one_line = len(lines) == 1 and lines[0].startswith("perfscope: ")
        return "" if one_line and not outcome.document else f"exit 1 with {outcome.stderr!r}"
    if outcome.code != 0 or outcome.document is None:
        return f"exit {outcome.code}: {outcome.stderr!r}"
    silent = uncovered(before, outcome.document)
    return f"changed without a note: {silent[:5]}" if silent else ""


def files_of(run_dir: Path) -> list[Path]:
    """The files of a run that a report may read, relative, in order."""
    return sorted(
        path.relative_to(run_dir)
        for path in run_dir.rglob("*")
        if path.is_file() and path.name not in _NOT_READ and ".owner" not in path.parts
    )


def copy_run(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)  # with their times: what was made of a trace stays fresh


def strip_seals(run_dir: Path) -> None:
    """As an older perfscope would have left the run."""
    for name in files_of(run_dir):
        if name.suffix != ".json" or "derived" in name.parts:
            continue
        document = json.loads((run_dir / name).read_bytes())
        for key in ("checksum", "seals", "inventory", "files"):
            document.pop(key, None)
        (run_dir / name).write_text(json.dumps(document))
    for path in run_dir.rglob("samples.seal.json"):
        path.unlink()


def mutate(run_dir: Path, rng: random.Random) -> str:
    """Damage one file; says which and how."""
    name = rng.choice(files_of(run_dir))
    kind = rng.choice(sorted(_MUTATIONS))
    detail = _MUTATIONS[kind](run_dir / name, rng)
    return f"{kind} of {name}{f' ({detail})' if detail else ''}"


def _flip(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    if data:
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return f"byte {at}"
    return ""


def _digit(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if digits:
        at = rng.choice(digits)
        data[at] = 48 + (data[at] - 48 + rng.randrange(1, 10)) % 10
        path.write_bytes(data)
        return f"byte {at}"
    return _flip(path, rng)


def _cut(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1) if data else 0
    path.write_bytes(data[:at])
    return f"to {at} of {len(data)} bytes"


def _lines(path: Path, rng: random.Random, change: Callable[[list[bytes], int], None]) -> str:
    lines = path.read_bytes().splitlines(keepends=True)
    if not lines:
        return "no lines"
    at = rng.randrange(len(lines))
    change(lines, at)
    path.write_bytes(b"".join(lines))
    return f"line {at}"


def _cut_lines(path: Path, rng: random.Random) -> str:
    return _lines(path, rng, lambda lines, at: lines.__delitem__(slice(at, None)))


def _drop_line(path: Path, rng: random.Random) -> str:
    return _lines(path, rng, lambda lines, at: lines.__delitem__(at))


def _repeat_line(path: Path, rng: random.Random) -> str:
    return _lines(path, rng, lambda lines, at: lines.insert(at, lines[at]))


def _repeat_at_end(path: Path, rng: random.Random) -> str:
    return _lines(path, rng, lambda lines, at: lines.append(lines[at]))


def _delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return ""


def _delete_folder(path: Path, rng: random.Random) -> str:
    if (path.parent / "run.json").exists():
        return _delete(path, rng)
    shutil.rmtree(path.parent)
    return path.parent.name


def _folder(path: Path, rng: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return ""


def _pipe(path: Path, rng: random.Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return ""


def _nested(path: Path, rng: random.Random) -> str:
    deep = rng.choice([150, 900, 100_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    text = opening * deep + "1" + closing * deep
    path.write_text(f'{{"a": {text}}}\n' if rng.random() < 0.7 else f"{text}\n")
    return f"{deep} deep"


def _other(path: Path, rng: random.Random) -> str:
    """The same file of another rank or window, both ways, or any other file of the run."""
    top = next(parent for parent in path.parents if (parent / "run.json").exists())
    alike = [top / one for one in files_of(top) if one.name == path.name and top / one != path]
    other = rng.choice(alike or [top / one for one in files_of(top)])
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"with {other.relative_to(top)}"


def _replaced_value(path: Path, rng: random.Random) -> str:
    """Another type somewhere in a document or a line, or a key that is gone."""
    lines = path.read_bytes().splitlines()
    at = rng.randrange(len(lines)) if lines and path.suffix == ".jsonl" else None
    try:
        document = json.loads(lines[at] if at is not None else path.read_bytes())
    except ValueError:
        return _flip(path, rng)
    places = [(outer, key) for outer in _containers(document) for key in _keys(outer)]
    if not places:
        return _cut(path, rng)
    outer, key = rng.choice(places)
    if rng.random() < 0.2:
        del outer[key]
    else:
        outer[key] = rng.choice(_VALUES)
    text = json.dumps(document).encode()
    path.write_bytes(text if at is None else b"\n".join([*lines[:at], text, *lines[at + 1 :]]) + b"\n")
    return f"key {key!r}"


_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e300, 10**30, "", "x", "-1", [], {}, [None], [[]], {"a": 1}, [{"a": None}]),
    *("\x00", "../../x", "9" * 400, [1, "x", None]),
)


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value)))


_MUTATIONS: dict[str, Callable[[Path, random.Random], str]] = {
    "flipped bit": _flip,
    "other digit": _digit,
    "cut": _cut,
    "cut at a line end": _cut_lines,
    "lost line": _drop_line,
    "repeated line": _repeat_line,
    "line repeated at the end": _repeat_at_end,
    "deletion": _delete,
    "deletion of the folder": _delete_folder,
    "directory in place": _folder,
    "pipe in place": _pipe,
    "deep nesting in place": _nested,
    "exchange": _other,
    "other type": _replaced_value,
}
WRONG_TYPES = _replaced_value
