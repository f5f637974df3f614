"""Local SGD: replicas go their own way for some steps, then are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.config import BenchConfig, BenchError, evaluation_interval
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Axes, Batch
from perfscope.runners.schemes.dp_gradients import Replicas
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

DEFAULT_PERIOD = 4


def period_of(config: BenchConfig) -> int:
    """tau, steps between two averages."""
    return config.period or DEFAULT_PERIOD


class LocalSGD(Replicas):
    """Averages weights every tau steps instead of gradients every step."""

    name = "dp.local_sgd"
    summary = (
        "Data parallel; every rank trains alone, weights are averaged every tau steps (--period, default 4)."
    )
    rule = (
        "Each rank makes its own update with the gradient of its b = B/P samples. After every tau-th step "
        "one all-reduce sets all weights to their mean; momentum stays each rank's own. The result is the "
        "mean of the replicas, also when the last step does not end a period."
    )
    volume = "2 (P-1)/P |W| e in 1 call every tau steps"
    source = "Stich 2019 (arXiv 1805.09767); torch's PostLocalSGDOptimizer averages the same"
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.BOUNDED,
        Topology.ALL_REDUCE,
        StatePlacement.REPLICATED,
        "all-reduce among all every tau steps",
    )
    equals_serial = False
    criterion = (
        "Equals a single-process simulation of P replicas to 1e-6 in float64; with tau = 1 and no momentum "
        "it equals serial; its loss falls into the band of serial's."
    )

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        period = period_of(job.config)
        for option, every in (
            ("evaluate-every", job.config.evaluate_every),
            ("noise-every", job.config.noise_every),
        ):
            if every is not None and every % period:
                raise BenchError(
                    f"{cls.name} averages its replicas every {period} steps, and between there is no one "
                    f"model; make --{option} a multiple of {period}"
                )

    @classmethod
    def evaluation_interval(cls, config: BenchConfig) -> int | None:
        """See Scheme."""
        return evaluation_interval(config, period_of(config))

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        self.model = model
        self._group = self.data_group()
        self._params = list(model.parameters())
        self._flat = self.world.ledger.flat(model)
        self._optimizer = make_optimizer(self, self._params)
        self._steps = 0

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.passes.run(self.model, batch)
        self.passes.update(self._optimizer)
        self._steps += 1
        if self._steps % period_of(self.config) == 0:
            self._average()
        return loss

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(self) -> None:
        if self._group.size == 1:
            return
        comm.flatten(self._params, self._flat)
        comm.all_reduce(self._flat, self._group)
        self._flat /= self._group.size
        comm.unflatten(self._flat, self._params)

    def finish(self) -> None:
        """See Scheme: a last period that is cut short ends with an average, too."""
        if self._steps % period_of(self.config):
            self._average()

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return [
            Traffic(
                collective="all_reduce",
                axis=Axis.DP,
                members=job.mesh.group(Axis.DP, rank),
                bytes=job.model_bytes,
                every=period_of(job.config),
                at_end=1,
                what="weights",
            )
        ]


class DiLoCo(LocalSGD):
    """The mean of the replicas is a step of an optimizer of its own."""

    name = "dp.diloco"
    summary = "Data parallel; as dp.local_sgd, but the mean change of a period is a Nesterov step of its own."
    rule = (
        "Each rank trains alone for tau steps from common weights w. One all-reduce gives d, the mean of w "
        "minus what each rank has. Then v <- 0.9 v + d, w <- w - 0.7 (d + 0.9 v), on every rank alike. "
        "--optimizer is that of the steps between (AdamW in the paper, which has tau = 500)."
    )
    source = "Douillard et al. 2023 (arXiv 2311.08105)"
    criterion = (
        "With an outer rate of 1 and no outer momentum it equals dp.local_sgd to 1e-12 in float64, and so "
        "does the outer step that of torch.optim.SGD with Nesterov's momentum."
    )
    outer_rate: ClassVar[float] = 0.7
    outer_momentum: ClassVar[float] = 0.9

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        super().build(model)
        self._common = comm.flatten([param.detach() for param in self._params], torch.zeros_like(self._flat))
        self._speed = torch.zeros_like(self._flat)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(self) -> None:
        comm.flatten(self._params, self._flat)
        comm.all_reduce(self._flat, self._group)
        self._flat /= self._group.size
        change = self._common - self._flat
        self._speed.mul_(self.outer_momentum).add_(change)
        self._common.sub_(self.outer_rate * (change + self.outer_momentum * self._speed))
        comm.unflatten(self._common, self._params)
