"""What the environment of the command must hold so that the probe gets into its Python processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import perfscope
from perfscope.rundir import layout
from perfscope.rundir.sampler_call import python_path
from perfscope.vocabulary.defaults import HANG_AFTER_S, RUN, SAMPLE_INTERVAL_MS

PYTHONPATH = "PYTHONPATH"
_BOOTSTRAP = Path(perfscope.__file__).parent / "probes" / "bootstrap"


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """How the probe measures; reaches it as JSON in PERFSCOPE_CONFIG and is kept in run.json.

    Attributes:
        overhead: share of training time that traced windows may cost, a ratio in [0, 1].
        windows: how many windows are traced at most.
        steps_per_window: steps in one window. Few: on CPUs Kineto's own memory makes every further traced
            step slower (measured with 4 ranks on 2 cores: +10 %, +60 %, +120 %).
        trace: False records steps only.
        samples_per_step: what the user says a step processes, over all ranks; None = derive it.
        sampling: whether hardware counters are read beside the training.
        sample_interval_ms: how often.
        stacks: whether the ranks' Python stacks are sampled, too.
        allocations: whether windows record PyTorch's allocations and frees.
        layer_counters: whether windows read the training thread's counters at the marks of layers.
        hang_after_s: the shortest time without a step that is a hang; None: none is looked for.
        first_step: that the first window starts with, counted from 0; None = the probe's own (an early one).
    """

    overhead: float = RUN.overhead
    windows: int = RUN.windows
    steps_per_window: int = RUN.steps_per_window
    trace: bool = True
    samples_per_step: int | None = None
    sampling: bool = True
    sample_interval_ms: float = SAMPLE_INTERVAL_MS
    stacks: bool = False
    allocations: bool = False
    layer_counters: bool = False
    hang_after_s: float | None = HANG_AFTER_S
    first_step: int | None = None

    def as_dict(self) -> dict[str, object]:
        return {
            "overhead": self.overhead,
            "windows": self.windows,
            "steps_per_window": self.steps_per_window,
            "layer_counters": self.layer_counters,
            "allocations": self.allocations,
            "trace": self.trace,
            "samples_per_step": self.samples_per_step,
            "sampling": {"interval_ms": self.sample_interval_ms, "stacks": self.stacks}
            if self.sampling
            else None,
            "hang_after_s": self.hang_after_s,
            **({} if self.first_step is None else {"first_step": self.first_step}),
        }


@dataclass(frozen=True)
class Injection:
    """The variables that carry the probe.

    Attributes:
        site_dir: directory with our sitecustomize, to stand first on PYTHONPATH.
        variables: the PERFSCOPE_* variables.
    """

    site_dir: str
    variables: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable a launcher has to pass on."""
        return (PYTHONPATH, *self.variables)

    def python_path(self, existing: str | None) -> str:
        """PYTHONPATH with our directory in front. No empty component is ever added: that would mean cwd."""
        if not existing:  # an empty PYTHONPATH counts as unset for Python too
            return self.site_dir
        if existing.split(os.pathsep)[0] == self.site_dir:
            return existing
        return f"{self.site_dir}{os.pathsep}{existing}"

    def changes(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables to set, given the environment the command would have had."""
        return {PYTHONPATH: self.python_path(environment.get(PYTHONPATH)), **self.variables}


def make_injection(run_dir: Path, options: ProbeOptions, environment: Mapping[str, str]) -> Injection:
    """Injection for a run directory. PERFSCOPE_AGENT in `environment` replaces the agent (for developers)."""
    agent = environment.get(layout.ENV_AGENT) or str(_BOOTSTRAP / "agent.py")
    return Injection(
        site_dir=str(_BOOTSTRAP / "site"),
        variables={
            layout.ENV_RUN_DIR: str(run_dir),
            layout.ENV_AGENT: agent,
            layout.ENV_PYTHON: sys.executable,
            layout.ENV_PYTHON_PATH: python_path(),
            layout.ENV_CONFIG: json.dumps(options.as_dict(), separators=(",", ":")),
        },
    )


def is_nested(environment: Mapping[str, str]) -> bool:
    """Whether this process already runs below a `perfscope run`."""
    path = environment.get(PYTHONPATH, "").split(os.pathsep)
    return bool(environment.get(layout.ENV_RUN_DIR)) and str(_BOOTSTRAP / "site") in path
