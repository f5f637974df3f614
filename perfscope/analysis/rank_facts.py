"""What the ranks say of themselves in rank.json, as several parts of the analysis ask it."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analysis.source import Document

SEVERAL = "several"


def framework_of(metas: Mapping[int, Document]) -> str:
    """``torch``, ``keras-jax`` (Keras with its backend), ``mpi4py``; "several" where ranks differ.

    Runs that do not say (imported traces) are torch's.
    """
    names = {name for meta in metas.values() if (name := _name(meta.get("framework")))}
    if not names:
        return "torch"
    return names.pop() if len(names) == 1 else SEVERAL


def is_torch(metas: Mapping[int, Document]) -> bool:
    """Whether it is torch alone that trained, or, of runs that do not say, presumably.

    Torch's windows begin with a root module.
    """
    return framework_of(metas) == "torch"


def runs_ahead(metas: Mapping[int, Document]) -> bool:
    """Whether steps are times from hand-over to hand-over, with the work behind them.

    JAX's own probe shares such times out itself.
    """
    return framework_of(metas) in ("keras-jax", "mxnet")


def num_devices(metas: Mapping[int, Document]) -> dict[int, int]:
    """rank -> devices of its process, where it has several: its collectives count them, not ranks."""
    told = {rank: meta.get("num_devices") for rank, meta in metas.items()}
    return {rank: number for rank, number in told.items() if isinstance(number, int) and number > 1}


def _name(told: object) -> str:
    if not isinstance(told, dict) or not told.get("name"):
        return ""
    name = str(told["name"])
    return f"{name}-{told['backend']}" if name == "keras" and told.get("backend") else name
