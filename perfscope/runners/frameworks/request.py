"""What `perfscope bench run --framework` was asked for, checked. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from perfscope.runners.config import BatchError, BenchConfig, BenchError, check_config
from perfscope.runners.frameworks.registry import Framework
from perfscope.runners.sweep.settings import config_of

# Settings that every framework's program reads; the others belong to parallel schemes.
READ = (
    *("model", "ranks", "batch", "steps", "input", "classes", "lr", "momentum", "seed", "data", "threads"),
    "device",
)
_FORBIDDEN_VALUES = {"dtype": ("float32",), "dropout": (0, 0.0)}
CPU, CUDA = "cpu", "cuda"
# Not a scheme of ours: each framework's own data parallel training. The name only fills the config.
_SCHEME = "dp.ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRun:
    """One run.

    Attributes:
        framework: it trains with.
        config: what it trains; `scheme` in it means nothing.
    """

    framework: Framework
    config: BenchConfig

    @property
    def device(self) -> str:
        """CPU or CUDA: what is not chosen is the CPU, where all frameworks train alike."""
        return CUDA if self.config.device == CUDA else CPU

    @property
    def summary(self) -> str:
        """How the framework trains on this device."""
        return self.framework.summary.format(backend="NCCL" if self.device == CUDA else "gloo")

    @property
    def labels(self) -> dict[str, str]:
        """For run.json: what `perfscope compare --by framework` groups by."""
        ranks = str(self.config.num_ranks)
        return {"framework": self.framework.name, "model": self.config.model, "ranks": ranks}

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the losses, and how many processes and threads compute them; JSON values."""
        config = self.config
        return {
            "model": config.model,
            "ranks": config.num_ranks,
            "batch": config.batch,
            "steps": config.steps,
            "input_shape": list(config.input_shape),
            "num_classes": config.num_classes,
            "learning_rate": config.learning_rate,
            "momentum": config.momentum,
            "dtype": "float32",
            "seed": config.seed,
            "data": config.data,
            "threads": config.threads,
            "device": self.device,
        }

    @property
    def digest(self) -> str:
        """The same for runs of the same settings and framework."""
        text = json.dumps([self.framework.name, self.settings], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:12]


def framework_run(
    framework: Framework,
    settings: Mapping[str, Any],
    *,
    default_learning_rate: Callable[[str], float],
    threads: Callable[[int], int],
) -> FrameworkRun:
    """The run that the settings ask for.

    Args:
        framework: to train with.
        settings: by the names of sweep.settings.SETTINGS; None = not set.
        default_learning_rate: of a model, by name, for runs that set none.
        threads: of each of so many processes, for runs that set none.

    Raises:
        BenchError: a setting belongs to parallel schemes, or it cannot be; one line.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name in [name for name in given if name not in READ]:
        if given.pop(name) not in _FORBIDDEN_VALUES.get(name, ()):
            option = f"--{name.replace('_', '-')}"
            allowed = _FORBIDDEN_VALUES.get(name)
            if allowed is not None:
                raise BenchError(f"with --framework {option} can only be {allowed[-1]}; leave it out")
            raise BenchError(f"{option} belongs to parallel schemes; leave it out with --framework")
    config = config_of(
        _SCHEME, {"ranks": 1, **given}, modifiers=(), default_learning_rate=default_learning_rate
    )
    check_config(config)
    if config.batch % config.num_ranks:
        raise BatchError(config.batch, config.num_ranks, "process")
    if config.num_ranks > 1 and framework.one_process_because:
        raise BenchError(
            f"{framework.name} on {config.num_ranks} processes is not supported: "
            f"{framework.one_process_because}"
        )
    if config.threads is None:
        config = replace(config, threads=threads(config.num_ranks))
    return FrameworkRun(framework=framework, config=config)
