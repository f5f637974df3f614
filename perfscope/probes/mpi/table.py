"""What mpi4py's methods move: for each the words of the timeline, and a rule that reads its arguments.

A rule is given a `ActiveCall` and tells its rows: one for most, two for Sendrecv, none for a send to
MPI_PROC_NULL (PROC_NULL). Bytes are this rank's own: what it hands in and what it takes out.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .buffers import UNKNOWN, Buffers, Size
from .groups import Communicator


class TimelineRow(NamedTuple):
    """One communication as the timeline has it."""

    collective: str
    in_bytes: Optional[int]
    out_bytes: Optional[int]
    dtype: Optional[str]
    peer: Optional[int]  # global rank


class ActiveCall:
    """One call under way, as rules see it.

    Attributes:
        comm: the communicator (or window) it is on.
        comm_place: the same with its name and ranks.
        given: arguments by name, those left out absent.
        result: what it returned.
        status: of what was received; None where there is none.
    """

    __slots__ = ("buffers", "comm", "constants", "given", "place", "result", "status")

    def __init__(
        self,
        comm: Any,
        comm_place: Communicator,
        given: Dict[str, Any],
        buffers: Buffers,
        constants: "Constants",
    ) -> None:
        self.comm = comm
        self.place = comm_place
        self.given = given
        self.buffers = buffers
        self.constants = constants
        self.result: Any = None
        self.status: Any = None

    @property
    def size(self) -> int:
        """Ranks that a collective gathers from: of an intercommunicator those on the other side."""
        return int(self.comm.Get_remote_size() if self.comm.Is_inter() else self.comm.Get_size())

    @property
    def at_root(self) -> bool:
        root = self.given.get("root", 0)
        if self.comm.Is_inter():
            return bool(root == self.constants.root)
        return bool(root == self.comm.Get_rank())


class Constants(NamedTuple):
    """Numbers of mpi4py.MPI."""

    proc_null: int
    root: int
    byte: Any  # the datatype


Rule = Callable[[ActiveCall], List[TimelineRow]]


class Method(NamedTuple):
    """A method of mpi4py.

    Attributes:
        params: names of its arguments, in order.
        rule: what it moves.
        starts: it returns a request: what it moves is done when that completes.
        persistent: the request is to be started by itself, any number of times.
        shared: all ranks of the communicator make the call: a step may be cut at it.
        receives: it takes a status.
    """

    params: Tuple[str, ...]
    rule: Rule
    starts: bool = False
    persistent: bool = False
    shared: bool = False
    receives: bool = False


# -- collectives ------------------------------------------------------------------------------------------


def _one(name: str, given: Size, taken: Size) -> List[TimelineRow]:
    return [TimelineRow(name, given.num_bytes, taken.num_bytes, given.dtype or taken.dtype, None)]


def _barrier(call: ActiveCall) -> List[TimelineRow]:
    return _one("barrier", UNKNOWN, UNKNOWN)


def _bcast(call: ActiveCall) -> List[TimelineRow]:
    size = call.buffers.simple(call.given["buf"])
    return _one("broadcast", size, size)


def _share(size: Size, parts: int) -> Size:
    return Size(size.num_bytes // max(1, parts) if size.num_bytes is not None else None, size.dtype)


def _nothing(size: Size) -> Size:
    return Size(0, size.dtype)


def _sized(call: ActiveCall, name: str, form: str, blocks: int) -> Size:
    """The buffer argument `name`; `form`: "simple", "vector" or "each"."""
    argument = call.given.get(name)
    if call.buffers.is_in_place(argument):
        return UNKNOWN
    if form == "simple":
        return call.buffers.simple(argument, blocks)
    return call.buffers.vector(argument, blocks) if form == "vector" else call.buffers.each(argument, blocks)


def _gather(form: str) -> Rule:
    def rule(call: ActiveCall) -> List[TimelineRow]:
        taken = _sized(call, "recvbuf", form, call.size) if call.at_root else UNKNOWN
        given = _sized(call, "sendbuf", "simple", 1)
        if call.at_root and call.buffers.is_in_place(call.given.get("sendbuf")) and form == "simple":
            given = _share(taken, call.size)
        return _one("gather", given, taken if call.at_root else _nothing(given))

    return rule


def _scatter(form: str) -> Rule:
    def rule(call: ActiveCall) -> List[TimelineRow]:
        given = _sized(call, "sendbuf", form, call.size) if call.at_root else UNKNOWN
        taken = _sized(call, "recvbuf", "simple", 1)
        if call.at_root and call.buffers.is_in_place(call.given.get("recvbuf")) and form == "simple":
            taken = _share(given, call.size)
        return _one("scatter", given if call.at_root else _nothing(taken), taken)

    return rule


def _allgather(name: str, form: str) -> Rule:
    def rule(call: ActiveCall) -> List[TimelineRow]:
        blocks = call.size if name == "all_gather" else int(call.comm.indegree)
        taken = _sized(call, "recvbuf", form, blocks)
        given = _sized(call, "sendbuf", "simple", 1)
        if call.buffers.is_in_place(call.given.get("sendbuf")) and form == "simple":
            given = _share(taken, blocks)
        return _one(name, given, taken)

    return rule


def _alltoall(name: str, form: str) -> Rule:
    def rule(call: ActiveCall) -> List[TimelineRow]:
        is_square = name == "all_to_all"
        taken = _sized(call, "recvbuf", form, call.size if is_square else int(call.comm.indegree))
        given = _sized(call, "sendbuf", form, call.size if is_square else int(call.comm.outdegree))
        in_place = call.buffers.is_in_place(call.given.get("sendbuf"))
        return _one(name, taken if in_place else given, taken)

    return rule


def _reduction(name: str) -> Rule:
    def rule(call: ActiveCall) -> List[TimelineRow]:
        given = call.given["recvbuf" if call.buffers.is_in_place(call.given.get("sendbuf")) else "sendbuf"]
        size = call.buffers.simple(given)
        return _one(name, size, size if name != "reduce" or call.at_root else _nothing(size))

    return rule


def _reduce_scatter(block: bool) -> Rule:
    def rule(call: ActiveCall) -> List[TimelineRow]:
        parts = call.size if block else 1  # a count that is given is that of one block
        if call.buffers.is_in_place(call.given.get("sendbuf")):
            given = call.buffers.simple(call.given["recvbuf"], parts)
            return _one("reduce_scatter", given, _share(given, parts) if block else UNKNOWN)
        given = call.buffers.simple(call.given["sendbuf"], parts)
        return _one("reduce_scatter", given, call.buffers.simple(call.given["recvbuf"]))

    return rule


def _objects(name: str) -> Rule:
    """Lower-case collectives: objects in and out, lists of them where all ranks' come together."""

    def rule(call: ActiveCall) -> List[TimelineRow]:
        given = call.given.get("obj", call.given.get("sendobj"))
        many_in = name in ("scatter", "all_to_all", "neighbor_all_to_all")
        many_out = name in (
            "gather",
            "all_gather",
            "all_to_all",
            "neighbor_all_gather",
            "neighbor_all_to_all",
        )
        size_in = call.buffers.objects(given) if many_in else call.buffers.object(given)
        size_out = call.buffers.objects(call.result) if many_out else call.buffers.object(call.result)
        if name == "broadcast":
            size_in = size_out  # only the root handed something in
        return [TimelineRow(name, size_in, size_out, None, None)]

    return rule


