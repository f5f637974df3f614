"""What kind of scheme a training runs: the columns that schemes are filtered and compared by.

Parallelism, optimization, synchrony and topology are the axes of Langer et al. (TPDS 31(12), 2020, arXiv
2007.03970); compression and the placement of state are beside them. Values are the words in options and
records.
"""

from __future__ import annotations

from enum import Enum


class Parallelism(str, Enum):
    """What is divided among ranks; a hybrid has several, `data+model`."""

    NONE = "none"
    DATA = "data"  # samples
    MODEL = "model"  # layers, each in parts
    PIPELINE = "pipeline"  # consecutive layers
    CONTEXT = "context"  # sequences
    EXPERT = "expert"  # experts of a mixture
    EMBEDDING = "embedding"  # tables


class Optimization(str, Enum):
    """Where updates are computed."""

    NONE = "none"
    CENTRALIZED = "centralised"
    DECENTRALIZED = "decentralised"


class Synchrony(str, Enum):
    """Whether ranks wait for each other."""

    NONE = "none"
    SYNCHRONOUS = "synchronous"
    BOUNDED = "bounded"
    ASYNCHRONOUS = "asynchronous"


class Topology(str, Enum):
    """Who talks to whom."""

    NONE = "none"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"  # with its reverse, reduce-scatter
    ALL_TO_ALL = "all-to-all"  # each rank a part of its own to every other
    HIERARCHICAL = "hierarchical"  # in groups, then between them
    TREE = "tree"
    SERVER = "server"  # ranks with one that serves them
    POINT_TO_POINT = "point-to-point"  # neighbors, stages
    SHARED_MEMORY = "shared-memory"


class CompressionKind(str, Enum):
    """What is sent of a gradient."""

    NONE = "none"
    CAST = "cast"  # fewer bits of each element, as a float
    QUANTIZED = "quantized"  # fewer bits and scales
    SPARSE = "sparse"  # some elements
    LOW_RANK = "low-rank"  # factors


class StatePlacement(str, Enum):
    """Where weights and the optimizer's state are."""

    LOCAL = "local"  # one process
    REPLICATED = "replicated"  # whole on every rank
    SHARDED_OPTIMIZER = "sharded-optimizer"  # weights whole, state and updates in parts
    SHARDED = "sharded"  # each rank has a part of both
    SERVER = "server"  # whole on the server; workers hold copies
    CENTER = "center"  # replicas that differ, and their center
    SHARED_MEMORY = "shared-memory"


# The values of each column, by its name in options and in run.json's `scheme.axes`.
COLUMNS: dict[str, tuple[str, ...]] = {
    "parallelism": tuple(member.value for member in Parallelism),
    "optimisation": tuple(member.value for member in Optimization),
    "synchrony": tuple(member.value for member in Synchrony),
    "topology": tuple(member.value for member in Topology),
    "compression": tuple(member.value for member in CompressionKind),
    "state": tuple(member.value for member in StatePlacement),
}
HYBRID = "+"  # between the values of a cell that has several
