"""POP's efficiency factors (https://pop-coe.eu/node/69)."""

from __future__ import annotations

from enum import Enum


class PopFactor(str, Enum):
    """The value is the name in the JSON report, and of the field of `analysis.efficiency.Efficiency`."""

    PARALLEL = "parallel_efficiency"
    LOAD_BALANCE = "load_balance"
    LB_IN = "lb_in"  # between ranks of one host
    LB_OUT = "lb_out"  # between hosts
    COMMUNICATION = "comm_efficiency"  # serialization x transfer
    SERIALISATION = "serialisation"
    TRANSFER = "transfer"
    COMPUTATION_SCALING = "computation_scaling"  # of several runs
    GLOBAL = "global_efficiency"  # of several runs

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


# The two that load balance is the product of, where there are several hosts.
SPLIT_BY_HOST = (PopFactor.LB_IN, PopFactor.LB_OUT)
# From this on the field calls a factor acceptable.
ACCEPTABLE = 0.8
IMPOSSIBLE = 1.05  # an efficiency above it is not due to the ranks