# -- point to point ---------------------------------------------------------------------------------------


def _sends(
    call: ActiveCall, buffer: str, size: Optional[int] = None, dtype: Optional[str] = None
) -> List[TimelineRow]:
    dest = call.given.get("dest")
    if dest == call.constants.proc_null:
        return []
    if buffer:
        size, dtype = call.buffers.simple(call.given[buffer], call.given.get("partitions", 1))
    return [TimelineRow("send", size, None, dtype, call.place.global_rank(dest))]


def _receives(call: ActiveCall, buffer: str, size: Optional[int] = None) -> List[TimelineRow]:
    """What came, as the status tells; what there is room for where there is no status."""
    source = call.given.get("source")
    dtype = None
    if source == call.constants.proc_null:
        return []
    if buffer:
        room = call.buffers.simple(call.given[buffer], call.given.get("partitions", 1))
        size, dtype = room
    if call.status is not None:
        source = call.status.Get_source()
        if buffer:
            size = int(call.status.Get_count(call.constants.byte))
    return [TimelineRow("recv", None, size, dtype, call.place.global_rank(source))]


def _send(call: ActiveCall) -> List[TimelineRow]:
    return _sends(call, "buf")


def _recv(call: ActiveCall) -> List[TimelineRow]:
    return _receives(call, "buf")


