"""What unequal shares of tokens cost.

Calls come in pairs: one gives the tokens to the ranks of their experts, the next one in the layer sends the
results back. So what a rank sends in the second is what its experts were given. In the backward pass it is
the same with gradients. Between the two the rank computes; in the second, ranks wait for the last one.

Where a trace has the rows of a call's input and output (its splits), the second call must give back what the
first one brought; calls whose layer is not known are taken for experts only then. Of a group whose ranks were
not all traced, the tokens of the others are known.

Time of the experts by tokens is a line a + b n, fitted to all pairs of a layer and phase. With n the same on
all ranks, a rank would take b (n - mean) less; the pair is shorter by how much earlier the last rank is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, to_builtins

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.experts.record import Exchange, ExpertGroup, ExpertRecord
from perfscope.analysis.experts.results import ExpertLayer, ExpertRank, Experts, TracedRank
from perfscope.analysis.intervals import Int64
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure


class _Pair(Struct, frozen=True, kw_only=True, eq=False):
    """Tokens there and results back; arrays of shape (ranks,), ns of the reference clock.

    `is_uneven`: some rank's experts are given more than another's. `is_whole`: all ranks were traced.
    """

    layer: str
    is_backward: bool
    ranks: tuple[int, ...]
    arrived: Int64
    sent: Int64
    num_bytes: Int64
    rows: tuple[int | None, ...]
    is_uneven: bool
    is_whole: bool

    @property
    def compute(self) -> Int64:
        result: Int64 = np.maximum(self.sent - self.arrived, 0)
        return result


def analyze_experts(
    record: ExpertRecord, hosts: Mapping[int, str], clocks: ClockFit, *, is_expected: bool
) -> tuple[Experts | None, tuple[Missing, ...]]:
    """Experts of a run, by layer.

    Args:
        record: of every rank.
        hosts: rank -> host.
        clocks: how the hosts' clocks stand to each other.
        is_expected: something names an axis of experts: without a result there must be a reason.
    """
    pairs: list[_Pair] = []
    steps: set[tuple[int, int]] = set()
    for (window, group), of_rank in record.calls.items():
        group_pairs = _pairs(group, of_rank, hosts, clocks)
        pairs += group_pairs
        if group_pairs:
            steps |= {(window, call.step) for calls in of_rank.values() for call in calls}
    if not pairs or not (is_expected or any(pair.is_uneven for pair in pairs)):
        missing = (missing_figure(Figure.EXPERTS, Cause.NO_EXPERT_SPLITS),) if is_expected else ()
        return None, missing
    by_layer: dict[str, list[_Pair]] = defaultdict(list)
    for pair in pairs:
        by_layer[pair.layer].append(pair)
    layers, incomplete = list[ExpertLayer](), list[TracedRank]()
    for layer, of_layer in sorted(by_layer.items()):
        if all(pair.is_whole for pair in of_layer):
            layers.append(_layer(layer, of_layer, len(steps)))
        else:
            ranks = map(to_builtins, _ranks(of_layer, len(steps)))
            incomplete += [TracedRank(layer=layer, **rank) for rank in ranks]
    layers.sort(key=lambda layer: -layer.saved_ns)
    experts = Experts(layers=tuple(layers), incomplete=tuple(incomplete), num_steps=len(steps))
    no_balance = (missing_figure(Figure.EXPERT_IMBALANCE, Cause.EXPERTS_NOT_TRACED),) if incomplete else ()
    return experts, no_balance


def _pairs(
    group: ExpertGroup, of_rank: Mapping[int, Sequence[Exchange]], hosts: Mapping[int, str], clocks: ClockFit
) -> list[_Pair]:
    """Pairs of one group and window; none of calls that are not alike on its traced ranks."""
    ranks = tuple(sorted(of_rank))
    is_whole = len(ranks) > 1 and len(ranks) == (group.size or len(ranks))
    calls: dict[tuple[int, str, bool], list[list[Exchange]]] = defaultdict(list)
    for key in {(call.step, call.layer, call.is_backward) for of_one in of_rank.values() for call in of_one}:
        for rank in ranks:
            calls[key].append([call for call in of_rank[rank] if call[:3] == key])
    pairs = []
    for (_, layer, is_backward), mine in sorted(calls.items()):
        if len({len(of_one) for of_one in mine}) != 1 or len(mine[0]) % 2:
            continue
        for turn in range(0, len(mine[0]), 2):
            there, back = [of_one[turn] for of_one in mine], [of_one[turn + 1] for of_one in mine]
            returns = {call.returns(first) for first, call in zip(there, back, strict=True)}
            is_same = sum(call.sent_bytes for call in there) == sum(call.sent_bytes for call in back)
            if False in returns or (None in returns and (not layer or not is_whole or not is_same)):
                continue  # what goes back is not what came: no tokens
            sizes = [call.sent_bytes for call in back]
            on_hosts = [hosts.get(rank, "") for rank in ranks]
            pairs.append(
                _Pair(
                    layer=layer,
                    is_backward=is_backward,
                    ranks=ranks,
                    arrived=_on_reference([call.end_ns for call in there], on_hosts, clocks),
                    sent=_on_reference([call.start_ns for call in back], on_hosts, clocks),
                    num_bytes=np.array(sizes, dtype=np.int64),
                    rows=tuple(call.rows for call in back),
                    is_uneven=len(set(sizes)) > 1 or any(call.is_uneven for call in back),
                    is_whole=is_whole,
                )
            )
    return pairs


def _on_reference(times: Sequence[int], hosts: Sequence[str], clocks: ClockFit) -> Int64:
    moved = [
        int(clocks.to_reference(host, np.array([time], dtype=np.int64))[0])
        for time, host in zip(times, hosts, strict=True)
    ]
    return np.array(moved, dtype=np.int64)


def _layer(layer: str, pairs: Sequence[_Pair], num_steps: int) -> ExpertLayer:
    forward = [pair for pair in pairs if not pair.is_backward]
    saved = wait = 0.0
    for is_backward in (False, True):
        of_phase = [pair for pair in pairs if pair.is_backward == is_backward]
        slope = _ns_per_byte(of_phase)
        for pair in of_phase:
            equal = np.maximum(pair.compute + slope * (pair.num_bytes.mean() - pair.num_bytes), 0)
            begin = pair.arrived.min()  # times since 1970 have no room for a fraction
            saved += max(float((pair.sent - begin).max() - (pair.arrived - begin + equal).max()), 0.0)
            wait += float((pair.sent.max() - pair.sent).mean())
    imbalances = [pair.num_bytes.max() / pair.num_bytes.mean() for pair in forward if pair.num_bytes.any()]
    return ExpertLayer(
        layer=layer,
        ranks=_ranks(pairs, num_steps),
        imbalance=float(np.mean(imbalances)) if imbalances else 1.0,
        wait_ns=round(wait / num_steps),
        saved_ns=round(saved / num_steps),
    )


def _ns_per_byte(pairs: Sequence[_Pair]) -> float:
    """How much longer experts take for a byte more of tokens; 0 where all have as many."""
    if not pairs:
        return 0.0
    size = np.concatenate([pair.num_bytes for pair in pairs]).astype(np.float64)
    time = np.concatenate([pair.compute for pair in pairs]).astype(np.float64)
    deviation = size - size.mean()
    spread = float((deviation**2).sum())
    return max(float((deviation * time).sum()) / spread, 0.0) if spread else 0.0


def _ranks(pairs: Sequence[_Pair], num_steps: int) -> tuple[ExpertRank, ...]:
    num_bytes: dict[int, int] = defaultdict(int)
    rows: dict[int, list[int | None]] = defaultdict(list)
    compute: dict[int, int] = defaultdict(int)
    for pair in pairs:
        if pair.is_backward:
            continue
        for rank, size, tokens in zip(pair.ranks, pair.num_bytes.tolist(), pair.rows, strict=True):
            num_bytes[rank] += size
            rows[rank].append(tokens)
    for pair in pairs:
        for rank, time in zip(pair.ranks, pair.compute.tolist(), strict=True):
            compute[rank] += time
    result = []
    for rank in sorted(compute):
        counts = [tokens for tokens in rows[rank] if tokens is not None]
        is_known = counts and len(counts) == len(rows[rank])
        result.append(
            ExpertRank(
                rank=rank,
                tokens=sum(counts) / num_steps if is_known else None,
                bytes=round(num_bytes[rank] / num_steps),
                compute_ns=round(compute[rank] / num_steps),
            )
        )
    return tuple(result)
