"""What published lemmas advise, and why they may not."""

from __future__ import annotations

from enum import Enum


class Quantity(str, Enum):
    """What is advised."""

    WORKERS = "workers"
    MINIBATCH = "minibatch"  # samples of a step over all workers of the run
    SERVERS = "servers"
    FITTING_BATCH = "fitting_batch"  # samples of a step that the devices' memory holds; of no lemma


class Gap(str, Enum):
    """Why something is not advised."""

    NOT_TRACED = "not_traced"
    NOT_DATA_PARALLEL = "not_data_parallel"
    NO_COMPUTE = "no_compute"
    NO_OVERHEAD = "no_overhead"
    ONE_WORKER = "one_worker"
    BATCH_NOT_KNOWN = "batch_not_known"
    WEIGHTS_NOT_KNOWN = "weights_not_known"
    NO_BANDWIDTH = "no_bandwidth"
    NO_DEVICE = "no_device"
    MEMORY_NOT_KNOWN = "memory_not_known"
