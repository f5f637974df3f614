"""torch's DistributedDataParallel."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from perfscope.runners.comm import layer_params
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.exchange import Exchange, PendingExchange
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import OF_TORCH, Batch
from perfscope.runners.schemes.dp_gradients import CODECS, Replicas, exchange_traffic
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20  # DDP's defaults
_COUNTER_BYTES = 8  # num_batches_tracked of a BatchNorm, int64


def ddp_buckets(sizes: Sequence[int], bucket_mb: float | None = None) -> list[int]:
    """Bytes of DDP's buckets, in the order they are sent, from the gradients' in the order they are ready.

    A bucket takes gradients until it has reached its limit: 1 MiB for the first, 25 MiB for the others
    (compute_bucket_assignment_by_size in torch's reducer.cpp), or `bucket_mb` MiB for all. Releases of torch
    whose default is a number keep the first bucket at 1 MiB.
    """
    buckets: list[int] = []
    later = BUCKET_BYTES if bucket_mb is None else int(bucket_mb * (1 << 20))
    parameters = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    is_of_all = bucket_mb is not None and parameters["bucket_cap_mb"].default is None
    filled, limit = 0, later if is_of_all else FIRST_BUCKET_BYTES
    for size in sizes:
        filled += size
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0, later
    return [*buckets, filled] if filled else buckets


def require_torch_group(name: str) -> None:
    """Raises BenchError in a process that was started without a launcher."""
    if not dist.is_initialized():
        raise BenchError(
            f"{name} needs torch.distributed even for one rank; start it with `perfscope bench run`"
        )


class DDP(Replicas):
    """The library's own data parallelism."""

    name = "dp.ddp"
    summary = (
        "Data parallel by torch's DistributedDataParallel: buckets of gradients, overlapped with backward."
    )
    rule = (
        "Gradients are gathered in buckets (the first of 1 MiB, the others of 25 MiB, in reverse order of "
        "parameters); a full bucket is averaged by one all-reduce while the backward pass goes on. The "
        "buckets are settled before the first step, which DDP by itself would send as a single bucket. "
        "Modifiers become a communication hook. Of models with BatchNorm, rank 0's running statistics are "
        "broadcast before each forward pass."
    )
    volume = "2 (P-1)/P |W| e in one call per bucket; running statistics of BatchNorm besides"
    source = "Li et al., VLDB 2020 (arXiv 2006.15704); torch.nn.parallel.DistributedDataParallel"
    modifiers = CODECS
    backends = OF_TORCH

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        require_torch_group(self.name)
        group = self.data_group()
        self.model = model
        on_gpu = self.world.device.type == "cuda"
        mb = self.config.bucket_mb
        sized: dict[str, Any] = {} if mb is None else {"bucket_cap_mb": mb}  # not every release takes None
        self._ddp = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[self.world.device] if on_gpu else None,
            process_group=group.handle,
            **sized,
        )
        _settle_buckets(self._ddp, list(model.parameters()))
        if _has_codec(self.config):
            self._exchange = make_exchange(self.config)
            self._owners = {id(param): name for name, param in layer_params(model)}
            # A lambda: torch compares annotations with its own type, and ours are strings.
            self._ddp.register_comm_hook(self, lambda scheme, bucket: _hook(scheme, bucket))  # noqa: PLW0108
        self._group = group
        self._optimizer = make_optimizer(self, model.parameters())

    def average(self, bucket: Any) -> PendingExchange:
        """Starts the exchange of one of DDP's buckets."""
        parts = [(self._owners[id(param)], param) for param in bucket.parameters()]
        return self._exchange.start(bucket.index(), bucket.buffer(), self._group.shared(parts))

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.passes.run(self._ddp, batch, apart=self._ddp.no_sync)
        self.passes.update(self._optimizer)
        return loss

    _exchange: Exchange

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        members = job.mesh.group(Axis.DP, rank)
        element = job.element_size
        sizes = [prod(shape) * element for _, shape in reversed(job.shape.params)]
        buckets = ddp_buckets(sizes, job.config.bucket_mb)
        if _has_codec(job.config):
            calls = list(
                exchange_traffic(job, members, ((i, size // element) for i, size in enumerate(buckets)))
            )
        else:
            calls = [_by_ddp("all_reduce", members, size, f"bucket {i}") for i, size in enumerate(buckets)]
        norms = [layer for layer in job.shape.layers if layer.kind == "norm"]
        if norms:
            statistics = 2 * element * sum(layer.weight_shape[0] for layer in norms)
            calls.append(_by_ddp("broadcast", members, statistics, "running statistics"))
            calls.append(
                _by_ddp("broadcast", members, _COUNTER_BYTES * len(norms), "batches counted by norms")
            )
        return calls


def _by_ddp(collective: str, members: tuple[int, ...], size: int, what: str) -> Traffic:
    return Traffic(
        collective=collective, axis=Axis.DP, members=members, bytes=size, what=what, by_library=True
    )


def _has_codec(config: BenchConfig) -> bool:
    return any(modifier.name in CODECS for modifier in config.modifiers)


def _hook(scheme: DDP, bucket: Any) -> Any:
    """Started now, completed at the end of the backward pass, just before DDP waits for its buckets.

    torch's own bf16 and int8 hooks fail on CPUs (checks for CUDA; an all_gather result that gloo gives flat).
    """
    pending = scheme.average(bucket)
    done = torch.futures.Future()
    torch.autograd.Variable._execution_engine.queue_callback(lambda: done.set_result(pending.wait()))
    return done


def _settle_buckets(ddp: nn.parallel.DistributedDataParallel, params: Sequence[torch.Tensor]) -> None:
    """Has DDP learn the order of gradients now, not in the first step: all steps send the same buckets then.

    The order is found by one backward pass per parameter; a pass of the model would count as part of a step.
    """
    ddp.reducer.prepare_for_backward([])
    for param in reversed(params):
        (param.view(-1)[:1].sum() * 0).backward()
    ddp.reducer._rebuild_buckets()
    for param in params:
        param.grad = None
