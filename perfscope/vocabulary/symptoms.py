"""What each cause makes appear elsewhere: the findings that go away with it.

A finding stands below a cause only if the cause is in the table with it, and the figures of both allow it
(analysis/findings/symptoms.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.vocabulary.findings import COMMUNICATION, INPUT
from perfscope.vocabulary.findings import FindingKind as Kind

# Ranks that wait for a CPU, or compute slowly: operators take longer, not on all ranks alike, and the others
# wait in their collectives.
SLOW_RANKS = frozenset({Kind.STRAGGLER, Kind.IMBALANCE, Kind.LATE_START})
_WAITING = COMMUNICATION - {Kind.UNEVEN_COMM}
NO_CPU = frozenset({Kind.PREEMPTED, Kind.HOST_BOUND, Kind.IDLE_BOUND, Kind.LAUNCH_BOUND, Kind.COMPUTE_BOUND})

# While the training thread does something else no operator runs; page faults make operators take longer.
_GAPS = frozenset({Kind.PREEMPTED, Kind.HOST_BOUND, Kind.IDLE_BOUND, Kind.LAUNCH_BOUND, Kind.HOST_BLOCKED})
_BESIDE = SLOW_RANKS | _WAITING | _GAPS

SYMPTOMS: Mapping[Kind, frozenset[Kind]] = {
    Kind.DISTURBED: SLOW_RANKS | _WAITING | NO_CPU | INPUT,
    Kind.OVERSUBSCRIBED: SLOW_RANKS | _WAITING | NO_CPU | INPUT,
    Kind.NUMA_REMOTE: SLOW_RANKS | _WAITING | {Kind.MEMORY_BOUND},
    Kind.POWER_CAPPED: SLOW_RANKS | _WAITING,
    Kind.STRAGGLER: _WAITING | {Kind.LATE_START, Kind.IMBALANCE},
    Kind.MODEL_SPLIT: _WAITING | {Kind.LATE_START, Kind.IMBALANCE},
    Kind.IMBALANCE: _WAITING | {Kind.LATE_START},
    Kind.LATE_START: _WAITING,
    Kind.STAGE_IMBALANCE: _WAITING | {Kind.PIPELINE_BUBBLE},
    Kind.PIPELINE_BUBBLE: _WAITING,
    Kind.EXPERT_IMBALANCE: _WAITING | {Kind.STRAGGLER, Kind.IMBALANCE, Kind.LATE_START},
    Kind.SERVER_BOUND: _WAITING | {Kind.MODEL_SPLIT, Kind.IMBALANCE, Kind.LATE_START},
    **{kind: _WAITING | {Kind.IMBALANCE, Kind.LATE_START} for kind in INPUT},
    Kind.HOST_BLOCKED: frozenset({Kind.COPY_BOUND, Kind.LAUNCH_BOUND}),
    Kind.UNEVEN_COMM: _WAITING,
    Kind.FILE_SYNC: SLOW_RANKS | _WAITING | {Kind.HOST_BLOCKED, Kind.IDLE_BOUND, Kind.LAUNCH_BOUND},
    Kind.OBJECT_COLLECTIVES: _WAITING | {Kind.HOST_BLOCKED},
    Kind.EVALUATION: _BESIDE | INPUT | {Kind.COMPUTE_BOUND},
    Kind.ROLLOUT: _BESIDE | {Kind.COMPUTE_BOUND},
    Kind.CHECKPOINT: _BESIDE | {Kind.COPY_BOUND},
    Kind.GARBAGE_COLLECTION: _BESIDE,
    Kind.INPUT_STALLS: SLOW_RANKS | _WAITING,
    Kind.PAGE_FAULT_CHURN: _BESIDE - {Kind.HOST_BLOCKED}
    | {Kind.COMPUTE_BOUND, Kind.OPTIMIZER_BOUND, Kind.MEMORY_BOUND},
}
