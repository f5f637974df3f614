"""Export as Chakra execution traces: a folder with one protobuf file per rank, for ASTRA-sim and others.

Messages and field numbers: schema/protobuf/et_def.proto of mlcommons/chakra, version 0.0.4. Its package is on
no index, and a node has few fields, so they are encoded here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from perfscope.errors import PerfscopeError
from perfscope.reports.export_source import TimelinePart, first_start
from perfscope.rundir.window_records import GroupRow
from perfscope.vocabulary.steps import CHAKRA_STEP

SCHEMA_VERSION = "0.0.4"
METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 4, 5, 6, 7  # NodeType
_COLLECTIVES = {
    **{"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5},
    **{"all_to_all": 6, "reduce_scatter": 7, "barrier": 9},
}
_POINT_TO_POINT = {"send": SEND, "recv": RECEIVE}
_GROUPS = "## process_group:init ##"  # as PyTorch's own execution traces name that node
_WORK = frozenset(("compute", "copy", "optimizer", "comm"))
_COLUMNS = (
    *("start_ns", "dur_ns", "device", "lane", "kind", "name", "layer", "phase", "step"),
    *("collective", "group", "group_size", "in_bytes", "out_bytes", "peer", "flops"),
)
_Row = dict[str, Any]
Groups = Mapping[str, tuple[int, ...]]  # name -> global ranks


def write_chakra(parts: Sequence[TimelinePart], groups: Groups, folder: Path) -> int:
    """Writes `trace.RANK.et` for every rank into a new folder and gives the number of nodes.

    Args:
        groups: process groups whose ranks are known.

    Raises:
        PerfscopeError: the folder is there, or cannot be written.
    """
    origin = min([first_start(parts), *(start for part in parts for _, start, _ in part.steps)])
    of_rank: dict[int, list[TimelinePart]] = {}
    for part in sorted(parts, key=lambda each: (each.rank, each.window)):
        of_rank.setdefault(part.rank, []).append(part)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise PerfscopeError(f"{folder} is there already; name another folder with -o") from None
    except OSError as error:
        raise PerfscopeError(f"{folder} cannot be made: {error.strerror}") from error
    nodes = 0
    try:
        for rank, windows in of_rank.items():
            with (folder / f"trace.{rank}.et").open("wb") as file:
                nodes += _write_rank(file, rank, windows, groups, origin)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)  # half a folder, which the next call would refuse
        if not isinstance(error, OSError):
            raise
        raise PerfscopeError(f"{folder} cannot be written: {error.strerror}") from None
    return nodes


def ranks_of_groups(groups: Iterable[GroupRow]) -> dict[str, tuple[int, ...]]:
    """Process groups whose ranks the traces list, by name."""
    ranks_of: dict[str, tuple[int, ...]] = {}
    for group in groups:
        name = group.name if group.name is not None else group.pg_name
        if name is not None and group.ranks:
            ranks_of[str(name)] = group.ranks
    return ranks_of


def _write_rank(file: BinaryIO, rank: int, windows: list[TimelinePart], groups: Groups, origin: int) -> int:
    _write(file, _text(1, SCHEMA_VERSION) + _message(2, _number_attribute("rank", rank)))
    number = 1
    _write(file, _groups_node(number, rank, groups))
    order = _Order()
    for window in windows:
        for row in work_of(window.load().select(list(_COLUMNS)).to_pylist()):
            number += 1
            depends_on = order.before(row, number)
            _write(file, _node(number, row, depends_on, rank, row["start_ns"] - origin))
        for step, start, end in window.steps:
            number += 1
            _write(file, _step_node(number, step, start - origin, end - origin))
    return number


def work_of(rows: list[_Row]) -> Iterator[_Row]:
    """Work in order of start: the outermost spans of each lane that compute, copy or communicate."""
    until: dict[tuple[int, int], int] = {}
    for row in sorted(rows, key=lambda each: (each["start_ns"], -each["dur_ns"])):
        lane = (row["device"], row["lane"])
        end = row["start_ns"] + row["dur_ns"]
        if row["kind"] in _WORK and (lane not in until or end > until[lane]):
            until[lane] = end
            yield row


class _Order:
    """What each node began after: the one before it on its lane, and the last to end on every other lane."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}  # lane -> its latest node
        self._ended: dict[tuple[int, int], list[tuple[int, int]]] = {}  # lane -> (end, node), latest last
        self._known: dict[tuple[int, int], dict[tuple[int, int], int]] = {}  # lane -> what it waited for

    def before(self, row: _Row, number: int) -> list[int]:
        lane, start = (row["device"], row["lane"]), row["start_ns"]
        nodes = [self._last[lane]] if lane in self._last else []
        awaited = self._known.setdefault(lane, {})
        for other, ends in self._ended.items():
            node = next((node for end, node in reversed(ends) if end <= start), None)
            if other != lane and node is not None and node != awaited.get(other):
                awaited[other] = node
                nodes.append(node)
        self._last[lane] = number
        ends = self._ended.setdefault(lane, [])
        ends.append((start + row["dur_ns"], number))
        del ends[:-_KEPT]
        return nodes


