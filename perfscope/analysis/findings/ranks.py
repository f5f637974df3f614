"""Ranks as the cause: one that is slower than its peers, a model that is split unevenly, work that varies."""

from __future__ import annotations

import math
from collections import Counter

from perfscope.analysis.experts.results import ExpertLayer
from perfscope.analysis.findings.evidence import Evidence, prediction_of
from perfscope.analysis.rank_facts import are_on_cpus, num_devices
from perfscope.analysis.results import CollectiveCall, Finding
from perfscope.analysis.server import servers_of
from perfscope.analysis.waits.stragglers import CONFIRMS
from perfscope.analysis.whatif.peers import SLOWER, Slow
from perfscope.messages.findings.facts import LateRank, LayerShare, WaitOrTransfer
from perfscope.messages.findings.ranks import (
    BusyRank,
    Imbalance,
    LateStart,
    ModelSplit,
    SlowBesidePasses,
    Straggler,
)
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.host_activity import ASLEEP, HostActivity

CLEARLY = 2.4  # standard deviations of a fair draw above which a rank is last too often
HOLDS_UP = 0.8  # one rank last in so many of the calls delays the others
IMBALANCE = 0.03  # busiest rank over the mean, as a share of the step
UNEVEN = 0.1  # of one layer's parameters by which two ranks' shares of it differ
_MORE = 1.1  # times the mean of the other ranks' tokens or samples
_AS_FAST = 1.3  # times the others' time for a token that still counts as no slower
_ARITHMETIC = 0.5  # of a rank's excess that more arithmetic in every layer must explain
_ASLEEP = 0.5  # of a rank's excess that its thread must sleep for more than those of its peers
_DOMINANT = 0.5  # of the excess of all slow ranks that the worst has, to be the one


def slow_rank(evidence: Evidence) -> Finding | None:
    """A rank that does the same as others and takes longer; its gain is what the replay says."""
    what_if = evidence.what_ifs.of("no_stragglers")
    if what_if is None or evidence.uneven is not None:
        return None
    slow = [rank for rank in evidence.what_ifs.slow if rank.rank not in servers(evidence)]
    if not slow or slow[0].excess_ns < _DOMINANT * sum(rank.excess_ns for rank in slow):
        return None
    worst = slow[0]
    if _has_more_tokens(evidence, worst) or larger_inputs(evidence) is not None:
        return None
    waited = held_up(evidence)
    by_it = waited if waited is not None and waited[0].rank == worst.rank else None
    return Finding(
        id=FindingKind.STRAGGLER,
        facts=Straggler(
            excess_ns=worst.excess_ns,
            peers_ns=worst.peers_ns,
            part=worst.part,
            part_excess_ns=worst.part_excess_ns,
            phase=worst.phase,
            has_layers=worst.has_layers,
            prediction=prediction_of(what_if),
            waited=evidence.of_step(by_it[1]) if by_it else None,
            late=by_it[0] if by_it else None,
            asleep=_asleep(evidence, worst.rank, worst.excess_ns) if worst.part == "idle" else None,
        ),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        layer=worst.layer,
        rank=worst.rank,
    )


def slow_outside(evidence: Evidence) -> Finding | None:
    """A rank that does something outside the backward pass in all untraced steps, while the others wait.

    Only on CPUs: elsewhere the host runs ahead of the device, and how long a call takes is another matter.
    """
    slow = evidence.outside
    if (
        slow is None
        or slow.waited_ns < SLOWER * slow.step_ns
        or not are_on_cpus(evidence.metas)
        or evidence.pipeline is not None
        or evidence.uneven is not None
        or evidence.what_ifs.different_work
        or servers(evidence)
        or _more_samples(evidence, slow.rank) is not None
    ):
        return None
    gain_ns, gain_ratio = evidence.share_of_step(slow.waited_ns / slow.step_ns)
    return Finding(
        id=FindingKind.STRAGGLER,
        facts=SlowBesidePasses(
            num_steps=slow.num_steps,
            excess_ns=slow.excess_ns,
            ran_ns=max(0.0, slow.ran_ns),
            asleep=_asleep(evidence, slow.rank, slow.excess_ns),
        ),
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
        rank=slow.rank,
    )


def _asleep(evidence: Evidence, rank: int, excess_ns: float) -> HostActivity | None:
    """What a slow rank's training thread sleeps in, longer than those of its peers, if that is most of what
    it takes longer; None: it is not, or what it sleeps in is not known.
    """
    mine = next((result.host_idle for result in evidence.ranks if result.rank == rank), None)
    others = (result.host_idle for result in evidence.ranks if result.rank != rank)
    peers = [entries for entries in others if entries is not None]
    if mine is None or not peers:
        return None
    more = {entry.kind: float(entry.ns) for entry in mine if entry.kind in ASLEEP}
    for entry in (entry for entries in peers for entry in entries if entry.kind in more):
        more[entry.kind] -= entry.ns / len(peers)
    kind = max(more, key=lambda kind: more[kind], default=HostActivity.BLOCKED)
    if kind is HostActivity.BLOCKED or more[kind] < _ASLEEP * excess_ns:
        return None
    return kind


