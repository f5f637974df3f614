"""Dumps of PyTorch's flight recorder: who hangs where, and files that are none or are hostile.

The documents follow the schema of torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10, and are
written here; tests/integration/test_flight_recorder.py reads dumps that PyTorch wrote.
"""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.progress import GroupProgress, group_progress
from perfscope.errors import TraceError
from perfscope.ingest.formats.opcodes import StreamError, plain_data
from perfscope.ingest.importing import RunFacts, import_traces
from perfscope.vocabulary.progress import GroupState

START = 1_700_000_000_000_000_000


def entry(seq: int, name: str = "all_reduce", group: str = "0", **more: Any) -> dict[str, Any]:
    return {
        "record_id": seq,
        "pg_id": 7,
        "process_group": (group, "default_pg" if group == "0" else "mesh_dp"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": START + seq * 1000,
        "input_sizes": [[8, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "/home/me/train.py", "line": 40 + seq}],
        **more,
    }


def dump(*entries: dict[str, Any], enqueued: int, completed: int, ranks: str = "[0, 1, 2]") -> dict[str, Any]:
    told = {"last_enqueued_collective": enqueued, "last_started_collective": -1}
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"7": {**told, "last_completed_collective": completed}},
        "entries": list(entries),
    }


def imported(folder: Path, *documents: object, as_json: bool = False) -> tuple[GroupProgress, ...]:
    for rank, document in enumerate(documents):
        data = json.dumps(document).encode() if as_json else pickle.dumps(document, 2)
        name = f"nccl_trace_rank_{rank}" + (".flight.json" if as_json else "")
        (folder / name).write_bytes(data)
    result = import_traces([folder], folder / "run", facts=RunFacts())
    dumps = {each.rank: each.flight for each in result.summaries if each.flight is not None}
    return group_progress(dumps)


@pytest.mark.parametrize("as_json", [False, True])
def test_ranks_that_have_not_entered_a_collective_are_named_with_their_latest_call(
    tmp_path: Path, as_json: bool
) -> None:
    ahead = dump(entry(4), entry(5, "all_gather", state="scheduled"), enqueued=5, completed=4)
    behind = dump(entry(3), entry(4), enqueued=4, completed=4)
    (group,) = imported(tmp_path, ahead, ahead, behind, as_json=as_json)
    assert (group.state, group.seq, group.collectives) == (GroupState.NOT_ENTERED, 5, ("all_gather",))
    assert (group.waiting, group.not_entered) == ((0, 1), (2,))
    call = group.ranks[2].call
    assert call is not None
    assert (call.seq, call.frames, call.shapes) == (4, ("/home/me/train.py:44 step",), ("8x4 Float",))


def test_members_without_a_dump_are_named(tmp_path: Path) -> None:
    (group,) = imported(tmp_path, dump(entry(5, state="started"), enqueued=5, completed=4))
    assert (group.state, group.seq, group.without_dump) == (GroupState.NOT_COMPLETED, 5, (1, 2))


def test_ranks_that_call_different_collectives_are_found_before_what_is_not_entered(tmp_path: Path) -> None:
    one = dump(entry(4), entry(5, "all_reduce", state="started"), enqueued=6, completed=4)
    two = dump(entry(4), entry(5, "broadcast", state="started"), enqueued=5, completed=4)
    (group,) = imported(tmp_path, one, two)
    assert (group.state, group.seq) == (GroupState.DIFFERENT_CALLS, 5)
    assert group.collectives == ("all_reduce", "broadcast")


def test_an_all_reduce_of_another_size_is_another_call(tmp_path: Path) -> None:
    one = dump(entry(5, state="started"), enqueued=5, completed=4)
    two = dump(entry(5, state="started", input_sizes=[[8, 5]]), enqueued=5, completed=4)
    (group,) = imported(tmp_path, one, two)
    assert (group.state, group.seq) == (GroupState.DIFFERENT_CALLS, 5)