def _sendrecv(call: ActiveCall) -> List[TimelineRow]:
    return _sends(call, "sendbuf") + _receives(call, "recvbuf")


def _sendrecv_replace(call: ActiveCall) -> List[TimelineRow]:
    return _sends(call, "buf") + _receives(call, "buf")


def _send_object(call: ActiveCall) -> List[TimelineRow]:
    return _sends(call, "", call.buffers.object(call.given["obj"]))


def _recv_object(call: ActiveCall) -> List[TimelineRow]:
    return _receives(call, "", call.buffers.object(call.result))


def _sendrecv_object(call: ActiveCall) -> List[TimelineRow]:
    given = call.buffers.object(call.given["sendobj"])
    return _sends(call, "", given) + _receives(call, "", call.buffers.object(call.result))


def _probe(call: ActiveCall) -> List[TimelineRow]:
    peer = call.status.Get_source() if call.status is not None else call.given.get("source")
    return [TimelineRow("probe", None, None, None, call.place.global_rank(peer))]


def _made(call: ActiveCall) -> List[TimelineRow]:
    """A communicator is made: all ranks of the old one agree on it."""
    return [TimelineRow("create", None, None, None, None)]


# -- the tables -------------------------------------------------------------------------------------------

_TWO = ("sendbuf", "recvbuf")
_SEND = ("buf", "dest", "tag")
_RECV = ("buf", "source", "tag", "status")
_SENDRECV = ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status")
_REPLACE = ("buf", "dest", "sendtag", "source", "recvtag", "status")
_ASK = ("source", "tag", "status")

_BUFFERED: Dict[str, Tuple[Tuple[str, ...], Rule]] = {
    "Barrier": ((), _barrier),
    "Bcast": (("buf", "root"), _bcast),
    "Gather": ((*_TWO, "root"), _gather("simple")),
    "Gatherv": ((*_TWO, "root"), _gather("vector")),
    "Scatter": ((*_TWO, "root"), _scatter("simple")),
    "Scatterv": ((*_TWO, "root"), _scatter("vector")),
    "Allgather": (_TWO, _allgather("all_gather", "simple")),
    "Allgatherv": (_TWO, _allgather("all_gather", "vector")),
    "Alltoall": (_TWO, _alltoall("all_to_all", "simple")),
    "Alltoallv": (_TWO, _alltoall("all_to_all", "vector")),
    "Alltoallw": (_TWO, _alltoall("all_to_all", "each")),
    "Reduce": ((*_TWO, "op", "root"), _reduction("reduce")),
    "Allreduce": ((*_TWO, "op"), _reduction("all_reduce")),
    "Reduce_scatter_block": ((*_TWO, "op"), _reduce_scatter(True)),
    "Reduce_scatter": ((*_TWO, "recvcounts", "op"), _reduce_scatter(False)),
    "Scan": ((*_TWO, "op"), _reduction("scan")),
    "Exscan": ((*_TWO, "op"), _reduction("exscan")),
    "Neighbor_allgather": (_TWO, _allgather("neighbor_all_gather", "simple")),
    "Neighbor_allgatherv": (_TWO, _allgather("neighbor_all_gather", "vector")),
    "Neighbor_alltoall": (_TWO, _alltoall("neighbor_all_to_all", "simple")),
    "Neighbor_alltoallv": (_TWO, _alltoall("neighbor_all_to_all", "vector")),
    "Neighbor_alltoallw": (_TWO, _alltoall("neighbor_all_to_all", "each")),
}
_PICKLED: Dict[str, Tuple[Tuple[str, ...], Rule]] = {
    "barrier": ((), _barrier),
    "bcast": (("obj", "root"), _objects("broadcast")),
    "gather": (("sendobj", "root"), _objects("gather")),
    "scatter": (("sendobj", "root"), _objects("scatter")),
    "allgather": (("sendobj",), _objects("all_gather")),
    "alltoall": (("sendobj",), _objects("all_to_all")),
    "reduce": (("sendobj", "op", "root"), _objects("reduce")),
    "allreduce": (("sendobj", "op"), _objects("all_reduce")),
    "scan": (("sendobj", "op"), _objects("scan")),
    "exscan": (("sendobj", "op"), _objects("exscan")),
    "neighbor_allgather": (("sendobj",), _objects("neighbor_all_gather")),
    "neighbor_alltoall": (("sendobj",), _objects("neighbor_all_to_all")),
}