def larger_inputs(evidence: Evidence) -> tuple[int, float] | None:
    """(the slowest rank, its arithmetic over that of the others) where that explains most of its excess.

    Where the arithmetic is not known, its samples per step over theirs.
    """
    slow, ratio = evidence.what_ifs.slow, evidence.arithmetic_ratio
    if ratio is None and slow:
        samples = _more_samples(evidence, slow[0].rank)
        ratio = samples[0] / samples[1] if samples is not None else None
    if not slow or ratio is None or (ratio - 1) * slow[0].peers_ns < _ARITHMETIC * slow[0].excess_ns:
        return None
    return slow[0].rank, ratio


def _more_samples(evidence: Evidence, rank: int) -> tuple[float, float] | None:
    """(samples per step of the rank, mean of the others) where all are known, and it has clearly more."""
    samples = {result.rank: result.samples_per_step for result in evidence.ranks}
    mine = samples.pop(rank, None)
    others = [value for value in samples.values() if value]
    if not mine or not others or len(others) < len(samples):
        return None
    mean = sum(others) / len(others)
    return (mine, mean) if mine > _MORE * mean else None


def _has_more_tokens(evidence: Evidence, slow: Slow) -> bool:
    """Whether a rank takes longer in its experts because these are given more tokens: it does other work.

    A rank as fast as the others would then not help as much as it seems: the tokens have to go somewhere.
    """
    layers = evidence.experts.layers if evidence.experts is not None else ()
    return any(_explains(layer, slow) for layer in layers if _is_in(slow.layer, layer.layer))


def _is_in(layer: str | None, outer: str) -> bool:
    return outer != "" and f"{layer}.".startswith(f"{outer}.")


def _explains(layer: ExpertLayer, slow: Slow) -> bool:
    """Whether the rank has more tokens in the layer, and takes no longer for each."""
    mine = [rank for rank in layer.ranks if rank.rank == slow.rank]
    other_ranks = [rank for rank in layer.ranks if rank.rank != slow.rank]
    tokens, time = (sum(rank.bytes for rank in other_ranks), sum(rank.compute_ns for rank in other_ranks))
    if not mine or not other_ranks or mine[0].bytes <= _MORE * tokens / len(other_ranks):
        return False
    return mine[0].compute_ns * tokens <= _AS_FAST * time * mine[0].bytes


def model_split(evidence: Evidence) -> Finding | None:
    """A model split over ranks so that one has more to compute."""
    what_if = evidence.what_ifs.of("perfect_balance")
    uneven = evidence.uneven
    is_split = evidence.what_ifs.different_work or uneven is not None
    if what_if is None or evidence.pipeline is not None or not is_split:
        return None
    busy = {rank.rank: part.compute + part.optimizer for rank, part in evidence.traced}
    busy = {rank: time for rank, time in busy.items() if rank not in servers(evidence)}
    if len(busy) < 2:
        return None
    most, least = max(busy, key=lambda rank: busy[rank]), min(busy, key=lambda rank: busy[rank])
    share = None
    if uneven is not None:
        share = LayerShare(
            layer=uneven.layer,
            excess_ratio=uneven.most / uneven.least - 1,
            most_rank=uneven.most_rank,
            least_rank=uneven.least_rank,
        )
    return Finding(
        id=FindingKind.MODEL_SPLIT,
        facts=ModelSplit(
            most_ns=busy[most],
            least_rank=least,
            least_ns=busy[least],
            mean_ns=sum(busy.values()) / len(busy),
            uneven=share,
            prediction=prediction_of(what_if),
        ),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        rank=most,
    )


def late_start(evidence: Evidence) -> Finding | None:
    """A rank that begins the traced steps after the others, who wait for it in their first call."""
    what_if = evidence.what_ifs.of("equal_start")
    if what_if is None or what_if.rank is None:
        return None
    calls = certain_calls(evidence)
    if not any(call.late_rank == what_if.rank for call in calls):
        return None
    times = sum(call.late_rank == what_if.rank for call in calls)
    return Finding(
        id=FindingKind.LATE_START,
        facts=LateStart(
            late=LateRank(rank=what_if.rank, num_late=times, num_calls=len(calls)),
            evidence=what_if.evidence,
            prediction=prediction_of(what_if),
            waits=waits_of(evidence),
        ),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        rank=what_if.rank,
    )


