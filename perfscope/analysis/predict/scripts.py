"""What a plain data-parallel script would send on other numbers of ranks, without its code and without torch.

An all-reduce's payload does not change with N, so the recorded calls tell it. A run of one rank has none:
there torch's buckets are made from the parameters in layers.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.predict.crossings import uses_inside
from perfscope.analysis.predict.from_run import link_class
from perfscope.analysis.predict.records import MeasuredRun, Plan, PlannedCall
from perfscope.messages.predict import FROM_LAYERS_JSON
from perfscope.rundir.records import LayersRecord

DDP = "dp.ddp"
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20  # DistributedDataParallel's defaults
_SAME_PAYLOAD = frozenset({"all_reduce", "broadcast"})


def gradient_buckets(layers: LayersRecord) -> tuple[int, ...]:
    """Bytes of DistributedDataParallel's buckets, in the order they are sent.

    A bucket takes gradients, last parameter first, until it has reached its limit: 1 MiB for the first, 25
    MiB for the others (compute_bucket_assignment_by_size in torch's reducer.cpp).

    Args:
        layers: layers.json of a rank.
    """
    sizes: list[int] = []
    for row in layers.layers:
        element = (row.param_bytes or 0) // row.params if row.params else 4
        sizes += [math.prod(shape) * element for shape in row.param_shapes or ()]
    buckets, filled, limit = [], 0, _FIRST_BUCKET
    for size in reversed(sizes):
        filled += size
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0, _BUCKET
    return (*buckets, filled) if filled else tuple(buckets)


def _bucket_calls(buckets: Sequence[int], num_ranks: int, where: str) -> tuple[PlannedCall, ...]:
    return tuple(
        PlannedCall(
            collective="all_reduce",
            num_ranks=num_ranks,
            bytes=float(size),
            count=1.0,
            link_class=where,
            what=f"bucket {index}",
        )
        for index, size in enumerate(buckets)
    )


def script_plan(
    runs: Sequence[MeasuredRun],
    buckets: Sequence[int],
    num_ranks: int,
    ranks_per_host: int,
    batch: float | None,
) -> Plan:
    """DistributedDataParallel on so many ranks.

    Args:
        runs: of the script; the largest tells the calls.
        buckets: of the gradients, for runs of one rank.
        num_ranks: N.
        ranks_per_host: of the target.
        batch: B over all ranks; None: the ranks keep their own batch, which is not known.

    Raises:
        ValueError: the script sends something that is no data parallelism, or nothing is known of it.
    """
    largest = max(runs, key=lambda run: run.plan.num_ranks)
    calls = largest.plan.ranks[0] if largest.plan.ranks else ()
    hosts = [rank // ranks_per_host for rank in range(num_ranks)]
    where = link_class(hosts)
    unequal = {call.collective for call in calls} - _SAME_PAYLOAD
    if unequal:
        raise ValueError(
            f"the script calls {', '.join(sorted(unequal))}: only plain data parallel training can be "
            f"carried to other numbers of ranks"
        )
    notes: tuple[str, ...] = ()
    if not calls:
        if largest.plan.num_ranks > 1 or not buckets:
            raise ValueError("no call of all ranks is in the traces, and layers.json has no parameters")
        if num_ranks > 1:
            notes = (FROM_LAYERS_JSON,)
        calls = _bucket_calls(buckets, num_ranks, where)
    calls = tuple(
        replace(
            call,
            num_ranks=num_ranks,
            link_class=where,
            sharing=1.0,
            inside_too=uses_inside(call.collective, hosts),
        )
        for call in calls
    )
    return Plan(
        scheme=DDP,
        num_ranks=num_ranks,
        mesh=str(num_ranks),
        batch=batch,
        work=largest.plan.work if batch is None else batch / num_ranks,
        ranks=(calls,) if num_ranks > 1 else (),
        notes=notes,
    )
