"""The training loop of one rank: the same for every scheme, model and place."""

from __future__ import annotations

import copy
import resource
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from perfscope import phase
from perfscope.rundir.served_layers import decoded
from perfscope.runners.comm import Call, ServedCall, counted
from perfscope.runners.data.loader import LoadedFeed
from perfscope.runners.data.registry import held_out, input_workers, open_feed
from perfscope.runners.data.seeds import mixed_seed
from perfscope.runners.job import Job
from perfscope.runners.learning.evaluation import mean_loss, samples_at_once
from perfscope.runners.learning.pauses import Pauses
from perfscope.runners.models.registry import build_model
from perfscope.runners.schemes.base import Feed, LoopReporter, Scheme
from perfscope.runners.schemes.compilation import compile_ahead
from perfscope.runners.schemes.recomputation import checkpoint_activations
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.wire import grown, read_interfaces
from perfscope.runners.world import World
from perfscope.vocabulary.axes import Axis

_DRAWS = 3  # a stream of random numbers beside those of synthetic data


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """What one rank has to tell.

    Attributes:
        losses: mean loss of this rank's batch, by step; None where the rank does not know it.
        step_ends_ns: monotonic time at the end of each step; the first entry is the start of the first step.
        served: the ledger, over all steps.
        interfaces: what each network interface of the host moved during the steps.
        details: the scheme's own.
        state: the trained model, on rank 0.
        held_out_loss: of the trained model on samples that were not trained on, on rank 0.
        learning: what was measured between steps; see learning.pauses.
        cache: where samples came from during the steps.
    """

    losses: list[float | None]
    step_ends_ns: list[int]
    served: Counter[ServedCall]
    interfaces: dict[str, dict[str, int]]
    details: Mapping[str, Any]
    state: dict[str, torch.Tensor] | None
    held_out_loss: float | None
    learning: Mapping[str, Any] = field(default_factory=dict)
    cache: list[dict[str, Any]] = field(default_factory=list)
    peak_rss_bytes: int = field(
        default_factory=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )

    @property
    def calls(self) -> Counter[Call]:
        """The ledger without layers."""
        return counted(self.served)

    def as_json(self) -> dict[str, Any]:
        """Everything but the weights, for the run directory."""
        return {
            "losses": self.losses,
            "step_ends_ns": self.step_ends_ns,
            "calls": [
                {**call._asdict(), "layers": decoded(layers), "count": count}
                for (call, layers), count in sorted(self.served.items())
            ],
            "interfaces": self.interfaces,
            "details": dict(self.details),
            "held_out_loss": self.held_out_loss,
            **self.learning,
            "cache": self.cache,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


class _Notes(LoopReporter):
    """Keeps times at once and losses as tensors: reading a loss would wait for the device."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self.ends_ns = [time.monotonic_ns()]
        self._losses: list[torch.Tensor | None] = []

    def step(self, number: int, loss: torch.Tensor | None) -> bool:
        """See LoopReporter."""
        self._pauses.settle(number + 1)
        self.ends_ns.append(time.monotonic_ns())
        self._losses.append(loss)
        return self._pauses.after(number + 1)

    def losses(self) -> list[float | None]:
        """As numbers."""
        return [None if loss is None else float(loss) for loss in self._losses]


def train(job: Job, world: World) -> TrainingOutcome:
    """Builds the model, trains `config.steps` steps, collects the result. Every rank calls it.

    Raises:
        BenchError: the data cannot be used.
        RuntimeError: torch's, when another rank is gone.
    """
    config = job.config
    scheme = find_scheme(config.scheme)(job, world)
    feed = open_feed(config, world.device, world)
    workers = input_workers(config)
    template = build_model(config).to(world.device)
    model = copy.deepcopy(template)
    if config.activation_checkpointing:
        checkpoint_activations(model)
    scheme.build(model)
    compiled_ns = _compiled_ahead(scheme, feed) if config.compile != "none" else None
    pauses = Pauses(scheme, template, feed, world)
    torch.manual_seed(_draws_of(scheme))
    world.peers.barrier()
    world.ledger.clear()
    before = read_interfaces()
    notes = _Notes(pauses)
    with LoadedFeed(feed, config.steps, workers, world.device) as loaded:
        scheme.run(loaded, config.steps, notes)
    cache = feed.cache_record()
    served = Counter(world.ledger.served)
    world.peers.barrier()
    interfaces = pauses.without_pauses(grown(before, read_interfaces()))
    state = scheme.full_state()
    loss = pauses.final_loss
    if state is not None and loss is None:
        template.load_state_dict(state)
        loss = mean_loss(template, held_out(config, world.device), samples_at_once(job))
    return TrainingOutcome(
        losses=notes.losses(),
        step_ends_ns=notes.ends_ns,
        served=served,
        interfaces=interfaces,
        details={**scheme.details(), **scheme.passes.details(), **_compile_details(compiled_ns)},
        state=state,
        held_out_loss=loss,
        learning=pauses.as_json(),
        cache=cache,
    )


def _compiled_ahead(scheme: Scheme, feed: Feed) -> int:
    """Compiles what the rank trains, in a phase of that name; nanoseconds."""
    batch = feed.batch(0, *scheme.data_part)
    with phase("compile"):
        return compile_ahead(scheme.model, scheme.config, scheme.world.device, lambda: scheme.rehearse(batch))


def _compile_details(compiled_ns: int | None) -> dict[str, float]:
    return {} if compiled_ns is None else {"compile_s": round(compiled_ns / 1e9, 3)}


def _draws_of(scheme: Scheme) -> int:
    """Seed of what is drawn in training (dropout): replicas differ, ranks of one model group draw alike."""
    stage = scheme.job.mesh.index(Axis.PP, scheme.world.rank)
    return mixed_seed(scheme.config.seed, _DRAWS, scheme.data_part[0], stage)
