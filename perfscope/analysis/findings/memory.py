"""Memory that is nearly full, or grows."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.results import MemoryLimit
from perfscope.analysis.results import Finding, RankResult
from perfscope.messages.findings.memory import LowHeadroom, MemoryGrows
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.memory import FULL, LimitOf


def low_headroom(evidence: Evidence) -> list[Finding]:
    """Of the fullest device, where both its peak and its size were measured.

    What the allocator only keeps back does not count where it is known what the tensors took: it is given
    back when memory runs out.
    """
    limits = evidence.machine.memory_limits if evidence.machine is not None else ()
    full: list[tuple[MemoryLimit, tuple[RankResult, ...], int | None]] = []
    for limit in limits:
        if limit.of is not LimitOf.DEVICE or limit.peak_bytes < FULL * limit.limit_bytes:
            continue
        ranks = _ranks_on(evidence, limit)
        peaks = [rank.peak_device_bytes for rank in ranks if rank.peak_device_bytes is not None]
        tensors = sum(peaks) if ranks and len(peaks) == len(ranks) else None
        if tensors is None or tensors >= FULL * limit.limit_bytes - _beside_tensors(limit, ranks):
            full.append((limit, ranks, tensors))
    if not full:
        return []
    limit, ranks, tensors = min(full, key=lambda entry: entry[0].headroom_ratio)
    facts = LowHeadroom(
        device=limit.name,
        host=limit.host if len(evidence.hosts) > 1 else "",
        limit_bytes=limit.limit_bytes,
        peak_bytes=limit.peak_bytes,
        tensor_bytes=tensors,
        num_devices=len(full),
    )
    rank = ranks[0].rank if len(ranks) == 1 else None
    return [Finding(id=FindingKind.LOW_HEADROOM, facts=facts, rank=rank)]


def grows(evidence: Evidence) -> list[Finding]:
    """Of the process whose resident memory grows fastest while steps run."""
    ranks = evidence.machine.rank_memory if evidence.machine is not None else ()
    growing = [
        (memory.growth_bytes_per_s, memory) for memory in ranks if memory.growth_bytes_per_s is not None
    ]
    step_ns = evidence.mean_step_ns
    if not growing or step_ns is None:
        return []
    rate, memory = max(growing, key=lambda entry: entry[0])
    assert memory.first_bytes is not None and memory.last_bytes is not None  # it grows while steps run
    facts = MemoryGrows(
        num_ranks=len(growing),
        first_bytes=memory.first_bytes,
        last_bytes=memory.last_bytes,
        num_samples=memory.num_samples,
        bytes_per_step=rate * step_ns / 1e9,
    )
    return [Finding(id=FindingKind.MEMORY_GROWS, facts=facts, rank=memory.rank)]


def _ranks_on(evidence: Evidence, limit: MemoryLimit) -> tuple[RankResult, ...]:
    """Those whose model is on the device; (): not known."""
    host = next((host for host in evidence.hosts if host.name == limit.host), None)
    if host is None:
        return ()
    ranks = [rank for rank in evidence.ranks if rank.host == limit.host]
    gpus = [host.topology.gpu_of(rank.device, evidence.run.environment) for rank in ranks]
    if None in gpus:
        return ()  # any of them may be on this device
    return tuple(
        rank
        for rank, gpu in zip(ranks, gpus, strict=True)
        if gpu is not None and str(gpu.index) == limit.name
    )


def _beside_tensors(limit: MemoryLimit, ranks: tuple[RankResult, ...]) -> int:
    """In use and not the allocators': contexts, libraries' workspaces and other processes."""
    reserved = sum(rank.peak_reserved_bytes or rank.peak_device_bytes or 0 for rank in ranks)
    return max(limit.peak_bytes - reserved, 0)