def imbalance(evidence: Evidence) -> Finding | None:
    """Unequal work without a rank that is slower than its peers: some have less to do, or they take turns."""
    what_if = evidence.what_ifs.of("perfect_balance")
    if (
        what_if is None
        or evidence.pipeline is not None
        or evidence.what_ifs.different_work
        or evidence.uneven is not None
        or servers(evidence)
    ):
        return None
    larger = larger_inputs(evidence)
    if larger is None and evidence.what_ifs.of("no_stragglers") is not None:
        return None
    busy = _busy(evidence)
    mean = sum(busy.values()) / max(len(busy), 1)
    worst = max(busy, key=lambda rank: busy[rank], default=None)
    if larger is not None:
        worst = larger[0]
    stands_out = larger is not None or (worst is not None and busy[worst] > (1 + SLOWER) * mean)
    return Finding(
        id=FindingKind.IMBALANCE,
        facts=Imbalance(
            worst_rank=worst if stands_out else None,
            worst_ns=busy[worst] if worst is not None else 0,
            mean_ns=mean,
            arithmetic_ratio=evidence.arithmetic_ratio if larger is not None else None,
            samples=_more_samples(evidence, larger[0]) if larger is not None else None,
            gain_ratio=what_if.gain_ratio,
            prediction=prediction_of(what_if),
        ),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
    )


def _busy(evidence: Evidence) -> dict[int, int]:
    """Rank -> what it does per step besides waiting for others, ns; without ranks that only serve."""
    serving = servers(evidence)
    return {
        rank.rank: part.compute + part.optimizer + part.input_wait
        for rank, part in evidence.traced
        if rank.rank not in serving
    }


def busiest(evidence: Evidence) -> list[Finding]:
    """Unequal work between collectives, by the breakdown alone, where nothing could be replayed."""
    if len(evidence.traced) < 2 or not evidence.step or evidence.what_ifs.check is not None:
        return []
    busy = _busy(evidence)
    if len(busy) < 2:
        return []
    mean = sum(busy.values()) / len(busy)
    worst = max(busy, key=lambda rank: busy[rank])
    excess = busy[worst] - mean
    gain = min(excess, evidence.mean("exposed_comm")) if evidence.collectives else excess
    if gain < IMBALANCE * evidence.step:
        return []
    if evidence.untraced.excess.get(worst, math.inf) < CONFIRMS * evidence.all_of(excess)[0]:
        return []
    return [
        Finding(
            id=FindingKind.STRAGGLER,
            facts=BusyRank(busy_ns=busy[worst], mean_ns=mean, gain=evidence.of_step(gain)),
            gain_ns=evidence.all_of(gain)[0],
            gain_ratio=gain / evidence.step,
            rank=worst,
        )
    ]


def held_up(evidence: Evidence) -> tuple[LateRank, float] | None:
    """The rank that nearly always enters last, and what the others wait for it per step, ns.

    The mean over all ranks would halve it: what is waiting on the others is other work, or idle, on that one.
    """
    last = late(evidence)
    if last is None or not evidence.in_calls_ns or evidence.waiting_ns is None:
        return None
    exposed_of_others = [part.exposed_comm for result, part in evidence.traced if result.rank != last.rank]
    mostly_waiting = evidence.waiting_ns > evidence.in_calls_ns / 2
    if last.num_late < HOLDS_UP * last.num_calls or not mostly_waiting or not exposed_of_others:
        return None
    # The late rank itself waits for no other.
    waited = (
        evidence.waiting_ns / max(evidence.steps_per_rank, 1) * len(evidence.traced) / len(exposed_of_others)
    )
    return last, min(waited, sum(exposed_of_others) / len(exposed_of_others))


def certain_calls(evidence: Evidence) -> list[CollectiveCall]:
    """Calls of which it is certain who came last."""
    return [call for call in evidence.calls if not call.late_uncertain]


def late(evidence: Evidence) -> LateRank | None:
    """The rank that enters last clearly more often than its share, on enough calls; None: there is none."""
    calls = certain_calls(evidence)
    if len(calls) < 5 or len(evidence.ranks) < 2:
        return None
    rank, times = Counter(call.late_rank for call in calls).most_common(1)[0]
    share = 1 / len(evidence.ranks)
    usual = share * len(calls)
    by_chance = usual + CLEARLY * math.sqrt(usual * (1 - share))
    return LateRank(rank=rank, num_late=times, num_calls=len(calls)) if times >= by_chance else None


def waits_of(evidence: Evidence) -> WaitOrTransfer:
    """How much of the time in calls is waiting for the last rank, and how much transfer."""
    return WaitOrTransfer(
        num_devices=_devices_of_one(evidence),
        in_calls_ns=evidence.in_calls_ns,
        waiting_ns=evidence.waiting_ns,
        transfer_ns=sum(call.transfer_ns for call in evidence.calls),
        num_steps=evidence.steps_per_rank,
        has_step_marks=evidence.has_step_marks,
    )


def _devices_of_one(evidence: Evidence) -> int:
    """Devices of the longest collective's group, where all of them are one process's; 0 elsewhere."""
    top = max(evidence.collectives, key=lambda collective: collective.duration_ns, default=None)
    if top is None or evidence.in_calls_ns or len(evidence.ranks) != 1:
        return 0
    devices = num_devices(evidence.metas).get(evidence.ranks[0].rank)
    return devices if devices and 1 < devices == top.group_size else 0


def servers(evidence: Evidence) -> set[int]:
    """Ranks of a bench run that only serve: they wait by design."""
    return servers_of(evidence.run.scheme)
