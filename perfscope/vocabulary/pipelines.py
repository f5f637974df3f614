"""Pipeline parallelism: kinds of work and schedules."""

from enum import Enum


class StageWork(str, Enum):
    """What a stage does with a microbatch. The values are the letters that torch uses."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_BACKWARD = "I"  # gradients of the stage's input only
    WEIGHT_BACKWARD = "W"  # gradients of the weights only

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


class Schedule(str, Enum):
    """In which order a pipeline works. The value is the code in the JSON report."""

    FORWARD_ONLY = "forward_only"
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved_1f1b"
    LOOPED_BFS = "looped_bfs"
    ZERO_BUBBLE = "zero_bubble"  # ZB-H1, also with several stages per rank
    ZB_V = "zb_v"  # two stages per rank, the first rank has the first and the last
    OTHER = "other"

    __str__ = str.__str__
