"""Asynchronous gossip: pairs of workers average their weights while all others go on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock, Thread
from typing import Any, ClassVar

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.data.seeds import mixed_seed
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import OWN_LOOP, Axes, Batch, Feed, LoopReporter
from perfscope.runners.schemes.dp_gradients import Replicas
from perfscope.runners.schemes.server_base import MAX_RECORDED_ARRIVALS
from perfscope.runners.schemes.server_packed import PackedModel
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

FETCHED, UPDATED = -1, -2  # in a passive worker's order of events; others are the rank that it averaged with
_AVERAGE, _ENDED = 0, -1  # headers: weights follow; the worker has made its last step
_HEADER_BYTES = 8
_PARTNERS = 41  # a stream of random numbers
_MOST_DRAWN = 10**6


class AdPsgd(Replicas):
    """Even ranks ask, odd ranks answer: no cycle of ranks can wait for each other."""

    name = "dp.adpsgd"
    summary = "Data parallel; every rank trains at its own pace and averages with one random other per step."
    rule = (
        "Ranks 0, 2, 4 ... are active, the others passive, and all train. In each step an active rank makes "
        "G at its weights W, sends W to a passive rank drawn at random, both continue with the mean of their "
        "weights, and the active one makes its update with G. A passive rank answers in a thread of its own, "
        "also in the middle of a step: it makes its update, with the G of the weights from before, to what "
        "its weights are by then. How many averagings came between is the staleness, whose histogram is "
        "recorded. Each rank makes `steps` updates from b = B/P samples; passive ranks answer until the last "
        "active one has ended, and --timeout bounds how long a passive rank may not be drawn. Momentum stays "
        "each rank's own. The result, also of an evaluation, is the mean of all replicas."
    )
    volume = (
        "|W| e from every active rank, and as much in all from the passive ones; 8 bytes more per message"
    )
    source = "Lian et al., ICML 2018 (arXiv 1710.06952), AD-PSGD on the complete bipartite graph"
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.ASYNCHRONOUS,
        Topology.POINT_TO_POINT,
        StatePlacement.REPLICATED,
        "random pairs of an active and a passive rank",
    )
    refused_passes: ClassVar[Mapping[str, str]] = OWN_LOOP
    backends = ("gloo",)
    equals_serial = False
    deterministic = False
    criterion = (
        "Replaying the recorded order of averagings in one process gives the same weights to 1e-9 (float64); "
        "with one rank it is serial training."
    )

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        self.model = model
        self._group = self.data_group()
        self._transport = self.world.peers.transport(self._group) if self.world.size > 1 else None
        self.packed = PackedModel(model, self.world.ledger, self.passes)
        self._optimizer = make_optimizer(self, model.parameters())
        self._passive = self.world.rank % 2 == 1
        self._partners = _stream(self.config.seed, self.world.rank)
        self._arriving = self.packed.buffer()
        self._order: list[int] = []
        self._staleness: Counter[int] = Counter()
        self._num_answers = 0
        self._lock = Lock()
        self._failure: Exception | None = None
        # What a passive rank answers with; its model computes with a copy that does not change meanwhile.
        self._weights = (
            self.packed.buffer().copy_(self.packed.weights) if self._passive else self.packed.weights
        )
        self._recorded: dict[str, Any] = {}

    def run(self, feed: Feed, steps: int, note: LoopReporter) -> None:
        """See Scheme."""
        if self._transport is None:
            super().run(feed, steps, note)
            return
        answering = Thread(target=self._answer_all, name="perfscope-adpsgd", daemon=True)
        if self._passive:
            answering.start()
        super().run(feed, steps, note)
        if not self._passive:
            for passive in range(1, self.world.size, 2):
                self._transport.send(torch.tensor([_ENDED]), passive)
            return
        answering.join()  # each of its waits is bounded by the run's timeout
        self._raise_failure()

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        if not self._passive:
            loss = self.packed.backward(batch)
            self._average()
            self.passes.update(self._optimizer)
            return loss
        self._raise_failure()
        with self._lock:
            self.packed.weights.copy_(self._weights)
            before = self._num_answers
            self._note(FETCHED)
        loss = self.packed.backward(batch)
        with self._lock:
            self.packed.weights.copy_(self._weights)
            self.passes.update(self._optimizer)
            self._weights.copy_(self.packed.weights)
            self._staleness[self._num_answers - before] += 1
            self._note(UPDATED)
        return loss

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(self) -> None:
        """An active rank's part: its weights become the mean of a passive rank's and its own."""
        if self._transport is None:
            return
        passive = _drawn(self._partners, self.world.size)
        wait = self._transport.start_receive(self._arriving, passive)
        self._transport.send(torch.tensor([_AVERAGE]), passive)
        self._transport.send(self.packed.weights, passive)
        wait()
        self.packed.weights.copy_(self._arriving)

    def _answer_all(self) -> None:
        """A passive rank's thread: until every active rank has ended."""
        try:
            with torch.no_grad():
                for _ in range(0, self.world.size, 2):
                    self._answer_until_one_ends()
        except Exception as error:  # noqa: BLE001 - raised again by the training's own thread
            self._failure = error

    def _answer_until_one_ends(self) -> None:
        assert self._transport is not None
        header, mean = torch.zeros(1, dtype=torch.int64), self._arriving
        while True:
            active = self._transport.receive(header)
            if int(header) == _ENDED:
                return
            self._transport.receive(mean, active)
            with self._lock:
                self._weights.add_(mean).div_(2)
                mean.copy_(self._weights)
                self._num_answers += 1
                self._note(active)
            self._transport.send(mean, active)

    def _note(self, event: int) -> None:
        if len(self._order) < MAX_RECORDED_ARRIVALS:
            self._order.append(event)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme; the replicas themselves are left as they are."""
        with self._lock:
            mean = self._weights.clone()
        comm.all_reduce(mean, self._group)
        mean /= self._group.size
        counts = self.world.peers.gather((self._num_answers, self._staleness))
        if counts is None:
            return None
        staleness = sum((of_rank for _, of_rank in counts), Counter[int]())
        self._recorded = {
            "num_averagings": sum(num for num, _ in counts),
            "staleness": {str(key): staleness[key] for key in sorted(staleness)},
        }
        return self.packed.state(mean)

    def details(self) -> Mapping[str, Any]:
        """Rank 0: averagings, and staleness of the passive ranks' updates; these: their order of events."""
        return {"own_order": list(self._order)} if self._passive else self._recorded

    @classmethod
    def effective_batch(cls, job: Job) -> int:
        """b: one rank's samples are behind one update."""
        return job.group_batch

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme; the partners are known before the run, the order of the averagings is not."""
        steps = min(job.config.steps, _MOST_DRAWN)
        pairs = [(rank, other) if rank % 2 == 0 else (other, rank) for other in range(job.num_ranks)]
        calls = []
        for other, (active, passive) in enumerate(pairs):
            if active % 2 or not passive % 2:
                continue  # two of a kind
            num = _num_averagings(job.config.seed, active, job.num_ranks, steps)[passive]
            if num:
                calls.append(_send(job, (rank, other), num / steps, job.model_bytes, "weights"))
            if rank == active:
                calls.append(_send(job, (rank, other), (num + 1) / steps, _HEADER_BYTES, "header"))
        return calls


def _send(job: Job, members: tuple[int, int], count: float, num_bytes: int, what: str) -> Traffic:
    return Traffic(
        collective="send",
        axis=Axis.DP,
        members=members,
        bytes=num_bytes,
        count=count,
        what=what,
        group_size=job.num_ranks,
    )


def _stream(seed: int, active: int) -> random.Random:
    """Of an active rank, for its partners."""
    return random.Random(mixed_seed(seed, _PARTNERS, active))


def _drawn(stream: random.Random, num_ranks: int) -> int:
    """The next partner: a passive rank."""
    return stream.randrange(1, num_ranks, 2)


@lru_cache(maxsize=4096)
def _num_averagings(seed: int, active: int, num_ranks: int, steps: int) -> Counter[int]:
    """By passive rank."""
    return Counter(partners_of(seed, active, num_ranks, steps))


def partners_of(seed: int, active: int, num_ranks: int, steps: int) -> tuple[int, ...]:
    """The passive rank that an active one averages with, by step."""
    stream = _stream(seed, active)
    return tuple(_drawn(stream, num_ranks) for _ in range(steps))
