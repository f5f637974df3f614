"""The operators of an execution trace and which of them need the results of which."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from perfscope.ingest.collectives import canonical, plain_dtype
from perfscope.ingest.formats.execution_nodes import ExecutionFile, Node, dtype_of, tensors_of
from perfscope.rundir.execution_records import ExecutionRecord, TracedCollective, TracedOperator

GROUPS = "## process_group:init ##"
_MOST_OPERATORS, _MOST_KEYS, _MOST_SHAPES, _MOST_NAME = 200, 20_000, 120, 200
_MOST_BYTES = 1 << 61
_PARAM_COMMS = "record_param_comms"
_BACKENDS = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
_COLLECTIVES = "c10d::"
_MUTATED = re.compile(r"\([a-z]!")  # alias of an argument that is written: Tensor(a!)
_ARGUMENTS = re.compile(r"\((.*)\)\s*->", re.DOTALL)
_Key = tuple[str, str, str]


class Timed(Struct):
    """What a Kineto trace beside the file knows: time on the host by `rf_id`; None: there is none."""

    host_ns: Mapping[int, int] | None = None
    num_filled: int = 0


class ExecutionGraph:
    """Takes the nodes of a file; `record` says what they are together."""

    def __init__(self, file: ExecutionFile) -> None:
        self._file = file
        self._containers: dict[
            int, tuple[int, bool]
        ] = {}  # node -> what contains it; whether it has a schema
        self._order: list[tuple[int, int, int]] = []  # id, place of its key, rf_id
        self._reads: list[array[int]] = []
        self._writes: list[array[int]] = []
        self._keys: dict[_Key, int] = {}
        self._collectives: dict[_Key, list[int]] = {}  # calls, bytes, calls without bytes
        self._described: set[int] = set()  # nodes that say which collective is inside
        self._backend_calls: list[tuple[int, _Key, int | None]] = []  # with the node that contains it
        self.groups: list[dict[str, Any]] = []

    def add(self, node: Node) -> None:
        """The next node."""
        self._containers[node.id] = (node.ctrl_deps, bool(node.text("op_schema")))
        if node.name == GROUPS:
            self.groups += _groups(node)
            return
        if node.name == _PARAM_COMMS:
            self._add_collective(node)
        if not node.text("op_schema") and not node.name.startswith(_BACKENDS):
            return  # a range: a step, a module, a node of autograd
        reads, writes = _storages(node)
        key = (node.name[:_MOST_NAME], *_shapes(node))
        if key not in self._keys and len(self._keys) >= _MOST_KEYS:
            key = (key[0], "", "")
        self._order.append(
            (node.id, self._keys.setdefault(key, len(self._keys)), _positive(node.number("rf_id")))
        )
        self._reads.append(reads)
        self._writes.append(writes)
        if node.name.startswith(_BACKENDS):
            self._add_backend_call(node)

    def record(self, timed: Timed) -> ExecutionRecord:
        """What the nodes are together."""
        for container, key, size in self._backend_calls:
            if container not in self._described:  # on CPUs nothing else says what is sent
                self._count(key, size)
        self._backend_calls.clear()
        times = timed.host_ns
        outermost = self._outermost()
        num_dependencies, chain = self._longest_chain(outermost)
        operators, left_out = self._operators(times or {})
        spent = [(times or {}).get(self._order[at][2]) for at in chain]
        keys = list(self._keys)
        names = Counter(keys[self._order[at][1]][0] for at in chain)
        return ExecutionRecord(
            schema=self._file.schema,
            num_nodes=self._file.num_read - self._file.num_dropped,
            num_operators=len(outermost),
            num_dependencies=num_dependencies,
            chain=len(chain),
            chain_names=tuple(names.most_common(5)),
            chain_ns=None if None in spent or not spent else sum(time for time in spent if time is not None),
            is_joined=bool(times),
            num_joined=len(times or {}),
            num_filled=timed.num_filled,
            operators=operators,
            num_left_out=left_out,
            collectives=tuple(
                TracedCollective(*key, calls=calls, bytes=min(size, _MOST_BYTES) if not unknown else None)
                for key, (calls, size, unknown) in list(self._collectives.items())[:_MOST_OPERATORS]
            ),
        )

    def _outermost(self) -> list[int]:
        """Places of operators (nodes with a schema) that no other contains, in order of start."""
        inside: dict[int, bool] = {}
        for number in sorted(self._containers):  # numbers are given at the start: containers come first
            container = self._containers[number][0]
            has_schema = self._containers.get(container, (0, False))[1]
            inside[number] = has_schema or inside.get(container, False)
        outermost = [
            at
            for at, (number, _, _) in enumerate(self._order)
            if self._containers[number][1] and not inside[number]
        ]
        return sorted(outermost, key=lambda at: self._order[at][0])

    def _operators(self, times: Mapping[int, int]) -> tuple[tuple[TracedOperator, ...], int]:
        calls, timed, spent = Counter[int](), Counter[int](), Counter[int]()
        for _, key, number in self._order:
            calls[key] += 1
            if number in times:
                timed[key] += 1
                spent[key] += times[number]
        keys = list(self._keys)
        order = sorted(calls, key=lambda key: (-spent[key], -calls[key], keys[key]))
        rows = tuple(
            TracedOperator(*keys[key], calls=calls[key], num_timed=timed[key], host_ns=spent[key])
            for key in order[:_MOST_OPERATORS]
        )
        return rows, len(order) - len(rows)

    def _longest_chain(self, operators: list[int]) -> tuple[int, list[int]]:
        """(dependencies, places of the longest chain's operators)."""
        writer: dict[int, int] = {}
        length: dict[int, int] = {}
        before: dict[int, int] = {}
        num = 0
        for at in operators:
            needs = {writer[storage] for storage in self._reads[at] if storage in writer}
            num += len(needs)
            last = max(needs, key=lambda need: (length[need], -need), default=None)
            length[at] = 1 if last is None else length[last] + 1
            if last is not None:
                before[at] = last
            writer.update(dict.fromkeys(self._writes[at], at))
        chain = [max(length, key=lambda at: (length[at], -at))] if length else []
        while chain and chain[-1] in before:
            chain.append(before[chain[-1]])
        return num, chain

    def _add_collective(self, node: Node) -> None:
        self._described.add(node.id)
        name = node.text("collective_name")
        dtype = node.text("dtype")
        elements, each = node.number("in_msg_nelems"), _element_bytes(node)
        size = elements * each if elements is not None and each is not None and elements >= 0 else None
        self._count((canonical(name) or name[:_MOST_NAME], node.text("pg_name")[:_MOST_NAME], dtype), size)

    def _add_backend_call(self, node: Node) -> None:
        """`gloo:all_reduce`."""
        name = node.name.partition(":")[2]
        tensors = [tensor for kind, value in _pairs(node) for tensor in tensors_of(value, kind)]
        size = sum(tensor[3] * tensor[4] for tensor in tensors) if tensors else None
        dtype = next((dtype_of(kind) for kind in node.inputs.types if dtype_of(kind)), "")
        key = (canonical(name) or name[:_MOST_NAME], "", dtype)
        self._backend_calls.append((node.ctrl_deps, key, _within(size)))

    def _count(self, key: _Key, size: int | None) -> None:
        name, group, dtype = key
        key = (name, group, plain_dtype(dtype) or dtype[:_MOST_NAME])
        if key not in self._collectives and len(self._collectives) >= _MOST_KEYS:
            return
        counts = self._collectives.setdefault(key, [0, 0, 0])
        counts[0] += 1
        counts[1] += size or 0
        counts[2] += size is None


def _within(size: int | None) -> int | None:
    return size if size is not None and 0 <= size < _MOST_BYTES else None


def _positive(number: int | None) -> int:
    return number if number is not None and number > 0 else 0


def _pairs(node: Node) -> list[tuple[str, Any]]:
    return list(zip(node.inputs.types, node.inputs.values, strict=False))


def _element_bytes(node: Node) -> int | None:
    return next((tensor[4] for kind, value in _pairs(node) for tensor in tensors_of(value, kind)), None)


def _storages(node: Node) -> tuple[array[int], array[int]]:
    """Storages that a call reads, and those that it writes: new ones, and arguments that it changes."""
    is_call = node.name.startswith(_COLLECTIVES)  # their schemas do not say that they write
    changed, results = _changed_arguments(node.text("op_schema"))
    reads, writes = array("q"), array("q")
    for at, (kind, value) in enumerate(_pairs(node)):
        storages = [tensor[1] for tensor in tensors_of(value, kind) if 0 < tensor[1] < _MOST_BYTES]
        if at not in results:
            reads.extend(storages)
        if is_call or at in changed:
            writes.extend(storages)
    already_read = set(reads)
    for kind, value in zip(node.outputs.types, node.outputs.values, strict=False):
        writes.extend(
            tensor[1]
            for tensor in tensors_of(value, kind)
            if 0 < tensor[1] < _MOST_BYTES and tensor[1] not in already_read
        )
    return reads, writes


def _changed_arguments(schema: str) -> tuple[set[int], set[int]]:
    """Places of the arguments that an operator writes, by its schema, and of those that it does not read."""
    listed = _ARGUMENTS.search(schema) if "!" in schema else None
    if listed is None:
        return set(), set()
    arguments = [text for text in listed[1].split(", ") if text != "*"]
    changed = {at for at, text in enumerate(arguments) if _MUTATED.search(text)}
    return changed, {at for at in changed if arguments[at].endswith(" out")}


def _shapes(node: Node) -> tuple[str, str]:
    """(shapes of the tensors of the input, the first one's data type), as text."""
    texts, dtype = [], ""
    for kind, shape in zip(node.inputs.types, node.inputs.shapes, strict=False):
        if "Tensor(" in kind:
            dtype = dtype or dtype_of(kind)
            texts.append(f"{len(shape)} tensors" if _is_list(shape) else json.dumps(shape))
    text = " ".join(texts)
    return (text if len(text) <= _MOST_SHAPES else text[: _MOST_SHAPES - 1] + "…"), (
        plain_dtype(dtype) or dtype[:_MOST_NAME]
    )


def _is_list(shape: Any) -> bool:
    return isinstance(shape, list) and any(isinstance(part, list) for part in shape)


def _groups(node: Node) -> list[dict[str, Any]]:
    """Process groups as Kineto's `pg_config` lists them. No ranks of the default group: all of them."""
    groups = []
    for text in node.inputs.values:
        try:
            listed = json.loads(text) if isinstance(text, str) else []
        except (ValueError, RecursionError):
            continue
        groups += [
            group_of(entry)
            for entry in (listed if isinstance(listed, list) else [])
            if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str | int)
        ]
    return groups[:_MOST_KEYS]


def group_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A listed process group as in Kineto's `pg_config`."""
    size = entry.get("group_size")
    size = size if type(size) is int and 0 < size <= 1 << 24 else None
    listed = entry.get("ranks")
    ranks = list(listed) if isinstance(listed, list) else []
    if not all(type(rank) is int and 0 <= rank <= 1 << 24 for rank in ranks):
        ranks = []
    if not ranks and size is not None and entry.get("pg_desc") == "default_pg" and size <= 1 << 20:
        ranks = list(range(size))
    return {
        "pg_name": str(entry["pg_name"])[:_MOST_NAME],
        "pg_desc": str(entry.get("pg_desc", ""))[:_MOST_NAME],
        "backend_config": str(entry.get("backend_config", ""))[:_MOST_NAME],
        **({"pg_size": size} if size is not None else {}),
        **({"ranks": ranks} if ranks else {}),
    }