def _collectives() -> Dict[str, Method]:
    methods = {}
    for name, (params, rule) in _PICKLED.items():
        methods[name] = Method(params, rule, shared=True)
    for name, (params, rule) in _BUFFERED.items():
        methods[name] = Method(params, rule, shared=True)
        methods["I" + name[0].lower() + name[1:]] = Method(params, rule, starts=True, shared=True)
        methods[name + "_init"] = Method((*params, "info"), rule, starts=True, persistent=True)
    return methods


def _point_to_point() -> Dict[str, Method]:
    methods = {
        "Recv": Method(_RECV, _recv, receives=True),
        "Irecv": Method(_RECV[:3], _recv, starts=True),
        "Recv_init": Method(_RECV[:3], _recv, starts=True, persistent=True),
        "Psend_init": Method(("buf", "partitions", "dest", "tag", "info"), _send, True, True),
        "Precv_init": Method(("buf", "partitions", "source", "tag", "info"), _recv, True, True),
        "Sendrecv": Method(_SENDRECV, _sendrecv, receives=True),
        "Sendrecv_replace": Method(_REPLACE, _sendrecv_replace, receives=True),
        "Isendrecv": Method(_SENDRECV[:6], _sendrecv, starts=True),
        "Isendrecv_replace": Method(_REPLACE[:5], _sendrecv_replace, starts=True),
        "recv": Method(_RECV, _recv_object, receives=True),
        "irecv": Method(_RECV[:3], _recv_object, starts=True),
        "sendrecv": Method(("sendobj", *_SENDRECV[1:]), _sendrecv_object, receives=True),
        "Probe": Method(_ASK, _probe, receives=True),
        "probe": Method(_ASK, _probe, receives=True),
        "Mprobe": Method(_ASK, _probe, receives=True),
        "mprobe": Method(_ASK, _probe, receives=True),
    }
    for mode in ("", "B", "S", "R"):
        methods[mode + "send" if mode else "Send"] = Method(_SEND, _send)
        methods["I%ssend" % mode.lower()] = Method(_SEND, _send, starts=True)
        methods[(mode + "send" if mode else "Send") + "_init"] = Method(_SEND, _send, True, True)
    for name in ("send", "bsend", "ssend"):
        methods[name] = Method(("obj", "dest", "tag"), _send_object)
        methods["i" + name] = Method(("obj", "dest", "tag"), _send_object, starts=True)
    return methods


# Of communicators. What makes a new one is in mpi_comms.
METHODS: Dict[str, Method] = {**_collectives(), **_point_to_point()}
CREATE = Method((), _made)
