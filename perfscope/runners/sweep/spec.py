"""A sweep's TOML file: what it may hold, and the cells that it asks for. No torch here.

[sweep]                    lists are multiplied with each other
schemes = ["dp.ddp", "hy.owt", "dp.packed+fp16"]
models  = ["alexnet"]
worlds  = [4]              or meshes = ["dp=2,tp=2", "dp=4"]
batches = [16]
repeats = 2
cluster = "2x2@1gbit"      all cells run on it

[settings]                 of every cell, named as the options of `perfscope bench run`
steps = 6

[scheme."hy.filter_dp"]    what this scheme needs otherwise
mesh = "dp=2,tp=2"

[[cell]]                   one more cell
scheme = "serial"
ranks = 1
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from perfscope.runners.config import BenchError, parse_scheme
from perfscope.runners.sweep.settings import SETTINGS, nearest
from perfscope.vocabulary.defaults import SWEEP

_SWEEP_KEYS = (
    *("schemes", "models", "worlds", "meshes", "batches", "repeats", "seed", "cluster", "cell_timeout"),
    *("overhead", "windows", "steps_per_window", "sample_interval", "title"),
)
_TOP_KEYS = ("sweep", "settings", "scheme", "cell")
_RECORDING_DEFAULTS: dict[str, Any] = {**SWEEP._asdict(), "overhead": f"{SWEEP.overhead:.0%}"}
DEFAULT_CELL_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the matrix.

    Attributes:
        name: unique in the study, fit for a file name.
        scheme: with modifiers.
        settings: by the names of settings.SETTINGS.
        cluster: emulated cluster; None = none.
    """

    name: str
    scheme: str
    settings: Mapping[str, Any]
    cluster: str | None = None

    @property
    def digest(self) -> str:
        """Changes with anything that changes the run."""
        content = json.dumps([self.scheme, dict(self.settings), self.cluster], sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a file asks for.

    Attributes:
        title: for the study's heading.
        cells: in the file's order.
        repeats: runs of each cell.
        seed: of the order inside a repeat.
        cell_timeout_s: a run that takes longer is ended and counts as failed.
        recording: options of the recording, by name.
    """

    title: str
    cells: tuple[Cell, ...]
    repeats: int = 1
    seed: int = 0
    cell_timeout_s: float = DEFAULT_CELL_TIMEOUT_S
    recording: Mapping[str, Any] = field(default_factory=dict)


def read_sweep(path: Path) -> Sweep:
    """The sweep that a TOML file describes.

    Raises:
        BenchError: it cannot be read, or holds something nobody knows.
    """
    return parse_sweep(_load(path), path.stem, str(path))


def parse_sweep(document: Mapping[str, Any], title: str, place: str) -> Sweep:
    """The sweep in a decoded document. `place` names the file in messages.

    Raises:
        BenchError: a key nobody knows, with the nearest; a value of the wrong kind; no cell at all.
    """
    _check_all_keys(document, place)
    top, fixed = _table(document, "sweep", place), _table(document, "settings", place)
    cells = [*_matrix(top, fixed, _overrides(document, place), place), *_single(document, fixed, top, place)]
    if not cells:
        raise BenchError(f"{place} asks for no run: list schemes in [sweep], or add a [[cell]]")
    named = _with_names(cells, place)
    return Sweep(
        title=str(top.get("title", title)),
        cells=named,
        repeats=_at_least_one(top.get("repeats", 1), "repeats", place),
        seed=int(top.get("seed", 0)),
        cell_timeout_s=_seconds(top.get("cell_timeout", DEFAULT_CELL_TIMEOUT_S), place),
        recording={**_RECORDING_DEFAULTS, **{key: top[key] for key in _RECORDING if key in top}},
    )


_RECORDING = ("overhead", "windows", "steps_per_window", "sample_interval")
_Raw = tuple[str, dict[str, Any], "str | None"]  # scheme, settings, cluster


def _matrix(
    top: Mapping[str, Any], fixed: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]], place: str
) -> list[_Raw]:
    schemes = _list(top, "schemes", place)
    if "worlds" in top and "meshes" in top:
        raise BenchError(f"{place}: give worlds or meshes in [sweep], not both; a mesh names its ranks")
    unused = [name for name in overrides if name not in schemes and name not in map(_bare, schemes)]
    if unused:
        raise BenchError(
            f"{place} [scheme.{unused[0]!r}] is not among the sweep's schemes{nearest(unused[0], schemes)}"
        )
    axes = [
        ("model", _list(top, "models", place) or [None]),
        ("ranks", _list(top, "worlds", place) or [None]),
        ("mesh", _list(top, "meshes", place) or [None]),
        ("batch", _list(top, "batches", place) or [None]),
    ]
    cells: list[_Raw] = []
    for values in product(*(values for _, values in axes)):
        varied = {name: value for (name, _), value in zip(axes, values, strict=True) if value is not None}
        for scheme in schemes:
            own = {**overrides.get(_bare(scheme), {}), **overrides.get(scheme, {})}
            settings = {**fixed, **varied, **own}
            cell = (scheme, settings, top.get("cluster"))
            if cell not in cells:  # a scheme with a mesh of its own comes once, whatever meshes are listed
                cells.append(cell)
    return cells


def _single(
    document: Mapping[str, Any], fixed: Mapping[str, Any], top: Mapping[str, Any], place: str
) -> list[_Raw]:
    rows = document.get("cell", [])
    if not isinstance(rows, list):
        raise BenchError(f"{place}: write [[cell]] with two brackets, there may be several")
    found: list[_Raw] = []
    for row in rows:
        if not isinstance(row.get("scheme"), str):
            raise BenchError(f"{place}: a [[cell]] names no scheme")
        own = {key: value for key, value in row.items() if key not in ("scheme", "cluster")}
        cluster = row.get("cluster", top.get("cluster"))
        found.append((row["scheme"], {**fixed, **own}, cluster or None))  # cluster = "" takes it away
    return found


def _overrides(document: Mapping[str, Any], place: str) -> dict[str, dict[str, Any]]:
    found = {}
    for name, own in _table(document, "scheme", place).items():
        if not isinstance(own, dict) or any(isinstance(value, dict) for value in own.values()):
            raise BenchError(f'{place}: write [scheme."{name}.NAME"] with quotes, scheme names hold a dot')
        _check_keys(own, SETTINGS, f"{place} [scheme.{name!r}]")
        found[name] = own
    return found


def _with_names(cells: Sequence[_Raw], place: str) -> tuple[Cell, ...]:
    found: dict[str, Cell] = {}
    for scheme, settings, cluster in cells:
        parse_scheme(scheme)  # a name that is none is said at once; whether it exists, planning says
        words = [scheme, str(settings.get("model", "smallcnn"))]
        if "mesh" in settings:
            mesh = settings["mesh"]
            words.append(
                "m" + "x".join(map(str, mesh) if isinstance(mesh, list) else mesh.replace("=", "").split(","))
            )
        elif "ranks" in settings:
            words.append(f"p{settings['ranks']}")
        if "batch" in settings:
            words.append(f"b{settings['batch']}")
        name = slug("-".join(words))
        cell = Cell(name=name, scheme=scheme, settings=settings, cluster=cluster)
        if name in found:
            if found[name].digest == cell.digest:
                raise BenchError(f"{place} asks for {scheme} twice with the same settings")
            cell = Cell(name=f"{name}-{cell.digest[:6]}", scheme=scheme, settings=settings, cluster=cluster)
        found[cell.name] = cell
    return tuple(found.values())


def slug(text: str) -> str:
    """Fit for a file name, and readable: `dp.packed+topk(0.01)-p2` -> `dp.packed+topk-0.01-p2`."""
    open_ended = re.sub(r"[()%\s]+", "-", text)
    return re.sub(r"-+", "-", re.sub(r"[^A-Za-z0-9.+_-]+", "_", open_ended)).strip("-_")


def _bare(scheme: str) -> str:
    return scheme.partition("+")[0]


def _load(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]
        except ModuleNotFoundError:
            raise BenchError("reading TOML needs Python 3.11 or newer, or: pip install tomli") from None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist") from None
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is not TOML: {' '.join(str(error).split())}") from error


def _check_all_keys(document: Mapping[str, Any], place: str) -> None:
    """Every key of the file, so that all that is misspelt is said at once.

    Raises:
        BenchError: one line for all.
    """
    rows = document.get("cell", [])
    cells = enumerate(rows if isinstance(rows, list) else [], start=1)
    problems = [
        *_unknown_keys(document, _TOP_KEYS, place),
        *_unknown_keys(document.get("sweep", {}), _SWEEP_KEYS, f"{place} [sweep]"),
        *_unknown_keys(document.get("settings", {}), SETTINGS, f"{place} [settings]"),
    ]
    for number, row in cells:
        which = f" {number}" if len(rows) > 1 else ""
        problems += _unknown_keys(row, ("scheme", "cluster", *SETTINGS), f"{place} [[cell]]{which}")
    if problems:
        raise BenchError("; ".join(problems))


def _check_keys(table: Any, known: Sequence[str] | Mapping[str, Any], place: str) -> None:
    problems = _unknown_keys(table, known, place)
    if problems:
        raise BenchError("; ".join(problems))


def _unknown_keys(table: Any, known: Sequence[str] | Mapping[str, Any], place: str) -> list[str]:
    if not isinstance(table, dict):
        return [f"{place} is not a table of settings"]
    return [f"{place} knows no {key!r}{nearest(key, known)}" for key in table if key not in known]


def _table(document: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise BenchError(f"{place}: {name} is not a table, write [{name}]")
    return found


def _list(table: Mapping[str, Any], name: str, place: str) -> list[Any]:
    found = table.get(name, [])
    if not isinstance(found, list):
        raise BenchError(f"{place} [sweep]: {name} = {found!r} is not a list, write [{found!r}]")
    if name in ("schemes", "models") and not all(isinstance(one, str) for one in found):
        raise BenchError(f"{place} [sweep]: {name} holds something that is no name")
    return found


def _at_least_one(value: Any, name: str, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BenchError(f"{place} [sweep]: {name} = {value!r} is not a whole number above 0")
    return value


def _seconds(value: Any, place: str) -> float:
    from perfscope.units import parse_ns

    try:
        seconds = float(value) if isinstance(value, int | float) else parse_ns(str(value)) / 1e9
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise BenchError(f'{place} [sweep]: cell_timeout = {value!r} is not a time such as "10min"')
    return seconds