def test_completed_groups_come_after_those_that_are_not(tmp_path: Path) -> None:
    stuck = entry(1, "all_gather", group="3", pg_id=9, state="started")
    one = dump(entry(4), stuck, enqueued=4, completed=4)
    one["pg_status"]["9"] = {"last_enqueued_collective": 1, "last_completed_collective": -1}
    first, second = imported(tmp_path, one, dump(entry(4), enqueued=4, completed=4))
    assert (first.name, first.title, first.state) == ("3", "mesh_dp", GroupState.NOT_COMPLETED)
    assert (second.name, second.state, second.seq) == ("0", GroupState.COMPLETED, None)


def test_dumps_without_status_are_judged_by_the_states_of_their_calls(tmp_path: Path) -> None:
    document = dump(entry(4), entry(5, state="started", retired=False), enqueued=0, completed=0)
    del document["pg_status"]
    (group,) = imported(tmp_path, document)
    assert (group.state, group.seq, group.ranks[0].completed) == (GroupState.NOT_COMPLETED, 5, 4)


def test_a_status_of_a_group_whose_calls_are_gone_is_no_other_groups(tmp_path: Path) -> None:
    """pg_status counts groups by the process's own numbers: its "1" may be the group "2"."""

    def document(group: str, members: str, *, evicted: bool) -> dict[str, Any]:
        calls = [entry(n, group=group, pg_id=1) for n in (3, 4)]
        made = dump(
            *([entry(9, pg_id=0)] if evicted else calls), enqueued=9, completed=9, ranks="[0, 1, 2, 3]"
        )
        status = {"last_enqueued_collective": 3 if evicted else 4, "last_completed_collective": 3}
        made["pg_status"] = {"1": status if evicted else {**status, "last_completed_collective": 4}}
        made["pg_config"] = {
            group: {"name": group, "desc": "mesh_dp", "ranks": members},
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        }
        return made

    first = [document("1", "[0, 1]", evicted=False)] * 2
    second = [document("2", "[2, 3]", evicted=True)] * 2
    groups = imported(tmp_path, *first, *second)
    assert not [group.name for group in groups if group.state is GroupState.NOT_ENTERED]


def test_what_a_rank_called_before_its_first_calls_were_lost_is_not_known(tmp_path: Path) -> None:
    full = dump(entry(9), enqueued=9, completed=9)
    full["pg_config"]["3"] = {"name": "3", "desc": "mesh_dp", "ranks": "[0, 1]"}
    other = dump(entry(9), entry(5, group="3", pg_id=2), enqueued=9, completed=9)
    other["pg_config"] = full["pg_config"]
    (group,) = [group for group in imported(tmp_path, other, full) if group.name == "3"]
    assert (group.state, group.without_dump) == (GroupState.COMPLETED, (1,))


def test_numbers_of_sends_are_no_numbers_of_collectives(tmp_path: Path) -> None:
    """PyTorch's status has the number of the last call, be it a collective or a send."""
    documents = [
        dump(entry(4), entry(0, "send 0->1", is_p2p=True, p2p_seq_id=last), enqueued=last, completed=last)
        for last in (400, 396)
    ]
    (group,) = imported(tmp_path, *documents)
    assert (group.state, [row.enqueued for row in group.ranks]) == (GroupState.COMPLETED, [4, 4])


def test_a_dump_with_a_long_list_of_groups_is_recognized(tmp_path: Path) -> None:
    ranks = str(list(range(4096)))
    configs = {str(n): {"name": str(n), "desc": "mesh", "ranks": ranks} for n in range(8)}
    document = {"version": "2.10", "pg_config": configs, **dump(entry(4), enqueued=4, completed=4)}
    document["pg_config"] = configs
    assert imported(tmp_path, document)


