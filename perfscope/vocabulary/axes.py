"""Axes of a device mesh, by the names that torch and torchtitan use."""

from enum import Enum


class Axis(str, Enum):
    """Along what a mesh divides a training; the value is the name in options and records."""

    DP = "dp"  # data parallel: replicas, each with its part of the batch
    FSDP = "fsdp"  # fully sharded data parallel: parts of the batch and of the parameters
    TP = "tp"  # tensor parallel: parts of each layer
    SP = "sp"  # sequence parallel: parts of the sequence between tensor-parallel layers
    PP = "pp"  # pipeline parallel: consecutive layers
    CP = "cp"  # context parallel: parts of the sequence, through attention too
    EP = "ep"  # expert parallel: experts of a mixture
    NUMA = "numa"  # replicas in the NUMA domains of one host

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


# Outermost first: ranks that are neighbors along the last one are consecutive.
LAYOUT = (Axis.DP, Axis.FSDP, Axis.PP, Axis.EP, Axis.CP, Axis.SP, Axis.NUMA, Axis.TP)
# Axes among which the samples of a step are divided.
BATCH_AXES = frozenset((Axis.DP, Axis.FSDP, Axis.EP, Axis.NUMA))
# The spelling D,M,S of options and sweep files, and the names in records before axes had names.
POSITIONAL = (Axis.DP, Axis.TP, Axis.PP)
OLD_NAMES = {"D": Axis.DP, "M": Axis.TP, "S": Axis.PP, "data": Axis.DP, "model": Axis.TP, "stage": Axis.PP}
# Schemes whose D or M had another meaning.
OLD_MEANINGS = {
    "dp.fsdp": {Axis.DP: Axis.FSDP},
    "dp.hsdp": {Axis.TP: Axis.FSDP},
    "hy.numa_replica": {Axis.TP: Axis.NUMA},
}
