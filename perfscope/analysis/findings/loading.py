"""Waiting for input as a cause."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.loading.what_ifs import MeanInput, longest_wait, saved_per_step
from perfscope.analysis.results import Finding
from perfscope.messages.findings.loading import InputBound, InputBoundUntraced, LoaderFacts
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.loading import InputCause, LoaderChange

INPUT_BOUND = 0.2  # of the step in the data loader, where nothing was traced
_CONTRADICTS = 2.0  # removing a wait saves no more than the wait: from here on traced steps are unlike
_KINDS = {
    InputCause.DECODE: FindingKind.DECODE_BOUND,
    InputCause.STORE: FindingKind.STORE_BOUND,
    InputCause.WAIT: FindingKind.INPUT_BOUND,
    InputCause.RECEIVING: FindingKind.INPUT_BOUND,
    InputCause.SLOW_WORKER: FindingKind.SLOW_WORKER,
}
# What removes the cause; of the others that is the whole wait.
_REMOVES = {InputCause.SLOW_WORKER: LoaderChange.EQUAL_WORKERS, InputCause.STORE: LoaderChange.CACHED}


def _uneven(evidence: Evidence) -> MeanInput | None:
    """The mean step, where it says what the median one does not; None elsewhere."""
    mean = evidence.mean_input
    return mean if mean is not None and mean.is_uneven else None


def _loader(evidence: Evidence, mean: MeanInput | None) -> RankLoading | None:
    """That of the rank whose mean step waits longest, where it has one."""
    of_rank = (entry for entry in evidence.loading if mean is not None and entry.rank == mean.rank)
    return next(of_rank, longest_wait(evidence.loading))


def input_wait(evidence: Evidence) -> Finding:
    """Of traced steps, with what is known of the loader's workers."""
    cost = evidence.mean("input_wait")
    mean = _uneven(evidence)
    loading = _loader(evidence, mean)
    gain_ns, gain_ratio = evidence.gain("no_input_wait", cost)
    if mean is not None:
        gain_ns, gain_ratio = round(mean.removable_ns), mean.ratio
    elif gain_ratio * evidence.step > _CONTRADICTS * cost:  # one pause fills the window: untraced steps tell
        cost = gain_ratio * evidence.step
    worst, breakdown = max(evidence.traced, key=lambda item: item[1].input_wait)
    facts = InputBound(
        input_wait=evidence.of_step(cost),
        framework=evidence.framework,
        worst_ns=max(breakdown.input_wait, round(cost)),
        mean_wait_ns=None if mean is None else mean.wait_ns,
        mean_step_ns=0.0 if mean is None else mean.step_ns,
        is_hidden_when_traced=mean is not None and mean.hidden_when_traced,
        loader=_loader_facts(evidence, loading),
    )
    finding = Finding(
        id=_kind(loading),
        facts=facts,
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
        rank=worst.rank if mean is None else mean.rank,
        of_mean=mean is not None,
    )
    return _with_gain(evidence, finding, loading)


def untraced(evidence: Evidence, waited_ns: float, step_ns: float) -> Finding | None:
    """Of always-on timing alone; None where little is waited.

    Args:
        waited_ns: of the median step, mean over ranks.
        step_ns: median step.
    """
    mean = _uneven(evidence)
    loading = _loader(evidence, mean)
    if mean is not None:
        waited_ns, step_ns = mean.wait_ns, mean.step_ns
    share = waited_ns / step_ns if step_ns else 0.0
    if share < INPUT_BOUND:
        return None
    facts = InputBoundUntraced(
        wait_ns=waited_ns,
        step_ns=step_ns,
        framework=evidence.framework,
        is_mean=mean is not None,
        loader=_loader_facts(evidence, loading),
    )
    finding = Finding(
        id=_kind(loading),
        facts=facts,
        gain_ns=round(waited_ns),
        gain_ratio=min(1.0, share),
        of_mean=mean is not None,
    )
    return _with_gain(evidence, finding, loading)


def _kind(loading: RankLoading | None) -> FindingKind:
    if loading is None or loading.cause is None:
        return FindingKind.INPUT_BOUND
    return _KINDS[loading.cause]


def _with_gain(evidence: Evidence, finding: Finding, loading: RankLoading | None) -> Finding:
    """What removing the cause alone saves, by the loader's replay; it may leave some of the wait."""
    if loading is None or loading.cause is None or evidence.mean_input is None:
        return finding
    change = _REMOVES.get(loading.cause)
    entry = None if change is None else loading.prediction(change)
    if entry is None or not finding.gain_ns or not finding.gain_ratio:
        return finding
    ratio = min(1.0, saved_per_step(loading, entry.saved_ns) / max(1.0, evidence.mean_input.wait_ns))
    return replace(finding, gain_ns=round(ratio * finding.gain_ns), gain_ratio=ratio * finding.gain_ratio)


def _loader_facts(evidence: Evidence, loading: RankLoading | None) -> LoaderFacts | None:
    if loading is None or not loading.workers:
        return None
    made = loading.num_made
    slow = next((entry for entry in loading.workers if entry.worker == loading.slow_worker), None)
    usual = [entry for entry in loading.workers if entry is not slow]
    more = loading.prediction(LoaderChange.MORE_WORKERS)
    mean = evidence.mean_input
    record = evidence.metas.get(loading.rank)
    return LoaderFacts(
        cause=loading.cause,
        num_workers=loading.num_workers,
        batch_ns=round(sum(entry.mean_ns * entry.num_batches for entry in loading.workers) / max(1, made)),
        cpu_ratio=loading.cpu_ratio,
        asleep_ratio=loading.asleep_ratio,
        late_ratio=loading.late_ratio,
        received_ratio=1 - loading.late_wait_ns / max(1, loading.wait_ns),
        mean_ready=loading.mean_ready,
        bytes_per_sample=loading.bytes_per_sample,
        cached_ratio=loading.cached_ratio,
        num_cpus=len(record.affinity) if record is not None and record.affinity else None,
        more_workers=round(more.factor) if more is not None else 0,
        more_ratio=saved_per_step(loading, more.saved_ns) / mean.step_ns if more and mean else 0.0,
        slow_worker=loading.slow_worker,
        slow_ns=slow.mean_ns if slow is not None else 0,
        others_ns=round(sum(entry.mean_ns for entry in usual) / len(usual)) if usual else 0,
    )