@pytest.mark.parametrize(
    "key", [b"K\x01" + 50_000 * b"\x85", b"(K\x01q\x00" + b"h\x00h\x00\x86q\x00" * 40 + b"t"]
)
def test_a_key_that_would_be_hashed_without_end_is_refused(key: bytes) -> None:
    with pytest.raises(StreamError, match="no plain value"):
        plain_data(b"\x80\x02}" + key + b"Ns.")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_read_as_python_reads_it(protocol: int) -> None:
    shared = {"a": [1, -2, 1 << 70, 2.5, None, True, False], "b": ("x" * 300, (), (1,))}
    value = {"one": shared, "two": shared, "three": [[]] * 3, "four": (1, 2, 3, 4)}
    if protocol > 2:  # the second has no bytes: it calls a function that makes them
        value["five"] = b"bytes"
    assert plain_data(pickle.dumps(value, protocol)) == value


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_file_that_asks_for_code_is_refused_and_nothing_runs(tmp_path: Path, protocol: int) -> None:
    document = {"pg_status": Runs(tmp_path / "pwned"), "entries": []}
    (tmp_path / "nccl_trace_rank_0.pickle").write_bytes(pickle.dumps(document, protocol))
    with pytest.raises(TraceError) as caught:
        import_traces([tmp_path / "nccl_trace_rank_0.pickle"], tmp_path / "run", facts=RunFacts())
    assert "\n" not in str(caught.value)
    assert ("asks for code to be run" in str(caught.value)) == (protocol > 0)
    assert not (tmp_path / "pwned").exists()


def test_every_opcode_that_is_not_data_is_refused() -> None:
    data = {
        *("MARK", "STOP", "PROTO", "FRAME", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"),
        *("LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "LIST"),
        *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
        *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
    }
    for opcode in pickletools.opcodes:
        if opcode.name not in data:
            with pytest.raises(StreamError):
                plain_data(b"(]}" + opcode.code.encode("latin-1") + b"os\nsystem\n.")


def test_a_stored_index_or_length_reserves_no_memory() -> None:
    tracemalloc.start()
    assert plain_data(b"\x80\x02]r\xff\xff\xff\x7f.") == []
    for data in (b"\x80\x02X\xff\xff\xff\x7fabc.", b"\x8b\xff\xff\xff\x7f1."):
        with pytest.raises(StreamError):
            plain_data(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_an_object_that_is_everywhere_is_looked_at_in_part(tmp_path: Path) -> None:
    many: list[object] = [entry(1)]
    for _ in range(30):  # 2^30 lists in lists, in some hundred bytes
        many = [many, many]
    document = dump(entry(5, state="started", input_sizes=many, frames=many), enqueued=5, completed=4)
    (group,) = imported(tmp_path, document)
    assert group.seq == 5


def _refused_or_read(data: bytes, folder: Path) -> None:
    path = folder / "nccl_trace_rank_0.pickle"
    path.write_bytes(data)
    try:
        import_traces([path], folder / "run", facts=RunFacts(), force=True)
    except TraceError as error:
        assert "\n" not in str(error)


WHOLE = pickle.dumps(dump(entry(4), entry(5, state="scheduled"), enqueued=5, completed=4), 2)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, len(WHOLE)),
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4),
)
def test_damaged_dumps_give_one_line_or_are_read(
    tmp_path_factory: pytest.TempPathFactory, length: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    _refused_or_read(bytes(data[:length]), tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(sorted(entry(1))),
    st.sampled_from(["entries", "pg_status", "pg_config", "version"]),
)
def test_values_of_any_type_in_any_field_are_borne(
    tmp_path_factory: pytest.TempPathFactory, value: object, field: str, key: str
) -> None:
    document = dump(entry(4), {**entry(5), field: value}, enqueued=5, completed=4)
    folder = tmp_path_factory.mktemp("fuzz")
    _refused_or_read(pickle.dumps(document, 2), folder)
    _refused_or_read(pickle.dumps({**document, key: value}, 2), folder)
