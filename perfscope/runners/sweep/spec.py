"""A sweep's TOML file: what it may hold, and the cells that it asks for. No torch here.

[sweep]                    lists are multiplied with each other
schemes = ["dp.ddp", "hy.owt", "dp.packed+fp16"]
models  = ["alexnet"]
worlds  = [4]              or meshes = ["dp=2,tp=2", "dp=4"]
batches = [16]
seeds   = [0, 1, 2]        of weights and samples
repeats = 2
cluster = "2x2@1gbit"      all cells run on it

[grid]                     lists of any setting, multiplied with the others; "cluster" too
lr = [0.01, 0.1]
optimizer = ["sgd", "adamw"]

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from perfscope.runners.config import BenchError, Count, Places, Samples, parse_scheme
from perfscope.runners.mesh import Mesh
from perfscope.runners.sweep.settings import SettingsTable
from perfscope.settings import converted, given, nearest, read_toml
from perfscope.units import parse_ns
from perfscope.vocabulary.defaults import SWEEP

# Lists of [sweep] by the setting that they vary.
_LISTS = {"model": "models", "ranks": "worlds", "mesh": "meshes", "batch": "batches", "seed": "seeds"}
_RECORDING_DEFAULTS: dict[str, Any] = {**SWEEP._asdict(), "overhead": f"{SWEEP.overhead:.0%}"}
_RECORDING = ("overhead", "windows", "steps_per_window", "sample_interval")
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


class Seconds(float):
    """A duration."""

    @classmethod
    def parse(cls, value: object) -> Seconds:
        try:
            seconds = float(value) if isinstance(value, int | float) else parse_ns(str(value)) / 1e9
        except ValueError:
            seconds = 0.0
        if isinstance(value, bool) or not 0 < seconds < float("inf"):
            raise ValueError('a time such as "10min"')
        return cls(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """[sweep]: what is multiplied, and how the cells are run."""

    schemes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    worlds: tuple[Places, ...] = ()
    meshes: tuple[Mesh, ...] = ()
    batches: tuple[Samples, ...] = ()
    seeds: tuple[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)], ...] = ()
    repeats: Count = 1
    seed: int = 0
    cluster: str | None = None
    cell_timeout: Seconds | None = None
    overhead: str | float | None = None
    windows: Annotated[int, Meta(ge=0)] | None = None
    steps_per_window: Count | None = None
    sample_interval: str | float | None = None
    title: str | None = None


_SCHEME = Annotated[str, Meta(description="the name of a scheme, see `perfscope bench list`")]
_TABLES = Meta(description="tables, each under [[cell]] with two brackets")
_Values = Annotated[tuple[Any, ...], Meta(min_length=1, description="a list of values")]
_CellTable = make_dataclass(
    "_CellTable", [("scheme", _SCHEME), ("cluster", str | None, None)], bases=(SettingsTable,), kw_only=True
)
_SweepFile = make_dataclass(
    "_SweepFile",
    [
        ("sweep", SweepTable, field(default_factory=SweepTable)),
        ("grid", dict[str, _Values], field(default_factory=dict)),
        ("settings", SettingsTable, None),
        ("scheme", dict[str, SettingsTable], None),  # type: ignore[valid-type]  # made, not written
        ("cell", Annotated[tuple[_CellTable, ...], _TABLES], ()),  # type: ignore[valid-type]
    ],
)


def read_sweep(path: Path) -> Sweep:
    """The sweep that a TOML file describes.

    Raises:
        BenchError: it cannot be read, or says something that cannot be.
    """
    return parse_sweep(read_toml(path, BenchError), path.stem, str(path))


def parse_sweep(document: Mapping[str, Any], title: str, where: str) -> Sweep:
    """The sweep in a decoded document. `place` names the file in messages.

    Raises:
        BenchError: an unknown key, with the nearest; a value of the wrong kind; no cell at all.
    """
    _require_quotes(document.get("scheme"), where)
    file: Any = converted(document, _SweepFile, file=where, strict=False, error=BenchError)
    top: SweepTable = file.sweep
    cells = [*_matrix(document, where), *_single(document)]
    if not cells:
        raise BenchError(f"{where} asks for no run: list schemes in [sweep], or add a [[cell]]")
    return Sweep(
        title=top.title or title,
        cells=_with_names(cells, where, document.get("grid", {})),
        repeats=top.repeats,
        seed=top.seed,
        cell_timeout_s=float(top.cell_timeout or DEFAULT_CELL_TIMEOUT_S),
        recording={
            **_RECORDING_DEFAULTS,
            **{key: value for key, value in given(top).items() if key in _RECORDING},
        },
    )


_Raw = tuple[str, dict[str, Any], "str | None"]  # scheme, settings, cluster


def _require_quotes(schemes: object, where: str) -> None:
    for name, overrides in schemes.items() if isinstance(schemes, Mapping) else ():
        if isinstance(overrides, Mapping) and any(isinstance(value, Mapping) for value in overrides.values()):
            raise BenchError(f'{where}: write [scheme."{name}.NAME"] with quotes, scheme names hold a dot')


def _matrix(document: Mapping[str, Any], where: str) -> list[_Raw]:
    """The cells of [sweep], with settings as they are written: a study compares them from run to run."""
    top, overrides = document.get("sweep", {}), document.get("scheme", {})
    schemes = top.get("schemes", [])
    if "worlds" in top and "meshes" in top:
        raise BenchError(f"{where}: give worlds or meshes in [sweep], not both; a mesh names its ranks")
    unused = [name for name in overrides if name not in schemes and name not in map(_bare, schemes)]
    if unused:
        raise BenchError(
            f"{where} [scheme.{unused[0]!r}] is not among the sweep's schemes{nearest(unused[0], schemes)}"
        )
    axes = {name: top[key] for name, key in _LISTS.items() if top.get(key)}
    axes |= _grid(document, where)
    cells: list[_Raw] = []
    for values in product(*axes.values()):
        varied = dict(zip(axes, values, strict=True))
        cluster = varied.pop("cluster", top.get("cluster")) or None  # cluster = "" takes it away
        for scheme in schemes:
            scheme_settings = {**overrides.get(_bare(scheme), {}), **overrides.get(scheme, {})}
            settings = {**document.get("settings", {}), **varied, **scheme_settings}
            cell = (scheme, settings, cluster)
            if cell not in cells:  # a scheme with a mesh of its own comes once, whatever meshes are listed
                cells.append(cell)
    return cells


def _grid(document: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """[grid]: a list of values for each setting; every value is checked before anything starts."""
    grid: dict[str, list[Any]] = dict(document.get("grid", {}))
    listed = [name for name in grid if document.get("sweep", {}).get(_LISTS.get(name, ""))]
    if listed:
        raise BenchError(
            f"{where}: {listed[0]} is in [grid] and as {_LISTS[listed[0]]} in [sweep]; name it once"
        )
    if grid and not document.get("sweep", {}).get("schemes"):
        raise BenchError(f"{where}: [grid] multiplies the schemes of [sweep]; list schemes there")
    for name, values in grid.items():
        if name == "cluster":
            if not all(isinstance(value, str) for value in values):
                raise BenchError(f'{where} [grid] cluster: give texts such as "2x2@1gbit", or "" for none')
            continue
        for value in values:
            converted({name: value}, SettingsTable, file=f"{where} [grid]", strict=False, error=BenchError)
    return grid


def _single(document: Mapping[str, Any]) -> list[_Raw]:
    cells: list[_Raw] = []
    for row in document.get("cell", ()):
        row_settings = {key: value for key, value in row.items() if key not in ("scheme", "cluster")}
        cluster = row.get("cluster", document.get("sweep", {}).get("cluster"))
        settings = {**document.get("settings", {}), **row_settings}
        cells.append((row["scheme"], settings, cluster or None))  # cluster = "" takes it away
    return cells


def _with_names(cells: Sequence[_Raw], where: str, grid: Collection[str]) -> tuple[Cell, ...]:
    cells_by_name: dict[str, Cell] = {}
    for scheme, settings, cluster in cells:
        if isinstance(settings.get("mesh"), dict):
            settings["mesh"] = str(Mesh.parse(settings["mesh"]))
        parse_scheme(scheme)  # a name that is none is stated at once; whether it exists, planning says
        name_parts = [scheme, str(settings.get("model", "smallcnn"))]
        if "mesh" in settings:
            mesh = settings["mesh"]
            name_parts.append(
                "m" + "x".join(map(str, mesh) if isinstance(mesh, list) else mesh.replace("=", "").split(","))
            )
        elif "ranks" in settings:
            name_parts.append(f"p{settings['ranks']}")
        if "batch" in settings:
            name_parts.append(f"b{settings['batch']}")
        if "seed" in settings:
            name_parts.append(f"s{settings['seed']}")
        name_parts += _of_grid(settings, cluster, grid)
        name = slug("-".join(name_parts))
        cell = Cell(name=name, scheme=scheme, settings=settings, cluster=cluster)
        if name in cells_by_name:
            if cells_by_name[name].digest == cell.digest:
                raise BenchError(f"{where} asks for {scheme} twice with the same settings")
            cell = Cell(name=f"{name}-{cell.digest[:6]}", scheme=scheme, settings=settings, cluster=cluster)
        cells_by_name[cell.name] = cell
    return tuple(cells_by_name.values())


def _of_grid(settings: Mapping[str, Any], cluster: str | None, grid: Collection[str]) -> list[str]:
    """What [grid] says of a cell, where its name does not say it yet: `lr0.1`."""
    named = {"model", "mesh", "ranks", "batch", "seed"}
    parts = [f"{name}{settings[name]}" for name in grid if name not in named and name in settings]
    return [*parts, *([cluster or "no-cluster"] if "cluster" in grid else [])]


def slug(text: str) -> str:
    """Fit for a file name, and readable: `dp.packed+topk(0.01)-p2` -> `dp.packed+topk-0.01-p2`."""
    open_ended = re.sub(r"[()%\s]+", "-", text)
    return re.sub(r"-+", "-", re.sub(r"[^A-Za-z0-9.+_-]+", "_", open_ended)).strip("-_")


def _bare(scheme: str) -> str:
    return scheme.partition("+")[0]
