"""What a study trained, in one line: figures mean nothing without it."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.runners.sweep.state import CellState, Study

_MOST_VALUES = 6


def trained_line(study: Study) -> str:
    """`alexnet, input 3x64x64, 4 ranks, batch 12, 6 steps, 2 repeats, 1 thread per rank, cluster ...`.

    Cells that cannot be run are left out; what is not the same in all the others is listed: `2 or 4 ranks`.
    """
    cells = [cell for cell in study.wanted if cell.impossible is None]
    if not cells:
        return "nothing: no cell can be run"
    clusters = list(dict.fromkeys(cell.cluster for cell in cells))
    parts = [
        _several(_values(cells, "model", "smallcnn")),
        *_counted("input", _values(cells, "input")),
        _numbered(_values(cells, "ranks"), "rank"),
        *_counted("batch", _values(cells, "batch")),
        _numbered(_values(cells, "steps"), "step"),
        _numbered([str(study.repeats)], "repeat"),
        _threads(_values(cells, "threads")),
    ]
    line = ", ".join(filter(None, parts))
    if any(clusters):
        named = _several([cluster_text or "none" for cluster_text in clusters])
        line += f"; cluster {named}: links are emulated, compute is shared"
    return line


def fact(cell: CellState, name: str, default: object = "") -> str:
    """A cell's setting as planning settled it, else as it was asked for."""
    value = cell.plan.get(name, cell.settings.get(name, default))
    if isinstance(value, list | tuple):
        return ("x" if name == "input" else ",").join(map(str, value))
    return "" if value is None else str(value)


def _values(cells: Iterable[CellState], name: str, default: object = "") -> list[str]:
    facts_found = dict.fromkeys(fact(cell, name, default) for cell in cells)
    return [value for value in facts_found if value]


def _several(values: list[str]) -> str:
    if values and all(value.isdigit() for value in values):
        values = sorted(values, key=int)
    if len(values) > _MOST_VALUES:
        return f"{values[0]} ... {values[-1]}"
    return " or ".join(values)


def _counted(word: str, values: list[str]) -> list[str]:
    return [f"{word} {_several(values)}"] if values else []


def _numbered(values: list[str], word: str) -> str:
    if not values:
        return ""
    return f"{_several(values)} {word}{'' if values == ['1'] else 's'}"


def _threads(values: list[str]) -> str:
    return f"{_numbered(values, 'thread')} per rank" if values else ""
