"""Names of what concerns pipelines."""

from __future__ import annotations

from perfscope.vocabulary.pipelines import Schedule, StageWork

SCHEDULES = {
    Schedule.FORWARD_ONLY: "forward passes only",
    Schedule.GPIPE: "GPipe",
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.INTERLEAVED: "interleaved 1F1B",
    Schedule.LOOPED_BFS: "looped BFS",
    Schedule.ZERO_BUBBLE: "the zero-bubble schedule ZB-H1",
    Schedule.ZB_V: "the zero-bubble schedule ZB-V",
    Schedule.OTHER: "an unknown schedule",
}
WORKS = {
    StageWork.FORWARD: "Forward",
    StageWork.BACKWARD: "Backward",
    StageWork.INPUT_BACKWARD: "Backward (inputs)",
    StageWork.WEIGHT_BACKWARD: "Backward (weights)",
}
BUBBLE_PARTS = {
    "fill": "Fill",
    "drain": "Drain",
    "imbalance": "Imbalance",
    "late_sends": "Late sends",
    "other": "Other",
}
