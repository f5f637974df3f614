"""Frameworks that trainings are written in, and what several packages must know of each.

`probes/bootstrap/agent.py` loads nothing before a framework is imported: it has a table of its own, of the
modules whose import loads a probe.
"""

from __future__ import annotations

from enum import Enum


class FrameworkName(str, Enum):
    """The value is the name in rank.json, options and records; Keras's has its backend."""

    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    KERAS = "keras"  # of an option, or where the backend is not known
    KERAS_TENSORFLOW = "keras-tensorflow"
    KERAS_JAX = "keras-jax"
    KERAS_TORCH = "keras-torch"
    JAX = "jax"
    MXNET = "mxnet"
    HOROVOD = "horovod"  # carries the calls of another one
    MPI4PY = "mpi4py"  # a program of no framework: its calls of MPI are its steps
    PYTHON = "python"  # a program that marks its steps itself

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


# What a run whose ranks do not say (an imported trace) was trained with.
UNNAMED = FrameworkName.TORCH
# Whose losses and speeds the others' are compared with, where it is among them.
REFERENCE = FrameworkName.TORCH
# Their probes cut steps once they train.
TRAINERS = (FrameworkName.TORCH, FrameworkName.TENSORFLOW, FrameworkName.JAX, FrameworkName.MXNET)
# Programs of no framework: nothing looks into their computation.
OWN_STEPS = (FrameworkName.MPI4PY, FrameworkName.PYTHON)
# Their recorded steps are times from hand-over to hand-over, with the work behind them. JAX's own probe
# shares such times out itself.
RUN_AHEAD = (FrameworkName.KERAS_JAX, FrameworkName.MXNET)
# Not maintained any more, and since when.
RETIRED: dict[str, str] = {FrameworkName.MXNET: "September 2023"}
