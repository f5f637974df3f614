"""What a comparison of runs finds wrong, and why it says nothing."""

from __future__ import annotations

from enum import Enum

# Ratio below which one run each says nothing of which of two settings is faster: a quarter of the pairs of
# runs of one setting were farther apart (54 runs of 18 settings on two idle cores, docs/studies.md).
SINGLE_RUNS_APART = 1.3


class ProblemKind(str, Enum):
    """Why a comparison is refused, or must be read with care. The value is the id in the JSON report."""

    OTHER_MODEL = "other_model"
    OTHER_BATCH = "other_batch"
    OTHER_MACHINE = "other_machine"
    OTHER_DTYPE = "other_dtype"
    OTHER_VERSION = "other_version"
    OTHER_THREADS = "other_threads"
    OTHER_PACKAGES = "other_packages"
    OTHER_KERNEL = "other_kernel"
    OTHER_COMMAND = "other_command"
    MODEL_PARTS = "model_parts"
    UNKNOWN_MACHINE = "unknown_machine"
    DISTURBED = "disturbed"
    INCOMPLETE = "incomplete"
    RUNNING = "running"
    MISSING_RANKS = "missing_ranks"
    NO_WINDOWS = "no_windows"
    TRACED_SPEED = "traced_speed"
    STEP_COUNTS = "step_counts"
    UNEVEN_RANKS = "uneven_ranks"
    UNEQUAL_WORLD_SIZES = "unequal_world_sizes"
    NEGATIVE_EFFICIENCY = "negative_efficiency"
    SUPERLINEAR = "superlinear"
    NO_REFERENCE = "no_reference"
    ONE_RUN = "one_run"
    NO_SPEED = "no_speed"
    NO_LABEL = "no_label"
    SAME_RUN = "same_run"
    DIVERGED = "diverged"
    LEFT_OUT = "left_out"
    MIXED_SETTINGS = "mixed_settings"
    NO_SCALING = "no_scaling"
    NO_MODE = "no_mode"


class RankBasis(str, Enum):
    """What settings are ranked by whose runs measured learning. The value is the code in the JSON report."""

    TIME = "time"  # training time to the target
    ENERGY = "energy"  # joules to the target
    COST = "cost"  # price to the target
    GOODPUT = "goodput"  # samples/s x statistical efficiency


class StudyPart(str, Enum):
    """What of a comparison a problem affects. The value is the code in the JSON report."""

    EVERYTHING = "everything"
    SCALING = "scaling"
    SCHEMES = "schemes"
    DIFF = "diff"
    EFFICIENCY = "efficiency"
    FRAMEWORKS = "frameworks"
    COMPOSITION = "composition"


class CannotTell(str, Enum):
    """Why what was measured says nothing of how runs compare. The value is the code in the JSON report."""

    REFERENCE_DISTURBED = "reference_disturbed"  # every run on as many ranks as the reference
    RUNS_DISTURBED = "runs_disturbed"  # every run of the setting that the headline is about
    ONE_RUN_EACH = "one_run_each"  # and a lead that one setting's repeats may have over each other
    IMPOSSIBLE_EFFICIENCY = "impossible_efficiency"  # above what ranks can bring


class NotModeled(Enum):
    """Why it cannot be modeled at which bandwidth another setting would win."""

    ONE_HOST = "one_host"
    NO_BATCH_TIME = "no_batch_time"
    NO_TRACED_STEP = "no_traced_step"


class LossMismatch(Enum):
    """How two loss curves that should be the same differ."""

    NO_NUMBER_REFERENCE = "no_number_reference"  # a loss of the reference is not finite
    NO_NUMBER_RUN = "no_number_run"
    FIRST = "first"  # before any update
    EARLY = "early"
    LATER = "later"
