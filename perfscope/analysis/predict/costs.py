"""What one collective costs: the alpha-beta(-gamma) formulas. Pure; times in seconds, sizes in bytes.

alpha is the latency of one message (s), beta the inverse bandwidth of one rank's link (s/byte), gamma the
time to add one byte to another (s/byte). S is a call's payload as `perfscope.volumes` defines it: all_reduce,
broadcast, reduce, send: the tensor; all_gather: the whole result; reduce_scatter, all_to_all: the whole input
of one rank; gather, scatter: the whole on the root.

Sources: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005 (ring, recursive halving and doubling, binomial
trees); Sanders, Speck, Träff, Parallel Computing 35(12), 2009 (pipelined trees); Hensgen, Finkel, Manber,
IJPP 17(1), 1988 (dissemination barrier). The bytes are those of `perfscope.volumes`, which holds them once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite, log2

from msgspec import Struct

from perfscope.volumes import backend_factor, bus_factor

RING = "ring"
HALVING_DOUBLING = "halving_doubling"
TREE = "tree"
LINEAR = "linear"
DISSEMINATION = "dissemination"


class LinkCost(Struct, frozen=True):
    """What one message over one link costs: alpha_s + bytes * beta_s_per_byte, and gamma per byte reduced.

    Raises:
        ValueError: a negative, infinite or undefined figure.
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        for what, value in (
            ("latency", self.alpha_s),
            ("time per byte", self.beta_s_per_byte),
            ("reduce time per byte", self.gamma_s_per_byte),
        ):
            if not isfinite(value) or value < 0:
                raise ValueError(f"the {what} of a link must be a finite number >= 0, not {value}")

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """1/beta; None for a link that charges nothing per byte."""
        return 1 / self.beta_s_per_byte if self.beta_s_per_byte else None


class _Terms(Struct, frozen=True):
    """How often each of alpha, beta and gamma is paid: messages, bytes and reduced bytes, per byte of S."""

    num_messages: float
    bytes_sent: float
    bytes_reduced: float


def _rounds(num_ranks: int) -> int:
    """ceil(log2 P): the depth of a binomial tree, the rounds of a halving."""
    return ceil(log2(num_ranks))


def _sent(collective: str, num_ranks: int) -> float:
    """bytes per byte of S one rank sends, from the one table of volumes."""
    factor = bus_factor(collective, num_ranks)
    if factor is None:
        raise ValueError(f"no volume formula for the collective {collective!r}")
    return factor