_KEPT = 64  # nodes of a lane that another lane is compared with


def _groups_node(number: int, rank: int, groups: Groups) -> bytes:
    listed = [
        {"pg_name": name, "ranks": list(ranks), "group_size": len(ranks)}
        for name, ranks in groups.items()
        if rank in ranks
    ]
    inputs = _text(1, json.dumps([json.dumps(listed)])) + _text(2, "[[]]") + _text(3, json.dumps(["String"]))
    return _varint_field(1, number) + _text(2, _GROUPS) + _varint_field(3, METADATA) + _message(8, inputs)


def _step_node(number: int, step: int, start_ns: int, end_ns: int) -> bytes:
    first = start_ns // 1000
    return b"".join(
        (
            _varint_field(1, number) + _text(2, CHAKRA_STEP) + _varint_field(3, METADATA),
            _varint_field(6, first) + _varint_field(7, end_ns // 1000 - first),
            _message(10, _number_attribute("duration_ns", end_ns - first * 1000)),
            _message(10, _number_attribute("step", step)),
        )
    )


def _node(number: int, row: _Row, depends_on: list[int], rank: int, start_ns: int) -> bytes:
    kind, attributes = _meaning(row, rank)
    packed = b"".join(_varint(node) for node in depends_on)
    micros = (start_ns + row["dur_ns"]) // 1000 - start_ns // 1000
    return b"".join(
        (
            _varint_field(1, number) + _text(2, row["name"] or "?") + _varint_field(3, kind),
            _message(5, packed) if packed else b"",
            _varint_field(6, start_ns // 1000) + _varint_field(7, micros),
            *(_message(10, attribute) for attribute in (*attributes, *_common(row))),
        )
    )


def _meaning(row: _Row, rank: int) -> tuple[int, list[bytes]]:
    """(type of the node, attributes that it needs); what is not known is left out."""
    size = row["in_bytes"] if row["in_bytes"] is not None else row["out_bytes"]
    attributes = [] if size is None or row["kind"] != "comm" else [_number_attribute("comm_size", size)]
    if row["kind"] == "comm" and row["group"] is not None:
        attributes.append(_text_attribute("pg_name", row["group"]))
    if row["collective"] in _COLLECTIVES:
        return COLLECTIVE, [_number_attribute("comm_type", _COLLECTIVES[row["collective"]]), *attributes]
    if row["collective"] in _POINT_TO_POINT and row["peer"] is not None:
        sends = row["collective"] == "send"
        ends = (rank, row["peer"]) if sends else (row["peer"], rank)
        return _POINT_TO_POINT[row["collective"]], [
            *(
                _small_attribute(name, value)
                for name, value in zip(("comm_src", "comm_dst"), ends, strict=True)
            ),
            *attributes,
        ]
    if row["kind"] == "comm":
        return METADATA, attributes  # which collective it is, or with whom, is not in the trace
    flops = row["flops"]
    return COMPUTE, [] if flops is None or flops < 0 else [_number_attribute("num_ops", flops)]


def _common(row: _Row) -> list[bytes]:
    words = {"layer": row["layer"], "phase": row["phase"]}
    return [
        _text(1, "is_cpu_op") + _varint_field(27, int(row["device"] < 0)),
        _number_attribute("duration_ns", row["dur_ns"]),
        _number_attribute("step", row["step"]),
        _number_attribute("device", row["device"]),
        _number_attribute("lane", row["lane"]),
        _text_attribute("kind", row["kind"]),
        *(_text_attribute(name, word) for name, word in words.items() if word is not None),
    ]


# Protobuf: a field is a key (number and wire type) and a value; a message in a file has its length before it


def _write(file: BinaryIO, message: bytes) -> None:
    file.write(_varint(len(message)) + message)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are two's complement of 64 bits
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode("utf-8", "replace"))


def _number_attribute(name: str, value: int) -> bytes:
    return _text(1, name) + _varint_field(9, value)  # int64_val


def _small_attribute(name: str, value: int) -> bytes:
    return _text(1, name) + _varint_field(7, value)  # int32_val


def _text_attribute(name: str, text: str) -> bytes:
    return _text(1, name) + _text(29, text)
