"""How busy a parameter server is, and how long its workers wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.pairs import SEND
from perfscope.analysis.results import RankResult
from perfscope.rundir.scheme_records import SchemeRecord


class ServerLoad(Struct, frozen=True, kw_only=True):
    """One server over the traced steps.

    Attributes:
        rank: the server.
        workers: ranks that train.
        busy_ratio: share of its step in which it updates, answers or receives; else it waits for requests.
        step_ns: mean traced step of the workers.
        wait_ns: of it the mean worker waits for the server, transfers not counted.
        requests_per_s: messages that it received, over its traced time; None where none could be paired.
        request_bytes: mean size of one; None where the trace has no sizes.
    """

    rank: int
    workers: tuple[int, ...]
    busy_ratio: float
    step_ns: float
    wait_ns: float
    requests_per_s: float | None
    request_bytes: float | None


def servers_of(scheme: SchemeRecord | None) -> set[int]:
    """Ranks of a bench run that only serve, by run.json's `scheme`; empty of any other run."""
    groups = scheme.groups if scheme is not None else ()
    return {group.ranks[0] for group in groups if group.axis == "server" and group.ranks}


def server_load(
    scheme: SchemeRecord | None, ranks: Sequence[RankResult], matches: Iterable[JudgedCalls]
) -> ServerLoad | None:
    """The load of the run's server; None where it has no single one, or no worker beside it was traced.

    A server that waits for requests is inside a receive. What it spends there beyond the transfers of paired
    messages is waiting; unpaired messages count as waiting whole, so that it is rather called too idle.

    Args:
        scheme: of run.json.
        ranks: of the run.
        matches: every matched call.
    """
    serving = servers_of(scheme)
    parts = {rank.rank: rank.breakdown_ns for rank in ranks if rank.breakdown_ns is not None}
    workers = tuple(sorted(parts.keys() - serving))
    if len(serving) != 1 or not workers or not serving <= parts.keys():
        return None
    [server] = serving
    server_parts = parts[server]
    traced_ns = server_parts.step * server_parts.num_steps
    step_ns = sum(parts[rank].step for rank in workers) / len(workers)
    if not traced_ns or not step_ns:
        return None
    pairs = [match for match in matches if match.key.collective == SEND and server in match.ranks]
    transfer = sum(int(match.transfer.sum()) for match in pairs) / server_parts.num_steps
    waits = []
    for rank in workers:
        mine = (
            sum(int(match.transfer.sum()) for match in pairs if rank in match.ranks) / parts[rank].num_steps
        )
        waits.append(max(parts[rank].exposed_comm - mine, 0.0))
    requests = [match for match in pairs if match.ranks[1] == server]
    sizes = np.concatenate([match.size for match in requests]) if requests else np.empty(0, dtype=np.int64)
    return ServerLoad(
        rank=server,
        workers=workers,
        busy_ratio=(server_parts.step - server_parts.exposed_comm + min(transfer, server_parts.exposed_comm))
        / server_parts.step,
        step_ns=step_ns,
        wait_ns=sum(waits) / len(waits),
        requests_per_s=len(sizes) / traced_ns * 1e9 if len(sizes) else None,
        request_bytes=float(sizes[sizes >= 0].mean()) if (sizes >= 0).any() else None,
    )