def _share(num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks


def _ring_all_reduce(num: int) -> _Terms:
    return _Terms(2 * (num - 1), _sent("all_reduce", num), _share(num))


def _halving_all_reduce(num: int) -> _Terms:
    return _Terms(2 * _rounds(num), _sent("all_reduce", num), _share(num))


def _tree_all_reduce(num: int) -> _Terms:
    # Pipelined: up the tree and down again, each byte once per direction, the pipe full.
    return _Terms(2 * _rounds(num), _sent("reduce", num) + _sent("broadcast", num), 1.0)


def _ring_reduce_scatter(num: int) -> _Terms:
    return _Terms(num - 1, _sent("reduce_scatter", num), _share(num))


def _halving_reduce_scatter(num: int) -> _Terms:
    return _Terms(_rounds(num), _sent("reduce_scatter", num), _share(num))


def _ring_all_gather(num: int) -> _Terms:
    return _Terms(num - 1, _sent("all_gather", num), 0.0)


def _doubling_all_gather(num: int) -> _Terms:
    return _Terms(_rounds(num), _sent("all_gather", num), 0.0)


def _tree_broadcast(num: int) -> _Terms:
    return _Terms(_rounds(num), _rounds(num) * _sent("broadcast", num), 0.0)


def _chain_broadcast(num: int) -> _Terms:
    # The pipelined chain: the last rank sees the first byte after P-1 hops and the rest behind it.
    return _Terms(num - 1, _sent("broadcast", num), 0.0)


def _tree_reduce(num: int) -> _Terms:
    rounds = _rounds(num)
    return _Terms(rounds, rounds * _sent("reduce", num), rounds)


def _chain_reduce(num: int) -> _Terms:
    return _Terms(num - 1, _sent("reduce", num), 1.0)


def _pairwise(num: int) -> _Terms:
    return _Terms(num - 1, _sent("all_to_all", num), 0.0)


def _linear_root(num: int) -> _Terms:
    return _Terms(num - 1, _sent("gather", num), 0.0)


def _tree_root(num: int) -> _Terms:
    return _Terms(_rounds(num), _sent("gather", num), 0.0)


def _one_message(num: int) -> _Terms:
    return _Terms(1, _sent("send", num), 0.0)


def _dissemination(num: int) -> _Terms:
    return _Terms(_rounds(num), 0.0, 0.0)


def _table() -> dict[str, dict[str, Callable[[int], _Terms]]]:
    """Per collective its algorithms; the first is the one taken when none is named."""
    rooted: dict[str, Callable[[int], _Terms]] = {LINEAR: _linear_root, TREE: _tree_root}
    message: dict[str, Callable[[int], _Terms]] = {LINEAR: _one_message}
    return {
        "all_reduce": {RING: _ring_all_reduce, HALVING_DOUBLING: _halving_all_reduce, TREE: _tree_all_reduce},
        "reduce_scatter": {RING: _ring_reduce_scatter, HALVING_DOUBLING: _halving_reduce_scatter},
        "all_gather": {RING: _ring_all_gather, HALVING_DOUBLING: _doubling_all_gather},
        "broadcast": {TREE: _tree_broadcast, RING: _chain_broadcast},
        "reduce": {TREE: _tree_reduce, RING: _chain_reduce},
        "all_to_all": {LINEAR: _pairwise},
        "gather": rooted,
        "scatter": rooted,
        "send": message,
        "recv": message,
        "barrier": {DISSEMINATION: _dissemination},
    }


def algorithms(collective: str) -> tuple[str, ...]:
    """The algorithms that have a formula for this collective, the default first; () for an unknown one."""
    return tuple(_table().get(collective, ()))


def collective_time_s(
    collective: str,
    num_ranks: int,
    num_bytes: float,
    link: LinkCost,
    algorithm: str | None = None,
    *,
    backend: str | None = None,
) -> float:
    """Seconds one collective takes when all ranks enter at once and nothing else uses the links.

    all_reduce: ring 2(P-1)alpha + 2(P-1)/P S beta + (P-1)/P S gamma; halving_doubling 2 ceil(log2 P) alpha
    and the same beta and gamma (exact for powers of two; other P cost a real library one more exchange); tree
    2 ceil(log2 P) alpha + 2 S beta + S gamma. reduce_scatter, all_gather: half the ring (gamma only in the
    first).
    broadcast, reduce: tree ceil(log2 P)(alpha + S beta [+ S gamma]); ring is the pipelined chain
    (P-1) alpha + S beta [+ S gamma]. all_to_all: (P-1)(alpha + S/P beta). gather, scatter: linear
    (P-1)(alpha + S/P beta), tree ceil(log2 P) alpha + (P-1)/P S beta. send: alpha + S beta. barrier:
    ceil(log2 P) alpha. One rank sends nothing: 0.

    Args:
        collective: canonical name.
        num_ranks: P (a send: 2).
        num_bytes: S, of one call.
        link: what one rank's link costs.
        algorithm: ring, halving_doubling, tree, linear, dissemination; None takes the first of `algorithms`.
        backend: gloo, nccl, mpi: what it moves beyond the formula (`volumes.backend_factor`) counts too.

    Raises:
        ValueError: an unknown collective, an algorithm it has no formula for, P < 1, or S < 0 or undefined.
    """
    rounds = _table().get(collective)
    if rounds is None:
        raise ValueError(
            f"no cost formula for the collective {collective!r}; known: {', '.join(sorted(_table()))}"
        )
    chosen = next(iter(rounds)) if algorithm is None else algorithm
    if chosen not in rounds:
        raise ValueError(f"no {chosen} formula for {collective}; known: {', '.join(rounds)}")
    if num_ranks < 1:
        raise ValueError(f"a group has at least one rank, not {num_ranks}")
    if not isfinite(num_bytes) or num_bytes < 0:
        raise ValueError(f"a payload is a finite number of bytes >= 0, not {num_bytes}")
    if num_ranks == 1:
        return 0.0
    terms = rounds[chosen](num_ranks)
    more = 1.0 if backend is None else backend_factor(backend, collective, num_ranks, num_bytes)
    return (
        terms.num_messages * link.alpha_s
        + terms.bytes_sent * more * num_bytes * link.beta_s_per_byte
        + terms.bytes_reduced * num_bytes * link.gamma_s_per_byte
    )
