"""Why a rank enters a call later than the others."""

from __future__ import annotations

from enum import Enum


class LateReason(str, Enum):
    """The value is the code in the JSON report."""

    COMPUTE = "compute"  # computing a layer took it longer
    MODEL_SPLIT = "model_split"  # it computes layers that most of the others do not have
    UPSTREAM = "upstream"  # point to point: the other end needs what it was computing
    NUMA_REMOTE = "numa_remote"  # all of its layers alike, and its memory lies on another NUMA node
    DISTURBED = "disturbed"  # OS noise: another process, a quota, heat on its host
    OVERSUBSCRIBED = "oversubscribed"  # the job's own threads share its CPUs
    INPUT_WAIT = "input_wait"  # waiting for the data loader
    OPTIMIZER = "optimizer"
    COPY = "copy"
    IDLE = "idle"  # no operator ran: Python, sleeping, another process
    EXPOSED_COMM = "exposed_comm"  # it was still in another call
    LEFT_LATE = "left_late"  # it left the previous call later than the others did
    STARTED_LATE = "started_late"  # its step began later: the cause lies before it
    UNTRACED = "untraced"  # time outside the traced steps
    TOGETHER = "together"  # it came with most of the others: those who waited were early
    UNCLEAR = "unclear"  # several small things
    UNCERTAIN = "uncertain"  # the hosts' clocks leave open who was late

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum
