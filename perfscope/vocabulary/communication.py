"""Process groups without a name, and why communication has no layer, or no wait and transfer."""

from enum import Enum

DEFAULT_GROUP = "default"  # the only one
# One of several. Its calls on a stream of their own are one group's: then the stream follows in parentheses.
UNKNOWN_GROUP = "unknown"


class Unattributed(str, Enum):
    """Why a call of communication has no layer. The value is the code in the JSON report."""

    NO_LAYER_TENSORS = "no_layer_tensors"  # a barrier, a scalar, norms, objects, bookkeeping of DDP
    OUTSIDE_STEPS = "outside_steps"  # begun before the traced steps, or between them
    OUTSIDE_LAYERS = "outside_layers"  # made while no layer ran, and no gradient bucket
    NOT_QUEUED_IN_TRACE = "not_queued_in_trace"  # the operator that queued it is not in the trace
    NO_SIZES = "no_sizes"  # an all-reduce without a size cannot be compared with gradient buckets
    NO_PARAMETERS = (
        "no_parameters"  # neither parameters are listed, nor gradients recorded before the all-reduce
    )
    NO_LAYERS = "no_layers"  # the trace says nowhere in which layer something runs
    NO_BUCKETS = "no_buckets"  # sizes of all-reduces do not add up to the parameters of consecutive layers
    BESIDE_DEVICES = "beside_devices"  # made on the host of a trace with devices, whose calls are what counts
    NO_STAGES = "no_stages"  # a send or receive that is not known to be between pipeline stages

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum


class NoTimes(str, Enum):
    """Why waits and transfers of an axis are not known. The value is the code in the JSON report."""

    ONE_RANK = "one_rank"  # they take the calls of several ranks, and these are one rank's
    SHARED_CALLS = "shared_calls"  # calls of its kind on its group are of another axis, too
    NOT_MATCHED = "not_matched"  # calls that are missing on some rank

    __str__ = str.__str__
