"""What is measured between steps, outside of their time: the held-out set, and the gradient's noise."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.data.synthetic import Synthetic
from perfscope.runners.learning.evaluation import HeldOutSet
from perfscope.runners.learning.noise import NoiseMeasurement
from perfscope.runners.learning.targets import Target, parse_target
from perfscope.runners.mesh import WORLD
from perfscope.runners.schemes.base import Feed, Scheme
from perfscope.runners.wire import grown, read_interfaces
from perfscope.runners.world import World


class Pauses:
    """Interruptions of a training, by all ranks together after the same number of steps.

    Rank 0 evaluates the whole model on the whole held-out set and decides for all whether the target is
    reached. What pauses send is in no ledger, and what interfaces count meanwhile is subtracted.
    """

    def __init__(self, scheme: Scheme, template: nn.Module, feed: Feed, world: World) -> None:
        """
        Args:
            scheme: laid out already.
            template: the undivided model on this rank's device, overwritten here.
            feed: the run's samples.
            world: of this rank.
        """
        config = scheme.config
        self._scheme, self._template, self._world = scheme, template, world
        self._steps = config.steps
        self._every, self._noise_every = scheme.evaluation_interval(config), config.noise_every
        self._target: Target | None = parse_target(config.target) if config.target else None
        self._samples = HeldOutSet(scheme.job, world.device) if self._every and world.rank == 0 else None
        everyone = world.groups(WORLD, [tuple(range(world.size))])
        # over MPI rank 0 measures alone
        alone = comm.Group(WORLD, (world.rank,), 0, None, world.ledger)
        self._group = alone if world.peers.backend == "mpi" else everyone
        best = feed.best if self._every and isinstance(feed, Synthetic) else None
        self._best = None if best is None else asdict(best)
        self._noise = NoiseMeasurement(feed, config.batch, config.steps, self._group)
        self.moved: Counter[tuple[str, str]] = Counter()
        self.pauses: list[dict[str, int]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.noise: list[dict[str, Any]] = []
        self.target_step: int | None = None

    @property
    def final_loss(self) -> float | None:
        """Held-out loss of the trained model; None where this rank did not evaluate it."""
        return self.evaluations[-1]["loss"] if self.evaluations else None

    def settle(self, done: int) -> None:
        """Before the end of step `done` is noted: work queued on a GPU is part of it, not of the pause."""
        if self._world.device.type == "cuda" and any(self._due(done)):
            torch.cuda.synchronize(self._world.device)

    def after(self, done: int) -> bool:
        """`done` steps are over. True: the target is reached, and the training ends here, on every rank."""
        evaluates, measures = self._due(done)
        if not evaluates and not measures:
            return False
        start = time.monotonic_ns()
        self._world.peers.barrier()
        before = read_interfaces()
        served = Counter(self._world.ledger.served)
        ends = self._measure(done, evaluates=evaluates, measures=measures)
        self._world.ledger.served.clear()
        self._world.ledger.served.update(served)
        self._world.peers.barrier()
        for name, counters in grown(before, read_interfaces()).items():
            self.moved.update({(name, counter): value for counter, value in counters.items()})
        self.pauses.append({"step": done, "ns": time.monotonic_ns() - start})
        return ends

    def without_pauses(self, interfaces: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """What interfaces moved in the training, less what they moved in its pauses."""
        return {
            name: {counter: value - self.moved[name, counter] for counter, value in counters.items()}
            for name, counters in interfaces.items()
        }

    def as_json(self) -> dict[str, Any]:
        """For bench.json."""
        return {
            "pauses": self.pauses,
            "evaluations": self.evaluations,
            "noise": self.noise,
            "target_step": self.target_step,
            "best": self._best,
        }

    def _due(self, done: int) -> tuple[bool, bool]:
        """Whether the model is evaluated behind that step, and whether its gradient's noise is measured."""
        evaluates = self._every is not None and (done % self._every == 0 or done == self._steps)
        return evaluates, self._noise_every is not None and done % self._noise_every == 0

    def _measure(self, done: int, *, evaluates: bool, measures: bool) -> bool:
        self._scheme.finish()
        state = self._scheme.full_state()
        if state is not None:
            self._template.load_state_dict(state)
        ends = False
        if evaluates and self._samples is not None:
            figures = self._samples.evaluate(self._template)
            self.evaluations.append({"step": done, "num_samples": self._samples.num, **figures._asdict()})
            ends = self._target is not None and self._target.reached(figures.by_metric())
        if self._target is not None and evaluates:
            ends = bool(self._world.peers.agreed(ends))
            self.target_step = done if ends else None
        if measures:  # last: its forward passes may change what the template keeps beside weights
            self._measure_noise(done)
        return ends

    def _measure_noise(self, done: int) -> None:
        if self._group.size < self._world.size and self._world.rank:
            return
        for value in self._template.state_dict().values():
            comm.broadcast(value, 0, self._group)
        device = self._world.device
        # dropout must not draw from the training's numbers
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            norms = self._noise.measure(self._template)
        if self._world.rank == 0:
            self.noise.append({"step": done, **norms._asdict()})
