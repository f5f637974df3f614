"""What a rank's execution trace says of its operators and their dependencies; kept in derived/ingest."""

from __future__ import annotations

from perfscope.rundir.typed import Record, WholeLists


class TracedOperator(WholeLists, frozen=True):
    """Calls of one operator with the same shapes and data type.

    Attributes:
        shapes: of the inputs that are tensors, as text: "[16, 32] [32, 64]"; cut where it is long.
        dtype: of the first input tensor; "" = it has none.
        num_timed: calls that the Kineto trace beside it has, and host_ns: their time on the host, operators
            inside included.
    """

    name: str = ""
    shapes: str = ""
    dtype: str = ""
    calls: int = 0
    num_timed: int = 0
    host_ns: int = 0


class TracedCollective(WholeLists, frozen=True):
    """Calls of one collective on one process group; `bytes`: of their input tensors, None where not known."""

    name: str = ""
    group: str = ""
    dtype: str = ""
    calls: int = 0
    bytes: int | None = None


class ExecutionRecord(Record, frozen=True):
    """A rank's execution trace.

    Attributes:
        schema: its version, as the file states it.
        num_nodes: in the file; num_operators of them are operators that no other contains.
        num_dependencies: of those: (writer of a tensor's storage, later reader), each pair once.
        chain: operators of the longest chain of such dependencies; chain_names: the most frequent of their
            names; chain_ns: their time on the host, None where not every one of them has a time.
        is_joined: a Kineto trace is beside it, and has operators of the same process, name and id.
        num_joined: nodes that such operators belong to.
        num_filled: operators of the Kineto trace whose shapes are from here.
        operators: the most frequent, or those with the most time on the host, first.
        num_left_out: rows of operators that are not listed.
    """

    schema: str = ""
    num_nodes: int = 0
    num_operators: int = 0
    num_dependencies: int = 0
    chain: int = 0
    chain_names: tuple[tuple[str, int], ...] = ()
    chain_ns: int | None = None
    is_joined: bool = False
    num_joined: int = 0
    num_filled: int = 0
    operators: tuple[TracedOperator, ...] = ()
    num_left_out: int = 0
    collectives: tuple[TracedCollective, ...] = ()
