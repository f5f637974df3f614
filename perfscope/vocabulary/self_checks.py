"""What every report checks of itself."""

from __future__ import annotations

from enum import Enum


class Check(str, Enum):
    """The value is the code in the JSON report. Of each, what must equal or not exceed what."""

    BREAKDOWN_SUM = "breakdown_sum"  # the parts of a rank's step = the step
    DEVICE_SUM = "device_sum"  # compute, exposed communication, copies and idle = the devices' span
    DEVICE_IDLE_SUM = "device_idle_sum"  # what the host was in while devices idled = their idle time
    DEVICE_IDLE_STEP = "device_idle_step"  # idle share of a file as one step = idle share of the devices
    COMM_BY_LAYER_SUM = "comm_by_layer_sum"  # exposed of layers and of none = all exposed
    COMM_BY_AXIS_SUM = "comm_by_axis_sum"  # exposed along axes = all exposed
    COMM_OF_STEP = "comm_of_step"  # exposed in the breakdown = all exposed
    COMM_PRESENT = "comm_present"  # communication that is stated to be absent = none
    WAIT_WITHIN_CALLS = "wait_within_calls"  # waiting for ranks <= time in collectives
    PATH_SUM = "path_sum"  # the kinds on a step's critical path = the path
    PATH_IDLE = "path_idle"  # gaps on the path <= half of it, where the device hardly idles
    PATH_VERDICT = "path_verdict"  # a verdict of gaps: half of its saving <= gaps on the path
    GAIN_WITHIN_STEP = "gain_within_step"  # a saving <= the step
    GAIN_WITHIN_CAUSE = "gain_within_cause"  # a saving of gaps <= the gaps
    WHAT_IF_STEP = "what_if_step"  # predicted step + saving = the median step


# The verdict does not rest on these.
BESIDE_THE_VERDICT = frozenset({Check.DEVICE_IDLE_SUM, Check.COMM_BY_LAYER_SUM, Check.PATH_SUM})
