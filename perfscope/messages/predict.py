"""What is stated with a prediction: what it assumes, what the runs do not support, which scheme is best."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.links import WHERE
from perfscope.messages.lists import counted, joined

# -- of one prediction -----------------------------------------------------------------------------------

ONE_BATCH = (
    "only one local batch was measured: layers are taken as proportional to the samples; "
    "record another batch per rank"
)
LAYERS_DIVIDED = (
    "layers are divided in all runs: what ranks do with gathered activations is taken as divided, "
    "too, so the step may be longer; record dp.ddp as well"
)
LINKS_INSIDE_UNKNOWN = (
    "its calls use links inside hosts, too, which no run's calls measure: those are taken as no "
    "slower than the ones between hosts"
)
BEGUN_BEFORE = (
    "its traced steps idle, waiting for exchanges begun before them: a part of its compute is communication"
)
TIME_ASSUMED = (
    "in the runs more samples took no longer: the time per sample is assumed as half of the layers'"
)
FROM_LAYERS_JSON = "gradients are taken from layers.json, in DistributedDataParallel's buckets"


def beyond(num_ranks: int, largest: int) -> str:
    return f"{counted(num_ranks, 'rank')} {'is' if num_ranks == 1 else 'are'} beyond the {largest} measured"


def did_not_run(scheme: str) -> str:
    return f"{scheme} did not run: its compute is taken from the other schemes' runs"


def far_batch(samples: float, least: float, most: float) -> str:
    """Samples per rank."""
    return f"{samples:g} samples per rank are far from the {least:g} to {most:g} measured"


def overlap_unknown(scheme: str, source: str) -> str:
    """`source`: the family of schemes whose overlap is taken; "": none is."""
    taken = f"that of {source}.*" if source else "none"
    return f"no run shows how {scheme} overlaps on several ranks: its overlap is taken as {taken}"


def odd_ratio(ratio: float) -> str:
    """`ratio`: recorded communication over that of the formulas."""
    return f"its recorded communication takes {ratio:.1f} x what the formulas say; carried over"


def upside_down(less: float, more: float, longer_ns: float, shorter_ns: float) -> str:
    """Fewer samples per rank took longer than more."""
    return (
        f"{less:g} samples per rank took longer than {more:g} ({longer_ns / 1e6:.1f} and "
        f"{shorter_ns / 1e6:.1f} ms): some of its runs were disturbed; record them again"
    )


# -- of all predictions ----------------------------------------------------------------------------------

CORES_UNKNOWN = "some runs do not record how many cores a rank had: the target's share is taken as theirs"
NO_REPEATS = (
    "there is one run of each configuration: the intervals hold no run-to-run spread; "
    "record repeats to widen them"
)


def not_separable(link_class: str) -> str:
    where = WHERE.get(link_class, link_class)
    return f"the calls {where} have one size and one group size: latency and bandwidth cannot be separated"


def poor_fit(link_class: str, residual_ratio: float) -> str:
    where = WHERE.get(link_class, link_class)
    return f"the calls {where} scatter by {residual_ratio:.0%} around their fit (median)"


def slowdown(cores_per_rank: float | None, factor: float) -> str:
    return (
        f"with {cores_per_rank:g} cores per rank compute is taken as {factor:.2f} x that of the runs; "
        f"memory bandwidth that ranks share is not modeled"
    )


def different_cores(shares: Sequence[float], chosen: float, names: Sequence[str]) -> str:
    """Runs have different cores per rank; those called `names`, with `chosen`, are used."""
    listed = joined(f"{share:g}" for share in shares)
    runs = ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
    return (
        f"the runs' ranks have {listed} cores each, so their compute is not comparable: "
        f"compute and efficiency are taken from the runs with {chosen:g} alone ({runs}); choose with "
        f"--cores-per-rank, or record all runs with the same cores per rank"
    )


# -- of a run --------------------------------------------------------------------------------------------

NOT_ENDED = "ranks that did not end by themselves"


def few_traced_steps(num: int) -> str:
    return f"only {counted(num, 'traced step')} on some rank; 4 or more give better figures"


def of_runs(problem: str, names: Sequence[str], num_runs: int) -> str:
    """A problem with the runs that have it."""
    runs = f"all {num_runs} runs" if len(names) == num_runs > 1 else joined(names)
    return f"{runs}: {problem}"


# -- why there is none -----------------------------------------------------------------------------------

ANOTHER_NETWORK = (
    "in its run the traced steps idle, waiting for exchanges begun before them: what looks like "
    "computing is that network's, and is not carried to another; leave --network out"
)
NO_CALL_BETWEEN_HOSTS = (
    "it sends between hosts, and no run has a traced call between hosts; "
    "give --network, --ranks-per-host for one host, or measure with perfscope doctor --links before recording"
)


def too_many_ranks(num_ranks: int, times: float, largest: int) -> str:
    return (
        f"{num_ranks} ranks are more than {times} x the {largest} measured; "
        f"record larger runs, or give --extrapolate"
    )


def batch_too_far(samples: float, times: float, least: float, most: float | None) -> str:
    """`most`: None where all runs have about as many samples per rank."""
    span = f"{least:g}" if most is None else f"{least:g} to {most:g}"
    return (
        f"{samples:,.6g} samples per rank are more than {times} x off the {span} measured; "
        f"choose another --batch, record runs with it, or give --extrapolate"
    )


def no_call(link_class: str) -> str:
    return f"no run has a traced call {WHERE.get(link_class, link_class)}; record one that has"


# -- the best --------------------------------------------------------------------------------------------


def only_scheme(num_ranks: int, scheme: str) -> str:
    return f"At {counted(num_ranks, 'rank')} only {scheme} of the schemes asked for could be predicted."


def best_scheme(
    num_ranks: int, first: str, second: str, ahead: float | None, undecided: Sequence[str]
) -> str:
    """`ahead`: of the second, as a ratio; None: level. `undecided`: schemes whose intervals overlap."""
    lead = "level with" if ahead is None else f"{100 * ahead:.0f} % ahead of"
    text = f"At {counted(num_ranks, 'rank')} {first} is predicted best, {lead} {second}"
    if undecided:
        return f"{text}; its interval overlaps with {joined(undecided)}, so this is not decided."
    return f"{text}; no interval overlaps with its own."
