"""What keeps the workers of a data loader from delivering batches in time, and what may be changed."""

from __future__ import annotations

from enum import Enum


class InputCause(str, Enum):
    """Why batches come late. The value is the code in the JSON report."""

    DECODE = "decode"  # workers compute
    STORE = "store"  # workers wait while bytes come from storage
    WAIT = "wait"  # workers wait, and no bytes are counted: network, locks, sleep
    RECEIVING = "receiving"  # batches were finished in time: the training takes long to receive them
    SLOW_WORKER = "slow_worker"  # one worker is slower than the others, and batches keep their order


class LoaderChange(str, Enum):
    """What the replay of a loader changes."""

    DOUBLE_STORE = "store_twice_as_fast"
    FASTER_STORE = "faster_store"  # by another factor
    NODE_CACHE = "node_cache"  # a cache in the memory of each node
    CACHED = "store_cached"  # everything in the page cache
    DOUBLE_DECODE = "decode_twice_as_fast"
    MORE_WORKERS = "loader_workers_doubled"
    EQUAL_WORKERS = "slow_loader_worker_as_others"
